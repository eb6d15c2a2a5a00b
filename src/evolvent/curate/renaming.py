"""Renaming of the tools of a sample and their parameters everywhere at once, and its inverse for calls.

Renaming follows the structure: names of tools, properties at every depth, `required`, objects among defaults
and enums, gold calls and earlier calls. A key of a free-form object is data and stays. All names change at the
same moment, so that two names can be swapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from evolvent.curate.outlines import (
    NESTING_KEYWORDS,
    QUOTES,
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    VALUE_KEYWORDS,
    Scrub,
    ToolOutline,
    find_mentions,
    inner_schemas,
    is_mapping,
    is_name,
    outline_tool,
    properties_of,
)
from evolvent.errors import SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import is_flat
from evolvent.trajectory import Json

__all__ = ["KeyMap", "NameMap", "build_tool_keys", "rename_sample", "token_pattern", "unmask_calls"]

_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
_ELEMENTS = ("items", "prefixItems", "contains", "additionalProperties")
_CONTAINERS = frozenset((*_ALTERNATIVES, *_ELEMENTS))
_WORD = re.compile(r"\w+(?:[.\-]\w+)*")
_JOINTS = re.compile(r"([.\-])")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyMap:
    """The renamed keys of an object.

    Args:
        renamed: Old key -> new key.
        children: By old key, the renamed keys of the value.
        elements: Renamed keys of the elements of a list, and of values under keys that the schema does not name.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, KeyMap] = field(default_factory=dict)
    elements: KeyMap | None = None

    def apply(self, value: T) -> T:
        """Renames the keys of a value; the type of a list is kept."""
        if isinstance(value, Mapping):
            names, children, elements = self.renamed, self.children, self.elements
            renamed = {
                names.get(key, key): keys.apply(child)
                if (keys := children.get(key) if key in names else elements)
                else child
                for key, child in value.items()
            }
            return cast(T, renamed)
        if self.elements is not None and isinstance(value, (list, tuple)):
            return cast(T, type(value)([self.elements.apply(child) for child in value]))
        return value

    def invert(self) -> KeyMap:
        """Returns the inverse map. Old keys, which no prompt showed, become new ones: errors stay errors."""
        permutation = _close_permutation(self.renamed)
        children = {permutation[key]: keys.invert() for key, keys in self.children.items()}
        return KeyMap(
            {new: old for old, new in permutation.items()}, children, self.elements.invert() if self.elements else None
        )


@dataclass(frozen=True, slots=True)
class NameMap:
    """The names that changed in a sample; empty where nothing changed.

    Args:
        tools: Old name -> new name.
        keys: By old name of the tool, the renamed keys of its arguments.
        values: By old tool and old parameter, a default and its replacement.
        unrenamed: Old names that remain in the conversation, in texts of users and results of tools, which are
            data.
    """

    tools: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, KeyMap] = field(default_factory=dict)
    values: Mapping[tuple[str, str], tuple[Json, Json]] = field(default_factory=dict)
    unrenamed: tuple[str, ...] = ()

    def rename_call(self, call: Call, *, gold: bool = True) -> Call:
        """Renames a call; a gold call also gets the new values of defaults."""
        arguments = call.arguments
        if gold and self.values:
            arguments = {key: _swap(self.values.get((call.name, key)), value) for key, value in arguments.items()}
        keys = self.keys.get(call.name)
        if keys and not keys.children and keys.elements is None:
            arguments = {keys.renamed.get(key, key): value for key, value in arguments.items()}
            keys = None
        return Call(self.tools.get(call.name, call.name), keys.apply(arguments) if keys else arguments, call.id)


def unmask_calls(calls: Sequence[Call], names: NameMap) -> tuple[Call, ...]:
    """Converts calls to the names of the original sample: `unmask(mask(sample).calls) == sample.calls`.

    A call with an old name, which the masked prompt did not show, gets a name that does not exist, and a call with the
    old value of an exchanged default gets the new one: a call that is wrong before unmasking is wrong after it.
    """
    old_names = {new: old for old, new in _close_permutation(names.tools).items()}
    original_calls = []
    for call in calls:
        name = old_names.get(call.name, call.name)
        keys = names.keys.get(name)
        arguments = keys.invert().apply(call.arguments) if keys else dict(call.arguments)
        if names.values:
            arguments = {key: _swap(names.values.get((name, key)), value) for key, value in arguments.items()}
        original_calls.append(Call(name, arguments, call.id))
    return tuple(original_calls)


def _close_permutation(renamed: Mapping[str, str]) -> dict[str, str]:
    """Extends a renaming to a permutation: the last name of a chain maps to the first."""
    permutation = dict(renamed)
    for start in renamed.keys() - set(renamed.values()):
        last = start
        while last in renamed:
            last = renamed[last]
        permutation[last] = start
    return permutation


def _swap(pair: tuple[Any, Any] | None, value: Any) -> Any:
    """Replaces a value of a pair by the other value; any third value stays."""
    if pair is None or type(value) not in (type(pair[0]), type(pair[1])):
        return value
    return pair[1] if value == pair[0] else pair[0] if value == pair[1] else value


# ---------------------------------------------------------------------------------------------------- schemas


def _build_keys(nodes: Iterable[Any], names: Mapping[str, str]) -> KeyMap | None:
    """Builds the key map of schemas of one object; alternatives are merged, as a name means the same in all."""
    pending: list[Any] = list(nodes)
    element_schemas: list[Any] = []
    properties: dict[str, list[Any]] = {}
    while pending:
        node = pending.pop()
        if not _has_inner_schemas(node):
            continue
        for name, child in properties_of(node).items():
            properties.setdefault(name, []).append(child)
        if not _CONTAINERS.isdisjoint(node):
            pending += inner_schemas(node, _ALTERNATIVES)
            element_schemas += inner_schemas(node, _ELEMENTS)
    children_by_name = {
        name: keys
        for name, children in properties.items()
        if any(_has_inner_schemas(child) for child in children) and (keys := _build_keys(children, names)) is not None
    }
    element_keys = _build_keys(element_schemas, names) if element_schemas else None
    if not properties and element_keys is None:
        return None
    return KeyMap({name: names.get(name, name) for name in properties}, children_by_name, element_keys)


def _has_inner_schemas(node: Any) -> bool:
    """Returns whether a node is a schema that may hold other schemas or names."""
    return is_mapping(node) and not NESTING_KEYWORDS.isdisjoint(node)


def build_tool_keys(tool_outline: ToolOutline, names: Mapping[str, str]) -> KeyMap:
    """Builds the key map of a tool's arguments with the new names `names`."""
    if tool_outline.is_simple:
        return KeyMap(names)
    parameters = tool_outline.tool.parameters
    return _build_keys([{"properties": parameters} if is_flat(parameters) else parameters], names) or KeyMap()


# ---------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True, slots=True)
class _SchemaWriter:
    """Rewrites the schema of one tool."""

    names: Mapping[str, str]
    scrub_text: Callable[[str], str] | None
    values: Mapping[str, tuple[Any, Any]]
    tool: str = ""

    def write_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if is_flat(parameters):
            return self._write_properties(parameters, is_top=True)
        rewritten: dict[str, Any] = self._write_node(parameters, is_top=True, property_name=self.tool)
        return rewritten

    def write_simple(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a schema without nested properties."""
        names, rewritten = self.names, dict(parameters)
        properties = properties_of(parameters)
        if self.values or self.scrub_text is not None:
            rewritten["properties"] = self._write_properties(properties, is_top=True)
            if self.scrub_text is not None and isinstance(rewritten.get("description"), str):
                rewritten["description"] = self.scrub_text(rewritten["description"])
        else:
            rewritten["properties"] = {names.get(name, name): schema for name, schema in properties.items()}
        if isinstance(parameters.get("required"), list):
            rewritten["required"] = self._rename_list(parameters["required"])
        return rewritten

    def _rename_list(self, names: Sequence[Any]) -> list[Any]:
        """Renames the texts in a list; other values stay."""
        return [self.names.get(name, name) if isinstance(name, str) else name for name in names]

    def _write_properties(self, properties: Mapping[str, Any], *, is_top: bool = False) -> dict[str, Any]:
        values = self.values if is_top else {}
        rewritten = {}
        for name, schema in properties.items():
            property_schema = _replace_default(schema, values[name]) if name in values else schema
            rewritten[self.names.get(name, name)] = self._write_node(property_schema, property_name=name)
        return rewritten

    def _write_node(self, node: Any, *, is_top: bool = False, property_name: str = "") -> Any:
        if not is_mapping(node):
            return node
        if NESTING_KEYWORDS.isdisjoint(node) and "title" not in node:
            description = node.get("description")
            new_description = (
                self.scrub_text(description)
                if self.scrub_text is not None and isinstance(description, str)
                else description
            )
            return (
                node
                if new_description is description or new_description == description
                else {**node, "description": new_description}
            )
        rewritten: dict[str, Any] = {}
        for key, child in node.items():
            if key == "properties" and isinstance(child, Mapping):
                rewritten[key] = self._write_properties(child, is_top=is_top)
            elif key in SCHEMA_KEYWORDS and isinstance(child, Mapping):
                rewritten[key] = self._write_node(child)
            elif key in (*SCHEMA_LIST_KEYWORDS, "items") and isinstance(child, list):
                rewritten[key] = [self._write_node(part) for part in child]
            elif key == "required" and isinstance(child, list):
                rewritten[key] = self._rename_list(child)
            elif key == "dependentRequired" and _is_mapping_of_lists(child):
                rewritten[key] = {
                    self.names.get(name, name): self._rename_list(required_names)
                    for name, required_names in child.items()
                }
            elif key == "dependentSchemas" and isinstance(child, Mapping):
                rewritten[key] = self._write_properties(child)
            elif (
                key in VALUE_KEYWORDS
                and isinstance(child, (Mapping, list))
                and (keys := _build_keys([node], self.names))
            ):
                rewritten[key] = (
                    [keys.apply(part) for part in child] if key in ("enum", "examples") else keys.apply(child)
                )
            elif key == "description" and self.scrub_text is not None and isinstance(child, str):
                rewritten[key] = self.scrub_text(child)
            elif key == "title" and isinstance(child, str) and _alphanumeric(child) == _alphanumeric(property_name):
                continue  # a title made of the name is the name
            else:
                rewritten[key] = child
        return rewritten


def _is_mapping_of_lists(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(child, list) for child in value.values())


def _alphanumeric(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


def token_pattern(*texts: str) -> re.Pattern[str]:
    """Compiles a pattern that matches texts as separate tokens: not within a word, a number, a path or a time."""
    alternatives = "|".join(map(re.escape, texts))
    return re.compile(rf"(?<![\w.,:/+\-])(?:{alternatives})(?![\w%:/\-]|[.,]\w)")


def _replace_default(schema: Mapping[str, Any], pair: tuple[Any, Any]) -> dict[str, Any]:
    old, new = pair
    rewritten = {**schema, "default": str(new) if isinstance(schema["default"], str) else new}
    if isinstance(schema.get("description"), str):
        rewritten["description"] = token_pattern(str(old)).sub(lambda _: str(new), schema["description"])
    return rewritten


def _build_scrubber(names: Mapping[str, str], scrub: Scrub) -> Callable[[str], str]:
    """Returns a function that replaces names in a description, all at once, where they are separate tokens."""
    ordinary_words = {name for name in names if scrub == "names" and not is_name(name)}

    def replace_match(match: re.Match[str]) -> str:
        word, text = match[0], match.string
        if word in ordinary_words:
            neighbors = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
            return names[word] if neighbors[0] == neighbors[1] and neighbors[0] in QUOTES else word
        if word in names:
            return names[word]
        return "".join([part if part in ordinary_words else names.get(part, part) for part in _JOINTS.split(word)])

    def scrub_description(text: str) -> str:
        return _WORD.sub(replace_match, text) if any(name in text for name in names) else text

    return scrub_description


def rename_sample(sample: CallSample, names: NameMap, *, scrub: Scrub = "names") -> CallSample:
    """Renames the tools of a sample. Texts of the conversation stay, except exchanged defaults in the request.

    Args:
        sample: The sample.
        names: New names.
        scrub: Treatment of old names in descriptions: "names" replaces those that are not ordinary words, and ordinary
            words in quotes; "every" replaces every token that is a name; "off" leaves them.
    Raises:
        SampleInvalid: two tools would get the same name.
    """
    tools = []
    for original in sample.tools:
        tool_outline = outline_tool(original)
        tool = tool_outline.tool
        keys = names.keys.get(tool.name)
        own_names = keys.renamed if tool_outline.is_simple and keys else _flatten(keys)
        mentioned_names = {
            name: own_names.get(name) or names.tools.get(name, name) for name in tool_outline.mentions[scrub]
        }
        other_mentions = [name for name in names.tools if name in tool_outline.text and name not in mentioned_names]
        mentioned_names.update(
            {name: names.tools[name] for name in find_mentions(tool_outline.text, other_mentions, scrub)}
            if other_mentions
            else {}
        )
        scrub_text = _build_scrubber(mentioned_names, scrub) if mentioned_names else None
        exchanged_defaults = names.values.items() if names.values else ()
        values = {param: pair for (name, param), pair in exchanged_defaults if name == tool.name}
        writer = _SchemaWriter(own_names, scrub_text, values, tool.name)
        parameters = (
            writer.write_simple(tool.parameters) if tool_outline.is_simple else writer.write_parameters(tool.parameters)
        )
        description = scrub_text(tool.description) if scrub_text else tool.description
        tools.append(Tool(names.tools.get(tool.name, tool.name), description, parameters))
    if len({tool.name for tool in tools}) < len({tool.name for tool in sample.tools}):
        raise SampleInvalid("two tools would get the same name", value=dict(names.tools), expected="different names")
    calls = tuple([names.rename_call(call) for call in sample.calls])
    return CallSample(sample.id, _rename_messages(sample, names), tuple(tools), calls)


def _flatten(keys: KeyMap | None) -> dict[str, str]:
    """Flattens key maps of all depths to old name -> new name."""
    new_names: dict[str, str] = {}
    pending = [keys]
    while pending:
        key_map = pending.pop()
        if key_map is not None:
            new_names.update(key_map.renamed)
            pending += [*key_map.children.values(), key_map.elements]
    return new_names


def _rename_messages(sample: CallSample, names: NameMap) -> tuple[Message, ...]:
    if not names.values and not any(entry.calls or entry.extra for entry in sample.messages):
        return sample.messages
    last = max((index for index, entry in enumerate(sample.messages) if entry.role == "user"), default=-1)
    renamed_messages = []
    for index, message in enumerate(sample.messages):
        if message.calls:
            message = replace(message, calls=tuple([names.rename_call(call, gold=False) for call in message.calls]))
        if message.extra.get("name") in names.tools and message.role == "tool":
            message = replace(message, extra={**message.extra, "name": names.tools[message.extra["name"]]})
        if index == last and names.values and message.content:
            message = replace(message, content=_replace_defaults(message.content, names.values.values()))
        renamed_messages.append(message)
    return tuple(renamed_messages)


def _replace_defaults(text: str, pairs: Iterable[tuple[Any, Any]]) -> str:
    """Replaces exchanged defaults in the request, all at once."""
    replacements = {str(old): str(new) for old, new in pairs}
    return token_pattern(*replacements).sub(lambda match: replacements[match[0]], text)

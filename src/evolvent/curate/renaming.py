"""Other names for the tools of a sample and their parameters, put in everywhere at once, and taken out of calls again.

Renaming follows the structure: names of tools, properties at every depth, `required`, objects among defaults and enums,
the calls that are to be made and those made earlier. A key of a free-form object is data and stays. All names change
at the same moment, so that two may change places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evolvent.curate.outlines import (
    DEEP,
    LISTS,
    ONE,
    QUOTES,
    VALUES,
    Outline,
    Scrub,
    inner_schemas,
    is_mapping,
    is_name,
    named,
    outline,
    told_in,
)
from evolvent.errors import SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import is_flat

__all__ = ["Keys", "NameMap", "renamed", "token", "tool_keys", "unmask"]

_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
_ELEMENTS = ("items", "prefixItems", "contains", "additionalProperties")
_MORE = frozenset((*_ALTERNATIVES, *_ELEMENTS))
_WORD = re.compile(r"\w+(?:[.\-]\w+)*")
_JOINTS = re.compile(r"([.\-])")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of an object that have other names.

    Args:
        renamed: old key to new key.
        below: by old key, the keys of what lies under it.
        rest: keys of the elements, where it is a list, and of what lies under keys that the schema does not name.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    below: Mapping[str, Keys] = field(default_factory=dict)
    rest: Keys | None = None

    def applied(self, value: Any) -> Any:
        """A value with its keys renamed; the type of a list is kept."""
        if isinstance(value, Mapping):
            names, below, rest = self.renamed, self.below, self.rest
            return {
                names.get(key, key): keys.applied(one) if (keys := below.get(key) if key in names else rest) else one
                for key, one in value.items()
            }
        if self.rest is not None and isinstance(value, (list, tuple)):
            return type(value)([self.rest.applied(one) for one in value])
        return value

    def inverse(self) -> Keys:
        """What takes it back. An old key, which nobody was shown, becomes a new one: what was wrong stays wrong."""
        forth = _closed(self.renamed)
        below = {forth[key]: keys.inverse() for key, keys in self.below.items()}
        return Keys({new: old for old, new in forth.items()}, below, self.rest.inverse() if self.rest else None)


@dataclass(frozen=True, slots=True)
class NameMap:
    """What was renamed in a sample; empty where nothing was.

    Args:
        tools: old name to new name.
        keys: by old name of the tool, the keys of its arguments.
        values: by old tool and old parameter, a default and what took its place.
        left: old names that still stand in the conversation, in texts of users and results of tools, which are data.
    """

    tools: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Keys] = field(default_factory=dict)
    values: Mapping[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    def call(self, call: Call, *, gold: bool = True) -> Call:
        """A call in new names; one that is to be made (`gold`) also has the new values of defaults."""
        arguments = call.arguments
        if gold and self.values:
            arguments = {key: _exchanged(self.values.get((call.name, key)), one) for key, one in arguments.items()}
        keys = self.keys.get(call.name)
        if keys and not keys.below and keys.rest is None:
            arguments = {keys.renamed.get(key, key): one for key, one in arguments.items()}
            keys = None
        return Call(self.tools.get(call.name, call.name), keys.applied(arguments) if keys else arguments, call.id)


def unmask(calls: Sequence[Call], names: NameMap) -> tuple[Call, ...]:
    """Calls in the names of the original sample: `unmask(mask(sample).calls) == sample.calls`.

    A call that uses an old name, which the masked prompt did not show, gets a name that does not exist, and a call with
    the old value of an exchanged default gets the new one: what is wrong before unmasking is wrong after it.
    """
    back = {new: old for old, new in _closed(names.tools).items()}
    found = []
    for call in calls:
        name = back.get(call.name, call.name)
        keys = names.keys.get(name)
        arguments = keys.inverse().applied(call.arguments) if keys else dict(call.arguments)
        if names.values:
            arguments = {key: _exchanged(names.values.get((name, key)), one) for key, one in arguments.items()}
        found.append(Call(name, arguments, call.id))
    return tuple(found)


def _closed(forth: Mapping[str, str]) -> dict[str, str]:
    """A renaming made a permutation: the last name of a chain becomes the first one."""
    found = dict(forth)
    for start in forth.keys() - set(forth.values()):
        last = start
        while last in forth:
            last = forth[last]
        found[last] = start
    return found


def _exchanged(pair: tuple[Any, Any] | None, value: Any) -> Any:
    """The other one of two values that change places; any third value stays."""
    if pair is None or type(value) not in (type(pair[0]), type(pair[1])):
        return value
    return pair[1] if value == pair[0] else pair[0] if value == pair[1] else value


# ---------------------------------------------------------------------------------------------------- schemas


def _keys(nodes: Iterable[Any], names: Mapping[str, str]) -> Keys | None:
    """The keys that schemas of one place name; alternatives are taken together, as a name means the same in all."""
    waiting: list[Any] = list(nodes)
    rest: list[Any] = []
    inside: dict[str, list[Any]] = {}
    while waiting:
        node = waiting.pop()
        if not _deep(node):
            continue
        for name, one in named(node).items():
            inside.setdefault(name, []).append(one)
        if not _MORE.isdisjoint(node):
            waiting += inner_schemas(node, _ALTERNATIVES)
            rest += inner_schemas(node, _ELEMENTS)
    below = {
        name: keys
        for name, ones in inside.items()
        if any(_deep(one) for one in ones) and (keys := _keys(ones, names)) is not None
    }
    every = _keys(rest, names) if rest else None
    if not inside and every is None:
        return None
    return Keys({name: names.get(name, name) for name in inside}, below, every)


def _deep(node: Any) -> bool:
    """Whether it is a schema that may hold others or names."""
    return is_mapping(node) and not DEEP.isdisjoint(node)


def tool_keys(told: Outline, names: Mapping[str, str]) -> Keys:
    """The keys of a tool's arguments, each property named by `names`."""
    if told.simple:
        return Keys(names)
    parameters = told.tool.parameters
    return _keys([{"properties": parameters} if is_flat(parameters) else parameters], names) or Keys()


# ---------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the schema of one tool anew."""

    names: Mapping[str, str]
    text: Callable[[str], str] | None
    values: Mapping[str, tuple[Any, Any]]
    tool: str = ""

    def parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if is_flat(parameters):
            return self._properties(parameters, top=True)
        found: dict[str, Any] = self._node(parameters, top=True, own=self.tool)
        return found

    def simple(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Of a schema without properties inside properties."""
        names, found = self.names, dict(parameters)
        properties = named(parameters)
        if self.values or self.text is not None:
            found["properties"] = self._properties(properties, top=True)
            if self.text is not None and isinstance(found.get("description"), str):
                found["description"] = self.text(found["description"])
        else:
            found["properties"] = {names.get(name, name): one for name, one in properties.items()}
        if isinstance(parameters.get("required"), list):
            found["required"] = self._listed(parameters["required"])
        return found

    def _listed(self, names: Sequence[Any]) -> list[Any]:
        """Names in a list; what is no text is none."""
        return [self.names.get(name, name) if isinstance(name, str) else name for name in names]

    def _properties(self, properties: Mapping[str, Any], *, top: bool = False) -> dict[str, Any]:
        values = self.values if top else {}
        found = {}
        for name, one in properties.items():
            told = _with_default(one, values[name]) if name in values else one
            found[self.names.get(name, name)] = self._node(told, own=name)
        return found

    def _node(self, node: Any, *, top: bool = False, own: str = "") -> Any:
        if not is_mapping(node):
            return node
        if DEEP.isdisjoint(node) and "title" not in node:
            said = node.get("description")
            other = self.text(said) if self.text is not None and isinstance(said, str) else said
            return node if other is said or other == said else {**node, "description": other}
        found: dict[str, Any] = {}
        for key, one in node.items():
            if key == "properties" and isinstance(one, Mapping):
                found[key] = self._properties(one, top=top)
            elif key in ONE and isinstance(one, Mapping):
                found[key] = self._node(one)
            elif key in (*LISTS, "items") and isinstance(one, list):
                found[key] = [self._node(part) for part in one]
            elif key == "required" and isinstance(one, list):
                found[key] = self._listed(one)
            elif key == "dependentRequired" and _of_lists(one):
                found[key] = {self.names.get(name, name): self._listed(others) for name, others in one.items()}
            elif key == "dependentSchemas" and isinstance(one, Mapping):
                found[key] = self._properties(one)
            elif key in VALUES and isinstance(one, (Mapping, list)) and (keys := _keys([node], self.names)):
                found[key] = [keys.applied(part) for part in one] if key in ("enum", "examples") else keys.applied(one)
            elif key == "description" and self.text is not None and isinstance(one, str):
                found[key] = self.text(one)
            elif key == "title" and isinstance(one, str) and _letters(one) == _letters(own):
                continue  # a title made of the name is the name
            else:
                found[key] = one
        return found


def _of_lists(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, list) for one in value.values())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


def token(*texts: str) -> re.Pattern[str]:
    """Matches texts where they are tokens of their own: no part of a word, a number, a path or a time."""
    either = "|".join(map(re.escape, texts))
    return re.compile(rf"(?<![\w.,:/+\-])(?:{either})(?![\w%:/\-]|[.,]\w)")


def _with_default(one: Mapping[str, Any], pair: tuple[Any, Any]) -> dict[str, Any]:
    old, new = pair
    found = {**one, "default": str(new) if isinstance(one["default"], str) else new}
    if isinstance(one.get("description"), str):
        found["description"] = token(str(old)).sub(lambda _: str(new), one["description"])
    return found


def _scrubber(names: Mapping[str, str], scrub: Scrub) -> Callable[[str], str]:
    """What replaces these names in a description, all at once, where they are tokens of their own."""
    plain = {name for name in names if scrub == "names" and not is_name(name)}

    def other(match: re.Match[str]) -> str:
        word, text = match[0], match.string
        if word in plain:
            around = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
            return names[word] if around[0] == around[1] and around[0] in QUOTES else word
        if word in names:
            return names[word]
        return "".join([part if part in plain else names.get(part, part) for part in _JOINTS.split(word)])

    def scrubbed(text: str) -> str:
        return _WORD.sub(other, text) if any(name in text for name in names) else text

    return scrubbed


def renamed(sample: CallSample, names: NameMap, *, scrub: Scrub = "names") -> CallSample:
    """The sample in new names. Texts of the conversation stay, save the exchanged defaults in the request.

    Args:
        scrub: what happens to old names in descriptions: "names" replaces those that are no ordinary words, and
            ordinary words in quotes; "every" replaces every token that is one; "off" leaves them.
    Raises:
        SampleInvalid: a name that two tools would share.
    """
    tools = []
    for given in sample.tools:
        told = outline(given)
        tool = told.tool
        keys = names.keys.get(tool.name)
        own = keys.renamed if told.simple and keys else _flattened(keys)
        found = {name: own.get(name) or names.tools.get(name, name) for name in told.told[scrub]}
        others = [name for name in names.tools if name in told.text and name not in found]
        found.update({name: names.tools[name] for name in told_in(told.text, others, scrub)} if others else {})
        text = _scrubber(found, scrub) if found else None
        exchanged = names.values.items() if names.values else ()
        values = {param: pair for (name, param), pair in exchanged if name == tool.name}
        writer = _Writer(own, text, values, tool.name)
        parameters = writer.simple(tool.parameters) if told.simple else writer.parameters(tool.parameters)
        description = text(tool.description) if text else tool.description
        tools.append(Tool(names.tools.get(tool.name, tool.name), description, parameters))
    if len({tool.name for tool in tools}) < len({tool.name for tool in sample.tools}):
        raise SampleInvalid("two tools would have one name", value=dict(names.tools), expected="different names")
    calls = tuple([names.call(call) for call in sample.calls])
    return CallSample(sample.id, _messages(sample, names), tuple(tools), calls)


def _flattened(keys: Keys | None) -> dict[str, str]:
    """Old to new name over all depths."""
    found: dict[str, str] = {}
    waiting = [keys]
    while waiting:
        one = waiting.pop()
        if one is not None:
            found.update(one.renamed)
            waiting += [*one.below.values(), one.rest]
    return found


def _messages(sample: CallSample, names: NameMap) -> tuple[Message, ...]:
    if not names.values and not any(one.calls or one.extra for one in sample.messages):
        return sample.messages
    last = max((place for place, one in enumerate(sample.messages) if one.role == "user"), default=-1)
    found = []
    for place, message in enumerate(sample.messages):
        if message.calls:
            message = replace(message, calls=tuple([names.call(call, gold=False) for call in message.calls]))
        if message.extra.get("name") in names.tools and message.role == "tool":
            message = replace(message, extra={**message.extra, "name": names.tools[message.extra["name"]]})
        if place == last and names.values and message.content:
            message = replace(message, content=_request(message.content, names.values.values()))
        found.append(message)
    return tuple(found)


def _request(text: str, pairs: Iterable[tuple[Any, Any]]) -> str:
    """The request with exchanged defaults, all at once."""
    told = {str(old): str(new) for old, new in pairs}
    return token(*told).sub(lambda match: told[match[0]], text)

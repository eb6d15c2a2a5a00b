"""Outlines of tools for renaming: property names at every depth, and their mentions in descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeGuard

from evolvent.errors import SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas import is_flat, json_schema
from evolvent.trajectory import JsonObject

__all__ = [
    "NESTING_KEYWORDS",
    "QUOTES",
    "SCHEMA_KEYWORDS",
    "SCHEMA_LIST_KEYWORDS",
    "VALUE_KEYWORDS",
    "Scrub",
    "ToolOutline",
    "find_mentions",
    "inner_schemas",
    "is_mapping",
    "is_name",
    "outer_parameters",
    "outline_tool",
    "properties_of",
]

Scrub = Literal["off", "names", "every"]
SCHEMA_KEYWORDS = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
)  # keywords that hold a schema
SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords that hold schemas
VALUE_KEYWORDS = ("default", "const", "enum", "examples")  # keywords that hold values
NESTING_KEYWORDS = frozenset(
    (*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS, "properties", "required", "dependentRequired", "dependentSchemas")
)
_UNSUPPORTED_KEYWORDS = frozenset(("$ref", "$defs", "definitions", "patternProperties", "propertyNames"))
_SIMPLE_KEYWORDS = frozenset(("type", "properties", "required", "description", "additionalProperties"))
QUOTES = ("'", '"', "`")


@dataclass(frozen=True, slots=True)
class ToolOutline:
    """Facts about a tool that renaming needs, independent of its new names.

    Args:
        tool: The tool, with references of its schema resolved.
        names: Names of its properties at every depth.
        text: Its descriptions, one a line.
        mentions: Names of the tool and its properties that these mention, for each way of scrubbing.
        reserved_names: Keys of values that the schema holds; no new name may equal one of them.
        defaults: The outermost parameters that have a default.
        is_simple: Whether no property has inner properties or a title.
    """

    tool: Tool
    names: tuple[str, ...]
    text: str
    mentions: Mapping[Scrub, tuple[str, ...]]
    reserved_names: frozenset[str]
    defaults: Mapping[str, Mapping[str, object]]
    is_simple: bool


class _ToolIdentity:
    """A tool hashed by identity: tools hold mappings, so that they have no hash, and are never changed."""

    __slots__ = ("tool",)

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __hash__(self) -> int:
        return id(self.tool)

    def __eq__(self, candidate: object) -> bool:
        return isinstance(candidate, _ToolIdentity) and self.tool is candidate.tool


def outline_tool(tool: Tool) -> ToolOutline:
    """Computes the outline of a tool; cached for recently used tools.

    Raises:
        SampleInvalid: an invalid schema, or a schema that constrains the names of its keys, so that they cannot change.
    """
    return _outline(_ToolIdentity(tool))


@lru_cache(8192)
def _outline(identity: _ToolIdentity) -> ToolOutline:
    tool = identity.tool
    if not isinstance(tool.parameters, Mapping):
        raise SampleInvalid(
            f"the parameters of tool {tool.name!r} are not an object", value=type(tool.parameters).__name__
        )
    try:
        names, texts, reserved_names, simple = _scan_schema(tool)
    except _HasReferences:
        tool = Tool(tool.name, tool.description, json_schema(tool.parameters))
        names, texts, reserved_names, simple = _scan_schema(tool)
    text = "\n".join(texts)
    tool_names = (tool.name, *names)
    mentions: dict[Scrub, tuple[str, ...]] = {"off": (), "names": find_mentions(text, tool_names, "names")}
    mentions["every"] = find_mentions(text, tool_names, "every")
    parameters = outer_parameters(tool.parameters).items()
    defaults = {
        name: parameter_schema
        for name, parameter_schema in parameters
        if isinstance(parameter_schema, Mapping) and "default" in parameter_schema
    }
    return ToolOutline(tool, tuple(names), text, mentions, frozenset(reserved_names), defaults, simple)


class _HasReferences(Exception):
    """Raised for a schema with references."""


def _scan_schema(tool: Tool) -> tuple[dict[str, None], list[str], set[str], bool]:
    flat = is_flat(tool.parameters)
    names = dict.fromkeys(outer_parameters(tool.parameters))
    texts, reserved_names, simple = [tool.description], set[str](), True
    roots = list(tool.parameters.values()) if flat else [tool.parameters]
    pending: list[tuple[Any, int]] = [(child, 0) for child in roots]
    num_nodes = 0
    while pending:
        node, level = pending.pop()
        num_nodes += 1
        if num_nodes > 20_000 or level > 64:
            raise SampleInvalid(f"the schema of {tool.name!r} is too large", expected="a finite tree")
        if not isinstance(node, Mapping):
            continue
        if not _UNSUPPORTED_KEYWORDS.isdisjoint(node):
            if "propertyNames" in node:
                raise SampleInvalid(f"the schema of {tool.name!r} constrains names by propertyNames", expected="none")
            raise _HasReferences
        text = node.get("description")
        if isinstance(text, str):
            texts.append(text)
        for key in VALUE_KEYWORDS:
            if isinstance(node.get(key), (Mapping, list)):
                reserved_names.update(_collect_keys(node[key]))
        if not NESTING_KEYWORDS.isdisjoint(node):
            properties = properties_of(node)
            names.update(dict.fromkeys(properties))
            pending += [(child, level + 1) for child in (*inner_schemas(node), *properties.values())]
            simple = simple and (flat or node is tool.parameters) and _SIMPLE_KEYWORDS.issuperset(node)
        simple = simple and "title" not in node
    return names, texts, reserved_names, simple and not flat


def _collect_keys(value: object) -> Iterator[str]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            yield from node
            pending += node.values()
        elif isinstance(node, (list, tuple)):
            pending += node


def outer_parameters(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Returns the outermost parameters by name, in a schema or in the flat form."""
    return parameters if is_flat(parameters) else properties_of(parameters)


def properties_of(node: Mapping[str, object]) -> Mapping[str, object]:
    """Returns the properties of a schema by name."""
    properties = node.get("properties")
    return properties if is_mapping(properties) else {}


def inner_schemas(
    node: Mapping[str, object], keys: Sequence[str] = (*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS)
) -> Iterator[object]:
    """Yields schemas inside a schema other than its properties."""
    for key in keys:
        inner = node.get(key)
        if inner is None:
            continue
        if is_mapping(inner):
            yield inner
        elif isinstance(inner, list):
            yield from inner


def is_mapping(value: object) -> TypeGuard[JsonObject]:
    """Returns whether a value is a mapping; checking the exact type first is much faster."""
    return type(value) is dict or isinstance(value, Mapping)


def is_name(word: str) -> bool:
    """Returns whether a word is a name and not an ordinary word: it has a digit, `_`, `.` or `-`, or an inner
    capital.
    """
    return not word.isalpha() or not (word.islower() or word.istitle() or word.isupper())


def find_mentions(text: str, names: Iterable[str], scrub: Scrub) -> tuple[str, ...]:
    """Finds the names that a description mentions.

    With "names", an ordinary word (`city`) counts only in quotes: elsewhere it belongs to the description.
    """
    if scrub == "off":
        return ()
    mentioned = [name for name in names if name in text]
    if mentioned and scrub == "names":
        mentioned = [name for name in mentioned if is_name(name) or any(f"{q}{name}{q}" in text for q in QUOTES)]
    return tuple(mentioned)

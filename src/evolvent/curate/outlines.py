"""Tools as renaming sees them: what is named inside, at every depth, and where descriptions tell these names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeGuard

from evolvent.errors import SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas import is_flat, json_schema

__all__ = [
    "DEEP",
    "LISTS",
    "ONE",
    "QUOTES",
    "VALUES",
    "Outline",
    "Scrub",
    "inner_schemas",
    "is_mapping",
    "is_name",
    "listed",
    "named",
    "outline",
    "told_in",
]

Scrub = Literal["off", "names", "every"]
ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")  # keywords that hold a schema
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords that hold schemas
VALUES = ("default", "const", "enum", "examples")  # keywords that hold values
DEEP = frozenset((*ONE, *LISTS, "properties", "required", "dependentRequired", "dependentSchemas"))
_RARE = frozenset(("$ref", "$defs", "definitions", "patternProperties", "propertyNames"))
_OUTER = frozenset(("type", "properties", "required", "description", "additionalProperties"))
QUOTES = ("'", '"', "`")


@dataclass(frozen=True, slots=True)
class Outline:
    """What renaming needs to know of a tool, whatever its new names.

    Args:
        tool: with references of its schema written out.
        names: of its properties at every depth.
        text: its descriptions, one a line.
        told: its own names that these tell, for each way of scrubbing.
        others: keys of values that the schema holds; no new name may be one of them.
        defaults: the outermost parameters that have a default.
        simple: whether no property has properties inside, nor a title.
    """

    tool: Tool
    names: tuple[str, ...]
    text: str
    told: Mapping[Scrub, tuple[str, ...]]
    others: frozenset[str]
    defaults: Mapping[str, Mapping[str, Any]]
    simple: bool


class _Same:
    """A tool by its identity: tools hold mappings, so that they have no hash, and are never changed."""

    __slots__ = ("tool",)

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __hash__(self) -> int:
        return id(self.tool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.tool is other.tool


def outline(tool: Tool) -> Outline:
    """What renaming needs to know of a tool; kept for the tools that were asked for last.

    Raises:
        SampleInvalid: a schema that is none, or that constrains the names of its keys, which cannot be renamed then.
    """
    return _outline(_Same(tool))


@lru_cache(8192)
def _outline(same: _Same) -> Outline:
    tool = same.tool
    if not isinstance(tool.parameters, Mapping):
        raise SampleInvalid(f"the parameters of {tool.name!r} are no object", value=type(tool.parameters).__name__)
    try:
        names, texts, others, simple = _read(tool)
    except _References:
        tool = Tool(tool.name, tool.description, json_schema(tool.parameters))
        names, texts, others, simple = _read(tool)
    text = "\n".join(texts)
    own = (tool.name, *names)
    told: dict[Scrub, tuple[str, ...]] = {"off": (), "names": told_in(text, own, "names")}
    told["every"] = told_in(text, own, "every")
    parts = listed(tool.parameters).items()
    defaults = {name: one for name, one in parts if isinstance(one, Mapping) and "default" in one}
    return Outline(tool, tuple(names), text, told, frozenset(others), defaults, simple)


class _References(Exception):
    """A schema with references."""


def _read(tool: Tool) -> tuple[dict[str, None], list[str], set[str], bool]:
    flat = is_flat(tool.parameters)
    names = dict.fromkeys(listed(tool.parameters))
    texts, others, simple = [tool.description], set[str](), True
    first = list(tool.parameters.values()) if flat else [tool.parameters]
    waiting: list[tuple[Any, int]] = [(one, 0) for one in first]
    seen = 0
    while waiting:
        node, level = waiting.pop()
        seen += 1
        if seen > 20_000 or level > 64:
            raise SampleInvalid(f"the schema of {tool.name!r} is too large", expected="a finite tree")
        if not isinstance(node, Mapping):
            continue
        if not _RARE.isdisjoint(node):
            if "propertyNames" in node:
                raise SampleInvalid(f"the schema of {tool.name!r} constrains names by propertyNames", expected="none")
            raise _References
        text = node.get("description")
        if isinstance(text, str):
            texts.append(text)
        for key in VALUES:
            if isinstance(node.get(key), (Mapping, list)):
                others.update(_keys_inside(node[key]))
        if not DEEP.isdisjoint(node):
            inner = named(node)
            names.update(dict.fromkeys(inner))
            waiting += [(one, level + 1) for one in (*inner_schemas(node), *inner.values())]
            simple = simple and (flat or node is tool.parameters) and _OUTER.issuperset(node)
        simple = simple and "title" not in node
    return names, texts, others, simple and not flat


def _keys_inside(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield from one
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one


def listed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outermost parameters by name, in a schema or in the flat form."""
    return parameters if is_flat(parameters) else named(parameters)


def named(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of a schema by name."""
    found = node.get("properties")
    return found if is_mapping(found) else {}


def inner_schemas(node: Mapping[str, Any], keys: Sequence[str] = (*ONE, *LISTS)) -> Iterator[Any]:
    """Schemas inside a schema other than its properties."""
    for key in keys:
        one = node.get(key)
        if one is None:
            continue
        if is_mapping(one):
            yield one
        elif isinstance(one, list):
            yield from one


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a mapping; asking for the type first is much faster."""
    return type(value) is dict or isinstance(value, Mapping)


def is_name(word: str) -> bool:
    """Whether a word is a name and no ordinary word: it has a digit, `_`, `.` or `-`, or a capital inside."""
    return not word.isalpha() or not (word.islower() or word.istitle() or word.isupper())


def told_in(text: str, names: Iterable[str], scrub: Scrub) -> tuple[str, ...]:
    """Names that a description tells. With "names", an ordinary word (`city`) counts only in quotes: elsewhere it is
    the description's own."""
    if scrub == "off":
        return ()
    found = [name for name in names if name in text]
    if found and scrub == "names":
        found = [name for name in found if is_name(name) or any(f"{q}{name}{q}" in text for q in QUOTES)]
    return tuple(found)

"""Narrow schemas: for parameters of a tool, a stricter schema that a grammar can express.

The original schema accepts everything that its narrow schema accepts; not always the other way round. Texts,
lists and numbers get an upper bound, since a model may otherwise write one value until its tokens end (the
decimals of a number that has bounds are not counted). Keys that a schema leaves open are not invented: an
object that names its properties has no others, and an object without named properties holds at most one,
because no grammar can tell whether a key is written twice. Formats are not enforced: in JSON Schema they are
notes. Classes of characters in patterns are those of ASCII, as `schemas.compile_pattern` reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas import find_argument_faults, json_schema
from evolvent.trajectory import JsonObject, canonical_json

__all__ = ["AnswerLimits", "Narrow", "close_exclusive_bounds", "narrow_schema"]

Narrow = dict[str, Any]
"""One of `enum`, `anyOf`, or one `type` with the keywords that belong to it; every key that matters is there."""
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "format"))
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties", "minProperties", "maxProperties")),
}
_APPLIES_BESIDE = {
    "additionalProperties": "properties",
    "items": "prefixItems",
}  # to what these leave, in the same schema
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ASCII = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}
_MAX_NUMBER = 10**15  # whole numbers up to here are exact as floats
_VALUE_KEYWORDS = frozenset(("enum", "const", "default", "examples"))  # hold values, not schemas
_MAP_KEYWORDS = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
_NUMBER_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_EXCLUSIVE_MARGIN = 1e-9  # what lies that close to a bound that is excluded might be rounded onto it


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Size limits of a constrained answer where its schemas set none.

    Args:
        calls: in one answer, at most 256. text: characters of one text (in whole words: words). items: of one list.
    Raises:
        ConfigError: a number below 1, or more calls than can be read.
    """

    calls: int = 16
    text: int = 2000
    items: int = 64

    def __post_init__(self) -> None:
        sizes = {"calls": self.calls, "text": self.text, "items": self.items}
        problems = [Problem(name, f"got {size}, expected 1 or more") for name, size in sizes.items() if size < 1]
        if self.calls > 256:
            problems.append(Problem("calls", f"got {self.calls}, expected at most 256"))
        if problems:
            raise ConfigError(problems)


def narrow_schema(tool: Tool, limits: AnswerLimits) -> Narrow:
    """Converts the parameters of a tool to a narrow object schema.

    Raises:
        SampleInvalid: naming the tool and the path; no schema, one that no value satisfies, or a keyword that no
            grammar can hold (`not`, `if`, `uniqueItems`, `contains`, ...).
    """
    try:
        return _Reader(limits).read_schema(json_schema(tool.parameters), ())
    except SampleInvalid as error:
        raise SampleInvalid(
            f"calls of the tool {tool.name!r} cannot be constrained: {error.what}",
            value=error.value,
            expected=error.expected,
            hint=error.hint,
        ) from error


def close_exclusive_bounds(schema: JsonObject) -> JsonObject:
    """Replaces exclusive bounds of numbers that are whole by the closest inclusive ones.

    llguidance 1.9.1 lets a number equal such a bound if the other bound has the same whole part: 0 passes above 0 and
    up to 0.5 (`findings/llguidance_exclusive_bound.sh`). Values within 1e-9 of a replaced bound no longer fit; where
    the other bound is as close, those of the nearer half.
    """
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUE_KEYWORDS:
            closed[key] = value
        elif key in _MAP_KEYWORDS and isinstance(value, Mapping):
            closed[key] = {name: _close_bounds_inside(part) for name, part in value.items()}
        else:
            closed[key] = _close_bounds_inside(value)
    if closed.get("type") == "integer":
        return closed
    for exclusive, inclusive, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound, inclusive_bound = closed.get(exclusive), closed.get(inclusive, -sign * math.inf)
        if not _is_number(bound) or not _is_number(inclusive_bound) or not abs(bound) <= _MAX_NUMBER or bound % 1:
            continue
        del closed[exclusive]
        opposite = [closed.get(name) for name in _NUMBER_BOUNDS if name != inclusive]
        gaps = [sign * (value - bound) for value in opposite if _is_number(value) and sign * (value - bound) > 0]
        margin = min(max(_EXCLUSIVE_MARGIN, 2 * math.ulp(bound)), *(gap / 2 for gap in gaps), math.inf)
        closed[inclusive] = max(bound + margin, inclusive_bound) if sign == 1 else min(bound - margin, inclusive_bound)
    return closed


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close_bounds_inside(value: object) -> object:
    if isinstance(value, Mapping):
        return close_exclusive_bounds(value)
    return [_close_bounds_inside(part) for part in value] if isinstance(value, list | tuple) else value


class _Empty(SampleInvalid):
    """No value satisfies a schema."""


def _empty_error(path: Sequence[str]) -> _Empty:
    return _Empty(f"no value is possible at {_format_path(path)}", expected="a satisfiable schema")


def _refusal(message: str, path: Sequence[str]) -> SampleInvalid:
    return SampleInvalid(
        f"{message} at {_format_path(path)}",
        expected="a schema that a grammar supports",
        hint="remove it from the schema, or decode without the constraint",
    )


def _format_path(path: Sequence[str]) -> str:
    return ".".join(path[:8]) or "the top"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the output of `json_schema`, which is a finite tree."""

    limits: AnswerLimits

    def read_schema(self, node: object, path: tuple[str, ...]) -> Narrow:
        """Reads one schema node and returns its narrow schema."""
        if node is False:
            raise _empty_error(path)
        if not isinstance(node, Mapping):
            return self._anything()
        schema = {key: value for key, value in node.items() if key not in _ANNOTATIONS}
        if "enum" in schema or "const" in schema:
            return self._read_enum(schema, path)
        schema = _merge_all_of(schema, path)
        if "enum" in schema or "const" in schema:
            return self._read_enum(schema, path)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._read_branches(schema, key, path)
        kinds = schema.get("type", [kind for kind in _TYPES if _OF_TYPE.get(kind, frozenset()) & schema.keys()])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        known_keywords = frozenset[str]().union(*(_OF_TYPE.get(kind, frozenset()) for kind in kinds))
        left = sorted(schema.keys() - known_keywords - {"type"})
        left = [key for key in left if not (key == "uniqueItems" and not schema[key])]
        if left:
            raise _refusal(f"the keyword {left[0]!r}", path)
        if not kinds:
            if "type" in schema:
                raise _empty_error(path)
            return self._anything()
        return self._any_of([{**_keywords_of(schema, kind), "type": kind} for kind in kinds], path)

    def _any_of(self, schemas: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> Narrow:
        """Returns a narrow schema for any of several schemas; impossible schemas are left out."""
        branches: list[Narrow] = []
        for schema in schemas:
            try:
                branches.append(self._typed(schema, path) if _plain(schema) else self.read_schema(schema, path))
            except _Empty:
                if len(schemas) == 1:
                    raise  # its path says more
        if not branches:
            raise _empty_error(path)
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _read_enum(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        """Returns the listed values that the rest of the schema accepts."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        other_keywords = {key: value for key, value in schema.items() if key != "enum"}  # it holds for all of them
        wrapper = {"type": "object", "properties": {"value": other_keywords}}
        accepted: dict[str, Any] = {}
        for value in values:
            written = canonical_json(value)
            if written not in accepted and not find_argument_faults({"value": value}, wrapper):
                accepted[written] = value
        if not accepted:
            raise _empty_error(path)
        return {"enum": list(accepted.values())}

    def _read_branches(self, schema: Mapping[str, Any], key: str, path: tuple[str, ...]) -> Narrow:
        shared = {name: value for name, value in schema.items() if name != key}
        listed = [{} if branch is True else branch for branch in schema[key] if branch is not False]
        branches = [_merge_all_of({"allOf": [shared, branch]} if shared else branch, path) for branch in listed]
        if key == "oneOf" and not _are_disjoint(branches):
            raise _refusal("a oneOf with overlapping branches", path)
        return self._any_of(branches, path)

    def _anything(self, *, depth: int = 1) -> Narrow:
        """Returns a schema for an unknown value: a scalar, or a list or an object of scalars."""
        kinds = ("string", "number", "boolean", "null")
        branches = [self._typed({"type": kind}, ()) for kind in kinds]
        if depth:
            inner = self._anything(depth=depth - 1)
            branches.append(
                {"type": "array", "items": inner, "prefixItems": [], "minItems": 0, "maxItems": self.limits.items}
            )
            branches.append(_open_object(inner, min_properties=0))
        return {"anyOf": branches}

    def _typed(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        kind = schema["type"]
        if kind == "string":
            return self._string(schema, path)
        if kind in ("integer", "number"):
            return _narrow_number(schema, path)
        if kind == "array":
            return self._array(schema, path)
        return self._object(schema, path) if kind == "object" else {"type": kind}

    def _string(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        min_length = math.ceil(schema.get("minLength", 0))
        max_length = math.floor(min(schema.get("maxLength", math.inf), max(self.limits.text, min_length)))
        if min_length > max_length:
            raise _empty_error(path)
        narrow_string: Narrow = {"type": "string", "minLength": min_length, "maxLength": max_length}
        return (
            {**narrow_string, "pattern": _expand_classes(schema["pattern"])} if "pattern" in schema else narrow_string
        )

    def _array(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        prefix_items = [
            self.read_schema(item_schema, (*path, str(index)))
            for index, item_schema in enumerate(schema.get("prefixItems", ()))
        ]
        limit = math.floor(schema.get("maxItems", math.inf)) if "maxItems" in schema else None
        min_items = math.ceil(schema.get("minItems", 0))
        if prefix_items and limit is not None and limit < len(prefix_items):
            prefix_items = prefix_items[:limit]
        min_items = max(min_items, len(prefix_items))  # a tuple is written whole
        max_items = (
            max(self.limits.items, min_items) if limit is None else min(limit, max(self.limits.items, min_items))
        )
        items: Narrow | None = None
        if len(prefix_items) < max_items and (not prefix_items or "items" in schema):
            try:
                items = self.read_schema(schema.get("items", True), (*path, "items"))
            except _Empty:
                items = None
        if items is None:
            max_items = len(prefix_items)
        if min_items > max_items:
            raise _empty_error(path)
        return {
            "type": "array",
            "items": items,
            "prefixItems": prefix_items,
            "minItems": min_items,
            "maxItems": max_items,
        }

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        required = list(schema.get("required", ()))
        min_properties, max_properties = (
            math.ceil(schema.get("minProperties", 0)),
            schema.get("maxProperties", math.inf),
        )
        additional = schema.get("additionalProperties", True)
        if not schema.get("properties") and not required and additional is not False and max_properties >= 1:
            if min_properties > 1:
                raise _refusal("minProperties of an object with unnamed properties", path)
            return _open_object(
                self.read_schema(additional, (*path, "additionalProperties")), min_properties=min_properties
            )
        properties: dict[str, Narrow] = {}
        for name, property_schema in {**dict.fromkeys(required, additional), **schema.get("properties", {})}.items():
            try:
                properties[name] = self.read_schema(property_schema, (*path, name))
            except _Empty:
                if name in required:
                    raise
        if min_properties > len(properties) or max_properties < len(required):
            raise _empty_error(path)
        if (min_properties > 1 and min_properties > len(required)) or max_properties < len(properties):
            raise _refusal("a limit on the number of properties", path)
        order = [name for name in schema.get("properties", {}) if name in properties]
        order += [name for name in properties if name not in order]
        return {
            "type": "object",
            "properties": {name: properties[name] for name in order},
            "required": required,
            "additionalProperties": None,
            "minProperties": min_properties if min_properties > len(required) else 0,
        }


def _open_object(value: Narrow, *, min_properties: int) -> Narrow:
    """Returns a schema for an object without named properties: it holds at most one."""
    return {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": value,
        "minProperties": min_properties,
    }


def _plain(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return isinstance(kind, str) and schema.keys() <= _OF_TYPE.get(kind, frozenset()) | {"type"}


def _keywords_of(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns the keywords of a schema that belong to one type."""
    return {key: value for key, value in schema.items() if key in _OF_TYPE.get(kind, frozenset())}


def _expand_classes(pattern: str) -> str:
    """Converts a pattern's classes to ASCII ranges, as schemas are checked; in grammars they would be of Unicode."""
    return _ESCAPE.sub(lambda found: _ASCII.get(found[1], found[0]), pattern)


def _merge_all_of(schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Merges the `allOf` of a schema into it.

    Refused where two parts give one keyword different values, or where one part covers unnamed properties or items
    and the other part names more: merged, the schema would no longer cover those.
    """
    merged = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    parts = [part for part in merged.pop("allOf", []) if part is not True]
    if not all(isinstance(part, Mapping) for part in parts):
        raise _empty_error(path)
    members = [merged, *(_merge_all_of(part, path) for part in parts)]
    for key, named in _APPLIES_BESIDE.items():
        named_properties = [str(part.get(named) or "") for part in members]
        if any(
            part.get(key, True) not in (True, {})
            and any(other_names not in ("", own_names) for other_names in named_properties)
            for part, own_names in zip(members, named_properties, strict=True)
        ):
            raise _refusal(f"an intersection of two schemas, one of them with {key!r}", path)
    for part in members[1:]:
        for key, value in part.items():
            old: Any = merged.get(key)
            if key == "required":
                merged[key] = list(dict.fromkeys([*merged.get(key, ()), *value]))
            elif key not in merged or canonical_json(old) == canonical_json(value):  # True is not 1
                merged[key] = value
            elif key == "properties" and not old.keys() & value.keys():
                merged[key] = {**old, **value}
            elif (old, value) in (("integer", "number"), ("number", "integer")):
                merged[key] = "integer"
            else:
                raise _refusal(f"an intersection of two schemas that both have {key!r}", path)
    return merged


def _are_disjoint(branches: Sequence[Any]) -> bool:
    """Returns whether no value can belong to two branches, by their types alone."""
    used_types: set[str] = set()
    for branch in branches:
        kinds = branch.get("type") if isinstance(branch, Mapping) else None
        if kinds is None:
            return False
        names = {kinds} if isinstance(kinds, str) else set(kinds)
        names |= {"integer", "number"} if names & {"integer", "number"} else set()
        if names & used_types:
            return False
        used_types |= names
    return True


def _narrow_number(schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
    """Returns both bounds, inclusive, whole for whole numbers; none where the schema sets none."""
    kind, multiple = schema["type"], schema.get("multipleOf")
    if schema.keys() == {"type"}:
        return {"type": kind}
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    below, above = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    if multiple is not None:
        if float(multiple) != int(multiple):
            raise _refusal("a fractional multipleOf", path)
        kind = "integer"
    if low == -math.inf:
        low = -max(_MAX_NUMBER, 10 * abs(min(high, above))) if math.isfinite(min(high, above)) else -_MAX_NUMBER
    if high == math.inf:
        high = max(_MAX_NUMBER, 10 * abs(max(low, below)))
    if kind == "integer":
        low, high = math.ceil(low), math.floor(high)
        low = max(low, math.floor(below) + 1) if math.isfinite(below) else low
        high = min(high, math.ceil(above) - 1) if math.isfinite(above) else high
        if multiple is not None:
            low, high = -(-low // int(multiple)) * int(multiple), high // int(multiple) * int(multiple)
    else:
        low = max(low, below + _EXCLUSIVE_MARGIN * max(1.0, abs(below))) if math.isfinite(below) else low
        high = min(high, above - _EXCLUSIVE_MARGIN * max(1.0, abs(above))) if math.isfinite(above) else high
    if low > high:
        raise _empty_error(path)
    narrow_number: Narrow = {"type": kind, "minimum": low, "maximum": high}
    return {**narrow_number, "multipleOf": int(multiple)} if multiple is not None else narrow_number

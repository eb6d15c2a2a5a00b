"""Schemas made narrow: for parameters of a tool, a schema that a grammar can hold and that only asks for more.

What a narrow schema accepts the original accepts too; not always the other way round. Texts, lists and numbers get an
upper bound, for a model may otherwise write one value until its tokens end (the decimals of a number that has bounds
are not counted). Keys that a schema leaves open are not
invented: an object that names its properties has no others, and one that names none holds at most one, because no
grammar can tell whether a key is written twice. Formats are not enforced: in JSON Schema they are notes. Classes of
characters in patterns are those of ASCII, as `schemas.matcher` reads them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas import faults, json_schema
from evolvent.trajectory import canonical_json

__all__ = ["Limits", "Narrow", "narrow"]

Narrow = dict[str, Any]
"""One of `enum`, `anyOf`, or one `type` with the keywords that belong to it; every key that matters is there."""
_SAID = frozenset(("title", "description", "default", "examples", "format"))
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties", "minProperties", "maxProperties")),
}
_APPLIED = {"additionalProperties": "properties", "items": "prefixItems"}  # to what these leave, in the same schema
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ASCII = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}
_LARGEST = 10**15  # whole numbers up to here are exact as floats
_WITHIN = 1e-9  # what lies that close to a bound that is excluded might be rounded onto it


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a constrained answer may hold where its schemas leave it open.

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
        wrong = [Problem(name, f"must be 1 or more, got {size}") for name, size in sizes.items() if size < 1]
        if self.calls > 256:
            wrong.append(Problem("calls", f"at most 256 are read, got {self.calls}"))
        if wrong:
            raise ConfigError(wrong)


def narrow(tool: Tool, limits: Limits) -> Narrow:
    """The parameters of a tool as a narrow object.

    Raises:
        SampleInvalid: naming the tool and the path; no schema, one that no value satisfies, or a keyword that no
            grammar can hold (`not`, `if`, `uniqueItems`, `contains`, ...).
    """
    try:
        return _Reader(limits).read(json_schema(tool.parameters), ())
    except SampleInvalid as error:
        raise SampleInvalid(
            f"calls of the tool {tool.name!r} cannot be constrained: {error.what}",
            value=error.value,
            expected=error.expected,
            hint=error.hint,
        ) from error


class _Empty(SampleInvalid):
    """No value satisfies a schema."""


def _empty(path: Sequence[str]) -> _Empty:
    return _Empty(f"no value is possible at {_where(path)}", expected="a schema that something satisfies")


def _refused(what: str, path: Sequence[str]) -> SampleInvalid:
    return SampleInvalid(
        f"{what} at {_where(path)}",
        expected="a schema that a grammar can hold",
        hint="leave it out of the schema, or decode without the constraint",
    )


def _where(path: Sequence[str]) -> str:
    return ".".join(path[:8]) or "the top"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the output of `json_schema`, which is a finite tree."""

    limits: Limits

    def read(self, node: object, path: tuple[str, ...]) -> Narrow:
        if node is False:
            raise _empty(path)
        if not isinstance(node, Mapping):
            return self._anything()
        schema = {key: value for key, value in node.items() if key not in _SAID}
        if "enum" in schema or "const" in schema:
            return self._listed(schema, path)
        schema = _joined(schema, path)
        if "enum" in schema or "const" in schema:
            return self._listed(schema, path)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._branches(schema, key, path)
        kinds = schema.get("type", [kind for kind in _TYPES if _OF_TYPE.get(kind, frozenset()) & schema.keys()])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        known = frozenset[str]().union(*(_OF_TYPE.get(kind, frozenset()) for kind in kinds))
        left = sorted(schema.keys() - known - {"type"})
        left = [key for key in left if not (key == "uniqueItems" and not schema[key])]
        if left:
            raise _refused(f"the keyword {left[0]!r}", path)
        if not kinds:
            if "type" in schema:
                raise _empty(path)
            return self._anything()
        return self._either([{**_part(schema, kind), "type": kind} for kind in kinds], path)

    def _either(self, schemas: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> Narrow:
        """Any of several schemas, those left out that nothing satisfies."""
        found: list[Narrow] = []
        for schema in schemas:
            try:
                found.append(self._typed(schema, path) if _plain(schema) else self.read(schema, path))
            except _Empty:
                if len(schemas) == 1:
                    raise  # its path says more
        if not found:
            raise _empty(path)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _listed(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        """The listed values that the rest of the schema accepts."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        rest = {key: value for key, value in schema.items() if key != "enum"}  # it holds for all of them
        whole = {"type": "object", "properties": {"value": rest}}
        found: dict[str, Any] = {}
        for value in values:
            written = canonical_json(value)
            if written not in found and not faults({"value": value}, whole):
                found[written] = value
        if not found:
            raise _empty(path)
        return {"enum": list(found.values())}

    def _branches(self, schema: Mapping[str, Any], key: str, path: tuple[str, ...]) -> Narrow:
        beside = {name: value for name, value in schema.items() if name != key}
        given = [{} if one is True else one for one in schema[key] if one is not False]
        branches = [_joined({"allOf": [beside, one]} if beside else one, path) for one in given]
        if key == "oneOf" and not _apart(branches):
            raise _refused("a oneOf whose branches may hold the same value", path)
        return self._either(branches, path)

    def _anything(self, *, depth: int = 1) -> Narrow:
        """A value of which nothing is known: a scalar, or a list or an object of scalars."""
        kinds = ("string", "number", "boolean", "null")
        found = [self._typed({"type": kind}, ()) for kind in kinds]
        if depth:
            inner = self._anything(depth=depth - 1)
            found.append(
                {"type": "array", "items": inner, "prefixItems": [], "minItems": 0, "maxItems": self.limits.items}
            )
            found.append(_free(inner, least=0))
        return {"anyOf": found}

    def _typed(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        kind = schema["type"]
        if kind == "string":
            return self._string(schema, path)
        if kind in ("integer", "number"):
            return _number(schema, path)
        if kind == "array":
            return self._array(schema, path)
        return self._object(schema, path) if kind == "object" else {"type": kind}

    def _string(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        least = math.ceil(schema.get("minLength", 0))
        most = math.floor(min(schema.get("maxLength", math.inf), max(self.limits.text, least)))
        if least > most:
            raise _empty(path)
        found: Narrow = {"type": "string", "minLength": least, "maxLength": most}
        return {**found, "pattern": _in_ascii(schema["pattern"])} if "pattern" in schema else found

    def _array(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        first = [self.read(one, (*path, str(at))) for at, one in enumerate(schema.get("prefixItems", ()))]
        limit = math.floor(schema.get("maxItems", math.inf)) if "maxItems" in schema else None
        least = math.ceil(schema.get("minItems", 0))
        if first and limit is not None and limit < len(first):
            first = first[:limit]
        least = max(least, len(first))  # a tuple is written whole
        most = max(self.limits.items, least) if limit is None else min(limit, max(self.limits.items, least))
        items: Narrow | None = None
        if len(first) < most and (not first or "items" in schema):
            try:
                items = self.read(schema.get("items", True), (*path, "items"))
            except _Empty:
                items = None
        if items is None:
            most = len(first)
        if least > most:
            raise _empty(path)
        return {"type": "array", "items": items, "prefixItems": first, "minItems": least, "maxItems": most}

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
        required = list(schema.get("required", ()))
        least, most = math.ceil(schema.get("minProperties", 0)), schema.get("maxProperties", math.inf)
        rest = schema.get("additionalProperties", True)
        if not schema.get("properties") and not required and rest is not False and most >= 1:
            if least > 1:
                raise _refused("minProperties of an object with unnamed properties", path)
            return _free(self.read(rest, (*path, "additionalProperties")), least=least)
        known: dict[str, Narrow] = {}
        for name, one in {**dict.fromkeys(required, rest), **schema.get("properties", {})}.items():
            try:
                known[name] = self.read(one, (*path, name))
            except _Empty:
                if name in required:
                    raise
        if least > len(known) or most < len(required):
            raise _empty(path)
        if (least > 1 and least > len(required)) or most < len(known):
            raise _refused("a number of properties", path)
        order = [name for name in schema.get("properties", {}) if name in known]
        order += [name for name in known if name not in order]
        return {
            "type": "object",
            "properties": {name: known[name] for name in order},
            "required": required,
            "additionalProperties": None,
            "minProperties": least if least > len(required) else 0,
        }


def _free(value: Narrow, *, least: int) -> Narrow:
    """An object that names no properties: at most one."""
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": value, "minProperties": least}


def _plain(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return isinstance(kind, str) and schema.keys() <= _OF_TYPE.get(kind, frozenset()) | {"type"}


def _part(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What a schema says of one type."""
    return {key: value for key, value in schema.items() if key in _OF_TYPE.get(kind, frozenset())}


def _in_ascii(pattern: str) -> str:
    """A pattern with its classes written out: where schemas are checked they are of ASCII, in grammars of Unicode."""
    return _ESCAPE.sub(lambda found: _ASCII.get(found[1], found[0]), pattern)


def _joined(schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """A schema whose `allOf` is written into it.

    Refused where two parts say different things of one keyword, or where one speaks of what it leaves unnamed and the
    other names more: joined, it would no longer hold for that.
    """
    found = {key: value for key, value in schema.items() if key not in _SAID}
    parts = [part for part in found.pop("allOf", []) if part is not True]
    if not all(isinstance(part, Mapping) for part in parts):
        raise _empty(path)
    whole = [found, *(_joined(part, path) for part in parts)]
    for key, named in _APPLIED.items():
        known = [str(part.get(named) or "") for part in whole]
        if any(
            part.get(key, True) not in (True, {}) and any(one not in ("", mine) for one in known)
            for part, mine in zip(whole, known, strict=True)
        ):
            raise _refused(f"two schemas that must hold together, one of them with {key!r}", path)
    for part in whole[1:]:
        for key, value in part.items():
            old: Any = found.get(key)
            if key == "required":
                found[key] = list(dict.fromkeys([*found.get(key, ()), *value]))
            elif key not in found or canonical_json(old) == canonical_json(value):  # True is not 1
                found[key] = value
            elif key == "properties" and not old.keys() & value.keys():
                found[key] = {**old, **value}
            elif (old, value) in (("integer", "number"), ("number", "integer")):
                found[key] = "integer"
            else:
                raise _refused(f"two schemas that must hold together and both say {key!r}", path)
    return found


def _apart(branches: Sequence[Any]) -> bool:
    """Whether no value can be of two branches, by their types alone."""
    seen: set[str] = set()
    for one in branches:
        kinds = one.get("type") if isinstance(one, Mapping) else None
        if kinds is None:
            return False
        names = {kinds} if isinstance(kinds, str) else set(kinds)
        names |= {"integer", "number"} if names & {"integer", "number"} else set()
        if names & seen:
            return False
        seen |= names
    return True


def _number(schema: Mapping[str, Any], path: tuple[str, ...]) -> Narrow:
    """Both bounds, ends included, those of whole numbers whole; none where nothing was said about it."""
    kind, multiple = schema["type"], schema.get("multipleOf")
    if schema.keys() == {"type"}:
        return {"type": kind}
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    below, above = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    if multiple is not None:
        if float(multiple) != int(multiple):
            raise _refused("multipleOf that is no whole number", path)
        kind = "integer"
    if low == -math.inf:
        low = -max(_LARGEST, 10 * abs(min(high, above))) if math.isfinite(min(high, above)) else -_LARGEST
    if high == math.inf:
        high = max(_LARGEST, 10 * abs(max(low, below)))
    if kind == "integer":
        low, high = math.ceil(low), math.floor(high)
        low = max(low, math.floor(below) + 1) if math.isfinite(below) else low
        high = min(high, math.ceil(above) - 1) if math.isfinite(above) else high
        if multiple is not None:
            low, high = -(-low // int(multiple)) * int(multiple), high // int(multiple) * int(multiple)
    else:
        low = max(low, below + _WITHIN * max(1.0, abs(below))) if math.isfinite(below) else low
        high = min(high, above - _WITHIN * max(1.0, abs(above))) if math.isfinite(above) else high
    if low > high:
        raise _empty(path)
    found: Narrow = {"type": kind, "minimum": low, "maximum": high}
    return {**found, "multipleOf": int(multiple)} if multiple is not None else found

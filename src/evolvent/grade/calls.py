"""Function calls judged against what is accepted: names, parameters, types and values, in any order.

The verdict is that of the Berkeley Function-Calling Leaderboard (ShishirPatil/gorilla, bfcl_eval, ast_checker), rule
by rule, with its known mistakes left out: calls are matched to what is expected by a maximum matching (the released
checker takes the first fit and may refuse right answers), truth values are no numbers, and the mark for "may be left
out" is no empty list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.grade.call_forms import Form, decode_calls, encode_calls, made_call
from evolvent.grade.java_literals import java_value
from evolvent.grade.javascript_literals import javascript_value
from evolvent.grade.matching import maximum_matching
from evolvent.messages import Call, Tool
from evolvent.trajectory import Json

__all__ = [
    "KINDS",
    "OMITTED",
    "Form",
    "GoldCall",
    "Verdict",
    "check_calls",
    "decode_calls",
    "encode_calls",
    "exact_gold",
    "made_call",
]

OMITTED = ""
"""Among the accepted values of a parameter: it may be left out."""
KINDS = ("count", "name", "missing", "unexpected", "type", "value")
"""What a verdict may find wrong, in the order in which it is looked for; "" where nothing is."""

_STANDARD = re.compile(r"[ ,./\-_*^]")
_PYTHON: Mapping[str, type] = {
    "string": str,
    "str": str,
    "integer": int,
    "int": int,
    "float": float,
    "number": float,
    "double": float,
    "boolean": bool,
    "bool": bool,
    "array": list,
    "list": list,
    "tuple": list,
    "dict": dict,
    "object": dict,
    "any": str,
    "null": type(None),
}
_JAVA: Mapping[str, type] = {
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": bool,
    "char": str,
    "String": str,
    "any": str,
    "Array": list,
    "ArrayList": list,
    "HashMap": dict,
}
_JAVASCRIPT: Mapping[str, type] = {
    "String": str,
    "integer": int,
    "float": float,
    "Bigint": int,
    "Boolean": bool,
    "dict": dict,
    "array": list,
    "any": str,
}
_CLASSES = {"python": _PYTHON, "java": _JAVA, "javascript": _JAVASCRIPT}
_SOURCES = {"java": java_value, "javascript": javascript_value}


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A call that is expected, with the values that are accepted.

    Args:
        name: of the function.
        arguments: for each parameter the accepted values. `OMITTED` among them: it may be left out. An accepted dict
            has lists of accepted values in its turn, one level deep.
        exact: each value stands for itself: no value means "left out", texts are compared to the letter, and dicts and
            lists as JSON.
    """

    name: str
    arguments: Mapping[str, tuple[Json, ...]]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether calls are right.

    Args:
        valid: they are.
        kind: what is wrong first, of `KINDS`; "" where nothing is.
        path: where: `calls[1].arguments.city`.
        detail: what is wrong, in words.
    """

    valid: bool
    kind: str = ""
    path: str = ""
    detail: str = ""


class _Fault(NamedTuple):
    """What is wrong, not yet in words: most faults are of pairs that are not meant for one another."""

    kind: str
    parameter: str
    words: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Type:
    """What a parameter's schema asks of a value: its classes (none: anything), and that of a list's elements."""

    name: str
    classes: tuple[type, ...] = ()
    item: type | None = None
    item_name: str = ""


_RIGHT = Verdict(True)
_ANYTHING = _Type("anything")
_NOT_ACCEPTED = "{} is none of the accepted {}"


def exact_gold(calls: Sequence[Call]) -> tuple[GoldCall, ...]:
    """What is expected where each value is accepted as it stands, and nothing may be left out."""
    return tuple(GoldCall(one.name, {k: (v,) for k, v in one.arguments.items()}, exact=True) for one in calls)


def check_calls(
    calls: Sequence[Call],
    gold: Sequence[GoldCall],
    tools: Sequence[Tool],
    *,
    language: str = "python",
    ordered: bool = False,
    underscore_names: bool = False,
) -> Verdict:
    """Whether calls are what is expected: equally many, each of them another one of those expected.

    Args:
        calls: what was called. In "java" and "javascript" every argument is the source text of a literal.
        gold: what is expected; its names are those of `tools`.
        tools: whose schemas give the types; a `$ref` or `anyOf` is not looked into.
        language: "python", "java" or "javascript": whose types the schemas name.
        ordered: the first call must be the first expected, and so on; else any order is right.
        underscore_names: dots of function names are underscores in `calls`, for models that know no dots.
    Raises:
        SampleInvalid: what is expected is of no tool, a type is unknown, or two tools have one name.
        ConfigError: an unknown language.
    """
    if language not in _CLASSES:
        raise ConfigError("an unknown language of calls", value=language, expected=sorted(_CLASSES))
    known = _tools_of(gold, tools)
    if len(calls) != len(gold):
        return Verdict(False, "count", "calls", f"{len(calls)} calls where {len(gold)} are expected")
    wanted = [one.name.replace(".", "_") if underscore_names else one.name for one in gold]
    if ordered or len(gold) == 1:
        for at, one in enumerate(gold):
            found = _fault(calls[at], one, known[one.name], wanted=wanted[at], language=language)
            if found is not None:
                return _refused(found, at)
        return _RIGHT
    table = [
        [_fault(call, one, known[one.name], wanted=name, language=language) for call in calls]
        for one, name in zip(gold, wanted, strict=True)
    ]
    matched = maximum_matching([[one is None for one in row] for row in table])
    if -1 not in matched:
        return _RIGHT
    alone = matched.index(-1)
    near = [(one, at) for at, one in enumerate(table[alone]) if at not in matched and one is not None]
    verdict = _refused(*max(near, key=lambda pair: KINDS.index(pair[0].kind)))  # equally many: one is left over
    return replace(verdict, detail=f"no call fits what is expected of {gold[alone].name}; nearest: {verdict.detail}")


def _tools_of(gold: Sequence[GoldCall], tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools that are expected to be called, by name; SampleInvalid where one is missing or there are two."""
    names = {one.name for one in gold}
    named = [tool for tool in tools if tool.name in names]
    known = {tool.name: tool for tool in named}
    if len(known) != len(names) or len(named) != len(names):
        what = "an expected call of no tool" if len(known) != len(names) else "two tools with one name"
        raise SampleInvalid(what, value=sorted(names), expected=sorted(tool.name for tool in tools))
    return known


def _refused(fault: _Fault, at: int) -> Verdict:
    """A verdict in words."""
    path = f"calls[{at}].arguments.{fault.parameter}" if fault.parameter else f"calls[{at}].name"
    return Verdict(False, fault.kind, path, fault.words.format(*map(_shown, fault.values)))


def _fault(call: Call, gold: GoldCall, tool: Tool, *, wanted: str, language: str) -> _Fault | None:
    """What is wrong with a call beside an expected one; None where it fits."""
    if call.name != wanted:
        return _Fault("name", "", "{} where {} is expected", (call.name, wanted))
    properties, given = tool.parameters.get("properties", {}), call.arguments
    for name in tool.parameters.get("required") or ():
        if name not in given:
            return _Fault("missing", name, "a required parameter is missing")
    for name, value in given.items():
        if name not in properties or name not in gold.arguments:
            return _Fault("unexpected", name, "a parameter that is not expected")
        found = _value_fault(value, gold, name, schema=properties[name], language=language)
        if found is not None:
            return found
    for name, accepted in gold.arguments.items():
        if name not in given and (gold.exact or not _may_be_left_out(accepted)):
            return _Fault("missing", name, "a parameter is missing that may not be left out here")
    return None


def _may_be_left_out(accepted: Sequence[Json]) -> bool:
    return OMITTED in accepted


def _type_of(schema: Any, language: str) -> _Type:
    """A parameter's type; a schema without one asks for nothing.

    Raises:
        SampleInvalid: a type that the language does not have.
    """
    stated = schema.get("type") if isinstance(schema, dict) else None
    if stated is None:
        return _ANYTHING
    items = schema.get("items")
    item = items.get("type") if isinstance(items, dict) else None
    names = (stated,) if isinstance(stated, str) else tuple(map(str, stated)) if isinstance(stated, list) else ("",)
    return _known_type(language, names, item if isinstance(item, str) else "")


@lru_cache(maxsize=1024)
def _known_type(language: str, names: tuple[str, ...], item: str) -> _Type:
    known = _CLASSES[language]
    unknown = [name for name in (*names, *filter(None, (item,))) if name not in known]
    if unknown:
        raise SampleInvalid("a type that is none", value=unknown, expected=sorted(known))
    classes = tuple(known[name] for name in names)
    # in Java and JavaScript, elements of any type were read by what they look like
    nested = known[item] if item and list in classes and (item != "any" or language == "python") else None
    return _Type(" or ".join(names), classes, nested, item)


def _value_fault(value: Any, gold: GoldCall, name: str, *, schema: Any, language: str) -> _Fault | None:
    """What is wrong with a value; None where it is accepted."""
    kind = _ANYTHING if gold.exact and language == "python" else _type_of(schema, language)
    if language in _SOURCES:
        if not isinstance(value, str):
            return _Fault("type", name, "{} where source text is expected", (value,))
        value = _SOURCES[language](value, kind.name, kind.item_name)
    accepted = gold.arguments[name]
    if gold.exact:
        plain = _listed(value)
        fine = any(_same(plain, _listed(one)) for one in accepted)
        return None if fine else _Fault("value", name, _NOT_ACCEPTED, (value, accepted))
    if type(value) is str and str in kind.classes and value in accepted:
        return None  # most right values, without a look at their spelling
    if isinstance(value, tuple) and kind.name == "tuple":
        value = list(value)
    if type(value) is int and language == "python" and float in kind.classes and int not in kind.classes:
        value = float(value) if abs(value) < 1 << 1023 else value
    fits, variable = _of_class(value, accepted, kind)
    if not fits:
        asked = f"{kind.name} of {kind.item_name}" if kind.item else kind.name
        return _Fault("type", name, "{} is no {}", (value, asked))
    if _accepted(value, accepted, variable=variable, nested=kind.item):
        return None
    return _Fault("value", name, _NOT_ACCEPTED, (value, accepted))


def _first_class(accepted: Sequence[Any]) -> type | None:
    """The class of the first accepted value that is not `OMITTED`."""
    for one in accepted:
        if one != OMITTED:
            return type(one)
    return None


def _of_class(value: Any, accepted: Sequence[Json], kind: _Type) -> tuple[bool, bool]:
    """Whether a value has a class that is asked for; and whether it counts as a variable, whose text is compared.

    A variable is a value of the class of the first accepted one, where the schema asks for another class. Elements of
    lists are looked at one level deep, against each accepted list; an accepted value that is no list lets any pass.
    """
    first = _first_class(accepted)
    if not kind.classes:
        return True, False
    if type(value) in kind.classes:
        variable = first is not None and first not in kind.classes
        if kind.item is None or not isinstance(value, list):
            return True, variable
        item = kind.item
        return any(
            not isinstance(one, list) or all(type(part) in (item, _first_class(one)) for part in value)
            for one in accepted
        ), variable
    return first is not None and type(value) is first, True


def _accepted(value: Any, accepted: Sequence[Json], *, variable: bool, nested: type | None) -> bool:
    if not variable:
        if isinstance(value, dict):
            return any(isinstance(one, dict) and _dict_fits(value, one) for one in accepted)
        if isinstance(value, list) and nested is dict:
            return any(isinstance(one, list) and _dicts_fit(value, one) for one in accepted)
        if isinstance(value, str):
            text = _standard(value)
            return any(isinstance(one, str) and _standard(one) == text for one in accepted)
        if isinstance(value, list):
            texts = [_standard(part) for part in value]
            return any(isinstance(one, list) and _same(texts, [_standard(part) for part in one]) for one in accepted)
    return any(_same(value, one) for one in accepted)


def _dict_fits(value: Mapping[str, Any], accepted: Mapping[str, Any]) -> bool:
    """Every key known and its value accepted; a key that is missing may be left out."""
    for key, entry in value.items():
        if key not in accepted:
            return False
        standard = _standard(entry)
        if not any(_same(standard, _standard(one)) for one in _choices(accepted[key])):
            return False
    return all(key in value or _may_be_left_out(_choices(choices)) for key, choices in accepted.items())


def _choices(choices: Any) -> Sequence[Any]:
    """The accepted values of a key; one that is no list stands for itself."""
    return choices if isinstance(choices, list) else [choices]


def _dicts_fit(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    """A list of dicts: equally many, in the same order."""
    if len(value) != len(accepted):
        return False
    pairs = zip(value, accepted, strict=True)
    return all(_dict_fits(a, b) if isinstance(a, dict) and isinstance(b, dict) else _same(a, b) for a, b in pairs)


def _standard(value: Any) -> Any:
    """A text without spaces and marks, in small letters, with double quotes; another value as it is."""
    return _STANDARD.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _same(left: Any, right: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, but true is no number and a tuple no list."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and type(left) is type(right):
        return len(left) == len(right) and all(map(_same, left, right))
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    return (numbers or type(left) is type(right)) and bool(left == right)


def _listed(value: Any) -> Any:
    """A value with lists for its tuples: JSON has no tuples."""
    if isinstance(value, Mapping):
        return {key: _listed(entry) for key, entry in value.items()}
    return [_listed(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

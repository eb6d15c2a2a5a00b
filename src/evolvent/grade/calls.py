"""Grading of function calls against accepted calls: names, parameters, types and values, in any order.

The grade is that of the Berkeley Function-Calling Leaderboard (ShishirPatil/gorilla, bfcl_eval, ast_checker),
rule by rule, without its known mistakes: calls are assigned to expected calls by a maximum matching (the
released checker takes the first fit and may reject correct answers), booleans are not numbers, and the mark for
"may be left out" is not an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.grade.call_forms import Form, attempts_call, decode_calls, encode_calls, has_call
from evolvent.grade.foreign_literals import parse_java_literal, parse_javascript_literal
from evolvent.grade.matching import maximum_matching
from evolvent.messages import Call, Tool
from evolvent.trajectory import Json

__all__ = [
    "KINDS",
    "OMITTED",
    "CallGrade",
    "Form",
    "GoldCall",
    "attempts_call",
    "decode_calls",
    "encode_calls",
    "exact_gold_calls",
    "grade_calls",
    "has_call",
]

OMITTED = ""
"""Among the accepted values of a parameter: it may be left out."""
KINDS = ("count", "name", "missing", "unexpected", "type", "value")
"""What a verdict may find wrong, in the order in which it is looked for; "" where nothing is."""

_STANDARD = re.compile(r"[ ,./\-_*^]")
_PYTHON_TYPES: Mapping[str, type] = {
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
_JAVA_TYPES: Mapping[str, type] = {
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
_JAVASCRIPT_TYPES: Mapping[str, type] = {
    "String": str,
    "integer": int,
    "float": float,
    "Bigint": int,
    "Boolean": bool,
    "dict": dict,
    "array": list,
    "any": str,
}
_CLASSES = {"python": _PYTHON_TYPES, "java": _JAVA_TYPES, "javascript": _JAVASCRIPT_TYPES}
_SOURCES = {"java": parse_java_literal, "javascript": parse_javascript_literal}


@dataclass(frozen=True, slots=True)
class GoldCall:
    """An expected call, with its accepted values.

    Args:
        name: Name of the function.
        arguments: For each parameter the accepted values. With `OMITTED` among them it may be left out. An accepted
            dict holds lists of accepted values, one level deep.
        exact: Each value stands for itself: no value means "left out", texts are compared exactly, and dicts and
            lists as JSON.
    """

    name: str
    arguments: Mapping[str, tuple[Json, ...]]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class CallGrade:
    """A grade of calls.

    Args:
        valid: Whether the calls are correct.
        kind: The first fault, of `KINDS`; "" for valid calls.
        path: Position of the fault: `calls[1].arguments.city`.
        detail: Description of the fault.
    """

    valid: bool
    kind: str = ""
    path: str = ""
    detail: str = ""


class _Fault(NamedTuple):
    """A fault that is not formatted yet: most faults belong to pairs that are not meant for one another."""

    kind: str
    parameter: str
    template: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _ParameterType:
    """The type of a parameter's schema: its classes (none: any value), and the class of list elements."""

    name: str
    classes: tuple[type, ...] = ()
    item: type | None = None
    item_name: str = ""


_VALID = CallGrade(True)
_ANYTHING = _ParameterType("anything")
_NOT_ACCEPTED = "{} is none of the accepted {}"


def exact_gold_calls(calls: Sequence[Call]) -> tuple[GoldCall, ...]:
    """Converts calls to expected calls whose values are accepted only as they are, and must all be present."""
    return tuple(GoldCall(call.name, {k: (v,) for k, v in call.arguments.items()}, exact=True) for call in calls)


def grade_calls(
    calls: Sequence[Call],
    gold: Sequence[GoldCall],
    tools: Sequence[Tool],
    *,
    language: str = "python",
    ordered: bool = False,
    underscore_names: bool = False,
) -> CallGrade:
    """Returns the grade of calls: valid if there are as many as expected, each matching another expected call.

    Args:
        calls: The calls. In "java" and "javascript" every argument is the source text of a literal.
        gold: The expected calls; their names are those of `tools`.
        tools: Tools whose schemas give the types; `$ref` and `anyOf` are ignored.
        language: "python", "java" or "javascript": the language of the types in the schemas.
        ordered: Whether the calls must have the expected order.
        underscore_names: Whether dots of function names are underscores in `calls`, for models without dots.
    Raises:
        SampleInvalid: an expected call names an unknown tool, an unknown type, or two tools of one name.
        ConfigError: an unknown language.
    """
    if language not in _CLASSES:
        raise ConfigError("unknown call language", value=language, expected=sorted(_CLASSES))
    tools_by_name = _find_tools(gold, tools)
    if len(calls) != len(gold):
        return CallGrade(False, "count", "calls", f"{len(calls)} calls where {len(gold)} are expected")
    expected_names = [gold_call.name.replace(".", "_") if underscore_names else gold_call.name for gold_call in gold]
    if ordered or len(gold) == 1:
        for index, gold_call in enumerate(gold):
            fault = _find_fault(
                calls[index],
                gold_call,
                tools_by_name[gold_call.name],
                expected_name=expected_names[index],
                language=language,
            )
            if fault is not None:
                return _format_fault(fault, index)
        return _VALID
    fault_table = [
        [
            _find_fault(call, gold_call, tools_by_name[gold_call.name], expected_name=name, language=language)
            for call in calls
        ]
        for gold_call, name in zip(gold, expected_names, strict=True)
    ]
    matching = maximum_matching([[gold_call is None for gold_call in row] for row in fault_table])
    if -1 not in matching:
        return _VALID
    unmatched = matching.index(-1)
    candidates = [
        (gold_call, index)
        for index, gold_call in enumerate(fault_table[unmatched])
        if index not in matching and gold_call is not None
    ]
    verdict = _format_fault(
        *max(candidates, key=lambda pair: KINDS.index(pair[0].kind))
    )  # equally many: one is left over
    return replace(
        verdict, detail=f"no call fits what is expected of {gold[unmatched].name}; nearest: {verdict.detail}"
    )


def _find_tools(gold: Sequence[GoldCall], tools: Sequence[Tool]) -> dict[str, Tool]:
    """Returns the expected tools by name; raises SampleInvalid where a tool is missing or a name is repeated."""
    names = {gold_call.name for gold_call in gold}
    expected_tools = [tool for tool in tools if tool.name in names]
    tools_by_name = {tool.name: tool for tool in expected_tools}
    if len(tools_by_name) != len(names) or len(expected_tools) != len(names):
        problem = (
            "an expected call names an unknown tool"
            if len(tools_by_name) != len(names)
            else "two tools have the same name"
        )
        raise SampleInvalid(problem, value=sorted(names), expected=sorted(tool.name for tool in tools))
    return tools_by_name


def _format_fault(fault: _Fault, index: int) -> CallGrade:
    """Formats a fault as a grade."""
    path = f"calls[{index}].arguments.{fault.parameter}" if fault.parameter else f"calls[{index}].name"
    return CallGrade(False, fault.kind, path, fault.template.format(*map(_shorten, fault.values)))


def _find_fault(call: Call, gold: GoldCall, tool: Tool, *, expected_name: str, language: str) -> _Fault | None:
    """Returns the fault of a call compared with an expected one; None where it matches."""
    if call.name != expected_name:
        return _Fault("name", "", "{} where {} is expected", (call.name, expected_name))
    properties, arguments = tool.parameters.get("properties", {}), call.arguments
    for name in tool.parameters.get("required") or ():
        if name not in arguments:
            return _Fault("missing", name, "a required parameter is missing")
    for name, value in arguments.items():
        if name not in properties or name not in gold.arguments:
            return _Fault("unexpected", name, "a parameter that is not expected")
        fault = _find_value_fault(value, gold, name, schema=properties[name], language=language)
        if fault is not None:
            return fault
    for name, accepted in gold.arguments.items():
        if name not in arguments and (gold.exact or not _is_optional(accepted)):
            return _Fault("missing", name, "a parameter is missing that may not be left out here")
    return None


def _is_optional(accepted: Sequence[Json]) -> bool:
    return OMITTED in accepted


def _parameter_type(schema: Any, language: str) -> _ParameterType:
    """Returns a parameter's type; a schema without a type accepts anything.

    Raises:
        SampleInvalid: a type that the language does not have.
    """
    type_name = schema.get("type") if isinstance(schema, dict) else None
    if type_name is None:
        return _ANYTHING
    items = schema.get("items")
    item = items.get("type") if isinstance(items, dict) else None
    names = (
        (type_name,)
        if isinstance(type_name, str)
        else tuple(map(str, type_name))
        if isinstance(type_name, list)
        else ("",)
    )
    return _resolve_type(language, names, item if isinstance(item, str) else "")


@lru_cache(maxsize=1024)
def _resolve_type(language: str, names: tuple[str, ...], item: str) -> _ParameterType:
    classes_by_name = _CLASSES[language]
    unknown_names = [name for name in (*names, *filter(None, (item,))) if name not in classes_by_name]
    if unknown_names:
        raise SampleInvalid("unknown type", value=unknown_names, expected=sorted(classes_by_name))
    classes = tuple(classes_by_name[name] for name in names)
    # in Java and JavaScript, elements of any type were read by what they look like
    nested = classes_by_name[item] if item and list in classes and (item != "any" or language == "python") else None
    return _ParameterType(" or ".join(names), classes, nested, item)


def _find_value_fault(value: Any, gold: GoldCall, name: str, *, schema: Any, language: str) -> _Fault | None:
    """Returns the fault of a value; None where it is accepted."""
    kind = _ANYTHING if gold.exact and language == "python" else _parameter_type(schema, language)
    if language in _SOURCES:
        if not isinstance(value, str):
            return _Fault("type", name, "{} where source text is expected", (value,))
        value = _SOURCES[language](value, kind.name, kind.item_name)
    accepted = gold.arguments[name]
    if gold.exact:
        plain_value = _tuples_to_lists(value)
        is_accepted = any(_is_equal(plain_value, _tuples_to_lists(accepted_value)) for accepted_value in accepted)
        return None if is_accepted else _Fault("value", name, _NOT_ACCEPTED, (value, accepted))
    if type(value) is str and str in kind.classes and value in accepted:
        return None  # most right values, without a look at their spelling
    if isinstance(value, tuple) and kind.name == "tuple":
        value = list(value)
    if type(value) is int and language == "python" and float in kind.classes and int not in kind.classes:
        value = float(value) if abs(value) < 1 << 1023 else value
    fits, variable = _has_class(value, accepted, kind)
    if not fits:
        expected_type = f"{kind.name} of {kind.item_name}" if kind.item else kind.name
        return _Fault("type", name, "{} is no {}", (value, expected_type))
    if _is_accepted(value, accepted, is_variable=variable, nested=kind.item):
        return None
    return _Fault("value", name, _NOT_ACCEPTED, (value, accepted))


def _first_class(accepted: Sequence[Any]) -> type | None:
    """Returns the class of the first accepted value that is not `OMITTED`."""
    for accepted_value in accepted:
        if accepted_value != OMITTED:
            return type(accepted_value)
    return None


def _has_class(value: Any, accepted: Sequence[Json], kind: _ParameterType) -> tuple[bool, bool]:
    """Returns whether a value has an expected class; and whether it counts as a variable, whose text is compared.

    A variable is a value of the class of the first accepted value, where the schema expects another class. Elements of
    lists are checked one level deep, against each accepted list; an accepted value that is not a list accepts any.
    """
    first_class = _first_class(accepted)
    if not kind.classes:
        return True, False
    if type(value) in kind.classes:
        is_variable = first_class is not None and first_class not in kind.classes
        if kind.item is None or not isinstance(value, list):
            return True, is_variable
        item = kind.item
        return any(
            not isinstance(accepted_value, list)
            or all(type(part) in (item, _first_class(accepted_value)) for part in value)
            for accepted_value in accepted
        ), is_variable
    return first_class is not None and type(value) is first_class, True


def _is_accepted(value: Any, accepted: Sequence[Json], *, is_variable: bool, nested: type | None) -> bool:
    if not is_variable:
        if isinstance(value, dict):
            return any(
                isinstance(accepted_value, dict) and _dict_matches(value, accepted_value) for accepted_value in accepted
            )
        if isinstance(value, list) and nested is dict:
            return any(
                isinstance(accepted_value, list) and _dicts_match(value, accepted_value) for accepted_value in accepted
            )
        if isinstance(value, str):
            text = _normalize(value)
            return any(
                isinstance(accepted_value, str) and _normalize(accepted_value) == text for accepted_value in accepted
            )
        if isinstance(value, list):
            texts = [_normalize(part) for part in value]
            return any(
                isinstance(accepted_value, list) and _is_equal(texts, [_normalize(part) for part in accepted_value])
                for accepted_value in accepted
            )
    return any(_is_equal(value, accepted_value) for accepted_value in accepted)


def _dict_matches(value: Mapping[str, Any], accepted: Mapping[str, Any]) -> bool:
    """Returns whether every key is known, its value accepted, and every missing key optional."""
    for key, entry in value.items():
        if key not in accepted:
            return False
        normalized = _normalize(entry)
        if not any(_is_equal(normalized, _normalize(choice)) for choice in _to_choices(accepted[key])):
            return False
    return all(key in value or _is_optional(_to_choices(choices)) for key, choices in accepted.items())


def _to_choices(choices: Any) -> Sequence[Any]:
    """Returns the accepted values of a key; a value that is not a list is the only one."""
    return choices if isinstance(choices, list) else [choices]


def _dicts_match(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    """Returns whether two lists of dicts are equally long and match in order."""
    if len(value) != len(accepted):
        return False
    pairs = zip(value, accepted, strict=True)
    return all(
        _dict_matches(a, b) if isinstance(a, dict) and isinstance(b, dict) else _is_equal(a, b) for a, b in pairs
    )


def _normalize(value: Any) -> Any:
    """Returns a text without spaces and punctuation, in lowercase, with double quotes; other values unchanged."""
    return _STANDARD.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _is_equal(left: Any, right: Any) -> bool:
    """Returns whether values are equal as in JSON: 1 equals 1.0, but true is not a number and a tuple is not a list."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and type(left) is type(right):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    return (numbers or type(left) is type(right)) and bool(left == right)


def _tuples_to_lists(value: Any) -> Any:
    """Replaces tuples in a value by lists: JSON has no tuples."""
    if isinstance(value, Mapping):
        return {key: _tuples_to_lists(entry) for key, entry in value.items()}
    return [_tuples_to_lists(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

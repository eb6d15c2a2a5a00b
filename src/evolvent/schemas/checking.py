"""Checks arguments against a tool's schema, and tools against each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evolvent.errors import Problem, SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas.reading import MAX_DEPTH, compile_pattern, json_schema
from evolvent.trajectory import canonical_json

__all__ = ["LEGAL_NAME", "MAX_VALUES", "check_tools", "find_argument_faults"]

MAX_VALUES = 200_000  # most values in the arguments of a call
LEGAL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")  # what every provider of models takes


def find_argument_faults(arguments: Mapping[str, object], parameters: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the faults of the arguments of a call, one sentence a fault, in the order of their paths; () where
    valid.

    Args:
        arguments: JSON values; a tuple counts as a list. Anything else, NaN, and more than `MAX_VALUES` values or
            `MAX_DEPTH` levels are faults.
        parameters: parameters of the tool, in any dialect.
    Raises:
        SampleInvalid: a schema that `json_schema` refuses.
    """
    validator = _make_validator(_canonical_schema(parameters))
    json_fault = _find_json_fault(arguments)
    if json_fault is not None:
        return (json_fault,)
    errors = sorted(
        validator.iter_errors(arguments), key=lambda error: (list(map(str, error.absolute_path)), error.message)
    )
    return tuple([_format_error(error) for error in errors])


def check_tools(tools: Sequence[Tool], *, dotted: bool = False) -> tuple[Problem, ...]:
    """Returns the problems of tools that are offered together: duplicate names, illegal names, invalid schemas.

    Args:
        dotted: whether parts of a name may be joined by dots, as BFCL's are.
    """
    problems: list[Problem] = []
    names: set[str] = set()
    for number, tool in enumerate(tools):
        path = f"tools[{number}]"
        if tool.name in names:
            problems.append(Problem(path, f"the name {tool.name!r} is given twice", "a call would have two meanings"))
        names.add(tool.name)
        parts = tool.name.split(".") if dotted else [tool.name]
        if len(tool.name) > 64 or not all(LEGAL_NAME.fullmatch(part) for part in parts):
            hint = "use at most 64 letters, digits, _ and -, no digit first"
            problems.append(Problem(path, f"{tool.name[:80]!r} is no legal name", hint))
        try:
            json_schema(tool.parameters)
        except SampleInvalid as error:
            problems.append(Problem(f"{path}.parameters", str(error)))
    return tuple(problems)


def _canonical_schema(parameters: Mapping[str, Any]) -> str:
    try:
        return canonical_json(dict(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("a schema that is no JSON", value=str(error), expected="JSON values") from error


@lru_cache(2048)
def _make_validator(text: str) -> Any:
    """Returns the validator of arguments for the schema with this text; it is cached."""
    import jsonschema

    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, (list, tuple)),
            "object": lambda _, value: isinstance(value, Mapping),
        }
    )
    validator_class = jsonschema.validators.extend(
        base, {"pattern": _check_pattern, "uniqueItems": _check_unique}, type_checker=kinds
    )
    return validator_class(json_schema(json.loads(text)))


def _check_pattern(validator: Any, pattern: str, value: object, _: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not compile_pattern(pattern)(value.encode("utf-8", "replace").decode()):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _check_unique(validator: Any, unique: bool, value: object, _: object) -> Iterator[Any]:
    """Checks uniqueness by sorting keys: comparing every pair takes hours for a list that a model writes in seconds."""
    from jsonschema import ValidationError

    if (
        unique
        and isinstance(value, (list, tuple))
        and len({canonical_json(_normalize_numbers(element)) for element in value}) < len(value)
    ):
        yield ValidationError("a value is given twice in a list of different ones")


def _normalize_numbers(value: object) -> object:
    """Converts equal numbers to one form: JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normalize_numbers(element) for name, element in value.items()}
    return [_normalize_numbers(element) for element in value] if isinstance(value, (list, tuple)) else value


def _find_json_fault(arguments: object) -> str | None:
    """Returns the reason why arguments are not JSON values of a reasonable size, or None."""
    pending: list[tuple[object, int]] = [(arguments, 0)]
    if not isinstance(arguments, Mapping):
        return f"the arguments are {type(arguments).__name__}, not an object"
    for count in range(MAX_VALUES + 1):
        if not pending:
            return None
        value, level = pending.pop()
        if count == MAX_VALUES or level > MAX_DEPTH:
            break
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                return "an object has a key that is no text"
            pending += [(child, level + 1) for child in value.values()]
        elif isinstance(value, (list, tuple)):
            pending += [(child, level + 1) for child in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value!r} is no number of JSON"
        elif isinstance(value, int) and value.bit_length() > 1000:
            return "a whole number is too large"
        elif value is not None and not isinstance(value, (str, int, float)):
            return f"a value is {type(value).__name__}, which JSON does not have"
    return f"the arguments have more than {MAX_VALUES} values or {MAX_DEPTH} levels"


def _format_error(error: Any) -> str:
    path = ".".join(map(str, error.absolute_path))
    text = f"{path}: {error.message}" if path else str(error.message)
    return text if len(text) <= 300 else text[:297] + "..."

"""Arguments held to a tool's schema, and tools held to each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evolvent.errors import Problem, SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas.reading import DEPTH, json_schema, matcher
from evolvent.trajectory import canonical_json

__all__ = ["LEGAL_NAME", "VALUES", "check_tools", "faults"]

VALUES = 200_000  # most values in the arguments of a call
LEGAL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")  # what every provider of models takes


def faults(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with the arguments of a call, one sentence a fault, in the order of their paths; () where valid.

    Args:
        arguments: JSON values; a tuple counts as a list. Anything else, NaN, and more than `VALUES` values or `DEPTH`
            levels are faults.
        parameters: of the tool, in any dialect.
    Raises:
        SampleInvalid: a schema that `json_schema` refuses.
    """
    validator = _validator(_canonical(parameters))
    broken = _not_json(arguments)
    if broken is not None:
        return (broken,)
    found = sorted(
        validator.iter_errors(arguments), key=lambda error: (list(map(str, error.absolute_path)), error.message)
    )
    return tuple([_sentence(error) for error in found])


def check_tools(tools: Sequence[Tool], *, dotted: bool = False) -> tuple[Problem, ...]:
    """What is wrong with tools that are offered together: names given twice, illegal names, schemas that are none.

    Args:
        dotted: whether parts of a name may be joined by dots, as BFCL's are.
    """
    found: list[Problem] = []
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if tool.name in seen:
            found.append(Problem(where, f"the name {tool.name!r} is given twice", "a call would have two meanings"))
        seen.add(tool.name)
        parts = tool.name.split(".") if dotted else [tool.name]
        if len(tool.name) > 64 or not all(LEGAL_NAME.fullmatch(part) for part in parts):
            hint = "use at most 64 letters, digits, _ and -, no digit first"
            found.append(Problem(where, f"{tool.name[:80]!r} is no legal name", hint))
        try:
            json_schema(tool.parameters)
        except SampleInvalid as error:
            found.append(Problem(f"{where}.parameters", str(error)))
    return tuple(found)


def _canonical(parameters: Mapping[str, Any]) -> str:
    try:
        return canonical_json(dict(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("a schema that is no JSON", value=str(error), expected="JSON values") from error


@lru_cache(2048)
def _validator(text: str) -> Any:
    """What checks arguments against the schema with this text; made once."""
    import jsonschema

    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, (list, tuple)),
            "object": lambda _, value: isinstance(value, Mapping),
        }
    )
    made = jsonschema.validators.extend(base, {"pattern": _pattern, "uniqueItems": _unique}, type_checker=kinds)
    return made(json_schema(json.loads(text)))


def _pattern(validator: Any, pattern: str, value: object, _: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not matcher(pattern)(value.encode("utf-8", "replace").decode()):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _unique(validator: Any, unique: bool, value: object, _: object) -> Iterator[Any]:
    """By sorting keys: comparing every pair takes hours for what a model can write in seconds."""
    from jsonschema import ValidationError

    if (
        unique
        and isinstance(value, (list, tuple))
        and len({canonical_json(_numbered(one)) for one in value}) < len(value)
    ):
        yield ValidationError("a value is given twice in a list of different ones")


def _numbered(value: object) -> object:
    """Equal numbers get one form: JSON knows one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _numbered(one) for name, one in value.items()}
    return [_numbered(one) for one in value] if isinstance(value, (list, tuple)) else value


def _not_json(arguments: object) -> str | None:
    """Why arguments are no JSON values of a sensible size, or None."""
    waiting: list[tuple[object, int]] = [(arguments, 0)]
    if not isinstance(arguments, Mapping):
        return f"the arguments are {type(arguments).__name__}, not an object"
    for seen in range(VALUES + 1):
        if not waiting:
            return None
        value, level = waiting.pop()
        if seen == VALUES or level > DEPTH:
            break
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                return "an object has a key that is no text"
            waiting += [(one, level + 1) for one in value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += [(one, level + 1) for one in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value!r} is no number of JSON"
        elif isinstance(value, int) and value.bit_length() > 1000:
            return "a whole number is too large"
        elif value is not None and not isinstance(value, (str, int, float)):
            return f"a value is {type(value).__name__}, which JSON does not have"
    return f"the arguments have more than {VALUES} values or {DEPTH} levels"


def _sentence(error: Any) -> str:
    where = ".".join(map(str, error.absolute_path))
    text = f"{where}: {error.message}" if where else str(error.message)
    return text if len(text) <= 300 else text[:297] + "..."

"""Typed tools: a tool is a pure function (state, arguments) -> (state, result), with a name and typed arguments.

This module does not handle text: a `Toolbox` takes `messages.Call`s, so the same tools are played as text in a
world, are listed and called over MCP, and are passed to function-calling models as JSON schemas. States are
immutable values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from evolvent.errors import InvalidAction
from evolvent.messages import Call, Tool
from evolvent.trajectory import Json, JsonObject

__all__ = [
    "ANY",
    "CHECK",
    "FINISH",
    "UNKNOWN_TOOL",
    "Argument",
    "Result",
    "ToolSpec",
    "Toolbox",
    "build_tool",
    "parse_argument",
]

State: TypeAlias = Any
"""The state of the tools of one world: each world has its own class."""
Run = Callable[[State, JsonObject], tuple[State, Json]]

ANY = "any"
"""The type of an argument that may be a string, a number, a boolean or an array."""
CHECK = "check_valid_actions"
FINISH = "finish"
UNKNOWN_TOOL = "there is no tool of that name"

_MAX_NUMBER = 10**18
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_SCHEMAS: Mapping[str, Json] = {
    "array": {"type": "array"},
    ANY: {"type": ["string", "number", "boolean", "array"]},
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool.

    Args:
        name: as in a call.
        type: "string", "integer", "number", "boolean", "array", or `ANY`.
        required: whether a call must contain it.
    """

    name: str
    type: str
    required: bool = True


def parse_argument(text: str) -> Argument:
    """Parses an argument in short form, `name: type`, or `name?: type` if it is optional."""
    name, _, kind = text.partition(":")
    return Argument(name.strip().removesuffix("?"), kind.strip(), not name.strip().endswith("?"))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call: a JSON value, or a sentence that states why the call failed; then the state is
    unchanged.
    """

    value: Json
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool.

    Args:
        name: as in a call.
        arguments: in the order of the short text form.
        description: one sentence for a model that may call it.
        run: the function; it receives checked arguments and raises InvalidAction with a sentence if it fails.
    """

    name: str
    arguments: tuple[Argument, ...]
    description: str
    run: Run

    @property
    def signature(self) -> str:
        """Returns `name(argument, argument)`."""
        return f"{self.name}({', '.join(argument.name for argument in self.arguments)})"

    @property
    def usage(self) -> str:
        """Returns the reply to a call with missing, unknown or ill-typed arguments; at most 16 words and marks."""
        arguments_text = " , ".join(f"{argument.name} {argument.type}" for argument in self.arguments)
        return f"expected {self.name} {arguments_text}" if arguments_text else f"expected {self.name} alone"

    def as_tool(self) -> Tool:
        """Returns the tool with the JSON schema of its arguments."""
        properties = {
            argument.name: _SCHEMAS.get(argument.type, {"type": argument.type}) for argument in self.arguments
        }
        required = [argument.name for argument in self.arguments if argument.required]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return Tool(self.name, self.description, schema)

    def check_arguments(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Returns the arguments with their types; raises InvalidAction if one is missing, unknown or ill-typed.

        Numbers and booleans written as text are converted ("7" is 7, "false" is False); None counts as omitted.
        """
        remaining = dict(arguments)
        checked: dict[str, Any] = {}
        for argument in self.arguments:
            value = remaining.pop(argument.name, None)
            if value is None and not argument.required:
                continue
            checked[argument.name] = _convert(argument.type, value)
            if checked[argument.name] is None:
                raise InvalidAction(self.usage, value=value)
        if remaining:
            raise InvalidAction(self.usage, value=sorted(map(str, remaining)))
        return checked


def build_tool(run: Run, signature: str, description: str) -> ToolSpec:
    """Builds a tool from its signature in short form: `name(argument: type, other?: type)`."""
    name, _, arguments_text = signature.removesuffix(")").partition("(")
    arguments = tuple(parse_argument(part) for part in arguments_text.split(",") if part.strip())
    return ToolSpec(name, arguments, description, run)


def _convert(kind: str, value: Any) -> Any:
    """Converts a value to a type, or returns None."""
    reader = _READERS.get(kind)
    return reader(value) if reader else None


def _to_boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _to_integer(value: Any) -> int | None:
    number = _to_number(value)
    return int(number) if number is not None and number == int(number) else None


def _to_number(value: Any) -> float | int | None:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if _INTEGER.fullmatch(value) else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -_MAX_NUMBER < value < _MAX_NUMBER else None  # false for NaN


def _to_array(value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, (list, tuple)) and _is_plain(value) else None


def _to_any(value: Any) -> Any:
    return value if isinstance(value, (str, bool)) or _to_number(value) is not None else _to_array(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Returns whether a value is text, a finite number, a boolean or an array of these, up to three levels deep."""
    if type(value) is str or (type(value) is int and -_MAX_NUMBER < value < _MAX_NUMBER):
        return True
    if isinstance(value, (list, tuple)):
        return depth < 3 and all(_is_plain(element, depth + 1) for element in value)
    return value is None or isinstance(value, (str, bool)) or _to_number(value) is not None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "string": lambda value: value if isinstance(value, str) else None,
    "boolean": _to_boolean,
    "integer": _to_integer,
    "number": _to_number,
    "array": _to_array,
    ANY: _to_any,
}


class Toolbox:
    """The tools of one episode, without any text: list them, call them.

    Args:
        specs: the tools; their names differ.
        start: the initial state of the episode.
    """

    def __init__(self, specs: Sequence[ToolSpec], start: State = None) -> None:
        self.specs: Mapping[str, ToolSpec] = {spec.name: spec for spec in specs}
        self.start = start
        self.tools: tuple[Tool, ...] = tuple(spec.as_tool() for spec in specs)

    def with_start(self, start: State) -> Toolbox:
        """Returns the same tools with the initial state of another episode."""
        toolbox = copy(self)
        toolbox.start = start
        return toolbox

    def call(self, state: State, call: Call) -> tuple[State, Result]:
        """Returns the state after a call and its result. A failed call leaves the state unchanged; it never raises."""
        spec = self.specs.get(call.name)
        if spec is None:
            return state, Result(UNKNOWN_TOOL, failed=True)
        try:
            next_state, value = spec.run(state, spec.check_arguments(call.arguments))
        except InvalidAction as error:
            return state, Result(error.what, failed=True)
        return next_state, Result(value)

"""Common base of the eight state classes of BFCL's multi-turn part: a state of plain JSON and a table of calls.

A call is looked up in the table of its class and bound to the parameters that stand there. No text is evaluated, and no
attribute is reached by a name that came from outside.
"""

from __future__ import annotations

import copy
import json
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Api", "Operation", "index_by_name", "operation", "refuse", "render_result", "to_integer"]

_UNUSABLE = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What arguments of another kind than a call works with lead to: a text where a number is needed, an unknown door."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that a state class answers.

    Args:
        name: as the function documents write it.
        required, optional: its parameters, in the order of the documents.
        run: gets the object and the values of the parameters, optional ones by keyword.
    """

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    run: Callable[..., Json]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Returns all parameters, in order: arguments without a name belong to them."""
        return self.required + self.optional

    def bind(self, arguments: Mapping[str, Json]) -> tuple[list[Json], dict[str, Json]]:
        """Returns the values of the required parameters in order, and the optional values that are present.

        Raises:
            InvalidAction: a parameter that does not exist, or one that is missing.
        """
        unknown_names = [name for name in arguments if name not in self.parameters]
        missing = [name for name in self.required if name not in arguments]
        if unknown_names:
            raise InvalidAction(f"{self.name} has no parameter {', '.join(unknown_names)}")
        if missing:
            raise InvalidAction(f"{self.name} needs {', '.join(missing)}")
        optional_values = {_to_snake_case(name): arguments[name] for name in self.optional if name in arguments}
        return [arguments[name] for name in self.required], optional_values


def _to_snake_case(name: str) -> str:
    """Converts the name of an optional parameter to its keyword: `fanSpeed` is `fan_speed`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def operation(form: str, run: Callable[..., Json]) -> Operation:
    """Builds an operation from the form `name(parameter, other, optional=)`."""
    name, _, parameter_text = form.rstrip(")").partition("(")
    names = [part.strip() for part in parameter_text.split(",") if part.strip()]
    required = tuple(name_part for name_part in names if not name_part.endswith("="))
    return Operation(name, required, tuple(name_part[:-1] for name_part in names if name_part.endswith("=")), run)


def refuse(reason: str, **more: Json) -> dict[str, Json]:
    """Builds the result of a call that is impossible in this state, in the form that the documents promise."""
    return {**more, "error": reason}


def render_result(value: Json) -> str:
    """Renders a result as text: text as it is, an object as JSON, anything else as Python shows it (so `None`, for
    nothing).
    """
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, dict) else str(value)


class Api(ABC):
    """One object of a state class.

    Args:
        config: the initial state according to the item; missing values begin as `defaults` say.
        padding: lengthens results, in items of long context.
    Attributes:
        state: all compared values, as plain JSON.
    Raises:
        SampleInvalid: an initial state that is no object.

    Subclasses name the class of the data set (`wire`), the file of its function documents, and their operations.
    """

    wire: ClassVar[str]
    document: ClassVar[str]
    defaults: ClassVar[JsonObject] = {}
    seed: ClassVar[int] = 0
    operations: ClassVar[Mapping[str, Operation]]

    def __init__(self, config: JsonObject, padding: Padding | None = None) -> None:
        if not isinstance(config, Mapping):
            raise SampleInvalid(
                f"the initial state of {self.wire} is not an object", value=config, expected="an object"
            )
        self.state: dict[str, Any] = {
            name: copy.deepcopy(config.get(name, default)) for name, default in self.defaults.items()
        }
        self._padding = padding
        # Later calls of an item name numbers that earlier ones drew, so the generator and its seed are the data set's.
        self._random = Random(config.get("random_seed", self.seed))

    def answer(self, call: Call) -> str:
        """Executes a call and returns its result as text (see `render_result`).

        Raises:
            InvalidAction: no such call, parameters that do not fit, or a call that cannot be done with these values.
        """
        operation = self.operations.get(call.name)
        if operation is None:
            raise InvalidAction(f"{self.wire} has no call {call.name}")
        values, optional_values = operation.bind(call.arguments)
        try:
            return render_result(operation.run(self, *copy.deepcopy(values), **copy.deepcopy(optional_values)))
        except _UNUSABLE as error:
            raise InvalidAction(f"{call.name} cannot be done with these values") from error


def index_by_name(*operations: Operation) -> Mapping[str, Operation]:
    """Returns operations by name."""
    return {operation.name: operation for operation in operations}


def to_integer(value: Json) -> int | None:
    """Converts a number without a fraction to an integer, anything else to None; objects are looked up by it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None

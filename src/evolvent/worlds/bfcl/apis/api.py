"""What the eight state classes of BFCL's multi-turn part have in common: a state of plain JSON and a table of calls.

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
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Api", "Operation", "operation", "refusal", "rendered", "table", "whole"]

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
        """All parameters, in order: what arguments without a name belong to."""
        return self.required + self.optional

    def bound(self, arguments: Mapping[str, Json]) -> tuple[list[Json], dict[str, Json]]:
        """The values of the required parameters in order, and the optional ones that are given.

        Raises:
            InvalidAction: a parameter that does not exist, or one that is missing.
        """
        strange = [name for name in arguments if name not in self.parameters]
        missing = [name for name in self.required if name not in arguments]
        if strange:
            raise InvalidAction(f"{self.name} has no parameter {', '.join(strange)}")
        if missing:
            raise InvalidAction(f"{self.name} needs {', '.join(missing)}")
        given = {_python(name): arguments[name] for name in self.optional if name in arguments}
        return [arguments[name] for name in self.required], given


def _python(name: str) -> str:
    """The keyword of an optional parameter: `fanSpeed` is `fan_speed`."""
    return "".join(f"_{mark.lower()}" if mark.isupper() else mark for mark in name)


def operation(form: str, run: Callable[..., Json]) -> Operation:
    """An operation written as `name(parameter, other, optional=)`."""
    name, _, rest = form.rstrip(")").partition("(")
    names = [part.strip() for part in rest.split(",") if part.strip()]
    required = tuple(one for one in names if not one.endswith("="))
    return Operation(name, required, tuple(one[:-1] for one in names if one.endswith("=")), run)


def refusal(why: str, **more: Json) -> dict[str, Json]:
    """The result of a call that cannot be done in this state, in the form that the documents promise."""
    return {**more, "error": why}


def rendered(value: Json) -> str:
    """A result as text: text as it is, an object as JSON, the rest as Python shows it (so `None`, for nothing)."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, dict) else str(value)


class Api(ABC):
    """One object of a state class.

    Args:
        config: what the item says about the beginning; whatever it leaves out begins as `defaults` say.
        padding: what makes results long, in items of long context.
    Attributes:
        state: everything that is compared, as plain JSON.
    Raises:
        SampleInvalid: a beginning that is no object.

    Subclasses name the class of the data set (`wire`), the file of its function documents, and their operations.
    """

    wire: ClassVar[str]
    document: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}
    seed: ClassVar[int] = 0
    operations: ClassVar[Mapping[str, Operation]]

    def __init__(self, config: Mapping[str, Any], padding: Padding | None = None) -> None:
        if not isinstance(config, Mapping):
            raise SampleInvalid(f"the beginning of {self.wire} is no object", value=config, expected="an object")
        self.state: dict[str, Any] = {
            name: copy.deepcopy(config.get(name, default)) for name, default in self.defaults.items()
        }
        self._padding = padding
        # Later calls of an item name numbers that earlier ones drew, so the generator and its seed are the data set's.
        self._random = Random(config.get("random_seed", self.seed))

    def answer(self, call: Call) -> str:
        """Do what a call says, and return its result as text (see `rendered`).

        Raises:
            InvalidAction: no such call, parameters that do not fit, or a call that cannot be done with these values.
        """
        known = self.operations.get(call.name)
        if known is None:
            raise InvalidAction(f"{self.wire} has no call {call.name}")
        values, given = known.bound(call.arguments)
        try:
            return rendered(known.run(self, *copy.deepcopy(values), **copy.deepcopy(given)))
        except _UNUSABLE as error:
            raise InvalidAction(f"{call.name} cannot be done with these values") from error


def table(*operations: Operation) -> Mapping[str, Operation]:
    """Operations by name."""
    return {one.name: one for one in operations}


def whole(value: Json) -> int | None:
    """A number without a fraction as an integer, None for anything else: what an object is looked up by."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None

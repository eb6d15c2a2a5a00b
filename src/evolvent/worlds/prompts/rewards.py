"""Rewards as functions: `def reward(completion, **row) -> float`, sync or async, with columns passed by name.

The parameter `completion` gets the reply's text; without a parameter of that name the first one does, unless it is
one of these three: `prompt` gets the prompt's text, `messages` the conversation with the reply, `row` the whole row.
Every other parameter gets the column of its name, and `**kwargs` all columns. A function with a parameter `completions`
is called as TRL calls it, with lists of one, and returns a list of one. Functions are called from several threads at
once.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from numbers import Real
from typing import TypeAlias, cast

from evolvent.errors import ConfigError, EvolventError, Problem, WorldError, boundary, find_location, shorten_path
from evolvent.trajectory import Json

__all__ = ["Completion", "Reward", "RewardFunction", "Rewards", "await_result", "find_name", "make_rewards"]

RewardFunction: TypeAlias = Callable[..., object]
"""A function that returns the reward of a completion, or an awaitable of it."""
Rewards: TypeAlias = "RewardFunction | Reward | Sequence[RewardFunction | Reward | tuple[RewardFunction, float]]"
"""One reward or several; a pair has a weight."""
_RESERVED = ("completion", "prompt", "messages", "row")
_BATCH_RESERVED = ("completions", "prompts")


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply, as rewards see it.

    Args:
        text: the last reply.
        prompt: the prompt as text.
        messages: the conversation in OpenAI's form, the reply and calls of tools included.
        is_chat: whether the row's prompt is a list of messages.
    """

    text: str
    prompt: str
    messages: Sequence[Mapping[str, Json]]
    is_chat: bool = False


class Reward:
    """A reward function with its name and weight.

    Args:
        function: the function, or any object that can be called.
        weight: factor of its value in the sum.
        name: its name in messages and records; None: the function's own.
    Raises:
        ConfigError: the value cannot be called, takes no completion, or the weight is not finite.
    """

    def __init__(self, function: RewardFunction, *, weight: float = 1.0, name: str | None = None) -> None:
        if not callable(function):
            raise ConfigError(
                "the reward cannot be called", value=repr(function)[:80], expected="def reward(completion, **row)"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError("the weight of a reward is not a number", value=weight, expected="a finite number")
        self.function, self.weight = function, float(weight)
        self.name = name or find_name(function)
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the signature of reward {self.name!r} cannot be read: {error}") from error
        named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names = [parameter.name for parameter in named]
        self.is_batched = "completions" in names and "completion" not in names
        takes_reply = self.is_batched or "completion" in names
        self._first = None if takes_reply or not named or named[0].name in _RESERVED else named[0]
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._optional = {parameter.name for parameter in named if parameter.default is not parameter.empty}
        reserved = (*_RESERVED, *(_BATCH_RESERVED if self.is_batched else ()))
        first_name = None if self._first is None else self._first.name
        self._reserved = [name for name in names if name in reserved and name != first_name]
        self._columns = [name for name in names if name not in reserved and name != first_name]
        positional = [p.name for p in named if p.kind is p.POSITIONAL_ONLY and p.name != first_name]
        has_reply = takes_reply or self._first is not None or "messages" in names or self._takes_all
        if positional or not has_reply:
            raise ConfigError(
                f"reward {self.name!r} {self.location} does not take a completion and columns by name",
                value=str(inspect.signature(function)),
                expected="def reward(completion, **row)",
            )

    @property
    def location(self) -> str:
        """Returns `at FILE:LINE` of the function, or an empty text where it is not known."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        code = code or getattr(type(self.function).__call__, "__code__", None)
        return "" if code is None else f"at {shorten_path(code.co_filename)}:{code.co_firstlineno}"

    def find_problem(self, columns: Collection[str]) -> Problem | None:
        """Returns the problem of a table that lacks columns which the function needs."""
        missing = [name for name in self._columns if name not in columns and name not in self._optional]
        if not missing:
            return None
        return Problem(
            f"reward {self.name!r} {self.location}".strip(),
            f"needs column {missing[0]!r}: got columns {', '.join(sorted(columns))}",
            "rename the column or the parameter, or give the parameter a default",
        )

    def find_ambiguity(self, columns: Collection[str]) -> str | None:
        """Returns a note where the parameter that receives the reply has the name of a column."""
        if self._first is None or self._first.name not in columns:
            return None
        name = self._first.name
        return f"parameter {name!r} of reward {self.name!r} is the reply, not the column; name it completion"

    def score(self, completion: Completion, row: Mapping[str, Json]) -> float:
        """Returns the reward of a completion, without its weight.

        Raises:
            WorldError: the function raised, or did not return a finite number; the message names file and line.
            EvolventError: an error of the library that the function passed on, such as a judge that does not answer.
        """
        positional, keywords = self._arguments(completion, row)
        try:
            with boundary(WorldError, f"reward {self.name!r} failed"):
                value = self.function(*positional, **keywords)
                if inspect.isawaitable(value):
                    value = await_result(value)
        except EvolventError as error:
            if error.__cause__ is None or type(error) is not WorldError:
                raise
            cause = error.__cause__
            place = find_location(cause)
            raise WorldError(
                f"reward {self.name!r} raised {type(cause).__name__}{f' at {place}' if place else ''}",
                value=str(cause) or None,
            ) from cause
        return self._check(value)

    def _arguments(self, completion: Completion, row: Mapping[str, Json]) -> tuple[list[object], dict[str, object]]:
        row = deepcopy(dict(row))  # a reward may change what it is given: other replies to the prompt have the same row
        given: dict[str, object] = {
            "completion": completion.text,
            "prompt": completion.prompt,
            "messages": deepcopy(list(completion.messages)),
            "row": row,
        }
        if self.is_batched:
            first = completion.messages if completion.is_chat else ()
            reply: object = [{"role": "assistant", "content": completion.text}] if first else completion.text
            given |= {"completions": reply, "prompts": row.get("prompt", completion.prompt)}
        keywords: dict[str, object] = dict(row) if self._takes_all else {}
        keywords = {name: value for name, value in keywords.items() if name not in given}
        keywords |= {name: row.get(name) for name in self._columns if name in row or name not in self._optional}
        keywords |= {name: given[name] for name in self._reserved}
        if self._takes_all:
            keywords |= {name: given[name] for name in ("prompt", *(_BATCH_RESERVED if self.is_batched else ()))}
        if self.is_batched:
            return [], {name: [value] for name, value in keywords.items()}
        if self._first is None:
            return [], {**keywords, "completion": completion.text} if self._takes_all else keywords
        keywords.pop(self._first.name, None)
        if self._first.kind is self._first.KEYWORD_ONLY:
            return [], {**keywords, self._first.name: completion.text}
        return [completion.text], keywords

    def _check(self, value: object) -> float:
        """Returns a reward as a number; raises WorldError for anything else."""
        expected = "a finite number"
        if self.is_batched:
            expected = "a list of one number, for the one completion that it was given"
            value = value.tolist() if hasattr(value, "tolist") else value  # numpy, torch
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 1:
                count = f"a list of {len(value)}" if isinstance(value, list | tuple) else _describe(value)
                raise self._wrong_value(count, expected)
            value = value[0]
        item = getattr(value, "item", None)
        if item is not None and getattr(value, "size", 1) != 0 and not isinstance(value, Real):  # numpy, torch
            with boundary(WorldError, f"reward {self.name!r} {self.location} returned an array, expected one number"):
                value = item()
        if not isinstance(value, Real | Decimal):
            raise self._wrong_value(_describe(value), expected)
        with boundary(WorldError, f"reward {self.name!r} {self.location} returned a number that is too large"):
            number = float(value)
        if not math.isfinite(number):
            raise self._wrong_value(str(number), expected)
        return number

    def _wrong_value(self, value: str, expected: str) -> WorldError:
        return WorldError(f"reward {self.name!r} {self.location} returned {value}", expected=expected)


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"the text {value[:40]!r}" if isinstance(value, str) else f"an object of type {type(value).__name__}"


def make_rewards(rewards: Rewards, weights: Sequence[float] | None = None) -> tuple[Reward, ...]:
    """Makes rewards of functions, `(function, weight)` pairs and rewards; names become unique.

    Args:
        rewards: one or several.
        weights: a weight for each; None: those of the pairs, or 1.
    Raises:
        ConfigError: no reward, or weights and rewards differ in number.

    >>> def short(completion):
    ...     return float(len(completion) < 100)
    >>> [(reward.name, reward.weight) for reward in make_rewards([short, (short, 0.5)])]
    [('short-1', 1.0), ('short-2', 0.5)]
    """
    items = [rewards] if _is_pair(rewards) or not isinstance(rewards, list | tuple) else list(rewards)
    if not items:
        raise ConfigError("rewards is empty", value="no function", expected="at least one reward function")
    if weights is not None and len(weights) != len(items):
        raise ConfigError("weights do not fit the rewards", value=len(weights), expected=f"{len(items)} weights")
    made: list[Reward] = []
    for number, item in enumerate(items):
        value, factor = cast("tuple[object, float]", item) if _is_pair(item) else (item, 1.0)
        reward = value if isinstance(value, Reward) else Reward(cast("RewardFunction", value))
        weight = reward.weight * factor if weights is None else weights[number]
        made.append(Reward(reward.function, weight=weight, name=reward.name))
    names = [reward.name for reward in made]
    for number, reward in enumerate(made):
        if names.count(reward.name) > 1:
            made[number] = Reward(reward.function, weight=reward.weight, name=f"{reward.name}-{number + 1}")
    return tuple(made)


def find_name(function: Callable[..., object]) -> str:
    """Returns the name of a function, of the function behind a partial, or of the class of an object."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int | float)


def await_result(value: Awaitable[object]) -> object:
    """Waits for an awaitable on the one event loop that all rewards and tools share, so that clients can be reused."""

    async def wait() -> object:
        return await value

    return asyncio.run_coroutine_threadsafe(wait(), _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop

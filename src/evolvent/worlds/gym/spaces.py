"""Texts of Gymnasium's spaces: observations told in words and numbers, and actions read back from text.

Numbers have a fixed number of decimals and groups of three digits, so that a vocabulary of whole words holds them all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, InvalidAction
from evolvent.worlds.teams.parallel import Space

__all__ = ["ActionText", "ObservationText", "space_kind", "split_words"]

_MAX_NUMBERS = 400  # numbers of an observation that can be told
_MAX_ACTION_NUMBERS = 32
_MAX_LISTED = 64  # actions that are listed one by one
_MAX_CLOSED_DECIMALS = 3  # more would take a vocabulary of more than thousands of words
_NUMBER = re.compile(r"[+-]?\s*(?:\d+(?:\s*\.\s*\d*)?|\.\s*\d+)(?:[eE][+-]?\d+)?")
_SEPARATORS = re.compile(r"[\s,;()\[\]]*")
_PIECES = re.compile(r"\w+|[^\w\s]")


def space_kind(space: Space) -> str:
    """Returns the kind of a space by the name of the nearest class of Gymnasium; a space of texts is "Text"."""
    names = [kind.__name__ for kind in type(space).__mro__ if kind.__module__.startswith("gymnasium.spaces")]
    return "Text" if getattr(space.dtype, "kind", "") == "U" else next(iter(names), type(space).__name__)


def split_words(text: str) -> list[str]:
    """Returns the words and signs of a text, as a vocabulary of whole words holds them."""
    return _PIECES.findall(text)


def format_number(value: float, decimals: int) -> str:
    """Formats a number with fixed decimals and groups of three digits; zero has no sign.

    >>> format_number(-1234.5678, 2), format_number(-0.0001, 3)
    ('-1,234.57', '0.000')
    """
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def _number_words(decimals: int) -> list[str]:
    """Returns the words of all numbers with so many decimals."""
    number_words = [str(number) for number in range(1000)] + [f"{number:03}" for number in range(100)]
    number_words += [f"{number:0{decimals}}" for number in range(10**decimals)] if decimals else []
    return [*dict.fromkeys(number_words), "-", ",", ".", "nan", "inf"]


class ObservationText:
    """Tells values of an observation space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Tuple or Dict of such spaces.
        names: of the numbers, or of the parts of a tuple; empty: they are told without names.
        decimals: digits after the decimal point.
    Raises:
        ConfigError: a space that cannot be told, or names that do not fit; the message says which.
    """

    def __init__(self, space: Space, names: Sequence[str] = (), *, decimals: int = 3) -> None:
        self.space, self.names, self.decimals = space, tuple(names), decimals
        _check_observation_space(space)
        expected = _count_parts(space)
        if self.names and len(self.names) != expected:
            raise ConfigError(
                "the number of names does not fit the observation space", value=len(names), expected=expected
            )

    def tell(self, value: object) -> str:
        """Returns the text of an observation."""
        return self._tell(self.space, value, self.names)

    def _tell(self, space: Space, value: Any, names: Sequence[str]) -> str:
        kind = space_kind(space)
        if kind == "Text":
            return str(value)
        if kind in ("Tuple", "Dict"):
            keys = list(_named_parts(space))
            items = [value[key] for key, _ in keys]
            labels = names or [f"part {key + 1}" if kind == "Tuple" else str(key) for key, _ in keys]
            texts = [self._tell(part, item, ()) for (_, part), item in zip(keys, items, strict=True)]
            pairs = [
                f"{label}: {text}" if " " in text else f"{label} {text}"
                for label, text in zip(labels, texts, strict=True)
            ]
            return ("\n" if any(" " in text for text in texts) else "; ").join(pairs)
        array = np.asarray(value)
        numbers = [self._format(number) for number in array.reshape(-1)]
        if names:
            return "; ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
        width = array.shape[-1] if array.ndim > 1 else len(numbers)
        width = width * array.shape[-2] if array.ndim > 2 else width
        rows = [" ".join(numbers[begin : begin + width]) for begin in range(0, len(numbers), max(1, width))]
        return "\n".join(rows)

    def _format(self, number: np.generic) -> str:
        if number.dtype.kind == "f":
            return format_number(float(number), self.decimals)
        return f"{int(number):,}"

    def words(self) -> list[str] | None:
        """Returns every word that an observation can hold, or None where texts are open."""
        if self.decimals > _MAX_CLOSED_DECIMALS or any(space_kind(part) == "Text" for part in _list_parts(self.space)):
            return None
        labels = [*self.names, *(str(key) for key in _list_keys(self.space))]
        label_words = [word for label in labels for word in split_words(label)]
        has_floats = any(np.issubdtype(part.dtype, np.floating) for part in _list_parts(self.space) if part.dtype)
        return [*label_words, "part", ":", ";", *_number_words(self.decimals if has_floats else 0)]


def _named_parts(space: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the key and the space of every part of a tuple or a dictionary."""
    yield from space.spaces.items() if space_kind(space) == "Dict" else enumerate(space.spaces)


def _list_parts(space: Any) -> Iterator[Any]:
    """Yields the innermost spaces."""
    if space_kind(space) not in ("Tuple", "Dict"):
        yield space
        return
    for _, part in _named_parts(space):
        yield from _list_parts(part)


def _list_keys(space: Any) -> Iterator[object]:
    """Yields the labels of the parts of tuples and dictionaries; parts of a tuple count from 1."""
    if space_kind(space) not in ("Tuple", "Dict"):
        return
    for key, part in _named_parts(space):
        yield key + 1 if space_kind(space) == "Tuple" else key
        yield from _list_keys(part)


def _count_parts(space: Any) -> int:
    if space_kind(space) in ("Tuple", "Dict"):
        return len(space.spaces)
    return 1 if space_kind(space) == "Discrete" else int(np.prod(space.shape or (1,)))


def _check_observation_space(space: Any) -> None:
    """Raises ConfigError for a space that cannot be told as text."""
    count = 0
    for part in _list_parts(space):
        kind = space_kind(part)
        if kind not in ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text"):
            expected = "Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Tuple or Dict of them"
            raise ConfigError(f"a {kind} observation cannot be told as text", value=str(part), expected=expected)
        count += 1 if kind == "Text" else _count_parts(part)
    if count > _MAX_NUMBERS:
        raise ConfigError(
            "the observation has too many numbers for a text",
            value=f"{count:,} in {space}",
            expected=f"at most {_MAX_NUMBERS}",
            hint="wrap the environment so that it gives a shorter observation",
        )


@dataclass(frozen=True)
class ActionText:
    """Reads and describes actions of a space: a Discrete, Box, MultiDiscrete, MultiBinary or Text space.

    Args:
        space: the action space.
        names: of the actions of a Discrete space; empty: they are numbers.
    Raises:
        ConfigError: a space whose actions cannot be written as text, or names that do not fit.
    """

    space: Space
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("Discrete", "Box", "MultiDiscrete", "MultiBinary", "Text"):
            expected = "Discrete, Box, MultiDiscrete, MultiBinary or Text"
            raise ConfigError(
                f"a {self.kind} action cannot be written as text", value=str(self.space), expected=expected
            )
        if self.kind in ("Box", "MultiDiscrete", "MultiBinary") and self.size > _MAX_ACTION_NUMBERS:
            raise ConfigError(
                "an action has too many numbers for a text", value=self.size, expected=f"at most {_MAX_ACTION_NUMBERS}"
            )
        if self.names and (
            self.kind != "Discrete" or len(self.names) != self.space.n or len(set(self.names)) < len(self.names)
        ):
            expected = f"{self.space.n} different names" if self.kind == "Discrete" else f"none, for {self.space}"
            raise ConfigError(
                "the names of the actions do not fit the action space", value=self.names, expected=expected
            )

    @property
    def kind(self) -> str:
        """Returns the kind of the space."""
        return space_kind(self.space)

    @property
    def size(self) -> int:
        """Returns the number of numbers of an action."""
        return int(np.prod(self.space.shape or (1,)))

    @cached_property
    def _choices(self) -> list[tuple[int, ...]]:
        """Returns the sizes of the choices, as (start, count) of every part; empty for boxes and texts."""
        if self.kind == "Discrete":
            return [(int(self.space.start), int(self.space.n))]
        if self.kind == "MultiBinary":
            return [(0, 2)] * self.size
        if self.kind == "MultiDiscrete":
            starts = np.broadcast_to(np.asarray(getattr(self.space, "start", 0)), self.space.nvec.shape).reshape(-1)
            return [(int(start), int(count)) for start, count in zip(starts, self.space.nvec.reshape(-1), strict=True)]
        return []

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """Returns all actions as texts, where they are at most 64; else none."""
        if self.names:
            return self.names
        if not self._choices or math.prod(count for _, count in self._choices) > _MAX_LISTED:
            return ()
        ranges = [range(start, start + count) for start, count in self._choices]
        return tuple(" ".join(map(str, numbers)) for numbers in product(*ranges))

    def describe(self) -> str:
        """Returns a sentence that says how an action is written."""
        if self.kind == "Text":
            return f"Reply with a text of {self.space.min_length} to {self.space.max_length} characters."
        if self.kind == "Box":
            ends = list(zip(self._low, self._high, strict=True))
            noun = "a number" if self.size == 1 else f"{self.size} numbers separated by spaces, each"
            if len(set(ends)) == 1:
                return f"Reply with {noun} {_describe_range(*ends[0])}."
            parts = ", ".join(f"number {index + 1} {_describe_range(*end)}" for index, end in enumerate(ends))
            return f"Reply with {self.size} numbers separated by spaces: {parts}."
        if self.kind == "Discrete":
            start, count = self._choices[0]
            choices = ", ".join(self.names) or f"a number from {start} to {start + count - 1}"
            return f"Reply with one action: {choices}."
        parts = ", ".join(f"number {i + 1} from {a} to {a + n - 1}" for i, (a, n) in enumerate(self._choices))
        return f"Reply with {self.size} whole numbers separated by spaces: {parts}."

    def words(self) -> list[str] | None:
        """Returns every word that an action can hold, or None where it is a text."""
        if self.kind == "Text":
            return None
        numbers = {str(number) for start, count in self._choices for number in range(start, start + count)}
        vocabulary = {word for name in (*self.names, *numbers) for word in split_words(name)}
        return sorted(vocabulary) if self.kind != "Box" else _number_words(_MAX_CLOSED_DECIMALS)

    @property
    def _low(self) -> list[float]:
        return [float(end) for end in np.asarray(self.space.low).reshape(-1)]

    @property
    def _high(self) -> list[float]:
        return [float(end) for end in np.asarray(self.space.high).reshape(-1)]

    def parse(self, text: str) -> object:
        """Returns the action of a text; numbers may be separated by spaces or commas, and stand in brackets.

        Raises:
            InvalidAction: a text that is not an action; the message says what one is.
        """
        text = text.strip()
        if self.kind == "Text":
            if not self.space.contains(text):
                raise InvalidAction("not a text of the action space", value=text, expected=self.describe())
            return text
        if self.names:
            name = " ".join(text.split()).lower()
            for index, own_name in enumerate(self.names):
                if own_name.lower() == name:
                    return int(self.space.start) + index
        numbers = _read_numbers(text)
        if numbers is None or len(numbers) != self.size:
            raise InvalidAction("an unknown action", value=text, expected=self.describe())
        if self.kind == "Box":
            return self._to_box(numbers)
        return self._to_choices(numbers)

    def _to_choices(self, numbers: Sequence[float]) -> Any:
        for position, (number, (start, count)) in enumerate(zip(numbers, self._choices, strict=True)):
            if number != int(number) or not start <= number < start + count:
                expected = f"a whole number from {start} to {start + count - 1}"
                raise InvalidAction(f"number {position + 1} is out of range", value=f"{number:g}", expected=expected)
        if self.kind == "Discrete":
            return int(numbers[0])
        return np.array(numbers, dtype=self.space.dtype).reshape(self.space.shape)

    def _to_box(self, numbers: Sequence[float]) -> NDArray[Any]:
        dtype = self.space.dtype
        for position, (number, low, high) in enumerate(zip(numbers, self._low, self._high, strict=True)):
            is_whole = dtype.kind == "f" or number == int(number)
            if not is_whole or not low - 1e-6 * abs(low) <= number <= high + 1e-6 * abs(high):
                expected = f"a {'' if dtype.kind == 'f' else 'whole '}number {_describe_range(low, high)}"
                raise InvalidAction(f"number {position + 1} is out of range", value=f"{number:g}", expected=expected)
        action = np.array(numbers).reshape(self.space.shape).astype(dtype)
        clipped: NDArray[Any] = np.clip(action, self.space.low, self.space.high).astype(dtype)
        return clipped


def _describe_range(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f"between {low:g} and {high:g}"
    if math.isfinite(low):
        return f"of at least {low:g}"
    return f"of at most {high:g}" if math.isfinite(high) else "of any size"


def _read_numbers(text: str) -> list[float] | None:
    """Reads all numbers of a text; None where it holds anything else.

    >>> _read_numbers("[0.5, - 1 . 25]"), _read_numbers("push 2")
    ([0.5, -1.25], None)
    """
    if not _SEPARATORS.fullmatch(_NUMBER.sub(" ", text)):
        return None
    numbers = [float("".join(match.split())) for match in _NUMBER.findall(text)]
    return numbers if all(map(math.isfinite, numbers)) else None

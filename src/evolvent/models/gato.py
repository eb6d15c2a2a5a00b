"""One vocabulary for text, choices and numbers: the tokens of a generalist agent.

"A Generalist Agent" (Gato, arXiv 2205.06175), section 2.1. Text has the tokens 0..31999. A number x is squeezed by
`sign(x) log(100 |x| + 1) / log(100 * 256 + 1)`, cut to -1..1 and put into one of 1,024 even bins, tokens 32000..33023;
an action that lies in -1..1 already is not squeezed. A discrete choice is its own number, 0..1023. A step is the parts
of its observation, a separator, and the parts of its action; only text and actions are learned. (The published weights
are not open; the constants 100, 256 and 1,024 are those that rebuilds agree on.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import SampleInvalid

__all__ = [
    "BINS",
    "NUMBERS",
    "SEPARATOR",
    "TEXT",
    "VOCABULARY",
    "Field",
    "GatoStep",
    "choices",
    "decoded",
    "numbers",
    "squeezed",
    "step_tokens",
    "stretched",
    "texts",
]

TEXT = 32_000
BINS = 1024
NUMBERS = TEXT  # the token of the first bin
SEPARATOR = TEXT + BINS
VOCABULARY = SEPARATOR + 1
_MU, _LARGEST = 100.0, 256.0
_WHOLE = np.log(_MU * _LARGEST + 1.0)

Tokens = NDArray[np.int64]


def squeezed(values: ArrayLike) -> NDArray[np.float64]:
    """`sign(x) log(100 |x| + 1) / log(100 * 256 + 1)`, cut to -1..1."""
    x = np.asarray(values, np.float64)
    found: NDArray[np.float64] = np.clip(np.sign(x) * np.log(_MU * np.abs(x) + 1.0) / _WHOLE, -1.0, 1.0)
    return found


def stretched(values: ArrayLike) -> NDArray[np.float64]:
    """The inverse of `squeezed` for values in -1..1: what lies beyond 256 stays lost."""
    x = np.asarray(values, np.float64)
    found: NDArray[np.float64] = np.sign(x) * (np.exp(np.abs(x) * _WHOLE) - 1.0) / _MU
    return found


def numbers(values: ArrayLike, *, action: bool = False) -> Tokens:
    """Tokens of numbers, of the same shape.

    Args:
        action: they lie in -1..1 and are not squeezed.
    Raises:
        SampleInvalid: a number that is not finite; an action outside -1..1.
    """
    x = np.asarray(values, np.float64)
    if not np.isfinite(x).all():
        raise SampleInvalid("a number without a token", value=float(x[~np.isfinite(x)].ravel()[0]), expected="finite")
    if action and (np.abs(x) > 1.0).any():
        raise SampleInvalid("an action outside its range", value=float(np.abs(x).max()), expected="-1..1")
    even = x if action else squeezed(x)
    return NUMBERS + np.minimum(((even + 1.0) / 2.0 * BINS).astype(np.int64), BINS - 1)


def decoded(tokens: ArrayLike, *, action: bool = False) -> NDArray[np.float64]:
    """The middles of the bins of number tokens; `action` as in `numbers`.

    Raises:
        SampleInvalid: a token of something else.
    """
    bins = np.asarray(tokens, np.int64) - NUMBERS
    odd = (bins < 0) | (bins >= BINS)
    if odd.any():
        raise SampleInvalid(
            "a token that is no number",
            value=int(bins[odd].ravel()[0]) + NUMBERS,
            expected=f"{NUMBERS}..{NUMBERS + BINS - 1}",
        )
    even = (bins + 0.5) / BINS * 2.0 - 1.0
    return even if action else stretched(even)


def choices(values: ArrayLike) -> Tokens:
    """Tokens of discrete choices; SampleInvalid outside 0..1023."""
    return _within(values, BINS, "a choice")


def texts(values: ArrayLike) -> Tokens:
    """Tokens of a text, as a tokenizer of at most 32,000 words made them; SampleInvalid outside 0..31999."""
    return _within(values, TEXT, "a word")


def _within(values: ArrayLike, size: int, what: str) -> Tokens:
    found = np.asarray(values, np.int64)
    odd = (found < 0) | (found >= size)
    if odd.any():
        raise SampleInvalid(f"{what} without a token", value=int(found[odd].ravel()[0]), expected=f"0..{size - 1}")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A part of an observation or action: words of a text, choices or numbers, in a fixed order."""

    kind: Literal["text", "choice", "number"]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class GatoStep:
    """A step as a model reads it: `tokens [T]`; `learned [T]` bool, those of texts and actions."""

    tokens: Tokens
    learned: NDArray[np.bool_]


def step_tokens(observation: tuple[Field, ...], action: Field) -> GatoStep:
    """The parts of the observation, a separator, the parts of the action.

    Raises:
        SampleInvalid: an action without a part, or a value that has no token.
    """
    if not action.values.size:
        raise SampleInvalid("an action of no parts", value=action.kind, expected="at least one")
    parts = [(_tokens(field, action=False), field.kind == "text") for field in observation]
    parts += [(np.array([SEPARATOR]), False), (_tokens(action, action=True), True)]
    return GatoStep(
        np.concatenate([tokens for tokens, _ in parts]),
        np.concatenate([np.full(len(tokens), learned) for tokens, learned in parts]),
    )


def _tokens(field: Field, *, action: bool) -> Tokens:
    values = field.values.ravel()
    if field.kind == "number":
        return numbers(values, action=action)
    return choices(values) if field.kind == "choice" else texts(values)

"""One vocabulary for text, choices and numbers: the tokens of a generalist agent.

"A Generalist Agent" (Gato, arXiv 2205.06175), section 2.1. Text has the tokens 0..31999. A number x is squeezed
by `sign(x) log(100 |x| + 1) / log(100 * 256 + 1)`, cut to -1..1 and put into one of 1,024 even bins, tokens
32000..33023; an action that lies in -1..1 already is not squeezed. A discrete choice is its own number,
0..1023. A step is the parts of its observation, a separator, and the parts of its action; only text and actions
are learned. (The published weights are not open; the constants 100, 256 and 1,024 are those that rebuilds agree
on.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import SampleInvalid
from evolvent.trajectory import Array

__all__ = [
    "BINS",
    "NUMBERS",
    "RETURNS",
    "RETURN_TOKENS",
    "SEPARATOR",
    "TEXT",
    "VOCABULARY",
    "Field",
    "GatoStep",
    "decode_numbers",
    "encode_choices",
    "encode_conditioned_step",
    "encode_numbers",
    "encode_step",
    "encode_words",
    "mu_law_decode",
    "mu_law_encode",
]

TEXT = 32_000
BINS = 1024
NUMBERS = TEXT  # the token of the first bin
SEPARATOR = TEXT + BINS
RETURN_TOKENS = 128
RETURNS = BINS - RETURN_TOKENS  # the token of the first bin of returns, among those of choices
VOCABULARY = SEPARATOR + 1
_MU, _LARGEST = 100.0, 256.0
_LOG_RANGE = np.log(_MU * _LARGEST + 1.0)

Tokens = NDArray[np.int64]


def mu_law_encode(values: ArrayLike) -> NDArray[np.float64]:
    """Computes `sign(x) log(100 |x| + 1) / log(100 * 256 + 1)`, clipped to -1..1."""
    x = np.asarray(values, np.float64)
    encoded: NDArray[np.float64] = np.clip(np.sign(x) * np.log(_MU * np.abs(x) + 1.0) / _LOG_RANGE, -1.0, 1.0)
    return encoded


def mu_law_decode(values: ArrayLike) -> NDArray[np.float64]:
    """Computes the inverse of `mu_law_encode` for values in -1..1: magnitudes beyond 256 stay lost."""
    x = np.asarray(values, np.float64)
    decoded: NDArray[np.float64] = np.sign(x) * (np.exp(np.abs(x) * _LOG_RANGE) - 1.0) / _MU
    return decoded


def encode_numbers(values: ArrayLike, *, action: bool = False) -> Tokens:
    """Converts numbers to tokens, of the same shape.

    Args:
        action: they lie in -1..1 and are not squeezed.
    Raises:
        SampleInvalid: a number that is not finite; an action outside -1..1.
    """
    x = np.asarray(values, np.float64)
    if not np.isfinite(x).all():
        raise SampleInvalid(
            "number cannot be tokenized", value=float(x[~np.isfinite(x)].ravel()[0]), expected="a finite number"
        )
    if action and (np.abs(x) > 1.0).any():
        raise SampleInvalid("action out of range", value=float(np.abs(x).max()), expected="-1..1")
    even = x if action else mu_law_encode(x)
    return NUMBERS + np.minimum(((even + 1.0) / 2.0 * BINS).astype(np.int64), BINS - 1)


def decode_numbers(tokens: ArrayLike, *, action: bool = False) -> NDArray[np.float64]:
    """Returns the middles of the bins of number tokens; `action` as in `encode_numbers`.

    Raises:
        SampleInvalid: a token of something else.
    """
    bins = np.asarray(tokens, np.int64) - NUMBERS
    invalid = (bins < 0) | (bins >= BINS)
    if invalid.any():
        raise SampleInvalid(
            "token does not encode a number",
            value=int(bins[invalid].ravel()[0]) + NUMBERS,
            expected=f"{NUMBERS}..{NUMBERS + BINS - 1}",
        )
    even = (bins + 0.5) / BINS * 2.0 - 1.0
    return even if action else mu_law_decode(even)


def encode_choices(values: ArrayLike) -> Tokens:
    """Converts discrete choices to tokens; raises SampleInvalid outside 0..1023."""
    return _check_range(values, BINS, "a choice")


def encode_words(values: ArrayLike) -> Tokens:
    """Checks the tokens of a text from a tokenizer of at most 32,000 words; raises SampleInvalid outside 0..31999."""
    return _check_range(values, TEXT, "a word")


def _check_range(values: ArrayLike, size: int, noun: str) -> Tokens:
    token_ids = np.asarray(values, np.int64)
    invalid = (token_ids < 0) | (token_ids >= size)
    if invalid.any():
        raise SampleInvalid(f"{noun} out of range", value=int(token_ids[invalid].ravel()[0]), expected=f"0..{size - 1}")
    return token_ids


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A part of an observation or action: words of a text, choices or numbers, in a fixed order."""

    kind: Literal["text", "choice", "number"]
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class GatoStep:
    """A step in the model's form: `tokens [T]`; `learned [T]` bool, those of texts and actions."""

    tokens: Tokens
    learned: NDArray[np.bool_]


def encode_step(observation: tuple[Field, ...], action: Field) -> GatoStep:
    """Joins the parts of the observation, a separator, and the parts of the action.

    Raises:
        SampleInvalid: an action without a part, or a value that has no token.
    """
    if not action.values.size:
        raise SampleInvalid("the action has no parts", value=action.kind, expected="at least one part")
    parts = [(_encode_field(field, action=False), field.kind == "text") for field in observation]
    parts += [(np.array([SEPARATOR]), False), (_encode_field(action, action=True), True)]
    return GatoStep(
        np.concatenate([tokens for tokens, _ in parts]),
        np.concatenate([np.full(len(tokens), learned) for tokens, learned in parts]),
    )


def encode_conditioned_step(observation: tuple[Field, ...], action: Field, *, return_bin: int) -> GatoStep:
    """Joins a step whose action follows the bin of its return-to-go, which is learned as the action is.

    Multi-Game Decision Transformer (arXiv 2205.15241) predicts the return of the data, then the action for it.

    Raises:
        SampleInvalid: a bin outside 0..127, or a choice whose token a return has; also those of `encode_step`.
    """
    if not 0 <= return_bin < RETURN_TOKENS:
        raise SampleInvalid("bin of a return out of range", value=return_bin, expected=f"0..{RETURN_TOKENS - 1}")
    if action.kind == "choice" and action.values.size and int(action.values.max()) >= RETURNS:
        raise SampleInvalid("a choice out of range", value=int(action.values.max()), expected=f"0..{RETURNS - 1}")
    step = encode_step(observation, action)
    position = int(np.flatnonzero(step.tokens == SEPARATOR)[-1]) + 1
    return GatoStep(np.insert(step.tokens, position, RETURNS + return_bin), np.insert(step.learned, position, True))


def _encode_field(field: Field, *, action: bool) -> Tokens:
    values = field.values.ravel()
    if field.kind == "number":
        return encode_numbers(values, action=action)
    return encode_choices(values) if field.kind == "choice" else encode_words(values)

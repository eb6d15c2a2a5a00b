"""What evaluators share: numbers with intervals, an engine to ask, and bare text as tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Engine, Work
from evolvent.engine.driver import drive
from evolvent.errors import ConfigError, Problem
from evolvent.stats import Interval, paired
from evolvent.trajectory import sample_rng

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Evaluator",
    "Floats",
    "Measure",
    "asked",
    "bare_tokens",
    "check_lengths",
    "mean_measure",
    "rate_measure",
    "serving",
]

T = TypeVar("T")
Floats = NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95
_BLOCKS = 256  # groups of a bootstrap: more documents than that are drawn in blocks
_ALIVE = 512  # works that a driver keeps alive: more than any engine's rows


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of an evaluation, with its 95 % interval.

    Args:
        metric: what it is: "perplexity", "accuracy", "f1/yes", "success/crafting/evo", ...
        value: None where it is withheld (an episode could not be scored).
        low, high: the ends of the interval; None where there is too little data for one.
        n: how many items it rests on.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Something that is measured again and again, at every snapshot.

    Args:
        name: how its lines are found.
        measure: of a policy and an engine that serves it.
        settings: all that the numbers depend on, as text: an evaluation that was done is not done again.
    """

    name: str
    measure: Callable[[Policy, Engine], Sequence[Measure]]
    settings: str = ""


def serving(policy: Policy, engine: Engine | None) -> Engine:
    """The engine handed in, or a new one for this policy."""
    if engine is not None:
        return engine
    from evolvent.engine.fitting import engine_for

    return engine_for(policy)


def bare_tokens(policy: Policy, text: str) -> list[int]:
    """Bare text as tokens, after the token that begins a text where there is one; control tokens stay letters."""
    tokenizer = policy.tokenizer
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    if policy.dialect.name == "words":
        return [*begin, *policy.dialect.action(text)[:-1]]  # it names a word that it does not know
    return [*begin, *tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)]


def check_lengths(lengths: Sequence[int], context: int) -> None:
    """Refuse questions that do not fit, and data without any."""
    if not lengths:
        raise ConfigError("no question to ask", value=0, expected="one or more")
    long = [(at, length) for at, length in enumerate(lengths, 1) if length > context]
    if long:
        what = f"{len(long)} of {len(lengths)} do not fit: the first needs {long[0][1]} tokens of {context}"
        raise ConfigError([Problem(f"question {long[0][0]}", what, "shorten them, or use a longer context")])


def asked(works: Iterable[Work[T]], engine: Engine) -> list[T]:
    """Run works on an engine; their values in their order. The first error ends all."""
    found: dict[int, Any] = {}
    with closing(drive(works, engine, slots=_ALIVE)) as played:
        for done in played:
            if done.error is not None:
                raise done.error
            found[done.index] = done.value
    return [found[index] for index in range(len(found))]


def mean_measure(values: Floats, labels: NDArray[np.int64], metric: str, *, most: float = math.inf) -> Measure:
    """The mean of all values `[N]`, which lie between 0 and `most`.

    The interval draws whole groups again, which `labels` `[N]` name. More than 256 groups are drawn in blocks of some:
    it hardly changes, and its cost is bounded.
    """
    found = paired(
        values.tolist(),
        [0.0] * len(values),
        levels=[(labels % _BLOCKS).tolist()],
        resamples=RESAMPLES,
        level=LEVEL,
        rng=sample_rng("evaluators", metric),
    )
    single = len(np.unique(labels)) < 2  # one text: nothing to draw
    return rate_measure(metric, Interval(found.mean, math.nan, math.nan, found.n) if single else found.within(0, most))


def rate_measure(metric: str, found: Interval) -> Measure:
    """An interval as a measure; ends that are NaN are None."""
    low, high = (None if math.isnan(end) else end for end in (found.low, found.high))
    return Measure(metric, found.mean, low, high, found.n)

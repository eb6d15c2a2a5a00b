"""Shared parts of evaluators: numbers with intervals, an engine, and bare text as tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Engine, Job
from evolvent.engine.driver import run_jobs
from evolvent.errors import ConfigError, Problem
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import sample_rng

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Evaluator",
    "Floats",
    "Measure",
    "check_lengths",
    "engine_or_new",
    "mean_measure",
    "rate_measure",
    "run_all_jobs",
    "tokenize_bare",
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
        metric: Name: "perplexity", "accuracy", "f1/yes", "success/crafting/evo", ...
        value: None where it is withheld (an episode could not be scored).
        low, high: Ends of the interval; None where there is too little data.
        n: Number of items.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Evaluator:
    """An evaluation that runs at every snapshot.

    Args:
        name: Name of its lines in the results.
        measure: Computes the measures of a policy with an engine that serves it.
        settings: Everything that the numbers depend on, as text: a finished evaluation is not repeated.
    """

    name: str
    measure: Callable[[Policy, Engine], Sequence[Measure]]
    settings: str = ""


def engine_or_new(policy: Policy, engine: Engine | None) -> Engine:
    """Returns the given engine, or a new one for this policy."""
    if engine is not None:
        return engine
    from evolvent.engine.fitting import engine_for

    return engine_for(policy)


def tokenize_bare(policy: Policy, text: str) -> list[int]:
    """Tokenizes bare text, with the beginning-of-text token where there is one; control tokens stay letters."""
    tokenizer = policy.tokenizer
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    if policy.dialect.name == "words":
        return [*begin, *policy.dialect.action(text)[:-1]]  # it names a word that it does not know
    return [*begin, *tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)]


def check_lengths(lengths: Sequence[int], context: int) -> None:
    """Raises ConfigError for questions that do not fit, and for data without questions."""
    if not lengths:
        raise ConfigError("the question list is empty", value=0, expected="one or more")
    too_long = [(number, length) for number, length in enumerate(lengths, 1) if length > context]
    if too_long:
        problem = (
            f"{len(too_long)} of {len(lengths)} questions do not fit: got {too_long[0][1]} tokens, "
            f"expected at most {context}"
        )
        raise ConfigError([Problem(f"question {too_long[0][0]}", problem, "shorten them, or use a longer context")])


def run_all_jobs(jobs: Iterable[Job[T]], engine: Engine) -> list[T]:
    """Runs jobs on an engine and returns their values in order. The first error ends all."""
    results: dict[int, Any] = {}
    with closing(run_jobs(jobs, engine, slots=_ALIVE)) as finished_jobs:
        for finished in finished_jobs:
            if finished.error is not None:
                raise finished.error
            results[finished.index] = finished.value
    return [results[index] for index in range(len(results))]


def mean_measure(values: Floats, labels: NDArray[np.int64], metric: str, *, upper: float = math.inf) -> Measure:
    """Computes the mean of all values `[N]`, which lie between 0 and `upper`.

    The interval resamples whole groups, which `labels` `[N]` name. More than 256 groups are combined into blocks:
    the interval hardly changes, and its cost is bounded.
    """
    interval = paired_interval(
        values.tolist(),
        [0.0] * len(values),
        levels=[(labels % _BLOCKS).tolist()],
        resamples=RESAMPLES,
        level=LEVEL,
        rng=sample_rng("evaluators", metric),
    )
    single = len(np.unique(labels)) < 2  # one text: nothing to draw
    return rate_measure(
        metric, Interval(interval.mean, math.nan, math.nan, interval.n) if single else interval.clip(0, upper)
    )


def rate_measure(metric: str, interval: Interval) -> Measure:
    """Converts an interval to a measure; NaN ends become None."""
    low, high = (None if math.isnan(end) else end for end in (interval.low, interval.high))
    return Measure(metric, interval.mean, low, high, interval.n)

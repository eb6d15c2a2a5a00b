"""Scorers of text spans: the protocol that reward models implement, and scorers without a model.

A scorer is queried about positions on paths of tokens. It may use engines itself: it is a job for the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from evolvent.engine.asks import BlockingCall, Job, Node, SampleAsk
from evolvent.errors import ConfigError, Problem
from evolvent.search.records import Spent
from evolvent.search.writing import Writing
from evolvent.trajectory import sample_seed

__all__ = ["BoundedScorer", "Ending", "FunctionScorer", "GraderScorer", "RolloutScorer", "Scorer"]

GradeFunction = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class Ending:
    """A path of tokens, and the positions on it at which a span ends and a score is requested.

    Args:
        node: the path's beginning, a node of the engine that scores; None: nothing.
        tokens: the tokens after it, not yet fed.
        ends: positions in `tokens`, exclusive and ascending; 0 is the node's own end.
    Raises:
        ConfigError: positions that do not ascend within the tokens, or one before any token.
    """

    node: Node | None
    tokens: tuple[int, ...]
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        first, last = (0 if self.node is not None else 1), len(self.tokens)
        if list(self.ends) != sorted(self.ends) or any(not first <= end <= last for end in self.ends):
            raise ConfigError(
                "ends of spans are not on their path",
                value=self.ends[:8],
                expected=f"ascending ends from {first} to {last}",
            )

    def path(self) -> list[int]:
        """Returns all tokens, `[T]`; an end is at `T - len(tokens) + end`."""
        return [*([] if self.node is None else self.node.tokens()), *self.tokens]


class Scorer(Protocol):
    """A scorer of span ends."""

    @property
    def model(self) -> str | None:
        """Returns the name of the engine that answers; None: the one that writes."""
        ...

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Returns for each query one score per end, in order, in 0..1; NaN where there is none."""
        ...


@runtime_checkable
class BoundedScorer(Protocol):
    """A scorer that bounds its costs beforehand, so that a search does not begin states that it cannot value."""

    def most(self, ends: int, length: int) -> Spent:
        """Returns the maximum cost of so many ends on a path of `length` tokens, beside feeding the path once."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """A function of the tokens up to each end `[T]`, those of the prompt first. It uses no model."""

    function: Callable[[list[int]], float]
    model: str | None = None

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Returns one function value per end."""
        yield from ()
        return [tuple(float(self.function(path)) for path in _prefixes(query)) for query in queries]

    def most(self, ends: int, length: int) -> Spent:
        """Returns a cost of nothing."""
        return Spent()


@dataclass(frozen=True, slots=True)
class GraderScorer:
    """A grader's verdict on the text up to each end, for tasks whose answers can be checked.

    Args:
        grade: 1 right, 0 wrong, or a value between, of the text without its prompt; None: no verdict, which is NaN
            here and never 0.
        writing: decodes tokens. prompt: number of tokens before the text.
        timeout_s: a grader that may be slow or hang is called off the driver's thread and abandoned after so long;
            None: it is called at once.
    """

    grade: GradeFunction
    writing: Writing
    prompt: int
    timeout_s: float | None = None
    model: str | None = None

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Returns one verdict per end. Raises StepTimeout, and the grader's errors."""
        texts = [self.writing.text(path[self.prompt :]) for query in queries for path in _prefixes(query)]
        verdicts = iter((yield from _grade_texts(self.grade, texts, self.timeout_s)))
        return [tuple(_verdict_score(next(verdicts)) for _ in query.ends) for query in queries]

    def most(self, ends: int, length: int) -> Spent:
        """Returns a cost of nothing."""
        return Spent()


@dataclass(frozen=True, slots=True)
class RolloutScorer:
    """The mean verdict on k completions from each end: a Monte Carlo value (Math-Shepherd, arXiv 2312.08935).

    A text that is over is graded as it is. Completions without a verdict are left out; where none has one, the
    score is NaN. A completion's seed derives from `seed` and all tokens before it.

    Args:
        grade, timeout_s: as of `GraderScorer`. k: completions from each end.
        writing: samples completions, and tells where a text ends. prompt: number of tokens before the text.
    Raises:
        ConfigError: k below 1.
    """

    grade: GradeFunction
    k: int
    writing: Writing
    prompt: int
    seed: int
    timeout_s: float | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError([Problem("k", f"got {self.k}, expected 1 or more")])

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Samples and grades the completions of all ends at once."""
        end_points = [
            (query, end, path) for query in queries for end, path in zip(query.ends, _prefixes(query), strict=True)
        ]
        unfinished = [
            end_point
            for end_point in end_points
            if not self.writing.over(end_point[2][self.prompt :], len(end_point[2]))
        ]
        asks = [self._build_ask(*end_point) for end_point in unfinished]
        answers = (yield asks) if asks else ()
        ends = {
            id(end_point[2]): [[*end_point[2], *sample.ids.tolist()] for sample in samples]
            for end_point, samples in zip(unfinished, answers, strict=True)
        }
        completed = [ends.get(id(path), [path]) for _, _, path in end_points]
        texts = [self.writing.text(path[self.prompt :]) for paths in completed for path in paths]
        verdicts = iter((yield from _grade_texts(self.grade, texts, self.timeout_s)))
        means = iter([_mean_verdict([next(verdicts) for _ in paths]) for paths in completed])
        return [tuple(next(means) for _ in query.ends) for query in queries]

    def _build_ask(self, query: Ending, end: int, path: list[int]) -> SampleAsk:
        seeds = tuple(sample_seed(self.seed, "rollout", *path, number) for number in range(self.k))
        return self.writing.whole(query.node, query.tokens[:end], seeds, written=len(path) - self.prompt)

    def most(self, ends: int, length: int) -> Spent:
        """Returns the cost of k full-length completions per end; a single end is assumed to be the path's own."""
        num_before = length if ends == 1 else self.prompt
        max_new_tokens = max(0, min(self.writing.max_tokens + self.prompt, self.writing.context) - num_before)
        return Spent(generated=ends * self.k * max_new_tokens, computed=ends * self.k * max_new_tokens)


def _prefixes(query: Ending) -> list[list[int]]:
    """Returns the tokens up to each end."""
    path = query.path()
    offset = len(path) - len(query.tokens)
    return [path[: offset + end] for end in query.ends]


def _grade_texts(grade: GradeFunction, texts: Sequence[str], timeout_s: float | None) -> Job[list[float | None]]:
    """Returns the verdicts on texts; equal texts are graded once."""
    distinct = list(dict.fromkeys(texts))
    if timeout_s is None or not distinct:
        verdict_by_text = {text: grade(text) for text in distinct}
    else:
        answers = yield [BlockingCall(partial(grade, text), timeout_s) for text in distinct]
        verdict_by_text = dict(zip(distinct, answers, strict=True))
    return [verdict_by_text[text] for text in texts]


def _verdict_score(verdict: float | None) -> float:
    return float("nan") if verdict is None else float(verdict)


def _mean_verdict(verdicts: Sequence[float | None]) -> float:
    """Returns the mean of the available verdicts; NaN where there is none."""
    available = [float(verdict) for verdict in verdicts if verdict is not None]
    return float(np.mean(available)) if available else float("nan")

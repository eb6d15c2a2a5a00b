"""What gives the spans of a text their scores: the protocol that reward models implement, and scorers without a model.

A scorer is asked about places on paths of tokens. It may ask engines itself: it is a work for the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from evolvent.engine.asks import Node, SampleAsk, Wait, Work
from evolvent.errors import ConfigError, Problem
from evolvent.search.records import Spent
from evolvent.search.writing import Writing
from evolvent.trajectory import sample_seed

__all__ = ["Bounded", "Ending", "Fixed", "Outcome", "Rollouts", "Scorer"]

Grade = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class Ending:
    """A path of tokens, and the places on it at which a span ends and a score is wanted.

    Args:
        node: the path's beginning, a node of the engine that scores; None: nothing.
        tokens: what comes after it, not yet fed.
        ends: places in `tokens`, exclusive and ascending; 0 is the node's own end.
    Raises:
        ConfigError: places that do not ascend within the tokens, or one before any token.
    """

    node: Node | None
    tokens: tuple[int, ...]
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        first, last = (0 if self.node is not None else 1), len(self.tokens)
        if list(self.ends) != sorted(self.ends) or any(not first <= end <= last for end in self.ends):
            raise ConfigError(
                "ends of spans that are not on their path",
                value=self.ends[:8],
                expected=f"ascending, from {first} to {last}",
            )

    def path(self) -> list[int]:
        """All tokens, `[T]`; an end is at `T - len(tokens) + end`."""
        return [*([] if self.node is None else self.node.tokens()), *self.tokens]


class Scorer(Protocol):
    """What gives each end of a span a score."""

    @property
    def model(self) -> str | None:
        """Which engine of several answers; None: the one that writes."""
        ...

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """For each item one score for each of its ends, in order, in 0..1; NaN where there is none."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A scorer that says beforehand what it may spend, so that a search does not begin what it cannot value."""

    def most(self, ends: int, length: int) -> Spent:
        """The most that is spent on so many ends of a path of `length` tokens, beside feeding the path once."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A function of the tokens up to each end `[T]`, those of the prompt first. Asks no model."""

    function: Callable[[list[int]], float]
    model: str | None = None

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """One call for each end."""
        yield from ()
        return [tuple(float(self.function(path)) for path in _prefixes(item)) for item in asked]

    def most(self, ends: int, length: int) -> Spent:
        """Nothing."""
        return Spent()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A grader's verdict on the text up to each end: what a search is told where answers can be checked.

    Args:
        grade: 1 right, 0 wrong, or what lies between, of the text without its prompt; None: no verdict, which is NaN
            here and never 0.
        writing: how tokens read as text. prompt: tokens that the text begins after.
        timeout_s: a grader that may be slow or hang is called off the driver's thread and given up after so long;
            None: it is called at once.
    """

    grade: Grade
    writing: Writing
    prompt: int
    timeout_s: float | None = None
    model: str | None = None

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """One verdict for each end. Raises StepTimeout, and what the grader raises."""
        texts = [self.writing.text(path[self.prompt :]) for item in asked for path in _prefixes(item)]
        verdicts = iter((yield from _graded(self.grade, texts, self.timeout_s)))
        return [tuple(_known(next(verdicts)) for _ in item.ends) for item in asked]

    def most(self, ends: int, length: int) -> Spent:
        """Nothing."""
        return Spent()


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The mean verdict on k completions from each end: a Monte Carlo value (Math-Shepherd, arXiv 2312.08935).

    A text that is over is graded as it is. Completions without a verdict are left out; where none has one, the score
    is NaN. A completion's seed derives from `seed` and all tokens before it.

    Args:
        grade, timeout_s: as of `Outcome`. k: completions from each end.
        writing: how completions are sampled, and where a text ends. prompt: tokens that the text begins after.
    Raises:
        ConfigError: k below 1.
    """

    grade: Grade
    k: int
    writing: Writing
    prompt: int
    seed: int
    timeout_s: float | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError([Problem("k", f"must be 1 or more, got {self.k}")])

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """The completions of all ends, asked at once."""
        places = [(item, end, path) for item in asked for end, path in zip(item.ends, _prefixes(item), strict=True)]
        going = [place for place in places if not self.writing.over(place[2][self.prompt :], len(place[2]))]
        asks = [self._ask(*place) for place in going]
        answers = (yield asks) if asks else ()
        ends = {
            id(place[2]): [[*place[2], *sample.ids.tolist()] for sample in samples]
            for place, samples in zip(going, answers, strict=True)
        }
        whole = [ends.get(id(path), [path]) for _, _, path in places]
        texts = [self.writing.text(path[self.prompt :]) for paths in whole for path in paths]
        verdicts = iter((yield from _graded(self.grade, texts, self.timeout_s)))
        means = iter([_mean([next(verdicts) for _ in paths]) for paths in whole])
        return [tuple(next(means) for _ in item.ends) for item in asked]

    def _ask(self, item: Ending, end: int, path: list[int]) -> SampleAsk:
        seeds = tuple(sample_seed(self.seed, "rollout", *path, number) for number in range(self.k))
        return self.writing.whole(item.node, item.tokens[:end], seeds, written=len(path) - self.prompt)

    def most(self, ends: int, length: int) -> Spent:
        """k completions of each end, all as long as a text may be; a single end is taken to be the path's own."""
        before = length if ends == 1 else self.prompt
        room = max(0, min(self.writing.max_tokens + self.prompt, self.writing.context) - before)
        return Spent(generated=ends * self.k * room, computed=ends * self.k * room)


def _prefixes(item: Ending) -> list[list[int]]:
    """The tokens up to each end."""
    path = item.path()
    before = len(path) - len(item.tokens)
    return [path[: before + end] for end in item.ends]


def _graded(grade: Grade, texts: Sequence[str], timeout_s: float | None) -> Work[list[float | None]]:
    """The verdicts on texts; equal texts are graded once."""
    several = list(dict.fromkeys(texts))
    if timeout_s is None or not several:
        known = {text: grade(text) for text in several}
    else:
        answers = yield [Wait(partial(grade, text), timeout_s) for text in several]
        known = dict(zip(several, answers, strict=True))
    return [known[text] for text in texts]


def _known(verdict: float | None) -> float:
    return float("nan") if verdict is None else float(verdict)


def _mean(verdicts: Sequence[float | None]) -> float:
    """Of those that are there; NaN where none is."""
    known = [float(verdict) for verdict in verdicts if verdict is not None]
    return float(np.mean(known)) if known else float("nan")

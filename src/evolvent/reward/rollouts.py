"""Completions of unfinished responses and their grades: what Monte Carlo labels of spans are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evolvent.engine.asks import Node, SampleAsk, Sampling, Wait, Work
from evolvent.errors import ConfigError, Problem, ScoringError

__all__ = ["OMEGA_SAMPLING", "Completer", "Rollout", "completions", "graded", "share"]


OMEGA_SAMPLING = Sampling(temperature=0.7, top_k=30, top_p=0.9)
"""The distribution of OmegaPRM (arXiv 2406.06592)."""


@dataclass(frozen=True, slots=True)
class Completer:
    """How a response is completed and graded.

    Args:
        text: the text of a response's tokens (`dialect.text`).
        correct: whether a response's text is right; None: it could not be graded. A ScoringError means the same.
        max_tokens: of a whole response, what it begins with included.
        stop_ids: tokens that end a response.
        sampling: the distribution; by default temperature .7, top-k 30, top-p .9.
        context: most tokens of prompt and response together; None: nobody asks for more than the engine takes.
        slow: grade on the driver's threads.
    Raises:
        ConfigError: `max_tokens` or `context` below 1.
    """

    text: Callable[[Sequence[int]], str]
    correct: Callable[[str], bool | None]
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling = OMEGA_SAMPLING
    context: int | None = None
    slow: bool = False

    def __post_init__(self) -> None:
        limits = (("max_tokens", self.max_tokens), ("context", self.context))
        problems = [
            Problem(name, f"must be 1 or more, got {value}")
            for name, value in limits
            if value is not None and value < 1
        ]
        if problems:
            raise ConfigError(problems)

    def finished(self, response: Sequence[int]) -> bool:
        """Whether a response has come to its end."""
        return bool(response) and response[-1] in self.stop_ids

    def room(self, prompt: Sequence[int], response: Sequence[int]) -> int:
        """How many tokens may follow."""
        room = self.max_tokens - len(response)
        return room if self.context is None else min(room, self.context - len(prompt) - len(response))


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion: its tokens, whether the whole response was right (None: not gradable), and its end as a node.

    While the node is held, what was computed for it is found again by whoever goes on from a part of it.
    """

    ids: tuple[int, ...]
    correct: bool | None
    node: Node | None = field(default=None, compare=False, repr=False)


def completions(
    prompt: Sequence[int], begun: Sequence[Sequence[int]], completer: Completer, *, seeds: Sequence[Sequence[int]]
) -> Work[list[tuple[Rollout, ...]]]:
    """Completions of several begun responses to one prompt, all asked at once, and graded.

    Args:
        begun: the tokens of each response so far. seeds: for each, one completion per seed.
    Returns:
        The rollouts of each; none where a response is finished or has no room to go on.
    """
    open_ = [
        at
        for at, response in enumerate(begun)
        if seeds[at] and not completer.finished(response) and completer.room(prompt, response) > 0
    ]
    asks = [
        SampleAsk(
            None,
            [*prompt, *begun[at]],
            completer.room(prompt, begun[at]),
            stop_ids=completer.stop_ids,
            sampling=completer.sampling,
            seeds=tuple(seeds[at]),
        )
        for at in open_
    ]
    answers: Sequence[Any] = (yield asks) if asks else ()
    written = [(at, one) for at, answer in zip(open_, answers, strict=True) for one in answer]
    grades = yield from graded([(*begun[at], *one.ids.tolist()) for at, one in written], completer)
    found: list[list[Rollout]] = [[] for _ in begun]
    for (at, one), grade in zip(written, grades, strict=True):
        found[at].append(Rollout(tuple(one.ids.tolist()), grade, one.node))
    return [tuple(own) for own in found]


def graded(responses: Sequence[Sequence[int]], completer: Completer) -> Work[list[bool | None]]:
    """Whether each whole response is right; None where it could not be graded."""
    calls = [partial(_grade, completer, tuple(response)) for response in responses]
    if not completer.slow or not calls:
        return [call() for call in calls]
    return list((yield [Wait(call) for call in calls]))


def _grade(completer: Completer, response: Sequence[int]) -> bool | None:
    try:
        return completer.correct(completer.text(response))
    except ScoringError:
        return None


def share(rollouts: Sequence[Rollout]) -> float | None:
    """The share of right ones among those that could be graded: the Monte Carlo value; None where none could."""
    known = [rollout.correct for rollout in rollouts if rollout.correct is not None]
    return sum(known) / len(known) if known else None

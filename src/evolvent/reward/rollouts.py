"""Completions of unfinished responses and their grades, from which Monte Carlo labels of spans are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evolvent.engine.asks import BlockingCall, Job, Node, SampleAsk, Sampling
from evolvent.errors import ConfigError, Problem, ScoringError

__all__ = ["OMEGA_SAMPLING", "Completer", "Rollout", "correct_ratio", "grade_responses", "sample_completions"]


OMEGA_SAMPLING = Sampling(temperature=0.7, top_k=30, top_p=0.9)
"""The distribution of OmegaPRM (arXiv 2406.06592)."""


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes and grades responses.

    Args:
        text: Returns the text of a response's tokens (`dialect.text`).
        correct: Returns whether a response's text is right; None: it could not be graded. A ScoringError means the
            same.
        max_tokens: Maximum tokens of a whole response, its given beginning included.
        stop_ids: Tokens that end a response.
        sampling: The distribution; by default temperature .7, top-k 30, top-p .9.
        context: Maximum tokens of prompt and response together; None: the engine's limit is never exceeded.
        slow: Whether to grade on the driver's threads.
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

    def is_finished(self, response: Sequence[int]) -> bool:
        """Returns whether a response has ended."""
        return bool(response) and response[-1] in self.stop_ids

    def remaining_tokens(self, prompt: Sequence[int], response: Sequence[int]) -> int:
        """Returns the number of tokens that may follow."""
        remaining = self.max_tokens - len(response)
        return remaining if self.context is None else min(remaining, self.context - len(prompt) - len(response))


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion: its tokens, whether the whole response was right (None: ungraded), and its end as a node.

    While the node is held, what was computed for it is found again by whoever goes on from a part of it.
    """

    ids: tuple[int, ...]
    correct: bool | None
    node: Node | None = field(default=None, compare=False, repr=False)


def sample_completions(
    prompt: Sequence[int], prefixes: Sequence[Sequence[int]], completer: Completer, *, seeds: Sequence[Sequence[int]]
) -> Job[list[tuple[Rollout, ...]]]:
    """Samples completions of several begun responses to one prompt, all requested at once, and grades them.

    Args:
        prompt: Tokens of the prompt.
        prefixes: Tokens of each response so far.
        completer: Completes and grades.
        seeds: For each response, one seed per completion.
    Returns:
        The rollouts of each; none where a response is finished or has no tokens left.
    """
    open_indices = [
        index
        for index, response in enumerate(prefixes)
        if seeds[index] and not completer.is_finished(response) and completer.remaining_tokens(prompt, response) > 0
    ]
    asks = [
        SampleAsk(
            None,
            [*prompt, *prefixes[index]],
            completer.remaining_tokens(prompt, prefixes[index]),
            stop_ids=completer.stop_ids,
            sampling=completer.sampling,
            seeds=tuple(seeds[index]),
        )
        for index in open_indices
    ]
    answers: Sequence[Any] = (yield asks) if asks else ()
    samples = [(index, sample) for index, answer in zip(open_indices, answers, strict=True) for sample in answer]
    grades = yield from grade_responses(
        [(*prefixes[index], *sample.ids.tolist()) for index, sample in samples], completer
    )
    rollouts_by_response: list[list[Rollout]] = [[] for _ in prefixes]
    for (index, sample), grade in zip(samples, grades, strict=True):
        rollouts_by_response[index].append(Rollout(tuple(sample.ids.tolist()), grade, sample.node))
    return [tuple(rollouts) for rollouts in rollouts_by_response]


def grade_responses(responses: Sequence[Sequence[int]], completer: Completer) -> Job[list[bool | None]]:
    """Returns whether each whole response is right; None where it could not be graded."""
    calls = [partial(_grade, completer, tuple(response)) for response in responses]
    if not completer.slow or not calls:
        return [call() for call in calls]
    return list((yield [BlockingCall(call) for call in calls]))


def _grade(completer: Completer, response: Sequence[int]) -> bool | None:
    try:
        return completer.correct(completer.text(response))
    except ScoringError:
        return None


def correct_ratio(rollouts: Sequence[Rollout]) -> float | None:
    """Computes the share of right rollouts among the graded ones: the Monte Carlo value; None where none was graded."""
    grades = [rollout.correct for rollout in rollouts if rollout.correct is not None]
    return sum(grades) / len(grades) if grades else None

"""Math-Shepherd: a span is as good as what becomes of it (Wang et al., arXiv 2312.08935).

From the end of every span N completions are sampled. The soft label is the share of right ones (equation 4), the hard
label whether any is right (equation 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, Problem
from evolvent.reward.labels import SpanLabels
from evolvent.reward.rollouts import Completer, Rollout, completions, graded, share
from evolvent.reward.solutions import Solution
from evolvent.trajectory import Annotation, Place, sample_seed

__all__ = ["Shepherded", "shepherd"]


@dataclass(frozen=True, slots=True)
class Shepherded:
    """A solution with the soft label of each span, and what that took.

    Attributes:
        labels: the share of right completions from each span's end; None where none could be graded.
        rollouts: completions sampled. ungraded: those of them that could not be graded; they are in no share.
        generated: tokens sampled. What was computed for them is in the engine's `usage`.
    """

    solution: Solution
    labels: tuple[float | None, ...]
    rollouts: int
    ungraded: int
    generated: int

    def annotations(self, *, step: int = 0, generation: int = 0) -> list[Annotation]:
        """The labels as rows beside the trajectory that the solution is named after."""
        return [
            Annotation(self.solution.name, "shepherd", Place(step, generation, span), label)
            for span, label in enumerate(self.labels)
            if label is not None
        ]

    def told(self, question: str, text: Callable[[Sequence[int]], str]) -> SpanLabels:
        """The same as text."""
        spans = tuple(text(span) for span in self.solution.spans)
        return SpanLabels(question, spans, self.labels, "shepherd", {"name": self.solution.name})


def shepherd(solution: Solution, completer: Completer, *, count: int = 8, seed: int = 0) -> Work[Shepherded]:
    """Label the spans of a solution, as a work for the driver: all completions are asked at once.

    A finished solution is graded itself: its last label is exact and takes no completion. The seeds depend on the
    solution's name, the span and the number of the completion alone.

    Args:
        count: completions from each span's end (N).
    Raises:
        ConfigError: `count` below 1.
    """
    if count < 1:
        raise ConfigError([Problem("count", f"{count} completions of a span", "give 1 or more")])
    begun = list(accumulate(solution.spans))
    seeds = [[sample_seed(seed, "shepherd", solution.name, at, k) for k in range(count)] for at in range(len(begun))]
    found = yield from completions(solution.prompt, begun, completer, seeds=seeds)
    labels = [share(rollouts) for rollouts in found]
    if completer.finished(begun[-1]):
        (own,) = yield from graded(begun[-1:], completer)
        labels[-1] = None if own is None else float(own)
    every: list[Rollout] = [rollout for rollouts in found for rollout in rollouts]
    return Shepherded(
        solution,
        tuple(labels),
        len(every),
        sum(rollout.correct is None for rollout in every),
        sum(len(rollout.ids) for rollout in every),
    )

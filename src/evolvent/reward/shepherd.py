"""Math-Shepherd: a span is labeled by the outcomes of its completions (Wang et al., arXiv 2312.08935).

From the end of every span N completions are sampled. The soft label is the share of right ones (equation 4),
the hard label whether any is right (equation 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evolvent.engine.asks import Job
from evolvent.errors import ConfigError, Problem
from evolvent.reward.labels import SpanLabels
from evolvent.reward.rollouts import Completer, Rollout, correct_ratio, grade_responses, sample_completions
from evolvent.reward.solutions import Solution
from evolvent.trajectory import Annotation, AnnotationTarget, sample_seed

__all__ = ["LabelledSolution", "label_spans"]


@dataclass(frozen=True, slots=True)
class LabelledSolution:
    """A solution with the soft label of each span, and the costs.

    Attributes:
        solution: The solution.
        labels: Share of right completions from each span's end; None where none could be graded.
        rollouts: Number of sampled completions.
        ungraded: Number of completions that could not be graded; they are in no share.
        generated: Number of sampled tokens. Computed tokens are in the engine's `usage`.
    """

    solution: Solution
    labels: tuple[float | None, ...]
    rollouts: int
    ungraded: int
    generated: int

    def annotations(self, *, step: int = 0, generation: int = 0) -> list[Annotation]:
        """Returns the labels as annotations of the trajectory that the solution is named after."""
        return [
            Annotation(self.solution.name, "shepherd", AnnotationTarget(step, generation, span), label)
            for span, label in enumerate(self.labels)
            if label is not None
        ]

    def to_labels(self, question: str, text: Callable[[Sequence[int]], str]) -> SpanLabels:
        """Returns the labels with the texts of the spans."""
        spans = tuple(text(span) for span in self.solution.spans)
        return SpanLabels(question, spans, self.labels, "shepherd", {"name": self.solution.name})


def label_spans(solution: Solution, completer: Completer, *, count: int = 8, seed: int = 0) -> Job[LabelledSolution]:
    """Labels the spans of a solution, as a job for the driver: all completions are requested at once.

    A finished solution is graded itself: its last label is exact and takes no completion. The seeds depend on the
    solution's name, the span and the number of the completion alone.

    Args:
        count: completions from each span's end (N).
    Raises:
        ConfigError: `count` below 1.
    """
    if count < 1:
        raise ConfigError([Problem("count", f"{count} completions of a span", "give 1 or more")])
    prefixes = list(accumulate(solution.spans))
    seeds = [
        [sample_seed(seed, "shepherd", solution.name, span_index, k) for k in range(count)]
        for span_index in range(len(prefixes))
    ]
    rollouts_by_span = yield from sample_completions(solution.prompt, prefixes, completer, seeds=seeds)
    labels = [correct_ratio(rollouts) for rollouts in rollouts_by_span]
    if completer.is_finished(prefixes[-1]):
        (final_grade,) = yield from grade_responses(prefixes[-1:], completer)
        labels[-1] = None if final_grade is None else float(final_grade)
    all_rollouts: list[Rollout] = [rollout for rollouts in rollouts_by_span for rollout in rollouts]
    return LabelledSolution(
        solution,
        tuple(labels),
        len(all_rollouts),
        sum(rollout.correct is None for rollout in all_rollouts),
        sum(len(rollout.ids) for rollout in all_rollouts),
    )

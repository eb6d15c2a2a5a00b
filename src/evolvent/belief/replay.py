"""Replay of stored scores at other thresholds, and curves of risk over coverage.

A detector's score depends on the belief and not on its threshold, so one episode played to its horizon shows
the stop of every threshold. A run that a detector ended shows only thresholds that stop it as early or earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.outcomes import OutcomeTable, tabulate_outcomes
from evolvent.belief.stopping import StopDecision
from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.trajectory import Annotation, AnnotationTarget

__all__ = [
    "RiskCoverage",
    "ScoredRun",
    "annotations_to_scores",
    "replay_threshold",
    "risk_coverage",
    "scores_to_annotations",
    "sweep_thresholds",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """An episode with its stored scores: T looks, each with the outcome of stopping there.

    Args:
        scores: [T]. Scores of one detector, lower is more certain; infinite or NaN: undefined at that look.
        correct: [T]. Whether the estimate was right at each look; None: unknown.
        steps, distance, generated, computed: [T]. Cost up to each look; steps None: one a look.
    Raises:
        BatchMismatch: no look, or lengths that differ.
    """

    scores: Sequence[float]
    correct: Sequence[bool | None]
    steps: Sequence[float] | None = None
    distance: Sequence[float] | None = None
    generated: Sequence[float] | None = None
    computed: Sequence[float] | None = None

    def __post_init__(self) -> None:
        columns = (self.correct, self.steps, self.distance, self.generated, self.computed)
        lengths = [len(self.scores), *(len(column) for column in columns if column is not None)]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise BatchMismatch("the looks of an episode and what is told of them differ in number", value=lengths)

    def find_stop(self, threshold: float, *, inclusive: bool = False) -> int | None:
        """Returns the first look with a score below the threshold (inclusive: or at it); None where there is none."""
        scores = np.asarray(self.scores, np.float64)
        stop_indices = np.flatnonzero(scores <= threshold if inclusive else scores < threshold)  # NaN is neither
        return int(stop_indices[0]) if len(stop_indices) else None


def replay_threshold(runs: Sequence[ScoredRun], threshold: float, *, inclusive: bool = False) -> OutcomeTable:
    """Computes the outcome table of a threshold; runs that it never stops count as they ended.

    Args:
        inclusive: a score at the threshold stops too, as with `Agreement`, whose threshold is 1 - q.
    Raises:
        BatchMismatch: no run; something that only some runs tell.
    """
    stops = [run.find_stop(threshold, inclusive=inclusive) for run in runs]
    ends = [
        len(run.scores) - 1 if stop_index is None else stop_index for run, stop_index in zip(runs, stops, strict=True)
    ]

    def costs_at_end(name: str) -> list[float] | None:
        cost_columns = [getattr(run, name) for run in runs]
        if all(cost_column is None for cost_column in cost_columns):
            return None
        if any(cost_column is None for cost_column in cost_columns):
            raise BatchMismatch(
                f"only some runs tell their {name}", value=sum(cost_column is None for cost_column in cost_columns)
            )
        return [float(cost_column[end]) for cost_column, end in zip(cost_columns, ends, strict=True)]

    steps = [
        float(end + 1) if run.steps is None else float(run.steps[end]) for run, end in zip(runs, ends, strict=True)
    ]
    correct = [run.correct[end] for run, end in zip(runs, ends, strict=True)]
    return tabulate_outcomes(
        [stop_index is not None for stop_index in stops],
        correct,
        steps,
        distance=costs_at_end("distance"),
        generated=costs_at_end("generated"),
        computed=costs_at_end("computed"),
    )


def sweep_thresholds(
    runs: Sequence[ScoredRun], thresholds: Iterable[float], *, inclusive: bool = False
) -> list[tuple[float, OutcomeTable]]:
    """Runs `replayed` for each threshold, in order."""
    return [(threshold, replay_threshold(runs, threshold, inclusive=inclusive)) for threshold in thresholds]


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """The risk of answering only the most certain cases (El-Yaniv and Wiener, JMLR 11, 2010).

    Args:
        threshold, coverage, risk: [K]. For each score that occurs, the most certain first: the share of cases with
            that score or a lower one, and the share of wrong ones among them.
        area: Area under risk over coverage, each of the N cases counting once; lower is better.
        n: Number of cases with known truth.
    """

    threshold: Floats
    coverage: Floats
    risk: Floats
    area: float
    n: int


def risk_coverage(scores: Sequence[float], correct: Sequence[bool | None]) -> RiskCoverage | None:
    """Computes the curve over N cases, without those of unknown truth; None where no truth is known.

    Cases of one score are answered together. In the area they count as if they came in any order, each order as
    likely.

    Args:
        scores: [N]. Lower is more certain; infinite: undecided.
        correct: [N]. None: unknown.
    Raises:
        BatchMismatch: lengths differ. NonFinite: a score that is NaN.
    """
    if len(scores) != len(correct):
        raise BatchMismatch("scores and truths differ in number", value=(len(scores), len(correct)))
    known_indices = [index for index, truth in enumerate(correct) if truth is not None]
    if not known_indices:
        return None
    known_scores = np.array([scores[index] for index in known_indices], np.float64)
    if np.isnan(known_scores).any():
        raise NonFinite("a score is no number", value=float("nan"), expected="a number; infinite where nothing is said")
    is_wrong = np.array([not correct[index] for index in known_indices], np.float64)
    levels, group = np.unique(known_scores, return_inverse=True)
    sizes, errors = np.bincount(group), np.bincount(group, weights=is_wrong)
    cumulative_cases, cumulative_errors = np.cumsum(sizes), np.cumsum(errors)
    # In a tie of s cases with e errors, the i-th of them brings e/s errors on average.
    expected = np.cumsum(np.repeat(errors / sizes, sizes)) / np.arange(1, len(known_scores) + 1)
    return RiskCoverage(
        levels,
        cumulative_cases / len(known_scores),
        cumulative_errors / cumulative_cases,
        float(expected.mean()),
        len(known_scores),
    )


# ---------------------------------------------------------------- stored scores


def scores_to_annotations(
    trajectory: str, scorer: str, decisions: Sequence[StopDecision], *, row: int = 0
) -> list[Annotation]:
    """Converts the scores of an episode to annotations, look t at step t, without undefined scores.

    Args:
        trajectory: Id of the episode.
        scorer: Name of the scorer, such as "stop/std".
        decisions: Decisions of all looks.
        row: Index of the belief in the batch.
    """
    step_scores = ((step, float(decision.score[row])) for step, decision in enumerate(decisions))
    return [
        Annotation(trajectory, scorer, AnnotationTarget(step=step), score)
        for step, score in step_scores
        if np.isfinite(score)
    ]


def annotations_to_scores(annotations: Iterable[Annotation], trajectory: str, scorer: str, *, looks: int) -> Floats:
    """Collects the stored scores of an episode, [looks]; infinite where there is none.

    Raises:
        ConfigError: a score at a step that there is not, or one that is no number.
    """
    scores = np.full(looks, np.inf)
    for annotation in annotations:
        if annotation.trajectory != trajectory or annotation.scorer != scorer:
            continue
        step, value = annotation.target.step, annotation.value
        if step is None or not 0 <= step < looks or not isinstance(value, int | float):
            raise ConfigError(
                f"a score of {trajectory} that belongs to no look",
                value=(step, value),
                expected=f"a number at a step below {looks}",
            )
        scores[step] = value
    return scores

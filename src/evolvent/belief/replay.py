"""Stored scores replayed: what other thresholds would have done, and how risk grows with coverage.

A detector's score depends on the belief and not on its threshold, so an episode that was played to its horizon once
tells where every threshold would have stopped it. A run that a detector ended tells only of thresholds that stop it as
early or earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.outcomes import OutcomeTable, outcomes
from evolvent.belief.stopping import StopDecision
from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.trajectory import Annotation, Place

__all__ = ["RiskCoverage", "ScoredRun", "replayed", "risk_coverage", "score_rows", "scores_of", "sweep"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """An episode as its stored scores tell it: T looks, each with what it would have meant to stop there.

    Args:
        scores: [T] of one detector, lower is surer; infinite or NaN: nothing could be said at that look.
        correct: [T] whether the estimate was right at each look; None: nobody knows.
        steps, distance, generated, computed: [T] spent up to each look; steps None: one a look.
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
        told = (self.correct, self.steps, self.distance, self.generated, self.computed)
        lengths = [len(self.scores), *(len(each) for each in told if each is not None)]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise BatchMismatch("the looks of an episode and what is told of them differ in number", value=lengths)

    def stopped_at(self, threshold: float, *, inclusive: bool = False) -> int | None:
        """The first look whose score is below the threshold (inclusive: or at it); None: there is none."""
        scores = np.asarray(self.scores, np.float64)
        at = np.flatnonzero(scores <= threshold if inclusive else scores < threshold)  # NaN is neither
        return int(at[0]) if len(at) else None


def replayed(runs: Sequence[ScoredRun], threshold: float, *, inclusive: bool = False) -> OutcomeTable:
    """The outcome table that a threshold would have given; runs that it never stops count as they ended.

    Args:
        inclusive: a score at the threshold stops too, as with `Agreement`, whose threshold is 1 - q.
    Raises:
        BatchMismatch: no run; something that only some runs tell.
    """
    stops = [run.stopped_at(threshold, inclusive=inclusive) for run in runs]
    ends = [len(run.scores) - 1 if at is None else at for run, at in zip(runs, stops, strict=True)]

    def spent(name: str) -> list[float] | None:
        told = [getattr(run, name) for run in runs]
        if all(each is None for each in told):
            return None
        if any(each is None for each in told):
            raise BatchMismatch(f"only some runs tell their {name}", value=sum(each is None for each in told))
        return [float(each[end]) for each, end in zip(told, ends, strict=True)]

    steps = [
        float(end + 1) if run.steps is None else float(run.steps[end]) for run, end in zip(runs, ends, strict=True)
    ]
    correct = [run.correct[end] for run, end in zip(runs, ends, strict=True)]
    return outcomes(
        [at is not None for at in stops],
        correct,
        steps,
        distance=spent("distance"),
        generated=spent("generated"),
        computed=spent("computed"),
    )


def sweep(
    runs: Sequence[ScoredRun], thresholds: Iterable[float], *, inclusive: bool = False
) -> list[tuple[float, OutcomeTable]]:
    """`replayed` for each threshold, in their order."""
    return [(each, replayed(runs, each, inclusive=inclusive)) for each in thresholds]


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """What answering only the surest cases is worth (El-Yaniv and Wiener, JMLR 11, 2010).

    Args:
        threshold, coverage, risk: [K] for each score that occurs, the surest first: the share of cases with that score
            or a lower one, and the share of those that are wrong.
        area: under risk over coverage, each of the N cases counting once; lower is better.
        n: cases whose truth is known.
    """

    threshold: Floats
    coverage: Floats
    risk: Floats
    area: float
    n: int


def risk_coverage(scores: Sequence[float], correct: Sequence[bool | None]) -> RiskCoverage | None:
    """The curve over N cases; those without a truth are left out. None: no truth is known.

    Cases of one score are answered together. In the area they count as if they came in any order, each order as likely.

    Args:
        scores: [N] lower is surer; infinite: not sure at all. correct: [N]; None: nobody knows.
    Raises:
        BatchMismatch: lengths differ. NonFinite: a score that is NaN.
    """
    if len(scores) != len(correct):
        raise BatchMismatch("scores and truths differ in number", value=(len(scores), len(correct)))
    known = [at for at, each in enumerate(correct) if each is not None]
    if not known:
        return None
    own = np.array([scores[at] for at in known], np.float64)
    if np.isnan(own).any():
        raise NonFinite("a score is no number", value=float("nan"), expected="a number; infinite where nothing is said")
    wrong = np.array([not correct[at] for at in known], np.float64)
    levels, group = np.unique(own, return_inverse=True)
    sizes, errors = np.bincount(group), np.bincount(group, weights=wrong)
    covered, failed = np.cumsum(sizes), np.cumsum(errors)
    # In a tie of s cases with e errors, the i-th of them brings e/s errors on average.
    expected = np.cumsum(np.repeat(errors / sizes, sizes)) / np.arange(1, len(own) + 1)
    return RiskCoverage(levels, covered / len(own), failed / covered, float(expected.mean()), len(own))


# ---------------------------------------------------------------- stored scores


def score_rows(trajectory: str, scorer: str, decisions: Sequence[StopDecision], *, row: int = 0) -> list[Annotation]:
    """The scores of an episode as annotations, look t at step t; looks of which nothing could be said have none.

    Args:
        scorer: what they are found by, such as "stop/std". row: which belief of the batch.
    """
    found = ((step, float(each.score[row])) for step, each in enumerate(decisions))
    return [Annotation(trajectory, scorer, Place(step=step), score) for step, score in found if np.isfinite(score)]


def scores_of(annotations: Iterable[Annotation], trajectory: str, scorer: str, *, looks: int) -> Floats:
    """[looks] the scores that were stored of an episode; infinite where there is none.

    Raises:
        ConfigError: a score at a step that there is not, or one that is no number.
    """
    scores = np.full(looks, np.inf)
    for each in annotations:
        if each.trajectory != trajectory or each.scorer != scorer:
            continue
        step, value = each.place.step, each.value
        if step is None or not 0 <= step < looks or not isinstance(value, int | float):
            raise ConfigError(
                f"a score of {trajectory} that belongs to no look",
                value=(step, value),
                expected=f"a number at a step below {looks}",
            )
        scores[step] = value
    return scores

"""Calibration of scores: accuracy, AUC over all items and within tasks, Brier score, calibration error,
reliability.

Shapes: `N` scores in 0..1, each with a truth 0 or 1. No function depends on the order of the items.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem

__all__ = [
    "CalibrationReport",
    "ReliabilityCurve",
    "auc",
    "auc_within",
    "brier",
    "calibration_error",
    "evaluate_calibration",
    "label_accuracy",
    "reliability_curve",
]

Floats = NDArray[np.float64]


def _check_inputs(scores: ArrayLike, truth: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, truths = np.asarray(scores, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    if values.shape != truths.shape:
        raise BatchMismatch("scores and labels differ in number", value=(len(values), len(truths)))
    if not np.isfinite(values).all() or not np.isin(truths, (0.0, 1.0)).all():
        raise BatchMismatch(
            "scores must be finite and labels 0 or 1",
            value=values[~np.isfinite(values)][:3],
            hint="remove the entries without a score, and report their number",
        )
    return values, truths == 1.0


def _check_probabilities(scores: Floats) -> Floats:
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        raise BatchMismatch("scores are not probabilities", value=(scores.min(), scores.max()), expected="0..1")
    return scores


def label_accuracy(scores: ArrayLike, truth: ArrayLike, *, above: float = 0.5) -> float:
    """Computes the share of items whose score is above the bound exactly where the truth is 1; NaN without items.

    Args:
        scores: `[N]`. Scores.
        truth: `[N]`. 0 or 1.
        above: Bound: 0 for hard labels of shares (any completion right), .5 for probabilities.
    Raises:
        BatchMismatch: arrays of different lengths, scores that are not finite, truths other than 0 and 1.
    """
    values, is_true = _check_inputs(scores, truth)
    return float(((values > above) == is_true).mean()) if len(values) else nan


def auc(scores: ArrayLike, truth: ArrayLike) -> float:
    """Computes the probability that a true item scores higher than a false one; ties count one half. NaN without
    both kinds.

    The Mann-Whitney statistic over the number of pairs, in O(N log N). Raises BatchMismatch like `label_accuracy`.
    """
    wins, pairs = _count_wins(*_check_inputs(scores, truth))
    return wins / pairs if pairs else nan


def auc_within(scores: ArrayLike, truth: ArrayLike, tasks: Sequence[Hashable]) -> float:
    """Computes the AUC over pairs of items of one task only, so that the difficulty of tasks does not contribute.

    Raises:
        BatchMismatch: like `label_accuracy`, and where there is not one task for each item.
    """
    values, is_true = _check_inputs(scores, truth)
    if len(tasks) != len(values):
        raise BatchMismatch("number of tasks does not match the scores", value=len(tasks), expected=len(values))
    indices_by_task: dict[Hashable, list[int]] = {}
    for index, task in enumerate(tasks):
        indices_by_task.setdefault(task, []).append(index)
    counts_by_task = [
        _count_wins(values[task_indices], is_true[task_indices]) for task_indices in indices_by_task.values()
    ]
    wins, pairs = sum(task_wins for task_wins, _ in counts_by_task), sum(count for _, count in counts_by_task)
    return wins / pairs if pairs else nan


def _count_wins(values: Floats, is_true: NDArray[np.bool_]) -> tuple[float, int]:
    """Counts the pairs of a true and a false item that the true one wins (a tie is half a win), and all pairs."""
    false_scores = np.sort(values[~is_true])
    below = np.searchsorted(false_scores, values[is_true], side="left")
    upto = np.searchsorted(false_scores, values[is_true], side="right")
    return float((below + upto).sum() / 2), len(false_scores) * int(is_true.sum())


def brier(scores: ArrayLike, truth: ArrayLike) -> float:
    """Computes the mean squared difference of probability and truth (Brier, 1950); NaN without items.

    Raises:
        BatchMismatch: like `label_accuracy`, and for scores outside 0..1.
    """
    values, is_true = _check_inputs(scores, truth)
    return float(np.square(_check_probabilities(values) - is_true).mean()) if len(values) else nan


@dataclass(frozen=True, slots=True, eq=False)
class ReliabilityCurve:
    """The reliability curve, one entry a bin.

    Attributes:
        edges: `[bins + 1]`. A bin includes its lower edge and not its upper one; the last includes 1 too.
        counts: `[bins]`. Items in each bin.
        scores: `[bins]`. Mean scores; NaN in empty bins.
        rates: `[bins]`. Shares of true items; NaN in empty bins.
    """

    edges: Floats
    counts: NDArray[np.int64]
    scores: Floats
    rates: Floats


def reliability_curve(scores: ArrayLike, truth: ArrayLike, *, bins: int = 10) -> ReliabilityCurve:
    """Computes mean scores and shares of true items, in bins of equal width over 0..1.

    Raises:
        ConfigError: fewer than one bin. BatchMismatch: like `brier`.
    """
    if bins < 1:
        raise ConfigError([Problem("bins", f"got {bins}, expected 1 or more")])
    values, is_true = _check_inputs(scores, truth)
    edges = np.arange(bins + 1) / bins
    bin_index = np.clip(np.searchsorted(edges, _check_probabilities(values), side="right") - 1, 0, bins - 1)
    counts = np.bincount(bin_index, minlength=bins)
    safe_counts = np.where(counts > 0, counts, 1)
    sums = [np.bincount(bin_index, weights=weights, minlength=bins) for weights in (values, is_true.astype(np.float64))]
    means = [np.where(counts > 0, weights / safe_counts, nan) for weights in sums]
    return ReliabilityCurve(edges, counts.astype(np.int64), means[0], means[1])


def calibration_error(scores: ArrayLike, truth: ArrayLike, *, bins: int = 10) -> float:
    """Computes the expected calibration error: `sum_b n_b / N |rate_b - score_b|` (Naeini et al., AAAI 2015); NaN if
    empty.

    Raises:
        ConfigError, BatchMismatch: like `reliability_curve`.
    """
    curve = reliability_curve(scores, truth, bins=bins)
    is_filled = curve.counts > 0
    gaps = np.abs(curve.rates[is_filled] - curve.scores[is_filled])
    return float((curve.counts[is_filled] * gaps).sum() / curve.counts.sum()) if is_filled.any() else nan


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationReport:
    """All calibration metrics of one set of scores. `auc_within` is NaN where no tasks were given."""

    n: int
    accuracy: float
    auc: float
    auc_within: float
    brier: float
    error: float
    curve: ReliabilityCurve


def evaluate_calibration(
    scores: ArrayLike, truth: ArrayLike, *, tasks: Sequence[Hashable] | None = None, bins: int = 10, above: float = 0.5
) -> CalibrationReport:
    """Computes all calibration metrics of one set of scores.

    Raises:
        ConfigError, BatchMismatch: as the single functions do.
    """
    return CalibrationReport(
        len(_check_inputs(scores, truth)[0]),
        label_accuracy(scores, truth, above=above),
        auc(scores, truth),
        nan if tasks is None else auc_within(scores, truth, tasks),
        brier(scores, truth),
        calibration_error(scores, truth, bins=bins),
        reliability_curve(scores, truth, bins=bins),
    )

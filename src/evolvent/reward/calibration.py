"""How far scores can be trusted: accuracy, AUC over all and within tasks, Brier score, calibration error, reliability.

Shapes: `N` scores in 0..1, each with a truth 0 or 1. All functions are symmetric in the order of the items.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem

__all__ = [
    "Calibration",
    "Reliability",
    "auc",
    "auc_within",
    "brier",
    "calibration",
    "calibration_error",
    "label_accuracy",
    "reliability",
]

Floats = NDArray[np.float64]


def _checked(scores: ArrayLike, truth: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, known = np.asarray(scores, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    if values.shape != known.shape:
        raise BatchMismatch("scores and truths differ in number", value=(len(values), len(known)))
    if not np.isfinite(values).all() or not np.isin(known, (0.0, 1.0)).all():
        raise BatchMismatch(
            "scores must be finite and truths 0 or 1",
            value=values[~np.isfinite(values)][:3],
            hint="leave out, and count, what was not scored",
        )
    return values, known == 1.0


def _unit(scores: Floats) -> Floats:
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        raise BatchMismatch("scores that are no probabilities", value=(scores.min(), scores.max()), expected="0..1")
    return scores


def label_accuracy(scores: ArrayLike, truth: ArrayLike, *, above: float = 0.5) -> float:
    """The share of items whose score is above the bound exactly where the truth is 1; NaN without items.

    Args:
        above: 0 for hard labels of shares (any completion right), .5 for probabilities.
    Raises:
        BatchMismatch: arrays of different lengths, scores that are not finite, truths other than 0 and 1.
    """
    values, known = _checked(scores, truth)
    return float(((values > above) == known).mean()) if len(values) else nan


def auc(scores: ArrayLike, truth: ArrayLike) -> float:
    """The chance that a true item scores higher than a false one; ties count one half. NaN where one kind is missing.

    The Mann-Whitney statistic over the number of pairs, in O(N log N). Raises BatchMismatch like `label_accuracy`.
    """
    won, pairs = _pairs_won(*_checked(scores, truth))
    return won / pairs if pairs else nan


def auc_within(scores: ArrayLike, truth: ArrayLike, tasks: Sequence[Hashable]) -> float:
    """The same over pairs of items of one task only: what the score tells beside how hard the task is.

    Raises:
        BatchMismatch: like `label_accuracy`, and where there is not one task for each item.
    """
    values, known = _checked(scores, truth)
    if len(tasks) != len(values):
        raise BatchMismatch("not one task for each score", value=len(tasks), expected=len(values))
    places: dict[Hashable, list[int]] = {}
    for at, task in enumerate(tasks):
        places.setdefault(task, []).append(at)
    found = [_pairs_won(values[own], known[own]) for own in places.values()]
    won, pairs = sum(one for one, _ in found), sum(count for _, count in found)
    return won / pairs if pairs else nan


def _pairs_won(values: Floats, known: NDArray[np.bool_]) -> tuple[float, int]:
    """How many pairs of a true and a false item the true one wins (a tie is half a win), and how many there are."""
    false = np.sort(values[~known])
    below = np.searchsorted(false, values[known], side="left")
    upto = np.searchsorted(false, values[known], side="right")
    return float((below + upto).sum() / 2), len(false) * int(known.sum())


def brier(scores: ArrayLike, truth: ArrayLike) -> float:
    """The mean squared difference of probability and truth (Brier, 1950); NaN without items.

    Raises:
        BatchMismatch: like `label_accuracy`, and for scores outside 0..1.
    """
    values, known = _checked(scores, truth)
    return float(np.square(_unit(values) - known).mean()) if len(values) else nan


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """The curve of calibration, one entry a bin.

    Attributes:
        edges: `[bins + 1]`. A bin holds its lower edge and not its upper one; the last holds 1 too.
        counts: `[bins]`, items in each. scores: `[bins]`, their mean score. rates: `[bins]`, the share of true ones.
            NaN in empty bins.
    """

    edges: Floats
    counts: NDArray[np.int64]
    scores: Floats
    rates: Floats


def reliability(scores: ArrayLike, truth: ArrayLike, *, bins: int = 10) -> Reliability:
    """Mean score against the share of true items, in bins of equal width over 0..1.

    Raises:
        ConfigError: fewer than one bin. BatchMismatch: like `brier`.
    """
    if bins < 1:
        raise ConfigError([Problem("bins", f"must be 1 or more, got {bins}")])
    values, known = _checked(scores, truth)
    edges = np.arange(bins + 1) / bins
    place = np.clip(np.searchsorted(edges, _unit(values), side="right") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    some = np.where(counts > 0, counts, 1)
    sums = [np.bincount(place, weights=each, minlength=bins) for each in (values, known.astype(np.float64))]
    means = [np.where(counts > 0, each / some, nan) for each in sums]
    return Reliability(edges, counts.astype(np.int64), means[0], means[1])


def calibration_error(scores: ArrayLike, truth: ArrayLike, *, bins: int = 10) -> float:
    """The expected calibration error: `sum_b n_b / N |rate_b - score_b|` (Naeini et al., AAAI 2015); NaN without items.

    Raises:
        ConfigError, BatchMismatch: like `reliability`.
    """
    curve = reliability(scores, truth, bins=bins)
    full = curve.counts > 0
    gaps = np.abs(curve.rates[full] - curve.scores[full])
    return float((curve.counts[full] * gaps).sum() / curve.counts.sum()) if full.any() else nan


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """All of it for one set of scores: what a report shows. `auc_within` is NaN where no tasks were given."""

    n: int
    accuracy: float
    auc: float
    auc_within: float
    brier: float
    error: float
    curve: Reliability


def calibration(
    scores: ArrayLike, truth: ArrayLike, *, tasks: Sequence[Hashable] | None = None, bins: int = 10, above: float = 0.5
) -> Calibration:
    """Everything this file measures of one set of scores.

    Raises:
        ConfigError, BatchMismatch: as the single functions do.
    """
    return Calibration(
        len(_checked(scores, truth)[0]),
        label_accuracy(scores, truth, above=above),
        auc(scores, truth),
        nan if tasks is None else auc_within(scores, truth, tasks),
        brier(scores, truth),
        calibration_error(scores, truth, bins=bins),
        reliability(scores, truth, bins=bins),
    )

"""The area under the ROC curve, from labels and the scores or probabilities of a program."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["area_of_probabilities", "area_under_curve"]


def area_under_curve(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """Computes the probability that a positive scores higher than a negative, ties counted half (Mann and Whitney).

    With rank sum R_pos of the P positives among P + N rows: area = (R_pos - P (P + 1) / 2) / (P N).

    Args:
        truth: `[N]`. Which rows are positive; both classes must occur.
        scores: `[N]`. Finite scores.

    >>> float(area_under_curve(np.array([False, True, True]), np.array([0.2, 0.2, 0.9])))
    0.75
    """
    _, group_index, group_sizes = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(group_sizes) - (group_sizes - 1) / 2)[group_index]
    positive = int(truth.sum())
    negative = len(truth) - positive
    return float((rank[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


def area_of_probabilities(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Computes the ROC-AUC of class probabilities: of the second class of two, else the mean of one versus the rest.

    Args:
        labels: `[N]`. Classes 0 to C - 1, each of them at least once.
        probabilities: `[N, C]`. Finite; rows need not add up to 1.
    """
    classes = probabilities.shape[1]
    if classes == 2:
        return area_under_curve(labels == 1, probabilities[:, 1])
    return float(np.mean([area_under_curve(labels == label, probabilities[:, label]) for label in range(classes)]))

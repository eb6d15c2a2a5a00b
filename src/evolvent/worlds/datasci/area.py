"""The area under the ROC curve, from labels and what a program says of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["area_of_chances", "area_under_curve"]


def area_under_curve(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """The chance that a positive scores higher than a negative, ties counted half (Mann and Whitney).

    Args:
        truth: `[N]`, which are positive; both kinds must be there.
        scores: `[N]`, finite.
    """
    _, place, times = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(times) - (times - 1) / 2)[place]
    positive = int(truth.sum())
    negative = len(truth) - positive
    return float((rank[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


def area_of_chances(labels: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """ROC-AUC of class probabilities: of the second class where there are two, else the mean of one versus the rest.

    Args:
        labels: `[N]`, 0 to C - 1, each of them at least once.
        chances: `[N, C]`, finite; rows need not add up to 1.
    """
    classes = chances.shape[1]
    if classes == 2:
        return area_under_curve(labels == 1, chances[:, 1])
    return float(np.mean([area_under_curve(labels == k, chances[:, k]) for k in range(classes)]))

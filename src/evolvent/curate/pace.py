"""Self-paced learning: selects the samples of each epoch, the easy ones first.

A pace gives the share of samples learned at a progress of 0..1 (epoch / epochs). Scores are high for easy
samples (`difficulty.mean_logprob_score`), and are recomputed for each epoch with the current model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, Problem

__all__ = ["Pace", "geometric", "linear", "pace_mask", "root"]

Pace = Callable[[float], float]


def linear(progress: float) -> float:
    """Returns a share equal to the progress: P3's pace (arXiv 2408.05541), 20 % more in each of five epochs."""
    return progress


def root(progress: float, *, start: float = 0.0) -> float:
    """Computes sqrt(p (1 - start^2) + start^2): fewer new samples at higher progress (Platanios et al. 2019, eq.
    7).

    Args:
        progress: Progress p, 0 to 1.
        start: Share at progress 0.
    """
    _check_start(start, min_start=0.0)
    return math.sqrt(progress * (1 - start**2) + start**2)


def geometric(progress: float, *, start: float = 0.1) -> float:
    """Computes start^(1 - p): the share grows by the same factor in every epoch (Penha and Hauff 2020, geometric
    pacing).

    Args:
        progress: Progress p, 0 to 1.
        start: Share at progress 0, above 0.
    """
    _check_start(start, min_start=float(np.nextafter(0.0, 1.0)))
    return float(start ** (1 - progress))


def pace_mask(scores: ArrayLike, epoch: int, epochs: int = 5, *, pace: Pace = linear) -> NDArray[np.bool_]:
    """Computes which samples are learned in an epoch: those with a score of at least the percentile that the pace
    leaves.

    In epoch e of E with share p(e / E): `s_i >= percentile(s, 100 - 100 p)`, percentiles interpolated linearly.
    Equal scores are kept or left out together. With a pace that ends at 1 the last epoch keeps all samples.

    Args:
        scores: `[n]`. High for easy samples; n = 0 gives an empty mask.
        epoch: Epoch, 1 to epochs.
        epochs: Number of epochs.
        pace: Progress -> share of samples.
    Returns:
        `[n]` mask of the learned samples.
    Raises:
        ConfigError: an epoch out of range, or a pace that gives no share of 0..1. BatchMismatch: scores that are
            not a vector. NonFinite: NaN or infinity among the scores; names the first.
    """
    if epochs < 1 or not 1 <= epoch <= epochs:
        raise ConfigError([Problem("epoch", f"got {epoch}, expected 1 to {epochs}")])
    share = pace(epoch / epochs)
    if not 0 <= share <= 1:
        raise ConfigError([Problem("pace", f"got the ratio {share} at {epoch / epochs:g}, expected 0 to 1")])
    values = np.asarray(scores, np.float64)
    if values.ndim != 1:
        raise BatchMismatch("scores do not form a vector", value=values.shape, expected="one number per sample")
    if not np.isfinite(values).all():
        first_invalid = int(np.flatnonzero(~np.isfinite(values))[0])
        raise NonFinite(f"the score of sample {first_invalid} is {values[first_invalid]}", expected="a finite number")
    if not len(values):
        return np.zeros(0, np.bool_)
    # Interpolation may round above the least score; at a share of 1 all are kept whatever it gives.
    return values >= (np.percentile(values, 100 - 100 * share) if share < 1 else -np.inf)


def _check_start(start: float, *, min_start: float) -> None:
    if not min_start <= start <= 1:
        raise ConfigError([Problem("start", f"got {start}, expected 0 to 1")])

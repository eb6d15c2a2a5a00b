"""Confidence intervals and paired tests for differences between success rates.

All tests are paired: two policies play the same tasks. Results within one kind of task are correlated, so the
unit of resampling is the group, never the single task.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import atan, cos, nan, pi, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError

__all__ = ["Interval", "crossed_interval", "paired_interval", "sign_flip_p_value", "wilson_interval"]

_NORMAL = NormalDist()
_MAX_FLIPS = 22  # 2^22 sums of 8 bytes: 32 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval around it.

    Args:
        mean: the estimate.
        low, high: the ends of the interval; NaN where there is too little data for one.
        n: number of items that it rests on.
    """

    mean: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        """Returns whether the whole interval lies on one side of `value`."""
        return self.low > value or self.high < value

    def clip(self, low: float, high: float) -> Interval:
        """Returns the interval clipped to the possible range; intervals of few groups may reach beyond it."""
        return Interval(self.mean, float(np.clip(self.low, low, high)), float(np.clip(self.high, low, high)), self.n)


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Computes Wilson's score interval of a success rate; never outside 0..1, and not empty at 0 or n successes.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.

    `(p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)` with the rate p.

    Raises:
        ConfigError: no items, or more successes than items.

    >>> interval = wilson_interval(8, 10)
    >>> interval.mean, round(interval.low, 3), round(interval.high, 3)
    (0.8, 0.49, 0.943)
    """
    if n < 1 or not 0 <= successes <= n:
        raise ConfigError(
            "cannot compute a success rate", value=(successes, n), expected="0 <= successes <= n and n >= 1"
        )
    z, rate = _NORMAL.inv_cdf(0.5 + level / 2), successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    return Interval(rate, low, 1.0 if successes == n else centre + half, n)


def paired_interval(
    a: Sequence[float],
    b: Sequence[float],
    *,
    levels: Sequence[Sequence[Hashable]] = (),
    strata: Sequence[Hashable] | None = None,
    resamples: int = 4000,
    level: float = 0.95,
    rng: np.random.Generator,
) -> Interval:
    """Computes the mean of `a - b` over paired items, with a bootstrap interval over groups of items.

    Groups are drawn with replacement at the outermost level that has at least two groups, and bring all their items.
    Resampling inside a drawn group would count the noise inside it twice (Davison and Hinkley, "Bootstrap Methods and
    their Application", 1997, section 3.8). The percentiles are widened for few groups (Hesterberg, "What Teachers
    Should Know about the Bootstrap", 2015, section 3.4: the expanded percentile interval). Percentiles that so few
    draws cannot show (below 5 groups) are replaced as in `crossed_interval`.

    Args:
        a, b: `[N]` scores of the same items in the same order.
        levels: for each level a list of `[N]` labels, outermost first, such as (seeds, kinds, tasks). Labels are read
            inside their outer group: kind "x" of seed 0 and of seed 1 are two groups. Empty: every item is a group.
        strata: `[N]` labels of a fixed factor that is not sampled, such as worlds. Groups are drawn inside each
            stratum, and the mean is the plain mean over strata of their means.

    Raises:
        BatchMismatch: lengths differ.
        ConfigError: there are no items.

    >>> paired_interval([1, 1, 0, 1], [0, 1, 0, 0], rng=np.random.default_rng(0)).mean
    0.5
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64) if len(a) == len(b) else None
    lengths = [len(a), len(b), *(len(labels) for labels in levels), *([len(strata)] if strata is not None else [])]
    if difference is None or len(set(lengths)) != 1:
        raise BatchMismatch("paired items and their labels differ in length", value=lengths)
    if not len(difference):
        raise ConfigError("no items to compare", value=0, expected="at least one pair")
    stratum_index = np.unique([repr(label) for label in strata or [0] * len(difference)], return_inverse=True)[1]
    means, resampled_means, counts = [], [], []
    for stratum in range(int(stratum_index.max()) + 1):
        members = np.flatnonzero(stratum_index == stratum).tolist()
        groups = _assign_groups([[labels[i] for i in members] for labels in levels], len(members))
        means.append(float(difference[members].mean()))
        resampled_means.append(_resample_means(difference[members], groups, resamples=resamples, rng=rng))
        counts.append(len(set(groups)))
    mean, averaged_means, num_groups = float(np.mean(means)), np.mean(resampled_means, axis=0), sum(counts)
    low, high = _interval_ends(mean, averaged_means, groups=num_groups, freedom=num_groups - len(counts), level=level)
    return Interval(mean, *((low, high) if min(counts) > 1 else (nan, nan)), len(difference))


def crossed_interval(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    kinds: Sequence[Hashable],
    strata: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
    resamples: int = 4000,
    level: float = 0.95,
    rng: np.random.Generator,
) -> Interval:
    """Computes the mean of `a - b` where every seed plays every task, with an interval over seeds and tasks.

    Seeds and tasks are crossed, not nested: a good seed is good on all tasks, and a hard task is hard for all seeds.
    Seeds are drawn once for all tasks, kinds of tasks once for all seeds, and a score counts as often as its seed times
    its kind were drawn (the pigeonhole bootstrap: Owen, "The pigeonhole bootstrap", AOAS 2007). The interval errs on
    the wide side: noise that belongs to neither seed nor kind is counted up to three times. The percentiles are widened
    for few seeds, as in `paired_interval` for few groups. In simulations of 8 seeds its 95 % intervals cover 97 % where
    seeds differ most and above 99 % where they hardly differ. Percentiles that so few draws cannot show (below 5 seeds)
    are replaced by Student's t times the standard deviation of the resampled means.

    Args:
        a, b: `[S, N]` scores of the same S seeds on the same N tasks.
        kinds: `[N]` labels; tasks of one kind are drawn together, or each by itself in a stratum of only one kind.
        strata: `[N]` labels of a fixed factor that is not sampled, such as panels. Kinds are drawn inside each stratum.
        weights: relative weight of the mean of each stratum; None: all the same.

    Returns:
        An interval with `n` = S x N. Its ends are NaN with one seed, or with one task in a stratum.

    Raises:
        BatchMismatch: shapes differ.
        ConfigError: there are no scores, or weights are not positive.

    >>> a, b = [[1, 1, 0], [1, 0, 0]], [[0, 1, 0], [1, 0, 0]]
    >>> interval = crossed_interval(a, b, kinds=["x", "y", "z"], rng=np.random.default_rng(0))
    >>> round(interval.mean, 3), interval.n
    (0.167, 6)
    """
    labels = list(strata) if strata is not None else [""] * len(kinds)
    difference = _subtract_scores(a, b, kinds=kinds, labels=labels)
    shares = {label: 1.0 if weights is None else float(weights.get(label, nan)) for label in labels}
    if not difference.size or not all(share > 0 for share in shares.values()):
        raise ConfigError(
            "not enough data to compare",
            value=difference.shape if weights is None else dict(weights),
            expected="at least one seed and task, and a positive weight for each stratum",
        )
    seeds = len(difference)
    seed_counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    mean, min_groups, resampled_means = 0.0, seeds, np.zeros(resamples)
    for label, share in shares.items():
        members = [column for column, column_label in enumerate(labels) if column_label == label]
        groups = _assign_groups([[kinds[column] for column in members]], len(members))
        mean += share * float(difference[:, members].mean())
        resampled_means += share * _pigeonhole_means(difference[:, members], groups, seed_counts=seed_counts, rng=rng)
        min_groups = min(min_groups, len(set(groups)))
    total_share = sum(shares.values())
    mean, resampled_means = mean / total_share, resampled_means / total_share
    low, high = _interval_ends(mean, resampled_means, groups=seeds, freedom=seeds - 1, level=level)
    return Interval(mean, *((low, high) if min_groups > 1 else (nan, nan)), difference.size)


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Computes the exact two-sided p-value that the differences (one per seed) are symmetric around 0.

    All 2^n ways to flip their signs are counted. The smallest p is 2 / 2^n: 8 seeds reach .0078, 5 only .0625.

    Raises:
        ConfigError: there are no differences, or more than 22.

    >>> sign_flip_p_value([1.0, 2.0, 3.0])
    0.25
    """
    if not 1 <= len(differences) <= _MAX_FLIPS:
        raise ConfigError(
            "number of differences out of range for an exact test",
            value=len(differences),
            expected=f"1 to {_MAX_FLIPS} differences",
        )
    sums = np.zeros(1)
    for size in np.abs(np.asarray(differences, dtype=np.float64)):
        sums = np.concatenate([sums + size, sums - size])
    observed = abs(float(np.sum(differences)))
    tolerance = 1e-9 * max(1.0, float(np.abs(differences).sum()))
    return float(np.mean(np.abs(sums) >= observed - tolerance))


def _assign_groups(levels: Sequence[Sequence[Hashable]], n: int) -> list[Hashable]:
    """Returns the group of each item: its path of labels down to the first level with at least two groups, else
    itself.
    """
    for depth in range(1, len(levels) + 1):
        paths: list[Hashable] = list(zip(*levels[:depth], strict=True))
        if len(set(paths)) > 1:
            return paths
    return list(range(n))


def _resample_means(
    values: NDArray[np.float64], groups: Sequence[Hashable], *, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Computes `[R]` means of whole groups drawn with replacement."""
    group_index = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    index = np.array([group_index[group] for group in groups])
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    draw_counts = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=resamples)
    means: NDArray[np.float64] = (draw_counts @ sums) / (draw_counts @ sizes)
    return means


def _subtract_scores(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    kinds: Sequence[Hashable],
    labels: Sequence[Hashable],
) -> NDArray[np.float64]:
    """Computes `[S, N]` a - b; raises BatchMismatch where the shapes of scores and labels do not agree."""
    a_scores, b_scores = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a_scores.ndim != 2 or a_scores.shape != b_scores.shape or not a_scores.shape[1] == len(kinds) == len(labels):
        shapes = (a_scores.shape, b_scores.shape, len(kinds), len(labels))
        raise BatchMismatch("crossed scores and their labels differ in shape", value=shapes)
    difference: NDArray[np.float64] = a_scores - b_scores
    return difference


def _pigeonhole_means(
    values: NDArray[np.float64],
    groups: Sequence[Hashable],
    *,
    seed_counts: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Computes `[R]` means of `[S, N]` values: rows weighted by `seed_counts`, columns resampled here in whole
    groups.
    """
    group_index = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    membership = np.zeros((len(groups), len(group_index)))
    membership[np.arange(len(groups)), [group_index[group] for group in groups]] = 1.0
    draw_counts = rng.multinomial(
        len(group_index), np.full(len(group_index), 1 / len(group_index)), size=seed_counts.shape[0]
    )
    sums = ((seed_counts @ (values @ membership)) * draw_counts).sum(axis=1)
    means: NDArray[np.float64] = sums / (len(values) * (draw_counts @ membership.sum(axis=0)))
    return means


def _interval_ends(
    mean: float, resampled_means: NDArray[np.float64], *, groups: int, freedom: int, level: float
) -> tuple[float, float]:
    """Computes low and high percentiles of means `[R]`, cut so that few groups give as wide an interval as Student's
    t.

    A percentile that lies outside all draws is replaced by that many of their standard deviations. Both are NaN without
    degrees of freedom.
    """
    if freedom < 1:
        return nan, nan
    tail = _NORMAL.cdf(-_expanded_t(groups, freedom, level))
    if tail * len(resampled_means) < 1:
        reach = _expanded_t(groups, freedom, level) * float(resampled_means.std())
        return mean - reach, mean + reach
    low, high = np.quantile(resampled_means, [tail, 1 - tail])
    return float(low), float(high)


def _expanded_t(groups: int, freedom: int, level: float) -> float:
    """Computes Student's t in standard deviations of a bootstrap, whose variance is too small by freedom / groups."""
    return sqrt(groups / freedom) * _t_quantile(0.5 + level / 2, freedom)


def _t_quantile(p: float, freedom: int) -> float:
    """Computes the quantile of Student's t (p > 0.5), by bisection of its distribution function."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _t_central_probability(middle, freedom) / 2 < p else (low, middle)
    return (low + high) / 2


def _t_central_probability(t: float, freedom: int) -> float:
    """Computes P(|T| <= t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    theta = atan(t / sqrt(freedom))
    cosine, odd = cos(theta), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 or not odd else 0.0
    for k in range(2 if odd else 1, freedom - 1, 2):
        term *= cosine * cosine * k / (k + 1)
        total += term
    sine = t / sqrt(freedom) * cosine
    return 2 / pi * (theta + sine * total) if odd else sine * total

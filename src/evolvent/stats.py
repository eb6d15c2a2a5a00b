"""Intervals and paired tests for success rates: what a difference between two runs is worth.

Everything here is about pairs: the same tasks, played by two policies. Tasks of one kind stand or fall together, so the
unit that is drawn again is the group, never the single task.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import atan, cos, nan, pi, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError

__all__ = ["Interval", "crossed", "paired", "sign_flip", "wilson"]

_NORMAL = NormalDist()
_MOST_FLIPS = 22  # 2^22 sums of 8 bytes: 32 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval around it.

    Args:
        mean: the estimate.
        low, high: the ends of the interval; NaN where there is too little data for one.
        n: how many items it rests on.
    """

    mean: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        """Whether the whole interval lies on one side of `value`."""
        return self.low > value or self.high < value

    def within(self, low: float, high: float) -> Interval:
        """The same between the least and the greatest that is possible: those of few groups reach beyond."""
        return Interval(self.mean, float(np.clip(self.low, low, high)), float(np.clip(self.high, low, high)), self.n)


def wilson(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a success rate; never outside 0..1, and not empty at 0 or n successes.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.

    Raises:
        ConfigError: no items, or more successes than items.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ConfigError("no success rate", value=(successes, n), expected="0 <= successes <= n and n >= 1")
    z, rate = _NORMAL.inv_cdf(0.5 + level / 2), successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    return Interval(rate, low, 1.0 if successes == n else centre + half, n)


def paired(
    a: Sequence[float],
    b: Sequence[float],
    *,
    levels: Sequence[Sequence[Hashable]] = (),
    strata: Sequence[Hashable] | None = None,
    resamples: int = 4000,
    level: float = 0.95,
    rng: np.random.Generator,
) -> Interval:
    """The mean of `a - b` over paired items, with a bootstrap interval over groups of items.

    Groups are drawn with replacement at the outermost level that has at least two groups, and come with everything in
    them. Drawing again inside a drawn group would count the noise inside it twice (Davison and Hinkley, "Bootstrap
    Methods and their Application", 1997, section 3.8). The percentiles are widened for few groups (Hesterberg, "What
    Teachers Should Know about the Bootstrap", 2015, section 3.4: the expanded percentile interval); those that so few
    draws cannot show (below 5 groups) are replaced as those of `crossed` are.

    Args:
        a, b: `[N]` scores of the same items in the same order.
        levels: for each level a list of `[N]` labels, outermost first, such as (seeds, kinds, tasks). Labels are read
            inside their outer group: kind "x" of seed 0 and of seed 1 are two groups. None: every item is a group.
        strata: `[N]` labels of what is fixed and not sampled, such as worlds. Groups are drawn inside each of them, and
            the mean is the plain mean over strata of their means.

    Raises:
        BatchMismatch: lengths differ. ConfigError: no items.
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64) if len(a) == len(b) else None
    lengths = [len(a), len(b), *(len(labels) for labels in levels), *([len(strata)] if strata is not None else [])]
    if difference is None or len(set(lengths)) != 1:
        raise BatchMismatch("paired items and their labels differ in length", value=lengths)
    if not len(difference):
        raise ConfigError("no items to compare", value=0, expected="at least one pair")
    fixed = np.unique([repr(label) for label in strata or [0] * len(difference)], return_inverse=True)[1]
    means, drawn, counts = [], [], []
    for stratum in range(int(fixed.max()) + 1):
        inside = np.flatnonzero(fixed == stratum).tolist()
        groups = _groups([[labels[i] for i in inside] for labels in levels], len(inside))
        means.append(float(difference[inside].mean()))
        drawn.append(_resampled(difference[inside], groups, resamples=resamples, rng=rng))
        counts.append(len(set(groups)))
    mean, whole, groups_in_all = float(np.mean(means)), np.mean(drawn, axis=0), sum(counts)
    low, high = _ends(mean, whole, groups=groups_in_all, freedom=groups_in_all - len(counts), level=level)
    return Interval(mean, *((low, high) if min(counts) > 1 else (nan, nan)), len(difference))


def crossed(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    kinds: Sequence[Hashable],
    strata: Sequence[Hashable] | None = None,
    weights: Mapping[Any, float] | None = None,
    resamples: int = 4000,
    level: float = 0.95,
    rng: np.random.Generator,
) -> Interval:
    """The mean of `a - b` where every seed plays every task, with an interval for other seeds and other tasks.

    Seeds and tasks are crossed, not nested: a seed that is good is good on all tasks, a hard task is hard for all
    seeds. Seeds are drawn again once for all tasks, kinds of tasks once for all seeds, and a score counts as often as
    its seed times its kind were drawn (the pigeonhole bootstrap: Owen, "The pigeonhole bootstrap", AOAS 2007). It errs
    on the wide side: what is neither of the seed nor of the kind is counted up to three times. The percentiles are
    widened for few seeds, as those of `paired` are for few groups. In simulations of 8 seeds its 95 % intervals cover
    97 % where seeds differ most and above 99 % where they hardly do. Percentiles that so few draws cannot show (below 5
    seeds) are replaced by as many standard deviations of the drawn means, as Student's t would have it.

    Args:
        a, b: `[S, N]` scores of the same S seeds on the same N tasks.
        kinds: `[N]` labels; tasks of one kind are drawn together, or each by itself in a stratum of only one kind.
        strata: `[N]` labels of what is fixed and not sampled, such as panels. Kinds are drawn inside each of them.
        weights: how much the mean of each stratum counts, relative to the others; None: all the same.

    Returns:
        An interval with `n` = S x N. Its ends are NaN with one seed, or with one task in a stratum.

    Raises:
        BatchMismatch: shapes differ. ConfigError: no scores, or weights that are not positive.
    """
    labels = list(strata) if strata is not None else [0] * len(kinds)
    difference = _differences(a, b, kinds=kinds, labels=labels)
    shares = {label: 1.0 if weights is None else float(weights.get(label, nan)) for label in labels}
    if not difference.size or not all(share > 0 for share in shares.values()):
        raise ConfigError(
            "nothing to compare",
            value=difference.shape if weights is None else dict(weights),
            expected="at least one seed and task, and a positive weight for each stratum",
        )
    seeds = len(difference)
    seed_times = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    mean, fewest, drawn = 0.0, seeds, np.zeros(resamples)
    for label, share in shares.items():
        inside = [at for at, own in enumerate(labels) if own == label]
        groups = _groups([[kinds[at] for at in inside]], len(inside))
        mean += share * float(difference[:, inside].mean())
        drawn += share * _pigeonhole(difference[:, inside], groups, seed_times=seed_times, rng=rng)
        fewest = min(fewest, len(set(groups)))
    whole = sum(shares.values())
    mean, drawn = mean / whole, drawn / whole
    low, high = _ends(mean, drawn, groups=seeds, freedom=seeds - 1, level=level)
    return Interval(mean, *((low, high) if fewest > 1 else (nan, nan)), difference.size)


def sign_flip(differences: Sequence[float]) -> float:
    """The exact two-sided p-value that the differences (one per seed) are symmetric around 0.

    Every one of the 2^n ways to flip their signs is counted. The smallest p is 2 / 2^n: 8 seeds reach .0078, 5 only
    .0625.

    Raises:
        ConfigError: none, or more than 22 differences.
    """
    if not 1 <= len(differences) <= _MOST_FLIPS:
        raise ConfigError("no exact test", value=len(differences), expected=f"1 to {_MOST_FLIPS} differences")
    sums = np.zeros(1)
    for size in np.abs(np.asarray(differences, dtype=np.float64)):
        sums = np.concatenate([sums + size, sums - size])
    seen = abs(float(np.sum(differences)))
    tolerance = 1e-9 * max(1.0, float(np.abs(differences).sum()))
    return float(np.mean(np.abs(sums) >= seen - tolerance))


def _groups(levels: Sequence[Sequence[Hashable]], n: int) -> list[Hashable]:
    """The group of each item: its path of labels down to the first level with at least two groups, else itself."""
    for depth in range(1, len(levels) + 1):
        paths: list[Hashable] = list(zip(*levels[:depth], strict=True))
        if len(set(paths)) > 1:
            return paths
    return list(range(n))


def _resampled(
    values: NDArray[np.float64], groups: Sequence[Hashable], *, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """`[R]` means of whole groups drawn with replacement."""
    place = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    index = np.array([place[group] for group in groups])
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    times = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=resamples)
    means: NDArray[np.float64] = (times @ sums) / (times @ sizes)
    return means


def _differences(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    kinds: Sequence[Hashable],
    labels: Sequence[Hashable],
) -> NDArray[np.float64]:
    """`[S, N]` a - b; raises BatchMismatch where the shapes of scores and labels do not agree."""
    one, other = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if one.ndim != 2 or one.shape != other.shape or not one.shape[1] == len(kinds) == len(labels):
        shapes = (one.shape, other.shape, len(kinds), len(labels))
        raise BatchMismatch("crossed scores and their labels differ in shape", value=shapes)
    difference: NDArray[np.float64] = one - other
    return difference


def _pigeonhole(
    values: NDArray[np.float64],
    groups: Sequence[Hashable],
    *,
    seed_times: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """`[R]` means of `[S, N]` values: rows as often as drawn, columns in whole groups that are drawn here."""
    place = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    member = np.zeros((len(groups), len(place)))
    member[np.arange(len(groups)), [place[group] for group in groups]] = 1.0
    times = rng.multinomial(len(place), np.full(len(place), 1 / len(place)), size=seed_times.shape[0])
    sums = ((seed_times @ (values @ member)) * times).sum(axis=1)
    means: NDArray[np.float64] = sums / (len(values) * (times @ member.sum(axis=0)))
    return means


def _ends(mean: float, drawn: NDArray[np.float64], *, groups: int, freedom: int, level: float) -> tuple[float, float]:
    """Low and high of drawn means `[R]`, cut so that few groups give as wide an interval as Student's t would.

    A percentile that lies outside of all draws is replaced by as many of their standard deviations. NaN where nothing
    is free.
    """
    if freedom < 1:
        return nan, nan
    tail = _NORMAL.cdf(-_expansion(groups, freedom, level))
    if tail * len(drawn) < 1:
        reach = _expansion(groups, freedom, level) * float(drawn.std())
        return mean - reach, mean + reach
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def _expansion(groups: int, freedom: int, level: float) -> float:
    """The t of so many standard deviations of a bootstrap, whose variance is too small by freedom / groups."""
    return sqrt(groups / freedom) * _t_quantile(0.5 + level / 2, freedom)


def _t_quantile(p: float, freedom: int) -> float:
    """The quantile of Student's t (p > 0.5), by bisection of its distribution function."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _t_centre(middle, freedom) / 2 < p else (low, middle)
    return (low + high) / 2


def _t_centre(t: float, freedom: int) -> float:
    """P(|T| <= t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    theta = atan(t / sqrt(freedom))
    cosine, odd = cos(theta), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 or not odd else 0.0
    for k in range(2 if odd else 1, freedom - 1, 2):
        term *= cosine * cosine * k / (k + 1)
        total += term
    sine = t / sqrt(freedom) * cosine
    return 2 / pi * (theta + sine * total) if odd else sine * total

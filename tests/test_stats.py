"""Intervals against published values, exact enumeration, and simulated data where the truth is known."""

from __future__ import annotations

import itertools
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.stats import Interval, paired, sign_flip, wilson
from evolvent.stats import _t_quantile as t_quantile


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_published_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
    assert interval.mean == successes / n


@given(n=st.integers(1, 500), data=st.data())
def test_wilson_is_symmetric_and_inside_the_unit_interval(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    one, other = wilson(successes, n), wilson(n - successes, n)
    assert 0 <= one.low <= one.mean <= one.high <= 1
    assert one.low == pytest.approx(1 - other.high)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_what_is_no_rate(successes: int, n: int) -> None:
    with pytest.raises(ConfigError, match="no success rate"):
        wilson(successes, n)


@pytest.mark.parametrize(("seeds", "p"), [(1, 1.0), (5, 0.0625), (6, 0.03125), (8, 0.0078125)])
def test_sign_flip_smallest_p(seeds: int, p: float) -> None:
    assert sign_flip([0.01 * (k + 1) for k in range(seeds)]) == p


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_sign_flip_equals_enumeration(differences: list[int]) -> None:
    flips = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    expected = sum(total >= abs(sum(differences)) for total in sums) / len(sums)
    assert sign_flip([d / 10 for d in differences]) == pytest.approx(expected)


@pytest.mark.parametrize("count", [0, 23])
def test_sign_flip_refuses_what_it_cannot_enumerate(count: int) -> None:
    with pytest.raises(ConfigError, match="1 to 22"):
        sign_flip([1.0] * count)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (7, 2.3646), (30, 2.0423)])
def test_t_quantile_table(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("between", "per_group"), [(0.0, 7), (0.6, 7), (1.0, 3)])
def test_paired_interval_covers_the_truth(between: float, per_group: int) -> None:
    """600 simulated studies of 30 kinds: the interval holds the true difference in 93 to 97 % of them."""
    rng = np.random.default_rng(7)
    kinds = np.repeat(np.arange(30), per_group).tolist()
    covered = 0
    for _ in range(600):
        truth = np.repeat(rng.normal(0.1, between, 30), per_group)
        a = truth + rng.normal(0, 1, len(truth))
        interval = paired(a.tolist(), [0.0] * len(a), levels=[kinds], resamples=500, rng=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.93 <= covered / 600 <= 0.97


def test_kinds_that_stand_or_fall_together_widen_the_interval() -> None:
    a = [1.0] * 50 + [0.0] * 50
    zeros, rng = [0.0] * 100, np.random.default_rng(0)
    kinds = [k // 10 for k in range(100)]
    loose = paired(a, zeros, levels=[kinds], rng=rng)
    tight = paired(a, zeros, rng=rng)
    assert loose.high - loose.low > 2 * (tight.high - tight.low)
    assert loose.mean == tight.mean == 0.5


def test_a_level_with_one_group_is_passed_over() -> None:
    a, kinds = [1.0, 0.0] * 20, [k % 10 for k in range(40)]
    with_seed = paired(a, [0.0] * 40, levels=[["seed 0"] * 40, kinds], rng=np.random.default_rng(3))
    without = paired(a, [0.0] * 40, levels=[kinds], rng=np.random.default_rng(3))
    assert with_seed == without


def test_strata_count_equally_whatever_their_size() -> None:
    a = [1.0] * 10 + [0.0] * 30
    interval = paired(a, [0.0] * 40, strata=["one"] * 10 + ["two"] * 30, rng=np.random.default_rng(0))
    assert interval == Interval(0.5, 0.5, 0.5, 40)  # no difference inside a world, so nothing is uncertain


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40))
def test_swapping_the_arms_mirrors_the_interval(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    one = paired(a, b, resamples=200, rng=np.random.default_rng(1))
    other = paired(b, a, resamples=200, rng=np.random.default_rng(1))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.low - 1e-12 <= one.mean <= one.high + 1e-12


def test_one_item_has_no_interval() -> None:
    interval = paired([1.0], [0.0], rng=np.random.default_rng(0))
    assert interval.mean == 1.0
    assert isnan(interval.low)
    assert not interval.excludes(0.0)


def test_lengths_and_emptiness_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BatchMismatch, match="differ in length"):
        paired([1.0], [1.0, 0.0], rng=rng)
    with pytest.raises(BatchMismatch, match="differ in length"):
        paired([1.0, 0.0], [1.0, 0.0], levels=[["x"]], rng=rng)
    with pytest.raises(ConfigError, match="no items"):
        paired([], [], rng=rng)

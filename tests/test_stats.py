"""Intervals against published values, exact enumeration, and simulated data where the truth is known."""

from __future__ import annotations

import itertools
from math import isnan, nan
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.stats import Interval, crossed_interval, paired_interval, sign_flip_p_value, wilson_interval
from evolvent.stats import _t_quantile as t_quantile


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_published_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
    assert interval.mean == successes / n


@given(n=st.integers(1, 500), data=st.data())
def test_wilson_is_symmetric_and_inside_the_unit_interval(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    one, other = wilson_interval(successes, n), wilson_interval(n - successes, n)
    assert 0 <= one.low <= one.mean <= one.high <= 1
    assert one.low == pytest.approx(1 - other.high)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_what_is_no_rate(successes: int, n: int) -> None:
    with pytest.raises(ConfigError, match="cannot compute a success rate"):
        wilson_interval(successes, n)


@pytest.mark.parametrize(("seeds", "p"), [(1, 1.0), (5, 0.0625), (6, 0.03125), (8, 0.0078125)])
def test_sign_flip_smallest_p(seeds: int, p: float) -> None:
    assert sign_flip_p_value([0.01 * (k + 1) for k in range(seeds)]) == p


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_sign_flip_equals_enumeration(differences: list[int]) -> None:
    flips = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    expected = sum(total >= abs(sum(differences)) for total in sums) / len(sums)
    assert sign_flip_p_value([d / 10 for d in differences]) == pytest.approx(expected)


@pytest.mark.parametrize("count", [0, 23])
def test_sign_flip_refuses_what_it_cannot_enumerate(count: int) -> None:
    with pytest.raises(ConfigError, match="1 to 22"):
        sign_flip_p_value([1.0] * count)


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
        interval = paired_interval(a.tolist(), [0.0] * len(a), levels=[kinds], resamples=500, rng=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.93 <= covered / 600 <= 0.97


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_paired_interval_of_very_few_groups_covers_the_truth(groups: int) -> None:
    """The range of what two groups can be drawn to, which percentiles end at, would hold it half of the time."""
    rng, covered = np.random.default_rng(5), 0
    kinds = np.repeat(np.arange(groups), 5).tolist()
    for _ in range(400):
        a = np.repeat(rng.normal(0.1, 0.3, groups), 5) + rng.normal(0, 0.3, 5 * groups)
        interval = paired_interval(a.tolist(), [0.0] * len(a), levels=[kinds], resamples=1000, rng=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.92 <= covered / 400 <= 0.98


def test_two_groups_are_as_unsure_as_student_says() -> None:
    """Means 1 and 3: drawn means are 1, 2, 2 and 3, with a standard deviation of 1 / sqrt(2)."""
    interval = paired_interval([1.0, 3.0], [0.0, 0.0], resamples=50_000, rng=np.random.default_rng(1))
    assert (interval.mean, interval.n) == (2.0, 2)
    assert interval.high - 2 == pytest.approx(12.7062, rel=0.01) == 2 - interval.low


def test_an_interval_keeps_to_what_is_possible() -> None:
    assert Interval(0.5, -0.9, 1.9, 3).clip(0.0, 1.0) == Interval(0.5, 0.0, 1.0, 3)
    assert Interval(0.5, 0.2, 0.9, 3).clip(0.0, 1.0) == Interval(0.5, 0.2, 0.9, 3)
    unknown = Interval(0.5, nan, nan, 1).clip(0.0, 1.0)
    assert isnan(unknown.low) and isnan(unknown.high)


def test_kinds_that_stand_or_fall_together_widen_the_interval() -> None:
    a = [1.0] * 50 + [0.0] * 50
    zeros, rng = [0.0] * 100, np.random.default_rng(0)
    kinds = [k // 10 for k in range(100)]
    loose = paired_interval(a, zeros, levels=[kinds], rng=rng)
    tight = paired_interval(a, zeros, rng=rng)
    assert loose.high - loose.low > 2 * (tight.high - tight.low)
    assert loose.mean == tight.mean == 0.5


def test_a_level_with_one_group_is_passed_over() -> None:
    a, kinds = [1.0, 0.0] * 20, [k % 10 for k in range(40)]
    with_seed = paired_interval(a, [0.0] * 40, levels=[["seed 0"] * 40, kinds], rng=np.random.default_rng(3))
    without = paired_interval(a, [0.0] * 40, levels=[kinds], rng=np.random.default_rng(3))
    assert with_seed == without


def test_strata_count_equally_whatever_their_size() -> None:
    a = [1.0] * 10 + [0.0] * 30
    interval = paired_interval(a, [0.0] * 40, strata=["one"] * 10 + ["two"] * 30, rng=np.random.default_rng(0))
    assert interval == Interval(0.5, 0.5, 0.5, 40)  # no difference inside a world, so nothing is uncertain


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40))
def test_swapping_the_arms_mirrors_the_interval(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    one = paired_interval(a, b, resamples=200, rng=np.random.default_rng(1))
    other = paired_interval(b, a, resamples=200, rng=np.random.default_rng(1))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.low - 1e-12 <= one.mean <= one.high + 1e-12


def test_one_item_has_no_interval() -> None:
    interval = paired_interval([1.0], [0.0], rng=np.random.default_rng(0))
    assert interval.mean == 1.0
    assert isnan(interval.low)
    assert not interval.excludes(0.0)


def test_lengths_and_emptiness_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BatchMismatch, match="differ in length"):
        paired_interval([1.0], [1.0, 0.0], rng=rng)
    with pytest.raises(BatchMismatch, match="differ in length"):
        paired_interval([1.0, 0.0], [1.0, 0.0], levels=[["x"]], rng=rng)
    with pytest.raises(ConfigError, match="no items"):
        paired_interval([], [], rng=rng)


# ---------------------------------------------------------------- seeds and tasks crossed


@pytest.mark.parametrize(
    ("seed_effect", "kind_effect", "both", "noise", "least"),
    [(0.10, 0.05, 0.02, 0.3, 0.90), (0.05, 0.20, 0.05, 0.3, 0.92), (0.10, 0.00, 0.00, 0.3, 0.90)],
)
def test_crossed_interval_covers_the_truth(seed_effect, kind_effect, both, noise, least) -> None:
    """400 simulated studies of 8 seeds, 25 kinds and 4 tasks a kind, with effects of seeds, kinds and their pairs."""
    rng, covered = np.random.default_rng(11), 0
    kinds = np.repeat(np.arange(25), 4).tolist()
    for _ in range(400):
        effects = (
            rng.normal(0, seed_effect, (8, 1)) + rng.normal(0, kind_effect, (1, 25)) + rng.normal(0, both, (8, 25))
        )
        a = 0.1 + np.repeat(effects, 4, axis=1) + rng.normal(0, noise, (8, 100))
        interval = crossed_interval(a, np.zeros((8, 100)), kinds=kinds, resamples=400, rng=rng)
        covered += interval.low <= 0.1 <= interval.high
    assert least <= covered / 400 <= 0.995


def test_pairing_inside_a_seed_alone_would_promise_too_much() -> None:
    """Where seeds differ, intervals that draw kinds but not seeds miss the truth far too often."""
    rng, kinds = np.random.default_rng(3), np.repeat(np.arange(25), 4).tolist()
    alone = together = 0
    for _ in range(150):
        a = 0.1 + rng.normal(0, 0.1, (8, 1)) + rng.normal(0, 0.2, (8, 100))
        means = a.mean(axis=0)
        naive = paired_interval(means.tolist(), [0.0] * 100, levels=[kinds], resamples=300, rng=rng)
        whole = crossed_interval(a, np.zeros_like(a), kinds=kinds, resamples=300, rng=rng)
        alone += naive.low <= 0.1 <= naive.high
        together += whole.low <= 0.1 <= whole.high
    assert alone / 150 < 0.8
    assert together / 150 > 0.9


def test_crossed_mean_is_worked_by_hand() -> None:
    a = [[1, 1, 0, 0, 1], [1, 0, 0, 0, 1]]
    b = [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    strata, kinds = ["x", "x", "x", "x", "y"], [1, 1, 2, 2, 1]
    rng = np.random.default_rng(0)
    # stratum x: (1 + 0 + 0 + 0 + 1 + 0 - 1 + 0) / 8 = 1/8; stratum y: (1 + 1) / 2 = 1
    assert crossed_interval(a, b, kinds=kinds, strata=strata, rng=rng).mean == pytest.approx((1 / 8 + 1) / 2)
    weighted = crossed_interval(a, b, kinds=kinds, strata=strata, weights={"x": 1, "y": 3}, rng=rng)
    assert weighted.mean == pytest.approx((1 / 8 + 3) / 4)
    assert weighted.n == 10


def draws(d: np.ndarray, kinds: list[str]) -> list[float]:
    """The means of all ways to draw seeds and kinds, each equally likely."""
    names, means = sorted(set(kinds)), []
    for seeds in itertools.product(range(len(d)), repeat=len(d)):
        for drawn in itertools.product(names, repeat=len(names)):
            columns = [at for kind in drawn for at, own in enumerate(kinds) if own == kind]
            means.append(float(d[np.ix_(seeds, columns)].mean()))
    return means


def test_crossed_bootstrap_equals_enumeration() -> None:
    d, kinds = np.random.default_rng(4).normal(0.1, 1, (5, 3)), ["p", "p", "q"]
    tail = NormalDist().cdf(-((5 / 4) ** 0.5) * 2.7764)
    low, high = np.quantile(draws(d, kinds), [tail, 1 - tail])
    found = crossed_interval(d, np.zeros_like(d), kinds=kinds, resamples=100_000, rng=np.random.default_rng(1))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_two_seeds_are_as_unsure_as_student_says() -> None:
    d, kinds = np.array([[0.0, 2.0, 5.0], [1.0, 0.0, -4.0]]), ["p", "p", "q"]
    reach = 2**0.5 * 12.7062 * float(np.std(draws(d, kinds)))
    found = crossed_interval(d, np.zeros_like(d), kinds=kinds, resamples=50_000, rng=np.random.default_rng(1))
    assert found.mean == pytest.approx(d.mean())
    assert (found.high - found.mean, found.mean - found.low) == (pytest.approx(reach, rel=0.01),) * 2


def test_seeds_are_drawn_together_in_all_strata() -> None:
    """A seed effect with opposite sign in two strata cancels exactly, if both strata draw the same seeds."""
    effect = np.linspace(-1, 1, 8)[:, None]
    a = np.concatenate([np.repeat(effect, 10, axis=1), np.repeat(-effect, 10, axis=1)], axis=1)
    strata, kinds = ["one"] * 10 + ["two"] * 10, list(range(20))
    interval = crossed_interval(a, np.zeros_like(a), kinds=kinds, strata=strata, rng=np.random.default_rng(0))
    assert (interval.low, interval.high) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.0, abs=1e-12))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 5), st.integers(2, 12), st.integers(0, 10**6))
def test_swapping_crossed_sides_mirrors_the_interval(seeds: int, tasks: int, number: int) -> None:
    draw = np.random.default_rng(number)
    a, b = draw.integers(0, 2, (2, seeds, tasks)).astype(float)
    kinds = draw.integers(0, 4, tasks).tolist()
    one = crossed_interval(a, b, kinds=kinds, resamples=200, rng=np.random.default_rng(1))
    other = crossed_interval(b, a, kinds=kinds, resamples=200, rng=np.random.default_rng(1))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.low - 1e-9 <= one.mean <= one.high + 1e-9


def test_one_seed_or_one_task_has_no_crossed_interval() -> None:
    rng = np.random.default_rng(0)
    for scores, kinds in (([[1.0, 0.0]], [0, 1]), ([[1.0], [0.0]], [0])):
        interval = crossed_interval(scores, np.zeros_like(scores), kinds=kinds, rng=rng)
        assert interval.mean == 0.5
        assert isnan(interval.low) and isnan(interval.high)


def test_a_stratum_of_one_kind_draws_its_tasks() -> None:
    a = [[1.0, 0.0, 1.0, 0.0]] * 4
    interval = crossed_interval(a, np.zeros((4, 4)), kinds=["k"] * 4, rng=np.random.default_rng(0))
    assert interval.low < 0.5 < interval.high


def test_crossed_refuses_what_does_not_fit() -> None:
    rng, ones = np.random.default_rng(0), np.ones((3, 4))
    with pytest.raises(BatchMismatch, match="differ in shape"):
        crossed_interval(ones, np.ones((3, 5)), kinds=[0] * 4, rng=rng)
    with pytest.raises(BatchMismatch, match="differ in shape"):
        crossed_interval(ones, ones, kinds=[0] * 3, rng=rng)
    with pytest.raises(BatchMismatch, match="differ in shape"):
        crossed_interval([1.0], [1.0], kinds=[0], rng=rng)
    with pytest.raises(ConfigError, match="not enough data to compare"):
        crossed_interval(np.ones((0, 0)), np.ones((0, 0)), kinds=[], rng=rng)
    with pytest.raises(ConfigError, match="positive weight"):
        crossed_interval(ones, ones, kinds=[0] * 4, strata=list("aabb"), weights={"a": 1.0}, rng=rng)

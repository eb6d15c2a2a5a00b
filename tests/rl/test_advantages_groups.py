"""Credit by comparison: episodes in groups, steps from the same state, whitening; worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite
from evolvent.rl.advantages import anchor_advantage, group_advantage, normalize_over_buffer, whiten


def near(found: NDArray[np.float64], expected: Sequence[float]) -> None:
    assert found.tolist() == pytest.approx(list(expected), abs=1e-12)


# ------------------------------------------------------------------ groups


def test_group_goldens() -> None:
    returns, group = [1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]
    near(group_advantage(returns, group, baseline="group_mean", scale="none").advantage, [0.75, -0.25, -0.25, -0.25])
    one_out = group_advantage(returns, group, baseline="leave_one_out", scale="none").advantage
    near(one_out, [1.0, -1 / 3, -1 / 3, -1 / 3])
    scaled = group_advantage(returns, group, baseline="group_mean", scale="group_std").advantage
    assert scaled.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert scaled[0] == pytest.approx(0.75 / (0.5 + 1e-6), abs=1e-12)
    near(group_advantage(returns, group, baseline="none", scale="none").advantage, returns)


def test_batch_std_is_that_of_all_returns() -> None:
    """Two groups; the sample variance of (3, 1, 0, 0) is 2."""
    found = group_advantage([3.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"], baseline="group_mean", scale="batch_std")
    scale = 2**0.5 + 1e-6
    near(found.advantage, [1 / scale, -1 / scale, 0, 0])
    assert (found.num_single, found.num_equal) == (0, 1)


def test_groups_do_not_see_each_other() -> None:
    """Prompts of different difficulty: what the whole buffer would mix up."""
    returns, group = [1.0, 0.0, 11.0, 10.0], [7, 7, 3, 3]
    near(group_advantage(returns, group, baseline="group_mean", scale="none").advantage, [0.5, -0.5, 0.5, -0.5])
    assert normalize_over_buffer(returns)[0] < -0.8


def test_buffer_golden() -> None:
    assert normalize_over_buffer([1.0, 0.0, 0.0, 1.0]).tolist() == pytest.approx([1, -1, -1, 1], abs=1e-7)
    assert normalize_over_buffer([1.0, 0.0], ddof=1).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-7)
    assert normalize_over_buffer([3.0, 3.0]).tolist() == [0.0, 0.0] and normalize_over_buffer([]).shape == (0,)
    assert normalize_over_buffer([3.0], ddof=1).tolist() == [0.0]


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_equal_returns_and_groups_of_one_teach_nothing(baseline: Any, scale: Any) -> None:
    """Exactly 0, also where a mean is rounded; and counted."""
    returns, group = [0.1, 0.1, 0.1, 0.7, 1.0, 0.0], [0, 0, 0, 1, 2, 2]
    found = group_advantage(returns, group, baseline=baseline, scale=scale)
    assert found.advantage[:4].tolist() == [0.0] * 4 and found.advantage[4] > 0 > found.advantage[5]
    assert (found.num_single, found.num_equal) == (1, 1)


def test_a_group_of_one_keeps_its_reward_without_a_baseline() -> None:
    assert group_advantage([0.7], [0], baseline="none", scale="none").advantage.tolist() == [0.7]
    assert group_advantage([0.7], [0], baseline="none", scale="group_std").advantage.tolist() == [0.0]


def test_a_deviation_of_nothing_is_not_divided_by() -> None:
    """Without a baseline the reward itself is scaled: divided by 1e-6 it would be a million times too large."""
    found = group_advantage([1.0, 1.0, 1.0, 0.0], [0, 0, 1, 1], baseline="none", scale="group_std").advantage
    assert found.tolist() == pytest.approx([0.0, 0.0, 2**0.5, 0.0], abs=1e-5)
    assert group_advantage([0.1] * 3, [0, 0, 1], baseline="none", scale="batch_std").advantage.tolist() == [0.0] * 3
    assert group_advantage([], [], baseline="none", scale="batch_std").advantage.shape == (0,)


def test_leave_one_out_needs_others() -> None:
    with pytest.raises(BatchMismatch, match="at least two episodes: got 3 groups of one"):
        group_advantage([1.0, 2.0, 3.0], [0, 1, 2], baseline="leave_one_out", scale="none")


def test_bad_groups() -> None:
    with pytest.raises(BatchMismatch, match="number of groups does not match the episodes"):
        group_advantage([1.0], [0, 1], baseline="none", scale="none")
    with pytest.raises(NonFinite, match="return number 1 is not finite"):
        group_advantage([1.0, np.nan], [0, 0], baseline="none", scale="none")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=20))
def test_leave_one_out_is_the_mean_of_the_others(drawn: list[tuple[int, float]]) -> None:
    drawn = [*drawn, (drawn[0][0], 1.0)]
    group, returns = [g for g, _ in drawn], [r for _, r in drawn]
    found = group_advantage(returns, group, baseline="leave_one_out", scale="none").advantage
    for at, (mine, paid) in enumerate(drawn):
        others = [r for i, (g, r) in enumerate(drawn) if g == mine and i != at]
        assert found[at] == pytest.approx(paid - sum(others) / len(others) if others else 0.0, abs=1e-9)


def test_anchor_golden() -> None:
    """State 5 was seen three times in task 0 and once in task 1; only the three are compared."""
    found = anchor_advantage([3.0, 1.0, 2.0, 9.0, 4.0], [5, 6, 5, 5, 5], [0, 0, 0, 1, 0])
    near(found.advantage, [0, 0, -1, 0, 1])
    assert (found.num_single, found.num_equal) == (2, 0)
    hashes = np.asarray([b"x", b"y", b"x", b"x", b"x"])
    near(anchor_advantage([3.0, 1.0, 2.0, 9.0, 4.0], hashes, list("aaaba")).advantage, [0, 0, -1, 0, 1])
    scaled = anchor_advantage([3.0, 1.0, 2.0, 9.0, 4.0], [5, 6, 5, 5, 5], [0, 0, 0, 1, 0], scale="group_std")
    near(scaled.advantage, [0, 0, -1 / (1 + 1e-6), 0, 1 / (1 + 1e-6)])
    with pytest.raises(BatchMismatch, match="number of anchors does not match the actions"):
        anchor_advantage([1.0], [1, 2], [0])


# ------------------------------------------------------------------ whitening


def test_whiten_counts_exact_zeros() -> None:
    """An advantage of 0 is data; what is not data is said by the mask."""
    near(whiten([0.0, 0.0, 3.0, 3.0], epsilon=0.0), [-1, -1, 1, 1])
    near(whiten([0.0, 99.0, 3.0, np.nan], mask=[True, False, True, False], epsilon=0.0), [-1, 0, 1, 0])


def test_whiten_of_one_or_of_equals_is_zero() -> None:
    assert (
        whiten([5.0]).tolist() == [0.0] and whiten([[2.0, 2.0]]).tolist() == [[0.0, 0.0]] and whiten([]).shape == (0,)
    )
    with pytest.raises(BatchMismatch, match="shape of the mask differs from the values"):
        whiten([1.0, 2.0], mask=[True])
    with pytest.raises(NonFinite):
        whiten([1.0, np.inf])

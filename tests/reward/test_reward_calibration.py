"""Calibration worked by hand, and AUC against counting all pairs."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.reward.calibration import (
    auc,
    auc_within,
    brier,
    calibration_error,
    evaluate_calibration,
    label_accuracy,
    reliability_curve,
)

SCORES, TRUTH = [0.9, 0.8, 0.8, 0.3, 0.1], [1, 1, 0, 1, 0]


def test_worked_by_hand() -> None:
    assert label_accuracy(SCORES, TRUTH) == pytest.approx(3 / 5)
    assert label_accuracy([0.0, 0.5, 0.5], [0, 0, 1]) == pytest.approx(2 / 3)  # one half is not above one half
    assert label_accuracy([0.0, 0.1], [0, 1], above=0.0) == 1.0
    # pairs: .9 wins 2, .8 ties once and wins once, .3 loses to .8 and wins against .1
    assert auc(SCORES, TRUTH) == pytest.approx((2 + 1.5 + 1) / 6)
    assert brier(SCORES, TRUTH) == pytest.approx((0.01 + 0.04 + 0.64 + 0.49 + 0.01) / 5)
    curve = reliability_curve(SCORES, TRUTH, bins=2)
    assert curve.edges.tolist() == [0, 0.5, 1] and curve.counts.tolist() == [2, 3]
    assert curve.scores == pytest.approx([0.2, 2.5 / 3]) and curve.rates == pytest.approx([0.5, 2 / 3])
    assert calibration_error(SCORES, TRUTH, bins=2) == pytest.approx(2 / 5 * 0.3 + 3 / 5 * 0.5 / 3)


def test_edges_of_bins() -> None:
    curve = reliability_curve([0.0, 0.1, 0.2, 0.3, 0.6, 0.7, 1.0], [0, 0, 0, 0, 1, 1, 1], bins=10)
    assert curve.counts.tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 0, 1]
    assert isnan(curve.scores[4]) and isnan(curve.rates[4])


def test_within_tasks_only_pairs_of_one_task_count() -> None:
    """Scores that tell tasks apart and nothing else: a good AUC over all, one half within."""
    scores, truth, tasks = [0.9, 0.9, 0.9, 0.1, 0.1, 0.1], [1, 1, 0, 1, 0, 0], list("aaabbb")
    assert auc(scores, truth) == pytest.approx((2 * 2.5 + 1.0) / 9)
    assert auc_within(scores, truth, tasks) == 0.5
    assert auc_within([0.9, 0.1, 0.5], [1, 0, 1], ["a", "a", "b"]) == 1.0
    assert isnan(auc_within([0.9, 0.1], [1, 0], ["a", "b"]))


def test_nothing_is_not_zero() -> None:
    found = evaluate_calibration([], [])
    assert found.n == 0
    assert all(isnan(value) for value in (found.accuracy, found.auc, found.auc_within, found.brier, found.error))
    assert isnan(auc([0.2, 0.3], [1, 1]))
    full = evaluate_calibration(SCORES, TRUTH, tasks=[0, 0, 0, 1, 1], bins=2)
    assert (full.n, full.auc_within) == (5, pytest.approx((1.5 + 1) / 3)) and full.curve.counts.sum() == 5
    assert (full.accuracy, full.auc) == (label_accuracy(SCORES, TRUTH), auc(SCORES, TRUTH))
    assert (full.brier, full.error) == (brier(SCORES, TRUTH), calibration_error(SCORES, TRUTH, bins=2))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans(), st.integers(0, 2)), max_size=25))
def test_auc_is_the_share_of_pairs(items: list[tuple[float, bool, int]]) -> None:
    def counted(same: bool) -> float:
        won = [
            1.0 if a[0] > b[0] else 0.5 if a[0] == b[0] else 0.0
            for a in items
            for b in items
            if a[1] and not b[1] and (not same or a[2] == b[2])
        ]
        return sum(won) / len(won) if won else nan

    columns = [list(column) for column in zip(*items, strict=True)] if items else [[], [], []]
    assert auc(columns[0], columns[1]) == pytest.approx(counted(False), nan_ok=True)
    assert auc_within(columns[0], columns[1], columns[2]) == pytest.approx(counted(True), nan_ok=True)


def test_calibrated_scores_have_little_error() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(40_000)
    truth = rng.random(40_000) < scores
    assert calibration_error(scores, truth) < 0.01 < 0.15 < calibration_error(scores**3, truth)


def test_bad_input() -> None:
    for scores, truth in (([nan], [1]), ([0.5], [0.5]), ([0.5], [1, 0])):
        with pytest.raises(BatchMismatch):
            auc(scores, truth)
    with pytest.raises(BatchMismatch, match="probabilities"):
        brier([1.5], [1])
    with pytest.raises(BatchMismatch, match="task"):
        auc_within([0.5], [1], [])
    with pytest.raises(ConfigError, match="bins"):
        reliability_curve([0.5], [1], bins=0)

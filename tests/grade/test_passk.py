from __future__ import annotations

from itertools import combinations

import pytest

from evolvent.errors import ConfigError
from evolvent.grade.passk import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(
    ("samples", "passed", "k", "value"),
    [(5, 2, 1, 0.4), (10, 3, 5, 0.91667), (4, 0, 2, 0.0), (4, 3, 2, 1.0), (1, 1, 1, 1.0)],
)
def test_published_values(samples, passed, k, value):
    assert pass_at_k(samples, passed, k) == pytest.approx(value, abs=5e-6)


def test_it_is_the_share_of_draws_with_a_pass():
    """All k-element draws, counted."""
    for samples in range(1, 8):
        for passed in range(samples + 1):
            for k in range(1, samples + 1):
                draws = list(combinations(range(samples), k))
                share = sum(any(one < passed for one in draw) for draw in draws) / len(draws)
                assert pass_at_k(samples, passed, k) == pytest.approx(share, abs=1e-12)


def test_many_samples_stay_in_range():
    assert 0 < pass_at_k(100_000, 1, 100) < 0.0011


@pytest.mark.parametrize("wrong", [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_numbers_that_do_not_fit(wrong):
    with pytest.raises(ConfigError, match="cannot compute pass@k"):
        pass_at_k(*wrong)


def test_the_mean():
    assert mean_pass_at_k([(5, 2), (5, 5)], 1) == pytest.approx(0.7)
    with pytest.raises(ConfigError, match="no problems"):
        mean_pass_at_k([], 1)

"""Selection rules against values worked by hand, and what must hold of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.search.select import (
    complete_values,
    dirichlet_noise,
    gumbel_scores,
    halving_schedule,
    improved_policy,
    interior_scores,
    mixed_value,
    normalize_values,
    puct,
    rescale_values,
    sigma,
    uct,
)

Q, P, N = np.array([0.5, 0.1, np.nan]), np.array([0.5, 0.3, 0.2]), np.array([2, 1, 0])


def one(number: float) -> np.ndarray:
    return np.array([number])


@pytest.mark.parametrize(
    ("q", "prior", "parent", "visits", "score"),
    [(0.5, 0.25, 16, 3, 0.8127161695), (0.2, 0.6, 9, 0, 2.4509157043), (0.9, 0.1, 4, 1, 1.0250254395)],
)
def test_puct(q, prior, parent, visits, score):
    assert puct(one(q), one(prior), parent_visits=parent, visits=one(visits)) == pytest.approx(score, abs=1e-10)


def test_puct_constants():
    scores = puct(one(0.5), one(0.25), parent_visits=16, visits=one(3), c_init=3.0, c_base=1000.0)
    assert scores == pytest.approx(0.5 + 0.25 * 4 / 4 * (3 + math.log(1017 / 1000)))


def test_uct():
    scores = uct(np.array([0.5, 0.9]), np.array([0.1, 0.9]), parent_visits=10, visits=np.array([4, 0]))
    assert scores[0] == pytest.approx(2.0174271294, abs=1e-10)
    assert scores[1] == np.inf
    assert uct(one(0.5), one(1), parent_visits=1, visits=one(1), c=5) == pytest.approx(0.5)  # ln 1 = 0


def test_dirichlet_noise():
    prior = np.array([0.7, 0.2, 0.1])
    rng = np.random.default_rng(0)
    drawn = np.array([dirichlet_noise(prior, rng) for _ in range(4000)])
    assert np.allclose(drawn.sum(axis=1), 1.0)
    assert (drawn >= 0.75 * prior - 1e-12).all()
    # A Dirichlet of equal alphas a over k has mean 1/k and variance (k - 1) / (k^2 (k a + 1)).
    assert np.allclose(drawn.mean(axis=0), 0.75 * prior + 0.25 / 3, atol=0.01)
    assert np.allclose(drawn.var(axis=0), 0.25**2 * (2 / 9) / 1.9, rtol=0.1)


def test_values_between_siblings_and_parent():
    q = np.array([2.0, 6.0, 99.0])
    assert normalize_values(q, visits=np.array([1, 1, 0]), parent=3.0).tolist() == [0.0, 1.0, 0.0]
    assert normalize_values(q, visits=np.array([1, 1, 0]), parent=0.0).tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert normalize_values(q, visits=np.array([0, 0, 0]), parent=3.0).tolist() == [0.0, 0.0, 0.0]


def test_mixed_value_and_sigma():
    # weighted: (.5 * .5 + .3 * .1) / (.5 + .3) = .35; (.3 + 3 * .35) / 4 = .3375
    assert mixed_value(Q, P, visits=N, raw=0.3) == pytest.approx(0.3375)
    q = complete_values(Q, P, visits=N, raw=0.3)
    assert q.tolist() == pytest.approx([0.5, 0.1, 0.3375])
    assert sigma(rescale_values(q), visits=N).tolist() == pytest.approx([5.2, 0.0, 3.0875])
    assert sigma(q, visits=N, c_scale=1.0).tolist() == pytest.approx([26.0, 5.2, 17.55])
    assert mixed_value(Q, P, visits=np.zeros(3, int), raw=0.3) == 0.3
    assert mixed_value(Q, np.array([0.0, 0.0, 1.0]), visits=N, raw=0.3) == pytest.approx((0.3 + 3 * 0.3) / 4)


def test_rescaled_of_equal_values():
    assert rescale_values(np.array([0.4, 0.4])).tolist() == [0.0, 0.0]


def test_scores_of_gumbel_search():
    worth, noise = np.array([1.0, 0.0, 0.5]), np.array([0.1, 2.0, -1.0])
    expected = [0.1 + math.log(0.5) + 1.0, 2.0 + math.log(0.3), -1.0 + math.log(0.2) + 0.5]
    assert gumbel_scores(P, worth, noise=noise).tolist() == pytest.approx(expected)
    weights = P * np.exp(worth)
    assert improved_policy(P, worth).tolist() == pytest.approx((weights / weights.sum()).tolist())
    below = weights / weights.sum() - np.array([2 / 4, 1 / 4, 0])
    assert interior_scores(P, worth, visits=N).tolist() == pytest.approx(below.tolist())
    assert np.isfinite(gumbel_scores(np.array([0.0, 1.0]), worth[:2], noise=noise[:2])).all()


def test_visits_below_the_root_follow_the_improved_policy():
    visits = np.zeros(3, int)
    worth = np.array([0.3, 1.0, 0.0])
    for _ in range(300):
        visits[np.argmax(interior_scores(P, worth, visits=visits))] += 1
    assert np.abs(visits - 300 * improved_policy(P, worth)).max() <= 1.5


@pytest.mark.parametrize(
    ("m", "n", "kind", "expected"),
    [
        (4, 8, "mctx", "00001122"),
        (4, 16, "mctx", "0000111122334455"),
        (8, 16, "mctx", "0000000011112233"),
        (3, 7, "mctx", "0001122"),
        (1, 4, "mctx", "0123"),
        (5, 3, "mctx", "000"),
        # floor(log2 3) = 1 level: three actions share all seven.
        (3, 7, "rescale", "0001112"),
        # Three levels: 8 of 26 are dealt out at first (26 // 3 // 8 = 1), 8 of the 18 left (18 // 2 // 4 = 2), then 10.
        (8, 26, "rescale", "00000000" + "1111" + "2222" + "3344556677"),
        (1, 3, "rescale", "012"),
        (6, 4, "rescale", "0000"),
    ],
)
def test_halving_schedule(m, n, kind, expected):
    assert "".join(map(str, halving_schedule(m, n, kind))) == expected


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 200), kind=st.sampled_from(["mctx", "rescale"]))
def test_a_schedule_can_be_played(m, n, kind):
    """Somebody of so many visits is always there, and no more than m actions are ever visited."""
    schedule = halving_schedule(m, n, kind)
    assert len(schedule) == n
    visits = [0] * m
    for seen in schedule:
        visits[visits.index(seen)] += 1
    assert max(visits) - sorted(visits)[-2 if m > 1 else -1] <= 1  # the last two are visited in turn


def test_schedule_of_nothing():
    with pytest.raises(ConfigError, match=r"(?s)considered.*simulations"):
        halving_schedule(0, 0)

"""Selection in cells: quotas, what goes round when a rank is used up, and where cells come from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate.cells import allocate_quotas, hash_cells, kmeans_cells, sharded_map
from evolvent.curate.greedy import greedy_map, restarted_map
from evolvent.errors import BatchMismatch, ConfigError, NonFinite

RNG = np.random.default_rng


def test_largest_remainder_by_hand():
    # Exact shares 4.7, 1.6, 1.5, 2.2: the two seats left go to .7 and .6.
    assert allocate_quotas(10, [47, 16, 15, 22], [9, 9, 9, 9], rng=RNG(0)).tolist() == [5, 2, 1, 2]
    # The first holds 2 only. The 3 that it cannot take: shares .91, .85 and 1.25 of the others, 3 in all.
    assert allocate_quotas(10, [47, 16, 15, 22], [2, 9, 9, 9], rng=RNG(0)).tolist() == [2, 3, 2, 3]
    assert allocate_quotas(4, [0, 1], [9, 3], rng=RNG(0)).tolist() == [1, 3]
    assert allocate_quotas(9, [1, 1], [2, 3], rng=RNG(0)).tolist() == [2, 3]
    tied = {tuple(allocate_quotas(1, [1, 1], [5, 5], rng=RNG(seed)).tolist()) for seed in range(20)}
    assert tied == {(0, 1), (1, 0)}


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(0, 99),
)
def test_quotas_fill_what_there_is(total, cells, seed):
    weights, rooms = np.array([w for w, _ in cells]), np.array([r for _, r in cells])
    found = allocate_quotas(total, weights, rooms, rng=RNG(seed))
    assert found.sum() == min(total, rooms.sum()) and (found <= rooms).all() and (found >= 0).all()
    if weights.sum() > 1e-6 and total <= rooms.min():  # nothing is capped: each within one of its share
        assert (np.abs(found - total * weights / weights.sum()) < 1 + 1e-6).all()


def test_one_cell_is_the_greedy_choice():
    features, quality = RNG(0).standard_normal((50, 8)), RNG(1).random(50)
    one = np.zeros(50, int)
    found = sharded_map(features, quality, 6, cells=one, rng=RNG(0), second_pass=False)
    plain = greedy_map(features, quality, 6)
    assert found.indices.tolist() == plain.indices.tolist() and found.gains == pytest.approx(plain.gains)
    twice = sharded_map(features, quality, 4, cells=one, rng=RNG(0))
    assert twice.indices.tolist() == greedy_map(features, quality, 4).indices.tolist()


def test_cells_choose_their_quota_among_their_own():
    features, cells = RNG(2).standard_normal((90, 6)), np.repeat([3, 7, 5], 30)
    found = sharded_map(features, None, 12, cells=cells, rng=RNG(0), second_pass=False)
    for label in (3, 5, 7):
        own = np.flatnonzero(cells == label)
        chosen = found.indices[np.isin(found.indices, own)]
        assert chosen.tolist() == own[greedy_map(features[own], None, 4).indices].tolist()
    assert (np.diff(found.gains) <= 0).all() and found.stopped == "k"
    weighted = sharded_map(features, np.repeat([1.0, 2.0, 1.0], 30), 8, cells=cells, rng=RNG(0), second_pass=False)
    assert np.unique(cells[weighted.indices], return_counts=True)[1].tolist() == [2, 2, 4]


def test_what_a_cells_rank_cannot_fill_goes_to_the_others():
    rng = RNG(3)
    thin = np.outer(rng.random(20) + 0.5, rng.standard_normal(6))  # rank 1
    features, cells = np.vstack([thin, rng.standard_normal((20, 6))]), np.repeat([0, 1], 20)
    found = sharded_map(features, None, 6, cells=cells, rng=RNG(0), second_pass=False)
    assert np.bincount(cells[found.indices]).tolist() == [1, 5]
    more = sharded_map(features, None, 11, cells=cells, rng=RNG(0), second_pass=False)
    assert len(set(more.indices.tolist())) == 11 and more.stopped == "k"


@pytest.mark.parametrize("second_pass", [False, True])
def test_far_beyond_the_rank(second_pass):
    features = RNG(4).standard_normal((300, 5)).astype(np.float32)
    cells = kmeans_cells(features, 4, rng=RNG(0))
    found = sharded_map(features, None, 100, cells=cells, rng=RNG(0), second_pass=second_pass)
    assert len(set(found.indices.tolist())) == len(found.gains) == 100 and found.stopped == "k"
    again = sharded_map(features, None, 100, cells=cells, rng=RNG(0), second_pass=second_pass)
    assert again.indices.tolist() == found.indices.tolist()
    everything = sharded_map(features, None, 400, cells=cells, rng=RNG(0), second_pass=second_pass)
    assert sorted(everything.indices.tolist()) == list(range(300)) and everything.stopped == "empty"
    some = features.copy()
    some[:10] = 0
    left = sharded_map(some, None, 400, cells=cells, rng=RNG(0), second_pass=second_pass)
    assert len(left.indices) == 290 and left.stopped == "rank"


def test_the_second_pass_sees_what_cells_cannot():
    """Two cells of the same items: each alone would offer the same again."""
    half = RNG(5).standard_normal((40, 12))
    features, cells = np.vstack([half, half]), np.repeat([0, 1], 40)
    alone = sharded_map(features, None, 10, cells=cells, rng=RNG(0), second_pass=False)
    both = sharded_map(features, None, 10, cells=cells, rng=RNG(0))
    assert len(set((alone.indices % 40).tolist())) == 5
    assert len(set((both.indices % 40).tolist())) == 10
    value = np.linalg.slogdet(features[both.indices] @ features[both.indices].T)[1]
    assert value == pytest.approx(both.gains.sum())
    assert value > 0.8 * restarted_map(features, None, 10).gains.sum()


def test_kmeans_finds_what_lies_apart():
    rng = RNG(6)
    centres = 50 * np.eye(4)
    truth = rng.integers(4, size=2000)
    points = (centres[truth] + rng.standard_normal((2000, 4))).astype(np.float32)
    cell = kmeans_cells(points, 4, rng=RNG(0))
    pairs = {(int(a), int(b)) for a, b in zip(truth, cell, strict=True)}
    assert len(pairs) == 4
    assert kmeans_cells(np.ones((9, 2)), 3, rng=RNG(0)).tolist() == [0] * 9
    assert kmeans_cells(np.zeros((0, 2)), 3, rng=RNG(0)).tolist() == []


def test_hash_cells_know_an_item_by_its_id():
    ids = [f"task/{n}" for n in range(4000)]
    cell = hash_cells(ids, 8)
    assert hash_cells(ids[::-1], 8)[::-1].tolist() == cell.tolist()
    sizes = np.bincount(cell, minlength=8)
    assert (np.abs(sizes - 500) < 5 * np.sqrt(500)).all()


def test_bad_input():
    good = RNG(0).standard_normal((6, 2))
    with pytest.raises(BatchMismatch, match="6 whole numbers"):
        sharded_map(good, None, 2, cells=[0, 1], rng=RNG(0))
    with pytest.raises(BatchMismatch, match="6 whole numbers"):
        sharded_map(good, None, 2, cells=np.zeros(6), rng=RNG(0))
    with pytest.raises(ConfigError):
        sharded_map(good, None, 0, cells=[0] * 6, rng=RNG(0))
    with pytest.raises(ConfigError):
        kmeans_cells(good, 0, rng=RNG(0))
    with pytest.raises(ConfigError):
        hash_cells(["a"], 0)
    good[4, 1] = np.inf
    with pytest.raises(NonFinite, match="row 4, column 1 is inf"):
        kmeans_cells(good, 2, rng=RNG(0))
    assert sharded_map(np.zeros((0, 3)), None, 4, cells=np.zeros(0, int), rng=RNG(0)).stopped == "empty"

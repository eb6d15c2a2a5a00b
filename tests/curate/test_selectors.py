"""Every other selector beside its definition on small pools."""

from itertools import combinations

import numpy as np
import pytest

from evolvent.curate.select import dpp
from evolvent.curate.selectors import (
    d2_pruning,
    facility_location,
    ifd,
    ifd_scores,
    k_centre,
    random_choice,
    reducible_losses,
    rho_loss,
    top_quality,
)
from evolvent.errors import BatchMismatch, ConfigError, NonFinite, NothingToLearn

RNG = np.random.default_rng
ALL = [random_choice, top_quality, ifd, rho_loss, d2_pruning, facility_location, k_centre, dpp]
RANKING = [top_quality, ifd, rho_loss]


def pool(seed, n=30, d=4):
    rng = RNG(seed)
    return rng.standard_normal((n, d)), rng.random(n) * 0.9


# ------------------------------------------------------------------ what all have in common


@pytest.mark.parametrize("select", ALL, ids=lambda s: s.__name__)
def test_one_form_of_call(select):
    features, quality = pool(0)
    found = select(features, quality, 7, rng=RNG(1))
    assert found.indices.dtype == np.int64 and found.gains.shape == (7,) and found.stopped == "k"
    assert len(set(found.indices.tolist())) == 7 and found.indices.min() >= 0 and found.indices.max() < 30
    assert select(features, quality, 7, rng=RNG(1)).indices.tolist() == found.indices.tolist()
    whole = select(features, quality, 99, rng=RNG(1))
    assert sorted(whole.indices.tolist()) == list(range(30)) and whole.stopped == "empty"
    none = select(np.zeros((0, 4)), [], 3, rng=RNG(1))
    assert len(none.indices) == 0 and none.stopped == "empty"
    for k in (0, -3, 2.0):
        with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
            select(features, quality, k, rng=RNG(1))


@pytest.mark.parametrize("select", [s for s in ALL if s is not random_choice], ids=lambda s: s.__name__)
def test_bad_quality_is_refused_by_row(select):
    features, quality = pool(0)
    quality[5] = np.nan
    with pytest.raises(NonFinite, match="row 5 is nan"):
        select(features, quality, 2, rng=RNG(0))
    with pytest.raises(BatchMismatch, match="differ in length"):
        select(features, quality[:-1], 2, rng=RNG(0))


@pytest.mark.parametrize("select", [d2_pruning, facility_location, k_centre, dpp], ids=lambda s: s.__name__)
def test_bad_features_are_refused_by_place(select):
    features, _ = pool(0)
    features[6, 2] = np.inf
    with pytest.raises(NonFinite, match="row 6, column 2 is inf"):
        select(features, None, 2, rng=RNG(0))


@pytest.mark.parametrize("select", RANKING, ids=lambda s: s.__name__)
def test_ranking_needs_something_to_rank_by(select):
    with pytest.raises(ConfigError, match="items have no quality to rank them by"):
        select(pool(0)[0], None, 2, rng=RNG(0))


@pytest.mark.parametrize("select", [facility_location, dpp], ids=lambda s: s.__name__)
def test_negative_weights_are_refused(select):
    features, quality = pool(0)
    with pytest.raises(NonFinite, match="row 0 is -"):
        select(features, quality - 1, 2, rng=RNG(0))


# ------------------------------------------------------------------ drawn and ranked


def test_every_set_is_equally_likely():
    draws = [
        tuple(sorted(random_choice(np.zeros((5, 1)), None, 2, rng=RNG(seed)).indices.tolist())) for seed in range(4000)
    ]
    counts = np.array([draws.count(each) for each in combinations(range(5), 2)])
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi-square, 9 degrees, 0.1 %


def test_top_quality():
    found = top_quality(np.zeros((5, 1)), [-1, 3, -2, 3, 0], 4, rng=RNG(0))
    assert found.indices.tolist() == [1, 3, 4, 0] and found.gains.tolist() == [3, 3, 0, -1]


def test_ifd_by_hand():
    scores = ifd_scores([[-1, -2], [-2.0], [-1, -1, -4]], [[-3, -1], [-1.0], [-4.0]])
    assert scores.tolist() == [0.75, 2.0, 0.5]
    found = ifd(np.zeros((3, 1)), scores, 2, rng=RNG(0))
    assert found.indices.tolist() == [0, 2] and found.stopped == "k"
    fewer = ifd(np.zeros((3, 1)), scores, 3, rng=RNG(0))
    assert fewer.indices.tolist() == [0, 2] and fewer.stopped == "rank"
    with pytest.raises(NonFinite, match=r"sample 1 .* 1.0 / 0.0"):
        ifd_scores([[-1.0], [-1.0]], [[-1.0], [0.0]])
    with pytest.raises(NonFinite, match="sample 0"):
        ifd_scores([[np.nan]], [[-1.0]])
    with pytest.raises(NothingToLearn, match="sample 1"):
        ifd_scores([[-1.0], []], [[-1.0], [-1.0]])
    with pytest.raises(BatchMismatch):
        ifd_scores([[-1.0]], [])


def test_rho_takes_the_best_of_a_drawn_batch():
    values = reducible_losses([2.0, 0.5, 3.0], [0.5, 1.0, 2.9])
    assert values == pytest.approx([1.5, -0.5, 0.1])
    quality = RNG(0).permutation(100).astype(float)
    features = np.zeros((100, 1))
    everything = rho_loss(features, quality, 5, rng=RNG(1), share=0.05)
    assert everything.gains.tolist() == [99, 98, 97, 96, 95]
    seen = [rho_loss(features, quality, 5, rng=RNG(seed), share=0.5) for seed in range(400)]
    # The best of 10 drawn from 0..99 is on average 10 / 11 * 101 - 1; half of those drawn are taken.
    assert np.mean([each.gains[0] for each in seen]) == pytest.approx(10 / 11 * 101 - 1, abs=2)
    assert all((np.diff(each.gains) < 0).all() for each in seen)
    with pytest.raises(ConfigError, match="share"):
        rho_loss(features, quality, 5, rng=RNG(0), share=0)
    with pytest.raises(BatchMismatch):
        reducible_losses([1.0], [1.0, 2.0])
    with pytest.raises(NonFinite, match="row 1 is nan"):
        reducible_losses([1.0, np.nan], [1.0, 2.0])


# ------------------------------------------------------------------ d2 pruning


def d2_by_definition(features, scores, k, neighbours, forward, reverse):
    n = len(features)
    squares = [[float(((a - b) ** 2).sum()) for b in features] for a in features]
    near = [sorted((j for j in range(n) if j != i), key=lambda j: squares[i][j])[:neighbours] for i in range(n)]
    edge = [[j in near[i] or i in near[j] for j in range(n)] for i in range(n)]
    x = [
        scores[i] + sum(np.exp(-forward * squares[i][j]) * scores[j] for j in range(n) if edge[i][j]) for i in range(n)
    ]
    chosen = []
    for _ in range(k):
        best = max((i for i in range(n) if i not in chosen), key=lambda i: x[i])
        chosen.append(best)
        for j in range(n):
            if edge[best][j]:
                x[j] -= np.exp(-reverse * squares[best][j]) * x[best]
    return chosen


def test_d2_by_hand():
    found = d2_pruning([[0.0], [2.0], [2.5]], [1.0, 3.0, 1.0], 3, rng=RNG(0), neighbours=1)
    # Edges 0 - 1 and 1 - 2. Forward: 1 + 3 e^-4, 3 + e^-4 + e^-0.25, 1 + 3 e^-0.25; then 1 is taken.
    first = 3 + np.exp(-4) + np.exp(-0.25)
    lowered = [1 + 3 * np.exp(-4) - np.exp(-4) * first, 1 + 3 * np.exp(-0.25) - np.exp(-0.25) * first]
    assert found.indices.tolist() == [1, 0, 2]
    assert found.gains == pytest.approx([first, *lowered])


@pytest.mark.parametrize("seed", range(8))
def test_d2_by_definition(seed):
    features, quality = pool(seed, n=25, d=2)
    for neighbours, forward, reverse in ((3, 1.0, 1.0), (1, 0.0, 2.0), (24, 3.0, 0.1)):
        expected = d2_by_definition(features, quality - 0.2, 12, neighbours, forward, reverse)
        settings = {"neighbours": neighbours, "forward": forward, "reverse": reverse}
        assert d2_pruning(features, quality - 0.2, 12, rng=RNG(0), **settings).indices.tolist() == expected


def test_d2_in_blocks_and_without_neighbours(monkeypatch):
    features, quality = pool(3, n=40)
    expected = d2_pruning(features, quality, 10, rng=RNG(0)).indices.tolist()
    monkeypatch.setattr("evolvent.curate.selectors._ROWS", 7)
    assert d2_pruning(features, quality, 10, rng=RNG(0)).indices.tolist() == expected
    assert d2_pruning([[1.0]], None, 1, rng=RNG(0)).indices.tolist() == [0]
    with pytest.raises(ConfigError, match="got 0 neighbors"):
        d2_pruning(features, quality, 2, rng=RNG(0), neighbours=0)


# ------------------------------------------------------------------ facility location, k-centre


def covered(features, weights, some):
    return float(weights @ np.maximum(features @ features[list(some)].T, 0).max(axis=1))


@pytest.mark.parametrize("seed", range(6))
def test_facility_location_is_greedy_and_near_the_best(monkeypatch, seed):
    features, weights = pool(seed, n=14, d=3)
    chosen, gains = [], []
    for _ in range(4):
        values = {j: covered(features, weights, [*chosen, j]) for j in range(14) if j not in chosen}
        best = max(values, key=values.get)
        gains.append(values[best] - (covered(features, weights, chosen) if chosen else 0.0))
        chosen.append(best)
    found = facility_location(features, weights, 4, rng=RNG(0))
    assert found.indices.tolist() == chosen and found.gains == pytest.approx(gains)
    most = max(covered(features, weights, some) for some in combinations(range(14), 4))
    assert found.gains.sum() >= (1 - 1 / np.e) * most
    monkeypatch.setattr("evolvent.curate.selectors._ROWS", 5)
    assert facility_location(features, weights, 4, rng=RNG(0)).indices.tolist() == chosen
    plain = facility_location(features, None, 4, rng=RNG(0)).indices.tolist()
    assert plain == facility_location(features, np.ones(14), 4, rng=RNG(0)).indices.tolist()


def test_facility_location_covers_every_group_once():
    features = np.repeat(np.eye(6), 20, axis=0) * np.linspace(1, 2, 120)[:, None]
    found = facility_location(features, None, 6, rng=RNG(0))
    assert sorted((found.indices // 20).tolist()) == list(range(6))


@pytest.mark.parametrize("seed", range(6))
def test_k_centre_is_farthest_first_and_within_twice_the_best(seed):
    features, quality = pool(seed, n=12, d=2)
    distance = np.linalg.norm(features[:, None] - features[None], axis=2)
    chosen = [int(quality.argmax())]
    gains = []
    while len(chosen) < 4:
        near = distance[:, chosen].min(axis=1)
        chosen.append(int(near.argmax()))
        gains.append(near.max())
    found = k_centre(features, quality, 4, rng=RNG(0))
    assert found.indices.tolist() == chosen
    assert found.gains[0] == np.inf and found.gains[1:] == pytest.approx(gains)
    best = min(distance[:, list(some)].min(axis=1).max() for some in combinations(range(12), 4))
    assert distance[:, chosen].min(axis=1).max() <= 2 * best
    firsts = {int(k_centre(features, None, 1, rng=RNG(each)).indices[0]) for each in range(60)}
    assert len(firsts) > 6, "without quality the first is drawn"


def test_k_centre_stops_at_copies():
    found = k_centre([[0.0], [1.0], [0.0], [1.0]], [1, 0, 0, 0], 4, rng=RNG(0))
    assert found.indices.tolist() == [0, 1] and found.stopped == "rank"

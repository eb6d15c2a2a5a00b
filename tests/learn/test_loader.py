"""The order of the data: every sample once an epoch, any position at once, the same for every number of ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_parts, small_policy

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.learn.loader import DataOrder, RankBatcher, split_into_forwards, split_over_ranks
from evolvent.learn.parallel.ranks import Mesh


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("capacity", [None, 80])
def test_every_sample_comes_once_an_epoch(capacity: int | None, together: int) -> None:
    lengths = np.random.default_rng(0).integers(5, 40, 70).tolist()

    def made(seed: int) -> DataOrder:
        return DataOrder(lengths, budget=160, capacity=capacity, together=together, seed=seed)

    for number in (0, 1):
        updates = made(3).plan_epoch(number)
        assert sorted(i for rows in updates for row in rows for i in row) == list(range(70))
        for rows in updates:
            assert max(sum(lengths[i] for i in row) for row in rows) * len(rows) <= 160
            order = [i for row in rows for i in row]
            for at in range(0, len(order), together):
                assert order[at : at + together] == list(range(order[at], order[at] + together))
                assert order[at] % together == 0
    assert made(3).plan_epoch(0) != made(3).plan_epoch(1) and made(3).plan_epoch(0) == made(3).plan_epoch(0)
    assert made(3).plan_epoch(0) != made(4).plan_epoch(0)


@pytest.mark.parametrize("together", [1, 2])
def test_any_position_is_reached_without_walking(together: int) -> None:
    lengths = list(range(5, 45))
    walked = DataOrder(lengths, budget=100, together=together, seed=1)
    taken, places = [], []
    for _ in range(60):
        places.append(walked.position)
        taken.append(walked.take())
    assert places[0] == 0 and places[-1] > 2 * len(lengths) // together
    for before, after, rows in zip(places, places[1:], taken, strict=False):
        assert after - before == sum(map(len, rows)) // together
    for place, rows in zip(places, taken, strict=True):
        fresh = DataOrder(lengths, budget=100, together=together, seed=1)
        fresh.position = place
        assert fresh.take() == rows
    inside = next(b - 1 for a, b in pairwise(places) if b - a > 1)
    fresh.position = inside
    with pytest.raises(BatchMismatch, match="inside an update"):
        fresh.take()


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(1, 8), st.sampled_from([1, 2]))
def test_dealing_gives_every_row_to_one_rank(count: int, shares: int, together: int) -> None:
    rows = [[i] for i in range(count * together)]
    dealt = split_over_ranks(rows, shares, together)
    assert [row for share in dealt for row in share] == rows and len(dealt) == shares
    sizes = [len(share) for share in dealt]
    assert max(sizes) - min(sizes) <= together and all(size % together == 0 for size in sizes)


def test_forwards_hold_what_they_may_and_whole_samples() -> None:
    lengths = [10, 30, 20, 20, 90]
    assert split_into_forwards([[0], [1], [2], [3]], lengths, 60) == [[[0], [1]], [[2], [3]]]
    assert split_into_forwards([[0], [1], [2], [3]], lengths, 60, together=2) == [[[0], [1]], [[2], [3]]]
    assert split_into_forwards([[4], [0]], lengths, 60) == [[[4]], [[0]]]
    assert split_into_forwards([], lengths, 60) == []


@pytest.mark.parametrize("mesh", [Mesh(shard=3), Mesh(tp=4), Mesh(pp=2, shard=2), Mesh(pp=2, replicate=2, tp=2)])
@pytest.mark.parametrize("packed", [False, True])
def test_ranks_see_the_update_once_in_shapes_that_fit_their_layout(mesh: Mesh, packed: bool) -> None:
    parts = small_parts(small_policy(), 7)
    rows = [[0, 1], [2], [3, 4], [5], [6]] if packed else [[i] for i in range(7)]
    batches = [RankBatcher(packed, 1, 60, mesh, "1f1b", rank).build_batches(parts, rows) for rank in range(mesh.dp)]
    assert len({len(own) for own in batches}) == 1
    seen = [i for own in batches for batch in own for i in batch.samples]
    assert seen == [i for row in rows for i in row]
    assert sum(batch.count for own in batches for batch in own) == sum(np.count_nonzero(p.weight) for p in parts)
    for own in batches:
        assert all(batch.ids.shape[1] % mesh.tp == 0 for batch in own)
        if mesh.pp > 1:
            assert len({tuple(batch.ids.shape) for batch in own}) == 1 and len(own) >= mesh.pp


def test_columns_and_sequences_follow_their_targets() -> None:
    parts = [
        replace(p, columns={"number": np.arange(len(p)) + 100 * i})
        for i, p in enumerate(small_parts(small_policy(), 4))
    ]
    dealing = RankBatcher(False, 1, 400, Mesh(), "1f1b", 0)
    for rows, packed in (([[2], [0], [3]], False), ([[2, 0], [3]], True)):
        (batch,) = replace(dealing, packed=packed).build_batches(parts, rows)
        assert batch.sequence is not None
        wanted = [100 * i + t for i in (2, 0, 3) for t in np.flatnonzero(parts[i].weight)]
        assert batch.columns["number"].tolist() == wanted
        assert batch.sequence.tolist() == [n for n, i in enumerate((2, 0, 3)) for _ in np.flatnonzero(parts[i].weight)]
    idle = RankBatcher(False, 1, 400, Mesh(shard=2), "1f1b", 1)
    (empty,) = (
        idle.build_batches(parts, [[0]])
        if split_over_ranks([[0]], 2)[1] == []
        else replace(idle, rank=0).build_batches(parts, [[0]])
    )
    assert empty.count == 0 and empty.columns["number"].shape == (0,) and empty.real == 0


def test_what_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_tokens: got .*, expected at least 50"):
        DataOrder([50], budget=40, capacity=50, seed=0)
    with pytest.raises(BatchMismatch, match="incomplete"):
        DataOrder([5, 5, 5], budget=40, together=2, seed=0)

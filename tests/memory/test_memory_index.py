"""Exact search equals sorting everything; the graph finds nearly as much, with the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError, HashMismatch, MissingExtra, NonFinite
from evolvent.memory.index import FlatIndex, normalize_rows


def brute(rows, query, k, *, order, allowed=None):
    """Everything scored in float64 and sorted."""
    scores = (rows.astype(np.float64) * normalize_rows([query])[0].astype(np.float64)).sum(axis=1)
    places = np.lexsort((order, -scores))
    return [(int(p), float(scores[p])) for p in places if allowed is None or allowed[p]][:k]


def answers(found):
    return [
        [(int(r), float(s)) for r, s in zip(rows, scores, strict=True) if r >= 0]
        for rows, scores in zip(found.rows, found.scores, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 900), k=st.integers(1, 12), same=st.floats(0, 1))
def test_flat_is_the_sorted_whole(seed, n, k, same):
    rng = np.random.default_rng(seed)
    rows = normalize_rows(rng.standard_normal((n, 16)))
    rows[rng.random(n) < same] = rows[0]  # ties, in any place of any block
    queries = np.concatenate([rows[rng.integers(0, n, 3)], rng.standard_normal((2, 16))]).astype(np.float32)
    order = rng.permutation(n)
    cuts = sorted(rng.integers(0, n + 1, 2))
    index = FlatIndex([rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]], order=order)
    for allowed in (None, rng.random(n) < 0.6, rng.random(n) < 0.1, np.zeros(n, bool)):
        got = answers(index.search(queries, k, allowed=allowed))
        assert got == [brute(rows, query, k, order=order, allowed=allowed) for query in queries]


def test_blocks_and_batches_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    rows = normalize_rows(np.repeat(rng.standard_normal((700, 24)), 13, axis=0)[:9000])
    queries = rng.standard_normal((600, 24))
    order = rng.permutation(len(rows))
    whole = FlatIndex([rows], order=order).search(queries, 5)
    monkeypatch.setattr("evolvent.memory.index._BLOCK", (512, 1024, 1 << 16))
    monkeypatch.setattr("evolvent.memory.index._QUERIES", 7)
    small = FlatIndex([rows], order=order).search(queries, 5)
    assert np.array_equal(whole.rows, small.rows) and np.array_equal(whole.scores, small.scores)
    assert answers(small)[3] == brute(rows, queries[3], 5, order=order)


def test_torch_gives_the_same():
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    rows = normalize_rows(rng.standard_normal((3000, 32)))
    rows[1000:1500] = rows[7]
    queries = rows[rng.integers(0, 3000, 20)]
    for allowed in (None, rng.random(3000) < 0.5, rng.random(3000) < 0.05):
        there = FlatIndex([rows[:900], rows[900:]], device="cpu").search(queries, 4, allowed=allowed)
        here = FlatIndex([rows]).search(queries, 4, allowed=allowed)
        assert np.array_equal(there.rows, here.rows) and np.array_equal(there.scores, here.scores)


def test_extending_keeps_what_was_and_few_segments(tmp_path):
    rng = np.random.default_rng(2)
    rows = normalize_rows(rng.standard_normal((400, 8)))
    np.save(tmp_path / "rows.npy", rows[:100])
    index = FlatIndex([np.load(tmp_path / "rows.npy", mmap_mode="r")])
    first = index.search(rows[:3], 2)
    for at in range(100, 400, 3):
        index = index.extend(rows[at : at + 3], np.arange(min(at + 3, 400)))
    assert len(index.segments) <= 16 and isinstance(index.segments[0], np.memmap)
    assert np.array_equal(index.vectors(), rows)
    assert np.array_equal(index.take_rows(np.array([399, 0, 101])), rows[[399, 0, 101]])
    assert np.array_equal(first.rows[:, 0], np.arange(3))
    assert answers(index.search(rows[:9], 3)) == answers(FlatIndex([rows]).search(rows[:9], 3))


def test_bad_input():
    index = FlatIndex([normalize_rows(np.eye(3))])
    with pytest.raises(ConfigError, match="k = 0"):
        index.search(np.eye(3), 0)
    with pytest.raises(NonFinite, match="row 1"):
        index.search([[1, 0, 0], [0, np.nan, 0]], 1)
    with pytest.raises(BatchMismatch):
        index.search(np.eye(4), 1)
    with pytest.raises(BatchMismatch):
        index.search(np.eye(3), 1, allowed=np.ones(2, bool))
    with pytest.raises(BatchMismatch):
        FlatIndex([np.eye(3)])  # float64
    with pytest.raises(BatchMismatch):
        FlatIndex([normalize_rows(np.eye(3))], order=np.arange(2))
    assert np.array_equal(normalize_rows([[0, 0], [3, 4]]), np.float32([[0, 0], [0.6, 0.8]]))


def graph_or_skip(*args, **options):
    from evolvent.memory.index import UsearchIndex

    try:
        return UsearchIndex(*args, **options)
    except MissingExtra:
        pytest.skip("usearch is not installed")


def test_the_graph_finds_most_with_exact_scores(tmp_path):
    rng = np.random.default_rng(3)
    rows = normalize_rows(rng.standard_normal((3000, 16)))
    queries = normalize_rows(rows[:200] + 0.1 * rng.standard_normal((200, 16)))
    exact = FlatIndex([rows])
    graph = graph_or_skip(FlatIndex([rows[:2000]])).extend(rows[2000:], np.arange(3000))
    for allowed in (None, np.arange(3000) % 2 == 0, np.arange(3000) < 40):
        wanted, got = (answers(index.search(queries, 5, allowed=allowed)) for index in (exact, graph))
        shared = [len(set(a) & set(b)) for a, b in zip(wanted, got, strict=True)]
        assert np.mean(shared) >= 4.75, "row and score, to the last bit"
    (tmp_path / "graph").write_bytes(graph.graph())
    again = graph_or_skip(exact, path=tmp_path / "graph")
    assert answers(again.search(queries, 5)) == answers(graph.search(queries, 5))
    with pytest.raises(HashMismatch):
        graph_or_skip(FlatIndex([rows[:10]]), path=tmp_path / "graph")


def test_two_extensions_of_one_graph_do_not_meet():
    rows = normalize_rows(np.random.default_rng(4).standard_normal((900, 8)))
    first = graph_or_skip(FlatIndex([rows[:300]]))
    sides = [first.extend(rows[at : at + 300], np.arange(600)) for at in (300, 600)]
    for side, own in zip(sides, (rows[300:600], rows[600:]), strict=True):
        exact = FlatIndex([np.concatenate([rows[:300], own])])
        wanted, got = (answers(index.search(own, 1)) for index in (exact, side))
        assert np.mean([a == b for a, b in zip(wanted, got, strict=True)]) > 0.95


def test_the_graph_says_what_is_missing(monkeypatch):
    import sys

    from evolvent.memory.index import UsearchIndex

    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(MissingExtra, match="embed"):
        UsearchIndex(FlatIndex([normalize_rows(np.eye(3))]))

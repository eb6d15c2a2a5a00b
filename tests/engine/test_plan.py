"""The layout of forwards against what it must mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.engine.streams import ROWS, SPAN, STRIDE, plan

ROW = st.tuples(st.integers(0, 450), st.sampled_from([1, 1, 1, 2, 3, 7, 8, 9, 40, 300]))


@settings(deadline=None, max_examples=200)
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([1, 100, 1000, 10**6]))
def test_every_new_token_lies_in_one_group_once(given_rows: list[tuple[int, int]], limit: int) -> None:
    starts, counts = (np.array(part) for part in zip(*given_rows, strict=True))
    rows = np.arange(len(starts)) + 100
    layout = plan(rows, starts, counts, limit=limit, capacity=800)
    expected = [(row, s + i) for row, s, c in zip(rows, starts, counts, strict=True) for i in range(c)]
    flat = list(zip(layout.rows.tolist(), layout.positions.tolist(), strict=True))
    assert sorted(flat) == sorted(expected)
    edges = [0, *(group.last for group in layout.groups)]
    assert [group.first for group in layout.groups] == edges[:-1] and edges[-1] == len(flat)
    padded = 0
    for group in layout.groups:
        n, q = len(group.rows), group.queries
        assert q == 1 or q % ROWS == 0
        assert group.keys % STRIDE == 0 and group.positions.max() < group.keys <= 800
        own = group.positions // SPAN
        assert (own == own[0, 0]).all() and (own[0, 0] == 0 or group.keys == min(800, (own[0, 0] + 1) * SPAN))
        slots = [(row, p) for row, line in zip(group.rows, group.positions, strict=True) for p in line]
        real = range(n * q) if group.real is None else group.real
        assert [slots[at] for at in real] == flat[group.first : group.last]
        if group.pad is not None:
            assert [flat[at] for at in group.pad] == slots
        padded += n * q - (group.last - group.first)
    assert layout.padded == padded


def test_rows_with_one_token_are_never_padded_and_come_longest_first() -> None:
    layout = plan(np.arange(4), np.array([3, 40, 9, 20]), np.array([1, 1, 1, 8]), limit=64, capacity=64)
    assert layout.padded == 0
    assert [group.rows.tolist() for group in layout.groups] == [[1], [2, 0], [3]]
    assert [group.keys for group in layout.groups] == [48, 16, 32]

"""Which rows attend together in one forward, and how their tokens lie in it. Pure numpy.

All new tokens of a forward lie in one flat list, without padding, for everything that treats tokens alone. Attention
needs rows of like shape: rows are put into groups of like numbers of new tokens and like lengths, and only inside a
group a row is padded to the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Group", "Plan", "plan"]

Ints = NDArray[np.int64]
STRIDE = 16  # attention lengths are multiples of this: sums over keys then run in the same order in every batch
ROWS = 4  # and so are query counts above 1: matrix products of fewer rows run in another kernel


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that attend together.

    Attributes:
        rows: `[n]` arena rows.
        queries: q, new tokens per row after padding. keys: L, positions that are looked at.
        first, last: where the group's tokens lie in the flat list.
        pad: `[n * q]` index of each padded slot in the flat list (None: no padding).
        real: index of each of the group's flat tokens in the padded slots (None: no padding).
        positions: `[n, q]` depth of each padded slot.
    """

    rows: Ints
    queries: int
    keys: int
    first: int
    last: int
    positions: Ints
    pad: Ints | None = None
    real: Ints | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward. `rows`, `positions` `[N]` of the flat tokens; `order`: row numbers (indices into the input) in the
    order in which their tokens lie; `padded`: filler slots."""

    rows: Ints
    positions: Ints
    order: Ints
    groups: tuple[Group, ...]
    padded: int


def plan(rows: Ints, starts: Ints, counts: Ints, *, limit: int, capacity: int) -> Plan:
    """Lay out a forward.

    Args:
        rows: `[n]` arena rows. starts: `[n]` depth before each row's new tokens. counts: `[n]` new tokens, at least 1.
        limit: positions (rows x keys) that one group may look at, so that it stays in a processor's cache.
        capacity: positions that a row has.
    """
    ends = starts + counts
    order = np.lexsort((-ends, counts))
    rows, starts, counts, ends = rows[order], starts[order], counts[order], ends[order]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    flat_rows = np.repeat(rows, counts)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    flat_positions = np.repeat(starts, counts) + within
    groups, padded, at = [], 0, 0
    while at < len(rows):
        until = _group_end(counts, ends, at, limit)
        part = slice(at, until)
        queries, width = int(counts[until - 1]), int(offsets[until] - offsets[at])
        queries = queries if queries == 1 else -(-queries // ROWS) * ROWS
        keys = min(capacity, -(-int(ends[part].max()) // STRIDE) * STRIDE)
        first, last = int(offsets[at]), int(offsets[until])
        n = until - at
        if width == n * queries:
            positions = flat_positions[first:last].reshape(n, queries)
            groups.append(Group(rows[part], queries, keys, first, last, positions))
        else:
            slot = np.arange(queries)
            inside = np.minimum(slot, counts[part, None] - 1)
            pad = (offsets[at:until, None] + inside).ravel()
            real = np.repeat(np.arange(n) * queries, counts[part]) + within[first:last]
            positions = flat_positions[pad].reshape(n, queries)
            groups.append(Group(rows[part], queries, keys, first, last, positions, pad, real))
            padded += n * queries - width
        at = until
    return Plan(flat_rows, flat_positions, order, tuple(groups), padded)


def _group_end(counts: Ints, ends: Ints, at: int, limit: int) -> int:
    """Where the group that begins at a row ends (rows sorted by count, then by falling end)."""
    smallest = int(counts[at])
    most = smallest if smallest == 1 else smallest + max(3, smallest // 2)
    until = int(np.searchsorted(counts, most, side="right"))
    longest = np.maximum.accumulate(ends[at:until])
    fits = longest * np.arange(1, until - at + 1) * np.maximum(1, counts[at:until] // 8) <= limit
    return at + max(1, int(fits.sum()))

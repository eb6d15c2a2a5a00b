"""The layout of one forward: groups of rows that attend together, and the positions of their tokens. Pure numpy.

All new tokens of a forward lie in one flat list, without padding, for everything that treats tokens alone.
Attention needs rows of like shape: rows are put into groups of like numbers of new tokens and like lengths, and
only inside a group a row is padded to the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Group", "Plan", "plan"]

Ints = NDArray[np.int64]
# A token's numbers must not depend on what shares its forward, to the last bit. Sums over keys run in the same order if
# their number is a multiple of STRIDE up to SPAN, and beyond if it follows from the token's own depth (longer products
# are cut into blocks by their length). Products of fewer than ROWS rows run in another kernel. Measured with MKL.
STRIDE, SPAN, ROWS = 16, 192, 4


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
    """One forward: arena `rows` and `positions` `[N]` of the flat tokens, the groups, and how many slots are filler."""

    rows: Ints
    positions: Ints
    groups: tuple[Group, ...]
    padded: int


def plan(rows: Ints, starts: Ints, counts: Ints, *, limit: int, capacity: int) -> Plan:
    """Plans a forward.

    Args:
        rows: `[n]` arena rows. starts: `[n]` depth before each row's new tokens. counts: `[n]` new tokens, at least 1.
        limit: positions (rows x keys) that one group may look at, so that it stays in a processor's cache.
        capacity: positions that a row has.
    """
    rows, starts, counts = _split_at_spans(rows, starts, counts)
    ends = starts + counts
    spans = (ends - 1) // SPAN
    order = np.lexsort((-ends, counts, spans))  # what was cut stays in order
    rows, starts, counts, ends, spans = (array[order] for array in (rows, starts, counts, ends, spans))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    flat_rows = np.repeat(rows, counts)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    flat_positions = np.repeat(starts, counts) + within
    groups, padded, begin = [], 0, 0
    while begin < len(rows):
        span_end = begin + _run_length(spans[begin:])
        end = begin + _group_size(counts[begin:span_end], ends[begin:span_end], limit)
        members = slice(begin, end)
        queries, width = int(counts[end - 1]), int(offsets[end] - offsets[begin])
        queries = queries if queries == 1 else -(-queries // ROWS) * ROWS
        step = SPAN if spans[begin] else STRIDE
        keys = min(capacity, -(-int(ends[members].max()) // step) * step)
        first, last = int(offsets[begin]), int(offsets[end])
        n = end - begin
        if width == n * queries:
            positions = flat_positions[first:last].reshape(n, queries)
            groups.append(Group(rows[members], queries, keys, first, last, positions))
        else:
            slot = np.arange(queries)
            inside = np.minimum(slot, counts[members, None] - 1)
            pad = (offsets[begin:end, None] + inside).ravel()
            real = np.repeat(np.arange(n) * queries, counts[members]) + within[first:last]
            positions = flat_positions[pad].reshape(n, queries)
            groups.append(Group(rows[members], queries, keys, first, last, positions, pad, real))
            padded += n * queries - width
        begin = end
    return Plan(flat_rows, flat_positions, tuple(groups), padded)


def _split_at_spans(rows: Ints, starts: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Splits rows whose new tokens lie in several spans into several rows: keys are written before they are read."""
    ends = starts + counts
    while True:
        edge = (starts // SPAN + 1) * SPAN
        over = np.flatnonzero(ends > edge)
        if not len(over):
            return rows, starts, ends - starts
        rows, ends = np.concatenate([rows, rows[over]]), np.concatenate([ends, ends[over]])
        starts = np.concatenate([starts, edge[over]])
        ends[over] = edge[over]


def _run_length(values: Ints) -> int:
    """Returns how many of the first values are equal."""
    differing = np.flatnonzero(values != values[0])
    return int(differing[0]) if len(differing) else len(values)


def _group_size(counts: Ints, ends: Ints, limit: int) -> int:
    """Returns how many of the first rows make a group (rows sorted by count, then by falling end)."""
    smallest = int(counts[0])
    max_count = smallest if smallest == 1 else smallest + max(3, smallest // 2)
    end = int(np.searchsorted(counts, max_count, side="right")) if counts[0] > 1 else _run_length(counts)
    longest = np.maximum.accumulate(ends[:end])
    fits = longest * np.arange(1, end + 1) * np.maximum(1, counts[:end] // 8) <= limit
    return max(1, int(fits.sum()))

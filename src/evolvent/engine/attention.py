"""Attention of groups of rows over the arena. Each group's keys and values are gathered into a small scratch first.

It is PyTorch's fused attention. Small heads on a CPU get a second form for rows with one new token: the queries of all
heads stand as one block-diagonal matrix `[heads, heads * head]`, so that a row is two matrix products for all heads
together. The zeros cost less than the calls they save; and as matrix products of at least four rows all run in the same
kernel, a token's numbers are the same to the last bit whatever it is fed with (measured with MKL).

On another device the query heads that share keys stand as queries of one head, so that no kernel has to repeat keys;
and rows that lie side by side are looked at where they are.

The layout of one forward: groups of rows that attend together, and the positions of their tokens. Pure numpy.

All new tokens of a forward lie in one flat list, without padding, for everything that treats tokens alone.
Attention needs rows of like shape: rows are put into groups of like numbers of new tokens and like lengths, and
only inside a group a row is padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Attention", "AttentionGroup", "Group", "Plan", "plan"]


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


_WIDEST = 128  # key width up to which the block-diagonal product pays


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """A group of a plan as tensors; `mask [n, 1, q, L]` is added to scores. `side`: the first of rows side by side."""

    rows: Tensor
    side: int | None
    queries: int
    keys: int
    first: int
    last: int
    mask: Tensor
    pad: Tensor | None
    real: Tensor | None


class Attention:
    """Attention of one model.

    Args:
        queries, keys: heads. head: width of one head.
    """

    def __init__(self, queries: int, keys: int, head: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._queries, self._keys, self._head = queries, keys, head
        self._cpu = device.type == "cpu"
        self._blocks = self._cpu and dtype == torch.float32 and keys * head <= _WIDEST and queries >= 4
        owner = torch.arange(queries, device=device) // (queries // keys)
        diagonal = (owner.unsqueeze(1) == torch.arange(keys, device=device)).to(dtype)
        self._diagonal = (diagonal * head**-0.5).unsqueeze(-1)  # [queries, keys, 1], the scale multiplied in
        self._scratch = torch.empty(0, dtype=dtype, device=device)

    def prepare(self, plan: Plan, device: torch.device) -> list[AttentionGroup]:
        """Builds the groups of a plan with their masks, once for all layers."""
        return [
            AttentionGroup(
                rows=torch.from_numpy(group.rows).to(device),
                side=None if self._cpu else first_adjacent_row(group.rows),
                queries=group.queries,
                keys=group.keys,
                first=group.first,
                last=group.last,
                mask=self.mask(torch.from_numpy(group.positions).to(device), group.keys),
                pad=None if group.pad is None else torch.from_numpy(group.pad).to(device),
                real=None if group.real is None else torch.from_numpy(group.real).to(device),
            )
            for group in plan.groups
        ]

    def mask(self, positions: Tensor, keys: int) -> Tensor:
        """Returns the additive mask `[n, 1, q, L]` for attention scores: 0 where a query attends, -inf elsewhere."""
        beyond = torch.arange(keys, device=positions.device) > positions.unsqueeze(-1)
        mask = torch.zeros(beyond.shape, dtype=self._scratch.dtype, device=beyond.device)
        return mask.masked_fill_(beyond, -torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, groups: Sequence[AttentionGroup], cache: Tensor) -> Tensor:
        """Computes attention of `queries [N, heads * head]` over one layer's cache.

        Args:
            cache: `[rows, capacity, 2, heads, head]`.

        Returns:
            The attention output, in the shape of `queries`.
        """
        only, filled = groups[0], groups[-1].last
        if len(groups) == 1 and only.pad is None and filled == len(queries):
            return self._attend(queries, only, cache).reshape(filled, -1)
        result = torch.empty_like(queries, memory_format=torch.contiguous_format)
        if filled < len(result):
            result[filled:] = 0
        for group in groups:
            group_queries = (
                queries[group.first : group.last] if group.pad is None else queries.index_select(0, group.pad)
            )
            out = self._attend(group_queries, group, cache)
            if group.real is None:
                result[group.first : group.last].view(out.shape).copy_(out)
            else:
                torch.index_select(
                    out.reshape(len(group_queries), -1), 0, group.real, out=result[group.first : group.last]
                )
        return result

    def _attend(self, group_queries: Tensor, group: AttentionGroup, cache: Tensor) -> Tensor:
        """Computes attention of one group, `[n * q, heads * head] -> [n, q, heads, head]`."""
        attend = self._fused if group.queries > 1 else self._single
        return attend(
            group_queries.view(-1, group.queries, self._queries, self._head),
            self._gather_keys_values(cache, group),
            group.mask,
        )

    def _gather_keys_values(self, cache: Tensor, group: AttentionGroup) -> Tensor:
        """Returns the first `keys` positions of the group's rows, `[n, L, 2, heads, head]`."""
        if group.side is not None:
            return cache[group.side : group.side + len(group.rows), : group.keys]
        if not self._cpu:
            return cache[:, : group.keys].index_select(0, group.rows)
        shape = (len(group.rows), group.keys, *cache.shape[2:])
        size = torch.Size(shape).numel()
        if self._scratch.numel() < size:
            self._scratch = cache.new_empty(size)
        gathered = self._scratch[:size].view(shape)
        torch.index_select(cache[:, : group.keys], 0, group.rows, out=gathered)
        return gathered

    def _single(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        """Computes attention of one new token per row in the fastest form for this device."""
        if self._blocks:
            return self._block_diagonal(queries, keys_values, mask)
        return self._fused(queries, keys_values, mask) if self._cpu else attend_shared_keys(queries, keys_values, mask)

    def _block_diagonal(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        """Computes attention of one new token per row with the heads as rows of one block-diagonal matrix."""
        n, _, heads, _ = queries.shape
        keys, values = keys_values.flatten(3).unsqueeze(1).unbind(3)
        spread = (queries.view(n, 1, heads, 1, -1) * self._diagonal).flatten(3)
        mixed = F.scaled_dot_product_attention(spread, keys, values, attn_mask=mask, scale=1.0)
        head_blocks = mixed.view(n, self._keys, heads // self._keys, self._keys, self._head)
        return head_blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(n, 1, heads, self._head)

    def _fused(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        keys, values = keys_values.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=self._keys != self._queries
        )
        return out.transpose(1, 2)


def attend_shared_keys(queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
    """Computes attention of one new token per row.

    The query heads that share a key head are treated as that many queries of it.

    Args:
        queries: `[n, 1, heads, head]`.
        keys_values: `[n, L, 2, key heads, head]`.
    """
    n, _, heads, width = queries.shape
    keys, values = keys_values.permute(2, 0, 3, 1, 4)
    count = keys.shape[1]
    grouped = queries.view(n, count, heads // count, width)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(n, 1, heads, width)


def first_adjacent_row(rows: NDArray[np.int64]) -> int | None:
    """Returns the first row where rows `[n]` are n consecutive rows; otherwise None."""
    first = int(rows[0])
    return first if bool((rows == np.arange(first, first + len(rows))).all()) else None

"""From parts to batches: which sequences are fed together, and as what tensors.

Two layouts with the same loss. *Bucketed*: rows of like length, padded on the right; under causal attention no real
token sees the padding, so no mask is needed. *Packed*: several documents in a row behind a block-diagonal causal mask,
for devices where few long rows are fast.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.learn.parts import Parts
from evolvent.trajectory import sample_rng

__all__ = ["Batch", "Position", "Stream", "block_mask", "bucket", "collate_packed", "collate_padded", "pack"]

Row = list[int]  # indices of the parts in a row: one where padded, several where packed
Micro = list[Row]  # the rows of one forward
Update = list[Micro]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The tensors of one forward and backward.

    Args:
        ids: `[B, T]` int64.
        index: `[N]` int64, flat positions in `B * T` whose output predicts a target.
        targets: `[N]` int64, the tokens predicted there.
        weights: `[N]` float32, their learning weights; none is 0.
        samples: which parts are in it.
        real: how many of the `B * T` tokens are no padding.
        positions: `[B, T]` int64, positions within each document; None: 0 to T - 1 in every row.
        docs: `[B, T]` int64, the document of each token, -1 for padding; None: one document in every row.
    """

    ids: Tensor
    index: Tensor
    targets: Tensor
    weights: Tensor
    samples: tuple[int, ...]
    real: int
    positions: Tensor | None = None
    docs: Tensor | None = None

    @property
    def count(self) -> int:
        """How many targets with a learning weight it has."""
        return self.targets.shape[0]

    @property
    def padded(self) -> int:
        """How many filler tokens it has."""
        return self.ids.numel() - self.real

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        if self.ids.device == device:
            return self
        names = ("ids", "index", "targets", "weights", "positions", "docs")
        moved = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(self, **{name: value.to(device, non_blocking=True) for name, value in moved.items()})


def bucket(lengths: Sequence[int], budget: int, *, rng: Generator, width: int = 4) -> list[list[int]]:
    """Batches of like length: indices grouped so that rows times the longest is at most `budget`.

    Lengths are rounded up to multiples of `width`; sequences of one rounded length are shuffled among each other, and
    the batches are shuffled. Every index comes once. A sequence longer than the budget is a batch of its own.
    """
    sizes = np.asarray(lengths, np.int64)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-(-sizes[order] // width), kind="stable")]
    batches: list[list[int]] = []
    longest = 0
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        longest = max(longest, size)
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = size
    return [batches[place] for place in rng.permutation(len(batches)).tolist()]


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of at most `capacity` tokens: best-fit decreasing, ties by index. Every index comes once.

    Raises:
        BatchMismatch: a length beyond the capacity.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        if size > capacity:
            raise BatchMismatch("a sequence longer than a packed row", value=size, expected=f"at most {capacity}")
        place = bisect_left(room, (size, -1))
        if place < len(room):
            left, row = room.pop(place)
        else:
            left, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        insort(room, (left - size, row))
    return rows


def _batch(parts: Sequence[Parts], rows: Sequence[Sequence[int]], *, packed: bool) -> Batch:
    feeds = [[parts[index].feed for index in row] for row in rows]
    shape = (len(rows), max(map(sum, feeds)))
    ids, targets, weights = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    positions, docs = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    document = 0
    for number, row in enumerate(rows):
        start = 0
        for index, feed in zip(row, feeds[number], strict=True):
            sequence, place = parts[index], slice(start, start + feed)
            ids[number, place] = sequence.ids[:feed]
            targets[number, place] = sequence.ids[1 : feed + 1]
            weights[number, place] = sequence.weight[1 : feed + 1]
            if packed:
                positions[number, place] = np.arange(feed)
                docs[number, place] = document
            start, document = start + feed, document + 1
    learned = np.flatnonzero(weights)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(learned),
        torch.from_numpy(targets.ravel()[learned]),
        torch.from_numpy(weights.ravel()[learned]),
        tuple([index for row in rows for index in row]),
        sum(map(sum, feeds)),
        torch.from_numpy(positions) if packed else None,
        torch.from_numpy(docs) if packed else None,
    )


def collate_padded(parts: Sequence[Parts], rows: Sequence[Sequence[int]]) -> Batch:
    """One sequence in every row, padded on the right to the longest.

    Only what is needed is fed: a sequence ends before its last weighted target.

    Args:
        rows: `[[i], [j], ...]`, indices into `parts`.
    """
    return _batch(parts, rows, packed=False)


def collate_packed(parts: Sequence[Parts], rows: Sequence[Sequence[int]]) -> Batch:
    """Several sequences in every row; positions start again with each, and `docs` tells them apart."""
    return _batch(parts, rows, packed=True)


def block_mask(docs: Tensor) -> Tensor:
    """Block-diagonal causal attention mask `[B, 1, T, T]` bool from `docs [B, T]`: True where attention is allowed.

    Padding (-1) attends to padding before it, so that no row of the softmax is empty.
    """
    same = docs[:, None, :, None] == docs[:, None, None, :]
    length = docs.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the order of the data: an epoch, and how many of its updates were taken."""

    epoch: int = 0
    offset: int = 0


class Stream:
    """The order of the data: a seeded permutation for every epoch, cut into updates.

    An epoch's updates depend on seed and epoch alone, so that any position is reached without walking to it.

    Args:
        lengths: tokens to feed of every sequence.
        budget: most tokens of an update, padding included. One longer sequence is an update alone.
        micro: most tokens of one forward, padding included; None: the whole update.
        capacity: tokens of a packed row; None: padded rows of like length.
        seed: of the order.
    Raises:
        ConfigError: a capacity that does not fit an update.
    """

    def __init__(
        self, lengths: Sequence[int], *, budget: int, micro: int | None = None, capacity: int | None = None, seed: int
    ) -> None:
        if capacity is not None and capacity > budget:
            raise ConfigError([Problem("batch_tokens", f"a packed row of {capacity} tokens is more than {budget}")])
        self._lengths, self._budget, self._seed = list(lengths), budget, seed
        self._micro, self._capacity = micro or budget, capacity
        self._plan: tuple[int, list[Update]] | None = None
        self.position = Position()

    @property
    def tokens(self) -> int:
        """Real tokens of one epoch."""
        return sum(self._lengths)

    def epoch(self, number: int) -> list[Update]:
        """All updates of an epoch, in order."""
        rng = sample_rng(self._seed, "order", number)
        if self._capacity is None:
            batches = bucket(self._lengths, self._budget, rng=rng)
            return [list(self._split([[index] for index in batch])) for batch in batches]
        order = rng.permutation(len(self._lengths)).tolist()
        rows = [[order[i] for i in row] for row in pack([self._lengths[i] for i in order], self._capacity)]
        rows = [rows[place] for place in rng.permutation(len(rows)).tolist()]
        per_update = self._budget // self._capacity
        return [list(self._split(rows[at : at + per_update])) for at in range(0, len(rows), per_update)]

    def _split(self, rows: list[Row]) -> Iterator[Micro]:
        longest = max(sum(self._lengths[i] for i in row) for row in rows)
        count = max(1, self._micro // max(1, longest))
        for at in range(0, len(rows), count):
            yield rows[at : at + count]

    def take(self) -> Update:
        """The next update; the position moves on, past the end of an epoch to the next one's beginning."""
        epoch, offset = self.position.epoch, self.position.offset
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self.epoch(epoch))
        updates = self._plan[1]
        if offset >= len(updates):
            raise BatchMismatch("a position that the epoch does not have", value=offset, expected=f"< {len(updates)}")
        self.position = Position(epoch, offset + 1) if offset + 1 < len(updates) else Position(epoch + 1, 0)
        return updates[offset]

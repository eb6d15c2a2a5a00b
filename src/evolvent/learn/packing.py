"""From parts to batches: which sequences are fed together, and as what tensors.

Two layouts with the same loss. *Bucketed*: rows of like length, padded on the right; under causal attention no real
token sees the padding, so no mask is needed. *Packed*: several documents in a row behind a block-diagonal causal mask,
for devices where few long rows are fast.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.learn.token_sequences import Parts

__all__ = [
    "Batch",
    "Row",
    "block_mask",
    "bucket",
    "collate_packed",
    "collate_padded",
    "common_columns",
    "pack",
]

Held = Sequence[Parts] | Mapping[int, Parts]
Row = list[int]  # indices of the parts in a row: one where padded, several where packed


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
        sequence: `[N]` int64, which of `samples` each target belongs to.
        columns: what else objectives read, one entry a target `[N, ...]`, under the names of `Parts.columns`.
        mask: `[B, 1, T, T]` bool, which tokens each may see, where rows are trees; None: those before it.
    """

    ids: Tensor
    index: Tensor
    targets: Tensor
    weights: Tensor
    samples: tuple[int, ...]
    real: int
    positions: Tensor | None = None
    docs: Tensor | None = None
    sequence: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None

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
        names = ("ids", "index", "targets", "weights", "positions", "docs", "sequence", "mask")
        moved = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        columns = {name: value.to(device, non_blocking=True) for name, value in self.columns.items()}
        moved = {name: value.to(device, non_blocking=True) for name, value in moved.items()}
        return replace(self, **moved, columns=columns)


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


def common_columns(parts: Held, chosen: Sequence[int]) -> Mapping[str, NDArray[Any]]:
    """The columns that all chosen parts have, those of the first of them; of an empty batch, of any part.

    Raises:
        BatchMismatch: one has other columns: entries beside the targets would belong to others.
    """
    some = next(iter(parts)) if isinstance(parts, Mapping) else 0
    columns = parts[chosen[0] if len(chosen) else some].columns
    for index in chosen:
        if parts[index].columns.keys() != columns.keys():
            raise BatchMismatch(
                f"sequence {parts[index].trajectory!r} has other columns than those beside it",
                value=sorted(parts[index].columns),
                expected=sorted(columns),
            )
    return columns


def _batch(parts: Held, rows: Sequence[Row], *, packed: bool, shape: tuple[int, int]) -> Batch:
    feeds = [[parts[index].feed for index in row] for row in rows]
    size = (max(len(rows), shape[0]), max([*map(sum, feeds), shape[1]]))
    ids, targets, weights = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.float32)
    positions, docs = np.zeros(size, np.int64), np.full(size, -1, np.int64)
    chosen = [index for row in rows for index in row]
    columns = {name: [column[:0]] for name, column in common_columns(parts, chosen).items()}
    document = 0
    for number, row in enumerate(rows):
        start = 0
        for index, feed in zip(row, feeds[number], strict=True):
            sequence, place = parts[index], slice(start, start + feed)
            ids[number, place] = sequence.ids[:feed]
            targets[number, place] = sequence.ids[1 : feed + 1]
            weights[number, place] = sequence.weight[1 : feed + 1]
            positions[number, place] = np.arange(feed)
            docs[number, place] = document
            for name, pieces in columns.items():
                pieces.append(sequence.columns[name][1 : feed + 1][sequence.weight[1 : feed + 1] != 0])
            start, document = start + feed, document + 1
    learned = np.flatnonzero(weights)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(learned),
        torch.from_numpy(targets.ravel()[learned]),
        torch.from_numpy(weights.ravel()[learned]),
        tuple(chosen),
        sum(map(sum, feeds)),
        torch.from_numpy(positions) if packed else None,
        torch.from_numpy(docs) if packed else None,
        torch.from_numpy(docs.ravel()[learned]),
        {name: torch.from_numpy(np.concatenate(pieces)) for name, pieces in columns.items()},
    )


def collate_padded(parts: Held, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """One sequence in every row, padded on the right to the longest.

    Only what is needed is fed: a sequence ends before its last weighted target.

    Args:
        rows: `[[i], [j], ...]`, indices into `parts`; none: a batch that teaches nothing.
        shape: least rows and tokens; what is more is padding.
    """
    return _batch(parts, rows, packed=False, shape=shape)


def collate_packed(parts: Held, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """Several sequences in every row; positions start again with each, and `docs` tells them apart."""
    return _batch(parts, rows, packed=True, shape=shape)


def block_mask(docs: Tensor) -> Tensor:
    """Block-diagonal causal attention mask `[B, 1, T, T]` bool from `docs [B, T]`: True where attention is allowed.

    Padding (-1) attends to padding before it, so that no row of the softmax is empty.
    """
    same = docs[:, None, :, None] == docs[:, None, None, :]
    length = docs.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()

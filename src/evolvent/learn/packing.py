"""Batches from token sequences: which sequences are fed together, and as which tensors.

Two layouts with the same loss. *Bucketed*: rows of like length, padded on the right; under causal attention no
real token sees the padding, so no mask is needed. *Packed*: several documents in a row behind a block-diagonal
causal mask, for devices where few long rows are fast.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.learn.token_sequences import TokenSequence

__all__ = [
    "Batch",
    "Row",
    "block_mask",
    "bucket_by_length",
    "collate_packed",
    "collate_padded",
    "common_columns",
    "pack_rows",
]

SequenceSource = Sequence[TokenSequence] | Mapping[int, TokenSequence]
Row = list[int]  # indices of the parts in a row: one where padded, several where packed


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The tensors of one forward and backward pass.

    Args:
        ids: `[B, T]` int64.
        index: `[N]` int64, flat positions in `B * T` whose output predicts a target.
        targets: `[N]` int64, the tokens predicted there.
        weights: `[N]` float32, their learning weights; none is 0.
        samples: indices of the sequences in it.
        real: number of the `B * T` tokens that are not padding.
        positions: `[B, T]` int64, positions within each document; None: 0 to T - 1 in every row.
        docs: `[B, T]` int64, the document of each token, -1 for padding; None: one document in every row.
        sequence: `[N]` int64, index into `samples` of each target's sequence.
        columns: further entries that objectives read, one per target `[N, ...]`, under the names of
            `TokenSequence.columns`.
        mask: `[B, 1, T, T]` bool, the tokens that each may see, where rows are trees; None: those before it.
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
        """Returns the number of targets with a learning weight."""
        return self.targets.shape[0]

    @property
    def padded(self) -> int:
        """Returns the number of padding tokens."""
        return self.ids.numel() - self.real

    def to(self, device: torch.device) -> Batch:
        """Returns the same batch on a device."""
        if self.ids.device == device:
            return self
        names = ("ids", "index", "targets", "weights", "positions", "docs", "sequence", "mask")
        moved = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        columns = {name: value.to(device, non_blocking=True) for name, value in self.columns.items()}
        moved = {name: value.to(device, non_blocking=True) for name, value in moved.items()}
        return replace(self, **moved, columns=columns)


def bucket_by_length(lengths: Sequence[int], budget: int, *, rng: Generator, width: int = 4) -> list[list[int]]:
    """Groups indices into batches of like length, so that rows times the longest is at most `budget` tokens.

    Lengths are rounded up to multiples of `width`; sequences of one rounded length are shuffled among each other, and
    the
    batches are shuffled. Every index comes once. A sequence longer than the budget is a batch of its own.
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
    return [batches[batch_index] for batch_index in rng.permutation(len(batches)).tolist()]


def pack_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs sequences into rows of at most `capacity` tokens: best-fit decreasing, ties by index. Every index comes
    once.

    Raises:
        BatchMismatch: a length exceeds the capacity.
    """
    rows: list[list[int]] = []
    free_space: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        if size > capacity:
            raise BatchMismatch("a sequence longer than a packed row", value=size, expected=f"at most {capacity}")
        slot = bisect_left(free_space, (size, -1))
        if slot < len(free_space):
            free, row = free_space.pop(slot)
        else:
            free, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        insort(free_space, (free - size, row))
    return rows


def common_columns(sequences: SequenceSource, selected: Sequence[int]) -> Mapping[str, NDArray[np.generic]]:
    """Returns the columns that all selected sequences have, those of the first; of an empty batch, of any sequence.

    Raises:
        BatchMismatch: a sequence has other columns, so that entries would not match the targets.
    """
    first_key = next(iter(sequences)) if isinstance(sequences, Mapping) else 0
    columns = sequences[selected[0] if len(selected) else first_key].columns
    for index in selected:
        if sequences[index].columns.keys() != columns.keys():
            raise BatchMismatch(
                f"sequence {sequences[index].trajectory!r} has other columns than those beside it",
                value=sorted(sequences[index].columns),
                expected=sorted(columns),
            )
    return columns


def _build_batch(sequences: SequenceSource, rows: Sequence[Row], *, packed: bool, shape: tuple[int, int]) -> Batch:
    feeds = [[sequences[index].feed for index in row] for row in rows]
    size = (max(len(rows), shape[0]), max([*map(sum, feeds), shape[1]]))
    ids, targets, weights = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.float32)
    positions, docs = np.zeros(size, np.int64), np.full(size, -1, np.int64)
    selected = [index for row in rows for index in row]
    columns = {name: [column[:0]] for name, column in common_columns(sequences, selected).items()}
    document = 0
    for number, row in enumerate(rows):
        start = 0
        for index, feed in zip(row, feeds[number], strict=True):
            sequence, row_slice = sequences[index], slice(start, start + feed)
            ids[number, row_slice] = sequence.ids[:feed]
            targets[number, row_slice] = sequence.ids[1 : feed + 1]
            weights[number, row_slice] = sequence.weight[1 : feed + 1]
            positions[number, row_slice] = np.arange(feed)
            docs[number, row_slice] = document
            for name, pieces in columns.items():
                pieces.append(sequence.columns[name][1 : feed + 1][sequence.weight[1 : feed + 1] != 0])
            start, document = start + feed, document + 1
    target_positions = np.flatnonzero(weights)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(target_positions),
        torch.from_numpy(targets.ravel()[target_positions]),
        torch.from_numpy(weights.ravel()[target_positions]),
        tuple(selected),
        sum(map(sum, feeds)),
        torch.from_numpy(positions) if packed else None,
        torch.from_numpy(docs) if packed else None,
        torch.from_numpy(docs.ravel()[target_positions]),
        {name: torch.from_numpy(np.concatenate(pieces)) for name, pieces in columns.items()},
    )


def collate_padded(sequences: SequenceSource, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """Builds a batch with one sequence in every row, padded on the right to the longest.

    Only the necessary tokens are fed: a sequence ends before its last weighted target.

    Args:
        rows: `[[i], [j], ...]`, indices into `sequences`; none: a batch without targets.
        shape: minimum numbers of rows and tokens; padding fills the difference.
    """
    return _build_batch(sequences, rows, packed=False, shape=shape)


def collate_packed(sequences: SequenceSource, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """Builds a batch with several sequences in every row; positions restart with each, and `docs` separates them."""
    return _build_batch(sequences, rows, packed=True, shape=shape)


def block_mask(docs: Tensor) -> Tensor:
    """Returns the block-diagonal causal attention mask `[B, 1, T, T]` bool from `docs [B, T]`: True where attention
    is allowed.

    Padding (-1) attends to padding before it, so that no row of the softmax is empty.
    """
    same = docs[:, None, :, None] == docs[:, None, None, :]
    length = docs.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()

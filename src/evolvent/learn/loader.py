"""Batches of one rank from a data set: the order of the data, split over data ranks and into forward passes."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np

from evolvent.errors import BatchMismatch, ConfigError, NothingToLearn, Problem
from evolvent.learn.parallel.ranks import Mesh, Schedule
from evolvent.learn.parallel.stages import min_micro_batches
from evolvent.learn.prefix_sharing import PrefixSharing
from evolvent.learn.token_sequences import (
    Batch,
    Row,
    TokenSequence,
    bucket_by_length,
    check_sequences,
    collate_packed,
    collate_padded,
    pack_rows,
)
from evolvent.learn.trees import collate
from evolvent.trajectory import sample_rng

__all__ = ["DataOrder", "LearnableSequences", "RankBatcher", "split_into_forwards", "split_over_ranks"]


class DataOrder:
    """The order of the data: a seeded permutation for every epoch, split into updates.

    It is the same for every number of ranks, and an epoch's updates depend on seed and epoch alone, so that any
    position is reached directly.

    Args:
        lengths: tokens to feed of every sequence.
        budget: token limit of an update, padding included. A longer sample is an update alone.
        capacity: tokens of a packed row; None: padded rows of like length.
        together: number of neighboring sequences that are one sample.
        seed: of the order.
    Attributes:
        position: number of samples taken since the beginning, over all epochs.
    Raises:
        ConfigError: the capacity does not fit an update.
    """

    def __init__(
        self, lengths: Sequence[int], *, budget: int, capacity: int | None = None, together: int = 1, seed: int
    ) -> None:
        if capacity is not None and capacity > budget:
            raise ConfigError(
                [Problem("batch_tokens", f"got {budget}, expected at least {capacity}, the length of a packed row")]
            )
        if len(lengths) % together:
            raise BatchMismatch("incomplete sample", value=len(lengths), expected=f"a multiple of {together}")
        self._budget, self._capacity, self._together, self._seed = budget, capacity, together, seed
        by_sample = np.asarray(lengths, np.int64).reshape(-1, together)
        self._sizes = (by_sample.max(1) if capacity is None else by_sample.sum(1)).tolist()
        self._plan: tuple[int, list[list[Row]], list[int]] | None = None
        self.position = 0

    @property
    def samples(self) -> int:
        """Returns the number of samples."""
        return len(self._sizes)

    def plan_epoch(self, number: int) -> list[list[Row]]:
        """Returns the rows of all updates of an epoch, in order."""
        rng, offsets = sample_rng(self._seed, "order", number), range(self._together)
        if self._capacity is None:
            batches = bucket_by_length(self._sizes, self._budget // self._together, rng=rng)
            return [[[sample * self._together + offset] for sample in batch for offset in offsets] for batch in batches]
        order = rng.permutation(len(self._sizes)).tolist()
        packed = pack_rows([self._sizes[sample] for sample in order], self._capacity)
        rows = [
            [order[row_index] * self._together + offset for row_index in row for offset in offsets] for row in packed
        ]
        rows = [rows[row_index] for row_index in rng.permutation(len(rows)).tolist()]
        per_update = self._budget // self._capacity
        return [rows[start : start + per_update] for start in range(0, len(rows), per_update)]

    def take(self) -> list[Row]:
        """Takes the rows of the next update and advances the position.

        Raises:
            BatchMismatch: the position is inside an update.
        """
        epoch, position_in_epoch = divmod(self.position, len(self._sizes))
        if self._plan is None or self._plan[0] != epoch:
            updates = self.plan_epoch(epoch)
            ends = np.cumsum([sum(map(len, rows)) // self._together for rows in updates]).tolist()
            self._plan = (epoch, updates, [0, *ends])
        _, updates, starts = self._plan
        number = bisect_left(starts, position_in_epoch)
        if starts[number] != position_in_epoch:
            raise BatchMismatch(
                "the position is inside an update", value=position_in_epoch, expected=starts[number - 1]
            )
        self.position += starts[number + 1] - position_in_epoch
        return updates[number]


def split_over_ranks(rows: Sequence[Row], num_ranks: int, together: int = 1) -> list[list[Row]]:
    """Splits the rows of an update over data ranks: neighbors stay together, shares are nearly equal in number."""
    cuts = np.linspace(0, len(rows) // together, num_ranks + 1).round().astype(int) * together
    return [list(rows[start:end]) for start, end in pairwise(cuts.tolist())]


def split_into_forwards(
    rows: Sequence[Row], lengths: Mapping[int, int] | Sequence[int], max_tokens: int, *, together: int = 1
) -> list[list[Row]]:
    """Splits rows into forward passes of at most `max_tokens`, padding included; a longer row is a pass alone."""
    if not rows:
        return []
    longest = max(1, *(sum(lengths[index] for index in row) for row in rows))
    count = max(1, max_tokens // (longest * together)) * together
    return [list(rows[start : start + count]) for start in range(0, len(rows), count)]


class LearnableSequences(Sequence[TokenSequence]):
    """The sequences of a data set that have a learned token, whole samples only; read when they are needed.

    Args:
        parts: a list, or a `TokenFile`, whose sizes are known without reading it.
        together: number of neighboring sequences that are one sample; it is left out where one of them has no target.
        vocabulary, context: limits of the model: token ids below, and number of tokens.
    Attributes:
        feeds: tokens to feed of each.
        targets: number of learned targets of all.
        trees: whether a row has branches.
    Raises:
        NothingToLearn: nothing is left.
        BatchMismatch, VocabularyMismatch: the model cannot read a sequence; those of a file are checked when they are
            read.
    """

    def __init__(self, parts: Sequence[TokenSequence], *, together: int, vocabulary: int, context: int) -> None:
        if len(parts) % together:
            raise BatchMismatch("incomplete sample", value=len(parts), expected=f"a multiple of {together} parts")
        sizes, counts = getattr(parts, "feeds", None), getattr(parts, "targets_each", None)
        feeds = np.asarray([sequence.feed for sequence in parts] if sizes is None else sizes, np.int64)
        is_complete = np.repeat((feeds.reshape(-1, together) > 0).all(1), together)
        self._parts, self._places = parts, np.flatnonzero(is_complete)
        if not len(self._places):
            raise NothingToLearn(
                "no sequence has a token with a nonzero learning weight",
                value=f"{len(parts)} sequences",
                hint="check the selected rows and the rows that flatten() refused",
            )
        self.trees = counts is None and any(sequence.parent is not None for sequence in parts)
        self._check = {"vocabulary": vocabulary, "context": context}
        if counts is None:
            check_sequences([parts[position] for position in self._places.tolist()], **self._check)
            counts = [np.count_nonzero(sequence.weight[1:]) for sequence in parts]
        self.feeds = feeds[self._places].tolist()
        self.targets = int(np.asarray(counts, np.int64)[self._places].sum())

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> TokenSequence: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenSequence]: ...

    def __getitem__(self, index: int | slice) -> TokenSequence | list[TokenSequence]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        sequence = self._parts[int(self._places[index])]
        if not isinstance(self._parts, list):
            check_sequences([sequence], **self._check)
        return sequence

    def digest(self) -> str:
        """Returns a digest of everything that is learned."""
        stored_digest = getattr(self._parts, "digest", None)
        if isinstance(stored_digest, str):
            return stored_digest
        data = hashlib.sha256()
        for sequence in self:
            data.update(sequence.trajectory.encode())
            branches = () if sequence.parent is None else (sequence.parent,)
            columns = (column for _, column in sorted(sequence.columns.items()))
            for array in (sequence.ids, sequence.weight, *columns, *branches):
                data.update(array.tobytes())
        return data.hexdigest()


@dataclass(frozen=True, slots=True)
class RankBatcher:
    """Builds one rank's micro-batches from the rows of an update.

    Args:
        packed: several sequences in a row.
        together: number of rows that stay together.
        max_tokens: token limit of a forward pass.
        mesh, schedule: the layout.
        rank: this data rank.
        sharing: how the sequences of a micro-batch share rows, if they do.
    """

    packed: bool
    together: int
    max_tokens: int
    mesh: Mesh
    schedule: Schedule
    rank: int
    sharing: PrefixSharing | None = None

    def build_batches(
        self, sequences: Sequence[TokenSequence] | Mapping[int, TokenSequence], rows: Sequence[Row]
    ) -> list[Batch]:
        """Builds this rank's micro-batches: as many as every other data rank's, with empty ones at the end.

        In a pipeline all have one shape; with tensor parallelism their length is a multiple of its ranks.
        """
        mesh, together = self.mesh, 1 if self.packed else self.together
        selected = {index: sequences[index] for row in rows for index in row}
        lengths = {index: selected[index].feed for index in selected}

        def width(micro: Sequence[Row]) -> int:
            return max((sum(lengths[index] for index in row) for row in micro), default=1)

        shares = [
            split_into_forwards(share, lengths, self.max_tokens, together=together)
            for share in split_over_ranks(rows, mesh.dp, together)
        ]
        own_rows, number = shares[self.rank], max(map(len, shares))
        height, length = 1, 1
        if mesh.pp > 1:
            number = min_micro_batches(self.schedule, mesh.pp, number)
            height, length = max(map(len, own_rows), default=1), max(map(width, own_rows), default=1)
        if any(sequence.parent is not None for sequence in selected.values()):
            return self._build_tree_batches(selected, [*own_rows, *([[]] * (number - len(own_rows)))])
        if self.sharing is not None:
            orders = [[index for row in micro for index in row] for micro in own_rows]
            shared_batches = [self.sharing.collate(selected, order, max_tokens=self.max_tokens) for order in orders]
            return [*shared_batches, *(collate_padded(selected, []) for _ in range(number - len(own_rows)))]
        collate = collate_packed if self.packed else collate_padded
        return [
            collate(selected, micro, shape=(height, -(-max(length, width(micro)) // mesh.tp) * mesh.tp))
            for micro in [*own_rows, *([[]] * (number - len(own_rows)))]
        ]

    def _build_tree_batches(
        self, selected: Mapping[int, TokenSequence], micros: Sequence[Sequence[Row]]
    ) -> list[Batch]:
        """Builds micro-batches of rows with branches.

        Raises:
            ConfigError: tensor or pipeline parallelism, which need rows of one shape.
        """
        if self.mesh.tp > 1 or self.mesh.pp > 1:
            raise ConfigError(
                [
                    Problem(
                        "parallelism",
                        "rows with branches need pure data parallelism",
                        "set tp and pp to 1",
                    )
                ]
            )
        return [
            collate(selected, [index for row in micro for index in row]) if micro else collate_padded(selected, [])
            for micro in micros
        ]

"""From a data set to the batches of one rank: the order of the data, dealt to data ranks and cut into forwards."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np

from evolvent.errors import BatchMismatch, ConfigError, NothingToLearn, Problem
from evolvent.learn.packing import Batch, Row, bucket, collate_packed, collate_padded, pack
from evolvent.learn.parallel.mesh import Mesh, Schedule
from evolvent.learn.parallel.stages import micro_batches
from evolvent.learn.prefix_sharing import Sharing
from evolvent.learn.token_sequences import Parts, check_parts
from evolvent.learn.trees import collate
from evolvent.trajectory import sample_rng

__all__ = ["Dealing", "Learnable", "Stream", "deal", "micro_rows"]


class Stream:
    """The order of the data: a seeded permutation for every epoch, cut into updates.

    It is the same for every number of ranks, and an epoch's updates depend on seed and epoch alone, so that any
    position is reached without walking to it.

    Args:
        lengths: tokens to feed of every part.
        budget: most tokens of an update, padding included. One longer sample is an update alone.
        capacity: tokens of a packed row; None: padded rows of like length.
        together: neighbouring parts that are one sample.
        seed: of the order.
    Attributes:
        position: how many samples were taken since the beginning, over all epochs.
    Raises:
        ConfigError: a capacity that does not fit an update.
    """

    def __init__(
        self, lengths: Sequence[int], *, budget: int, capacity: int | None = None, together: int = 1, seed: int
    ) -> None:
        if capacity is not None and capacity > budget:
            raise ConfigError([Problem("batch_tokens", f"a packed row of {capacity} tokens is more than {budget}")])
        if len(lengths) % together:
            raise BatchMismatch("a sample is incomplete", value=len(lengths), expected=f"a multiple of {together}")
        self._budget, self._capacity, self._together, self._seed = budget, capacity, together, seed
        by_sample = np.asarray(lengths, np.int64).reshape(-1, together)
        self._sizes = (by_sample.max(1) if capacity is None else by_sample.sum(1)).tolist()
        self._plan: tuple[int, list[list[Row]], list[int]] | None = None
        self.position = 0

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self._sizes)

    def epoch(self, number: int) -> list[list[Row]]:
        """The rows of all updates of an epoch, in order."""
        rng, span = sample_rng(self._seed, "order", number), range(self._together)
        if self._capacity is None:
            batches = bucket(self._sizes, self._budget // self._together, rng=rng)
            return [[[sample * self._together + part] for sample in batch for part in span] for batch in batches]
        order = rng.permutation(len(self._sizes)).tolist()
        packed = pack([self._sizes[sample] for sample in order], self._capacity)
        rows = [[order[place] * self._together + part for place in row for part in span] for row in packed]
        rows = [rows[place] for place in rng.permutation(len(rows)).tolist()]
        per_update = self._budget // self._capacity
        return [rows[at : at + per_update] for at in range(0, len(rows), per_update)]

    def take(self) -> list[Row]:
        """The rows of the next update; the position moves on.

        Raises:
            BatchMismatch: a position inside an update.
        """
        epoch, within = divmod(self.position, len(self._sizes))
        if self._plan is None or self._plan[0] != epoch:
            updates = self.epoch(epoch)
            ends = np.cumsum([sum(map(len, rows)) // self._together for rows in updates]).tolist()
            self._plan = (epoch, updates, [0, *ends])
        _, updates, starts = self._plan
        number = bisect_left(starts, within)
        if starts[number] != within:
            raise BatchMismatch("a position inside an update", value=within, expected=starts[number - 1])
        self.position += starts[number + 1] - within
        return updates[number]


def deal(rows: Sequence[Row], shares: int, together: int = 1) -> list[list[Row]]:
    """The rows of an update for each of so many data ranks: neighbours, as equal in number as can be."""
    cuts = np.linspace(0, len(rows) // together, shares + 1).round().astype(int) * together
    return [list(rows[start:end]) for start, end in pairwise(cuts.tolist())]


def micro_rows(
    rows: Sequence[Row], lengths: Mapping[int, int] | Sequence[int], most: int, *, together: int = 1
) -> list[list[Row]]:
    """Rows cut into forwards of at most `most` tokens, padding included; a longer row is one alone."""
    if not rows:
        return []
    longest = max(1, *(sum(lengths[index] for index in row) for row in rows))
    count = max(1, most // (longest * together)) * together
    return [list(rows[at : at + count]) for at in range(0, len(rows), count)]


class Learnable(Sequence[Parts]):
    """The parts of a data set that have something to learn, whole samples only; read when they are asked for.

    Args:
        parts: a list, or a `TokenFile`, whose sizes are known without reading it.
        together: neighbouring parts that are one sample; it is left out where one of them has no target.
        words, context: what the model takes: token ids below, and most tokens.
    Attributes:
        feeds: tokens to feed of each. targets: learned targets of all. trees: whether a row has branches.
    Raises:
        NothingToLearn: nothing is left. BatchMismatch, VocabularyMismatch: parts that the model cannot read; those of
            a file are looked at when they are read.
    """

    def __init__(self, parts: Sequence[Parts], *, together: int, words: int, context: int) -> None:
        if len(parts) % together:
            raise BatchMismatch("a sample is incomplete", value=len(parts), expected=f"a multiple of {together} parts")
        sizes, counts = getattr(parts, "feeds", None), getattr(parts, "targets_each", None)
        feeds = np.asarray([sequence.feed for sequence in parts] if sizes is None else sizes, np.int64)
        whole = np.repeat((feeds.reshape(-1, together) > 0).all(1), together)
        self._parts, self._places = parts, np.flatnonzero(whole)
        if not len(self._places):
            raise NothingToLearn(
                "no sequence has a token with a learning weight",
                value=f"{len(parts)} sequences",
                hint="check what was kept, and what flatten() refused",
            )
        self.trees = counts is None and any(sequence.parent is not None for sequence in parts)
        self._check = {"vocabulary": words, "context": context}
        if counts is None:
            check_parts([parts[place] for place in self._places.tolist()], **self._check)
            counts = [np.count_nonzero(sequence.weight[1:]) for sequence in parts]
        self.feeds = feeds[self._places].tolist()
        self.targets = int(np.asarray(counts, np.int64)[self._places].sum())

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Parts: ...

    @overload
    def __getitem__(self, index: slice) -> list[Parts]: ...

    def __getitem__(self, index: int | slice) -> Parts | list[Parts]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        found = self._parts[int(self._places[index])]
        if not isinstance(self._parts, list):
            check_parts([found], **self._check)
        return found

    def digest(self) -> str:
        """Of all that is learned."""
        known = getattr(self._parts, "digest", None)
        if isinstance(known, str):
            return known
        data = hashlib.sha256()
        for sequence in self:
            data.update(sequence.trajectory.encode())
            branches = () if sequence.parent is None else (sequence.parent,)
            columns = (column for _, column in sorted(sequence.columns.items()))
            for array in (sequence.ids, sequence.weight, *columns, *branches):
                data.update(array.tobytes())
        return data.hexdigest()


@dataclass(frozen=True, slots=True)
class Dealing:
    """How the rows of an update become one rank's micro-batches.

    Args:
        packed: several sequences in a row. together: rows that are never torn apart. most: tokens of a forward.
        mesh, schedule: the layout. rank: this data rank. sharing: how a micro-batch's sequences share rows, if they do.
    """

    packed: bool
    together: int
    most: int
    mesh: Mesh
    schedule: Schedule
    rank: int
    sharing: Sharing | None = None

    def batches(self, parts: Sequence[Parts] | Mapping[int, Parts], rows: Sequence[Row]) -> list[Batch]:
        """This rank's micro-batches: as many as every other data rank's, with empty ones at the end.

        In a pipeline all have one shape; with tensor parallelism their length is a multiple of its ranks.
        """
        mesh, together = self.mesh, 1 if self.packed else self.together
        chosen = {index: parts[index] for row in rows for index in row}
        lengths = {index: chosen[index].feed for index in chosen}

        def width(micro: Sequence[Row]) -> int:
            return max((sum(lengths[index] for index in row) for row in micro), default=1)

        shares = [micro_rows(share, lengths, self.most, together=together) for share in deal(rows, mesh.dp, together)]
        mine, number = shares[self.rank], max(map(len, shares))
        height, length = 1, 1
        if mesh.pp > 1:
            number = micro_batches(self.schedule, mesh.pp, number)
            height, length = max(map(len, mine), default=1), max(map(width, mine), default=1)
        if any(part.parent is not None for part in chosen.values()):
            return self._trees(chosen, [*mine, *([[]] * (number - len(mine)))])
        if self.sharing is not None:
            orders = [[index for row in micro for index in row] for micro in mine]
            found = [self.sharing.collated(chosen, order, most=self.most) for order in orders]
            return [*found, *(collate_padded(chosen, []) for _ in range(number - len(mine)))]
        collate = collate_packed if self.packed else collate_padded
        return [
            collate(chosen, micro, shape=(height, -(-max(length, width(micro)) // mesh.tp) * mesh.tp))
            for micro in [*mine, *([[]] * (number - len(mine)))]
        ]

    def _trees(self, chosen: Mapping[int, Parts], micros: Sequence[Sequence[Row]]) -> list[Batch]:
        """Micro-batches of rows with branches.

        Raises:
            ConfigError: tensor or pipeline parallelism, which need rows of one shape.
        """
        if self.mesh.tp > 1 or self.mesh.pp > 1:
            raise ConfigError(
                [
                    Problem(
                        "parallelism",
                        "rows with branches are learned with data parallelism alone",
                        "leave tp and pp at 1",
                    )
                ]
            )
        return [
            collate(chosen, [index for row in micro for index in row]) if micro else collate_padded(chosen, [])
            for micro in micros
        ]

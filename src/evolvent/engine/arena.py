"""The arena: keys, values and last hidden states of the paths that are being worked on.

A row is one path; position = depth. Rows are written in place and never moved. What leaves a row goes to compact
storage of a segment and comes back when it is needed. On a CPU the memory of a position is taken when the position is
first written, within a budget of tokens that the allocator keeps: on Linux and macOS the tensors are private mappings
of zeros, a page takes memory when it is first written, and `LazyMemory.release` gives the memory back. Reading an
untouched page takes none.
"""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.trie import Segment, Trie, TriePosition

__all__ = [
    "Arena",
    "LazyMemory",
    "RowAllocator",
    "Shape",
    "Snapshot",
    "Spilled",
    "StateShape",
    "lazy_zeros",
]


_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@dataclass(frozen=True, slots=True)
class LazyMemory:
    """A mapping of zeros below a tensor."""

    pages: mmap.mmap

    def release(self, first: int, last: int) -> None:
        """Gives the whole pages between two bytes back to the system; they read as zeros afterwards."""
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = last // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self.pages.madvise(mmap.MADV_DONTNEED, start, end - start)


def lazy_zeros(sizes: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, LazyMemory | None]:
    """Returns a tensor of zeros, and the mapping below it; None where the device takes all of its memory at once.

    Args:
        sizes: of the tensor.
    """
    length = math.prod(sizes) * dtype.itemsize
    if device.type != "cpu" or not hasattr(mmap, "MAP_ANONYMOUS") or not hasattr(mmap, "MADV_DONTNEED") or not length:
        return torch.zeros(sizes, dtype=dtype, device=device), None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would take 2 MB for one token
    return torch.frombuffer(pages, dtype=dtype).view(sizes), LazyMemory(pages)


@dataclass(slots=True)
class _Cover:
    """The available part of a path: `count` positions; the first `shared` of them in row `source`, then spilled
    pieces.
    """

    count: int = 0
    shared: int = 0
    source: int = -1
    pieces: list[tuple[Segment, int, int]] = field(default_factory=list)  # (segment, first, last) as depths


class RowAllocator:
    """The rows of an arena and their paths.

    Attributes:
        fed: `[rows]` positions that hold valid keys and values.
        target: `[rows]` positions up to which a busy row is going to be fed with tokens that are known.
        busy: `[rows]` whether a stream works on the row.
        cached: spilled tokens in all.
        starved: whether the last claim found no room in the budget.
    Args:
        max_cached_tokens: spilled tokens that are kept.
        max_tokens: tokens in rows and spilled ones together, beyond which claims are refused while others run; None:
            no limit.
        max_snapshots: states of texts that are kept at nodes.
    """

    def __init__(
        self,
        arena: Arena,
        trie: Trie,
        *,
        max_cached_tokens: int,
        max_tokens: int | None = None,
        max_snapshots: int = 256,
    ) -> None:
        count = arena.rows
        self.max_tokens = None if max_tokens is None or max_tokens >= count * arena.capacity * 2 else max_tokens
        self.starved = False
        self._touched = arena.touched
        self._has_states = bool(arena.shape.states)
        self._state_at = np.zeros(count, np.int64)  # depth that a row's states belong to; -1: to none that is known
        self._snapshots: OrderedDict[tuple[int, int], weakref.ref[Segment]] = OrderedDict()
        self._max_snapshots = max_snapshots
        self._reserved = np.zeros(count, np.int64)
        self.arena, self.trie, self.max_cached_tokens = arena, trie, max_cached_tokens
        self.fed = np.zeros(count, np.int64)
        self.target = np.zeros(count, np.int64)
        self.busy = np.zeros(count, np.bool_)
        self.cached = 0
        self._crowded = max_cached_tokens
        self._used = np.zeros(count, np.int64)
        self._tick = 0
        self._tips: list[weakref.ref[Segment] | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))

    def claim(self, position: TriePosition, need: int, *, reserve: int | None = None) -> int | None:
        """Returns a row that holds as much of a path as is known, marked busy; `fed` says how much.

        Args:
            position: the end of the path. need: positions of it that must be computed before the stream can go on.
            reserve: positions that the stream may fill; None: `need`.

        Returns:
            The row, or None: no row is idle, the budget has no room, or another stream is just computing a part of this
            path.
        """
        self.reap()
        segment, _ = position
        row = self._idle_ancestor(segment, need)
        size = need if reserve is None else max(need, reserve)
        self.starved = self.max_tokens is not None and not self._make_room(size, row, self.max_tokens)
        if self.starved:
            return None
        depth = need
        if row is not None and self._is_sole_source(segment, row) and not self._has_deeper_snapshot(segment, row, need):
            cover = _Cover()  # the common case: the next turn of an episode, and nobody else knows more
            depth = int(self.fed[row]) if self._has_states else need
        else:
            cover = self.cover(position, need)
            if cover.count < need and self._is_being_computed(position, cover.count, need):
                return None
            snapshot: Snapshot | None = None
            goes_on = False
            if self._has_states:
                depth, snapshot = self._deepest_states(position, min(cover.count, need))
                goes_on = row is not None and self.fed[row] >= depth
            if row is not None and goes_on:
                depth, cover = int(self.fed[row]), _Cover()
            if row is None:
                row = self._vacate(cover)
            if row is None:
                return None
            if self._has_states and not goes_on:
                self.arena.write_states(row, snapshot)
                self._state_at[row] = depth
        if self._has_states and cover.count > depth:
            cover.shared = min(cover.shared, depth)
        filled = min(int(self.fed[row]), depth)
        if cover.shared > filled:
            self.arena.copy(cover.source, row, first=filled, last=cover.shared)
            filled = cover.shared
        for part, first, last in cover.pieces:
            if first > filled or part.spilled is None:  # dropped in the meantime
                break
            last = min(last, depth)
            if last > filled:
                self.arena.copy_in(
                    row, part.spilled, position=filled, first=filled - part.start, last=last - part.start
                )
                filled = last
        if self._has_states and filled < depth:  # keys were dropped in the meantime, and states cannot go back
            self.arena.write_states(row, None)
            self._state_at[row] = filled = 0
        self.fed[row] = filled
        self._reserved[row] = size
        self._settle(row, segment)
        self.busy[row] = True
        return row

    # ------------------------------------------------------------------ states

    def advance_states(self, rows: NDArray[np.int64]) -> None:
        """Records that the states of rows belong to what was fed."""
        if self._has_states:
            self._state_at[rows] = self.fed[rows]

    def next_stops(self, rows: NDArray[np.int64], streams: Sequence[TriePosition | None]) -> NDArray[np.int64]:
        """Returns how far each row may be fed before its states are kept: the next node or branch of its path.

        Args:
            streams: the ends of the rows' known paths, and the depth at which what was asked begins.
        """
        stops = self.target[rows].copy()
        for index, (row, position) in enumerate(zip(rows.tolist(), streams, strict=True)):
            if position is None:
                continue
            fed = int(self.fed[row])
            segment, begin = position
            if fed < begin < stops[index]:
                stops[index] = begin
            for part in segment.path():
                if part.end <= fed:
                    break
                if part.end < stops[index] and not part.can_grow:
                    stops[index] = part.end
        return stops

    def keep_states(self, row: int, segment: Segment, depth: int) -> None:
        """Keeps a snapshot of a row's states at a depth of its path."""
        if not self._has_states or not depth or self._state_at[row] != depth:
            return
        segment, _ = self.trie.resolve((segment, depth))
        if depth in segment.snapshots:
            return
        segment.snapshots[depth] = self.arena.read_states(row)
        self._snapshots[id(segment), depth] = weakref.ref(segment)
        while len(self._snapshots) > self._max_snapshots:
            (_, old_depth), reference = self._snapshots.popitem(last=False)
            old = reference()
            if old is not None:
                old, _ = self.trie.resolve((old, old_depth))
                old.snapshots.pop(old_depth, None)

    def _has_deeper_snapshot(self, segment: Segment, row: int, need: int) -> bool:
        if not self._has_states:
            return False
        fed = int(self.fed[row])
        return any(fed < depth <= need for part in segment.path() for depth in part.snapshots)

    def _deepest_states(self, position: TriePosition, count: int) -> tuple[int, Snapshot | None]:
        """Returns the greatest depth up to `count` at which the states of a path are known, and a copy of them."""
        best, snapshot, source = 0, None, -1
        for part in position[0].path():
            for depth, kept in part.snapshots.items():
                if best < depth <= count:
                    best, snapshot, source = depth, kept, -1
            for row in part.rows:
                depth = int(self._state_at[row])
                if part.start < depth <= min(part.end, count, int(self.fed[row])) and depth > best:
                    best, snapshot, source = depth, None, row
        return best, self.arena.read_states(source) if source >= 0 else snapshot

    def held_tokens(self) -> int:
        """Returns how many tokens take memory, or may take it before a running stream ends."""
        reserved = np.where(self.busy, self._reserved, 0)
        return int(np.maximum(self._touched, reserved).sum()) + self.cached

    def _make_room(self, size: int, row: int | None, max_tokens: int) -> bool:
        """Makes room for a stream that may fill `size` positions, of which `row` holds some; returns whether there is.

        Memory is taken from free rows first, then from spilled tokens, then from idle rows, the least recently used
        first. What is taken is computed again when it is needed. A stream that runs alone always has room.
        """
        excess = self.held_tokens() + max(0, size - (0 if row is None else int(self._touched[row]))) - max_tokens
        if excess <= 0:
            return True
        for free in self._free:
            excess -= self.arena.release(free)
            if excess <= 0:
                return True
        if self.cached:
            before = self.cached
            self._drop(max_tokens=max(0, self.cached - excess))
            excess -= before - self.cached
        idle = [number for number in np.flatnonzero(~self.busy).tolist() if number != row and self._touched[number]]
        for number in sorted(idle, key=self._used.__getitem__):
            if excess <= 0:
                return True
            excess -= int(self._touched[number])
            self.discard(number)
            self.arena.release(number)
        return excess <= 0 or not bool(self.busy.any())

    def release(self, row: int, segment: Segment, fed: int) -> None:
        """Releases a row after its stream; it now holds `fed` positions of the path that ends in `segment`."""
        self.busy[row], self.fed[row] = False, fed
        if self._state_at[row] > fed:
            self._state_at[row] = -1
        self._settle(row, segment)

    def discard(self, row: int) -> None:
        """Releases a row together with its contents."""
        self._leave(row)
        self.busy[row], self.fed[row], self._state_at[row] = False, 0, -1
        self._free.append(row)

    def release_free(self) -> None:
        """Releases the memory of all free rows."""
        if len(self._free) == self.arena.rows:
            self.arena.release_all()
        for row in self._free:
            self.arena.release(row)

    def reap(self) -> None:
        """Collects rows and spilled tokens of segments that are no longer referenced."""
        while self.trie.dropped:
            parent, rows, spilled = self.trie.dropped.pop()
            if spilled is not None:
                self.cached -= spilled.count
                self._crowded = max(self.max_cached_tokens, self._crowded - spilled.count)
            for row in rows:
                self._fall_back(row, parent)
            parent = None  # it may have been the last reference: then its death is seen in the next round

    def reset_drop_limit(self) -> None:
        """Lets the next spill search all cached tokens again, after a hold has ended."""
        self._crowded = self.max_cached_tokens

    @property
    def full(self) -> bool:
        """Returns whether no row is free or idle."""
        return not self._free and bool(self.busy.all())

    @staticmethod
    def mark_computed(position: TriePosition, fed: int) -> None:
        """Records that the first `fed` positions of a path have been computed."""
        for segment in position[0].path():
            if segment.computed >= min(segment.end, fed):
                return
            segment.computed = min(segment.end, fed)

    @staticmethod
    def watermark(position: TriePosition, fed: int, need: int) -> int:
        """Records that positions fed..need are going to be computed; returns how many of them were computed before."""
        again = 0
        for segment in position[0].path():
            if segment.end <= fed:
                break
            again += max(0, min(segment.computed, need) - max(segment.start, fed))
            segment.computed = max(segment.computed, min(segment.end, need))
        return again

    def cover(self, position: TriePosition, need: int) -> _Cover:
        """Finds the known part of the first `need` positions of a path, in rows or moved out of them."""
        coverage = _Cover()
        path = list(position[0].path())
        for segment in path:
            best = self._fullest(segment, min(segment.end, need))
            if best >= 0 and self.fed[best] > segment.start:
                coverage.count = coverage.shared = int(min(self.fed[best], segment.end, need))
                coverage.source = best
                break
        for segment in reversed(path):
            spilled: Spilled | None = segment.spilled
            if spilled is None or segment.start > coverage.count or segment.start + spilled.count <= coverage.count:
                continue
            last = min(segment.start + spilled.count, need)
            if last > coverage.count:
                coverage.pieces.append((segment, coverage.count, last))
                coverage.count = last
        return coverage

    def _fullest(self, segment: Segment, enough: int) -> int:
        """Returns a row of a segment that holds `enough` positions, else the one that holds most; -1: none."""
        best = -1
        for row in segment.rows:
            if self.fed[row] >= enough:
                return row
            if best < 0 or self.fed[row] > self.fed[best]:
                best = row
        return best

    def _idle_ancestor(self, segment: Segment, need: int) -> int | None:
        """Returns an idle row whose own path this path continues; it can be reused unchanged."""
        for part in segment.path():
            for row in part.tips:
                if not self.busy[row] and self.fed[row] <= need:
                    if self._has_states and self._state_at[row] != self.fed[row]:
                        continue
                    return row
        return None

    def _is_sole_source(self, segment: Segment, row: int) -> bool:
        """Returns whether the missing part of a path lies in a segment that only this row holds."""
        spilled: Spilled | None = segment.spilled
        fed = self.fed[row]
        return (
            len(segment.rows) == 1
            and row in segment.rows
            and fed >= segment.start
            and (spilled is None or segment.start + spilled.count <= fed)
        )

    def _is_being_computed(self, position: TriePosition, count: int, need: int) -> bool:
        """Returns whether a busy row is about to compute the position after the first `count` positions of this
        path.
        """
        for segment in position[0].path():
            if segment.end <= count:
                return False
            limit = min(segment.end, need)
            for row in segment.rows:
                if self.busy[row] and count < min(limit, self.target[row]) and self.fed[row] < self.target[row]:
                    return True
        return False

    def _vacate(self, cover: _Cover) -> int | None:
        """Returns a free row, else the least recently used idle row after moving out content that is nowhere else."""
        if self._free:
            row = self._free.pop()
            self.fed[row] = 0
            return row
        idle = np.flatnonzero(~self.busy)
        if not len(idle):
            return None
        row = int(idle[np.argmin(self._used[idle])])
        tip = self._tips[row]
        segment = tip() if tip is not None else None
        if segment is None:  # it died this moment
            self.reap()
            return self._vacate(cover)
        self._spill(row, segment)
        if self._has_states:
            self.keep_states(row, segment, int(self.fed[row]))
        self._leave(row)
        self.fed[row] = cover.shared if row == cover.source else 0
        return row

    def _settle(self, row: int, segment: Segment) -> None:
        """Makes a segment the tip of a row."""
        tip = self._tips[row]
        old_segment = tip() if tip is not None else None
        if old_segment is not segment:
            if old_segment is not None and not any(part is old_segment for part in segment.path()):
                self._leave(row)
            elif old_segment is not None:
                old_segment.tips.discard(row)
            for part in segment.path():
                if row in part.rows:
                    break
                part.rows.add(row)
            self._point(row, segment)
        self._tick += 1
        self._used[row] = self._tick

    def _leave(self, row: int) -> None:
        """Removes a row from its path."""
        tip = self._tips[row]
        segment = tip() if tip is not None else None
        if segment is not None:
            segment.tips.discard(row)
            for part in segment.path():
                part.rows.discard(row)
        self._tips[row] = None

    def _point(self, row: int, segment: Segment) -> None:
        segment.tips.add(row)
        self._tips[row] = weakref.ref(segment)

    def _fall_back(self, row: int, parent: Segment | None) -> None:
        """Moves a row whose tip died to its parent, or frees it if other rows hold the same positions."""
        if parent is None or parent.parent is None:
            self._tips[row], self.fed[row], self._state_at[row] = None, 0, -1
            self._free.append(row)
            return
        shared = int(min(self.fed[row], parent.end))
        self.fed[row] = shared
        if self._state_at[row] > shared:
            self._state_at[row] = -1
        self._point(row, parent)
        if any(sibling != row and self.fed[sibling] >= shared for sibling in parent.rows):
            self.discard(row)

    def _spill(self, row: int, segment: Segment) -> None:
        """Moves positions that no other row holds out of a row with the given tip."""
        for part in segment.path():
            last = int(min(self.fed[row], part.end))
            stored = part.spilled.count if part.spilled is not None else 0
            if last <= part.start + stored or any(
                sibling != row and min(self.fed[sibling], part.end) >= last for sibling in part.rows
            ):
                continue
            part.spilled = self.arena.copy_out(row, part.start, last)
            self.cached += part.spilled.count - stored
            self.trie.note_spilled(part)
        if self.cached > self._crowded:
            self._drop()

    def _drop(self, max_tokens: int | None = None) -> None:
        """Drops spilled tokens, the oldest first and deeper before shallower, until they fit; held segments stay.

        Args:
            max_tokens: that may stay; None: `max_cached_tokens`.

        Where held segments do not fit by themselves, the next search starts only after a quarter as many tokens were
        added.
        """
        limit = self.max_cached_tokens if max_tokens is None else max_tokens
        spilled, held_entries = self.trie.spilled, []
        while spilled and self.cached > limit:
            key, ref = spilled.popitem(last=False)
            segment = ref()
            if segment is not None and segment.holds:
                held_entries.append((key, ref))
            while segment is not None and not segment.holds and self.cached > limit:
                if segment.spilled is not None:
                    self.cached -= segment.spilled.count
                    segment.spilled = None
                segment = segment.parent
        segment = None
        for key, ref in reversed(held_entries):
            if ref() is not None:
                spilled[key] = ref
                spilled.move_to_end(key, last=False)
        fits = self.cached <= self.max_cached_tokens
        self._crowded = self.max_cached_tokens if fits else self.cached + self.cached // 4


@dataclass(frozen=True, slots=True)
class StateShape:
    """A state of fixed size that a layer keeps per text: of a convolution ("conv") or a recurrence ("recurrent").

    Attributes:
        layer: of the model. number: the layer's states of one kind are numbered. sizes: of one text's state.
    """

    layer: int
    kind: str
    number: int
    sizes: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of what a model stores: per token `layers` times keys and values of `heads` x `head` and a hidden state,
    and per text `states`.
    """

    layers: int
    heads: int
    head: int
    hidden: int
    states: tuple[StateShape, ...] = ()

    def state_bytes(self) -> int:
        """Returns the bytes of the states of one text."""
        return sum(math.prod(state.sizes) * state.dtype.itemsize for state in self.states)

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Returns the bytes that a token takes."""
        return (self.layers * 2 * self.heads * self.head + self.hidden) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Spilled:
    """Keys and values `[layers, n, 2, heads, head]` and hidden states `[n, hidden]` of a segment's first n tokens."""

    cache: Tensor
    hidden: Tensor

    @property
    def count(self) -> int:
        return len(self.hidden)

    def cut(self, offset: int) -> tuple[Spilled, Spilled | None]:
        """Splits at an offset and returns the part before it and the rest, or None where nothing is left."""
        upper = Spilled(self.cache[:, :offset], self.hidden[:offset])
        return upper, Spilled(self.cache[:, offset:], self.hidden[offset:]) if offset < self.count else None


Snapshot = dict[StateShape, Tensor]  # the states of a text at some depth


class Arena:
    """`cache [layers, rows, capacity, 2, heads, head]` (keys, values) and `hidden [rows, capacity, hidden]`.

    Untouched memory is zero: masked positions get weight 0, which only makes 0 of finite numbers. `aside` is the stream
    on which forwards over it are recorded (`engine/fused.py`).

    Attributes:
        touched: `[rows]` positions of a row that were written since its memory was last given back.
        is_lazy: whether memory is taken position by position.
    """

    aside: torch.cuda.Stream | None = None

    def __init__(self, shape: Shape, rows: int, capacity: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.rows, self.capacity = shape, rows, capacity
        sizes = (shape.layers, rows, capacity, 2, shape.heads, shape.head)
        self.cache, self._cache_memory = lazy_zeros(sizes, dtype=dtype, device=device)
        self.hidden, self._hidden_memory = lazy_zeros((rows, capacity, shape.hidden), dtype=dtype, device=device)
        self.touched = np.zeros(rows, np.int64)
        self.states = {
            state: torch.zeros((rows, *state.sizes), dtype=state.dtype, device=device) for state in shape.states
        }

    def read_states(self, row: int) -> Snapshot:
        """Returns a copy of a row's states."""
        return {state: values[row].clone() for state, values in self.states.items()}

    def write_states(self, row: int, snapshot: Snapshot | None) -> None:
        """Sets a row's states; None: those of a text that begins."""
        for state, values in self.states.items():
            values[row] = 0 if snapshot is None else snapshot[state]

    @property
    def is_lazy(self) -> bool:
        return self._cache_memory is not None

    def touch(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Records that positions up to `ends` of rows are written."""
        self.touched[rows] = np.maximum(self.touched[rows], ends)

    def release(self, row: int) -> int:
        """Gives the memory of a row back, whose contents are lost; returns how many positions it held."""
        count = int(self.touched[row])
        if not count or self._cache_memory is None or self._hidden_memory is None:
            return 0
        for layer in range(self.shape.layers):
            self._release(self._cache_memory, self.cache[layer, row, :count])
        self._release(self._hidden_memory, self.hidden[row, :count])
        self.touched[row] = 0
        return count

    def release_all(self) -> None:
        """Releases the memory of all rows, whose contents are lost; where a device took it at once, it stays."""
        if self._cache_memory is None or self._hidden_memory is None or not self.touched.any():
            return
        for memory, tensor in ((self._cache_memory, self.cache), (self._hidden_memory, self.hidden)):
            memory.release(0, tensor.nbytes)
        self.touched[:] = 0

    @staticmethod
    def _release(memory: LazyMemory, part: Tensor) -> None:
        first = int(part.storage_offset()) * part.element_size()
        memory.release(first, first + int(part.numel()) * part.element_size())

    def serves(self, shape: Shape, capacity: int, weight: Tensor) -> bool:
        """Returns whether a model with this shape, whose weights are like `weight`, can use this arena."""
        same = (self.cache.dtype, self.cache.device) == (weight.dtype, weight.device)
        return same and (self.shape, self.capacity) == (shape, capacity)

    def copy(self, source: int, target: int, *, first: int, last: int) -> None:
        """Copies positions first..last of a row into another row."""
        self.touched[target] = max(int(self.touched[target]), last)
        self.cache[:, target, first:last] = self.cache[:, source, first:last]
        self.hidden[target, first:last] = self.hidden[source, first:last]

    def copy_out(self, row: int, first: int, last: int) -> Spilled:
        """Returns a compact copy of positions first..last of a row."""
        return Spilled(self.cache[:, row, first:last].clone(), self.hidden[row, first:last].clone())

    def copy_in(self, row: int, spilled: Spilled, *, position: int, first: int, last: int) -> None:
        """Writes tokens first..last of a spilled segment into a row, starting at `position`."""
        self.touched[row] = max(int(self.touched[row]), position + last - first)
        self.cache[:, row, position : position + last - first] = spilled.cache[:, first:last]
        self.hidden[row, position : position + last - first] = spilled.hidden[first:last]

    def clear(self, row: int) -> None:
        """Clears a row that held non-finite numbers by setting it to zero."""
        count = int(self.touched[row])
        self.cache[:, row, :count] = 0
        self.hidden[row, :count] = 0

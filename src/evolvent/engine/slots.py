"""Which arena row holds which path: claiming rows, forking prefixes into them, moving idle ones out and back.

The invariant on which all else rests: if row r is among a segment's rows, then r's positions up to
`min(fed[r], segment.end)` are the keys and values of exactly that segment's path.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np

from evolvent.engine.arena import Arena, Spilled
from evolvent.engine.trie import Place, Segment, Trie

__all__ = ["Rows"]


@dataclass(slots=True)
class _Cover:
    """What of a path is there: `count` positions; the first `shared` of them in row `source`, then spilled pieces."""

    count: int = 0
    shared: int = 0
    source: int = -1
    pieces: list[tuple[Segment, int, int]] = field(default_factory=list)  # (segment, first, last) as depths


class Rows:
    """The rows of an arena and their paths.

    Attributes:
        fed: `[rows]` positions that hold valid keys and values.
        target: `[rows]` positions up to which a busy row is going to be fed with tokens that are known.
        busy: `[rows]` whether a stream works on the row.
        cached: spilled tokens in all.
    """

    def __init__(self, arena: Arena, trie: Trie, *, max_cached_tokens: int) -> None:
        count = arena.rows
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

    def claim(self, place: Place, need: int) -> int | None:
        """A row that holds as much of a path as is known, marked busy; `fed` says how much.

        Args:
            place: the end of the path. need: positions of it that must be computed before the stream can go on.

        Returns:
            The row, or None: no row is idle, or another stream is just computing a part of this path.
        """
        self.reap()
        segment, _ = place
        row = self._idle_on(segment, need)
        if row is not None and self._alone(segment, row):
            cover = _Cover()  # the common case: the next turn of an episode, and nobody else knows more
        else:
            cover = self.cover(place, need)
            if cover.count < need and self._coming(place, cover.count, need):
                return None
            if row is None:
                row = self._vacant(cover)
            if row is None:
                return None
        have = int(self.fed[row])
        if cover.shared > have:
            self.arena.copy(cover.source, row, first=have, last=cover.shared)
            have = cover.shared
        for part, first, last in cover.pieces:
            if first > have or part.spilled is None:  # dropped in the meantime
                break
            if last > have:
                self.arena.put(row, part.spilled, at=have, first=have - part.start, last=last - part.start)
                have = last
        self.fed[row] = have
        self._settle(row, segment)
        self.busy[row] = True
        return row

    def release(self, row: int, segment: Segment, fed: int) -> None:
        """A stream has left its row, which now holds `fed` positions of the path that ends in `segment`."""
        self.busy[row], self.fed[row] = False, fed
        self._settle(row, segment)

    def discard(self, row: int) -> None:
        """Give a row up with what it holds."""
        self._leave(row)
        self.busy[row], self.fed[row] = False, 0
        self._free.append(row)

    def reap(self) -> None:
        """Give back what segments held that nobody references any more."""
        while self.trie.dropped:
            parent, rows, spilled = self.trie.dropped.pop()
            if spilled is not None:
                self.cached -= spilled.count
                self._crowded = max(self.max_cached_tokens, self._crowded - spilled.count)
            for row in rows:
                self._fall_back(row, parent)
            parent = None  # it may have been the last reference: then its death is seen in the next round

    def let_go(self) -> None:
        """Something is held no more: what is cached is looked through anew when more comes."""
        self._crowded = self.max_cached_tokens

    @property
    def full(self) -> bool:
        """Whether no row is free or idle."""
        return not self._free and bool(self.busy.all())

    @staticmethod
    def computed(place: Place, fed: int) -> None:
        """Note that the first `fed` positions of a path have been computed."""
        for segment in place[0].path():
            if segment.computed >= min(segment.end, fed):
                return
            segment.computed = min(segment.end, fed)

    @staticmethod
    def watermark(place: Place, fed: int, need: int) -> int:
        """Note that positions fed..need are going to be computed; returns how many of them had been before."""
        again = 0
        for segment in place[0].path():
            if segment.end <= fed:
                break
            again += max(0, min(segment.computed, need) - max(segment.start, fed))
            segment.computed = max(segment.computed, min(segment.end, need))
        return again

    def cover(self, place: Place, need: int) -> _Cover:
        """What is known of the first `need` positions of a path, in rows or moved out of them."""
        found = _Cover()
        path = list(place[0].path())
        for segment in path:
            best = self._fullest(segment, min(segment.end, need))
            if best >= 0 and self.fed[best] > segment.start:
                found.count = found.shared = int(min(self.fed[best], segment.end, need))
                found.source = best
                break
        for segment in reversed(path):
            spilled: Spilled | None = segment.spilled
            if spilled is None or segment.start > found.count or segment.start + spilled.count <= found.count:
                continue
            last = min(segment.start + spilled.count, need)
            if last > found.count:
                found.pieces.append((segment, found.count, last))
                found.count = last
        return found

    def _fullest(self, segment: Segment, enough: int) -> int:
        """A row of a segment that holds `enough` positions, else the one that holds most; -1: none."""
        best = -1
        for row in segment.rows:
            if self.fed[row] >= enough:
                return row
            if best < 0 or self.fed[row] > self.fed[best]:
                best = row
        return best

    def _idle_on(self, segment: Segment, need: int) -> int | None:
        """An idle row whose own path this path continues: it can be taken as it is."""
        for part in segment.path():
            for row in part.tips:
                if not self.busy[row] and self.fed[row] <= need:
                    return row
        return None

    def _alone(self, segment: Segment, row: int) -> bool:
        """Whether what the row lacks of a path lies in a segment of which nobody else has anything."""
        spilled: Spilled | None = segment.spilled
        fed = self.fed[row]
        return (
            len(segment.rows) == 1
            and row in segment.rows
            and fed >= segment.start
            and (spilled is None or segment.start + spilled.count <= fed)
        )

    def _coming(self, place: Place, count: int, need: int) -> bool:
        """Whether a busy row is about to compute the position after the first `count` ones of this path."""
        for segment in place[0].path():
            if segment.end <= count:
                return False
            most = min(segment.end, need)
            for row in segment.rows:
                if self.busy[row] and count < min(most, self.target[row]) and self.fed[row] < self.target[row]:
                    return True
        return False

    def _vacant(self, cover: _Cover) -> int | None:
        """A free row, else the least recently used idle one after moving out what is only there."""
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
            return self._vacant(cover)
        self._spill(row, segment)
        self._leave(row)
        self.fed[row] = cover.shared if row == cover.source else 0
        return row

    def _settle(self, row: int, segment: Segment) -> None:
        """Make a segment the tip of a row."""
        tip = self._tips[row]
        old = tip() if tip is not None else None
        if old is not segment:
            if old is not None and not any(part is old for part in segment.path()):
                self._leave(row)
            elif old is not None:
                old.tips.discard(row)
            for part in segment.path():
                if row in part.rows:
                    break
                part.rows.add(row)
            self._point(row, segment)
        self._tick += 1
        self._used[row] = self._tick

    def _leave(self, row: int) -> None:
        """Take a row off its path."""
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
        """The tip of a row has died: the row now ends with its parent, or is free if others hold the same."""
        if parent is None or parent.parent is None:
            self._tips[row], self.fed[row] = None, 0
            self._free.append(row)
            return
        kept = int(min(self.fed[row], parent.end))
        self.fed[row] = kept
        self._point(row, parent)
        if any(other != row and self.fed[other] >= kept for other in parent.rows):
            self.discard(row)

    def _spill(self, row: int, segment: Segment) -> None:
        """Move out of a row, whose tip is a segment, what is nowhere else."""
        for part in segment.path():
            last = int(min(self.fed[row], part.end))
            stored = part.spilled.count if part.spilled is not None else 0
            if last <= part.start + stored or any(
                other != row and min(self.fed[other], part.end) >= last for other in part.rows
            ):
                continue
            part.spilled = self.arena.take(row, part.start, last)
            self.cached += part.spilled.count - stored
            self.trie.note_spilled(part)
        if self.cached > self._crowded:
            self._drop()

    def _drop(self) -> None:
        """Forget spilled tokens, the oldest first and deeper before shallower, until they fit; held ones stay.

        Where what is held does not fit by itself, nothing is looked for again before a quarter of it has come anew.
        """
        spilled, held = self.trie.spilled, []
        while spilled and self.cached > self.max_cached_tokens:
            key, ref = spilled.popitem(last=False)
            segment = ref()
            if segment is not None and segment.holds:
                held.append((key, ref))
            while segment is not None and not segment.holds and self.cached > self.max_cached_tokens:
                if segment.spilled is not None:
                    self.cached -= segment.spilled.count
                    segment.spilled = None
                segment = segment.parent
        segment = None
        for key, ref in reversed(held):
            if ref() is not None:
                spilled[key] = ref
                spilled.move_to_end(key, last=False)
        fits = self.cached <= self.max_cached_tokens
        self._crowded = self.max_cached_tokens if fits else self.cached + self.cached // 4

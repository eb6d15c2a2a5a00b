"""The prefix trie: known token sequences and the handles that still need them. No tensors here.

A radix trie: a segment holds a run of tokens with no branch inside. Parents are referenced strongly and
children weakly, so a segment lives as long as a handle or a living descendant needs it, and letting go of a
prefix is dropping the handle. When sequences part inside a segment, it is split: the lower part keeps the
object (its handles stay valid) and the upper part becomes its new parent.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Prefix", "Segment", "Trie", "TriePosition"]

TriePosition = tuple["Segment", int]  # a depth in the trie: start < depth <= end of the segment; the root with depth 0


class Trie:
    """All prefixes of one engine and one policy version.

    Attributes:
        live, peak: how many segments live now, and at most did.
        dropped: (parent, rows, spilled) of every segment that died since the owner last looked.
        spilled: by identity, living segments of which something was moved out of a row, the oldest first.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.live = self.peak = 0
        self.dropped: list[tuple[Segment | None, set[int], Any]] = []
        self.spilled: OrderedDict[int, weakref.ref[Segment]] = OrderedDict()
        self.root = Segment(self, None, [], start=0)

    def extend(self, position: TriePosition, tokens: Sequence[int], *, exact: bool = False) -> TriePosition:
        """Extends a position by `tokens` and returns the end.

        Known edges are followed, new ones are made; a leaf grows in place.

        exact: the position must be the end of a segment, because the continuations will differ.
        """
        segment, depth = self.resolve(position)
        tokens = tokens if isinstance(tokens, list) else list(tokens)
        index, count = 0, len(tokens)
        while index < count:
            if depth < segment.end:
                common = _common_length(segment.ids, depth - segment.start, tokens, index)
                index, depth = index + common, depth + common
                if index < count and depth < segment.end:
                    segment = self._split(segment, depth)
                continue
            child = segment.child(tokens[index])
            if child is not None:
                segment = child
            elif segment.can_grow:
                segment.ids += tokens[index:]
                return segment, segment.end
            else:
                segment = Segment(self, segment, tokens[index:], start=depth)
                return segment, segment.end
        return (self._split(segment, depth), depth) if exact and depth < segment.end else (segment, depth)

    @staticmethod
    def resolve(position: TriePosition) -> TriePosition:
        """Returns the same depth in the segment that holds it now (an older segment may have been split above it)."""
        segment, depth = position
        while depth <= segment.start and segment.parent is not None:
            segment = segment.parent
        return segment, depth

    def _split(self, segment: Segment, depth: int) -> Segment:
        """Splits a segment at a depth inside it; returns the new upper part."""
        offset = depth - segment.start
        upper = Segment(self, segment.parent, segment.ids[:offset], start=segment.start)
        segment.ids, segment.start, segment.parent = segment.ids[offset:], depth, upper
        upper.children[segment.ids[0]] = weakref.ref(segment)
        upper.rows, upper.holds = set(segment.rows), segment.holds
        upper.computed, segment.computed = min(segment.computed, depth), max(segment.computed, depth)
        upper.snapshots = {at: kept for at, kept in segment.snapshots.items() if at <= depth}
        segment.snapshots = {at: kept for at, kept in segment.snapshots.items() if at > depth}
        if segment.spilled is not None:
            upper.spilled, segment.spilled = segment.spilled.cut(offset)
            self.note_spilled(upper)
        return upper

    def note_spilled(self, segment: Segment) -> None:
        """Moves a segment to the end of the spilled ones."""
        self.spilled[id(segment)] = weakref.ref(segment)
        self.spilled.move_to_end(id(segment))


class Segment:
    """A run of tokens with no branch inside.

    Attributes:
        start: depth before its first token. ids: its tokens.
        rows: arena rows whose path runs through this segment. tips: those of them that end in it.
        spilled: keys and values that were moved out of a row, from `start` on (None: none); has `cut(offset)`.
        snapshots: by depth, states of fixed size that a model has there (`engine/arena.py`).
        computed: the depth up to which tokens have ever been computed.
        pins: streams that continue this segment at its end. holds: open `hold`s of the engine.
    """

    __slots__ = (
        "__weakref__",
        "children",
        "computed",
        "holds",
        "ids",
        "parent",
        "pins",
        "rows",
        "snapshots",
        "spilled",
        "start",
        "tips",
        "trie",
    )

    def __init__(self, trie: Trie, parent: Segment | None, ids: list[int], *, start: int) -> None:
        self.trie, self.parent, self.start, self.ids = trie, parent, start, ids
        self.children: dict[int, weakref.ref[Segment]] = {}
        self.rows: set[int] = set()
        self.tips: set[int] = set()
        self.spilled: Any = None
        self.snapshots: dict[int, Any] = {}
        self.computed = start
        self.pins = self.holds = 0
        if parent is not None:
            parent.children[ids[0]] = weakref.ref(self)
        trie.live += 1
        trie.peak = max(trie.peak, trie.live)

    def __del__(self) -> None:
        self.trie.live -= 1
        self.trie.spilled.pop(id(self), None)
        if self.rows or self.spilled is not None:
            self.trie.dropped.append((self.parent, self.rows, self.spilled))

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def can_grow(self) -> bool:
        """Returns whether tokens may be appended.

        That is so for a leaf that is not the root, that no stream continues on its own, and whose rows hold nothing of
        dead children.
        """
        if self.parent is None or self.pins or self.trie.dropped:
            return False
        if self.children:
            self.children = {token: ref for token, ref in self.children.items() if ref() is not None}
        return not self.children

    def child(self, token: int) -> Segment | None:
        """Returns the living child whose first token is `token`."""
        ref = self.children.get(token)
        return None if ref is None else ref()

    def path(self) -> Iterator[Segment]:
        """Yields this segment and its ancestors, deepest first, without the root."""
        segment: Segment | None = self
        while segment is not None and segment.parent is not None:
            yield segment
            segment = segment.parent

    def tokens(self, depth: int) -> list[int]:
        """Returns all token ids from the beginning to a depth."""
        parts = [part.ids[: depth - part.start] for part in self.path() if part.start < depth]
        return [token for part in reversed(parts) for token in part]


class Prefix:
    """A handle on a prefix; the engine's implementation of `Node`."""

    __slots__ = ("depth", "segment")

    def __init__(self, segment: Segment, depth: int) -> None:
        self.segment, self.depth = segment, depth

    @property
    def length(self) -> int:
        return self.depth

    @property
    def version(self) -> int:
        """Returns the policy version that this prefix belongs to."""
        return self.segment.trie.version

    def tokens(self) -> list[int]:
        return self.segment.tokens(self.depth)

    def __repr__(self) -> str:
        return f"Prefix({self.depth} tokens, version {self.version})"


def _common_length(segment_ids: list[int], start: int, tokens: list[int], token_start: int) -> int:
    """Counts how many tokens agree from the two positions on."""
    max_length = min(len(segment_ids) - start, len(tokens) - token_start)
    if segment_ids[start : start + max_length] == tokens[token_start : token_start + max_length]:
        return max_length
    for index in range(max_length):
        if segment_ids[start + index] != tokens[token_start + index]:
            return index
    return max_length

"""The prefix trie: which token sequences are known, and who still needs them. No tensors here.

A radix trie: a segment holds a run of tokens with no branch inside. Parents are referenced strongly and children
weakly, so a segment lives as long as a handle or a living descendant needs it, and letting go of a prefix is dropping
the handle. When sequences part inside a segment, it is cut: the lower part keeps the object (its handles stay valid)
and the upper part becomes its new parent.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Place", "Prefix", "Segment", "Trie"]

Place = tuple["Segment", int]  # a depth in the trie: start < depth <= end of the segment; the root with depth 0


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

    def extend(self, place: Place, tokens: Sequence[int], *, exact: bool = False) -> Place:
        """Where `tokens` after `place` end. Known edges are followed, new ones made; a leaf grows in place.

        exact: the place is to be the end of a segment, because what follows it will differ.
        """
        segment, depth = self.resolve(place)
        tokens = tokens if isinstance(tokens, list) else list(tokens)
        at, count = 0, len(tokens)
        while at < count:
            if depth < segment.end:
                same = _common(segment.ids, depth - segment.start, tokens, at)
                at, depth = at + same, depth + same
                if at < count and depth < segment.end:
                    segment = self._cut(segment, depth)
                continue
            child = segment.child(tokens[at])
            if child is not None:
                segment = child
            elif segment.grows:
                segment.ids += tokens[at:]
                return segment, segment.end
            else:
                segment = Segment(self, segment, tokens[at:], start=depth)
                return segment, segment.end
        return (self._cut(segment, depth), depth) if exact and depth < segment.end else (segment, depth)

    @staticmethod
    def resolve(place: Place) -> Place:
        """The same depth in the segment that holds it now (an older segment may have been cut above it)."""
        segment, depth = place
        while depth <= segment.start and segment.parent is not None:
            segment = segment.parent
        return segment, depth

    def _cut(self, segment: Segment, depth: int) -> Segment:
        """Cut a segment at a depth inside it; returns the new upper part."""
        at = depth - segment.start
        upper = Segment(self, segment.parent, segment.ids[:at], start=segment.start)
        segment.ids, segment.start, segment.parent = segment.ids[at:], depth, upper
        upper.children[segment.ids[0]] = weakref.ref(segment)
        upper.rows, upper.holds = set(segment.rows), segment.holds
        upper.computed, segment.computed = min(segment.computed, depth), max(segment.computed, depth)
        if segment.spilled is not None:
            upper.spilled, segment.spilled = segment.spilled.cut(at)
            self.note_spilled(upper)
        return upper

    def note_spilled(self, segment: Segment) -> None:
        """Put a segment last among the spilled ones."""
        self.spilled[id(segment)] = weakref.ref(segment)
        self.spilled.move_to_end(id(segment))


class Segment:
    """A run of tokens with no branch inside.

    Attributes:
        start: depth before its first token. ids: its tokens.
        rows: arena rows whose path runs through this segment. tips: those of them that end in it.
        spilled: keys and values that were moved out of a row, from `start` on (None: none); has `cut(at)`.
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
    def grows(self) -> bool:
        """Whether tokens may be appended: a leaf that is not the root, that no stream continues on its own, and whose
        rows hold nothing of children that died."""
        if self.parent is None or self.pins or self.trie.dropped:
            return False
        if self.children:
            self.children = {token: ref for token, ref in self.children.items() if ref() is not None}
        return not self.children

    def child(self, token: int) -> Segment | None:
        """The living child whose first token this is."""
        ref = self.children.get(token)
        return None if ref is None else ref()

    def path(self) -> Iterator[Segment]:
        """This segment and its ancestors, deepest first, without the root."""
        segment: Segment | None = self
        while segment is not None and segment.parent is not None:
            yield segment
            segment = segment.parent

    def tokens(self, depth: int) -> list[int]:
        """All token ids from the beginning to a depth."""
        parts = [part.ids[: depth - part.start] for part in self.path() if part.start < depth]
        return [token for part in reversed(parts) for token in part]


class Prefix:
    """A handle on a prefix; what an engine hands out as `Node`."""

    __slots__ = ("depth", "segment")

    def __init__(self, segment: Segment, depth: int) -> None:
        self.segment, self.depth = segment, depth

    @property
    def length(self) -> int:
        return self.depth

    @property
    def version(self) -> int:
        """The policy version that this prefix belongs to."""
        return self.segment.trie.version

    def tokens(self) -> list[int]:
        return self.segment.tokens(self.depth)

    def __repr__(self) -> str:
        return f"Prefix({self.depth} tokens, version {self.version})"


def _common(known: list[int], start: int, tokens: list[int], at: int) -> int:
    """How many tokens agree from the two positions on."""
    most = min(len(known) - start, len(tokens) - at)
    if known[start : start + most] == tokens[at : at + most]:
        return most
    for index in range(most):
        if known[start + index] != tokens[at + index]:
            return index
    return most

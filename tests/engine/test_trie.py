"""The prefix trie against plain lists of tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.engine.trie import Prefix, Segment, Trie

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def whole(trie: Trie, *tokens: int) -> Prefix:
    return Prefix(*trie.extend((trie.root, 0), list(tokens)))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 10), TOKENS, st.booleans(), st.booleans()), max_size=25))
def test_handles_keep_their_tokens(steps: list[tuple[int, list[int], bool, bool]]) -> None:
    """Whatever is added, cut and dropped: every handle still has the tokens it was made with."""
    trie = Trie(0)
    handles: list[tuple[Prefix, list[int]]] = []
    for which, tokens, exact, drop in steps:
        before, start = [], (trie.root, 0)
        if handles and which < 8:
            prefix, before = handles[which % len(handles)]
            start = trie.resolve((prefix.segment, prefix.depth))
        segment, depth = trie.extend(start, tokens, exact=exact)
        assert segment.start < depth <= segment.end
        assert not exact or depth == segment.end
        handles.append((Prefix(segment, depth), before + tokens))
        if drop:
            handles.pop(which % len(handles))
        for prefix, expected in handles:
            assert prefix.tokens() == expected and prefix.length == len(expected)
    start = segment = prefix = None
    handles.clear()
    trie.dropped.clear()
    assert trie.live == 1 and trie.peak >= trie.live


@settings(deadline=None, max_examples=100)
@given(st.lists(TOKENS, min_size=1, max_size=12))
def test_equal_prefixes_are_one_place(texts: list[list[int]]) -> None:
    trie = Trie(0)
    kept = [whole(trie, *text) for text in texts]
    for text, prefix in zip(texts, kept, strict=True):
        again = trie.extend((trie.root, 0), text)
        assert again == trie.resolve((prefix.segment, prefix.depth))
    distinct = {tuple(text[:end]) for text in texts for end in range(1, len(text) + 1)}
    assert sum(len(segment.ids) for segment in segments_of(kept)) == len(distinct)


def segments_of(prefixes: list[Prefix]) -> set[Segment]:
    return {segment for prefix in prefixes for segment in prefix.segment.path()}


def test_a_leaf_grows_in_place_and_parts_where_texts_part() -> None:
    trie = Trie(3)
    first = whole(trie, 1, 2, 3)
    longer = Prefix(*trie.extend((first.segment, 3), [4, 5]))
    assert longer.segment is first.segment and trie.live == 2
    other = Prefix(*trie.extend((first.segment, 3), [9]))
    assert (longer.segment.start, longer.segment.ids) == (3, [4, 5])  # the lower part kept the object
    assert other.segment.parent is longer.segment.parent
    assert (first.tokens(), first.version) == ([1, 2, 3], 3)
    assert trie.resolve((first.segment, 3))[0] is longer.segment.parent


def test_a_pinned_leaf_does_not_grow() -> None:
    trie = Trie(0)
    prefix = whole(trie, 1, 2)
    prefix.segment.pins = 1
    child = Prefix(*trie.extend((prefix.segment, 2), [3]))
    assert child.segment.parent is prefix.segment


def test_what_died_with_rows_is_reported_with_its_parent() -> None:
    trie = Trie(0)
    root, leaf = whole(trie, 1, 2), None
    root.segment.pins = 1
    leaf = whole(trie, 1, 2, 3)
    leaf.segment.rows.add(7)
    root.segment.rows.add(7)
    del leaf
    ((parent, rows, spilled),) = trie.dropped
    assert parent is root.segment and rows == {7} and spilled is None
    assert trie.live == 2

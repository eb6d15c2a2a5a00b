"""Where scores are wanted on paths of tokens, and how a frontier of such places is asked of an engine.

Every token of a path is fed once, however the path grows and however many scorers look at it: the engine's trie is the
cache. A prefix lives there as long as somebody holds a handle on it, and of these a scorer keeps the latest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Ask, LogitsAsk, Node, Output, ScoreAsk, Work
from evolvent.errors import ScoringError, StaleNode
from evolvent.search.scorers import Ending, Scorer

__all__ = ["Ending", "Paths", "Scorer", "chance", "checked", "read_endings"]

Outputs = list[list[NDArray[np.float32]]]


@dataclass(slots=True)
class Paths:
    """Handles on the paths that were scored last, so that their keys and values stay known to the engine.

    Whatever is forgotten here is only computed again. The engine's own limit of cached tokens holds all the same.

    Args:
        most: so many paths are kept, the least recently used ones are let go.
    """

    most: int = 1024
    _nodes: OrderedDict[bytes, Node] = field(default_factory=OrderedDict, init=False, repr=False)
    _lengths: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._nodes)

    def longest(self, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """The kept path that is the longest beginning of these tokens, and its length; (None, 0) where none is."""
        raw = _key(tokens)
        for length in sorted((each for each in self._lengths if each <= len(tokens)), reverse=True):
            key = raw[: 4 * length]
            node = self._nodes.get(key)
            if node is not None:
                self._nodes.move_to_end(key)
                return node, length
        return None, 0

    def keep(self, tokens: Sequence[int], node: Node) -> None:
        """Hold a path."""
        key = _key(tokens)
        if key not in self._nodes:
            self._lengths[len(tokens)] = self._lengths.get(len(tokens), 0) + 1
        self._nodes[key] = node
        self._nodes.move_to_end(key)
        while len(self._nodes) > self.most:
            gone = len(self._nodes.popitem(last=False)[0]) // 4
            self._lengths[gone] -= 1
            if not self._lengths[gone]:
                del self._lengths[gone]

    def clear(self) -> None:
        """Let all go."""
        self._nodes.clear()
        self._lengths.clear()


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def read_endings(
    asked: Sequence[Ending], paths: Paths, *, tail: Sequence[int] = (), hidden: bool = False
) -> Work[Outputs]:
    """The model's outputs at all ends of a frontier, asked at once: logits `[V]` or hidden states `[H]`, by item.

    Args:
        paths: what is held; the paths asked about are added.
        tail: fed after each end, off the path: what comes later never sees it.
        hidden: hidden states instead of logits.
    Raises:
        StaleNode: (by the engine) an item's own node is not this engine's any more. Other errors of the engine too.
    """
    try:
        found = yield from _read(asked, paths, tail=tail, hidden=hidden)
    except StaleNode:
        if not len(paths):
            raise
        paths.clear()  # new weights, or another engine: what was held there is of no use, the tokens are known
        found = yield from _read(asked, paths, tail=tail, hidden=hidden)
    return found


def _read(asked: Sequence[Ending], paths: Paths, *, tail: Sequence[int], hidden: bool) -> Work[Outputs]:
    asks: list[Ask] = []
    holds: dict[tuple[int, ...], int] = {}  # a path, and the place of the answer that has its node
    places: list[list[int]] = []
    for item in asked:
        places.append([])
        if not item.ends:
            continue
        before = () if item.node is None else tuple(item.node.tokens())
        path = (*before, *item.tokens[: item.ends[-1]])
        node, length = paths.longest(path)
        if item.node is not None and length <= len(before):
            node, length = item.node, len(before)
        new = length < len(path) and path not in holds
        if new:  # first: it feeds the path at once, and what ends before it, or has a tail, then forks off
            holds[path] = len(asks)
            asks.append(ScoreAsk(node, path[length:]) if tail else LogitsAsk(node, path[length:], hidden, keep=True))
        for end in item.ends:
            depth = len(before) + end
            if new and not tail and depth == len(path):
                places[-1].append(holds[path])
                continue
            places[-1].append(len(asks))
            asks.append(
                LogitsAsk(node, (*path[length:depth], *tail), hidden)
                if depth >= length
                else LogitsAsk(None, (*path[:depth], *tail), hidden)
            )
    answers: list[Any] = list((yield asks) if asks else ())
    for path, place in holds.items():
        paths.keep(path, answers[place].node)
    return [
        [answer.values if isinstance(answer, Output) else answer for answer in map(answers.__getitem__, own)]
        for own in places
    ]


def chance(good: float, bad: float) -> float:
    """`exp(a) / (exp(a) + exp(b))` of two logits, without overflow; NaN where it is not defined."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(1.0 / (1.0 + np.exp(np.float64(bad) - np.float64(good))))


def checked(asked: Sequence[Ending], found: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """The scores as they are answered: one for each end of each item.

    Raises:
        ScoringError: there are others.
    """
    if [len(own) for own in found] != [len(item.ends) for item in asked]:
        raise ScoringError(
            "not one score for each span",
            value=[len(own) for own in found][:8],
            expected=[len(item.ends) for item in asked][:8],
        )
    return [tuple(own) for own in found]

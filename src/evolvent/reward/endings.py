"""Positions on paths of tokens where scores are requested, and queries of an engine at all of them.

Every token of a path is fed once, however the path grows and however many scorers use it: the engine's trie is
the cache. A prefix stays there as long as some handle refers to it, and a scorer keeps handles on the latest
ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Ask, Job, LogitsAsk, Node, Output, ScoreAsk
from evolvent.errors import ScoringError, StaleNode
from evolvent.search.scorers import Ending, Scorer

__all__ = ["Ending", "PathCache", "Scorer", "check_scores", "query_endings", "two_way_probability"]

Outputs = list[list[NDArray[np.float32]]]


@dataclass(slots=True)
class PathCache:
    """Handles on recently scored paths, so that their keys and values stay in the engine.

    A path that is dropped here is only computed again. The engine's own limit of cached tokens still applies.

    Args:
        max_paths: Maximum number of paths; the least recently used ones are dropped.
    """

    max_paths: int = 1024
    _nodes: OrderedDict[bytes, Node] = field(default_factory=OrderedDict, init=False, repr=False)
    _lengths: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._nodes)

    def find_longest(self, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """Returns the longest cached path that is a prefix of these tokens, and its length; (None, 0) where there is
        none.
        """
        raw = _key(tokens)
        for length in sorted(
            (kept_length for kept_length in self._lengths if kept_length <= len(tokens)), reverse=True
        ):
            key = raw[: 4 * length]
            node = self._nodes.get(key)
            if node is not None:
                self._nodes.move_to_end(key)
                return node, length
        return None, 0

    def add(self, tokens: Sequence[int], node: Node) -> None:
        """Adds a path."""
        key = _key(tokens)
        if key not in self._nodes:
            self._lengths[len(tokens)] = self._lengths.get(len(tokens), 0) + 1
        self._nodes[key] = node
        self._nodes.move_to_end(key)
        while len(self._nodes) > self.max_paths:
            dropped_length = len(self._nodes.popitem(last=False)[0]) // 4
            self._lengths[dropped_length] -= 1
            if not self._lengths[dropped_length]:
                del self._lengths[dropped_length]

    def clear(self) -> None:
        """Drops all paths."""
        self._nodes.clear()
        self._lengths.clear()


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def query_endings(
    queries: Sequence[Ending], paths: PathCache, *, tail: Sequence[int] = (), hidden: bool = False
) -> Job[Outputs]:
    """Returns the model's outputs at all ends of a frontier, requested at once: logits `[V]` or hidden states
    `[H]`, by query.

    Args:
        queries: Ends of spans on paths of tokens.
        paths: Cached paths; the queried paths are added.
        tail: Tokens fed after each end, off the path: later tokens never see them.
        hidden: Whether to return hidden states instead of logits.
    Raises:
        StaleNode: (by the engine) a query's node does not belong to this engine any more. Other errors of the
            engine.
    """
    try:
        outputs = yield from _query_engine(queries, paths, tail=tail, hidden=hidden)
    except StaleNode:
        if not len(paths):
            raise
        paths.clear()  # new weights, or another engine: what was held there is of no use, the tokens are known
        outputs = yield from _query_engine(queries, paths, tail=tail, hidden=hidden)
    return outputs


def _query_engine(queries: Sequence[Ending], paths: PathCache, *, tail: Sequence[int], hidden: bool) -> Job[Outputs]:
    asks: list[Ask] = []
    answer_of_path: dict[tuple[int, ...], int] = {}  # a path, and the place of the answer that has its node
    indices_by_query: list[list[int]] = []
    for query in queries:
        indices_by_query.append([])
        if not query.ends:
            continue
        prefix = () if query.node is None else tuple(query.node.tokens())
        path = (*prefix, *query.tokens[: query.ends[-1]])
        node, length = paths.find_longest(path)
        if query.node is not None and length <= len(prefix):
            node, length = query.node, len(prefix)
        is_new = length < len(path) and path not in answer_of_path
        if is_new:  # first: it feeds the path at once, and what ends before it, or has a tail, then forks off
            answer_of_path[path] = len(asks)
            asks.append(ScoreAsk(node, path[length:]) if tail else LogitsAsk(node, path[length:], hidden, keep=True))
        for end in query.ends:
            depth = len(prefix) + end
            if is_new and not tail and depth == len(path):
                indices_by_query[-1].append(answer_of_path[path])
                continue
            indices_by_query[-1].append(len(asks))
            asks.append(
                LogitsAsk(node, (*path[length:depth], *tail), hidden)
                if depth >= length
                else LogitsAsk(None, (*path[:depth], *tail), hidden)
            )
    answers: list[Any] = list((yield asks) if asks else ())
    for path, answer_index in answer_of_path.items():
        paths.add(path, answers[answer_index].node)
    return [
        [answer.values if isinstance(answer, Output) else answer for answer in map(answers.__getitem__, answer_indices)]
        for answer_indices in indices_by_query
    ]


def two_way_probability(logit_good: float, logit_bad: float) -> float:
    """Computes `exp(a) / (exp(a) + exp(b))` of two logits, without overflow; NaN where it is not defined."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(1.0 / (1.0 + np.exp(np.float64(logit_bad) - np.float64(logit_good))))


def check_scores(queries: Sequence[Ending], scores: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Checks that there is one score for each end of each query, and returns the scores as tuples.

    Raises:
        ScoringError: there are others.
    """
    if [len(query_scores) for query_scores in scores] != [len(query.ends) for query in queries]:
        raise ScoringError(
            "number of scores does not match the spans",
            value=[len(query_scores) for query_scores in scores][:8],
            expected=[len(query.ends) for query in queries][:8],
        )
    return [tuple(query_scores) for query_scores in scores]

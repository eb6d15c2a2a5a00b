"""Beam search by values: BFS-V of TS-LLM (arXiv 2309.17179), the beam search of OpenR (arXiv 2410.09671)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes, evaluate_nodes, expand_nodes
from evolvent.search.records import Budget, EndedBy, Search, SearchResult, State
from evolvent.search.tree import Tree

__all__ = ["beam"]


def beam(root: State, budget: Budget, rng: np.random.Generator, *, width: int, keep: int | None, depth: int) -> Search:
    """Expands all kept nodes at once, values all children at once, and keeps the best of them, level by level.

    Of the children of all kept nodes the best k by value stay, k being `keep` at first. A kept node that is
    terminal leaves the beam as finished and lowers k by one, so that the search ends with at most `keep` finished
    paths, when k is 0, when nothing is left, or at `depth`. The choice is the finished node of the highest value.
    Of equal values the node that was made first goes first. Leaves `rng` unused.

    Args:
        width: distinct children of a node. keep: k; None: all are kept. depth: levels; nodes there are not
            expanded.
    Raises:
        ConfigError: a size is below 1. NoLegalAction: the root has no action.
    """
    check_sizes(width=width, keep=keep, depth=depth)
    tree, tracker = Tree(root), BudgetTracker(budget)
    ended: EndedBy = "done"
    finished: list[int] = []
    beam_nodes = [0]
    try:
        for _ in range(depth):
            yield from expand_nodes(tree, tracker, beam_nodes, width=width)
            yield from evaluate_nodes(tree, tracker, _children(tree, beam_nodes))
            beam_nodes = _advance(tree, beam_nodes, finished, keep)
            if not beam_nodes:
                break
    except Exhausted as reached:
        ended = reached.limit
        _advance(tree, beam_nodes, finished, keep)  # an end among the children that did come is an end
    best_node = max(finished, key=tree.value.__getitem__, default=None)
    return SearchResult(tree, tuple(finished), best_node, tracker.spent, ended)


def _advance(tree: Tree, beam_nodes: Sequence[int], finished: list[int], keep: int | None) -> list[int]:
    """Adds terminal nodes among the best children to `finished`; returns the other ones, the best first."""
    valued = [node for node in _children(tree, beam_nodes) if not np.isnan(tree.value[node])]
    best = sorted(valued, key=lambda node: -tree.value[node])
    if keep is not None:
        best = best[: keep - len(finished)]
    finished += [node for node in best if tree.terminal[node]]
    return [node for node in best if not tree.terminal[node]]


def _children(tree: Tree, beam_nodes: Sequence[int]) -> list[int]:
    return [node for parent in beam_nodes for node in range(len(tree))[tree.children(parent)]]

"""Depth-first search in the order of values: DFS-V of TS-LLM (arXiv 2309.17179)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.search.budgeted import Asking, Exhausted, check_sizes, expand, value
from evolvent.search.records import Budget, EndedBy, Search, SearchResult, State
from evolvent.search.tree import Tree

__all__ = ["depth_first"]


def depth_first(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    paths: int | None,
    prune_below: float | None = None,
    prune_ratio: float | None = None,
) -> Search:
    """Go to the best child first, and to the next one when all below it is done, until `paths` ends were reached.

    One node is expanded at a time: which is next depends on the values that the last one's children got. The forwards
    of several searches are put together by what drives them. The choice is the finished one of the highest value. Of
    equal values the node that was made first goes first. Leaves `rng` unused.

    Args:
        width: children of a node. depth: nodes there are not expanded. paths: ends to reach; None: all.
        prune_below: children of a lower value are left out.
        prune_ratio: share of a node's children to leave out, the worst: floor((1 - ratio) * n) + 1 of n stay, at least
            one therefore. TS-LLM has .7, and .9 for RLHF.
    Raises:
        ConfigError: a size is below 1, `prune_below` is not a number, or `prune_ratio` is not in [0, 1].
        NoLegalAction: the root has no action.
    """
    check_sizes(width=width, depth=depth, paths=paths)
    _check(prune_below, prune_ratio)
    tree, asking = Tree(root), Asking(budget)
    ended: EndedBy = "done"
    finished: list[int] = []
    pruned, stack = 0, [0]
    node = 0
    try:
        while stack and len(finished) != paths:
            node = stack.pop()
            if tree.terminal[node]:
                finished.append(node)
            elif tree.depth[node] < depth:
                (below,) = yield from expand(tree, asking, [node], width=width)
                yield from value(tree, asking, below)
                ordered = _ordered(tree, node)
                stay = _stay(tree.value[ordered], prune_below, prune_ratio)
                stack += ordered[:stay][::-1]
                pruned += len(ordered) - stay
    except Exhausted as reached:
        ended = reached.limit
        ordered = _ordered(tree, node)  # what did come of the last expansion
        stack += ordered[: _stay(tree.value[ordered], prune_below, prune_ratio)][::-1]
        waiting = [node for node in stack[::-1] if tree.terminal[node]]  # ends that were made cost nothing more
        finished += waiting[: None if paths is None else paths - len(finished)]
    chosen = max(finished, key=tree.value.__getitem__, default=None)
    return SearchResult(tree, tuple(finished), chosen, asking.spent, ended, {"pruned": pruned})


def _ordered(tree: Tree, node: int) -> list[int]:
    """The children of a node that have a value, the best first."""
    below = tree.below(node).tolist()
    return sorted((at for at in below if not np.isnan(tree.value[at])), key=lambda at: -tree.value[at])


def _stay(values: NDArray[np.float64], below: float | None, ratio: float | None) -> int:
    """How many of the children stay whose values these are `[n]`, in descending order."""
    stay = len(values)
    if below is not None:
        stay = int(np.sum(values >= below))
    if ratio is not None:
        # 1 - .9 is a little less than .1 as a float: without the tolerance 1 of 10 would stay instead of 2.
        stay = min(stay, math.floor((1 - ratio) * len(values) + 1e-9) + 1)
    return stay


def _check(below: float | None, ratio: float | None) -> None:
    problems = []
    if below is not None and math.isnan(below):
        problems.append(Problem("prune_below", f"must be a number, got {below}"))
    if ratio is not None and not 0 <= ratio <= 1:
        problems.append(Problem("prune_ratio", f"must be in [0, 1], got {ratio}"))
    if problems:
        raise ConfigError(problems)

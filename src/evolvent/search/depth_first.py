"""Depth-first search in the order of values: DFS-V of TS-LLM (arXiv 2309.17179)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes, evaluate_nodes, expand_nodes
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
    """Searches the best child first, and the next one when all below it is done, until `paths` ends were reached.

    One node is expanded at a time: the next node depends on the values of the last one's children. The forwards of
    several searches are batched by their driver. The choice is the finished node of the highest value. Of equal
    values the node that was made first goes first. Leaves `rng` unused.

    Args:
        width: children of a node. depth: nodes there are not expanded. paths: ends to reach; None: all.
        prune_below: children of a lower value are left out.
        prune_ratio: share of a node's children to leave out, the worst: floor((1 - ratio) * n) + 1 of n stay, at
            least one therefore. TS-LLM has .7, and .9 for RLHF.
    Raises:
        ConfigError: a size is below 1, `prune_below` is not a number, or `prune_ratio` is not in [0, 1].
        NoLegalAction: the root has no action.
    """
    check_sizes(width=width, depth=depth, paths=paths)
    _check_pruning(prune_below, prune_ratio)
    tree, tracker = Tree(root), BudgetTracker(budget)
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
                (children,) = yield from expand_nodes(tree, tracker, [node], width=width)
                yield from evaluate_nodes(tree, tracker, children)
                ordered = _ranked_children(tree, node)
                stay = _count_remaining(tree.value[ordered], prune_below, prune_ratio)
                stack += ordered[:stay][::-1]
                pruned += len(ordered) - stay
    except Exhausted as reached:
        ended = reached.limit
        ordered = _ranked_children(tree, node)  # what did come of the last expansion
        stack += ordered[: _count_remaining(tree.value[ordered], prune_below, prune_ratio)][::-1]
        waiting = [node for node in stack[::-1] if tree.terminal[node]]  # ends that were made cost nothing more
        finished += waiting[: None if paths is None else paths - len(finished)]
    best_node = max(finished, key=tree.value.__getitem__, default=None)
    return SearchResult(tree, tuple(finished), best_node, tracker.spent, ended, {"pruned": pruned})


def _ranked_children(tree: Tree, node: int) -> list[int]:
    """Returns the children of a node that have a value, the best first."""
    children = tree.child_ids(node).tolist()
    return sorted(
        (child for child in children if not np.isnan(tree.value[child])), key=lambda child: -tree.value[child]
    )


def _count_remaining(values: NDArray[np.float64], below: float | None, ratio: float | None) -> int:
    """Returns how many of the children remain whose values are given `[n]`, in descending order."""
    remaining = len(values)
    if below is not None:
        remaining = int(np.sum(values >= below))
    if ratio is not None:
        # 1 - .9 is a little less than .1 as a float: without the tolerance 1 of 10 would stay instead of 2.
        remaining = min(remaining, math.floor((1 - ratio) * len(values) + 1e-9) + 1)
    return remaining


def _check_pruning(below: float | None, ratio: float | None) -> None:
    problems = []
    if below is not None and math.isnan(below):
        problems.append(Problem("prune_below", f"got {below}, expected a number"))
    if ratio is not None and not 0 <= ratio <= 1:
        problems.append(Problem("prune_ratio", f"got {ratio}, expected in [0, 1]"))
    if problems:
        raise ConfigError(problems)

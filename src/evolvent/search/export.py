"""A search tree as JSON values, small enough to store and to display; `view/searchtree.py` draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.search.records import Dropped, SearchResult
from evolvent.search.tree import Tree

__all__ = ["tree_row"]

_MAX_DROPPED = 20  # dropped children that are listed; the others are counted
_MAX_ACTION_CHARS = 1000  # characters of an action


def tree_row(
    result: SearchResult, *, title: str = "", text: Callable[[str], str] | None = None, max_nodes: int = 2000
) -> dict[str, object]:
    """Converts one search to a JSON object: columns with an entry per node, a parent before its children.

    Columns: `parent` (-1: the root), `action`, `visits` (N), `mean` (Q: of the values that were backed up, else the
    node's own), `value` (V, as it was received), `prior`, `count` (equal samples merged into it), and `kind` and
    `hidden` (how many of its children were left out) where any node has one. Numbers have six digits; NaN and
    infinity are None. `terminal`, `dead` and `chosen` (the path to the selected node, the root first) list nodes;
    `finished` lists [node, times it was reached]. `dropped` has how many children were dropped, and of the first 20
    [parent or None, action, reason]. `nodes` is the size of the whole tree.

    A tree with more than `max_nodes` nodes keeps the path to the selected node and then the most visited nodes, the
    nearest to the root first among equals, each with its ancestors.

    Args:
        title: the subject of the search.
        text: converts an action to the displayed text.
        max_nodes: nodes that are kept; the path to the selected one always is.
    """
    tree = result.tree
    path = [] if result.best_node is None else tree.path(result.best_node)
    kept_nodes = _select_nodes(tree, path, max_nodes)
    new_index = {int(old): new for new, old in enumerate(kept_nodes)}
    finish_counts = Counter(new_index[node] for node in result.finished if node in new_index)
    return {
        "title": title,
        "nodes": len(tree),
        **_columns(tree, kept_nodes, new_index, text or str),
        "terminal": np.flatnonzero(tree.terminal[kept_nodes]).tolist(),
        "dead": np.flatnonzero(tree.dead[kept_nodes]).tolist(),
        "chosen": [new_index[node] for node in path],
        "finished": [[node, times] for node, times in finish_counts.items()],
        "dropped": {"count": len(result.dropped), "first": _dropped_rows(result.dropped, new_index, text or str)},
        "ended_by": result.ended_by,
        "spent": {**asdict(result.spent), "seconds": _number(result.spent.seconds)},
    }


def _columns(
    tree: Tree, kept_nodes: NDArray[np.int64], new_index: dict[int, int], text: Callable[[str], str]
) -> dict[str, list[Any]]:
    nodes = kept_nodes.tolist()
    columns: dict[str, list[Any]] = {
        "parent": [new_index.get(above, -1) for above in tree.parent[kept_nodes].tolist()],
        "action": [_clipped(text(tree.actions[node])) for node in nodes],
        "visits": tree.visits[kept_nodes].tolist(),
        "mean": _numbers(tree.means(kept_nodes)),
        "value": _numbers(tree.value[kept_nodes]),
        "prior": _numbers(tree.prior[kept_nodes]),
        "count": [tree.counts[node] for node in nodes],
    }
    child_counts = np.bincount(tree.parent[1 : len(tree)], minlength=len(tree))  # also in trees that were begun anew
    shown_counts = Counter(columns["parent"])
    optional_columns = {
        "kind": [tree.kinds[node] for node in nodes],
        "hidden": [
            count - shown_counts[new_index] for new_index, count in enumerate(child_counts[kept_nodes].tolist())
        ],
    }
    return columns | {name: column for name, column in optional_columns.items() if any(column)}


def _select_nodes(tree: Tree, path: list[int], max_nodes: int) -> NDArray[np.int64]:
    """Selects the nodes that stay, in order."""
    size = len(tree)
    if size <= max_nodes:
        return np.arange(size)
    selected = {0, *path}
    order = np.lexsort((np.arange(size), tree.depth[:size], -tree.visits[:size]))
    for node in order.tolist():
        if len(selected) >= max_nodes:
            break
        missing = []
        while node not in selected:
            missing.append(node)
            node = int(tree.parent[node])
        if len(selected) + len(missing) <= max_nodes:
            selected.update(missing)
    return np.array(sorted(selected), np.int64)


def _dropped_rows(dropped: Iterable[Dropped], new_index: dict[int, int], text: Callable[[str], str]) -> list[list[Any]]:
    first = [child for child, _ in zip(dropped, range(_MAX_DROPPED), strict=False)]
    return [[new_index.get(child.node), _clipped(text(child.action)), _clipped(child.reason)] for child in first]


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_ACTION_CHARS else f"{text[:_MAX_ACTION_CHARS]}…"

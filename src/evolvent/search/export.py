"""A search tree as JSON values, small enough to keep and to look at; `view/searchtree.py` draws it."""

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

_SHOWN = 20  # dropped children that are listed; the others are counted
_LONGEST = 1000  # characters of an action


def tree_row(
    result: SearchResult, *, title: str = "", text: Callable[[str], str] | None = None, most: int = 2000
) -> dict[str, Any]:
    """One search as a JSON object: columns with an entry a node, a parent before its children.

    Columns: `parent` (-1: the root), `action`, `visits` (N), `mean` (Q: of the values that were backed up, else the
    node's own), `value` (V, as it was told), `prior`, `count` (equal samples merged into it), and `kind` and `hidden`
    (how many of its children were left out) where any node has one. Numbers have six digits; what is not a number is
    None. `terminal`, `dead` and `chosen` (the path to the node that the search decides for, the root first) list
    nodes; `finished` lists [node, times it was come to]. `dropped` has how many children were dropped, and of the first
    20 [parent or None, action, reason]. `nodes` is the size of the whole tree.

    A tree with more than `most` nodes keeps the path to the chosen node and then the most visited nodes, the nearest to
    the root first among equals, each with those above it.

    Args:
        title: what was searched for.
        text: what people read in place of an action.
        most: nodes that are kept; the path to the chosen one always is.
    """
    tree = result.tree
    path = [] if result.chosen is None else tree.path(result.chosen)
    kept = _kept(tree, path, most)
    place = {int(old): new for new, old in enumerate(kept)}
    came = Counter(place[node] for node in result.finished if node in place)
    return {
        "title": title,
        "nodes": len(tree),
        **_columns(tree, kept, place, text or str),
        "terminal": np.flatnonzero(tree.terminal[kept]).tolist(),
        "dead": np.flatnonzero(tree.dead[kept]).tolist(),
        "chosen": [place[node] for node in path],
        "finished": [[node, times] for node, times in came.items()],
        "dropped": {"count": len(result.dropped), "first": _dropped(result.dropped, place, text or str)},
        "ended_by": result.ended_by,
        "spent": {**asdict(result.spent), "seconds": _number(result.spent.seconds)},
    }


def _columns(
    tree: Tree, kept: NDArray[np.int64], place: dict[int, int], text: Callable[[str], str]
) -> dict[str, list[Any]]:
    nodes = kept.tolist()
    columns: dict[str, list[Any]] = {
        "parent": [place.get(above, -1) for above in tree.parent[kept].tolist()],
        "action": [_clipped(text(tree.actions[node])) for node in nodes],
        "visits": tree.visits[kept].tolist(),
        "mean": _numbers(tree.means(kept)),
        "value": _numbers(tree.value[kept]),
        "prior": _numbers(tree.prior[kept]),
        "count": [tree.counts[node] for node in nodes],
    }
    made = np.bincount(tree.parent[1 : len(tree)], minlength=len(tree))  # also in trees that were begun anew
    shown = Counter(columns["parent"])
    further = {
        "kind": [tree.kinds[node] for node in nodes],
        "hidden": [count - shown[place] for place, count in enumerate(made[kept].tolist())],
    }
    return columns | {name: column for name, column in further.items() if any(column)}


def _kept(tree: Tree, path: list[int], most: int) -> NDArray[np.int64]:
    """The nodes that stay, in order."""
    size = len(tree)
    if size <= most:
        return np.arange(size)
    kept = {0, *path}
    order = np.lexsort((np.arange(size), tree.depth[:size], -tree.visits[:size]))
    for node in order.tolist():
        if len(kept) >= most:
            break
        missing = []
        while node not in kept:
            missing.append(node)
            node = int(tree.parent[node])
        if len(kept) + len(missing) <= most:
            kept.update(missing)
    return np.array(sorted(kept), np.int64)


def _dropped(dropped: Iterable[Dropped], place: dict[int, int], text: Callable[[str], str]) -> list[list[Any]]:
    first = [one for one, _ in zip(dropped, range(_SHOWN), strict=False)]
    return [[place.get(one.node), _clipped(text(one.action)), _clipped(one.reason)] for one in first]


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

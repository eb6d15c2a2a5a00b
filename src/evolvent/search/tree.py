"""A search tree: numbers in arrays, one entry per node, so that selection reads all children of a node at once.

Children that are made together are adjacent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import EngineError, NoLegalAction
from evolvent.search.children import Child, Dropped, State

__all__ = ["Tree"]

_NUMBERS = ("parent", "depth", "first", "width", "visits", "total", "prior", "logprob", "value", "terminal", "dead")
_INTEGERS = ("parent", "depth", "first", "width", "visits")


class Tree:
    """Nodes by number; 0 is the root, and a parent comes before its children.

    Attributes, each `[capacity]` with the entries of the first `len(tree)` nodes in use:
        parent: -1 for the root. depth: actions from the root.
        first, width: where a node's children begin and how many they are; first -1: it was never expanded. Those that
            were added later (`widen`) lie elsewhere.
        visits, total: N, and S, the sum of the values that were backed up through the node.
        prior: the share of exp(logprob) among the siblings. logprob: mean over the action's tokens.
        value: as it was told when the node was made or valued; NaN: not told.
        terminal: the episode is over there.
        dead: not to be gone to: it was dropped after it was made, or all of its children were.
    And by node, as lists: `states`, `actions`, `scores`, `counts`, `kinds`, `generated`. `dropped`: what was not taken.
    """

    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    first: NDArray[np.int64]
    width: NDArray[np.int64]
    visits: NDArray[np.int64]
    total: NDArray[np.float64]
    prior: NDArray[np.float64]
    logprob: NDArray[np.float64]
    value: NDArray[np.float64]
    terminal: NDArray[np.bool_]
    dead: NDArray[np.bool_]

    def __init__(self, root: State) -> None:
        for name in _NUMBERS:
            kind = np.int64 if name in _INTEGERS else np.bool_ if name in ("terminal", "dead") else np.float64
            setattr(self, name, np.zeros(64, kind))
        self.states: list[State] = [root]
        self.actions: list[str] = [""]
        self.scores: list[tuple[float, ...]] = [()]
        self.counts: list[int] = [1]
        self.kinds: list[str] = [""]
        self.generated: list[int] = [0]
        self.dropped: list[Dropped] = []
        self._added: dict[int, list[int]] = {}  # children that were added to a node later
        self.parent[0] = self.first[0] = -1
        self.prior[0], self.value[0] = 1.0, math.nan

    def __len__(self) -> int:
        return len(self.states)

    def is_expanded(self, node: int) -> bool:
        """Returns whether children were requested; there may be none."""
        return bool(self.first[node] >= 0)

    def children(self, node: int) -> slice:
        """Returns the slice of a node's children in all arrays; empty where there are none.

        Raises:
            EngineError: children were added to it, and are not adjacent to the others: see `child_ids`.
        """
        if node in self._added:
            raise EngineError("children of a widened node are not contiguous", value=node, hint="use below(node)")
        first = int(self.first[node])
        return slice(first, first + int(self.width[node])) if first >= 0 else slice(0, 0)

    def child_ids(self, node: int) -> NDArray[np.int64]:
        """Returns the children of a node `[A]`, in the order in which they were made."""
        added = self._added.get(node, [])
        first, num_first = int(self.first[node]), int(self.width[node]) - len(added)
        first_children = np.arange(first, first + num_first) if first >= 0 else np.zeros(0, np.int64)
        return np.concatenate([first_children, np.asarray(added, np.int64)]) if added else first_children

    def add_children(self, node: int, children: Sequence[Child]) -> range:
        """Adds the children of a node that was not expanded; returns their numbers.

        Those with a problem, a log-probability that is NaN or infinite upwards, or a value that is not finite are
        dropped, each with its reason, and never valued 0. Priors are of those that stay.
        """
        usable = [child for child in children if not self._drop_if_unusable(node, child)]
        self.first[node], self.width[node] = len(self), len(usable)
        return self._append(node, usable)

    def widen(self, node: int, children: Sequence[Child]) -> range:
        """Adds more children to a node that was expanded; returns the numbers of the new ones.

        One whose action a child of it has already is that child again, which counts it. Priors are those of all its
        children then. What is dropped is as in `grow`.
        """
        child_by_action = {self.actions[index]: int(index) for index in self.child_ids(node)}
        new = []
        for child in children:
            index = child_by_action.get(child.action)
            if index is not None and not child.problem:
                self.counts[index] += child.count
                self.generated[index] += child.generated
            elif not self._drop_if_unusable(node, child):
                new.append(child)
        added = self._append(node, new)
        if added:
            self._added.setdefault(node, []).extend(added)
            self.width[node] += len(added)
            all_children = self.child_ids(node)
            self.prior[all_children] = _softmax(self.logprob[all_children])
        return added

    def _append(self, node: int, new_children: Sequence[Child]) -> range:
        """Appends children to all arrays; their priors are among themselves."""
        first = len(self)
        end = first + len(new_children)
        self._reserve(end)
        if not new_children:
            return range(first, first)
        new_slice = slice(first, end)
        self.parent[new_slice], self.depth[new_slice], self.first[new_slice] = node, self.depth[node] + 1, -1
        self.width[new_slice] = self.visits[new_slice] = 0
        self.total[new_slice] = 0.0
        self.logprob[new_slice] = [child.logprob for child in new_children]
        self.value[new_slice] = [math.nan if child.value is None else child.value for child in new_children]
        self.terminal[new_slice] = [child.terminal for child in new_children]
        self.prior[new_slice] = _softmax(self.logprob[new_slice])
        self.states += [child.state for child in new_children]
        self.actions += [child.action for child in new_children]
        self.scores += [child.scores for child in new_children]
        self.counts += [child.count for child in new_children]
        self.kinds += [child.kind for child in new_children]
        self.generated += [child.generated for child in new_children]
        return range(first, end)

    def _drop_if_unusable(self, node: int, child: Child) -> bool:
        reason = child.problem
        if not reason and child.value is not None and not math.isfinite(child.value):
            reason = f"its value is {child.value}"
        if not reason and (math.isnan(child.logprob) or child.logprob == math.inf):
            reason = f"its log-probability is {child.logprob}"
        if not reason and not all(map(math.isfinite, child.scores)):
            reason = "a score of one of its spans is not finite"
        if reason:
            self.dropped.append(Dropped(node, child.action, reason))
        return bool(reason)

    def drop(self, node: int, reason: str) -> None:
        """Lists a child that is in the tree among the dropped; it, and parents without other children, are dead."""
        self.dropped.append(Dropped(int(self.parent[node]), self.actions[node], reason))
        self.dead[node] = True
        while (node := int(self.parent[node])) >= 0 and self.dead[self.child_ids(node)].all():
            self.dead[node] = True

    def _reserve(self, count: int) -> None:
        old_capacity = len(self.parent)
        if count <= old_capacity:
            return
        for name in _NUMBERS:
            old_array = getattr(self, name)
            new_array = np.zeros(max(count, 2 * old_capacity), old_array.dtype)
            new_array[:old_capacity] = old_array
            setattr(self, name, new_array)

    def check_root(self, node: int = 0) -> None:
        """Raises NoLegalAction where a node that must be acted in was expanded and has no living child."""
        if self.is_expanded(node) and self.dead[self.child_ids(node)].all():
            reasons = sorted({dropped_child.reason for dropped_child in self.dropped if dropped_child.node == node})
            raise NoLegalAction(
                "no action is available at the root of the search",
                value=reasons or "no actions",
                expected="at least one legal action with a finite value",
            )

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root to this one, both included."""
        nodes = [node]
        while (node := int(self.parent[node])) >= 0:
            nodes.append(node)
        return nodes[::-1]

    def line(self, node: int) -> tuple[str, ...]:
        """Returns the actions from the root to a node."""
        return tuple(self.actions[path_node] for path_node in self.path(node)[1:])

    def spans(self, node: int) -> tuple[float, ...]:
        """Returns the scores of all spans from the root to a node, in order."""
        return tuple(score for path_node in self.path(node) for score in self.scores[path_node])

    def means(self, nodes: slice | Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns Q: the mean of the values backed up through each node, and its own value where none was."""
        visits = self.visits[nodes]
        return np.where(visits > 0, self.total[nodes] / np.maximum(visits, 1), self.value[nodes])

    def backup(self, node: int, value: float) -> None:
        """Updates N += 1 and S += value on the path from the root to the node: a plain mean, no discount."""
        path = self.path(node)
        self.visits[path] += 1
        self.total[path] += value

    def clear_statistics(self) -> None:
        """Clears N and S of all nodes; the tree stays."""
        self.visits[: len(self)] = 0
        self.total[: len(self)] = 0.0

    def reset_root(self) -> None:
        """Resets the root as if it had never been expanded; its old subtree stays on record, with its N and S."""
        self.first[0], self.width[0] = -1, 0
        self._added.pop(0, None)
        self.visits[0], self.total[0], self.dead[0] = 0, 0.0, False

    def leaves(self) -> Iterable[int]:
        """Returns the nodes without children, in order."""
        return (int(node) for node in np.flatnonzero(self.width[: len(self)] == 0))


def _softmax(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes exp(logprob), normalized; equal shares where all are -inf."""
    largest = logprobs.max()
    if largest == -np.inf:
        return np.full(len(logprobs), 1.0 / len(logprobs))
    weights = np.exp(logprobs - largest)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares

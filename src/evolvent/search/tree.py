"""A search tree: numbers in arrays, one entry a node, so that selection looks at all children of a node at once.

The children of a node that are made together lie next to each other.
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
_WHOLE = ("parent", "depth", "first", "width", "visits")


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
            kind = np.int64 if name in _WHOLE else np.bool_ if name in ("terminal", "dead") else np.float64
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

    def expanded(self, node: int) -> bool:
        """Whether children were asked for; there may be none."""
        return bool(self.first[node] >= 0)

    def children(self, node: int) -> slice:
        """Where the children of a node lie in all arrays; empty where there are none.

        Raises:
            EngineError: children were added to it, and do not lie next to the others: see `below`.
        """
        if node in self._added:
            raise EngineError("children of a widened node do not lie together", value=node, hint="take below(node)")
        first = int(self.first[node])
        return slice(first, first + int(self.width[node])) if first >= 0 else slice(0, 0)

    def below(self, node: int) -> NDArray[np.int64]:
        """The children of a node `[A]`, in the order in which they were made."""
        added = self._added.get(node, [])
        first, own = int(self.first[node]), int(self.width[node]) - len(added)
        made = np.arange(first, first + own) if first >= 0 else np.zeros(0, np.int64)
        return np.concatenate([made, np.asarray(added, np.int64)]) if added else made

    def grow(self, node: int, children: Sequence[Child]) -> range:
        """Add the children of a node that was not expanded; returns their numbers.

        Those with a problem, a log-probability that is NaN or infinite upwards, or a value that is not finite are
        dropped, each with its reason, and never valued 0. Priors are of those that stay.
        """
        kept = [child for child in children if not self._drops(node, child)]
        self.first[node], self.width[node] = len(self), len(kept)
        return self._append(node, kept)

    def widen(self, node: int, children: Sequence[Child]) -> range:
        """Add more children to a node that was expanded; returns the numbers of those that are new.

        One whose action a child of it has already is that child again, which counts it. Priors are those of all its
        children then. What is dropped is as in `grow`.
        """
        known = {self.actions[at]: int(at) for at in self.below(node)}
        new = []
        for child in children:
            at = known.get(child.action)
            if at is not None and not child.problem:
                self.counts[at] += child.count
                self.generated[at] += child.generated
            elif not self._drops(node, child):
                new.append(child)
        made = self._append(node, new)
        if made:
            self._added.setdefault(node, []).extend(made)
            self.width[node] += len(made)
            every = self.below(node)
            self.prior[every] = _shares(self.logprob[every])
        return made

    def _append(self, node: int, kept: Sequence[Child]) -> range:
        """Put children at the end of all arrays; their priors are among themselves."""
        first = len(self)
        end = first + len(kept)
        self._reserve(end)
        if not kept:
            return range(first, first)
        where = slice(first, end)
        self.parent[where], self.depth[where], self.first[where] = node, self.depth[node] + 1, -1
        self.width[where] = self.visits[where] = 0
        self.total[where] = 0.0
        self.logprob[where] = [child.logprob for child in kept]
        self.value[where] = [math.nan if child.value is None else child.value for child in kept]
        self.terminal[where] = [child.terminal for child in kept]
        self.prior[where] = _shares(self.logprob[where])
        self.states += [child.state for child in kept]
        self.actions += [child.action for child in kept]
        self.scores += [child.scores for child in kept]
        self.counts += [child.count for child in kept]
        self.kinds += [child.kind for child in kept]
        self.generated += [child.generated for child in kept]
        return range(first, end)

    def _drops(self, node: int, child: Child) -> bool:
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
        """List a child that is in the tree among the dropped; it, and parents that have no other left, are dead."""
        self.dropped.append(Dropped(int(self.parent[node]), self.actions[node], reason))
        self.dead[node] = True
        while (node := int(self.parent[node])) >= 0 and self.dead[self.below(node)].all():
            self.dead[node] = True

    def _reserve(self, count: int) -> None:
        have = len(self.parent)
        if count <= have:
            return
        for name in _NUMBERS:
            old = getattr(self, name)
            new = np.zeros(max(count, 2 * have), old.dtype)
            new[:have] = old
            setattr(self, name, new)

    def check_root(self, node: int = 0) -> None:
        """Raise NoLegalAction where a node that must be acted in was expanded and has no child to go to."""
        if self.expanded(node) and self.dead[self.below(node)].all():
            reasons = sorted({each.reason for each in self.dropped if each.node == node})
            raise NoLegalAction(
                "there is no action to take at the root of a search",
                value=reasons or "none offered",
                expected="at least one legal action with a finite value",
            )

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one, both included."""
        found = [node]
        while (node := int(self.parent[node])) >= 0:
            found.append(node)
        return found[::-1]

    def line(self, node: int) -> tuple[str, ...]:
        """The actions from the root to a node."""
        return tuple(self.actions[at] for at in self.path(node)[1:])

    def spans(self, node: int) -> tuple[float, ...]:
        """The scores of all spans from the root to a node, in order."""
        return tuple(score for at in self.path(node) for score in self.scores[at])

    def means(self, nodes: slice | Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Q: the mean of the values backed up through each node, and its own value where none was."""
        visits = self.visits[nodes]
        return np.where(visits > 0, self.total[nodes] / np.maximum(visits, 1), self.value[nodes])

    def backup(self, node: int, value: float) -> None:
        """N += 1 and S += value on the path from the root to the node: a plain mean, no discount."""
        path = self.path(node)
        self.visits[path] += 1
        self.total[path] += value

    def forget(self) -> None:
        """Clear N and S of all nodes; the tree stays."""
        self.visits[: len(self)] = 0
        self.total[: len(self)] = 0.0

    def renew(self) -> None:
        """Let the root be as if it had never been expanded; what was under it stays on record, with its N and S."""
        self.first[0], self.width[0] = -1, 0
        self._added.pop(0, None)
        self.visits[0], self.total[0], self.dead[0] = 0, 0.0, False

    def leaves(self) -> Iterable[int]:
        """Nodes without children, in order."""
        return (int(node) for node in np.flatnonzero(self.width[: len(self)] == 0))


def _shares(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(logprob), normalised; equal shares where all are -inf."""
    most = logprobs.max()
    if most == -np.inf:
        return np.full(len(logprobs), 1.0 / len(logprobs))
    weights = np.exp(logprobs - most)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares

"""Simulations of Monte Carlo tree search: from a node down to a value, and the value back up.

A lazy simulation (TS-LLM, arXiv 2309.17179) does not expand a leaf that it comes to for the first time: it backs up the
value that the leaf got when it was made. On the second visit the leaf is expanded and the simulation goes on. It is the
tree of an eager search, only that children are asked for when somebody wants to go to one of them. A descent expands
every leaf on its way and ends where the episode does, or at the depth limit.

Several simulations may be under way at once (`leaves`): those that wait for children are asked for together. One that
waits counts, for those that start meanwhile, as a visit that earned the least value told so far (virtual loss: Segal,
"On the scalability of parallel UCT", CG 2010). With one at a time this never happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.search.budgeted import Asking, Exhausted, value
from evolvent.search.records import EndedBy, Expand, Found, SearchResult, Wanted
from evolvent.search.tree import Tree

__all__ = ["Choose", "Simulator", "alive", "conclude"]

Choose = Callable[["Simulator", int], int]


class Simulator:
    """Runs simulations in one tree.

    Args:
        choose: which child of an expanded node to go to.
        width: children of a node, as they are asked for. depth: nodes that deep are not expanded.
        lazy: see above; otherwise descents.
        widen: progressive widening: a node with children that was visited N times is asked for more of them until
            `floor(width N^widen)` samples were drawn there (Couetoux et al., LION 2011); 0: `width` for good.
    Attributes:
        root: where simulations start; it is expanded, and counts as visited.
        first: number of the first sample to ask for.
        drawn: how many samples were asked for of each node.
        ended: where simulations ended, in order of completion.
    """

    def __init__(
        self,
        tree: Tree,
        asking: Asking,
        choose: Choose,
        *,
        width: int,
        depth: int,
        lazy: bool = True,
        widen: float = 0.0,
    ) -> None:
        self.tree, self.asking, self.choose = tree, asking, choose
        self.width, self.depth, self.lazy, self.widen = width, depth, lazy, widen
        self.root = self.first = 0
        self.drawn: dict[int, int] = {}
        self.ended: list[int] = []
        self._waiting: Counter[int] = Counter()  # how many simulations that wait went through a node

    def grow(self, nodes: Sequence[int]) -> Generator[Wanted, Found, None]:
        """Expand nodes, or widen them, and see to it that all of their children have values.

        Those without any child are dead.
        """
        tree, asked = self.tree, list(dict.fromkeys(nodes))
        had = [self.drawn.get(node, 0) for node in asked]
        wishes = [
            Expand(tree.states[node], self._due(node) - drawn, first=self.first + drawn, after=drawn)
            for node, drawn in zip(asked, had, strict=True)
        ]
        found = yield from self.asking.ask(wishes)
        for node, wish, children in zip(asked, wishes, found.children, strict=True):
            if children is None:
                continue
            self.drawn[node] = self.drawn.get(node, 0) + wish.width
            if tree.expanded(node):
                tree.widen(node, children)
            else:
                tree.grow(node, children)
        if 0 in asked:
            tree.check_root()
        if found.short is not None:
            raise Exhausted(found.short)
        yield from value(tree, self.asking, [int(child) for node in asked for child in alive(tree, node)])
        for node in asked:
            if node and not tree.width[node]:
                tree.drop(node, "there is no action to take in it")

    def renew(self) -> None:
        """Begin a new tree of other samples at the root; what was under it stays on record."""
        self.tree.renew()
        self.first += max(self.drawn.values(), default=self.width)
        self.drawn.clear()

    def _due(self, node: int) -> int:
        """How many samples are to have been drawn in a node."""
        visits = int(self.tree.visits[node])
        if not self.widen or not self.tree.expanded(node) or not visits:
            return max(self.width, self.drawn.get(node, 0))
        return max(int(self.width * visits**self.widen + 1e-9), self.drawn.get(node, 0))

    def round(self, starts: Sequence[int], *, leaves: int) -> Generator[Wanted, Found, None]:
        """Simulate from each of some nodes until `leaves` wait, and bring those to their end.

        Args:
            starts: the root, over and over, or children of it; not all of them need be used, but one is.
        Raises:
            Exhausted: the simulations that wait are given up; the tree keeps what the last answer brought.
        """
        held: list[int] = []
        for start in starts:
            held += self._advance(start)
            if len(held) == leaves:
                break
        while held:
            yield from self.grow(held)
            resumed, held = held, []
            for node in resumed:
                self._mark(node, -1)
                held += self._advance(node)

    def counts(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], int]:
        """The children to choose among, their mean values and visits, and the visits of the node.

        Those that wait are in it: as visits that earned the least value told so far.
        """
        tree, at = self.tree, alive(self.tree, node)
        visits, total = tree.visits[at], tree.total[at]
        if self._waiting:
            lost = np.array([self._waiting[int(child)] for child in at])
            visits, total = visits + lost, total + lost * float(np.nanmin(tree.value[: len(tree)]))
        q = np.where(visits > 0, total / np.maximum(visits, 1), tree.value[at])
        return at, q, visits, int(tree.visits[node]) + self._waiting[node]

    def _advance(self, node: int) -> list[int]:
        """Go down until a value can be backed up, or until children have to be waited for: of the node returned."""
        tree = self.tree
        while not self._ends(node):
            if not tree.expanded(node) or (self.widen and self._due(node) > self.drawn[node]):
                self._mark(node, 1)
                return [node]
            node = self.choose(self, node)
        tree.backup(node, float(tree.value[node]))
        self.ended.append(node)
        return []

    def _ends(self, node: int) -> bool:
        tree = self.tree
        if tree.terminal[node] or tree.dead[node] or tree.depth[node] >= self.depth:
            return True
        return self.lazy and node != self.root and not tree.visits[node]

    def _mark(self, node: int, change: int) -> None:
        for at in self.tree.path(node):
            self._waiting[at] += change
        if change < 0:
            self._waiting = +self._waiting  # only what is above 0


def alive(tree: Tree, node: int) -> NDArray[np.int64]:
    """The children of a node that can be gone to."""
    below = tree.below(node)
    found: NDArray[np.int64] = below[~tree.dead[below]]
    return found


def conclude(
    tree: Tree, asking: Asking, finished: Sequence[int], *, ended_by: EndedBy, notes: dict[str, Any]
) -> SearchResult:
    """The result of a search that came to some ends: it decides for the one of highest value, the first among equals.

    Where it came to none, because its budget was used up or its moves led nowhere, the best of all ends that it has
    seen on its way is the one that it came to.
    """
    known = finished or np.flatnonzero(tree.terminal[: len(tree)] & ~tree.dead[: len(tree)]).tolist()
    worth = np.nan_to_num(tree.value[known], nan=-np.inf)
    chosen = known[int(np.argmax(worth))] if len(known) else None
    if not finished and chosen is not None:
        finished = [chosen]
        notes = notes | {"fallback": True}
    return SearchResult(tree, tuple(finished), chosen, asking.spent, ended_by, notes)

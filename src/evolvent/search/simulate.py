"""Simulations of Monte Carlo tree search: from a node down to a value, and the value back up.

A lazy simulation (TS-LLM, arXiv 2309.17179) does not expand a leaf at its first visit: it backs up the value
that the leaf got when it was made. On the second visit the leaf is expanded and the simulation continues. The
tree is that of an eager search, but children are requested only when a simulation has to choose among them. A
descent expands every leaf on its path and ends where the episode does, or at the depth limit.

Several simulations may be in progress at once (`leaves`): those that wait for children are batched. A waiting
simulation counts, for those that start meanwhile, as a visit that earned the least value so far (virtual loss:
Segal, "On the scalability of parallel UCT", CG 2010). With one at a time this never happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from evolvent.search.budgeted import BudgetTracker, Exhausted, evaluate_nodes
from evolvent.search.records import EndedBy, ExpandRequest, Request, Response, SearchResult
from evolvent.search.tree import Tree

__all__ = ["Choose", "Simulator", "build_result", "living_children"]

Choose = Callable[["Simulator", int], int]


class Simulator:
    """Runs simulations in one tree.

    Args:
        choose: selects a child of an expanded node.
        width: children of a node per request. depth: nodes that deep are not expanded.
        lazy: see above; otherwise descents.
        widen: progressive widening: a node with children that was visited N times gets more of them until
            `floor(width N^widen)` samples were drawn there (Couetoux et al., LION 2011); 0: `width` for good.
    Attributes:
        root: the start of simulations; it is expanded, and counts as visited.
        first: number of the first sample to request.
        drawn: how many samples were requested for each node.
        ended: the last nodes of simulations, in order of completion.
    """

    def __init__(
        self,
        tree: Tree,
        tracker: BudgetTracker,
        choose: Choose,
        *,
        width: int,
        depth: int,
        lazy: bool = True,
        widen: float = 0.0,
    ) -> None:
        self.tree, self.asking, self.choose = tree, tracker, choose
        self.width, self.depth, self.lazy, self.widen = width, depth, lazy, widen
        self.root = self.first = 0
        self.drawn: dict[int, int] = {}
        self.ended: list[int] = []
        self._waiting: Counter[int] = Counter()  # how many simulations that wait went through a node

    def expand(self, nodes: Sequence[int]) -> Generator[Request, Response, None]:
        """Expands nodes, or widens them, and ensures that all of their children have values.

        Those without any child are dead.
        """
        tree, unique_nodes = self.tree, list(dict.fromkeys(nodes))
        drawn_before = [self.drawn.get(node, 0) for node in unique_nodes]
        expansions = [
            ExpandRequest(
                tree.states[node], self._target_samples(node) - num_drawn, first=self.first + num_drawn, after=num_drawn
            )
            for node, num_drawn in zip(unique_nodes, drawn_before, strict=True)
        ]
        response = yield from self.asking.request(expansions)
        for node, expansion, children in zip(unique_nodes, expansions, response.children, strict=True):
            if children is None:
                continue
            self.drawn[node] = self.drawn.get(node, 0) + expansion.width
            if tree.is_expanded(node):
                tree.widen(node, children)
            else:
                tree.add_children(node, children)
        if 0 in unique_nodes:
            tree.check_root()
        if response.short is not None:
            raise Exhausted(response.short)
        yield from evaluate_nodes(
            tree, self.asking, [int(child) for node in unique_nodes for child in living_children(tree, node)]
        )
        for node in unique_nodes:
            if node and not tree.width[node]:
                tree.drop(node, "there is no action to take in it")

    def restart_tree(self) -> None:
        """Starts a new tree of other samples at the root; the old nodes stay on record."""
        self.tree.reset_root()
        self.first += max(self.drawn.values(), default=self.width)
        self.drawn.clear()

    def _target_samples(self, node: int) -> int:
        """Returns how many samples should have been drawn in a node."""
        visits = int(self.tree.visits[node])
        if not self.widen or not self.tree.is_expanded(node) or not visits:
            return max(self.width, self.drawn.get(node, 0))
        return max(int(self.width * visits**self.widen + 1e-9), self.drawn.get(node, 0))

    def round(self, starts: Sequence[int], *, leaves: int) -> Generator[Request, Response, None]:
        """Runs a simulation from each of some nodes until `leaves` wait, and completes those.

        Args:
            starts: the root, repeatedly, or children of it; not all of them need be used, but one is.
        Raises:
            Exhausted: the waiting simulations are given up; the tree keeps the children of the last answer.
        """
        waiting: list[int] = []
        for start in starts:
            waiting += self._advance(start)
            if len(waiting) == leaves:
                break
        while waiting:
            yield from self.expand(waiting)
            resumed, waiting = waiting, []
            for node in resumed:
                self._count_waiting(node, -1)
                waiting += self._advance(node)

    def counts(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], int]:
        """Returns the children to choose among, their mean values and visits, and the visits of the node.

        Waiting simulations are included, as visits that earned the least value so far.
        """
        tree, children = self.tree, living_children(self.tree, node)
        visits, total = tree.visits[children], tree.total[children]
        if self._waiting:
            virtual_visits = np.array([self._waiting[int(child)] for child in children])
            visits, total = visits + virtual_visits, total + virtual_visits * float(np.nanmin(tree.value[: len(tree)]))
        q = np.where(visits > 0, total / np.maximum(visits, 1), tree.value[children])
        return children, q, visits, int(tree.visits[node]) + self._waiting[node]

    def _advance(self, node: int) -> list[int]:
        """Moves down until a value can be backed up, or until children have to be waited for: those of the node
        returned.
        """
        tree = self.tree
        while not self._is_end(node):
            if not tree.is_expanded(node) or (self.widen and self._target_samples(node) > self.drawn[node]):
                self._count_waiting(node, 1)
                return [node]
            node = self.choose(self, node)
        tree.backup(node, float(tree.value[node]))
        self.ended.append(node)
        return []

    def _is_end(self, node: int) -> bool:
        tree = self.tree
        if tree.terminal[node] or tree.dead[node] or tree.depth[node] >= self.depth:
            return True
        return self.lazy and node != self.root and not tree.visits[node]

    def _count_waiting(self, node: int, change: int) -> None:
        for path_node in self.tree.path(node):
            self._waiting[path_node] += change
        if change < 0:
            self._waiting = +self._waiting  # only what is above 0


def living_children(tree: Tree, node: int) -> NDArray[np.int64]:
    """Returns the children of a node that are not dead."""
    children = tree.child_ids(node)
    living: NDArray[np.int64] = children[~tree.dead[children]]
    return living


def build_result(
    tree: Tree, tracker: BudgetTracker, finished: Sequence[int], *, ended_by: EndedBy, notes: dict[str, object]
) -> SearchResult:
    """Builds the result of a search from its ends; it selects the end of highest value, the first among equals.

    Where it has none, because its budget was exhausted or its moves reached no end, the best end of the whole tree
    is its only one.
    """
    ends = finished or np.flatnonzero(tree.terminal[: len(tree)] & ~tree.dead[: len(tree)]).tolist()
    end_values = np.nan_to_num(tree.value[ends], nan=-np.inf)
    best_node = ends[int(np.argmax(end_values))] if len(ends) else None
    if not finished and best_node is not None:
        finished = [best_node]
        notes = notes | {"fallback": True}
    return SearchResult(tree, tuple(finished), best_node, tracker.spent, ended_by, notes)

"""Monte Carlo tree search over the actions of a language model, in the three ways that published systems run it.

The searches are those of TS-LLM (Feng et al., arXiv 2309.17179: MCTS-alpha, MCTS-rollout and, after RAP, descents) and
OpenR (arXiv 2410.09671). Values are backed up as a plain mean, without a discount and without rewards on the way.

Against MuZero's search as in mctx: there a node is given its priors when it is made, and every simulation asks for one
new node; here the children of a node come together with their values when it is visited a second time. The visits are
the same. What differs are the values that PUCT sees (`Explore.muzero`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes, evaluate_nodes
from evolvent.search.records import Budget, EndedBy, Request, Response, Search, SearchResult, State
from evolvent.search.select import Select, dirichlet_noise, normalize_values, puct
from evolvent.search.simulate import Simulator, build_result, living_children
from evolvent.search.stopping import Stop, Visits, Vote
from evolvent.search.tree import Tree

__all__ = ["Commit", "Descend", "Explore", "Restart", "mcts"]


@dataclass(frozen=True, slots=True)
class Commit:
    """MCTS-alpha: simulate, make the most visited move, keep its subtree, and so on to the end.

    Args:
        simulations: before each move.
        temperature: 0: the most visited child, among equals that of higher mean value. T: drawn by `N^(1/T)`.
        paths: how many ends to reach, one tree after another.
        trees: "intra": the next tree keeps the nodes and clears N and S. "inter": it starts anew, with other
            samples.
        stop: a detector over the visits of the root's children that ends simulations early, run before each
            round of them. Notes: "stopped", the reason, and "spared", the simulations that were not run.
    """

    simulations: int = 10
    temperature: float = 0.0
    paths: int = 1
    trees: Literal["intra", "inter"] = "intra"
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """MCTS-rollout: simulations from the root alone, until so many reached an end.

    Args:
        paths: ends to reach; repeated ends count again, and so do paths that are cut at the depth limit.
        simulations: the maximum in all; None: as many as it takes.
        stop: a detector over the answers, each a vote, that ends the search early, run when new paths have ended.
            Notes: see `Vote.notes`.
    """

    paths: int
    simulations: int | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Descend:
    """OpenR's `vanila_mcts`, TS-LLM's `rap`: each simulation continues to the end, expanding every leaf on its path.

    Args:
        paths: how many descents; one that meets the depth limit is one of them.
        stop: as that of `Restart`.
    """

    paths: int
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Explore:
    """The exploration settings of a simulation.

    Args:
        select: scores the children of a node; among children of infinite score one is drawn, otherwise the first
            wins.
        noise: the share of Dirichlet noise in the priors of a root; .25 where moves are drawn, 0 for none.
        alpha: of the Dirichlet distribution.
        muzero: values as MuZero's search sees them: between 0 and 1 over siblings and parent, 0 for a child that
            was not visited, and the root's own value is its first visit. Otherwise as they are, a child that was
            not visited by its own value, and the first simulation of all goes to the highest value (`N_parent` is
            0).
        widen: progressive widening, for large action spaces (Couetoux et al., "Continuous upper confidence trees",
            LION 2011; Chaslot et al., 2008): a node that was visited N times gets children until
            `floor(width N^widen)` samples were drawn there; equal ones are one child. 0: `width` for good.
    """

    select: Select = puct
    noise: float = 0.0
    alpha: float = 0.3
    muzero: bool = False
    widen: float = 0.0


def mcts(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    start: Commit | Restart | Descend,
    explore: Explore | None = None,
    leaves: int = 1,
) -> Search:
    """Runs Monte Carlo tree search; `start` determines where simulations start and when the search ends.

    With `leaves=1` simulations run one after another. With k, up to k wait for children at once, all of which are
    requested together (`search/simulate.py`).

    It selects the end of highest value, the first among equals. Notes: "simulations", and for `Commit` "moves", the
    nodes moved to, path by path.

    Args:
        width: children of a node. depth: the maximum number of actions of a path.
        rng: for noise, drawn moves and rules that score infinitely; unused otherwise.
    Raises:
        ConfigError: names every setting that is out of range. NoLegalAction: the root has no usable action.
    """
    explore = explore or Explore()
    simulations = None if isinstance(start, Descend) else start.simulations
    check_sizes(width=width, depth=depth, leaves=leaves, paths=start.paths, simulations=simulations)
    problems = []
    if isinstance(start, Commit) and not 0 <= start.temperature < np.inf:
        problems.append(Problem("temperature", f"got {start.temperature}, expected finite and 0 or more"))
    if not 0 <= explore.noise <= 1:
        problems.append(Problem("noise", f"got {explore.noise}, expected between 0 and 1"))
    if not 0 < explore.alpha < np.inf:
        problems.append(Problem("alpha", f"got {explore.alpha}, expected finite and above 0"))
    if not 0 <= explore.widen <= 1:
        problems.append(Problem("widen", f"got {explore.widen}, expected between 0 and 1"))
    if start.stop is not None and isinstance(start, Commit) and start.temperature:
        problems.append(
            Problem(
                "stop",
                "stopping early would change the visit counts that moves are sampled from",
                "set temperature to 0",
            )
        )
    if problems:
        raise ConfigError(problems)
    explorer = _Explorer(explore, rng)
    simulator = Simulator(
        Tree(root),
        BudgetTracker(budget),
        explorer,
        width=width,
        depth=depth,
        lazy=not isinstance(start, Descend),
        widen=explore.widen,
    )
    return _run_search(_Run(simulator, explorer, leaves), start)


@dataclass(slots=True)
class _Run:
    """One running search: its simulator, its exploration, and its results so far."""

    simulator: Simulator
    explorer: _Explorer
    leaves: int
    finished: list[int] = field(default_factory=list)
    moves: list[list[int]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


def _run_search(run: _Run, start: Commit | Restart | Descend) -> Search:
    simulator, tree = run.simulator, run.simulator.tree
    ended_by: EndedBy = "done"
    try:
        yield from _run_commit(run, start) if isinstance(start, Commit) else _run_restart(run, start)
    except Exhausted as exhausted:
        ended_by = exhausted.limit
    notes, finished = {"simulations": len(simulator.ended), **run.notes}, run.finished
    if isinstance(start, Commit):
        notes["moves"] = run.moves
    else:
        finished = [node for node in simulator.ended if tree.terminal[node]]
    result: SearchResult = build_result(tree, simulator.asking, finished, ended_by=ended_by, notes=notes)
    return result


def _run_commit(run: _Run, start: Commit) -> Generator[Request, Response, None]:
    simulator, tree = run.simulator, run.simulator.tree
    for path in range(start.paths):
        if path and start.trees == "intra":
            tree.clear_statistics()
        elif path:
            simulator.restart_tree()
        node = 0
        run.moves.append([])
        while not tree.terminal[node] and tree.depth[node] < simulator.depth:
            yield from run.explorer.enter(simulator, node)
            yield from _simulate_move(run, node, start)
            if not tree.dead[node]:
                node = run.explorer.choose_move(tree, node, start.temperature)
                run.moves[-1].append(node)
            elif node:  # nothing can be done below it: the move is taken back
                node = int(tree.parent[node])
                run.moves[-1].pop()
            else:
                return
        if tree.terminal[node]:
            run.finished.append(node)


def _simulate_move(run: _Run, node: int, start: Commit) -> Generator[Request, Response, None]:
    """Runs the simulations before one move, or fewer where a detector stops them."""
    simulator, tree = run.simulator, run.simulator.tree
    target = len(simulator.ended) + start.simulations
    visits = None if start.stop is None else Visits(start.stop.detector)
    while (missing := target - len(simulator.ended)) > 0 and not tree.dead[node]:
        if visits is not None and visits.should_stop(tree.visits[living_children(tree, node)], missing):
            spared = run.notes.get("spared", 0) + missing
            run.notes |= {"stopped": visits.history[-1].reason, "spared": spared}
            return
        yield from simulator.round([node] * missing, leaves=run.leaves)


def _run_restart(run: _Run, start: Restart | Descend) -> Generator[Request, Response, None]:
    simulator, tree = run.simulator, run.simulator.tree
    max_simulations = start.simulations if isinstance(start, Restart) else None
    vote = None if start.stop is None else Vote(start.stop, start.paths)
    yield from run.explorer.enter(simulator, 0)
    num_counted = 0
    while not tree.dead[0]:
        ended = np.array(simulator.ended, np.int64)
        ends = ended[tree.terminal[ended] | (tree.depth[ended] >= simulator.depth)]
        if vote is not None and len(ends) > num_counted:
            for node in ends[num_counted:].tolist():
                vote.cast(tree.states[node], action=node, readable=bool(tree.terminal[node]))
            num_counted = len(ends)
            vote.should_stop()
        if vote is not None:
            run.notes |= vote.notes()
            if vote.stopped:
                return
        missing = start.paths - len(ends)
        if max_simulations is not None:
            missing = min(missing, max_simulations - len(ended))
        if missing <= 0:
            return
        yield from simulator.round([0] * missing, leaves=run.leaves)


class _Explorer:
    """Chooses the paths of simulations, and the moves."""

    def __init__(self, explore: Explore, rng: np.random.Generator) -> None:
        self.explore, self.rng = explore, rng
        self.noisy: tuple[int, NDArray[np.float64]] = (-1, np.zeros(0))  # a root, and the priors of all its children

    def enter(self, simulator: Simulator, node: int) -> Generator[Request, Response, None]:
        """Makes a node the root of simulations."""
        tree = simulator.tree
        simulator.root = node
        if self.explore.muzero and not tree.visits[node]:
            yield from evaluate_nodes(tree, simulator.asking, [node])
            if np.isfinite(tree.value[node]):
                tree.backup(node, float(tree.value[node]))
        if not tree.is_expanded(node):
            yield from simulator.expand([node])
        if self.explore.noise and tree.width[node]:
            self._add_noise(tree, node)

    def _add_noise(self, tree: Tree, node: int) -> None:
        """Adds noise to the priors of all children of a root."""
        prior = tree.prior[tree.child_ids(node)]
        self.noisy = (node, dirichlet_noise(prior, self.rng, share=self.explore.noise, alpha=self.explore.alpha))

    def __call__(self, simulator: Simulator, node: int) -> int:
        tree = simulator.tree
        children, q, visits, parent_visits = simulator.counts(node)
        prior = tree.prior[children]
        if node == self.noisy[0]:
            if len(self.noisy[1]) != tree.width[node]:  # it was widened
                self._add_noise(tree, node)
            prior = self.noisy[1][~tree.dead[tree.child_ids(node)]]
        if self.explore.muzero:
            parent_value = tree.total[node] / tree.visits[node] if tree.visits[node] else 0.0
            q = normalize_values(q, visits=visits, parent=float(parent_value))
        scores = self.explore.select(q, prior, parent_visits=parent_visits, visits=visits)
        best = int(np.argmax(scores))
        if scores[best] == np.inf:
            best = int(self.rng.choice(np.flatnonzero(scores == np.inf)))
        return int(children[best])

    def choose_move(self, tree: Tree, node: int, temperature: float) -> int:
        """Returns the child to commit to."""
        children = living_children(tree, node)
        visits = tree.visits[children]
        if temperature and visits.any():
            weights = (visits / visits.max()) ** (1.0 / temperature)
            return int(self.rng.choice(children, p=weights / weights.sum()))
        most_visited = children[visits == visits.max()]
        return int(most_visited[np.argmax(tree.means(most_visited))])

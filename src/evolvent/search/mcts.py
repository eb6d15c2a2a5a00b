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
from evolvent.search.budgeted import Asking, Exhausted, check_sizes, value
from evolvent.search.records import Budget, EndedBy, Found, Search, SearchResult, State, Wanted
from evolvent.search.select import Select, between, dirichlet_noise, puct
from evolvent.search.simulate import Simulator, alive, conclude
from evolvent.search.stopping import Stop, Visits, Vote
from evolvent.search.tree import Tree

__all__ = ["Commit", "Descend", "Explore", "Restart", "mcts"]


@dataclass(frozen=True, slots=True)
class Commit:
    """MCTS-alpha: simulate, make the move that was visited most, keep what is below it, and so on to the end.

    Args:
        simulations: before each move.
        temperature: 0: the most visited child, among equals that of higher mean value. T: drawn by `N^(1/T)`.
        paths: how many ends to come to, one tree after another.
        trees: "intra": the next tree keeps the nodes and clears N and S. "inter": it starts anew, with other samples.
        stop: when the visits of the root's children say that fewer simulations are enough, as looked at before each
            round of them. Notes: "stopped", why, and "spared", the simulations that were not run.
    """

    simulations: int = 10
    temperature: float = 0.0
    paths: int = 1
    trees: Literal["intra", "inter"] = "intra"
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """MCTS-rollout: simulations from the root alone, until so many came to an end.

    Args:
        paths: ends to come to; one that is come to again counts again, and so does one that is cut at the depth limit.
        simulations: the most in all; None: as many as it takes.
        stop: when fewer paths are enough by their answers, each a vote, as looked at when new ones have ended. Notes:
            see `Vote.notes`.
    """

    paths: int
    simulations: int | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Descend:
    """OpenR's `vanila_mcts`, TS-LLM's `rap`: each simulation goes on to the end, expanding every leaf on its way.

    Args:
        paths: how many descents; one that meets the depth limit is one of them.
        stop: as that of `Restart`.
    """

    paths: int
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Explore:
    """How a simulation chooses its way.

    Args:
        select: scores the children of a node; among children of infinite score one is drawn, otherwise the first wins.
        noise: the share of Dirichlet noise in the priors of a root; .25 where moves are drawn, 0 for none.
        alpha: of the Dirichlet distribution.
        muzero: values as MuZero's search sees them: between 0 and 1 over siblings and parent, 0 for a child that was
            not visited, and the root's own value is its first visit. Otherwise as they are, a child that was not
            visited by its own value, and the first simulation of all goes to the highest value (`N_parent` is 0).
        widen: progressive widening, for where actions are many (Couetoux et al., "Continuous upper confidence trees",
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
    """Monte Carlo tree search; `start` says where simulations start and when it is over.

    With `leaves=1` simulations run one after another. With k, up to k wait for children at once, all of which are asked
    for together (`search/simulate.py`).

    It decides for the end of highest value, the first among equals. Notes: "simulations", and for `Commit` "moves", the
    nodes moved to, path by path.

    Args:
        width: children of a node. depth: the most actions of a path.
        rng: for noise, drawn moves and rules that score infinitely; unused otherwise.
    Raises:
        ConfigError: names every setting that is out of range. NoLegalAction: nothing can be done at the root.
    """
    explore = explore or Explore()
    simulations = None if isinstance(start, Descend) else start.simulations
    check_sizes(width=width, depth=depth, leaves=leaves, paths=start.paths, simulations=simulations)
    wrong = []
    if isinstance(start, Commit) and not 0 <= start.temperature < np.inf:
        wrong.append(Problem("temperature", f"must be finite and 0 or more, got {start.temperature}"))
    if not 0 <= explore.noise <= 1:
        wrong.append(Problem("noise", f"must be between 0 and 1, got {explore.noise}"))
    if not 0 < explore.alpha < np.inf:
        wrong.append(Problem("alpha", f"must be finite and above 0, got {explore.alpha}"))
    if not 0 <= explore.widen <= 1:
        wrong.append(Problem("widen", f"must be between 0 and 1, got {explore.widen}"))
    if start.stop is not None and isinstance(start, Commit) and start.temperature:
        wrong.append(Problem("stop", "moves are drawn by visits that fewer simulations would change", "temperature 0"))
    if wrong:
        raise ConfigError(wrong)
    way = _Way(explore, rng)
    simulator = Simulator(
        Tree(root),
        Asking(budget),
        way,
        width=width,
        depth=depth,
        lazy=not isinstance(start, Descend),
        widen=explore.widen,
    )
    return _search(_Run(simulator, way, leaves), start)


@dataclass(slots=True)
class _Run:
    """One search at work: its simulator, how it chooses its way, what it came to."""

    simulator: Simulator
    way: _Way
    leaves: int
    finished: list[int] = field(default_factory=list)
    moves: list[list[int]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


def _search(run: _Run, start: Commit | Restart | Descend) -> Search:
    simulator, tree = run.simulator, run.simulator.tree
    ended_by: EndedBy = "done"
    try:
        yield from _commit(run, start) if isinstance(start, Commit) else _restart(run, start)
    except Exhausted as limit:
        ended_by = limit.limit
    notes, finished = {"simulations": len(simulator.ended), **run.notes}, run.finished
    if isinstance(start, Commit):
        notes["moves"] = run.moves
    else:
        finished = [node for node in simulator.ended if tree.terminal[node]]
    result: SearchResult = conclude(tree, simulator.asking, finished, ended_by=ended_by, notes=notes)
    return result


def _commit(run: _Run, start: Commit) -> Generator[Wanted, Found, None]:
    simulator, tree = run.simulator, run.simulator.tree
    for path in range(start.paths):
        if path and start.trees == "intra":
            tree.forget()
        elif path:
            simulator.renew()
        node = 0
        run.moves.append([])
        while not tree.terminal[node] and tree.depth[node] < simulator.depth:
            yield from run.way.enter(simulator, node)
            yield from _think(run, node, start)
            if not tree.dead[node]:
                node = run.way.move(tree, node, start.temperature)
                run.moves[-1].append(node)
            elif node:  # nothing can be done below it: the move is taken back
                node = int(tree.parent[node])
                run.moves[-1].pop()
            else:
                return
        if tree.terminal[node]:
            run.finished.append(node)


def _think(run: _Run, node: int, start: Commit) -> Generator[Wanted, Found, None]:
    """The simulations before one move, or as many of them as are enough."""
    simulator, tree = run.simulator, run.simulator.tree
    target = len(simulator.ended) + start.simulations
    visits = None if start.stop is None else Visits(start.stop.detector)
    while (missing := target - len(simulator.ended)) > 0 and not tree.dead[node]:
        if visits is not None and visits.look(tree.visits[alive(tree, node)], missing):
            spared = run.notes.get("spared", 0) + missing
            run.notes |= {"stopped": visits.history[-1].reason, "spared": spared}
            return
        yield from simulator.round([node] * missing, leaves=run.leaves)


def _restart(run: _Run, start: Restart | Descend) -> Generator[Wanted, Found, None]:
    simulator, tree = run.simulator, run.simulator.tree
    most = start.simulations if isinstance(start, Restart) else None
    vote = None if start.stop is None else Vote(start.stop, start.paths)
    yield from run.way.enter(simulator, 0)
    seen = 0
    while not tree.dead[0]:
        ended = np.array(simulator.ended, np.int64)
        ends = ended[tree.terminal[ended] | (tree.depth[ended] >= simulator.depth)]
        if vote is not None and len(ends) > seen:
            for node in ends[seen:].tolist():
                vote.cast(tree.states[node], done=node, readable=bool(tree.terminal[node]))
            seen = len(ends)
            vote.look()
        if vote is not None:
            run.notes |= vote.notes()
            if vote.stopped:
                return
        missing = start.paths - len(ends)
        if most is not None:
            missing = min(missing, most - len(ended))
        if missing <= 0:
            return
        yield from simulator.round([0] * missing, leaves=run.leaves)


class _Way:
    """Chooses the way of simulations, and the moves."""

    def __init__(self, explore: Explore, rng: np.random.Generator) -> None:
        self.explore, self.rng = explore, rng
        self.noisy: tuple[int, NDArray[np.float64]] = (-1, np.zeros(0))  # a root, and the priors of all its children

    def enter(self, simulator: Simulator, node: int) -> Generator[Wanted, Found, None]:
        """Make a node the root of simulations."""
        tree = simulator.tree
        simulator.root = node
        if self.explore.muzero and not tree.visits[node]:
            yield from value(tree, simulator.asking, [node])
            if np.isfinite(tree.value[node]):
                tree.backup(node, float(tree.value[node]))
        if not tree.expanded(node):
            yield from simulator.grow([node])
        if self.explore.noise and tree.width[node]:
            self._stir(tree, node)

    def _stir(self, tree: Tree, node: int) -> None:
        """Noise on the priors of all children of a root."""
        prior = tree.prior[tree.below(node)]
        self.noisy = (node, dirichlet_noise(prior, self.rng, share=self.explore.noise, alpha=self.explore.alpha))

    def __call__(self, simulator: Simulator, node: int) -> int:
        tree = simulator.tree
        at, q, visits, parent_visits = simulator.counts(node)
        prior = tree.prior[at]
        if node == self.noisy[0]:
            if len(self.noisy[1]) != tree.width[node]:  # it was widened
                self._stir(tree, node)
            prior = self.noisy[1][~tree.dead[tree.below(node)]]
        if self.explore.muzero:
            own = tree.total[node] / tree.visits[node] if tree.visits[node] else 0.0
            q = between(q, visits=visits, parent=float(own))
        scores = self.explore.select(q, prior, parent_visits=parent_visits, visits=visits)
        best = int(np.argmax(scores))
        if scores[best] == np.inf:
            best = int(self.rng.choice(np.flatnonzero(scores == np.inf)))
        return int(at[best])

    def move(self, tree: Tree, node: int, temperature: float) -> int:
        """The child to commit to."""
        at = alive(tree, node)
        visits = tree.visits[at]
        if temperature and visits.any():
            weights = (visits / visits.max()) ** (1.0 / temperature)
            return int(self.rng.choice(at, p=weights / weights.sum()))
        most = at[visits == visits.max()]
        return int(most[np.argmax(tree.means(most))])

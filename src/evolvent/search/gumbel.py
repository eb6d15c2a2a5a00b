"""Tree search by Gumbel noise and sequential halving, move after move to the end of the episode.

Source: Danihelka, Guez, Schrittwieser, Silver, "Policy improvement by planning with Gumbel", ICLR 2022; for
whole solutions of language models ReSCALE (arXiv 2603.21162). Numbers of mctx (`gumbel_muzero_policy`) are met
exactly under the same noise, with `GumbelConfig(survivors="visit")`: see `tests/search/make_mctx.py`.

Requests are batched by rounds: a round is one visit to each of k actions of the root. Their subtrees have no
node in common, and below the root a simulation reads only its own subtree. So the order in which a round's
simulations run changes none of their results, and all of them may wait at once. The order matters only where a
round has to choose which of more than k actions survive, since each visit changes the scale of the scores. The
paper chooses the survivors of a phase all at once, and so does `survivors="phase"`; mctx chooses again after
every visit, which is one simulation after another in the first round of a phase.

The first visit to an action costs nothing here, because the children of a node come together with their values;
mctx requests one of them at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes, evaluate_nodes
from evolvent.search.records import Budget, EndedBy, Request, Response, Search, State
from evolvent.search.select import (
    Schedule,
    complete_values,
    gumbel_scores,
    halving_schedule,
    improved_policy,
    interior_scores,
    rescale_values,
    sigma,
)
from evolvent.search.simulate import Simulator, build_result, living_children
from evolvent.search.tree import Tree

__all__ = ["GumbelConfig", "gumbel_mcts"]

Floats = NDArray[np.float64]
Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GumbelConfig:
    """Settings of the search; the defaults are those of mctx, but for `survivors`.

    Args:
        c_visit, c_scale, rescale: of `sigma`; ReSCALE takes 50, 1 and False.
        schedule: how simulations are dealt out (`halving_schedule`).
        survivors: chosen at the beginning of a "phase", or again after every "visit", as mctx does.
        scale: of the noise; 0: none.
        moves: how many are made; None: until the end.
    """

    c_visit: float = 50.0
    c_scale: float = 0.1
    rescale: bool = True
    schedule: Schedule = "mctx"
    survivors: Literal["phase", "visit"] = "phase"
    scale: float = 1.0
    moves: int | None = None


def gumbel_mcts(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    simulations: int,
    considered: int,
    settings: GumbelConfig | None = None,
) -> Search:
    """Chooses a move by sequential halving, makes it, keeps its subtree, and so on to the end of the episode.

    A kept subtree keeps its visits; halving counts those of the present move only. The budget is that of all moves.
    Notes: "simulations", "moves", the nodes moved to, and "policies", the improved policy over the children at
    each.

    Args:
        width: children of a node. depth: the maximum number of actions of a path.
        simulations: before each move. considered: actions of the root that are simulated at first.
        rng: `rng.gumbel(size=A)` is drawn once per move, for the A children of its root in their order.
    Raises:
        ConfigError: names every setting that is out of range. NoLegalAction: the root has no usable action.
    """
    settings = settings or GumbelConfig()
    check_sizes(width=width, depth=depth, simulations=simulations, considered=considered, moves=settings.moves)
    numbers = {name: getattr(settings, name) for name in ("c_visit", "c_scale", "scale")}
    problems = [
        Problem(name, f"got {number}, expected finite and 0 or more")
        for name, number in numbers.items()
        if not 0 <= number < np.inf
    ]
    if considered > simulations:
        problems.append(Problem("considered", f"must not be above simulations ({simulations}), got {considered}"))
    if problems:
        raise ConfigError(problems)
    simulator = Simulator(Tree(root), BudgetTracker(budget), _InteriorChoice(settings), width=width, depth=depth)
    return _run_search(simulator, rng, settings, (considered, simulations))


def _run_search(
    simulator: Simulator, rng: np.random.Generator, settings: GumbelConfig, sizes: tuple[int, int]
) -> Search:
    tree, tracker = simulator.tree, simulator.asking
    ended_by: EndedBy = "done"
    moves: list[int] = []
    policies: list[list[float]] = []
    node = 0
    try:
        while not tree.terminal[node] and tree.depth[node] < simulator.depth and len(moves) != settings.moves:
            simulator.root = node
            if not tree.is_expanded(node):
                yield from evaluate_nodes(tree, tracker, [node])
                yield from simulator.expand([node])
            halving = _SequentialHalving(tree, node, settings, settings.scale * rng.gumbel(size=int(tree.width[node])))
            if not tree.dead[node]:
                yield from halving.run(simulator, *sizes)
            if not tree.dead[node]:
                policies.append(halving.policy())
                node = halving.best()
                moves.append(node)
            elif node:  # nothing can be done below it: the move is taken back
                node = int(tree.parent[node])
                moves.pop()
                policies.pop()
            else:
                break
    except Exhausted as stop:
        ended_by = stop.limit
    notes: dict[str, Any] = {"simulations": len(simulator.ended), "moves": moves, "policies": policies}
    finished = [node] if tree.terminal[node] else []
    return build_result(tree, tracker, finished, ended_by=ended_by, notes=notes)


class _SequentialHalving:
    """One move: sequential halving decides which actions of a root are simulated, and which is made."""

    def __init__(self, tree: Tree, root: int, settings: GumbelConfig, noise: Floats) -> None:
        self.tree, self.root, self.settings, self.noise = tree, root, settings, noise
        self.before = tree.visits[tree.children(root)].copy()  # a kept subtree has visits already

    def run(self, simulator: Simulator, considered: int, simulations: int) -> Generator[Request, Response, None]:
        """Runs the simulations, a round at once where its actions are settled."""
        tree = self.tree
        considered = min(considered, len(living_children(tree, self.root)))
        for visit_count, run in groupby(halving_schedule(considered, simulations, self.settings.schedule)):
            missing = len(list(run))
            while missing and not tree.dead[self.root]:
                group = self._ranked_by_visits(visit_count)
                all_unvisited = not tree.visits[
                    group
                ].any()  # all of one value: visits elsewhere cannot change their order
                settled = self.settings.survivors == "phase" or len(group) <= missing or all_unvisited
                batch = group[: missing if settled else 1].tolist()
                yield from simulator.round(batch, leaves=len(batch))
                missing = 0 if settled else missing - 1

    def best(self) -> int:
        """Returns the move: among the most simulated actions, the one with the highest score."""
        return int(self._ranked_by_visits(int(self._new_visits(living_children(self.tree, self.root)).max()))[0])

    def policy(self) -> list[float]:
        """Returns the improved policy over the children of the root; 0 for dead children."""
        tree, children = self.tree, living_children(self.tree, self.root)
        policy = np.zeros(int(tree.width[self.root]))
        transformed_values = _transformed_values(tree, self.root, children, self.settings)
        policy[children - tree.first[self.root]] = improved_policy(tree.prior[children], transformed_values)
        return [float(share) for share in policy]

    def _ranked_by_visits(self, visit_count: int) -> Nodes:
        """Returns the children with so many visits in this move, best score first; fewer visits where only those are
        alive.
        """
        tree, children = self.tree, living_children(self.tree, self.root)
        extra = self._new_visits(children)
        noise = self.noise[children - tree.first[self.root]]
        scores = gumbel_scores(
            tree.prior[children], _transformed_values(tree, self.root, children, self.settings), noise=noise
        )
        order = np.argsort(-scores, kind="stable")
        ranked: Nodes = children[order[extra[order] == min(visit_count, int(extra.max()))]]
        return ranked

    def _new_visits(self, children: Nodes) -> Nodes:
        extra: Nodes = self.tree.visits[children] - self.before[children - self.tree.first[self.root]]
        return extra


@dataclass(frozen=True, slots=True)
class _InteriorChoice:
    """The deterministic choice below the root."""

    settings: GumbelConfig

    def __call__(self, simulator: Simulator, node: int) -> int:
        tree = simulator.tree
        children = living_children(tree, node)
        transformed_values = _transformed_values(tree, node, children, self.settings)
        return int(
            children[np.argmax(interior_scores(tree.prior[children], transformed_values, visits=tree.visits[children]))]
        )


def _transformed_values(tree: Tree, node: int, children: Nodes, settings: GumbelConfig) -> Floats:
    """Computes sigma of the completed values of children of a node, `[A]`."""
    visits, prior, raw = tree.visits[children], tree.prior[children], float(tree.value[node])
    if np.isnan(raw):  # of a root that could not be valued: what its children are worth, by their priors
        raw = float(prior @ tree.value[children] / max(float(prior.sum()), np.finfo(np.float64).tiny))
    q = complete_values(tree.means(children), prior, visits=visits, raw=raw)
    scaled = rescale_values(q) if settings.rescale else q
    return sigma(scaled, visits=visits, c_visit=settings.c_visit, c_scale=settings.c_scale)

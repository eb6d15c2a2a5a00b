"""Tree search by Gumbel noise and sequential halving, move after move to the end of the episode.

Source: Danihelka, Guez, Schrittwieser, Silver, "Policy improvement by planning with Gumbel", ICLR 2022; for whole
solutions of language models ReSCALE (arXiv 2603.21162). Numbers of mctx (`gumbel_muzero_policy`) are met exactly under
the same noise, with `Gumbel(survivors="visit")`: see `tests/search/make_mctx.py`.

What is asked for together: a round is one visit to each of k actions of the root. Their subtrees have no node in
common, and below the root a simulation looks at nothing but the subtree that it is in. So the order in which a round's
simulations run changes nothing of what they find, and all of them may wait at once. The order matters only where a
round has to choose which of more than k actions survive, since each visit changes the scale of the scores. The paper
chooses the survivors of a phase all at once, and so does `survivors="phase"`; mctx chooses again after every visit,
which is one simulation after another in the first round of a phase.

The first visit to an action costs nothing here, because the children of a node come together with their values; mctx
asks for one of them at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.search.budgeted import Asking, Exhausted, check_sizes, value
from evolvent.search.records import Budget, EndedBy, Found, Search, State, Wanted
from evolvent.search.select import (
    Schedule,
    completed,
    gumbel_scores,
    halving_schedule,
    improved_policy,
    interior_scores,
    rescaled,
    sigma,
)
from evolvent.search.simulate import Simulator, alive, conclude
from evolvent.search.tree import Tree

__all__ = ["Gumbel", "gumbel_mcts"]

Floats = NDArray[np.float64]
Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gumbel:
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
    settings: Gumbel | None = None,
) -> Search:
    """Choose a move by sequential halving, make it, keep what is below it, and so on to the end of the episode.

    A kept subtree keeps its visits; halving counts those of the present move only. The budget is that of all moves.
    Notes: "simulations", "moves", the nodes moved to, and "policies", the improved policy over the children at each.

    Args:
        width: children of a node. depth: the most actions of a path.
        simulations: before each move. considered: actions of the root that are simulated at first.
        rng: `rng.gumbel(size=A)` is drawn once a move, for the A children of its root in their order.
    Raises:
        ConfigError: names every setting that is out of range. NoLegalAction: nothing can be done at the root.
    """
    settings = settings or Gumbel()
    check_sizes(width=width, depth=depth, simulations=simulations, considered=considered, moves=settings.moves)
    numbers = {name: getattr(settings, name) for name in ("c_visit", "c_scale", "scale")}
    wrong = [
        Problem(name, f"must be finite and 0 or more, got {number}")
        for name, number in numbers.items()
        if not 0 <= number < np.inf
    ]
    if considered > simulations:
        wrong.append(Problem("considered", f"must not be above simulations ({simulations}), got {considered}"))
    if wrong:
        raise ConfigError(wrong)
    simulator = Simulator(Tree(root), Asking(budget), _Below(settings), width=width, depth=depth)
    return _search(simulator, rng, settings, (considered, simulations))


def _search(simulator: Simulator, rng: np.random.Generator, settings: Gumbel, sizes: tuple[int, int]) -> Search:
    tree, asking = simulator.tree, simulator.asking
    ended_by: EndedBy = "done"
    moves: list[int] = []
    policies: list[list[float]] = []
    node = 0
    try:
        while not tree.terminal[node] and tree.depth[node] < simulator.depth and len(moves) != settings.moves:
            simulator.root = node
            if not tree.expanded(node):
                yield from value(tree, asking, [node])
                yield from simulator.grow([node])
            halving = _Halving(tree, node, settings, settings.scale * rng.gumbel(size=int(tree.width[node])))
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
    return conclude(tree, asking, finished, ended_by=ended_by, notes=notes)


class _Halving:
    """One move: which actions of a root are simulated, and which is made."""

    def __init__(self, tree: Tree, root: int, settings: Gumbel, noise: Floats) -> None:
        self.tree, self.root, self.settings, self.noise = tree, root, settings, noise
        self.before = tree.visits[tree.children(root)].copy()  # a kept subtree has visits already

    def run(self, simulator: Simulator, considered: int, simulations: int) -> Generator[Wanted, Found, None]:
        """Spend the simulations, a round at once where its actions are settled."""
        tree = self.tree
        considered = min(considered, len(alive(tree, self.root)))
        for seen, run in groupby(halving_schedule(considered, simulations, self.settings.schedule)):
            missing = len(list(run))
            while missing and not tree.dead[self.root]:
                group = self._visited(seen)
                unseen = not tree.visits[group].any()  # all of one value: visits elsewhere cannot change their order
                settled = self.settings.survivors == "phase" or len(group) <= missing or unseen
                chosen = group[: missing if settled else 1].tolist()
                yield from simulator.round(chosen, leaves=len(chosen))
                missing = 0 if settled else missing - 1

    def best(self) -> int:
        """The move: of the actions that were simulated most, that of the highest score."""
        return int(self._visited(int(self._extra(alive(self.tree, self.root)).max()))[0])

    def policy(self) -> list[float]:
        """The improved policy over the children of the root; 0 for one that cannot be gone to."""
        tree, at = self.tree, alive(self.tree, self.root)
        policy = np.zeros(int(tree.width[self.root]))
        worth = _worth(tree, self.root, at, self.settings)
        policy[at - tree.first[self.root]] = improved_policy(tree.prior[at], worth)
        return [float(share) for share in policy]

    def _visited(self, seen: int) -> Nodes:
        """Children that this move has visited so often, best score first; less often, where all that were are dead."""
        tree, at = self.tree, alive(self.tree, self.root)
        extra = self._extra(at)
        noise = self.noise[at - tree.first[self.root]]
        scores = gumbel_scores(tree.prior[at], _worth(tree, self.root, at, self.settings), noise=noise)
        order = np.argsort(-scores, kind="stable")
        chosen: Nodes = at[order[extra[order] == min(seen, int(extra.max()))]]
        return chosen

    def _extra(self, at: Nodes) -> Nodes:
        extra: Nodes = self.tree.visits[at] - self.before[at - self.tree.first[self.root]]
        return extra


@dataclass(frozen=True, slots=True)
class _Below:
    """The deterministic choice below the root."""

    settings: Gumbel

    def __call__(self, simulator: Simulator, node: int) -> int:
        tree = simulator.tree
        at = alive(tree, node)
        worth = _worth(tree, node, at, self.settings)
        return int(at[np.argmax(interior_scores(tree.prior[at], worth, visits=tree.visits[at]))])


def _worth(tree: Tree, node: int, at: Nodes, settings: Gumbel) -> Floats:
    """sigma of the completed values of children of a node, `[A]`."""
    visits, prior, raw = tree.visits[at], tree.prior[at], float(tree.value[node])
    if np.isnan(raw):  # of a root that could not be valued: what its children are worth, by their priors
        raw = float(prior @ tree.value[at] / max(float(prior.sum()), np.finfo(np.float64).tiny))
    q = completed(tree.means(at), prior, visits=visits, raw=raw)
    scaled = rescaled(q) if settings.rescale else q
    return sigma(scaled, visits=visits, c_visit=settings.c_visit, c_scale=settings.c_scale)

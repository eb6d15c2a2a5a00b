"""Planning by a beam in a model of the world: the beam is `search.beam`, the model is whatever continues a prefix."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.search.beam import beam
from evolvent.search.records import Budget, Child, Found, Search, SearchResult, Spent, Wanted
from evolvent.trajectory import sample_rng

__all__ = ["Imagine", "Imagined", "Plan", "beam_plan"]


@dataclass(frozen=True, slots=True, eq=False)
class Imagined:
    """N prefixes, one step further.

    Args:
        tokens: `[N, L]` int64, what the model reads next time. action: `[N, C]` int64, what was done; the rest
            is a function of the prefix and of it.
        reward, after: `[N]`, what it paid, and what is earned after it, discounted. end: `[N]` bool.
    """

    tokens: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    after: NDArray[np.float64]
    end: NDArray[np.bool_]


Imagine = Callable[[NDArray[np.int64], NDArray[np.float64]], Imagined]
"""Prefixes `[N, L]` and numbers in 0..1 `[N, C]` to draw actions with, in; one step further out."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A prefix, what was earned on the way, how many steps it is from now, and its first action's tokens."""

    tokens: NDArray[np.int64]
    earned: float = 0.0
    steps: int = 0
    first: tuple[int, ...] = ()


def beam_plan(
    imagine: Imagine,
    prefix: NDArray[np.int64],
    *,
    columns: int,
    width: int,
    keep: int,
    horizon: int,
    gamma: float,
    seed: int,
) -> Plan:
    """The best plan that a beam finds (Trajectory Transformer, arXiv 2106.02039, algorithm 1).

    A plan is worth what it earns and, discounted, what the model says is earned after it; one that ends, what it earns.

    Args:
        prefix: `[L]`, what was seen and done so far. columns: C, numbers to draw an action with.
        width: continuations of a plan. keep: plans that are kept. horizon: steps. seed: of the draws.
    Raises:
        ConfigError: a size below 1.
    """

    def answer(wanted: Wanted) -> Found:
        plans: list[Plan] = [wish.state for wish in wanted.expand for _ in range(wish.width)]
        if not plans:
            return Found([], [float("nan")] * len(wanted.evaluate), Spent())
        step = plans[0].steps
        draws = sample_rng("plan", seed, step).random((len(plans), columns))
        found = imagine(np.stack([plan.tokens for plan in plans]), draws)
        children: list[list[Child]] = []
        row = 0
        for wish in wanted.expand:
            made: dict[tuple[int, ...], Child] = {}
            for at in range(row, row + wish.width):
                made.setdefault(tuple(found.action[at].tolist()), _child(plans[at], found, at))
            row += wish.width
            children.append(list(made.values()))
        return Found(children, [], Spent())

    def _child(plan: Plan, found: Imagined, at: int) -> Child:
        earned = plan.earned + gamma**plan.steps * float(found.reward[at])
        over = bool(found.end[at])
        action = tuple(found.action[at].tolist())
        after = Plan(found.tokens[at], earned, plan.steps + 1, plan.first or action)
        value = earned if over else earned + gamma**after.steps * float(found.after[at])
        return Child(after, action=" ".join(map(str, action)), value=value, terminal=over or after.steps == horizon)

    found = _run(beam(Plan(prefix), Budget(), sample_rng("beam", seed), width=width, keep=keep, depth=horizon), answer)
    best: Plan = found.tree.states[0 if found.chosen is None else found.chosen]
    return best


def _run(search: Search, answer: Callable[[Wanted], Found]) -> SearchResult:
    """All wishes of a level in one answer, so that a model sees one batch."""
    with closing(search):
        try:
            wanted = next(search)
            while True:
                wanted = search.send(answer(wanted))
        except StopIteration as stop:
            result: SearchResult = stop.value
            return result

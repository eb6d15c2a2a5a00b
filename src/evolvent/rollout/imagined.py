"""Beam planning in a model of the world: the beam is `search.beam`, the model is a function that continues prefixes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.search.beam import beam
from evolvent.search.records import Budget, Child, Request, Response, Search, SearchResult, Spent
from evolvent.trajectory import sample_rng

__all__ = ["Imagine", "ImaginedSteps", "Plan", "plan_by_beam"]


@dataclass(frozen=True, slots=True, eq=False)
class ImaginedSteps:
    """N prefixes after one further step.

    Args:
        tokens: `[N, L]` int64. Next input of the model.
        action: `[N, C]` int64. Tokens of the action; the others are a function of the prefix and of it.
        reward: `[N]`. Reward of the step.
        future_return: `[N]`. Discounted rewards after it.
        is_end: `[N]` bool. Whether the episode ends.
    """

    tokens: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    future_return: NDArray[np.float64]
    is_end: NDArray[np.bool_]


Imagine = Callable[[NDArray[np.int64], NDArray[np.float64]], ImaginedSteps]
"""Prefixes `[N, L]` and numbers in 0..1 `[N, C]` to draw actions with, in; one step further out."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A prefix, the rewards since now, the number of its steps, and its first action's tokens."""

    tokens: NDArray[np.int64]
    earned: float = 0.0
    steps: int = 0
    first: tuple[int, ...] = ()


def plan_by_beam(
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
    """Finds the best plan by beam search (Trajectory Transformer, arXiv 2106.02039, algorithm 1).

    The value of a plan is its rewards plus the model's discounted estimate of later ones; of a finished plan only
    its rewards.

    Args:
        imagine: Continues prefixes by one step.
        prefix: `[L]`. Observations and actions so far.
        columns: C, random numbers per action.
        width: Continuations of a plan.
        keep: Plans kept at each level.
        horizon: Maximum steps.
        gamma: Discount.
        seed: Seed of the draws.
    Raises:
        ConfigError: a size below 1.
    """

    def answer(request: Request) -> Response:
        plans: list[Plan] = [expansion.state for expansion in request.expand for _ in range(expansion.width)]
        if not plans:
            return Response([], [float("nan")] * len(request.evaluate), Spent())
        step = plans[0].steps
        draws = sample_rng("plan", seed, step).random((len(plans), columns))
        imagined = imagine(np.stack([plan.tokens for plan in plans]), draws)
        children: list[list[Child]] = []
        row = 0
        for expansion in request.expand:
            children_by_action: dict[tuple[int, ...], Child] = {}
            for row_index in range(row, row + expansion.width):
                children_by_action.setdefault(
                    tuple(imagined.action[row_index].tolist()), make_child(plans[row_index], imagined, row_index)
                )
            row += expansion.width
            children.append(list(children_by_action.values()))
        return Response(children, [], Spent())

    def make_child(plan: Plan, imagined: ImaginedSteps, row_index: int) -> Child:
        """Builds the child of a plan from a row of imagined steps."""
        earned = plan.earned + gamma**plan.steps * float(imagined.reward[row_index])
        is_over = bool(imagined.is_end[row_index])
        action = tuple(imagined.action[row_index].tolist())
        next_plan = Plan(imagined.tokens[row_index], earned, plan.steps + 1, plan.first or action)
        value = earned if is_over else earned + gamma**next_plan.steps * float(imagined.future_return[row_index])
        return Child(
            next_plan, action=" ".join(map(str, action)), value=value, terminal=is_over or next_plan.steps == horizon
        )

    result = _run_search(
        beam(Plan(prefix), Budget(), sample_rng("beam", seed), width=width, keep=keep, depth=horizon), answer
    )
    best: Plan = result.tree.states[0 if result.best_node is None else result.best_node]
    return best


def _run_search(search: Search, answer: Callable[[Request], Response]) -> SearchResult:
    """Runs a search whose requests of one level are answered together, so that the model sees one batch."""
    with closing(search):
        try:
            request = next(search)
            while True:
                request = search.send(answer(request))
        except StopIteration as stop:
            result: SearchResult = stop.value
            return result

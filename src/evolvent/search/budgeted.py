"""Requests within a search's budget; a search with an exhausted budget returns its results so far."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from evolvent.engine.asks import Job
from evolvent.errors import ConfigError, EngineError, Problem
from evolvent.search.meter import OverBudget
from evolvent.search.records import Budget, EndedBy, ExpandRequest, Request, Response, Spent, State
from evolvent.search.tree import Tree

__all__ = ["BudgetTracker", "Exhausted", "check_sizes", "evaluate_nodes", "expand_nodes", "request_in_parts"]


S = TypeVar("S")


def request_in_parts(
    states: Sequence[S],
    submit: Callable[[Sequence[S]], Job[str]],
    *,
    problems: MutableMapping[S, str],
    is_due: Callable[[S], bool],
) -> Job[EndedBy | None]:
    """Asks for all states together; after a failure, each alone; where the budget is short, half of them.

    Args:
        submit: requests some states and stores their answers; returns the reason of a failure, or "".
        problems: where the reason of a state that fails even alone is stored.
        is_due: whether a state is still neither known nor failed.
    Returns:
        the limit that even a single state did not fit; None: no state is due any more.
    """
    pending, size = list(states), len(states)
    while pending:
        batch = pending[:size]
        try:
            problem = yield from submit(batch)
            for state in batch if problem else ():
                reason = problem if len(batch) == 1 else (yield from submit([state]))
                if reason:
                    problems[state] = reason
        except OverBudget as over_budget:
            if size == 1:
                return over_budget.limit
            size //= 2
        pending = [state for state in pending if is_due(state)]
    return None


Steps = Generator[Request, Response, None]


class Exhausted(Exception):
    """Raised when a limit of the budget is reached. It never leaves a search, which returns its results so far."""

    def __init__(self, limit: EndedBy) -> None:
        super().__init__(limit)
        self.limit = limit


class BudgetTracker:
    """The budget of one search, and the amount spent so far."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.spent = budget, Spent()

    def request(
        self, expand: Sequence[ExpandRequest] = (), evaluate: Sequence[State] = ()
    ) -> Generator[Request, Response, Response]:
        """Asks for as much as the budget allows; requests that do not fit are answered by None.

        An exhausted budget of expansions does not prevent states from being valued.

        Raises:
            Exhausted: nothing of it fits.
            EngineError: an answer that does not match the request.
        """
        budget = self.budget if expand else replace(self.budget, expansions=None)
        reached = budget.over(self.spent)
        if reached is not None:
            raise Exhausted(reached)
        left, allowed = budget.left(self.spent), list(expand)
        if left.expansions is not None:
            allowed = allowed[: left.expansions]
        response = yield Request(allowed, evaluate, left)
        if len(response.children) != len(allowed) or len(response.values) != len(evaluate):
            raise EngineError(
                "the search received a wrong number of children or values",
                value=(len(response.children), len(response.values)),
                expected=(len(allowed), len(evaluate)),
            )
        if response.short is None and (None in response.children or None in response.values):
            raise EngineError(
                "the search received no reason for the missing answer",
                value=response.short,
                expected="the name of the exceeded budget limit",
            )
        self.spent += response.used
        short = response.short or ("expansions" if len(allowed) < len(expand) else None)
        return replace(response, children=[*response.children, *[None] * (len(expand) - len(allowed))], short=short)


def expand_nodes(
    tree: Tree,
    tracker: BudgetTracker,
    nodes: Sequence[int],
    *,
    width: int,
    to_end: bool = False,
    greedy: bool = False,
    valued: bool = True,
    first: int = 0,
) -> Generator[Request, Response, list[range]]:
    """Expands nodes that were not expanded, all at once; returns the numbers of their children by node.

    Children that the budget still allows are added before the search ends. The other arguments are those of
    `ExpandRequest`.

    Raises:
        Exhausted: not all nodes could be expanded. NoLegalAction: the root has no child.
    """
    expansions = [ExpandRequest(tree.states[node], width, to_end, greedy, valued, first=first) for node in nodes]
    response = yield from tracker.request(expansions)
    grown = [
        tree.add_children(node, children)
        for node, children in zip(nodes, response.children, strict=True)
        if children is not None
    ]
    if 0 in nodes:
        tree.check_root()
    if response.short is not None:
        raise Exhausted(response.short)
    return grown


def evaluate_nodes(tree: Tree, tracker: BudgetTracker, nodes: Sequence[int]) -> Steps:
    """Evaluates nodes without a value; nodes whose value is not finite are dropped, except the root.

    Raises:
        Exhausted: not all nodes could be valued. NoLegalAction: no child of the root is left.
    """
    unvalued = [node for node in dict.fromkeys(nodes) if np.isnan(tree.value[node]) and not tree.dead[node]]
    if not unvalued:
        return
    response = yield from tracker.request(evaluate=[tree.states[node] for node in unvalued])
    for node, node_value in zip(unvalued, response.values, strict=True):
        if node_value is not None and np.isfinite(node_value):
            tree.value[node] = node_value
        elif node_value is not None and node:
            tree.drop(node, f"its value is {node_value}")
    if any(tree.parent[node] == 0 for node in unvalued):
        tree.check_root()
    if response.short is not None:
        raise Exhausted(response.short)


def check_sizes(**sizes: int | None) -> None:
    """Refuses counts below 1, all at once; None is ignored.

    Raises:
        ConfigError: names each of them.
    """
    invalid = [(name, size) for name, size in sizes.items() if size is not None and size < 1]
    if invalid:
        raise ConfigError([Problem(name, f"got {size}, expected 1 or more") for name, size in invalid])

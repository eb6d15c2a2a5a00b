"""How a search asks: within its budget, and with what it has so far when the budget is used up."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, EngineError, Problem
from evolvent.search.meter import OverBudget
from evolvent.search.records import Budget, EndedBy, Expand, Found, Spent, State, Wanted
from evolvent.search.tree import Tree

__all__ = ["Asking", "Exhausted", "check_sizes", "expand", "partwise", "value"]


S = TypeVar("S")


def partwise(
    states: Sequence[S],
    tell: Callable[[Sequence[S]], Work[str]],
    *,
    problems: MutableMapping[S, str],
    is_due: Callable[[S], bool],
) -> Work[EndedBy | None]:
    """Ask for all states together; where that fails, for each alone; where the budget is short, for half of them.

    Args:
        tell: asks for some states and keeps what it is told; returns why that failed, empty: it did not.
        problems: where the reason of a state that fails even alone is kept.
        is_due: whether a state is still neither known nor failed.
    Returns:
        the limit that even a single state did not fit; None: none is due any more.
    """
    due, size = list(states), len(states)
    while due:
        part = due[:size]
        try:
            problem = yield from tell(part)
            for state in part if problem else ():
                why = problem if len(part) == 1 else (yield from tell([state]))
                if why:
                    problems[state] = why
        except OverBudget as over:
            if size == 1:
                return over.limit
            size //= 2
        due = [state for state in due if is_due(state)]
    return None


Steps = Generator[Wanted, Found, None]


class Exhausted(Exception):
    """A limit of the budget is reached. It never leaves a search, which returns what it has."""

    def __init__(self, limit: EndedBy) -> None:
        super().__init__(limit)
        self.limit = limit


class Asking:
    """The budget of one search, and what was spent of it."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.spent = budget, Spent()

    def ask(self, expand: Sequence[Expand] = (), evaluate: Sequence[State] = ()) -> Generator[Wanted, Found, Found]:
        """Ask for as much as the budget allows; what does not fit is answered by None.

        Expansions that are used up do not keep states from being valued.

        Raises:
            Exhausted: nothing of it fits.
            EngineError: an answer that does not fit what was asked.
        """
        budget = self.budget if expand else replace(self.budget, expansions=None)
        reached = budget.over(self.spent)
        if reached is not None:
            raise Exhausted(reached)
        left, begun = budget.left(self.spent), list(expand)
        if left.expansions is not None:
            begun = begun[: left.expansions]
        found = yield Wanted(begun, evaluate, left)
        if len(found.children) != len(begun) or len(found.values) != len(evaluate):
            raise EngineError(
                "a search was not told what it asked",
                value=(len(found.children), len(found.values)),
                expected=(len(begun), len(evaluate)),
            )
        if found.short is None and (None in found.children or None in found.values):
            raise EngineError(
                "a search was not told why it was not answered",
                value=found.short,
                expected="the limit of the budget that a wish did not fit",
            )
        self.spent += found.used
        short = found.short or ("expansions" if len(begun) < len(expand) else None)
        return replace(found, children=[*found.children, *[None] * (len(expand) - len(begun))], short=short)


def expand(
    tree: Tree,
    asking: Asking,
    nodes: Sequence[int],
    *,
    width: int,
    whole: bool = False,
    greedy: bool = False,
    valued: bool = True,
    first: int = 0,
) -> Generator[Wanted, Found, list[range]]:
    """Add the children of nodes that were not expanded, all at once; returns their numbers by node.

    What the budget still allows is added before the search ends. The other arguments are those of `Expand`.

    Raises:
        Exhausted: not all nodes could be expanded. NoLegalAction: the root has no child.
    """
    wishes = [Expand(tree.states[node], width, whole, greedy, valued, first=first) for node in nodes]
    found = yield from asking.ask(wishes)
    grown = [
        tree.grow(node, children) for node, children in zip(nodes, found.children, strict=True) if children is not None
    ]
    if 0 in nodes:
        tree.check_root()
    if found.short is not None:
        raise Exhausted(found.short)
    return grown


def value(tree: Tree, asking: Asking, nodes: Sequence[int]) -> Steps:
    """Have nodes valued that no value was told of; those whose value is not finite are dropped, but not the root.

    Raises:
        Exhausted: not all nodes could be valued. NoLegalAction: no child of the root is left.
    """
    todo = [node for node in dict.fromkeys(nodes) if np.isnan(tree.value[node]) and not tree.dead[node]]
    if not todo:
        return
    found = yield from asking.ask(evaluate=[tree.states[node] for node in todo])
    for node, told in zip(todo, found.values, strict=True):
        if told is not None and np.isfinite(told):
            tree.value[node] = told
        elif told is not None and node:
            tree.drop(node, f"its value is {told}")
    if any(tree.parent[node] == 0 for node in todo):
        tree.check_root()
    if found.short is not None:
        raise Exhausted(found.short)


def check_sizes(**sizes: int | None) -> None:
    """Refuse settings that count something and are below 1, all at once; None is not looked at.

    Raises:
        ConfigError: names each of them.
    """
    wrong = [(name, size) for name, size in sizes.items() if size is not None and size < 1]
    if wrong:
        raise ConfigError([Problem(name, f"must be 1 or more, got {size}") for name, size in wrong])

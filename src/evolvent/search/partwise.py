"""Asking for many states at once where one of them may fail, and where a budget may not hold them all."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TypeVar

from evolvent.engine.asks import Work
from evolvent.search.meter import OverBudget
from evolvent.search.records import EndedBy

__all__ = ["partwise"]

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

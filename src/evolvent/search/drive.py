"""Driving a search: by functions, in a plain loop; by a work that answers its wishes, under the driver of asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from evolvent.engine.asks import Work
from evolvent.search.records import Child, EndedBy, Expand, Found, Spent, State, Wanted

__all__ = ["answered", "fitting", "over_functions"]

T = TypeVar("T")


def over_functions(
    search: Generator[Wanted, Found, T],
    expand: Callable[[Expand], Sequence[Child]],
    evaluate: Callable[[State], float] | None = None,
    *,
    cost: Callable[[Expand], Spent] | None = None,
) -> T:
    """Run a search over functions. For problems that can be computed, and for tests.

    Args:
        search: a `Search`, or what asks as one does (`search/forest.py`).
        expand: the children of a wish; none where the state has no action. evaluate: the value of a state; None: NaN.
        cost: the most tokens that a wish can cost; None: none. What children say they `generated` is charged.
    """
    began = time.monotonic()
    with closing(search):
        try:
            wanted = next(search)
            while True:
                begun, short = fitting(
                    wanted,
                    [Spent()] * len(wanted.evaluate),
                    [Spent() if cost is None else cost(wish) for wish in wanted.expand],
                )
                values = [
                    None if at >= begun[0] else float("nan") if evaluate is None else float(evaluate(state))
                    for at, state in enumerate(wanted.evaluate)
                ]
                children = [expand(wish) if at < begun[1] else None for at, wish in enumerate(wanted.expand)]
                tokens = sum(child.generated for made in children for child in made or ())
                now = time.monotonic()
                wanted = search.send(Found(children, values, Spent(tokens, seconds=now - began), short))
                began = now
        except StopIteration as stop:
            result: T = stop.value
            return result


def answered(search: Generator[Wanted, Found, T], answer: Callable[[Wanted], Work[Found]]) -> Work[T]:
    """Run a search as a work. What passes on the clock is charged, the search's own share included.

    Args:
        answer: a work that answers what the search wants.
    """
    began = time.monotonic()
    with closing(search):
        try:
            wanted = next(search)
            while True:
                found = yield from answer(wanted)
                now = time.monotonic()
                wanted = search.send(replace(found, spent=replace(found.spent, seconds=now - began)))
                began = now
        except StopIteration as stop:
            result: T = stop.value
            return result


def fitting(
    wanted: Wanted, evaluate: Sequence[Spent], expand: Sequence[Spent]
) -> tuple[tuple[int, int], EndedBy | None]:
    """How much of what is wanted fits what is left, in order, values first; from the first that does not on nothing.

    Args:
        evaluate, expand: the most that each can cost.
    Returns:
        how many states and wishes fit, and the limit that the next would break; None: all fit.
    """
    sum_, limit = Spent(), None
    counts = []
    for costs, unit in ((evaluate, Spent(evaluations=1)), (expand, Spent(expansions=1))):
        counts.append(0)
        for cost in costs if limit is None else ():
            limit = wanted.left.over(sum_, more=cost + unit)
            if limit is not None:
                break
            sum_ += cost + unit
            counts[-1] += 1
    return (counts[0], counts[1]), limit

"""Running a search: over functions in a plain loop, or as a job that answers its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from evolvent.engine.asks import Job
from evolvent.search.records import Child, EndedBy, ExpandRequest, Request, Response, Spent, State

__all__ = ["fit_to_budget", "run_search", "search_functions"]

T = TypeVar("T")


def search_functions(
    search: Generator[Request, Response, T],
    expand: Callable[[ExpandRequest], Sequence[Child]],
    evaluate: Callable[[State], float] | None = None,
    *,
    cost: Callable[[ExpandRequest], Spent] | None = None,
) -> T:
    """Runs a search over functions. For problems that can be computed, and for tests.

    Args:
        search: a `Search`, or a generator of the same requests (`search/forest.py`).
        expand: the children of an expansion; empty where the state has no action. evaluate: the value of a state;
            None: NaN.
        cost: the maximum tokens that an expansion can cost; None: none. Children are charged as they were
            `generated`.
    """
    began = time.monotonic()
    with closing(search):
        try:
            request = next(search)
            while True:
                fitting_counts, short = fit_to_budget(
                    request,
                    [Spent()] * len(request.evaluate),
                    [Spent() if cost is None else cost(expansion) for expansion in request.expand],
                )
                values = [
                    None if index >= fitting_counts[0] else float("nan") if evaluate is None else float(evaluate(state))
                    for index, state in enumerate(request.evaluate)
                ]
                children = [
                    expand(expansion) if index < fitting_counts[1] else None
                    for index, expansion in enumerate(request.expand)
                ]
                tokens = sum(child.generated for siblings in children for child in siblings or ())
                now = time.monotonic()
                request = search.send(Response(children, values, Spent(tokens, seconds=now - began), short))
                began = now
        except StopIteration as stop:
            result: T = stop.value
            return result


def run_search(search: Generator[Request, Response, T], answer: Callable[[Request], Job[Response]]) -> Job[T]:
    """Runs a search as a job. Elapsed time is charged, the search's own share included.

    Args:
        answer: a job that answers the search's requests.
    """
    began = time.monotonic()
    with closing(search):
        try:
            request = next(search)
            while True:
                response = yield from answer(request)
                now = time.monotonic()
                request = search.send(replace(response, spent=replace(response.spent, seconds=now - began)))
                began = now
        except StopIteration as stop:
            result: T = stop.value
            return result


def fit_to_budget(
    request: Request, evaluate: Sequence[Spent], expand: Sequence[Spent]
) -> tuple[tuple[int, int], EndedBy | None]:
    """Returns how much of a request fits the remaining budget, in order, values first; nothing after the first
    misfit.

    Args:
        evaluate, expand: the maximum that each can cost.
    Returns:
        the numbers of states and expansions that fit, and the limit that the next would break; None: all fit.
    """
    sum_, limit = Spent(), None
    counts = []
    for costs, unit in ((evaluate, Spent(evaluations=1)), (expand, Spent(expansions=1))):
        counts.append(0)
        for cost in costs if limit is None else ():
            limit = request.left.over(sum_, more=cost + unit)
            if limit is not None:
                break
            sum_ += cost + unit
            counts[-1] += 1
    return (counts[0], counts[1]), limit

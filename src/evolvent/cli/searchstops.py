"""What `evolvent search` says of searches that a detector ended early: false stops, and the tokens that they saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evolvent.belief.named import DETECTORS, read_detector
from evolvent.belief.outcomes import outcomes
from evolvent.belief.stopping import AnyOf, Detector, StdBelow, TraceBelow
from evolvent.errors import ConfigError, Problem
from evolvent.view.searches import SearchRow

__all__ = ["detectors", "stopped_lines"]


def detectors(names: Iterable[str]) -> list[Detector]:
    """The detectors of votes that are named.

    Raises:
        ConfigError: unknown ones, and those that look at places; all of them.
    """
    found, problems = list[Detector](), list[Problem]()
    for name in names:
        try:
            found.append(read_detector(name))
        except ConfigError as error:
            problems += error.problems
            continue
        parts = found[-1].detectors if isinstance(found[-1], AnyOf) else (found[-1],)
        if any(isinstance(part, StdBelow | TraceBelow) for part in parts):
            problems.append(Problem("stop", f"{name!r} looks at places, and votes have none", ", ".join(DETECTORS[:4])))
    if problems:
        raise ConfigError(problems)
    return found


def stopped_lines(rows: Iterable[SearchRow]) -> list[str]:
    """A line for each search with a detector, beside the same one without it on the same tasks.

    A false stop is a search that was ended early with a wrong answer. `Decided` has as many of them as the whole votes
    are wrong on these tasks; a lossy detector may have more.
    """
    last = {row.key: row for row in rows}
    arms: dict[tuple[str, str, int | None], list[SearchRow]] = {}
    for row in last.values():
        arms.setdefault((row.world, row.method, row.budget), []).append(row)
    found = []
    for (world, method, budget), own in arms.items():
        plain, _, detector = method.partition(" ")
        whole = {row.task: row for row in arms.get((world, plain, budget), ())}
        if detector:
            where = f"{world}, {method}" + ("" if budget is None else f" at {budget:,}")
            found.append(f"{where}: {_line(own, [whole[row.task] for row in own if row.task in whole], plain)}")
    return found


def _line(own: Sequence[SearchRow], whole: Sequence[SearchRow], plain: str) -> str:
    table = outcomes([row.stopped for row in own], [row.success for row in own], [row.samples for row in own])
    told = f"{table.stops} of {table.episodes} ended early"
    wrong = table.rate("false_stop")
    if wrong is not None:
        told += (
            f", {table.false_stop} of them wrong (false stops {100 * wrong.mean:.1f} %, "
            f"{100 * wrong.low:.0f} to {100 * wrong.high:.0f})"
        )
    spent, before = sum(row.generated for row in own), sum(row.generated for row in whole)
    if len(whole) == len(own) and before:
        told += f"; {100 * (1 - spent / before):.1f} % of the generated tokens of {plain} saved"
    return told

"""Runs held against each other: their curves on common axes, and two of them task by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from evolvent.stats import paired
from evolvent.trajectory import sample_rng
from evolvent.view import charts
from evolvent.view.charts import ArmStyle, Line, binned, line_chart
from evolvent.view.data import Metric, ReportData
from evolvent.view.library import RunPlace
from evolvent.view.outcome import main_arm, panels
from evolvent.view.pages import Frame, address, rendered
from evolvent.view.queries import TrajectoryIndex
from evolvent.view.sections import Figure

__all__ = ["STYLES", "Side", "Versus", "compare_page", "curves_of", "versus"]

STYLES: tuple[ArmStyle, ...] = ("evolve", "control", "up", "down", "plus", "cross", "base", "other")
"""Colour and mark of each run that is compared, which are also how many there can be."""

_NUMBERS = (
    ("loss", "Loss"),
    ("success", "Success while practising"),
    ("return", "Return while practising"),
    ("grad_norm", "Gradient norm"),
    ("lr", "Learning rate"),
    ("kl", "KL divergence of updates"),
    ("sampled_entropy", "Entropy of a token, nats"),
    ("tokens_per_s", "Tokens a second"),
)
_SHARES = frozenset({"success"})
_BINS, _ROWS = 100, 300
_WHICH = ("a", "b", "both", "neither")


@dataclass(frozen=True, slots=True)
class Side:
    """What one run did on a task: scored episodes, how many were solved, and the id of one of them, if stored."""

    n: int
    won: float
    traj: str | None

    @property
    def rate(self) -> float:
        """The share that was solved."""
        return self.won / self.n


@dataclass(frozen=True, slots=True)
class Versus:
    """Two runs on the tasks that both have scored.

    Attributes:
        n: common tasks. only_a, only_b: tasks that only one has scored. counts: of "a", "b", "both", "neither".
        sentence: the paired difference with its interval. source: what was compared.
        rows: tasks of the chosen kind of outcome. left: how many of those are not among the rows.
        kinds: (kind, tasks, rate of the first, of the second), where they differ most first.
        whole: whether everything of both runs has been read.
    """

    n: int
    only_a: int
    only_b: int
    counts: Mapping[str, int]
    sentence: str
    source: str
    rows: Sequence[Mapping[str, Any]]
    left: int
    kinds: Sequence[tuple[str, int, float, float]]
    whole: bool


_Task = tuple[str, str, str, str]  # id, world, tier, kind


def compare_page(
    frame: Frame, runs: Sequence[RunPlace], reports: Sequence[ReportData], *, versus: Versus | None, which: str
) -> str:
    """The curves of several runs; of two also their tasks, those of one outcome listed."""
    styled, which = list(zip(runs, STYLES, strict=False)), which if which in _WHICH else "a"
    keys = [("run", run.key) for run in runs]
    query = "&".join(f"{name}={key}" for name, key in keys)
    return rendered(
        "viewer_compare.html",
        frame,
        title=" against ".join(run.name for run in runs[:2]),
        runs=styled,
        curves=curves_of(runs, reports),
        versus=versus,
        which=which,
        addresses={name: f"/compare?{query}&which={name}#tasks" for name in _WHICH},
    )


# ---------------------------------------------------------------------- curves


def curves_of(runs: Sequence[RunPlace], reports: Sequence[ReportData]) -> list[Figure]:
    """Success by round, then every number that more than nobody has logged, each run a line."""
    figures = []
    common = _common(reports)
    lines = [
        Line(run.name, style, _measured(data, common)) for run, style, data in zip(runs, STYLES, reports, strict=False)
    ]
    if any(line.points for line in lines):
        frame = charts.Frame(
            "Success", "round", "success, %", y_range=(0, 1), percent=True, whole_x=True, width=330, height=210
        )
        caption = f"mean over {len(common)} common panel{'s' if len(common) > 1 else ''}"
        figures.append(Figure("Measured success", line_chart(frame, lines), caption))
    for name, title in _NUMBERS:
        lines = []
        for run, style, data in zip(runs, STYLES, reports, strict=False):
            points, band = binned(_logged(data, name), _BINS)
            lines.append(Line(run.name, style, points, band, markers=len(points) == 1))
        if any(line.points for line in lines):
            share = name in _SHARES
            frame = charts.Frame(
                title, "update", whole_x=True, width=330, height=210, percent=share, y_range=(0, 1) if share else None
            )
            figures.append(Figure(title, line_chart(frame, lines)))
    return figures


_Panel = tuple[str, str, str]


def _common(reports: Sequence[ReportData]) -> frozenset[_Panel]:
    """The panels that every run has measured, of those that have measured any."""
    found = [frozenset((one.world, one.tier, one.split) for one in panels(data)) for data in reports]
    return frozenset.intersection(*measured) if (measured := [one for one in found if one]) else frozenset()


def _measured(data: ReportData, common: frozenset[_Panel]) -> list[tuple[float, float]]:
    """(round, mean over the common panels) of the run's base and main arm, where all of them were measured."""
    main, found = main_arm(data), defaultdict[int, list[float]](list)
    for panel in panels(data):
        if (panel.world, panel.tier, panel.split) in common:
            for row in (*panel.curves.get("base", ()), *panel.curves.get(main, ())):
                if row.mean is not None:
                    found[row.round].append(row.mean)
    return [(float(at), sum(means) / len(means)) for at, means in sorted(found.items()) if len(means) == len(common)]


def _logged(data: ReportData, name: str) -> list[tuple[float, float]]:
    """(update counted over the whole run, value): the stages of the main arm one after another."""
    main, points = main_arm(data), []
    begun, last, stage = 0.0, 0.0, ""
    for row in _own(data.metrics, main):
        if name not in row.values:
            continue
        if row.stage != stage:
            begun, stage = (last + 1 if stage else 0.0), row.stage
        last = begun + row.step
        points.append((last, row.values[name]))
    return points


def _own(rows: Sequence[Metric], main: str) -> list[Metric]:
    """The rows of fits and practices; where arms are named, those of the main one and what it began from."""
    chosen = [row for row in rows if row.kind in ("fit", "practise", "")]
    named = {row.arm for row in chosen} - {""}
    return [row for row in chosen if not named or main not in named or row.arm in ("", "base", main)]


# ---------------------------------------------------------------------- task by task


def versus(
    reports: tuple[ReportData, ReportData],
    indexes: tuple[TrajectoryIndex, TrajectoryIndex],
    *,
    keys: tuple[str, str],
    which: str,
    whole: bool,
) -> Versus:
    """Which tasks one run solves and the other does not: by their last evaluations, else by their stored episodes.

    Args:
        keys: of the runs. which: the outcome whose tasks are listed: "a", "b", "both" or "neither".
    """
    tables = _evaluated(reports[0], indexes[0]), _evaluated(reports[1], indexes[1])
    source = "Tasks of the last evaluation of each."
    if not set(tables[0]) & set(tables[1]):
        tables = _stored(indexes[0]), _stored(indexes[1])
        source = "All scored episodes of each, whatever stage they are of."
    one, other = tables
    common = sorted(set(one) & set(other), key=lambda task: (task[1], task[2], task[3], task[0]))
    sorts: dict[str, list[_Task]] = {name: [] for name in _WHICH}
    for task in common:
        sorts[_outcome(one[task], other[task])].append(task)
    shown = sorts[which if which in sorts else "a"]
    rows = [
        {
            "task": task[0],
            "world": task[1],
            "tier": task[2],
            "kind": task[3],
            "sides": [_shown(key, table[task]) for key, table in zip(keys, tables, strict=True)],
        }
        for task in shown[:_ROWS]
    ]
    return Versus(
        n=len(common),
        only_a=len(set(one) - set(other)),
        only_b=len(set(other) - set(one)),
        counts={name: len(tasks) for name, tasks in sorts.items()},
        rows=rows,
        left=len(shown) - len(rows),
        sentence=_sentence(common, one, other, seed=keys),
        source=source,
        kinds=_kinds(common, one, other),
        whole=whole,
    )


def _evaluated(data: ReportData, index: TrajectoryIndex) -> dict[_Task, Side]:
    """The tasks of the main arm's last evaluation of every panel."""
    rows = [
        ((task, panel.world, panel.tier, kind), success, f"{result.stage}/{task}/0")
        for panel in panels(data)
        if (result := panel.last or panel.base)
        for task, kind, success in result.outcomes
        if success is not None
    ]
    stored = index.known(traj for _, _, traj in rows)
    return {task: Side(1, success, traj if traj in stored else None) for task, success, traj in rows}


def _stored(index: TrajectoryIndex) -> dict[_Task, Side]:
    return {
        (task, row["world"], row["tier"], row["kind"]): Side(row["n"], row["won"], row["traj"])
        for task, row in index.solved().items()
    }


def _outcome(one: Side, other: Side) -> str:
    a, b = one.rate > 0.5, other.rate > 0.5
    return "both" if a and b else "a" if a else "b" if b else "neither"


def _shown(key: str, side: Side) -> dict[str, str]:
    text = ("solved" if side.rate > 0.5 else "failed") if side.n == 1 else f"{side.won:g} of {side.n}"
    return {"text": text, "address": address(f"/run/{key}/trajectory", id=side.traj) if side.traj else ""}


def _sentence(common: Sequence[_Task], one: Mapping[_Task, Side], other: Mapping[_Task, Side], *, seed: object) -> str:
    if not common:
        return ""
    a, b = [one[task].rate for task in common], [other[task].rate for task in common]
    strata = [f"{task[1]}\n{task[2]}" for task in common]
    rng = sample_rng("versus", seed)
    found = paired(a, b, levels=[[task[3] for task in common]], strata=strata, rng=rng).within(-1.0, 1.0)
    means = f"{100 * sum(a) / len(a):.1f} % against {100 * sum(b) / len(b):.1f} %"
    told = f"On {len(common):,} common tasks: {means}, a difference of {100 * found.mean:+.1f} points"
    if isnan(found.low) or found.low == found.high:
        return f"{told}; too few tasks, or too alike ones, for an interval.".replace("-", "−")
    verdict = "the interval excludes 0" if found.excludes(0.0) else "no difference is shown"
    return f"{told} (95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}); {verdict}.".replace("-", "−")


def _kinds(
    common: Sequence[_Task], one: Mapping[_Task, Side], other: Mapping[_Task, Side]
) -> list[tuple[str, int, float, float]]:
    grouped: dict[str, list[_Task]] = defaultdict(list)
    for task in common:
        grouped[task[3]].append(task)

    def rate(side: Mapping[_Task, Side], own: Sequence[_Task]) -> float:
        return sum(side[task].rate for task in own) / len(own)

    rows = [(kind, len(own), rate(one, own), rate(other, own)) for kind, own in grouped.items()]
    return sorted(rows, key=lambda row: (-abs(row[2] - row[3]), row[0]))[:60]

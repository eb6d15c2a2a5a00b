"""From a run's data to what the sections of the page draw: small multiples, curves, costs, flat settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from markupsafe import Markup

from evolvent.config import redact
from evolvent.view.charts import (
    ArmStyle,
    Bar,
    Frame,
    Line,
    Reference,
    binned,
    interval_strip,
    line_chart,
    stacked_bar,
    strip_scale,
    timeline,
)
from evolvent.view.data import ReportData
from evolvent.view.outcome import Panel, main_arm

__all__ = ["Cost", "Figure", "arm_style", "cost", "curves", "flat", "floors", "multiples", "speeds", "strips"]

_VERBS = ("fit", "collect", "evaluate")
_CURVES = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("lr", "Learning rate"))
_SPEEDS = (
    ("fit", "tokens_per_s", "Learning, tokens/s"),
    ("collect", "tokens_per_s", "Exploring, tokens/s"),
    ("collect", "env_steps_per_s", "Exploring, env steps/s"),
    ("evaluate", "env_steps_per_s", "Evaluating, env steps/s"),
)
_COUNTS = ("generated", "computed", "padded", "trained", "env_steps", "episodes")
_DEEPEST = 8
_ByStage = dict[tuple[str, str], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with the heading above it and the line below it."""

    title: str
    chart: Markup
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the time went: a bar and a timeline, and per arm and verb (seconds, CPU seconds, counts)."""

    bar: Markup
    timeline: Sequence[tuple[str, Markup]]
    verbs: tuple[tuple[str, float, float], ...]
    rows: tuple[tuple[str, str, int, float, float | None, Mapping[str, float]], ...]
    counts: tuple[str, ...]
    seconds: float
    totals: Mapping[str, float]


def arm_style(name: str, main: str = "evolve") -> ArmStyle:
    """The style of an arm; its name is only ever shown as text."""
    known: Mapping[str, ArmStyle] = {main: "evolve", "control": "control", "base": "base", "expert": "expert"}
    return known.get(name, "other")


def strips(data: ReportData, shown: Sequence[Panel]) -> tuple[Markup | None, ...]:
    """The scale, then for each panel the drawing of its difference; None where there is no difference."""
    ends = [abs(end) for panel in shown for end in _ends(panel)]
    reach = max([0.1, *ends]) * 1.05
    drawn: list[Markup | None] = [strip_scale(reach) if ends else None]
    for panel in shown:
        if panel.difference is None:
            drawn.append(None)
            continue
        one = panel.difference
        label = f"{panel.world} {panel.tier}: {main_arm(data)} minus control {100 * one.mean:+.1f} points"
        if not isnan(one.low):
            label += f", 95 % interval {100 * one.low:+.1f} to {100 * one.high:+.1f}"
        drawn.append(interval_strip(one.mean, one.low, one.high, reach=reach, label=label))
    return tuple(drawn)


def _ends(panel: Panel) -> list[float]:
    one = panel.difference
    return [] if one is None else [end for end in (one.mean, one.low, one.high) if not isnan(end)]


def multiples(data: ReportData, shown: Sequence[Panel], *, by: str = "round") -> list[tuple[str, list[Figure]]]:
    """Per world one chart a tier: success by round for every arm, with intervals, over the floors and the expert.

    Args:
        by: what a round is called.
    """
    last = max((row.round for row in data.results), default=0)
    worlds: dict[str, list[Figure]] = defaultdict(list)
    for panel in shown:
        lines = [line for arm in sorted(panel.curves, key=_order) if (line := _curve(arm, panel, data)) is not None]
        levels = data.floors.get((panel.world, panel.tier), {})
        references = [Reference(name.replace("_", " "), y) for name, y in levels.items() if 0 <= y <= 1]
        frame = Frame(
            f"{panel.world}, {panel.tier}",
            by,
            "success, %",
            x_range=(0, max(1, last)),
            y_range=(0, 1),
            percent=True,
            whole_x=True,
            width=250,
            height=180,
        )
        sizes = {row.n for rows in panel.curves.values() for row in rows}
        tasks = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes, default=0)}"
        chart = line_chart(frame, lines, references)
        worlds[panel.world].append(Figure(panel.tier, chart, f"{tasks} tasks, {panel.split}"))
    return list(worlds.items())


def _order(arm: str) -> tuple[int, str]:
    """Drawing order: what the eye should find first is drawn last."""
    return ({"expert": 0, "control": 1, "base": 3}.get(arm, 2), arm)


def _curve(arm: str, panel: Panel, data: ReportData) -> Line | None:
    """An arm by round, led in from the base it started from."""
    rows = [row for row in panel.curves[arm] if row.mean is not None]
    if not rows:
        return None
    lead = [panel.base] if panel.base and arm != "base" and panel.base.round < rows[0].round else []
    joined = [row for row in [*lead, *rows] if row.mean is not None]
    points = [(float(row.round), row.mean) for row in joined if row.mean is not None]
    band = [(float(row.round), row.low, row.high) for row in joined if row.low is not None and row.high is not None]
    return Line(arm, arm_style(arm, main_arm(data)), points, band, unmarked=len(joined) - len(rows))


def curves(data: ReportData) -> list[Figure]:
    """Training: loss, gradient norm and learning rate by update; the rounds of an arm follow the cloning."""
    figures = []
    for name, title in _CURVES:
        found: _ByStage = defaultdict(list)
        for arm, stage, x, values in _updates(data):
            if name in values:
                found[arm, stage].append((x, values[name]))
        frame = Frame(title, "update", width=330, height=190)
        figures += _figure(frame, found, data, smooth=name != "lr")
    return figures


def _updates(data: ReportData) -> list[tuple[str, str, float, Mapping[str, float]]]:
    """Arm, stage, update counted from the start of the cloning, values: steps begin again in every stage."""
    rows = [row for row in data.metrics if row.kind == "fit"]
    lengths: dict[tuple[str, str], float] = {}
    for row in rows:
        lengths[row.arm, row.stage] = max(row.step + 1, lengths.get((row.arm, row.stage), 0.0))
    cloned = sum(length for (arm, _), length in lengths.items() if arm == "base")
    reached = {arm: 0.0 if arm == "base" else cloned for arm, _ in lengths}
    begins: dict[tuple[str, str], float] = {}
    for (arm, stage), length in lengths.items():
        begins[arm, stage] = reached[arm]
        reached[arm] += length
    return [(row.arm, row.stage, begins[row.arm, row.stage] + row.step, row.values) for row in rows]


def speeds(data: ReportData) -> list[Figure]:
    """Throughput over the time of the run: tokens and environment steps a second, by what was being done."""
    figures = []
    for kind, name, title in _SPEEDS:
        found: _ByStage = defaultdict(list)
        for row in data.metrics:
            if row.kind == kind and name in row.values:
                found[row.arm, row.stage].append((row.time_s, row.values[name]))
        figures += _figure(Frame(title, "seconds since the start", width=250, height=160), found, data)
    return figures


def _figure(frame: Frame, found: _ByStage, data: ReportData, *, smooth: bool = True) -> list[Figure]:
    """One line a stage, so that nothing is drawn between stages."""
    bins = max(6, 120 // max(1, len(found))) if smooth else 200
    lines = []
    for arm, stage in sorted(found, key=lambda key: _order(key[0])):
        points, around = binned(found[arm, stage], bins)
        style = arm_style(arm, main_arm(data))
        lines.append(Line(arm or "run", style, points, around if smooth else (), markers=len(points) == 1))
    return [Figure(frame.title, line_chart(frame, lines))] if lines else []


def cost(data: ReportData) -> Cost:
    """Time by verb, arm and stage, and the tokens it bought."""
    verbs = dict.fromkeys((*_VERBS, "other"), 0.0)
    sums: dict[tuple[str, str], list[Any]] = {}
    totals: dict[str, float] = defaultdict(float)
    for stage in data.stages:
        verb = stage.verb if stage.verb in _VERBS else "other"
        verbs[verb] += stage.seconds
        row = sums.setdefault((stage.arm, stage.verb), [0, 0.0, None, defaultdict(float)])
        row[0] += 1
        row[1] += stage.seconds
        row[2] = stage.cpu_s if row[2] is None else row[2] + (stage.cpu_s or 0.0)
        for name, value in stage.counts.items():
            row[3][name] += value
            totals[name] += value
    used = [(verb, spent) for verb, spent in verbs.items() if spent > 0]
    whole = sum(verbs.values())
    bars = [Bar(verb, spent, f"verb-{verb}") for verb, spent in used]
    stages = [
        Bar(
            f"{stage.name} ({stage.verb})",
            stage.seconds,
            f"verb-{stage.verb if stage.verb in _VERBS else 'other'}",
            stage.arm or "run",
        )
        for stage in data.stages
    ]
    known = [name for name in _COUNTS if totals.get(name)]
    return Cost(
        bar=stacked_bar(bars, label="time by verb", unit="s"),
        timeline=timeline(stages, unit="s"),
        verbs=tuple((verb, spent, spent / whole) for verb, spent in used),
        rows=tuple((arm, verb, *values) for (arm, verb), values in sums.items()),
        counts=tuple(known + sorted(name for name in totals if name not in _COUNTS and totals[name])[:4]),
        seconds=whole,
        totals=totals,
    )


def floors(data: ReportData) -> list[tuple[str, str, Mapping[str, float]]]:
    """World, tier and the success of policies that need no learning."""
    return [(world, tier, values) for (world, tier), values in sorted(data.floors.items())]


def flat(nested: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested settings as (dotted name, value) in their order; secrets hidden, at most eight levels deep."""
    rows: list[tuple[str, str]] = []
    waiting: list[tuple[str, Any, int]] = [("", nested, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            inner = [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in value.items()]
            waiting += reversed(inner)
        elif name:
            rows.append(
                (name, redact({name.rpartition(".")[2]: _shown(value)}).popitem()[1] if value else _shown(value))
            )
    return rows


def _shown(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, (str, int, float, bool)) for one in value):
        return ", ".join(str(one) for one in value) or "(none)"
    if isinstance(value, (list, Mapping)):
        return f"({len(value)} nested values)" if value else "(none)"
    return "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

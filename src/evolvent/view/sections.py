"""Charts and tables of the page's sections: small multiples, curves, costs, flattened settings."""

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
    bin_points,
    interval_strip,
    line_chart,
    needs_log_scale,
    stacked_bar,
    strip_scale,
    timeline,
)
from evolvent.view.data import ReportData
from evolvent.view.outcome import Panel, main_arm

__all__ = [
    "Cost",
    "Figure",
    "arm_style",
    "draw_curves",
    "draw_multiples",
    "draw_speeds",
    "draw_strips",
    "flatten_settings",
    "list_floors",
    "summarize_cost",
]

_VERBS = ("fit", "collect", "evaluate")
_CURVE_METRICS = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("lr", "Learning rate"))
_SPEED_METRICS = (
    ("fit", "tokens_per_s", "Learning, tokens/s"),
    ("collect", "tokens_per_s", "Exploring, tokens/s"),
    ("collect", "env_steps_per_s", "Exploring, env steps/s"),
    ("evaluate", "env_steps_per_s", "Evaluating, env steps/s"),
)
_COUNT_NAMES = ("generated", "computed", "padded", "trained", "env_steps", "episodes")
_COUNT_NOTES: Mapping[str, str] = {
    "generated": "tokens that a policy wrote",
    "computed": "token positions that went through the model, prompts included",
    "recomputed": "positions that were computed again after their memory was given away",
    "padded": "positions that were computed for padding alone",
    "shared": "prompt positions that were not computed again, because another text begins alike",
    "forwards": "passes through the model",
    "trained": "tokens that a loss was taken on",
    "fed": "tokens that were fed to the model in training, context included",
    "env_steps": "actions that environments took",
    "episodes": "episodes that ended",
}

_MAX_DEPTH = 8
_ByStage = dict[tuple[str, str], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with the heading above it and the line below it."""

    title: str
    chart: Markup
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time spent: a bar and a timeline, and per arm and verb (seconds, CPU seconds, counts)."""

    bar: Markup
    timeline: Sequence[tuple[str, Markup]]
    verbs: tuple[tuple[str, float, float], ...]
    rows: tuple[tuple[str, str, int, float, float | None, Mapping[str, float]], ...]
    counts: tuple[str, ...]
    seconds: float
    totals: Mapping[str, float]

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """Returns (name, explanation) of the counts that are shown."""
        return tuple((name, _COUNT_NOTES[name]) for name in self.counts if name in _COUNT_NOTES)


def arm_style(name: str, main: str = "evolve") -> ArmStyle:
    """Returns the style of an arm; its name is only ever shown as text."""
    styles: Mapping[str, ArmStyle] = {main: "evolve", "control": "control", "base": "base", "expert": "expert"}
    return styles.get(name, "other")


def draw_strips(data: ReportData, evaluated_panels: Sequence[Panel]) -> tuple[Markup | None, ...]:
    """Returns the scale, then for each panel the drawing of its difference; None where there is no difference."""
    extremes = [abs(end) for panel in evaluated_panels for end in _interval_ends(panel)]
    scale_end = max([0.1, *extremes]) * 1.05
    drawings: list[Markup | None] = [strip_scale(scale_end) if extremes else None]
    for panel in evaluated_panels:
        if panel.difference is None:
            drawings.append(None)
            continue
        difference = panel.difference
        label = f"{panel.world} {panel.tier}: {main_arm(data)} minus control {100 * difference.mean:+.1f} points"
        if not isnan(difference.low):
            label += f", 95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
        drawings.append(
            interval_strip(difference.mean, difference.low, difference.high, scale_end=scale_end, label=label)
        )
    return tuple(drawings)


def _interval_ends(panel: Panel) -> list[float]:
    difference = panel.difference
    return (
        []
        if difference is None
        else [end for end in (difference.mean, difference.low, difference.high) if not isnan(end)]
    )


def draw_multiples(
    data: ReportData, evaluated_panels: Sequence[Panel], *, round_label: str = "round"
) -> list[tuple[str, list[Figure]]]:
    """Draws per world one chart a tier: success by round for every arm, with intervals, over the floors and the
    expert.

    Args:
        round_label: the name of a round on the axis.
    """
    last_round = max((row.round for row in data.results), default=0)
    worlds: dict[str, list[Figure]] = defaultdict(list)
    for panel in evaluated_panels:
        lines = [
            line
            for arm in sorted(panel.curves, key=_drawing_order)
            if (line := _build_curve(arm, panel, data)) is not None
        ]
        levels = data.floors.get((panel.world, panel.tier), {})
        references = [Reference(name.replace("_", " "), y) for name, y in levels.items() if 0 <= y <= 1]
        frame = Frame(
            f"{panel.world}, {panel.tier}",
            round_label,
            "success, %",
            x_range=(0, max(1, last_round)),
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


def _drawing_order(arm: str) -> tuple[int, str]:
    """Returns the drawing order: the most important arm is drawn last."""
    return ({"expert": 0, "control": 1, "base": 3}.get(arm, 2), arm)


def _build_curve(arm: str, panel: Panel, data: ReportData) -> Line | None:
    """Builds the line of an arm by round, led in from the base it started from."""
    rows = [row for row in panel.curves[arm] if row.mean is not None]
    if not rows:
        return None
    leading_rows = [panel.base] if panel.base and arm != "base" and panel.base.round < rows[0].round else []
    joined_rows = [row for row in [*leading_rows, *rows] if row.mean is not None]
    points = [(float(row.round), row.mean) for row in joined_rows if row.mean is not None]
    band = [
        (float(row.round), row.low, row.high) for row in joined_rows if row.low is not None and row.high is not None
    ]
    return Line(arm, arm_style(arm, main_arm(data)), points, band, unmarked=len(joined_rows) - len(rows))


def draw_curves(data: ReportData) -> list[Figure]:
    """Draws loss, gradient norm and learning rate by update; the rounds of an arm follow the cloning."""
    figures = []
    for name, title in _CURVE_METRICS:
        points_per_stage: _ByStage = defaultdict(list)
        for arm, stage, x, values in _list_updates(data):
            if name in values:
                points_per_stage[arm, stage].append((x, values[name]))
        is_log = name == "loss" and needs_log_scale([y for points in points_per_stage.values() for _, y in points])
        label = "logarithmic" if is_log else ""
        frame = Frame(title, "update", label, width=330, height=190, log_y=is_log)
        figures += _draw_stages(frame, points_per_stage, data, smooth=name != "lr")
    return figures


def _list_updates(data: ReportData) -> list[tuple[str, str, float, Mapping[str, float]]]:
    """Returns arm, stage, update counted from the start of the cloning, and values: steps restart in every stage."""
    rows = [row for row in data.metrics if row.kind == "fit"]
    lengths: dict[tuple[str, str], float] = {}
    for row in rows:
        lengths[row.arm, row.stage] = max(row.step + 1, lengths.get((row.arm, row.stage), 0.0))
    num_cloning_updates = sum(length for (arm, _), length in lengths.items() if arm == "base")
    next_update = {arm: 0.0 if arm == "base" else num_cloning_updates for arm, _ in lengths}
    first_update: dict[tuple[str, str], float] = {}
    for (arm, stage), length in lengths.items():
        first_update[arm, stage] = next_update[arm]
        next_update[arm] += length
    return [(row.arm, row.stage, first_update[row.arm, row.stage] + row.step, row.values) for row in rows]


def draw_speeds(data: ReportData) -> list[Figure]:
    """Draws throughput over the time of the run: tokens and environment steps a second, by activity."""
    figures = []
    for kind, name, title in _SPEED_METRICS:
        points_per_stage: _ByStage = defaultdict(list)
        for row in data.metrics:
            if row.kind == kind and name in row.values:
                points_per_stage[row.arm, row.stage].append((row.time_s, row.values[name]))
        figures += _draw_stages(Frame(title, "seconds since the start", width=250, height=160), points_per_stage, data)
    return figures


def _draw_stages(frame: Frame, points_per_stage: _ByStage, data: ReportData, *, smooth: bool = True) -> list[Figure]:
    """Draws one line a stage, so that nothing is drawn between stages."""
    bins = max(6, 120 // max(1, len(points_per_stage))) if smooth else 200
    lines = []
    for arm, stage in sorted(points_per_stage, key=lambda key: _drawing_order(key[0])):
        points, band = bin_points(points_per_stage[arm, stage], bins)
        style = arm_style(arm, main_arm(data))
        lines.append(Line(arm or "run", style, points, band if smooth else (), markers=len(points) == 1))
    return [Figure(frame.title, line_chart(frame, lines))] if lines else []


def summarize_cost(data: ReportData) -> Cost:
    """Returns the time by verb, arm and stage, and the tokens computed in it."""
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
    used_verbs = [(verb, seconds) for verb, seconds in verbs.items() if seconds > 0]
    total_s = sum(verbs.values())
    bars = [Bar(verb, seconds, f"verb-{verb}") for verb, seconds in used_verbs]
    stages = [
        Bar(
            f"{stage.name} ({stage.verb})",
            stage.seconds,
            f"verb-{stage.verb if stage.verb in _VERBS else 'other'}",
            stage.arm or "run",
        )
        for stage in data.stages
    ]
    known_counts = [name for name in _COUNT_NAMES if totals.get(name)]
    return Cost(
        bar=stacked_bar(bars, label="time by verb", unit="s"),
        timeline=timeline(stages, unit="s"),
        verbs=tuple((verb, seconds, seconds / total_s) for verb, seconds in used_verbs),
        rows=tuple((arm, verb, *values) for (arm, verb), values in sums.items()),
        counts=tuple(known_counts + sorted(name for name in totals if name not in _COUNT_NAMES and totals[name])[:4]),
        seconds=total_s,
        totals=totals,
    )


def list_floors(data: ReportData) -> list[tuple[str, str, Mapping[str, float]]]:
    """Returns world, tier and the success of policies that need no learning."""
    return [(world, tier, values) for (world, tier), values in sorted(data.floors.items())]


def flatten_settings(nested: Mapping[str, object]) -> list[tuple[str, str]]:
    """Flattens nested settings to (dotted name, value) in their order; secrets hidden, at most eight levels deep."""
    rows: list[tuple[str, str]] = []
    waiting: list[tuple[str, Any, int]] = [("", nested, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if isinstance(value, Mapping) and value and depth < _MAX_DEPTH:
            inner = [
                (f"{name}.{key}" if name else str(key), inner_value, depth + 1) for key, inner_value in value.items()
            ]
            waiting += reversed(inner)
        elif name:
            rows.append(
                (
                    name,
                    redact({name.rpartition(".")[2]: _format_setting(value)}).popitem()[1]
                    if value
                    else _format_setting(value),
                )
            )
    return rows


def _format_setting(value: object) -> str:
    if isinstance(value, list) and all(isinstance(entry, (str, int, float, bool)) for entry in value):
        return ", ".join(str(entry) for entry in value) or "(none)"
    if isinstance(value, (list, Mapping)):
        return f"({len(value)} nested values)" if value else "(none)"
    return "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

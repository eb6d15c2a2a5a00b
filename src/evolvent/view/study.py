"""A study for people: the plain table for a terminal, and one page with its table and picture.

Both show the summary as plain data (`bench.verdict.to_json`). Everything in it may have been written by others: names,
questions and messages go through `escape` here or through the template's autoescaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from markupsafe import Markup
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evolvent.trajectory import JsonObject
from evolvent.view.charts import ArmStyle, Reference, interval_strip, legend_marker, strip_scale
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, format_large, show_hidden
from evolvent.view.templating import build_environment, render_page

__all__ = ["study_page", "study_table"]

_ENDS = ("mean", "low", "high")
_MIN_TABLE_WIDTH = 80  # columns that the tables of one row a panel need


# ---------------------------------------------------------------- what both show


def _find_difference(
    summary: JsonObject, arm: str, against: str, *, world: str = "", tier: str = ""
) -> JsonObject | None:
    """Returns the difference of two arms over a world and tier, where the summary contains it."""
    wanted_key = (arm, against, world, tier)
    return next(
        (
            difference
            for difference in summary["differences"]
            if (difference["arm"], difference["against"], difference["world"], difference["tier"]) == wanted_key
        ),
        None,
    )


def _group_rates(summary: JsonObject) -> dict[tuple[str, str], dict[str, JsonObject]]:
    """Returns (world, tier) -> arm -> rate, in the order of the summary."""
    rates_per_panel: dict[tuple[str, str], dict[str, JsonObject]] = {}
    for rate in summary["rates"]:
        rates_per_panel.setdefault((rate["world"], rate["tier"]), {})[rate["arm"]] = rate
    return rates_per_panel


def _arm_style(summary: JsonObject, name: str) -> ArmStyle:
    primary = summary["primary"]
    styles: Mapping[str, ArmStyle] = {
        primary["upper"]: "expert",
        primary["base"]: "base",
        primary["control"]: "control",
        primary["arm"]: "evolve",
    }
    return styles.get(name, "other")


def _mean_tokens(arm: JsonObject, name: str) -> float | None:
    """Returns the mean token count of a finished seed."""
    return arm["tokens"][name] / arm["finished"] if arm["finished"] and name in arm["tokens"] else None


# ---------------------------------------------------------------- the table of a terminal


def study_table(summary: JsonObject, *, width: int = 80) -> RenderableType:
    """Builds the table of the command: a row per arm, a row per panel, the failures, and the verdict.

    Args:
        width: columns of the terminal; below 80 every row is a block of lines instead.
    """
    primary, total = summary["primary"], len(summary["seeds"])
    control = primary["control"]
    arms: list[tuple[str, ...]] = [
        (
            _clip_line(arm["name"], 14),
            _format_rate(arm["interval"]),
            _format_points(_find_difference(summary, arm["name"], control)),
            f"{arm['finished']}/{total}",
            format_large(_mean_tokens(arm, "computed")),
            f"{arm['cpu_s'] / 3600:.2f}",
        )
        for arm in summary["arms"]
    ]
    sides = (primary["base"], primary["arm"], control)
    panels: list[tuple[str, ...]] = [
        (
            _clip_line(world, 12),
            _clip_line(tier, 8),
            str(next(iter(rates_per_arm.values()))["tasks"]),
            *(_format_mean(rates_per_arm.get(name)) for name in sides),
            _format_points(_find_difference(summary, primary["arm"], control, world=world, tier=tier)),
        )
        for (world, tier), rates_per_arm in _group_rates(summary).items()
    ]
    arm_columns = ("arm", "success, 95 %", "- control, 95 %", "seeds", "computed", "CPU h")
    panel_columns = ("world", "tier", "tasks", *(_clip_line(name, 9) for name in sides), "difference, 95 %")
    parts: list[RenderableType] = []
    for columns, rows in ((arm_columns, arms), (panel_columns, panels)):
        num_heads = 1 if columns == arm_columns else 2
        is_wide = width >= _MIN_TABLE_WIDTH
        parts += (
            [_build_table(columns, rows)]
            if is_wide
            else [_build_block(columns, row, num_heads=num_heads) for row in rows]
        )
        parts.append(Text())
    failures = [f"{seed_run['arm']}, seed {seed_run['seed']}: {seed_run['why']}" for seed_run in summary["unfinished"]]
    parts += [Text(_clip_line(line, 300)) for line in failures[:20]]
    parts += [Text(f"and {len(failures) - 20} more without a result")] if len(failures) > 20 else []
    parts += [Text()] if failures else []
    gates = summary.get("gates", ())  # an earlier version wrote summaries without gates
    parts += [Text(_clip_line(f"gate {gate['message']}", 300)) for gate in gates]
    parts += [Text()] if gates else []
    return Group(*parts, Text(_clip_line(summary["sentence"], 1000)))


def _build_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))
    for index, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if index == 0 or name == "tier" else "right", no_wrap=index > 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _build_block(columns: Sequence[str], row: Sequence[str], *, num_heads: int) -> Text:
    cells = list(zip(columns, row, strict=True))[num_heads:]
    return Text("\n".join([" ".join(row[:num_heads]), *(f"  {name} {cell}" for name, cell in cells)]))


def _clip_line(text: str, limit: int) -> str:
    line = " ".join(show_hidden(clip(text, 4000)).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _format_rate(interval: JsonObject | None) -> str:
    if interval is None:
        return "-"
    mean = f"{100 * interval['mean']:.1f}"
    return mean if interval["low"] is None else f"{mean} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _format_mean(rate: JsonObject | None) -> str:
    return "-" if rate is None else f"{100 * rate['interval']['mean']:.1f}"


def _format_points(difference: JsonObject | None) -> str:
    if difference is None:
        return "-"
    interval = difference["interval"]
    mean = f"{100 * interval['mean']:+.1f}"
    return mean if interval["low"] is None else f"{mean} [{100 * interval['low']:+.1f}, {100 * interval['high']:+.1f}]"


# ---------------------------------------------------------------- the page


@dataclass(frozen=True, slots=True)
class _Cell:
    """A number, and a smaller text below it."""

    text: str
    small: str = ""


@dataclass(frozen=True, slots=True)
class _ArmRow:
    arm: JsonObject
    mark: Markup
    rate: _Cell | None
    difference: _Cell | None
    strip: Markup
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _PanelRow:
    world: str
    tier: str
    tasks: int
    rates: Sequence[_Cell | None]
    difference: _Cell | None
    strip: Markup


def study_page(summary: JsonObject) -> str:
    """Renders the summary as one HTML document without a script: the verdict, the picture, the tables, the failures."""
    scale_end = _scale_end(summary)
    return render_page(
        build_environment(max_chars=2000),
        "study.html",
        {
            "data": summary,
            "primary": summary["primary"],
            "state": _verdict_state(summary["verdict"]),
            "tiles": _build_tiles(summary),
            "picture": _draw_picture(summary),
            "scale": strip_scale(scale_end),
            "arms": _build_arm_rows(summary, scale_end),
            "panels": _build_panel_rows(summary, scale_end),
            "worlds": _compare_worlds(summary),
            "seeds": [str(seed) for seed in summary["seeds"]],
            "finished": sum(arm["finished"] for arm in summary["arms"]),
        },
    )


def _build_arm_rows(summary: JsonObject, scale_end: float) -> list[_ArmRow]:
    rows = []
    for arm in summary["arms"]:
        difference = _find_difference(summary, arm["name"], summary["primary"]["control"])
        tokens = tuple(format_large(_mean_tokens(arm, name)) for name in ("generated", "computed", "trained"))
        mark, rate = legend_marker(_arm_style(summary, arm["name"])), _format_cell(arm["interval"])
        rows.append(
            _ArmRow(arm, mark, rate, _format_difference(difference), _draw_difference(difference, scale_end), tokens)
        )
    return rows


def _build_panel_rows(summary: JsonObject, scale_end: float) -> list[_PanelRow]:
    primary, rows = summary["primary"], []
    for (world, tier), rates_per_arm in _group_rates(summary).items():
        rates = [
            _format_cell(rates_per_arm[arm["name"]]["interval"]) if arm["name"] in rates_per_arm else None
            for arm in summary["arms"]
        ]
        difference = _find_difference(summary, primary["arm"], primary["control"], world=world, tier=tier)
        tasks = next(iter(rates_per_arm.values()))["tasks"]
        rows.append(
            _PanelRow(
                world, tier, tasks, rates, _format_difference(difference), _draw_difference(difference, scale_end)
            )
        )
    return rows


def _verdict_state(verdict: str) -> str:
    return "finished" if verdict == "improves" else "unknown" if verdict.startswith("no difference") else "failed"


def _build_tiles(summary: JsonObject) -> list[tuple[Markup, str, str]]:
    """Returns marker, name and success of the arms that the verdict is about."""
    primary, means = summary["primary"], {arm["name"]: arm["interval"] for arm in summary["arms"]}
    names = dict.fromkeys(primary[role] for role in ("base", "control", "arm", "upper"))
    return [
        (
            legend_marker(_arm_style(summary, name)),
            name,
            "–" if means[name] is None else f"{100 * means[name]['mean']:.1f} %",
        )
        for name in names
        if name in means
    ]


def _draw_picture(summary: JsonObject) -> Markup:
    rows, references = [], []
    for arm in summary["arms"]:
        name, interval = arm["name"], arm["interval"] or {"mean": None, "low": None, "high": None}
        rows.append(
            DotRow(name, _arm_style(summary, name), interval["mean"], interval["low"], interval["high"], arm["by_seed"])
        )
        if name in (summary["primary"]["base"], summary["primary"]["upper"]) and interval["mean"] is not None:
            references.append(Reference(name, interval["mean"]))
    means_text = ", ".join(f"{row.name} {100 * row.mean:.1f} %" for row in rows if row.mean is not None)
    return dot_plot(rows, references, label=f"success of each arm with 95 % intervals and a dot a seed: {means_text}")


def _compare_worlds(summary: JsonObject) -> list[tuple[str, list[tuple[str, _Cell | None]]]]:
    """Returns by world, over the primary tiers: the primary arm against its control and its base."""
    primary = summary["primary"]
    names = dict.fromkeys(
        str(difference["world"])
        for difference in summary["differences"]
        if difference["world"] and not difference["tier"]
    )
    sides = [primary[role] for role in ("control", "base") if _find_difference(summary, primary["arm"], primary[role])]
    return [
        (
            world or "all worlds",
            [
                (side, _format_difference(_find_difference(summary, primary["arm"], side, world=world)))
                for side in sides
            ],
        )
        for world in ["", *names]
        if sides
    ]


def _scale_end(summary: JsonObject) -> float:
    """Returns the end of the scale that all drawn differences share."""
    primary = summary["primary"]
    intervals = [
        difference["interval"]
        for difference in summary["differences"]
        if difference["against"] == primary["control"] and (difference["tier"] or not difference["world"])
    ]
    ends = [abs(float(difference[end] or 0.0)) for difference in intervals for end in _ENDS]
    return max([0.1, *ends]) * 1.05


def _format_cell(interval: JsonObject | None) -> _Cell | None:
    if interval is None:
        return None
    low, high = interval["low"], interval["high"]
    small = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
    return _Cell(f"{100 * interval['mean']:.1f} %", small)


def _format_difference(difference: JsonObject | None) -> _Cell | None:
    if difference is None:
        return None
    mean, low, high = (
        "" if difference["interval"][end] is None else f"{100 * difference['interval'][end]:+.1f}".replace("-", "−")
        for end in _ENDS
    )
    return _Cell(mean, f"{low} to {high}" if low and high else "")


def _draw_difference(difference: JsonObject | None, scale_end: float) -> Markup:
    """Draws a difference with its interval."""
    if difference is None:
        return Markup("")
    mean, low, high = (nan if difference["interval"][end] is None else difference["interval"][end] for end in _ENDS)
    label = f"{difference['arm']} minus {difference['against']} {difference['world']} {difference['tier']}".strip()
    return interval_strip(mean, low, high, scale_end=scale_end, label=f"{label}: {100 * mean:+.1f} points")

"""A study for people: the plain table for a terminal, and one page with its table and picture.

Both show the summary as plain data (`bench.verdict.as_json`). Everything in it may have been written by others: names,
questions and messages go through `escape` here or through the template's autoescaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evolvent.view.charts import ArmStyle, Reference, interval_strip, marker, strip_scale
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, large, plain
from evolvent.view.templating import environment_of, written

__all__ = ["study_page", "study_table"]

Data = Mapping[str, Any]
_ENDS = ("mean", "low", "high")
_WIDE = 80  # columns that the tables of one row a panel need


# ---------------------------------------------------------------- what both show


def _apart(summary: Data, arm: str, against: str, *, world: str = "", tier: str = "") -> Data | None:
    """The difference of two arms over a world and tier, where the summary holds it."""
    wanted = (arm, against, world, tier)
    return next((d for d in summary["differences"] if (d["arm"], d["against"], d["world"], d["tier"]) == wanted), None)


def _panels(summary: Data) -> dict[tuple[str, str], dict[str, Data]]:
    """(world, tier) -> arm -> rate, in the order of the summary."""
    found: dict[tuple[str, str], dict[str, Data]] = {}
    for rate in summary["rates"]:
        found.setdefault((rate["world"], rate["tier"]), {})[rate["arm"]] = rate
    return found


def _style(summary: Data, name: str) -> ArmStyle:
    primary = summary["primary"]
    known: Mapping[str, ArmStyle] = {
        primary["upper"]: "expert",
        primary["base"]: "base",
        primary["control"]: "control",
        primary["arm"]: "evolve",
    }
    return known.get(name, "other")


def _each(arm: Data, name: str) -> float | None:
    """Tokens of a finished seed, on average."""
    return arm["tokens"][name] / arm["finished"] if arm["finished"] and name in arm["tokens"] else None


# ---------------------------------------------------------------- the table of a terminal


def study_table(summary: Data, *, width: int = 80) -> RenderableType:
    """What the command prints: a row an arm, a row a panel, what failed, and the verdict.

    Args:
        width: columns of the terminal; below 80 every row is a block of lines instead.
    """
    primary, total = summary["primary"], len(summary["seeds"])
    control = primary["control"]
    arms: list[tuple[str, ...]] = [
        (
            _line(arm["name"], 14),
            _rate(arm["interval"]),
            _points(_apart(summary, arm["name"], control)),
            f"{arm['finished']}/{total}",
            large(_each(arm, "computed")),
            f"{arm['cpu_s'] / 3600:.2f}",
        )
        for arm in summary["arms"]
    ]
    sides = (primary["base"], primary["arm"], control)
    panels: list[tuple[str, ...]] = [
        (
            _line(world, 12),
            _line(tier, 8),
            str(next(iter(own.values()))["tasks"]),
            *(_mean(own.get(name)) for name in sides),
            _points(_apart(summary, primary["arm"], control, world=world, tier=tier)),
        )
        for (world, tier), own in _panels(summary).items()
    ]
    arm_columns = ("arm", "success, 95 %", "- control, 95 %", "seeds", "computed", "CPU h")
    panel_columns = ("world", "tier", "tasks", *(_line(name, 9) for name in sides), "difference, 95 %")
    parts: list[RenderableType] = []
    for columns, rows in ((arm_columns, arms), (panel_columns, panels)):
        heads = 1 if columns == arm_columns else 2
        wide = width >= _WIDE
        parts += [_grid(columns, rows)] if wide else [_block(columns, row, heads=heads) for row in rows]
        parts.append(Text())
    lost = [f"{one['arm']}, seed {one['seed']}: {one['why']}" for one in summary["unfinished"]]
    parts += [Text(_line(line, 300)) for line in lost[:20]]
    parts += [Text(f"and {len(lost) - 20} more without a result")] if len(lost) > 20 else []
    parts += [Text()] if lost else []
    return Group(*parts, Text(_line(summary["sentence"], 1000)))


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))
    for index, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if index == 0 or name == "tier" else "right", no_wrap=index > 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _block(columns: Sequence[str], row: Sequence[str], *, heads: int) -> Text:
    cells = list(zip(columns, row, strict=True))[heads:]
    return Text("\n".join([" ".join(row[:heads]), *(f"  {name} {cell}" for name, cell in cells)]))


def _line(text: str, limit: int) -> str:
    shown = " ".join(plain(clip(text, 4000)).split())
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def _rate(interval: Data | None) -> str:
    if interval is None:
        return "-"
    mean = f"{100 * interval['mean']:.1f}"
    return mean if interval["low"] is None else f"{mean} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _mean(rate: Data | None) -> str:
    return "-" if rate is None else f"{100 * rate['interval']['mean']:.1f}"


def _points(found: Data | None) -> str:
    if found is None:
        return "-"
    one = found["interval"]
    mean = f"{100 * one['mean']:+.1f}"
    return mean if one["low"] is None else f"{mean} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"


# ---------------------------------------------------------------- the page


@dataclass(frozen=True, slots=True)
class _Cell:
    """A number and what stands small below it."""

    text: str
    small: str = ""


@dataclass(frozen=True, slots=True)
class _ArmRow:
    arm: Data
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


def study_page(summary: Data) -> str:
    """The summary as one HTML document without a script: the verdict, the picture, the tables, what failed."""
    reach = _reach(summary)
    return written(
        environment_of(longest=2000),
        "study.html",
        {
            "data": summary,
            "primary": summary["primary"],
            "state": _state(summary["verdict"]),
            "tiles": _tiles(summary),
            "picture": _picture(summary),
            "scale": strip_scale(reach),
            "arms": _arms(summary, reach),
            "panels": _panel_rows(summary, reach),
            "worlds": _worlds(summary),
            "seeds": [str(seed) for seed in summary["seeds"]],
            "finished": sum(arm["finished"] for arm in summary["arms"]),
        },
    )


def _arms(summary: Data, reach: float) -> list[_ArmRow]:
    rows = []
    for arm in summary["arms"]:
        apart = _apart(summary, arm["name"], summary["primary"]["control"])
        tokens = tuple(large(_each(arm, name)) for name in ("generated", "computed", "trained"))
        mark, rate = marker(_style(summary, arm["name"])), _cell(arm["interval"])
        rows.append(_ArmRow(arm, mark, rate, _signed(apart), _strip(apart, reach), tokens))
    return rows


def _panel_rows(summary: Data, reach: float) -> list[_PanelRow]:
    primary, rows = summary["primary"], []
    for (world, tier), own in _panels(summary).items():
        rates = [_cell(own[arm["name"]]["interval"]) if arm["name"] in own else None for arm in summary["arms"]]
        apart = _apart(summary, primary["arm"], primary["control"], world=world, tier=tier)
        tasks = next(iter(own.values()))["tasks"]
        rows.append(_PanelRow(world, tier, tasks, rates, _signed(apart), _strip(apart, reach)))
    return rows


def _state(verdict: str) -> str:
    return "finished" if verdict == "improves" else "unknown" if verdict.startswith("no difference") else "failed"


def _tiles(summary: Data) -> list[tuple[Markup, str, str]]:
    """Marker, name and success of the arms that the verdict is about."""
    primary, means = summary["primary"], {arm["name"]: arm["interval"] for arm in summary["arms"]}
    names = dict.fromkeys(primary[role] for role in ("base", "control", "arm", "upper"))
    return [
        (marker(_style(summary, name)), name, "–" if means[name] is None else f"{100 * means[name]['mean']:.1f} %")
        for name in names
        if name in means
    ]


def _picture(summary: Data) -> Markup:
    rows, references = [], []
    for arm in summary["arms"]:
        name, one = arm["name"], arm["interval"] or {"mean": None, "low": None, "high": None}
        rows.append(DotRow(name, _style(summary, name), one["mean"], one["low"], one["high"], arm["by_seed"]))
        if name in (summary["primary"]["base"], summary["primary"]["upper"]) and one["mean"] is not None:
            references.append(Reference(name, one["mean"]))
    said = ", ".join(f"{row.name} {100 * row.mean:.1f} %" for row in rows if row.mean is not None)
    return dot_plot(rows, references, label=f"success of each arm with 95 % intervals and a dot a seed: {said}")


def _worlds(summary: Data) -> list[tuple[str, list[tuple[str, _Cell | None]]]]:
    """By world, over the primary tiers: the primary arm against its control and its base."""
    primary = summary["primary"]
    names = dict.fromkeys(str(one["world"]) for one in summary["differences"] if one["world"] and not one["tier"])
    sides = [primary[role] for role in ("control", "base") if _apart(summary, primary["arm"], primary[role])]
    return [
        (world or "all worlds", [(side, _signed(_apart(summary, primary["arm"], side, world=world))) for side in sides])
        for world in ["", *names]
        if sides
    ]


def _reach(summary: Data) -> float:
    """The end of the scale that all drawn differences share."""
    primary = summary["primary"]
    shown = [
        one["interval"]
        for one in summary["differences"]
        if one["against"] == primary["control"] and (one["tier"] or not one["world"])
    ]
    ends = [abs(float(one[end] or 0.0)) for one in shown for end in _ENDS]
    return max([0.1, *ends]) * 1.05


def _cell(interval: Data | None) -> _Cell | None:
    if interval is None:
        return None
    low, high = interval["low"], interval["high"]
    small = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
    return _Cell(f"{100 * interval['mean']:.1f} %", small)


def _signed(found: Data | None) -> _Cell | None:
    if found is None:
        return None
    mean, low, high = (
        "" if found["interval"][end] is None else f"{100 * found['interval'][end]:+.1f}".replace("-", "−")
        for end in _ENDS
    )
    return _Cell(mean, f"{low} to {high}" if low and high else "")


def _strip(found: Data | None, reach: float) -> Markup:
    """A difference, drawn."""
    if found is None:
        return Markup("")
    mean, low, high = (nan if found["interval"][end] is None else found["interval"][end] for end in _ENDS)
    label = f"{found['arm']} minus {found['against']} {found['world']} {found['tier']}".strip()
    return interval_strip(mean, low, high, reach=reach, label=f"{label}: {100 * mean:+.1f} points")

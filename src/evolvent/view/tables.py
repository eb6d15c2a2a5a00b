"""The plain table at the end of a run: success per world and tier, base to last round, and the control.

Made of rich's `Text` only, never of its markup, with hidden characters shown as code points: a name in the run's files
can neither colour the terminal nor send it a control sequence. ASCII throughout, but for what names hold.
"""

from __future__ import annotations

from math import isnan

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evolvent.stats import Interval
from evolvent.view.data import ReportData, Result
from evolvent.view.escape import clip, show_hidden
from evolvent.view.outcome import Panel, build_headline, build_panels, main_arm

__all__ = ["summary"]

_MIN_TABLE_WIDTH = 76  # columns that the table of one row a panel needs


def summary(data: ReportData, *, width: int = 80) -> RenderableType:
    """Builds the summary of `make evolve`: the sentence about the control, then a row (or a narrow block) per panel.

    Args:
        width: columns of the terminal; below 76 every panel is a block of lines of at most 36 columns.
    """
    evaluated_panels = build_panels(data)
    sentence = Text(_clip_line(build_headline(data, evaluated_panels).sentence, 600))
    if not evaluated_panels:
        return sentence
    arm_label = _clip_line(main_arm(data), 12)
    if width >= _MIN_TABLE_WIDTH:
        return Group(_build_table(evaluated_panels, arm_label), Text(), sentence)
    return Group(*(_build_block(panel, arm_label) for panel in evaluated_panels), Text(), sentence)


def _build_table(evaluated_panels: list[Panel], arm: str) -> Table:
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("world", "tier"):
        table.add_column(Text(name), overflow="fold", max_width=16)
    for name in ("tasks", "base", arm, "control"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column(Text("difference, 95 %"), no_wrap=True)
    for panel in evaluated_panels:
        result = panel.compared or panel.base or panel.control
        cells = (
            _clip_line(panel.world),
            _clip_line(panel.tier),
            str(result.n) if result else "-",
            _format_rate(panel.base),
            _format_rate(panel.compared),
            _format_rate(panel.control),
            _format_difference(panel),
        )
        table.add_row(*map(Text, cells))
    return table


def _build_block(panel: Panel, arm: str) -> Text:
    lines = [f"{_clip_line(panel.world, 18)} {_clip_line(panel.tier, 16)}", f"  base {_format_rate(panel.base)}"]
    lines += [
        f"  {arm} {_format_rate(panel.compared)}, control {_format_rate(panel.control)}",
        f"  difference {_format_difference(panel)}",
    ]
    return Text("\n".join(lines))


def _clip_line(text: str, limit: int = 40) -> str:
    return clip(" ".join(show_hidden(text).split()), limit)


def _format_rate(result: Result | None) -> str:
    if result is None:
        return "-"
    return "withheld" if result.mean is None else f"{100 * result.mean:.1f} %"


def _format_difference(panel: Panel) -> str:
    if panel.difference is None:
        return {"not evaluated yet": "-"}.get(panel.withheld, panel.withheld)
    return _format_points(panel.difference)


def _format_points(interval: Interval) -> str:
    if isnan(interval.low):
        return f"{100 * interval.mean:+.1f}"
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"

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
from evolvent.view.escape import clip, plain
from evolvent.view.outcome import Panel, headline, main_arm, panels

__all__ = ["summary"]

_WIDE = 76  # columns that the table of one row a panel needs


def summary(data: ReportData, *, width: int = 80) -> RenderableType:
    """What `make evolve` prints: the sentence about the control, then a row (or, in few columns, a block) a panel.

    Args:
        width: columns of the terminal; below 76 every panel is a block of lines of at most 36 columns.
    """
    shown = panels(data)
    sentence = Text(_line(headline(data, shown).sentence, 600))
    if not shown:
        return sentence
    arm = _line(main_arm(data), 12)
    if width >= _WIDE:
        return Group(_table(shown, arm), Text(), sentence)
    return Group(*(_block(panel, arm) for panel in shown), Text(), sentence)


def _table(shown: list[Panel], arm: str) -> Table:
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("world", "tier"):
        table.add_column(Text(name), overflow="fold", max_width=16)
    for name in ("tasks", "base", arm, "control"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column(Text("difference, 95 %"), no_wrap=True)
    for panel in shown:
        result = panel.compared or panel.base or panel.control
        cells = (
            _line(panel.world),
            _line(panel.tier),
            str(result.n) if result else "-",
            _rate(panel.base),
            _rate(panel.compared),
            _rate(panel.control),
            _difference(panel),
        )
        table.add_row(*map(Text, cells))
    return table


def _block(panel: Panel, arm: str) -> Text:
    lines = [f"{_line(panel.world, 18)} {_line(panel.tier, 16)}", f"  base {_rate(panel.base)}"]
    lines += [f"  {arm} {_rate(panel.compared)}, control {_rate(panel.control)}", f"  difference {_difference(panel)}"]
    return Text("\n".join(lines))


def _line(text: str, limit: int = 40) -> str:
    return clip(" ".join(plain(text).split()), limit)


def _rate(result: Result | None) -> str:
    if result is None:
        return "-"
    return "withheld" if result.mean is None else f"{100 * result.mean:.1f} %"


def _difference(panel: Panel) -> str:
    if panel.difference is None:
        return {"not evaluated yet": "-"}.get(panel.withheld, panel.withheld)
    return _points(panel.difference)


def _points(one: Interval) -> str:
    if isnan(one.low):
        return f"{100 * one.mean:+.1f}"
    return f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"

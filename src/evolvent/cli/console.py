"""The terminal: a console that works without colour, without a terminal, at 40 columns and in any locale."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich.box import ASCII, SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from evolvent.view.escape import plain

__all__ = ["console_for", "open_console", "rate", "table"]


class _Console(Console):
    """A console that leaves it to the command to end quietly when its reader has gone away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def open_console(*, stderr: bool = False) -> Console:
    """The console of this process. Characters that the locale cannot show become `?` instead of an error."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors="replace")
    return console_for(stream, os.environ)


def console_for(stream: TextIO, environment: Mapping[str, str]) -> Console:
    """A console on a stream: never marks up what it prints, colours only on a terminal and without `NO_COLOR`.

    Without a terminal it is as wide as COLUMNS says, else 80.
    """
    wide = environment.get("COLUMNS", "")
    width = max(20, int(wide)) if wide.isdigit() and int(wide) else None
    if width is None and not stream.isatty():
        width = 80
    return _Console(
        file=stream,
        width=width,
        no_color=bool(environment.get("NO_COLOR")) or None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


def table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()
) -> RenderableType:
    """A table whose cells are plain text: hidden characters shown, nothing marked up.

    Only the last column may wrap. Where the console is too narrow for that, every row is a block instead: its first
    cell, then a line a column.

    Args:
        numbers: the columns to align right.
    """
    cells = [[plain("-" if cell is None else str(cell)) for cell in row] for row in rows]
    ascii_only = not console.encoding.lower().startswith("utf")
    made = Table(
        box=ASCII if ascii_only else SIMPLE_HEAD,
        show_edge=ascii_only,
        pad_edge=False,
        safe_box=True,
        header_style="bold",
    )
    for column in columns:
        made.add_column(
            column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=column != columns[-1]
        )
    for row in cells:
        made.add_row(*row)
    if Measurement.get(console, console.options.update(width=10_000), made).minimum <= console.width:
        return made
    return Text("\n".join(_block(columns, row) for row in cells), overflow="fold")


def _block(columns: Sequence[str], row: Sequence[str]) -> str:
    return "\n".join([row[0], *(f"  {name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True))])


def rate(value: float | None) -> str:
    """A share as a percentage, or `-` where it is not known."""
    return "-" if value is None else f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"

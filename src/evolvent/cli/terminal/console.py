"""The terminal: a console that works without color, without a terminal, at 40 columns and in any locale."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich.box import ASCII, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from evolvent.view.escape import show_hidden

__all__ = ["format_rate", "make_console", "open_console", "render_table"]

_MIN_WRAPPED_WIDTH = 20  # characters; a narrower last column is harder to read than a block a row


class _Console(Console):
    """A console that lets the command end quietly when the reader of its output has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def open_console(*, stderr: bool = False) -> Console:
    """Opens the console of this process. Characters that the locale cannot show become `?` instead of an error."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        stream.reconfigure(errors="replace")
    return make_console(stream, os.environ)


def make_console(stream: TextIO, environment: Mapping[str, str]) -> Console:
    """Makes a console on a stream without markup; colors appear only on a terminal and without `NO_COLOR`.

    Without a terminal it is as wide as COLUMNS says, else 80.
    """
    columns_text = environment.get("COLUMNS", "")
    width = max(20, int(columns_text)) if columns_text.isdigit() and int(columns_text) else None
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


def render_table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()
) -> RenderableType:
    """Renders a table whose cells are plain text: hidden characters are shown, and nothing is marked up.

    Only the last column may wrap, and not below 20 characters. Where the console is too narrow for that, every row is
    a block instead: its first cell, then a line for each column.

    Args:
        columns: the headers.
        rows: the cells of each row; None becomes "-".
        numbers: the columns to align right.
    """
    cells = [[show_hidden("-" if cell is None else str(cell)) for cell in row] for row in rows]
    ascii_only = not console.encoding.lower().startswith("utf")
    rich_table = Table(
        box=ASCII if ascii_only else SIMPLE_HEAD,
        show_edge=ascii_only,
        pad_edge=False,
        safe_box=True,
        header_style="bold",
    )
    for column in columns:
        rich_table.add_column(
            column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=column != columns[-1]
        )
    for row in cells:
        rich_table.add_row(*row)
    full_width = Measurement.get(console, console.options.update(width=10_000), rich_table).maximum
    last_width = max((cell_len(row[-1]) for row in [columns, *cells] if row), default=0)
    if full_width - max(0, last_width - _MIN_WRAPPED_WIDTH) <= console.width:
        return rich_table
    return Text("\n".join(_format_block(columns, row) for row in cells), overflow="fold")


def _format_block(columns: Sequence[str], row: Sequence[str]) -> str:
    return "\n".join([row[0], *(f"  {name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True))])


def format_rate(ratio: float | None) -> str:
    """Formats a ratio as a percentage, or `-` where it is None."""
    return "-" if ratio is None else f"{ratio:.0%}" if ratio in (0, 1) else f"{ratio:.1%}"

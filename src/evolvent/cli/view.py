"""`evolvent view RUN`: write the report of a run and name it."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evolvent.cli.parsing import Parser

__all__ = ["run"]


def run(words: Sequence[str], console: Console) -> int:
    """Write the report, finished run or not; returns the exit code."""
    parser = Parser("evolvent view", "Write the report of a run: one page that needs no network.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--to", type=Path, help="the file to write, or a folder (default: RUN/report.html)")
    parser.add("--open", action="store_true", help="open it in the browser")
    found = parser.read(words)
    from evolvent.view import report

    path: Path = found.to or found.run
    path = path / "report.html" if path.is_dir() or not found.to else path
    report(found.run, path)
    console.print(str(path), soft_wrap=True)
    if found.open and not webbrowser.open(path.resolve().as_uri()):
        console.print("no browser could be opened")
    return 0

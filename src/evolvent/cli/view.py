"""`evolvent view RUN`: write the report of a run and name it; `evolvent view --serve`: look at runs in the browser."""

from __future__ import annotations

import argparse
import secrets
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli.parsing import Parser
from evolvent.cli.record import RUNS
from evolvent.errors import ConfigError, EvolventError, Problem

__all__ = ["board_of", "run"]

_GRACE_S = 2  # how long requests may take to end when the viewer is stopped


def _parser() -> Parser:
    parser = Parser(
        "evolvent view",
        "Write the report of a run: one page that needs no network. With --serve: look at a run, or at all runs below "
        "a folder, in the browser, live, until interrupted; at this machine only.",
    )
    parser.add(
        "run", type=Path, nargs="?", help=f"the folder of a run; with --serve also one of runs (default: {RUNS})"
    )
    parser.add("--to", type=Path, help="the file to write, or a folder (default: RUN/report.html)")
    parser.add("--serve", action="store_true", help="serve the viewer instead")
    parser.add("--port", type=int, help="of the viewer (default: a free one)")
    parser.add("--tokenizer", type=Path, metavar="FOLDER", help="for the tokens of runs that hold no tokenizer")
    parser.add("--open", action="store_true", help="open it in the browser")
    return parser


def run(words: Sequence[str], console: Console) -> int:
    """Write the report, finished run or not, or serve the viewer; returns the exit code."""
    found = _parser().read(words)
    _check(found)
    if found.serve:
        return _serve(found, console)
    from evolvent.view import report

    path: Path = found.to or found.run
    path = path / "report.html" if path.is_dir() or not found.to else path
    report(found.run, path)
    console.print(str(path), soft_wrap=True)
    if found.open and not webbrowser.open(path.resolve().as_uri()):
        console.print("no browser could be opened")
    return 0


def _check(found: argparse.Namespace) -> None:
    """Refuse what does not go together; ConfigError with all of it."""
    problems = []
    if not found.serve:
        if found.run is None:
            problems.append(Problem("run", "got no run", "name its folder, or --serve all of them"))
        problems += [
            Problem(f"--{name}", "only the viewer has it", "add --serve")
            for name in ("port", "tokenizer")
            if getattr(found, name) is not None
        ]
    elif found.to is not None:
        problems.append(Problem("--to", "the viewer writes no file", "leave out --to, or --serve"))
    if found.port is not None and not 0 <= found.port < 65536:
        problems.append(Problem("--port", f"got {found.port}, expected 0 to 65535"))
    if found.tokenizer is not None and not found.tokenizer.exists():
        problems.append(Problem("--tokenizer", f"there is nothing at {found.tokenizer}"))
    if problems:
        raise ConfigError(problems)


def _serve(found: argparse.Namespace, console: Console) -> int:
    import uvicorn

    from evolvent.serve.listen import listen, url_of
    from evolvent.view.app import viewer_app
    from evolvent.view.door import ENTER
    from evolvent.view.escape import plain
    from evolvent.web import bound_to

    folder, token = found.run or RUNS, secrets.token_urlsafe(24)
    app = viewer_app(folder, access=bound_to("127.0.0.1"), token=token, boards=board_of, tokenizer=found.tokenizer)
    with listen("127.0.0.1", found.port or 0) as bound:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        where = f"{url_of(bound)}{ENTER}{token}"
        console.print(plain(f"viewing {folder} at {where} (Ctrl-C ends)"), soft_wrap=True)
        console.file.flush()
        if found.open and not webbrowser.open(where):
            console.print("no browser could be opened")
        uvicorn.Server(config).run(sockets=[bound])
    return 0


def board_of(files: Sequence[Path]) -> tuple[Mapping[str, Any] | None, list[tuple[str, str]]]:
    """The leaderboard of results files, None where none can be read; and those that cannot, each with the reason."""
    from evolvent.bench.leaderboard import board
    from evolvent.bench.suite import Sheet, read_sheet

    sheets: list[Sheet] = []
    unread: list[tuple[str, str]] = []
    for file in files:
        try:
            sheets.append(read_sheet(file))
        except EvolventError as error:
            unread.append((file.parent.name, str(error)))
    return (board(sheets) if sheets else None), unread

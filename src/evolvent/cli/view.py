"""`evolvent view RUN` writes the report of a run; `evolvent view --serve` shows runs in the browser."""

from __future__ import annotations

import argparse
import secrets
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from evolvent.cli.setup.record import RUNS
from evolvent.cli.setup.settings import read_verb
from evolvent.cli.terminal.parsing import Parser
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.files import write_atomic

__all__ = ["read_leaderboard", "run"]

_RUN_FILES = (
    "run.json",
    "config.toml",
    "stages.jsonl",
    "metrics.jsonl",
    "results.jsonl",
    "searches.jsonl",
    "trajectories",
)
_OWN_PAGE_VERBS = ("train sequence", "train mat", "train agdc", "bench seek")  # their pages show more than a run keeps
_SHUTDOWN_TIMEOUT_S = 2  # how long requests may take to end when the viewer is stopped


def _build_parser() -> Parser:
    parser = Parser(
        "evolvent view",
        "Write the report of a run: one page that needs no network. With --serve: look at a run, or at all runs below "
        "a folder, in the browser, live, until interrupted; at this machine only.",
    )
    parser.add(
        "run", type=Path, nargs="?", help=f"the folder of a run; with --serve also one of runs (default: {RUNS})"
    )
    parser.add(
        "--to",
        dest="output_path",
        metavar="FILE",
        type=Path,
        help="the file to write, or a folder (default: RUN/report.html)",
    )
    parser.add("--serve", action="store_true", help="serve the viewer instead")
    parser.add("--port", type=int, help="of the viewer (default: a free one)")
    parser.add("--tokenizer", type=Path, metavar="FOLDER", help="for the tokens of runs that hold no tokenizer")
    parser.add("--open", action="store_true", help="open it in the browser")
    return parser


def run(argv: Sequence[str], console: Console) -> int:
    """Writes the report, finished run or not, or serves the viewer; returns the exit code."""
    args = _build_parser().parse_argv(argv)
    _check_arguments(args)
    if args.serve:
        return _serve_viewer(args, console)
    from evolvent.view import report

    if args.run.is_dir() and not any((args.run / marker).exists() for marker in _RUN_FILES):
        hint = "pass the folder of a run (evolvent runs list), or --serve to view all runs below a folder"
        raise ConfigError([Problem("run", f"{args.run} does not hold a run", hint)])
    path: Path = args.output_path or args.run
    path = path / "report.html" if path.is_dir() or not args.output_path else path
    if read_verb(args.run) in _OWN_PAGE_VERBS:
        _copy_own_page(args.run, path)
    else:
        report(args.run, path)
    console.print(str(path), soft_wrap=True)
    if args.open and not webbrowser.open(path.resolve().as_uri()):
        console.print("no browser could be opened")
    return 0


def _copy_own_page(run_folder: Path, path: Path) -> None:
    """Copies the page that the command of a run wrote at its end; nothing is drawn over it.

    Raises:
        ConfigError: the run has not ended yet.
    """
    page = run_folder / "report.html"
    if not page.is_file():
        verb = read_verb(run_folder)
        message = f"evolvent {verb} writes the report of {run_folder} at its end, which it has not reached"
        raise ConfigError([Problem("run", message, f"wait for it, or: evolvent {verb} --resume {run_folder}")])
    if path.resolve() != page.resolve():
        write_atomic(path, page.read_text(encoding="utf-8"))


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuses contradictory arguments; raises ConfigError with all problems."""
    problems = []
    if not args.serve:
        if args.run is None:
            problems.append(Problem("run", "no run given", "pass its folder, or pass --serve to view all runs"))
        problems += [
            Problem(f"--{name}", "only the viewer uses it", "add --serve")
            for name in ("port", "tokenizer")
            if getattr(args, name) is not None
        ]
    elif args.output_path is not None:
        problems.append(Problem("--to", "the viewer does not write a file", "leave out --to or --serve"))
    if args.port is not None and not 0 <= args.port < 65536:
        problems.append(Problem("--port", f"got {args.port}, expected 0 to 65535"))
    if args.tokenizer is not None and not args.tokenizer.exists():
        problems.append(Problem("--tokenizer", f"{args.tokenizer} does not exist"))
    if problems:
        raise ConfigError(problems)


def _serve_viewer(args: argparse.Namespace, console: Console) -> int:
    from evolvent.serve.listen import listen, listening_url
    from evolvent.serve.protocol import LimitedServer, make_server_config
    from evolvent.view.app import viewer_app
    from evolvent.view.door import ENTRY_PATH
    from evolvent.view.escape import show_hidden
    from evolvent.web import build_access

    folder, token = args.run or RUNS, secrets.token_urlsafe(24)
    app = viewer_app(
        folder, access=build_access("127.0.0.1"), token=token, boards=read_leaderboard, tokenizer=args.tokenizer
    )
    with listen("127.0.0.1", args.port or 0) as bound:
        config = make_server_config(app, ws="none", lifespan="off", timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S)
        address = f"{listening_url(bound)}{ENTRY_PATH}{token}"
        console.print(show_hidden(f"viewing {folder} at {address} (Ctrl-C ends)"), soft_wrap=True)
        console.file.flush()
        if args.open and not webbrowser.open(address):
            console.print("no browser could be opened")
        LimitedServer(config).run(sockets=[bound])
    return 0


def read_leaderboard(files: Sequence[Path]) -> tuple[Mapping[str, object] | None, list[tuple[str, str]]]:
    """Builds the leaderboard of results files.

    Returns:
        (leaderboard, or None where no file can be read; (name, reason) of the files that cannot be read).
    """
    from evolvent.bench.leaderboard import build_leaderboard
    from evolvent.bench.suite import Sheet, read_sheet

    sheets: list[Sheet] = []
    failures: list[tuple[str, str]] = []
    for file in files:
        try:
            sheets.append(read_sheet(file))
        except EvolventError as error:
            failures.append((file.parent.name, str(error)))
    return (build_leaderboard(sheets) if sheets else None), failures

"""`evolvent bench`: agent evaluation, problem sets, the leaderboard, comparisons of two results, and study verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.bench.compare import Comparison, ComparisonRow

__all__ = ["run"]

_VERB_HELP = {
    "agent-eval": "one agent on the test panels of all worlds, a results file",
    "bfcl": "function calling on BFCL v4, and on its items in other names",
    "calls": "F1 of called functions and arguments on the samples of a file",
    "code": "pass@k on HumanEval, MBPP, or files in their layouts",
    "trad": "TRAD and its family with one model on the same tasks",
    "seek": "planners and policies of AGDC that look for a source",
    "leaderboard": "a page from many results files",
    "compare": "two results, paired task by task",
    "study": "the verdict, tables and page of a controlled study",
}


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one of the measuring verbs; returns the exit code."""
    verbs = {
        "agent-eval": _run_agent_eval,
        "bfcl": _run_bfcl,
        "calls": _run_calls,
        "code": _run_code,
        "trad": _run_trad,
        "seek": _run_seek,
        "leaderboard": _run_leaderboard,
        "compare": _run_compare,
        "study": _run_study,
    }
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent bench", _VERB_HELP), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent bench", argv, verbs)
    return verbs[verb](verb_argv, console)


def _run_agent_eval(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.agenteval import run as agent_eval

    return agent_eval(argv, console)


def _run_code(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.bfclbench import run_code

    return run_code(argv, console)


def _run_bfcl(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.bfclbench import run as bfcl

    return bfcl(argv, console)


def _run_calls(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.bfclbench import run_calls

    return run_calls(argv, console)


def _run_trad(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.tradbench import run as trad

    return trad(argv, console)


def _run_seek(argv: Sequence[str], console: Console) -> int:
    from evolvent.cli.train.agdc import seek

    return seek(argv, console)


def _run_leaderboard(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench leaderboard", "A page and a table from the results files of agent-eval.")
    parser.add("files", type=Path, nargs="+", help="results files, or folders of agent-eval runs")
    parser.add(
        "--to",
        dest="output_path",
        type=Path,
        metavar="FILE",
        default=Path("leaderboard.html"),
        help="the page to write",
    )
    args = parser.parse_argv(argv)
    from evolvent.bench.leaderboard import build_leaderboard
    from evolvent.bench.suite import read_sheet
    from evolvent.files import write_atomic
    from evolvent.view.leaderboard import leaderboard_page, tabulate_leaderboard

    files = [file / "agent-eval.json" if file.is_dir() else file for file in args.files]
    leaderboard = build_leaderboard([read_sheet(file) for file in files])
    write_atomic(args.output_path, leaderboard_page(leaderboard))
    columns, rows = tabulate_leaderboard(leaderboard)
    console.print(render_table(console, columns, rows, numbers=columns[1:]))
    console.print(f"page {show_hidden(str(args.output_path))}", soft_wrap=True)
    return 0


def _run_compare(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench compare", "A minus B on the same tasks, with 95 % intervals.")
    for name in ("a", "b"):
        parser.add(name, metavar=name.upper(), help="RUN, RUN:ARM, RUN:ARM@ROUND, STUDY:ARM or STUDY:ARM@SEED")
    parser.add("--json", action="store_true", help="print JSON instead of the table")
    args = parser.parse_argv(argv)
    from evolvent.bench.compare import compare_results, read_result

    comparison = compare_results(read_result(args.a), read_result(args.b))
    if args.json:
        console.print(json.dumps(_to_json(comparison), indent=1), soft_wrap=True)
        return 0
    columns = ("world", "tier", "tasks", "A", "B", "A - B, 95 %")
    rows = [_format_row(row, row.world, row.tier) for row in comparison.rows]
    rows.append(_format_row(comparison.overall, "all", "panels"))
    console.print(render_table(console, columns, rows, numbers=columns[2:5]))
    for line in (f"A {comparison.a}", f"B {comparison.b}", *comparison.notes, *_list_unpaired(comparison)):
        console.print(show_hidden(line), soft_wrap=True)
    console.print(_describe_measure(comparison), soft_wrap=True)
    return 0


def _format_row(row: ComparisonRow, world: str, tier: str) -> tuple[object, ...]:
    if row.a is None or row.b is None or row.difference is None:
        return world, tier, row.tasks, None, None, row.withheld
    difference = row.difference
    interval = "" if isnan(difference.low) else f" [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    return world, tier, row.tasks, f"{100 * row.a:.1f}", f"{100 * row.b:.1f}", f"{100 * difference.mean:+.1f}{interval}"


def _list_unpaired(comparison: Comparison) -> list[str]:
    unpaired_counts = [
        (name, sum(getattr(row, side) for row in comparison.rows)) for name, side in (("A", "only_a"), ("B", "only_b"))
    ]
    return [f"{count} tasks of {name} only: not compared" for name, count in unpaired_counts if count]


def _describe_measure(comparison: Comparison) -> str:
    measure_text = "success in %, differences in points; the last row is the mean over the panels that both played"
    if len(comparison.seeds) > 1:
        return f"{measure_text}; {len(comparison.seeds)} seeds, intervals over seeds and kinds of tasks"
    return f"{measure_text}; one seed each: intervals are over kinds of tasks only, another seed may differ"


def _to_json(comparison: Comparison) -> dict[str, object]:
    """Converts a comparison to JSON values; an interval without ends has null."""

    def row_to_json(row: ComparisonRow) -> dict[str, object]:
        difference = row.difference
        difference_json = (
            None
            if difference is None
            else {
                "mean": difference.mean,
                "low": None if isnan(difference.low) else difference.low,
                "high": None if isnan(difference.high) else difference.high,
                "n": difference.n,
            }
        )
        return asdict(row) | {"difference": difference_json}

    return {
        "a": comparison.a,
        "b": comparison.b,
        "seeds": list(comparison.seeds),
        "notes": list(comparison.notes),
        "rows": [row_to_json(row) for row in comparison.rows],
        "overall": row_to_json(comparison.overall),
    }


def _run_study(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench study", "What a study shows, finished or not: verdict, tables and page.")
    parser.add("folder", type=Path, help="the folder of the study")
    parser.add("--json", action="store_true", help="print JSON; a page only with --to")
    parser.add(
        "--to", dest="output_path", type=Path, metavar="FILE", help="the page to write (default: FOLDER/study.html)"
    )
    args = parser.parse_argv(argv)
    from evolvent.bench.verdict import read_summary, to_json
    from evolvent.files import write_atomic
    from evolvent.view.study import study_page, study_table

    folder: Path = args.folder
    summary = to_json(read_summary(folder))
    page_path: Path | None = args.output_path or (None if args.json else folder / "study.html")
    if page_path is not None:
        page_path = page_path / "study.html" if page_path.is_dir() else page_path
        write_atomic(page_path, study_page(summary))
    if args.json:
        console.print(json.dumps(summary, indent=1), soft_wrap=True)
        return 0
    console.print(study_table(summary, width=console.width))
    console.print(f"page {show_hidden(str(page_path))}", soft_wrap=True)
    return 0

"""`evolvent bench`: the suite of agents, sets of problems, the leaderboard, two results compared, a study's verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.parsing import Parser, choose, verbs_help
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.bench.compare import Comparison, Row

__all__ = ["run"]

_ABOUT = {
    "agent-eval": "one agent on the test panels of all worlds, a results file",
    "bfcl": "function calling on BFCL v4, and on its items in other names",
    "code": "pass@k on HumanEval, MBPP, or files in their layouts",
    "seek": "planners and policies of AGDC that look for a source",
    "leaderboard": "a page from many results files",
    "compare": "two results, paired task by task",
    "study": "the verdict, tables and page of a controlled study",
}


def run(words: Sequence[str], console: Console) -> int:
    """Run one of the verbs about measurements; returns the exit code."""
    verbs = {
        "agent-eval": _agent_eval,
        "bfcl": _bfcl,
        "code": _code,
        "seek": _seek,
        "leaderboard": _leaderboard,
        "compare": _compare,
        "study": _study,
    }
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent bench", _ABOUT), soft_wrap=True)
        return 0
    verb, rest = choose("evolvent bench", words, verbs)
    return verbs[verb](rest, console)


def _agent_eval(words: Sequence[str], console: Console) -> int:
    from evolvent.cli.agenteval import run as agent_eval

    return agent_eval(words, console)


def _code(words: Sequence[str], console: Console) -> int:
    from evolvent.cli.codebench import run as code

    return code(words, console)


def _bfcl(words: Sequence[str], console: Console) -> int:
    from evolvent.cli.bfclbench import run as bfcl

    return bfcl(words, console)


def _seek(words: Sequence[str], console: Console) -> int:
    from evolvent.cli.train_agdc import seek

    return seek(words, console)


def _leaderboard(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench leaderboard", "A page and a table from the results files of agent-eval.")
    parser.add("files", type=Path, nargs="+", help="results files, or folders of agent-eval runs")
    parser.add("--to", type=Path, metavar="FILE", default=Path("leaderboard.html"), help="the page to write")
    found = parser.read(words)
    from evolvent.bench.leaderboard import board
    from evolvent.bench.suite import read_sheet
    from evolvent.files import write_atomic
    from evolvent.view.leaderboard import leaderboard_page, leaderboard_rows

    files = [file / "agent-eval.json" if file.is_dir() else file for file in found.files]
    data = board([read_sheet(file) for file in files])
    write_atomic(found.to, leaderboard_page(data))
    columns, rows = leaderboard_rows(data)
    console.print(table(console, columns, rows, numbers=columns[1:]))
    console.print(f"page {plain(str(found.to))}", soft_wrap=True)
    return 0


def _compare(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench compare", "A minus B on the same tasks, with 95 % intervals.")
    for name in ("a", "b"):
        parser.add(name, metavar=name.upper(), help="RUN, RUN:ARM, RUN:ARM@ROUND, STUDY:ARM or STUDY:ARM@SEED")
    parser.add("--json", action="store_true", help="print JSON instead of the table")
    found = parser.read(words)
    from evolvent.bench.compare import compare, read_side

    compared = compare(read_side(found.a), read_side(found.b))
    if found.json:
        console.print(json.dumps(_plain(compared), indent=1), soft_wrap=True)
        return 0
    columns = ("world", "tier", "tasks", "A", "B", "A - B, 95 %")
    rows = [_cells(row, row.world, row.tier) for row in compared.rows]
    rows.append(_cells(compared.overall, "all", "panels"))
    console.print(table(console, columns, rows, numbers=columns[2:5]))
    for line in (f"A {compared.a}", f"B {compared.b}", *compared.notes, *_alone(compared)):
        console.print(plain(line), soft_wrap=True)
    console.print(_rule(compared), soft_wrap=True)
    return 0


def _cells(row: Row, world: str, tier: str) -> tuple[object, ...]:
    if row.a is None or row.b is None or row.difference is None:
        return world, tier, row.tasks, None, None, row.withheld
    one = row.difference
    ends = "" if isnan(one.low) else f" [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
    return world, tier, row.tasks, f"{100 * row.a:.1f}", f"{100 * row.b:.1f}", f"{100 * one.mean:+.1f}{ends}"


def _alone(compared: Comparison) -> list[str]:
    only = [
        (name, sum(getattr(row, side) for row in compared.rows)) for name, side in (("A", "only_a"), ("B", "only_b"))
    ]
    return [f"{count} tasks of {name} only: not compared" for name, count in only if count]


def _rule(compared: Comparison) -> str:
    what = "success in %, differences in points; the last row is the mean over the panels that both played"
    if len(compared.seeds) > 1:
        return f"{what}; {len(compared.seeds)} seeds, intervals over seeds and kinds of tasks"
    return f"{what}; one seed each: intervals are over kinds of tasks only, another seed may differ"


def _plain(compared: Comparison) -> dict[str, object]:
    """The comparison as JSON values; an interval without ends has null."""

    def plain_row(row: Row) -> dict[str, object]:
        one = row.difference
        ends = (
            None
            if one is None
            else {
                "mean": one.mean,
                "low": None if isnan(one.low) else one.low,
                "high": None if isnan(one.high) else one.high,
                "n": one.n,
            }
        )
        return asdict(row) | {"difference": ends}

    return {
        "a": compared.a,
        "b": compared.b,
        "seeds": list(compared.seeds),
        "notes": list(compared.notes),
        "rows": [plain_row(row) for row in compared.rows],
        "overall": plain_row(compared.overall),
    }


def _study(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent bench study", "What a study shows, finished or not: verdict, tables and page.")
    parser.add("folder", type=Path, help="the folder of the study")
    parser.add("--json", action="store_true", help="print JSON; a page only with --to")
    parser.add("--to", type=Path, metavar="FILE", help="the page to write (default: FOLDER/study.html)")
    found = parser.read(words)
    from evolvent.bench.verdict import as_json, read_summary
    from evolvent.files import write_atomic
    from evolvent.view.study import study_page, study_table

    folder: Path = found.folder
    data = as_json(read_summary(folder))
    to: Path | None = found.to or (None if found.json else folder / "study.html")
    if to is not None:
        to = to / "study.html" if to.is_dir() else to
        write_atomic(to, study_page(data))
    if found.json:
        console.print(json.dumps(data, indent=1), soft_wrap=True)
        return 0
    console.print(study_table(data, width=console.width))
    console.print(f"page {plain(str(to))}", soft_wrap=True)
    return 0

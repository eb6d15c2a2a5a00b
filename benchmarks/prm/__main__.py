"""Process labels without people: OmegaPRM beside Math-Shepherd, and what their reward models choose.

    python -m benchmarks.prm [--json] [--seeds N ...]     labels and chooses for the seeds that have no cell yet
    python -m benchmarks.prm --report [--json]            only prints what is there
    python -m benchmarks.prm --quick [--json]             the machinery; supports no claim

In `deduction` the truth of every span is known, so labels can be held against it. A small policy imitates proofs; both
ways label the same training tasks, which nobody has demonstrated, by completions of that policy:

- Math-Shepherd (arXiv 2312.08935): so many completions from the end of every span of two samples of a task.
- OmegaPRM (arXiv 2406.06592): one tree for a task, bisection for the first wrong span, completions shared.

A label is good where any completion was right. A rollout is anything that is sampled from the policy, the samples of
Math-Shepherd included. "Per right label" counts each prefix once, with those at the end of a response, whose label is
exact and free. Beside it stand the same for prefixes inside a response alone, where both ways pay for every label, and
the same with labels that follow from others: all that a right response begins with is right, all after a wrong span is
wrong. Bisection leaves out spans because their labels follow; the reward models learn all of them.

A reward model of each then chooses among samples of held-out tasks, the first 4 to 64 of them: how was fixed on
development seed 100 (`prm/pilot.md`). "Right" is the answer, true or false, as a majority votes on it; how
often the chosen response proves it stands beside. Intervals draw seeds and tasks again (`stats.crossed`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prm.cell import REDUCTIONS, WAYS, Protocol, run_cell
from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.search_bases import FOLDER as BASES
from benchmarks.study import compute_interval, prepare_process, read_cells, study_run, summary_path, write_cell
from evolvent.search.aggregate import Rule, Sample, Span, aggregate

FOLDER = RESULTS / "prm"
PROTOCOL = Protocol()
QUICK = Protocol(seeds=(0,), tasks=6, completions=2, rollouts=8, labels=200, panel=11, budgets=(4, 8), quick=True)
PRIMARY: tuple[str, Span, Rule] = ("omega", "min", "vote")
"""Whose reward model chooses, and how, in `prm_minus_majority`; the others stand beside it."""
Row = Mapping[str, Any]


def choice(task: Row, n: int, *, way: str, span: Span, rule: Rule) -> tuple[int, int]:
    """Whether the answer that is chosen among the first n samples is right, and whether the response proves it.

    Args:
        way: whose scores; nobody's for the rule "majority".
    """
    scores = [None] * n if rule == "majority" else task["scores"][way][span][:n]
    samples = [
        Sample(None if said < 0 else said, () if score is None else (score,))
        for said, score in zip(task["answers"][:n], scores, strict=True)
    ]
    found = aggregate(samples, span="last", rule=rule)  # what is handed in is the solution's score already
    proven = found.best_sample is not None and task["proven"][found.best_sample]
    return int(found.answer == task["truth"]), int(proven)


def compared(cells: Sequence[Row], *, way: str, span: Span, rule: Rule, ends: bool = True) -> dict[str, dict[str, Any]]:
    """By budget: "right" and "proven", each [mean, low, high] of the share and less the majority's; "passed".

    Args:
        ends: False: the means alone, without the interval's ends, which take their time.
    """
    kinds = [task["id"] for task in cells[0]["votes"]]  # a kind is a length, and there are three
    found: dict[str, dict[str, Any]] = {}
    for n in (each for each in PROTOCOL.budgets if each <= len(cells[0]["votes"][0]["answers"])):
        own = [[choice(task, n, way=way, span=span, rule=rule) for task in cell["votes"]] for cell in cells]
        votes = [[choice(task, n, way="", span="last", rule="majority") for task in cell["votes"]] for cell in cells]
        row: dict[str, Any] = {}
        for at, name in enumerate(("right", "proven")):
            mine, theirs = ([[float(one[at]) for one in each] for each in side] for side in (own, votes))
            for what, other in ((name, None), (f"{name}_minus_majority", theirs)):
                gained = np.subtract(mine, 0.0 if other is None else other)
                row[what] = (
                    compute_interval(mine, other, kinds=kinds, name="prm") if ends else [_mean(gained.ravel().tolist())]
                )
        row["passed"] = round(
            float(np.mean([[max(task["proven"][:n]) for task in cell["votes"]] for cell in cells])), 4
        )
        found[str(n)] = row
    return found


def report(cells: Sequence[Row], protocol: Protocol) -> dict[str, Any]:
    """All figures as one JSON object."""
    if not cells:
        return {"benchmark": "prm", "quick": protocol.quick, "seeds": []}
    ways = {way: [cell["ways"][way] for cell in cells] for way in WAYS}
    plain = compared(cells, way="", span="last", rule="majority")
    chosen = {
        f"{way} {span} {rule}": compared(cells, way=way, span=span, rule=rule, ends=(way, span, rule) == PRIMARY)
        for way in WAYS
        for span in REDUCTIONS
        for rule in _RULES
    }
    first = chosen[" ".join(PRIMARY)]
    ratios = {name: [_ratio(cell, name) for cell in cells] for name in ("", "inside_", "following")}
    return {
        "benchmark": "prm",
        "quick": protocol.quick,
        "digest": protocol.digest,
        "seeds": [one["seed"] for one in cells],
        "label_accuracy": {way: _spread([own["accuracy"] for own in rows]) for way, rows in ways.items()},
        "rollouts_ratio": _spread(ratios[""]),
        "rollouts_ratio_inside": _spread(ratios["inside_"]),
        "rollouts_ratio_following": _spread(ratios["following"]),
        "prm_minus_majority": {n: row["right_minus_majority"] for n, row in first.items()},
        "chosen_by": " ".join(PRIMARY),
        "labels": {way: _summed(rows) for way, rows in ways.items()},
        "majority": {n: row["right"] for n, row in plain.items()},
        "single": _mean([np.equal(task["answers"], task["truth"]).mean() for cell in cells for task in cell["votes"]]),
        "proven": _mean([np.mean(task["proven"]) for cell in cells for task in cell["votes"]]),
        "choices": chosen,
        "judges": {
            way: {
                name: _spread([cell["judges"][way][name] for cell in cells]) for name in ("accuracy", "auc", "auc_end")
            }
            for way in WAYS
        },
        "cpu_s": {
            "bases": round(sum(cell["base"]["cpu_s"] for cell in cells), 1),
            "cells": round(sum(cell["cpu_s"] for cell in cells), 1),
        },
        "interval": "95 %, pigeonhole bootstrap over seeds and tasks, Student's t below 5 seeds; of label "
        "figures [mean, lowest, highest] of the seeds",
        **about("evolvent", "torch", "numpy", threads=1),
    }


_RULES: tuple[Rule, ...] = ("max", "vote")
_FOLLOWING = ("labels", "right", "accuracy", "rollouts_per_right")


def _ratio(cell: Row, name: str) -> float | None:
    """Rollouts for a right label, Math-Shepherd's over OmegaPRM's."""
    rows = [cell["ways"][way] for way in WAYS]
    own, other = (
        row["following"]["rollouts_per_right"] if name == "following" else row[f"{name}rollouts_per_right"]
        for row in rows
    )
    return None if own is None or other is None else own / other


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _spread(values: Sequence[float | None]) -> list[float] | None:
    """[mean, lowest, highest] of the seeds that have one."""
    known = [value for value in values if value is not None]
    return [round(float(each), 4) for each in (np.mean(known), min(known), max(known))] if known else None


def _summed(rows: Sequence[Row]) -> dict[str, Any]:
    """What labeling came to, the mean of the seeds."""
    rows = [{**row, **{f"following_{name}": row["following"][name] for name in _FOLLOWING}} for row in rows]
    rows = [{name: value for name, value in row.items() if name != "following"} for row in rows]
    return {name: None if (own := _spread([row[name] for row in rows])) is None else own[0] for name in rows[0]}


def show(found: Mapping[str, Any]) -> None:
    """The tables for people."""
    if not found["seeds"]:
        print("no cells")
        return
    print(f"seeds {found['seeds']}; one sample is right {found['single']:.3f}, proven {found['proven']:.3f}")
    for way, own in found["labels"].items():
        print(f"{way:10}" + "  ".join(f"{name} {value}" for name, value in own.items()))
    print(
        f"rollouts for a right label, shepherd / omega: {found['rollouts_ratio']}, inside a response "
        f"{found['rollouts_ratio_inside']}, with labels that follow {found['rollouts_ratio_following']}"
    )
    for way, own in found["judges"].items():
        print(f"reward model of {way}: " + ", ".join(f"{name} {value}" for name, value in own.items()))
    budgets = [*found["majority"]]
    print(f"{'right, %':24}" + "".join(f"{n:>22}" for n in budgets))
    print(f"{'majority':24}" + "".join(f"{_cell(found['majority'][n]):>22}" for n in budgets))
    for name, own in found["choices"].items():
        print(f"{name:24}" + "".join(f"{_cell(own[n]['right']):>22}" for n in budgets))
        print(f"{'  less majority':24}" + "".join(f"{_cell(own[n]['right_minus_majority']):>22}" for n in budgets))
        print(
            f"{'  proven, less majority':24}"
            + "".join(f"{_cell(own[n]['proven_minus_majority']):>22}" for n in budgets)
        )


def _cell(ends: Sequence[float]) -> str:
    mean, *others = (100 * end for end in ends)
    return f"{mean:.1f} [{others[0]:.1f}, {others[1]:.1f}]" if others else f"{mean:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("prm", __doc__, quick="tiny policies in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="label nothing, print what is there")
    parser.add_argument("--seeds", nargs="+", type=int, help="of everything")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the cells are")
    options = parser.parse_args(arguments)
    prepare_process()
    protocol = QUICK if options.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as scratch:
        folder, bases = (Path(scratch), Path(scratch)) if options.quick else (options.folder, BASES)
        rows = {row["seed"]: row for row in read_cells(folder, protocol.digest)}
        wanted = options.seeds or protocol.seeds
        if not options.report:
            with study_run(folder):
                for seed in (seed for seed in wanted if seed not in rows):
                    rows[seed] = run_cell(protocol, bases, seed)
                    write_cell(folder, str(seed), rows[seed])
                    print(f"seed {seed}: {rows[seed]['cpu_s']} cpu-s", flush=True)
        found = report([rows[seed] for seed in wanted if seed in rows], protocol)
        if rows and not options.report and not options.quick:
            write(summary_path(folder, "prm"), found)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()

"""The second part of `benchmarks.comments`: does code with generated comments teach more than the code alone?

Figures: pass@1 of one greedy answer over both suites, for each model configuration and arm; what "commented + filtered"
gains over the generator and over each other arm; pass@1 against the density of comments. Intervals draw seeds and
compositions of problems. `effect_ci` is over all configurations: a problem's share is the mean of the models.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comments.cell import DENSITIES, MAIN, MODELS, Cell, Protocol, panel, run_cell
from benchmarks.comments.suites import FORMS
from benchmarks.reporting import RESULTS
from benchmarks.study import compute_interval, prepare_process, read_cells, study_run, write_cell

__all__ = ["PROTOCOL", "QUICK", "arguments", "report", "training"]

FOLDER = RESULTS / "comments"
PROTOCOL = Protocol()
QUICK = Protocol(seeds=(0,), pairs=12, pair_tokens=500, corpus=12, low=6, tokens=500, panel=4)
BEST = "commented + filtered"
CURVE = {"0": "filtered raw", **{f"{share}": name for name, share in DENSITIES.items()}, "full": BEST}
Rows = Mapping[Cell, Mapping[str, Any]]


def report(rows: Rows, protocol: Protocol) -> dict[str, Any]:
    """All figures as one JSON object, each model over the seeds that all of its main arms have."""
    kinds = [one.kind for one in panel(protocol)]
    found: dict[str, Any] = {name: {} for name in ("pass_at_1", "by_suite", "gain", "density", "seeds", "notes")}
    shared: dict[str, dict[int, list[list[float]]]] = {}  # arm -> seed -> the models' solved problems
    for model in MODELS:
        seeds = [seed for seed in protocol.seeds if all(Cell(model, arm, seed) in rows for arm in MAIN)]
        if not seeds:
            continue
        arms = [arm for arm in (*MAIN, *DENSITIES) if all(Cell(model, arm, seed) in rows for seed in seeds)]
        cells = {arm: [rows[Cell(model, arm, seed)] for seed in seeds] for arm in arms}
        both = {arm: [solved(row) for row in each] for arm, each in cells.items()}
        named: dict[str, Any] = {"kinds": kinds, "name": "comments"}
        found["pass_at_1"][model] = {arm: compute_interval(each, **named) for arm, each in both.items()}
        found["by_suite"][model] = {
            arm: {form: compute_interval([row["right"][form] for row in each], **named) for form in FORMS}
            for arm, each in cells.items()
        }
        found["gain"][model] = {
            arm: compute_interval(both[BEST], each, **named) for arm, each in both.items() if arm != BEST
        }
        found["density"][model] = {share: found["pass_at_1"][model][arm] for share, arm in CURVE.items() if arm in both}
        found["seeds"][model] = seeds
        found["notes"][model] = [row["corpus"] for row in cells[BEST]]
        for arm in MAIN:
            for seed, each in zip(seeds, both[arm], strict=True):
                shared.setdefault(arm, {}).setdefault(seed, []).append(each)
    found["effect_ci"] = effects(shared, len(found["seeds"]), kinds)
    found["cpu_s"] = round(sum(row["cpu_s"] for row in rows.values()), 1)
    return found


def solved(row: Mapping[str, Any]) -> list[float]:
    """How often each problem was solved, over the forms that it was asked in."""
    return [sum(each) / len(each) for each in zip(*(row["right"][form] for form in FORMS), strict=True)]


def effects(shared: Mapping[str, Mapping[int, list[list[float]]]], models: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Arm -> what the paper's arm gains over it, over the models together, on the seeds that all models have."""
    means = {
        arm: {
            seed: [sum(each) / models for each in zip(*all_, strict=True)]
            for seed, all_ in sorted(by.items())
            if len(all_) == models
        }
        for arm, by in shared.items()
    }
    if not means or not means[BEST]:
        return {}
    own = list(means[BEST].values())
    return {
        arm: compute_interval(own, list(each.values()), kinds=kinds, name="comments")
        for arm, each in means.items()
        if arm != BEST
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--report", action="store_true", help="of the training only what is there already")
    for name, known in (("models", MODELS), ("arms", (*MAIN, *DENSITIES))):
        parser.add_argument(f"--{name}", nargs="+", choices=list(known), default=list(known), metavar=name[:-1].upper())
    parser.add_argument("--seeds", nargs="+", type=int)


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Learn and measure what has no cell yet, and report; lines of progress go to standard error."""
    prepare_process()
    protocol = QUICK if options.quick else PROTOCOL
    wanted = [
        Cell(model, arm, seed)
        for seed in options.seeds or protocol.seeds
        for model in options.models
        for arm in options.arms
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.quick else FOLDER
        rows = {Cell(row["model"], row["arm"], row["seed"]): row for row in read_cells(folder, protocol.digest)}
        if not options.report:
            with study_run(folder):
                for cell in (cell for cell in wanted if cell not in rows):
                    row = rows[cell] = run_cell(protocol, folder, cell)
                    write_cell(folder, cell.key, row)
                    right = {form: round(sum(each) / len(each), 3) for form, each in row["right"].items()}
                    print(f"{cell.key:36} {right}  {row['cpu_s']} cpu-s", file=sys.stderr, flush=True)
        found = report(rows, protocol)
    show(found)
    return {**found, "digest": protocol.digest}


def show(found: Mapping[str, Any]) -> None:
    """The tables for people."""
    for model, arms in found["pass_at_1"].items():
        print(f"{model}, seeds {found['seeds'][model]}: pass@1 of both suites, and what {BEST!r} gains")
        for arm, (mean, low, high) in arms.items():
            line = f"  {arm:22} {100 * mean:5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]"
            if arm != BEST:
                more, least, most = found["gain"][model][arm]
                line += f"   {100 * more:+5.1f} [{100 * least:+5.1f}, {100 * most:+5.1f}]"
            print(line)
    for arm, (more, least, most) in found["effect_ci"].items():
        print(f"all models, over {arm!r}: {100 * more:+5.1f} [{100 * least:+5.1f}, {100 * most:+5.1f}]")

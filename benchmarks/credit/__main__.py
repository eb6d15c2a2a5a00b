"""Does credit for every token help? POAD beside six other ways of giving credit, on three worlds of long actions.

    python -m benchmarks.credit [--json] [--jobs N] [--worlds ...] [--methods ...] [--seeds ...] [--cells ...]
    python -m benchmarks.credit --report [--json]     plays nothing, prints what is there
    python -m benchmarks.credit --quick [--json]      the machinery in a minute, on one world; supports no claim
    python -m benchmarks.credit --study lengths       credit by length of action, with gates (`credit/lengths.py`)
    python -m benchmarks.credit --study language      reward at equal divergence, with gates (`credit/language.py`)

For each world and seed one small policy imitates random (and some expert) episodes: it knows the language and hardly
the task. All methods go on from it, on the same tasks, for as many environment steps, with the same passes through what
they played. Every method gets the same tuning effort: three rates on two development seeds, the best mean area under
the curve is its rate for all other seeds. POAD with other discounts inside an action takes POAD's rate.

What is compared is the area under the curve of practice (success; the mean return in datasci) over environment steps,
the steps until three iterations on average reach a threshold, and two panels at the end, greedily: held-out tasks like
those of practice, and tasks whose noun (kitchen, household) or data set (datasci) was never practiced or imitated.
Tokens generated, computed and learned stand beside each figure. `one_start` says in how many seeds a method began with
POAD's very weights: on another processor the same start is another draw, equal in all but rounding.

A cell is written as soon as it is played, so a stopped study goes on, and several processes may work in one folder.
This is not a `bench.study`, which compares arms by a panel at their end. Here curves are compared, and rates are chosen
first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.credit.cell import (
    INNER,
    PLACES,
    WAYS,
    Cell,
    Protocol,
    panels,
)
from benchmarks.credit.language import run_language
from benchmarks.credit.lengths import run_lengths
from benchmarks.credit.schedule import KINDS, STUDIED, Asked, Cells, play_all
from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.study import (
    exit_on_problems,
    prepare_process,
    study_run,
    summary_path,
)
from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.rl.trainer import RLConfig
from evolvent.stats import Interval, crossed_interval, paired_interval
from evolvent.trajectory import sample_rng

FOLDER = RESULTS / "credit"
INNERS = {1.0: "poad", **{inner: f"poad{inner:g}" for inner in INNER}}
RIVALS = ("ppo", "ntpo")  # whom POAD is to beat
ENOUGH = 0.7  # of a rival's steps to the threshold
PROTOCOL = Protocol()
QUICK = Protocol(
    practice=RLConfig(iterations=5000, tasks_per_iteration=4, group_size=2, minibatches=2, save_every=5000),
    rates=(1e-3,),
    development=(100,),
    seeds=(0, 1),
    scale=0.01,
    panel=4,
)


def rounded(found: Interval, *, least: float = -np.inf, most: float = np.inf) -> list[float | None]:
    """[mean, low, high]; ends that one seed cannot give are None."""
    ends = [found.mean, max(least, found.low), min(most, found.high)]
    return [round(end, 4) if end == end else None for end in ends]


def over_seeds(own: Sequence[float], other: Sequence[float] | None = None) -> list[float | None]:
    """The interval of a mean, or of a difference in pairs, over seeds."""
    return rounded(paired_interval(own, other or [0.0] * len(own), rng=sample_rng("credit intervals")))


def over_tasks(cells: Cells, own: Sequence[Cell], panel: str) -> list[float | None]:
    """The interval of a panel's mean, over seeds and kinds of tasks."""
    world, measure = own[0].world, PLACES[own[0].world].measure
    tasks = getattr(panels(world, cells.protocol.panel)[1], panel)
    scores = [cells.kept[cell][panel][measure] for cell in own]
    found = crossed_interval(
        scores, [[0.0] * len(tasks)] * len(own), kinds=[task.kind for task in tasks], rng=sample_rng("credit intervals")
    )
    return rounded(found, least=0.0, most=1.0) if measure == "success" else rounded(found)


def compared(cells: Cells, world: str) -> dict[str, Any]:
    """One world's figures over the seeds that POAD and its rivals have played; others where they have all of these."""
    seeds = {cell.seed for cell in cells.complete(world, ("poad", *RIVALS))["poad"]}
    if not seeds:
        return {}
    by = cells.complete(world, [name for name in STUDIED if seeds <= cells.played(world, name)])
    areas = {name: [cells.area(cell) for cell in own] for name, own in by.items()}
    steps = {name: [cells.steps(cell) for cell in own] for name, own in by.items()}
    took = {name: float(np.mean([count for count, _ in own])) for name, own in steps.items()}
    costs = ("tokens_generated", "tokens_computed", "tokens_trained", "env_steps", "cpu_train_s")
    begun = {name: [cells.kept[cell]["start"] for cell in own] for name, own in by.items()}
    return {
        "auc": {name: over_seeds(own) for name, own in areas.items()},
        "final": {name: over_tasks(cells, own, "final") for name, own in by.items()},
        "generalisation": {name: over_tasks(cells, own, "swapped") for name, own in by.items()},
        "poad_over": {name: over_seeds(areas["poad"], own) for name, own in areas.items() if name != "poad"},
        "steps": {name: round(count) for name, count in took.items()},
        "reached": {name: sum(done for _, done in own) for name, own in steps.items()},
        "steps_ratio": {name: round(took["poad"] / took[name], 3) for name in RIVALS if took[name]},
        "cost": {
            what: {name: round(float(np.mean([cells.kept[cell][what] for cell in own])), 1) for name, own in by.items()}
            for what in costs
        },
        "one_start": {
            name: sum(a == b for a, b in zip(own, begun["poad"], strict=True)) for name, own in begun.items()
        },
        "seeds": [cell.seed for cell in by["poad"]],
    }


def discounts(cells: Cells, world: str) -> dict[str, Any]:
    """POAD's area by the discount inside an action, and whether more discount is never better."""
    by = cells.complete(world, INNERS.values())
    if not by["poad"]:
        return {}
    found = {f"{inner:g}": over_seeds([cells.area(cell) for cell in by[name]]) for inner, name in INNERS.items()}
    means = [row[0] or 0.0 for row in found.values()]
    falls = all(more >= less for more, less in pairwise(means))
    return {"auc": found, "monotone": falls, "seeds": [cell.seed for cell in by["poad"]]}


def report(cells: Cells) -> dict[str, Any]:
    """All figures as one JSON object; what is not played yet is missing from them."""
    found = {world: own for world in PLACES if (own := compared(cells, world))}
    inner = {world: own for world in PLACES if (own := discounts(cells, world))}
    names = (
        "auc",
        "final",
        "generalisation",
        "poad_over",
        "steps",
        "reached",
        "steps_ratio",
        "cost",
        "one_start",
        "seeds",
    )
    wins = [world for world, own in found.items() if all((own["poad_over"][one][1] or 0.0) > 0 for one in RIVALS)]
    quick = [world for world, own in found.items() if all(own["steps_ratio"].get(one, 1.0) <= ENOUGH for one in RIVALS)]
    tried = {world: {name: cells.tried(world, name) for name in STUDIED} for world in PLACES}
    return {
        "benchmark": "credit",
        "digest": cells.protocol.digest,
        **{name: {world: own[name] for world, own in found.items()} for name in names},
        "poad_wins": len(wins),
        "poad_wins_in": wins,
        "poad_quick_in": quick,
        "fails": [world for world in found if world not in wins],
        "not_played": {world: [name for name in STUDIED if name not in own["auc"]] for world, own in found.items()},
        "inner_discount": inner,
        "inner_discount_monotone": bool(inner) and all(own["monotone"] for own in inner.values()),
        "thresholds": {world: [place.measure, place.threshold] for world, place in PLACES.items()},
        "rates": {world: {name: cells.rate(world, name) for name in own} for world, own in tried.items()},
        "tried": {
            world: {
                name: {f"{rate:g}": round(value, 4) for rate, value in rates.items()} for name, rates in own.items()
            }
            for world, own in tried.items()
        },
        "effort": f"{len(cells.protocol.rates)} rates x {len(cells.protocol.development)} development seeds a method",
        "cells": len(cells.kept),
        "ended_early": {cell.key: row["note"] for cell, row in cells.kept.items() if row["note"]},
        "cpu_s": round(sum(row["cpu_train_s"] + row["cpu_play_s"] for row in cells.kept.values()), 1),
        "interval": "95 %: areas over seeds, panels over seeds and kinds of tasks (pigeonhole bootstrap)",
        "sources": sorted({row["sources"] for row in cells.kept.values()}),
        **about("evolvent", "torch", "numpy", threads=1),
    }


def shown(interval: Sequence[float | None]) -> str:
    """`mean [low, high]`."""
    mean, low, high = (f"{one:.3f}" if one is not None else "?" for one in interval)
    return f"{mean} [{low}, {high}]"


def show(found: Mapping[str, Any]) -> None:
    """Tables for people."""
    for world in found["auc"]:
        print(f"\n{world}, {len(found['seeds'][world])} seeds; {' >= '.join(map(str, found['thresholds'][world]))}")
        heads = ("area under the curve", "final", "generalisation", "POAD's area - its")
        print(f"{'':10}" + "".join(f"{head:>24}" for head in heads) + f"{'steps':>8}{'reached':>8}{'rate':>8}")
        for name in found["auc"][world]:
            own = [shown(found[what][world][name]) for what in ("auc", "final", "generalisation")]
            own.append(shown(found["poad_over"][world][name]) if name != "poad" else "")
            ends = (found["steps"][world][name], found["reached"][world][name], found["rates"][world][name])
            print(f"{name:10}" + "".join(f"{one:>24}" for one in own) + "".join(f"{end:>8}" for end in ends))
    for world, own in found["inner_discount"].items():
        row = ", ".join(f"{inner}: {shown(one)}" for inner, one in own["auc"].items())
        print(f"\n{world}, area by the discount inside an action (monotone: {own['monotone']})\n  {row}")
    for world, own in found["tried"].items():
        if any(own.values()):
            print(f"\n{world}, mean area on the development seeds, by rate")
        for name, rates in own.items():
            if rates:
                print(f"  {name:10} " + ", ".join(f"{rate}: {height:.3f}" for rate, height in rates.items()))
    print(
        f"\nPOAD is above action-level PPO and NTPO, interval above 0, in {found['poad_wins_in'] or 'no world'}; "
        f"it fails to be in {found['fails'] or 'none that is played'}; at most {ENOUGH} of their steps in "
        f"{found['poad_quick_in'] or 'no world'}; {found['cells']} cells, {found['cpu_s']:.0f} cpu-s"
    )


def asked_of(options: argparse.Namespace, protocol: Protocol, folder: Path) -> Asked:
    """What the command line asks for; the program ends where it names what does not exist."""
    worlds, methods = options.worlds or [*PLACES][-1 if options.quick else 0 :], options.methods or [*WAYS]
    problems = [
        unknown_name_problem("world", name, PLACES, location="--worlds") for name in worlds if name not in PLACES
    ]
    problems += [
        unknown_name_problem("method", name, WAYS, location="--methods") for name in methods if name not in WAYS
    ]
    exit_on_problems(problems)
    return Asked(folder, worlds, methods, options.seeds or protocol.seeds, options.cells or KINDS, options.jobs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("credit", __doc__, quick="a small copy in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="play nothing, print what is there")
    parser.add_argument("--cells", nargs="+", choices=KINDS, help="only rates, the study, or discounts inside")
    parser.add_argument("--worlds", nargs="+", help=f"of {', '.join(PLACES)}")
    parser.add_argument("--methods", nargs="+", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="of the study; those of the rates are fixed")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--folder", type=Path, help="where the cells are")
    parser.add_argument("--study", choices=("worlds", "lengths", "language"), default="worlds")
    options = parser.parse_args(arguments)
    prepare_process()
    if options.study != "worlds":
        _run_frozen(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        protocol, folder = (QUICK, Path(scratch)) if options.quick else (PROTOCOL, options.folder or FOLDER)
        if not options.report:
            asked = asked_of(options, protocol, folder)
            with study_run(folder):
                play_all(protocol, asked)
        found = {**report(Cells(folder, protocol)), "quick": options.quick}
        if not options.report and not options.quick:
            write(summary_path(folder, "credit"), found)
    show(found)
    finish(found, options)


def _run_frozen(options: argparse.Namespace) -> None:
    run_study = run_lengths if options.study == "lengths" else run_language
    with tempfile.TemporaryDirectory() as scratch:
        name = f"credit_{options.study}"
        folder = Path(scratch) / name if options.quick else options.folder or RESULTS / name
        try:
            figures = run_study(folder, quick=options.quick, play=not options.report)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from error
        finish(figures, options)


if __name__ == "__main__":
    main()

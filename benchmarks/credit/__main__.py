"""Does credit for every token help? POAD beside six other ways of giving credit, on three worlds of long actions.

    python -m benchmarks.credit [--json] [--jobs N] [--worlds ...] [--methods ...] [--seeds ...] [--cells ...]
    python -m benchmarks.credit --report [--json]     plays nothing, prints what is there
    python -m benchmarks.credit --quick [--json]      the machinery in a minute, on one world; supports no claim

For each world and seed one small policy imitates random (and some expert) episodes: it knows the language and hardly
the task. All methods go on from it, on the same tasks, for as many environment steps, with the same passes through what
they played. Every method gets the same tuning effort: three rates on two development seeds, the best mean area under
the curve is its rate for all other seeds. POAD with other discounts inside an action takes POAD's rate.

What is compared is the area under the curve of practice (success; the mean return in datasci) over environment steps,
the steps until three iterations on average reach a threshold, and two panels at the end, greedily: held-out tasks like
those of practice, and tasks whose noun (kitchen, household) or data set (datasci) was never practised or imitated.
Tokens generated, computed and learned stand beside each figure. `one_start` says in how many seeds a method began with
POAD's very weights: on another processor the same start is another draw, equal in all but rounding.

A cell is written as soon as it is played, so a stopped study goes on, and several processes may work in one folder.
This is not a `bench.study`, which compares arms by a panel at their end. Here curves are compared, and rates are chosen
first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    area,
    panels,
    run_cell,
    start_of,
    steps_to,
)
from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.study import (
    exit_on_problems,
    play_once,
    prepare_process,
    read_cells,
    run_in_processes,
    study_run,
    summary_path,
)
from evolvent.errors import unknown
from evolvent.rl.trainer import PracticeConfig
from evolvent.stats import Interval, crossed, paired
from evolvent.trajectory import sample_rng

FOLDER = RESULTS / "credit"
STUDIED = tuple(name for name, way in WAYS.items() if "gamma_part" not in way.settings)
INNERS = {1.0: "poad", **{inner: f"poad{inner:g}" for inner in INNER}}
RIVALS = ("ppo", "ntpo")  # whom POAD is to beat
KINDS = ("tuning", "study", "inner")
ENOUGH = 0.7  # of a rival's steps to the threshold
PROTOCOL = Protocol()
QUICK = Protocol(
    practice=PracticeConfig(iterations=5000, tasks=4, samples=2, minibatches=2, save_every=5000),
    rates=(1e-3,),
    development=(100,),
    seeds=(0, 1),
    scale=0.01,
    panel=4,
)


@dataclass(frozen=True)
class Asked:
    """Which cells are played, and where."""

    folder: Path
    worlds: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    kinds: Sequence[str]
    jobs: int = 1


class Cells:
    """The kept cells of a protocol."""

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.protocol = folder, protocol
        names = Cell.__dataclass_fields__
        self.kept = {Cell(**{name: row[name] for name in names}): row for row in read_cells(folder, protocol.digest)}

    def area(self, cell: Cell) -> float:
        """Under a cell's curve."""
        row = self.kept[cell]
        return area(row["curve"], measure=PLACES[cell.world].measure, budget=row["budget"])

    def steps(self, cell: Cell) -> tuple[int, bool]:
        """To the threshold of the cell's world; the budget where it was not reached."""
        row, place = self.kept[cell], PLACES[cell.world]
        return steps_to(row["curve"], place.threshold, measure=place.measure, budget=row["budget"])

    def tried(self, world: str, method: str) -> dict[float, float]:
        """The mean area of each rate that all development seeds have played."""
        found = {}
        for rate in self.protocol.rates:
            own = [Cell(world, seed, method, rate) for seed in self.protocol.development]
            if all(cell in self.kept for cell in own):
                found[rate] = float(np.mean([self.area(cell) for cell in own]))
        return found

    def rate(self, world: str, method: str) -> float | None:
        """The best rate of a method; None where not all were tried. POAD's kin take POAD's."""
        tried = self.tried(world, method if method in STUDIED else "poad")
        return max(tried, key=lambda rate: tried[rate]) if len(tried) == len(self.protocol.rates) else None

    def cell(self, world: str, method: str, seed: int) -> Cell | None:
        """The kept cell of a method at its rate."""
        rate = self.rate(world, method)
        found = None if rate is None else Cell(world, seed, method, rate)
        return found if found in self.kept else None

    def played(self, world: str, method: str) -> set[int]:
        """The seeds of the study that a method has played, at its rate."""
        return {seed for seed in self.protocol.seeds if self.cell(world, method, seed) is not None}

    def complete(self, world: str, methods: Iterable[str]) -> dict[str, list[Cell]]:
        """By method, its cells of the seeds that all these methods have played."""
        names = list(methods)
        rows = [[self.cell(world, name, seed) for name in names] for seed in self.protocol.seeds]
        whole = [[cell for cell in row if cell is not None] for row in rows]
        return {name: [row[at] for row in whole if len(row) == len(names)] for at, name in enumerate(names)}


# ---------------------------------------------------------------------- playing


def wanted(cells: Cells, asked: Asked, kind: str) -> list[Cell]:
    """The cells of a kind that have no row yet, seed by seed; those of the study once their rate is chosen."""
    protocol, names = cells.protocol, [name for name in asked.methods if (name in STUDIED) == (kind != "inner")]
    found: list[Cell] = []
    if kind == "tuning":
        found = [
            Cell(world, seed, name, rate)
            for seed in protocol.development
            for name in names
            for world in asked.worlds
            for rate in protocol.rates
        ]
    else:
        rates = {(world, name): cells.rate(world, name) for name in names for world in asked.worlds}
        found = [
            Cell(world, seed, name, rate)
            for seed in asked.seeds
            for (world, name), rate in rates.items()
            if rate is not None
        ]
    return [cell for cell in found if cell not in cells.kept]


def play(protocol: Protocol, folder: Path, cell: Cell) -> str:
    """Play one cell and keep its row, unless another process holds or has it; returns a line for people."""
    row = play_once(folder, cell.key, protocol.digest, partial(run_cell, protocol, folder, cell))
    if row is None:
        return ""
    place = PLACES[cell.world]
    height = area(row["curve"], measure=place.measure, budget=row["budget"])
    ends = [float(np.mean(row[panel][place.measure])) for panel in ("final", "swapped")]
    return (
        f"{cell.key:32} area {height:.3f}  final {ends[0]:.3f}  swapped {ends[1]:.3f}  "
        f"{row['cpu_train_s'] + row['cpu_play_s']:6.1f} cpu-s {row['note'][:60]}"
    )


def play_all(protocol: Protocol, asked: Asked) -> None:
    """Everything that is asked for and has no row yet: rates first, then the study, then the discounts."""
    for kind in (one for one in KINDS if one in asked.kinds):
        todo = wanted(Cells(asked.folder, protocol), asked, kind)
        if asked.jobs > 1:  # first the starts, so that no two processes wait for the same one
            starts = dict.fromkeys((cell.world, cell.seed) for cell in todo)
            run_in_processes(partial(prepare, protocol, asked.folder), list(starts), jobs=asked.jobs)
        run_in_processes(partial(play, protocol, asked.folder), todo, jobs=asked.jobs)


def prepare(protocol: Protocol, folder: Path, start: tuple[str, int]) -> str:
    """Make a start of a world and a seed."""
    start_of(protocol, folder, *start)
    return ""


# ---------------------------------------------------------------------- what comes out


def rounded(found: Interval, *, least: float = -np.inf, most: float = np.inf) -> list[float | None]:
    """[mean, low, high]; ends that one seed cannot give are None."""
    ends = [found.mean, max(least, found.low), min(most, found.high)]
    return [round(end, 4) if end == end else None for end in ends]


def over_seeds(own: Sequence[float], other: Sequence[float] | None = None) -> list[float | None]:
    """The interval of a mean, or of a difference in pairs, over seeds."""
    return rounded(paired(own, other or [0.0] * len(own), rng=sample_rng("credit intervals")))


def over_tasks(cells: Cells, own: Sequence[Cell], panel: str) -> list[float | None]:
    """The interval of a panel's mean, over seeds and kinds of tasks."""
    world, measure = own[0].world, PLACES[own[0].world].measure
    tasks = getattr(panels(world, cells.protocol.panel)[1], panel)
    scores = [cells.kept[cell][panel][measure] for cell in own]
    found = crossed(
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
    problems = [unknown("world", name, PLACES, where="--worlds") for name in worlds if name not in PLACES]
    problems += [unknown("method", name, WAYS, where="--methods") for name in methods if name not in WAYS]
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
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the cells are")
    options = parser.parse_args(arguments)
    prepare_process()
    with tempfile.TemporaryDirectory() as scratch:
        protocol, folder = (QUICK, Path(scratch)) if options.quick else (PROTOCOL, options.folder)
        if not options.report:
            asked = asked_of(options, protocol, folder)
            with study_run(folder):
                play_all(protocol, asked)
        found = {**report(Cells(folder, protocol)), "quick": options.quick}
        if not options.report and not options.quick:
            write(summary_path(folder, "credit"), found)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()

"""What retrieved demonstrations are worth to a small model that has learned to read them: TRAD, its family, ablations.

    python -m benchmarks.trad_agents [--json] [--seeds N ...]   trains and plays what has no cell yet, prints all of it
    python -m benchmarks.trad_agents --report [--json]          only prints what is there (as `benchmarks.trad` does)
    python -m benchmarks.trad_agents --develop [--json]         the same on the development seed and the dev panels
    python -m benchmarks.trad_agents --quick [--json]           the machinery; supports no claim
    python -m benchmarks.trad_agents --study budgets [--report] by the size of prompts, with gates (`budgets.py`)

For each seed one model is trained on prompts of all systems and worlds in equal shares, each prompt in a code of its
own for the commands (`benchmarks.trad_agents.lessons`). All systems then play with these weights, the same tasks in the
same code, which no prompt of the training had. They differ in nothing but what their prompts show.

- `success`: episodes played from their beginning, thoughts and all.
- `followed`: actions right after the expert's own thought, where the steps before are the expert's too.
- `told`: the share of those actions whose command stands in the demonstrations of the prompt, whatever a model makes
  of it. `nothing shown` is the control: its prompts hold no demonstration.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.study import compute_interval, prepare_process, read_cells, study_run, write_cell
from benchmarks.trad_agents.budgets import run_budgets
from benchmarks.trad_agents.cell import Cell, play, trained
from benchmarks.trad_agents.lessons import SYSTEMS, WORLDS, Protocol
from evolvent.errors import ConfigError

FOLDER = RESULTS / "trad"
PROTOCOL = Protocol()
QUICK = Protocol(shown=8, test=2, pages=60, lessons=54, context=1536, seeds=(0,))
ALL = "all"
COSTS = ("prompt_tokens", "act_prompt_tokens", "tokens_generated", "tokens_computed", "no_command", "dropped", "steps")
CANNOT = (
    "How good thoughts in hindsight are, what a model of language knows of a world before it is shown anything, and "
    "long demonstrations: here thoughts come from experts by rule, tasks are short, and one demonstration is shown."
)


def study(protocol: Protocol, folder: Path, seeds: Sequence[int]) -> None:
    """Train and play what has no cell, one seed after the other."""
    for seed in seeds:
        there = {(row["world"], row["system"]) for row in read_cells(folder, protocol.digest) if row["seed"] == seed}
        missing = [Cell(name, system, seed) for system in SYSTEMS for name in WORLDS if (name, system) not in there]
        if not missing:
            continue
        policy, about = trained(protocol, seed)  # the same weights whenever it is made on one machine
        print(f"seed {seed}: {about}", flush=True)
        for cell in missing:
            row = play(protocol, policy, cell) | {"training": about}
            write_cell(folder, cell.key, row)
            print(
                f"{cell.key:40} success {np.mean(row['success']):.3f} followed {np.mean(row['followed']):.3f} "
                f"told {np.mean(row['told']):.3f}",
                flush=True,
            )


def figures(protocol: Protocol, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """All figures over the seeds that every system has played in every world."""
    rows = {(row["world"], row["system"], row["seed"]): row for row in read_cells(folder, protocol.digest)}
    whole = [seed for seed in seeds if all((name, system, seed) in rows for name in WORLDS for system in SYSTEMS)]
    if not whole:
        return {}

    def scores(system: str, what: str, worlds: Sequence[str]) -> list[list[float]]:
        return [[*chain.from_iterable(rows[name, system, seed][what] for name in worlds)] for seed in whole]

    def over(system: str, what: str, worlds: Sequence[str], other: str = "") -> list[float]:
        own = scores(system, what, worlds)
        against = scores(other, what, worlds) if other else None
        kinds = [
            f"{name} {kind} {at}"
            for name in worlds  # tasks of a panel differ in more than their kind
            for at, kind in enumerate(rows[name, system, whole[0]]["kinds"])
        ]
        return compute_interval(own, against, kinds=kinds, name=f"trad {system} {other} {what}")

    groups = {name: [name] for name in WORLDS} | {ALL: [*WORLDS]}
    table = {
        what: {group: {system: over(system, what, worlds) for system in SYSTEMS} for group, worlds in groups.items()}
        for what in ("success", "unit", "followed", "told")
    }
    gains = {
        what: {
            group: {other: over("trad", what, worlds, other) for other in SYSTEMS if other != "trad"}
            for group, worlds in groups.items()
        }
        for what in ("success", "followed")
    }
    costs = {
        what: {
            name: {
                system: round(float(np.mean([rows[name, system, seed][what] for seed in whole])), 1)
                for system in SYSTEMS
            }
            for name in WORLDS
        }
        for what in COSTS
    }
    return table | {
        "gain_of_trad": gains,
        "cost": costs,
        "seeds": whole,
        "digest": protocol.digest,
        "tasks": {name: len(rows[name, "trad", whole[0]]["success"]) for name in WORLDS},
        "training": [rows["household", "trad", seed]["training"] for seed in whole],
        "interval": "95 %, pigeonhole bootstrap over seeds and tasks, Student's t below 5 seeds"
        if len(whole) > 1
        else "none: one seed is played, and low and high are the mean",
        "cannot_show": CANNOT,
    }


def report(*, quick: bool = False) -> dict[str, Any]:
    """`success` (world -> system -> [mean, low, high]) and `agents`, all else, from the kept cells.

    With `quick`, of a tiny study that is played now.
    """
    if not quick:
        found = figures(PROTOCOL, FOLDER, PROTOCOL.seeds)
    else:
        prepare_process()
        with tempfile.TemporaryDirectory() as scratch:
            study(QUICK, Path(scratch), QUICK.seeds)
            found = figures(QUICK, Path(scratch), QUICK.seeds)
    return {"success": found.pop("success", None), "agents": found or None}


def show(found: dict[str, Any]) -> None:
    """The tables for people."""
    for what in ("success", "followed", "told"):
        table = found.get(what) or (found["agents"] or {}).get(what) or {}
        for group, systems in table.items():
            for system, (mean, low, high) in systems.items():
                print(f"{what:9}{group:12}{system:20}{mean:7.3f} [{low:.3f}, {high:.3f}]")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("trad_agents", __doc__, quick="a tiny study in a temporary folder")
    parser.add_argument("--report", action="store_true", help="play nothing, print what is there")
    parser.add_argument("--develop", action="store_true", help="the development seed, on the dev panels")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of models and codes")
    parser.add_argument("--folder", type=Path, help="where the cells are")
    parser.add_argument(
        "--study", choices=("agents", "budgets"), default="agents", help="agents: all systems; budgets: gated"
    )
    options = parser.parse_args(arguments)
    prepare_process()
    if options.study == "budgets":
        return _run_budgets(options)
    folder = options.folder or FOLDER
    seeds = [PROTOCOL.development] if options.develop else options.seeds or PROTOCOL.seeds
    if options.quick:
        seeds, told = QUICK.seeds, report(quick=True)
    else:
        if not options.report:
            with study_run(folder):
                study(PROTOCOL, folder, seeds)
        found = figures(PROTOCOL, folder, seeds)
        told = {"success": found.pop("success", None), "agents": found or None}
    show(told)
    own = {"benchmark": "trad_agents", **told, "quick": options.quick, "seeds": list(seeds)}
    return finish({**own, **about("evolvent", "torch", threads=1)}, options)


def _run_budgets(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        usual = RESULTS / ("trad_budgets_develop" if options.develop else "trad_budgets")
        folder = Path(scratch) if options.quick else options.folder or usual
        try:
            found = run_budgets(
                folder,
                seeds=options.seeds,
                quick=options.quick,
                play=not options.report,
                develop=options.develop,
            )
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from error
    finish(found, options)


if __name__ == "__main__":
    main()

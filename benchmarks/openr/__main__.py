"""OpenR's parts beside one another: guided decoding, learning online and offline from process rewards, all of it.

    python -m benchmarks.openr [--json] [--tasks NAME ...] [--seeds N ...]   plays the arms that have no cell yet
    python -m benchmarks.openr --report [--json]                             only prints what is there
    python -m benchmarks.openr --quick [--json]                              the machinery; supports no claim
    python -m benchmarks.openr --study clock [--report] [--json]             sums on a clock, with gates (`clock.py`)

For each task and seed one small policy imitates demonstrations; its samples on other training tasks are labeled by
OmegaPRM, and a process reward model learns the labels (`methods/openr.py`; no other implementation is used).

    base       decoded greedily
    majority   the base, self-consistency
    guided     the base, best of n by the reward model
    imitated   the base after more of its demonstrations, greedily: the control of what learns
    online     after playing for the model's rewards, greedily
    offline    after learning from samples that the model scored, greedily
    all        half of each learning, then guided

Equal tokens: `imitated`, `online`, `offline` and `all` learn as many tokens; the majority has so many samples that it
computes about as many for a problem as `guided` and `all`, whose reward model reads them too. What each sampled and fed
beside that is told; labels and reward model are shared by all arms that need them, and stand with `guided`, the first
of them. A deduction is right where it is proven. Intervals draw seeds and tasks again (`stats.crossed`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.openr.cell import ARMS, LEARNING, TASKS, Cell, Protocol, run_arms
from benchmarks.openr.clock import run_clock
from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.search_bases import FOLDER as BASES
from benchmarks.study import (
    compute_interval,
    exit_on_problems,
    prepare_process,
    read_cells,
    study_run,
    summary_path,
    write_cell,
)
from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.reward.labelling import LabellingConfig
from evolvent.rl.trainer import RLConfig

FOLDER = RESULTS / "openr"
PROTOCOL = Protocol()
QUICK = Protocol(
    seeds=(0,),
    tasks=6,
    samples=2,
    labelling=LabellingConfig(kind="shepherd", count=2),
    labels=100,
    practice=RLConfig(iterations=2, tasks_per_iteration=4, group_size=2, ppo_epochs=1, minibatches=1, save_every=1000),
    paths=2,
    votes=3,
    panel=6,
    quick=True,
)
Row = Mapping[str, Any]


def of_task(rows: Mapping[Cell, Row], task: str) -> dict[str, Any]:
    """The figures of one task, over the seeds that have every arm; empty where there is none."""
    seeds = sorted({cell.seed for cell in rows if cell.task == task})
    seeds = [seed for seed in seeds if all(Cell(task, seed, arm) in rows for arm in ARMS)]
    if not seeds:
        return {}
    by = {arm: [rows[Cell(task, seed, arm)] for seed in seeds] for arm in ARMS}
    ids = by["base"][0]["ids"]

    def against(arm: str, other: str | None) -> list[float]:
        own = [[float(one) for one in row["right"]] for row in by[arm]]
        theirs = [[float(one) for one in row["right"]] for row in by[other]] if other else None
        return compute_interval(own, theirs, kinds=ids, name="openr")

    return {
        "accuracy": {arm: against(arm, None) for arm in ARMS},
        "gain": {arm: against(arm, "base") for arm in ARMS if arm != "base"},
        "rl_minus_imitated": {arm: against(arm, "imitated") for arm in LEARNING},
        "guided_minus_majority": against("guided", "majority"),
        "all_minus_majority": against("all", "majority"),
        "by_seed": {arm: [round(sum(row["right"]) / len(row["right"]), 4) for row in own] for arm, own in by.items()},
        "tokens": {
            arm: {name: round(sum(row["tokens"][name] for row in own) / len(own)) for name in own[0]["tokens"]}
            for arm, own in by.items()
        },
        "decoding": {
            arm: round(sum(row["computed"] for row in own) / len(own) / len(ids), 1) for arm, own in by.items()
        },
        "seeds": seeds,
        "panel": len(ids),
        "bases_cpu_s": round(sum(row["base"] for row in by["base"]), 1),
    }


def report(rows: Mapping[Cell, Row], protocol: Protocol) -> dict[str, Any]:
    """All figures as one JSON object."""
    found = {task: own for task in TASKS if (own := of_task(rows, task))}
    return {
        "benchmark": "openr",
        "quick": protocol.quick,
        "digest": protocol.digest,
        "accuracy": {task: own["accuracy"] for task, own in found.items()},
        "rl_gain_ci": {task: {arm: own["gain"][arm][1:] for arm in LEARNING} for task, own in found.items()},
        "tasks": found,
        "cpu_s": round(sum(row["cpu_s"] for row in rows.values()), 1),
        "settings": {
            "online": protocol.online,
            "reward": protocol.reward,
            "outcome": protocol.outcome,
            "offline": protocol.offline,
            "paths": protocol.paths,
            "tasks": protocol.tasks,
            "samples": protocol.samples,
        },
        "interval": "95 %, pigeonhole bootstrap over seeds and tasks, Student's t below 5 seeds; of one seed the mean",
        **about("evolvent", "torch", "numpy", threads=1),
    }


def show(found: Mapping[str, Any]) -> None:
    """The tables for people."""
    for task, own in found["tasks"].items():
        print(
            f"\n{task}, {own['panel']} tasks, seeds {own['seeds']}; right, %; tokens of making the arm, of a decoding"
        )
        for arm in ARMS:
            gain = f"{_cell(own['gain'][arm]):>24}" if arm != "base" else " " * 24
            spent = ", ".join(f"{name} {count}" for name, count in own["tokens"][arm].items())
            print(f"{arm:10}{_cell(own['accuracy'][arm]):>22}{gain}  {spent}; {own['decoding'][arm]:.0f}")
        for arm in LEARNING:
            print(f"{arm} less imitated: {_cell(own['rl_minus_imitated'][arm])}")
        print(
            f"guided less majority: {_cell(own['guided_minus_majority'])}, all less majority: "
            f"{_cell(own['all_minus_majority'])}"
        )


def _cell(ends: Sequence[float]) -> str:
    mean, low, high = (100 * end for end in ends)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("openr", __doc__, quick="tiny policies in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="play nothing, print what is there")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="of everything")
    parser.add_argument("--folder", type=Path, help="where the cells are")
    parser.add_argument(
        "--study", choices=("parts", "clock"), default="parts", help="parts: of the pipeline; clock: gated"
    )
    options = parser.parse_args(arguments)
    wrong = [
        unknown_name_problem("task", task, TASKS, location="--tasks") for task in options.tasks if task not in TASKS
    ]
    exit_on_problems(wrong)
    prepare_process()
    protocol = QUICK if options.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as scratch:
        if options.study == "clock":
            place = Path(scratch) if options.quick else options.folder or RESULTS / "openr_clock"
            try:
                figures = run_clock(place, seeds=options.seeds, quick=options.quick, play=not options.report)
            except ConfigError as error:
                raise SystemExit(f"error: {error}") from error
            finish(figures, options)
            return
        folder, bases = (Path(scratch), Path(scratch)) if options.quick else (options.folder or FOLDER, BASES)
        rows: dict[Cell, Row] = {
            Cell(row["task"], row["seed"], row["arm"]): row for row in read_cells(folder, protocol.digest)
        }

        def note(cell: Cell, row: Row) -> None:
            write_cell(folder, cell.key, row)
            rows[cell] = row
            print(
                f"{cell.key:24} {sum(row['right']) / len(row['right']):.3f}  {row['tokens']}  {row['cpu_s']} cpu-s",
                flush=True,
            )

        if not options.report:
            with study_run(folder):
                for seed in options.seeds or protocol.seeds:
                    for task in options.tasks:
                        run_arms(protocol, folder, bases, task, seed, rows=dict(rows), note=note)
        found = report(rows, protocol)
        if rows and not options.report and not options.quick:
            write(summary_path(folder, "openr"), found)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()

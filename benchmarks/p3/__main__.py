"""Does it pay to let the policy choose what it learns? P3 beside random, the whole pool, and P3 without each part.

    python -m benchmarks.p3 [--json] [--tasks ...] [--variants ...] [--seeds ...]   learns what has no cell yet
    python -m benchmarks.p3 --report [--json] [--save]                              only prints what is there
    python -m benchmarks.p3 --quick [--json]                                        the machinery; supports no claim

Chains of arithmetic worked out line by line (maths), and word problems answered by a program (programs). For each task
and seed all variants begin with one base and learn as many tokens from one pool of unequal kinds, in as many rounds;
`full` learns all of the pool. What P3 computes to choose (log-probabilities and features of the pool, every round) is
not learned and stands in the CPU seconds of its cells. Intervals draw seeds and kinds of problems.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.p3.cell import MAIN, TASKS, VARIANTS, Cell, Protocol, panel, run_cell
from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.study import compute_interval, prepare_process, read_cells, study_run, write_cell

FOLDER = RESULTS / "p3"
PROTOCOL = Protocol()
QUICK = Protocol(seeds=(0,), pool=40, chosen=8, rounds=2, tokens=600, base=1200, panel=4)
Rows = Mapping[Cell, Mapping[str, Any]]


def report(rows: Rows, protocol: Protocol, tasks: Sequence[str] = TASKS) -> dict[str, Any]:
    """All figures as one JSON object, each over the seeds that all variants of its line have."""
    found: dict[str, Any] = {"accuracy": {}, "base": {}, "p3_minus": {}, "seeds": {}, "cpu_s": {}}
    for task in tasks:
        seeds = [seed for seed in protocol.seeds if all(Cell(task, name, seed) in rows for name in MAIN)]
        if not seeds:
            continue
        kinds = [one.kind for one in panel(protocol, task)]
        names = [name for name in VARIANTS if all(Cell(task, name, seed) in rows for seed in seeds)]
        right = {name: [rows[Cell(task, name, seed)]["right"] for seed in seeds] for name in names}
        label = f"p3 {task}"
        found["accuracy"][task] = {name: compute_interval(right[name], kinds=kinds, name=label) for name in names}
        found["base"][task] = compute_interval(
            [rows[Cell(task, "p3", seed)]["base"] for seed in seeds], kinds=kinds, name=label
        )
        found["p3_minus"][task] = {
            name: compute_interval(right["p3"], right[name], kinds=kinds, name=label) for name in names if name != "p3"
        }
        found["seeds"][task] = seeds
        found["cpu_s"][task] = {
            name: round(sum(rows[Cell(task, name, seed)]["cpu_s"] for seed in seeds) / len(seeds), 1) for name in names
        }
    found["p3_minus_random_ci"] = {task: each["random"] for task, each in found["p3_minus"].items()}
    return found


def show(found: Mapping[str, Any]) -> None:
    """The table for people."""
    for task, each in found["accuracy"].items():
        print(f"{task}, seeds {found['seeds'][task]}: base {100 * found['base'][task][0]:.1f} %")
        for name, (mean, low, high) in each.items():
            spent = found["cpu_s"][task][name]
            line = f"  {name:14} {100 * mean:5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]  {spent:6.1f} s"
            if name != "p3":
                less, least, most = found["p3_minus"][task][name]
                line += f"   p3 is {100 * less:+5.1f} [{100 * least:+5.1f}, {100 * most:+5.1f}]"
            print(line)


def play_missing(protocol: Protocol, folder: Path, cells: Sequence[Cell], rows: dict[Cell, dict[str, Any]]) -> None:
    """Plays the cells that have no row, stores their rows and adds them to `rows`."""
    for cell in (cell for cell in cells if cell not in rows):
        row = rows[cell] = run_cell(protocol, folder, cell)
        write_cell(folder, cell.key, row)
        base, right = (sum(row[name]) / len(row[name]) for name in ("base", "right"))
        print(f"{cell.key:28} {base:.3f} -> {right:.3f}  {row['cpu_s']} cpu-s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("p3", __doc__, quick="tiny pools and panels: the machinery only", save=RESULTS / "p3.json")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=list(MAIN), metavar="VARIANT", help=", ".join(VARIANTS)
    )
    parser.add_argument("--seeds", nargs="+", type=int)
    asked = parser.parse_args(arguments)
    prepare_process()
    protocol = QUICK if asked.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if asked.quick else FOLDER
        rows = {Cell(row["task"], row["variant"], row["seed"]): row for row in read_cells(folder, protocol.digest)}
        if not asked.report:
            seeds = asked.seeds or protocol.seeds
            wanted = [Cell(task, name, seed) for seed in seeds for task in asked.tasks for name in asked.variants]
            with study_run(folder):
                play_missing(protocol, folder, wanted, rows)
        found = report(rows, protocol, asked.tasks)
    show(found)
    own = {"benchmark": "p3", "quick": asked.quick, "digest": protocol.digest}
    finish({**found, **own, **about("evolvent", "torch", "numpy", threads=1)}, asked)


if __name__ == "__main__":
    main()

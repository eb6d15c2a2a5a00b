"""What searching is worth at equal computed tokens: beams, MCTS and Gumbel beside greedy, majority and best-of-n.

    python -m benchmarks.search_quality [--json] [--tasks NAME ...] [--seeds N ...]   searches what has no cell yet
    python -m benchmarks.search_quality --loop [--json]                               the TS-LLM loop too
    python -m benchmarks.search_quality --report [--json]                             only prints what is there
    python -m benchmarks.search_quality --quick [--json]                              the machinery; supports no claim
    python -m benchmarks.search_quality --study hard [--tune|--report] [--json]       5 and 6 numbers, under gates

For each task and seed one small policy imitates demonstrations (`benchmarks/search_bases.py`), and one judge learns the
outcomes of its samples on training tasks. Every method searches with these two and is told nothing by the world.
Budgets are computed tokens of a problem, those of policy and judge together; how wide a search is follows from its
budget by one rule (`search_quality_protocol.how_of`), and no budget is ever passed. Of `preference` the figure is the
mean true reward, which nothing but this measurement sees.

A cell is written when it is played: a stopped run goes on. Intervals draw seeds and kinds of tasks again
(`stats.crossed`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.search_bases import panel
from benchmarks.search_quality.cell import loop_cell, run_cell
from benchmarks.search_quality.hard import play_hard
from benchmarks.search_quality.hard_plan import HARD
from benchmarks.search_quality.protocol import METHODS, TASKS, Cell, Protocol
from benchmarks.study import exit_on_problems, prepare_process, read_rows, study_run, summary_path, write_cell
from evolvent.errors import Problem, unknown_name_problem
from evolvent.stats import crossed_interval, paired_interval
from evolvent.trajectory import sample_rng

FOLDER = RESULTS / "search"
PROTOCOL = Protocol()
QUICK = Protocol(
    seeds=(0,), panel=6, judged=12, samples=2, pairs=20, judge_tokens=300, loop_tasks=6, loop_tokens=400, quick=True
)
SEARCHES = ("beam", "mcts", "gumbel")
PLAIN = ("samples", "best_of_n")


class Cells:
    """The kept cells of a protocol."""

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.protocol = folder, protocol
        names = Cell.__dataclass_fields__
        self.kept = {
            Cell(**{name: row[name] for name in names}): row
            for row in read_rows(folder).values()
            if row["digest"] == protocol.digest(row["task"])
        }
        loops = read_rows(folder, "loop-*").values()
        self.loops = [row for row in loops if row["digest"] == protocol.loop_digest(row["task"])]

    def play(self, cell: Cell) -> None:
        """Play a cell that is not kept, and keep it."""
        if cell in self.kept:
            return
        row = run_cell(self.protocol, self.folder, cell)
        write_cell(self.folder, cell.key, row)
        self.kept[cell] = row
        mean = sum(row["values"]) / len(row["values"])
        print(f"{cell.key:36} {mean:.3f}  computed {row['computed']:8.0f}  {row['cpu_s']:6.1f} cpu-s", flush=True)

    def loop(self, task: str, seed: int) -> None:
        """Play the loop of a task and seed, unless it is kept."""
        if any((row["task"], row["seed"]) == (task, seed) for row in self.loops):
            return
        row = loop_cell(self.protocol, self.folder, task, seed)
        write_cell(self.folder, f"{task}-{seed}", row, kind="loop")
        self.loops.append(row)
        print(f"loop {task} {seed}: {row['before']} -> {row['after']} (control {row['control']})", flush=True)


def cells(tasks: Sequence[str], seeds: Sequence[int], most: int) -> Iterator[Cell]:
    """All cells, in the order in which they are played: the first `most` budgets of each task."""
    for seed in seeds:
        for task in tasks:
            yield Cell(task, seed, "greedy", 0)
            for budget in TASKS[task].budgets[:most]:
                yield from (Cell(task, seed, method, budget) for method in METHODS[1:])


def interval(kept: Cells, own: Sequence[Cell], other: Sequence[Cell] = ()) -> list[float]:
    """[mean, low, high] over seeds and kinds of tasks, of a method or of a difference."""
    kinds = [task.kind for task in panel(own[0].task, "test", kept.protocol.panel, bases=kept.protocol.bases)]
    sides = [[kept.kept[cell]["values"] for cell in side] for side in (own, other)]
    against = sides[1] or [[0.0] * len(kinds)] * len(own)
    found = crossed_interval(sides[0], against, kinds=kinds, rng=sample_rng("search quality"))
    ends = (found.mean, found.low, found.high) if found.low == found.low else (found.mean,) * 3
    return [round(end, 4) for end in ends]


def of_task(kept: Cells, task: str) -> dict[str, Any]:
    """One task's figures, over the seeds that have every method at every budget that some seed has finished."""
    own = [cell for cell in kept.kept if cell.task == task]
    done = {
        cell.budget
        for cell in own
        if cell.budget and all(Cell(task, cell.seed, method, cell.budget) in kept.kept for method in METHODS[1:])
    }
    own = [cell for cell in own if not cell.budget or cell.budget in done]
    wanted = sorted({(cell.method, cell.budget) for cell in own})
    seeds = [
        seed
        for seed in sorted({cell.seed for cell in own})
        if all(Cell(task, seed, *each) in kept.kept for each in wanted)
    ]
    if not seeds or {method for method, _ in wanted} != set(METHODS):  # a study that has only begun
        return {}
    by = {(method, budget): [Cell(task, seed, method, budget) for seed in seeds] for method, budget in wanted}
    accuracy: dict[str, dict[str, list[float]]] = {}
    for (method, budget), side in by.items():
        accuracy.setdefault(method, {})[str(budget)] = interval(kept, side)
    greedy, budgets = by["greedy", 0], sorted({budget for _, budget in by if budget})
    last = budgets[-1]
    best = max(SEARCHES, key=lambda name: accuracy[name][str(last)][0])
    gumbel = [accuracy["gumbel"][str(budget)][0] for budget in budgets]
    rows = [kept.kept[cell] for side in by.values() for cell in side]
    return {
        "accuracy": accuracy,
        "best": best,
        "best_minus_greedy": interval(kept, by[best, last], greedy),
        "best_minus": {
            name: {str(budget): interval(kept, by[best, budget], by[name, budget]) for budget in budgets}
            for name in PLAIN
        },
        "gumbel_worst_step": round(min((b - a for a, b in pairwise(gumbel)), default=0.0), 4),
        "passed": {
            str(budget): round(
                sum(kept.kept[cell]["passed"] for cell in by["samples", budget]) / len(seeds) / kept.protocol.panel, 4
            )
            for budget in budgets
        },
        **{name: _mean([kept.kept[cell][name] for cell in greedy]) for name in ("auc", "auc_half")},
        "judge": {
            method: {
                str(cell.budget): kept.kept[cell]["judge"]
                for cell in own
                if cell.method == method and cell.seed == seeds[0]
            }
            for method in METHODS
        },
        "generated": {
            method: {
                str(budget): round(sum(kept.kept[cell]["generated"] for cell in side) / len(side), 1)
                for (name, budget), side in by.items()
                if name == method
            }
            for method in METHODS
        },
        "computed": {
            method: {
                str(budget): round(sum(kept.kept[cell]["computed"] for cell in side) / len(side), 1)
                for (name, budget), side in by.items()
                if name == method
            }
            for method in METHODS
        },
        "over_budget": sum(row["most_computed"] > row["budget"] for row in rows if row["budget"]),
        "seeds": seeds,
    }


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return round(sum(known) / len(known), 4) if known else None


def report(kept: Cells, *, quick: bool) -> dict[str, Any]:
    """All figures as one JSON object."""
    found = {task: own for task in TASKS if (own := of_task(kept, task))}
    loops: dict[str, list[float]] = {}
    above: dict[str, list[float]] = {}
    for row in kept.loops:
        loops.setdefault(row["task"], []).append(round(row["after"] - row["before"], 4))
        above.setdefault(row["task"], []).append(round(row["after"] - row["control"], 4))
    return {
        "benchmark": "search_quality",
        "quick": quick,
        "digest": {task: kept.protocol.digest(task) for task in found},
        "accuracy": {task: own["accuracy"] for task, own in found.items()},
        "best_minus_greedy": {task: own["best_minus_greedy"] for task, own in found.items()},
        "best_minus_bon_ci": {
            task: {budget: ends[1:] for budget, ends in own["best_minus"]["best_of_n"].items()}
            for task, own in found.items()
        },
        "gumbel_worst_step": {task: own["gumbel_worst_step"] for task, own in found.items()},
        "loop_gain": loops,
        "loop_gain_ci": {task: _over_seeds(gains) for task, gains in loops.items()},
        "loop_over_control_ci": {task: _over_seeds(gains) for task, gains in above.items()},
        "tasks": found,
        "cpu_s": round(sum(row["cpu_s"] for row in [*kept.kept.values(), *kept.loops]), 1),
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        **about("evolvent", "torch", "numpy", threads=1),
    }


def _over_seeds(gains: Sequence[float]) -> list[float]:
    """[mean, low, high] of one number a seed: Student's t; of one seed its number alone."""
    if len(gains) < 2:
        return [gains[0]] * 3
    found = paired_interval(gains, [0.0] * len(gains), rng=sample_rng("loops"))
    return [round(end, 4) for end in (found.mean, found.low, found.high)]


def show(found: Mapping[str, Any]) -> None:
    """The tables for people, in per cent (of `preference`: of the highest reward)."""
    for task, own in found["tasks"].items():
        budgets = sorted({int(budget) for row in own["accuracy"].values() for budget in row} - {0})
        auc, half = ("unknown" if own[name] is None else f"{own[name]:.2f}" for name in ("auc", "auc_half"))
        print(f"\n{task}, % [95 %], by computed tokens; judge's AUC within tasks {auc} at ends, {half} half way")
        print(f"{'':12}" + "".join(f"{budget:>18}" for budget in budgets))
        greedy = own["accuracy"]["greedy"]["0"]
        print(f"{'greedy':12}{_cell(greedy)}  with {own['computed']['greedy']['0']:.0f} tokens")
        for method in METHODS[1:]:
            print(f"{method:12}" + "".join(_cell(own["accuracy"][method][str(budget)]) for budget in budgets))
        print(f"{'any sample':12}" + "".join(f"{100 * own['passed'][str(budget)]:>18.0f}" for budget in budgets))
        mean, low, high = (100 * end for end in own["best_minus_greedy"])
        print(f"best search ({own['best']}) - greedy: {mean:+.1f} [{low:+.1f}, {high:+.1f}]")
    for task, gains in found["loop_gain"].items():
        print(f"two rounds of the loop, {task}: greedy " + ", ".join(f"{100 * gain:+.1f}" for gain in gains))


def _cell(ends: Sequence[float]) -> str:
    mean, low, high = (100 * end for end in ends)
    return f"{f'{mean:.0f} [{low:.0f}, {high:.0f}]':>18}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("search_quality", __doc__, quick="a small copy in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="search nothing, print what is there")
    parser.add_argument("--loop", action="store_true", help="play two rounds of the TS-LLM loop too (countdown)")
    parser.add_argument("--tasks", nargs="+", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="of base, judge and search")
    parser.add_argument("--budgets", type=int, help="only the lowest so many of each task")
    parser.add_argument("--folder", type=Path, help="where the cells are")
    parser.add_argument("--study", choices=("methods", "hard"), default="methods", help="hard: countdown under gates")
    parser.add_argument("--tune", action="store_true", help="hard: only try the settings of the searches")
    options = parser.parse_args(arguments)
    protocol = QUICK if options.quick else PROTOCOL
    tasks = options.tasks or (["countdown"] if options.quick else [*TASKS])
    wrong = [unknown_name_problem("task", task, TASKS, location="--tasks") for task in tasks if task not in TASKS]
    if options.study == "hard" and HARD.development in (options.seeds or ()):
        wrong.append(Problem("--seeds", f"{HARD.development} chooses the settings", "give other seeds"))
    exit_on_problems(wrong)
    prepare_process()
    if options.study == "hard":
        _run_hard(options)
        return
    folder = options.folder or FOLDER
    with tempfile.TemporaryDirectory() as scratch:
        kept = Cells(Path(scratch) if options.quick else folder, protocol)
        if not options.report:
            seeds = options.seeds or protocol.seeds
            with study_run(kept.folder):
                for cell in cells(tasks, seeds, options.budgets or (1 if options.quick else protocol.budgets)):
                    kept.play(cell)
                for seed in seeds if options.loop else ():
                    kept.loop("countdown", seed)
        found = report(kept, quick=options.quick)
        if not options.report and not options.quick:
            write(summary_path(folder, "search_quality"), found)
    show(found)
    finish(found, options)


def _run_hard(options: argparse.Namespace) -> None:
    step = "tune" if options.tune else "report" if options.report else "play"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.quick else options.folder or RESULTS / "search_hard"
        seeds = options.seeds or ([0] if options.quick else [*HARD.seeds])
        if step == "report":
            figures = play_hard(folder, seeds=seeds, step=step, quick=options.quick)
        else:
            with study_run(folder):
                figures = play_hard(folder, seeds=seeds, step=step, quick=options.quick)
        if step == "play" and not options.quick:
            write(summary_path(folder, "search_hard"), figures)
        finish(figures, options)


if __name__ == "__main__":
    main()

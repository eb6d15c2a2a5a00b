"""Does a reverse curriculum help? R3 against outcome PPO, a staged curriculum and more imitation, on eight panels.

    python -m benchmarks.r3 [--json] [--jobs N] [--tasks NAME ...] [--seeds N ...]   trains what has no cell yet
    python -m benchmarks.r3 --report [--json]                             only prints what is there
    python -m benchmarks.r3 --quick [--json]                              the machinery in a minute; supports no claim
    python -m benchmarks.r3 --study chains [--tune]                       hidden chains, with gates (`r3/chains.py`)

For each task, model and seed one small policy imitates some demonstrations for a while: the weak base. Every method
goes on from it, with the same demonstrations at hand, and is measured greedily on held-out tasks, from their beginning.
What is equal is environment steps: a method ends with the iteration that reaches the budget. The continued imitation
(sft) learns as many tokens as R3 did. Tokens generated, computed and learned stand beside each cell. The programs
(P-CoT) are also learned by a wider model and by one of another architecture.

Every method gets the same tuning effort: each rate, on development seeds and two panels; the best mean accuracy on the
dev panels is its rate everywhere. The study begins when all rates are tried.

A cell is written as soon as it is played: a stopped study goes on, and several processes may work in one folder. Seeds
are played one after the other over all cells; a figure holds the seeds that all methods of its row have played.
Intervals draw seeds and kinds of tasks again (`stats.crossed`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.r3.chains import play_chains
from benchmarks.r3.protocol import METHODS, PANELS, Cell, Protocol, panel
from benchmarks.r3.schedule import Asked, Cells, play_all
from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.study import (
    exit_on_problems,
    prepare_process,
    study_run,
    summary_path,
)
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.methods.r3 import R3Config
from evolvent.rl.trainer import RLConfig
from evolvent.stats import crossed_interval
from evolvent.trajectory import Task, sample_rng

FOLDER = RESULTS / "r3"
PROTOCOL = Protocol()
QUICK = Protocol(
    pool=24,
    scale=0.004,
    dev=4,
    test=4,
    env_steps=60,
    slots=16,
    rates=(1e-3,),
    imitated=(1e-3,),
    tuned=("arithmetic",),
    r3=R3Config(
        practice=RLConfig(iterations=40, tasks_per_iteration=16, group_size=1, save_every=40, critic="separate")
    ),
)


def interval(
    kept: Cells, own: Sequence[Sequence[Cell]], other: Sequence[Sequence[Cell]], *, depth: int | None = None
) -> list[float]:
    """[mean, low, high] of the difference in accuracy between cells of the same seeds; to 0 where there are none.

    Args:
        own, other: for each seed, one cell of every panel that the figure is over; panels weigh as they have tasks.
        depth: only tasks of this many parts.
    """
    tasks = [(cell.task, one) for cell in own[0] for one in panel(kept.protocol, cell.task, "test")]
    used = [at for at, (_, one) in enumerate(tasks) if depth in (None, depth_of(one))]

    def scores(side: Sequence[Sequence[Cell]]) -> list[list[float]]:
        rows = ["".join(kept.kept[cell]["outcomes"] for cell in row) for row in side]
        return [[float(row[at]) for at in used] for row in rows]

    tasks = [tasks[at] for at in used]
    found = crossed_interval(
        scores(own),
        scores(other) or [[0.0] * len(tasks)] * len(own),
        kinds=[f"{name}: {one.kind}" for name, one in tasks],
        strata=[f"{name}: {one.tier}" for name, one in tasks],
        rng=sample_rng("r3 intervals"),
    )
    least = -1.0 if other else 0.0
    ends = (found.mean, max(least, found.low), min(1.0, found.high)) if found.low == found.low else (found.mean,) * 3
    return [round(end, 4) for end in ends]


def depth_of(task: Task) -> int:
    """How many parts the chain of a task has, or numbers a game of countdown."""
    parts = task.spec.get("chain") or task.spec.get("numbers") or ()
    return len(parts) if isinstance(parts, Sequence) else 0


def depths(kept: Cells, own: Sequence[Cell], other: Sequence[Cell]) -> dict[str, list[float]]:
    """The gain by the depth of tasks, where a panel has several."""
    found = sorted({depth_of(one) for one in panel(kept.protocol, own[0].task, "test")})
    if len(found) < 2:
        return {}
    return {str(depth): interval(kept, alone(own), alone(other), depth=depth) for depth in found}


def alone(own: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of one panel, as `interval` takes them."""
    return [[cell] for cell in own]


def average(kept: Cells, rows: Mapping[str, Mapping[str, Sequence[Cell]]]) -> list[float]:
    """[mean, low, high] of R3 - outcome over all panels of the smallest model, of the seeds that all have played."""
    panels = [row for row in rows.values() if row["mixed"][0].model == "xs"]
    seeds = sorted(set.intersection(*({cell.seed for cell in row["mixed"]} for row in panels))) if panels else []
    sides = (
        [[next(c for c in row[method] if c.seed == seed) for row in panels] for seed in seeds]
        for method in ("mixed", "outcome")
    )
    return interval(kept, *sides) if seeds else []


def report(kept: Cells, *, quick: bool) -> dict[str, Any]:
    """All figures as one JSON object, each over the seeds that all methods of its row have played."""
    rows: dict[str, dict[str, list[Cell]]] = {}
    tried = {method: kept.tried(method) for method in METHODS}
    ready = all(len(rates) == len(kept.protocol.tries(method)) for method, rates in tried.items())
    chosen = {method: kept.rate(method) for method in METHODS} if ready else {}
    for cell in sorted(kept.kept, key=lambda one: one.seed):
        own_rate = cell.seed not in kept.protocol.development and cell.rate == chosen.get(cell.method)
        if own_rate and all(kept.of(method, cell) in kept.kept for method in METHODS):
            rows.setdefault(cell.row, {}).setdefault(cell.method, []).append(cell)
    accuracy = {
        name: {method: interval(kept, alone(own[method]), []) for method in METHODS} for name, own in rows.items()
    }
    gains = {name: interval(kept, alone(own["mixed"]), alone(own["outcome"])) for name, own in rows.items()}
    costs = ("env_steps", "replayed", "tokens_generated", "tokens_computed", "tokens_trained", "cpu_train_s")

    def mean(own: Sequence[Cell], what: str) -> float:
        return round(float(sum(kept.kept[cell][what] for cell in own)) / len(own), 4)

    return {
        "benchmark": "r3",
        "quick": quick,
        "digest": kept.protocol.digest,
        "accuracy": accuracy,
        "base": {name: mean(own["mixed"], "base") for name, own in rows.items()},
        "r3_minus_outcome": {name: gain[0] for name, gain in gains.items()},
        "r3_minus_outcome_ci": {name: gain[1:] for name, gain in gains.items()},
        "r3_minus_outcome_mean": average(kept, rows),
        "r3_minus_outcome_by_depth": {name: depths(kept, own["mixed"], own["outcome"]) for name, own in rows.items()},
        "staged_minus_outcome": {
            name: interval(kept, alone(own["staged"]), alone(own["outcome"])) for name, own in rows.items()
        },
        "cost": {
            what: {name: {method: mean(own[method], what) for method in METHODS} for name, own in rows.items()}
            for what in costs
        },
        "rate": chosen,
        "tried": tried,
        "seeds": {name: [cell.seed for cell in own["mixed"]] for name, own in rows.items()},
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        "sources": sorted({row["sources"] for row in kept.kept.values()}),
        **about("evolvent", "torch", "numpy", threads=1),
    }


def show(found: Mapping[str, Any]) -> None:
    """The table for people: accuracy in per cent with its interval."""
    print(
        f"\n{'accuracy, % [95 %]':22}{'base':>7}" + "".join(f"{name:>17}" for name in METHODS) + f"{'R3 - outcome':>19}"
    )
    for name, row in found["accuracy"].items():
        shown = [f"{100 * mean:.0f} [{100 * low:.0f}, {100 * high:.0f}]" for mean, low, high in row.values()]
        low, high = found["r3_minus_outcome_ci"][name]
        gain = f"{100 * found['r3_minus_outcome'][name]:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        print(f"{name:22}{100 * found['base'][name]:7.0f}" + "".join(f"{one:>17}" for one in shown) + f"{gain:>19}")
    for mean, low, high in filter(None, [found["r3_minus_outcome_mean"]]):
        print(f"mean of R3 - outcome: {100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("r3", __doc__, quick="a small copy in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--tasks", nargs="+", help=f"panels; of {', '.join(PANELS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of the bases")
    parser.add_argument("--folder", type=Path, help="where the cells are")
    parser.add_argument("--study", choices=("panels", "chains"), default="panels", help="the panels, or hidden chains")
    parser.add_argument("--tune", action="store_true", help="chains: only try the rates")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    options = parser.parse_args(arguments)
    tasks = options.tasks or (["arithmetic"] if options.quick else [*PANELS])
    seeds = options.seeds or ([0, 1] if options.quick else [0, 1, 2])
    wrong = [unknown_name_problem("panel", task, PANELS, location="--tasks") for task in tasks if task not in PANELS]
    if used := sorted({*seeds} & {*PROTOCOL.development}):
        wrong.append(Problem("--seeds", f"{used} choose the rates", "give other seeds"))
    exit_on_problems(wrong)
    prepare_process()
    if options.study == "chains":
        _run_chains(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        protocol, folder = (QUICK, Path(scratch)) if options.quick else (PROTOCOL, options.folder or FOLDER)
        if not options.report:
            with study_run(folder):
                play_all(folder, protocol, Asked(tasks, seeds, options.jobs))
        found = report(Cells(folder, protocol), quick=options.quick)
        if not options.report and not options.quick:
            write(summary_path(folder, "r3"), found)
    show(found)
    finish(found, options)


def _run_chains(options: argparse.Namespace) -> None:
    step = "tune" if options.tune else "report" if options.report else "play"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "chains" if options.quick else options.folder or RESULTS / "r3_chains"
        seeds = options.seeds or ([0, 1] if options.quick else list(range(10, 16)))
        try:
            figures = play_chains(folder, seeds=seeds, step=step, quick=options.quick)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from error
        finish(figures, options)


if __name__ == "__main__":
    main()

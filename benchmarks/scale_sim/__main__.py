"""Planning past these machines: costs measured here, a model of the circle checked here, and what it says of GPUs.

    python -m benchmarks.scale_sim [--quick] [--json] [--save] [--report]

`measured`: CPU-seconds of a step, a token, an episode, a hand-over (`scale_sim_measure`). `checks`: seconds of a circle
(hand over, collect, store, learn) by 1, 2 and 4 worker processes on the world of the calibration, [foreseen, measured,
foreseen over measured], medians over repeats; `out_of_sample`: the same on another world, and on shorter actions with
fewer rows. The model is told the distribution of episodes, from a pilot with other seeds, and how many threads of
others want the cores at that time (`rivals`; it is best run where that is 0). `worst_ratio`: the largest of the
ratios or their inverses. `mean_field`: turns of the model for many GPUs over the same event by event.

`predictions` are of that model with published rates of GPUs (`scale_sim_fleet`, `scale_sim_round`), `breaks_first`
says with how many environments something else than a GPU is full, `tornado` halves and doubles every constant.
`--report` tells of the kept file without running anything.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import reporting
from benchmarks.reporting import RESULTS, command_line, finish
from benchmarks.scale_sim.crew import Hand, Work, crew, load, play_circle, shape_of, worlds
from benchmarks.scale_sim.events import speed
from benchmarks.scale_sim.measure import calibrated, natural_policy, slowed_by_others
from benchmarks.scale_sim.model import Costs, Machine, Shape, circle
from benchmarks.scale_sim.plan import costs_of, planned
from benchmarks.scale_sim.tables import tables
from evolvent.agents.language import LanguageAgent
from evolvent.engine.local import LocalEngine
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.scale.ray_wire import read_policy_files
from evolvent.trajectory import Start, sample_rng

RESULT = RESULTS / "scale_sim.json"
SEED = 0
DRAWS = 5  # simulations of a circle, each with episodes of its own
WORKERS = (1, 2, 4)


@dataclass(frozen=True)
class Check:
    """A workload that is played for real: world, episodes, rows of an engine, longest action."""

    world: str
    episodes: int
    rows: int
    max_tokens: int = 32

    def work(self, *, first: int) -> Work:
        """Its episodes, beginning with a task."""
        panel = list(worlds()[self.world].tasks("train", "seen"))
        tasks = [panel[at] for at in sample_rng("scale sim tasks", SEED).permutation(len(panel))]
        starts = [Start(tasks[(first + number) % len(tasks)], number // len(tasks)) for number in range(self.episodes)]
        return Work(starts, self.rows, self.max_tokens)


CHECKS = {
    "crafting": Check("crafting", 160, 32),
    "lookup": Check("lookup", 320, 32),
    "short actions": Check("crafting", 160, 8, max_tokens=6),
}
QUICK = {"crafting": Check("crafting", 48, 16), "lookup": Check("lookup", 64, 16)}


def pilot(policy: Policy, check: Check) -> Shape:
    """What episodes of a workload are like: played in process, on other tasks and with other seeds than circles."""
    work = check.work(first=check.episodes)
    agent = LanguageAgent(policy, max_tokens=work.max_tokens)
    return shape_of(
        list(
            collect(
                worlds(),
                work.starts,
                agent,
                engine=LocalEngine(policy, slots=work.rows),
                seed=SEED + 1000,
                slots=work.rows,
            )
        )
    )


def foreseen(costs: Costs, shape: Shape, check: Check, *, workers: int, machine: Machine) -> tuple[float, float]:
    """Seconds and CPU-seconds of a circle, means over simulations."""
    walls, cpus = [], []
    for draw in range(DRAWS):
        drawn = shape.drawn(check.episodes, sample_rng("scale sim circle", SEED, draw))
        tokens = int(drawn.written.sum() + drawn.read.sum())
        found = circle(drawn, costs, workers=workers, rows=check.rows, machine=machine, learned=tokens)
        walls.append(found.wall_s)
        cpus.append(found.work_s / speed(workers + machine.rivals, machine.cores, machine.slowed))
    return statistics.mean(walls), statistics.mean(cpus)


def checked(
    policy: Policy, measured: Mapping[str, Any], checks: Mapping[str, Check], *, workers: Sequence[int], repeats: int
) -> dict[str, Any]:
    """Every workload by every number of workers, interleaved; the first turn warms up and is not counted."""
    weights = float(sum(len(each) for each in read_policy_files(policy)[1].values()))
    shapes = {name: pilot(policy, check) for name, check in checks.items()}
    rows: list[dict[str, Any]] = []
    with crew(max(workers)) as hands:
        for turn in range(repeats + 1):
            for name, check in checks.items():
                for count in workers:
                    row = _one(hands[:count], policy, check, (measured, shapes[name], weights), seed=turn)
                    if turn:
                        rows.append({"name": name, "workers": count, **row})
    first, *others = checks
    told = {name: {str(count): _told(rows, name, count) for count in workers} for name in checks}
    ratios = [told[name][count][2] for name in told for count in told[name]]
    return {
        "checks": told[first],
        "out_of_sample": {name: told[name] for name in others},
        "worst_ratio": max(max(each, 1 / each) for each in ratios),
        "circles": rows,
    }


def _one(
    hands: Sequence[Hand], policy: Policy, check: Check, known: tuple[Mapping[str, Any], Shape, float], *, seed: int
) -> dict[str, Any]:
    """A real circle and what was foreseen of it, on the machine as it was."""
    measured, shape, weights = known
    real = play_circle(hands, policy, check.work(first=0), seed=seed)
    machine = Machine(measured["cores"], real.rivals, measured["slowed"])
    wall, cpu = foreseen(costs_of(measured, shape, weights), shape, check, workers=len(hands), machine=machine)
    return {
        "foreseen_s": wall,
        "measured_s": real.wall_s,
        "ratio": wall / real.wall_s,
        "collected_s": real.collected_s,
        "cpu_ratio": cpu / real.cpu_s,
        "rivals": real.rivals,
        "steps": int(real.shape.steps.sum()),
    }


def _told(rows: Sequence[Mapping[str, Any]], name: str, workers: int) -> list[float]:
    """[foreseen, measured, their ratio], medians; then the least and largest ratio, and the ratio of CPU-seconds."""
    own = [row for row in rows if row["name"] == name and row["workers"] == workers]
    middle = [statistics.median(row[key] for row in own) for key in ("foreseen_s", "measured_s", "ratio")]
    ends = [min(row["ratio"] for row in own), max(row["ratio"] for row in own)]
    return [*middle, *ends, statistics.median(row["cpu_ratio"] for row in own)]


def measurements(policy: Policy, *, quick: bool) -> dict[str, Any]:
    """The costs, as they would be alone on the machine, and the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slowed = slowed_by_others(policy, 3 if quick else 9)
    with load([os.getpid()]) as rivals:
        found = calibrated(policy, quick=quick)
    beside = sum(rivals) / max(1, len(rivals))
    return {
        **found,
        "cores": cores,
        "slowed": slowed,
        "rivals": beside,
        "calibrated_at": speed(1 + beside, cores, slowed),
    }


def report(*, quick: bool) -> dict[str, Any]:
    """Everything: measured, checked, foreseen."""
    before = reporting.load()[0]
    policy = natural_policy(seed=SEED, updates=150 if quick else 300)
    measured = measurements(policy, quick=quick)
    found = checked(
        policy,
        measured,
        QUICK if quick else CHECKS,
        workers=WORKERS[:2] if quick else WORKERS,
        repeats=2 if quick else 5,
    )
    return {
        "benchmark": "scale_sim",
        "quick": quick,
        "measured": measured,
        **found,
        **planned(measured, quick=quick, seed=SEED),
        "seeds": [SEED],
        "load_before_and_after": [before, reporting.load()[0]],
        **reporting.about("evolvent", "torch", "transformers", "numpy", cores=True),
    }


def rounded(value: Any) -> Any:
    """The same JSON with five digits that count."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, (float, np.floating)) else value


def main(arguments: Sequence[str] | None = None) -> None:
    few = "few repeats, two workers, fewer fleets: under two minutes"
    parser = command_line("scale_sim", __doc__, quick=few, save=RESULT)
    parser.add_argument("--report", action="store_true", help="tables of the kept file; nothing is run")
    options = parser.parse_args(arguments)
    if options.report and options.save is not None:
        parser.error("--report runs nothing that --save could keep")
    if options.report:
        if not RESULT.is_file():
            raise SystemExit(f"error: nothing is kept at {RESULT.name}; run with --save first")
        result = json.loads(RESULT.read_text(encoding="utf-8"))
    else:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        result = rounded(report(quick=options.quick))
    print(tables(result))
    finish(result, options)


if __name__ == "__main__":
    main()

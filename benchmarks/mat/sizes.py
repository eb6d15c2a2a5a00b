"""MAT by number of agents: the game `distinct` with 4, 8 and 12 agents, and foraging.

    python -m benchmarks.mat --study sizes             plays what has no cell yet: rates, then the study; resumes
    python -m benchmarks.mat --study sizes --report    only prints what is there
    python -m benchmarks.mat --study sizes --decisions 2097152     another, longer study in its own folder
    python -m benchmarks.mat --study foraging          foraging alone: lower rates, five times the decisions

In `distinct` a team is paid the share of agents whose action no other took; agents see the same, so those that decide
at once with the same weights can only randomize, and those that decide after the others need not. Sixteen tasks of a
size differ in which label means which action. Foraging is 3 agents and 3 pieces of food on 6 x 6. Loop, network width,
rollouts, passes, clip and discount are equal for MAT, MAT-Dec, MAPPO and HAPPO; MAT-Dec and HAPPO have one actor per
agent. Each method and task chooses its rate of seven, by the area of a whole training with the seed `development`.

What is compared is the area under the learning curve, as in `benchmarks.mat`; intervals are over training seeds.
The claim, from before any run: MAT has the greatest mean area on `distinct` with 8 and 12 agents. Gates: some method's
last return is .05 above its first, and the rate of each method lies inside the grid, unless it learns at none: of those
that decide at once with shared weights no rate may.

Earlier editions chose among 5e-5 to 1e-2, then to 1, over 40 % of the decisions. That favors rates that rise fast and
end low: with 12 agents HAPPO chose .1 and ended at .4 to .8. Below 1e-3 no method was best. The rule was changed after
these results had been seen; it makes the controls stronger. Trainings of the same settings were kept.

In `sizes` foraging failed its gate: two methods chose the lowest rate, and little was learned. `foraging` is its second
edition: 131,072 decisions (5,120 updates) and rates from 1e-4 to 1e-2. It claims no order; what it can show is whether
a team of three needs a sequence where agents see different things. Whether an interval holds 0 is told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.frozen import describe_gate, freeze_plan, seed_interval, summarize_curves
from benchmarks.mat.cell import METHODS, curve_of
from benchmarks.reporting import about, write
from benchmarks.study import play_once, read_cells, study_run, summary_path
from benchmarks.tuning.cell import sources
from evolvent.bench.plan import Gate
from evolvent.bench.verdict import GateResult, check_gate
from evolvent.identity import version_1_values
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import MATConfig, mat
from evolvent.trajectory import Task, canonical_json, sample_seed
from evolvent.worlds.teams.base import TeamBatch
from evolvent.worlds.teams.extras import ForeignWorld
from evolvent.worlds.teams.games import GameWorld

__all__ = [
    "FORAGING",
    "QUICK_FORAGING",
    "QUICK_SIZES",
    "SIZES",
    "SizeCell",
    "SizesPlan",
    "chance_return",
    "play_sizes",
    "report_sizes",
    "run_sizes",
]

_SHUFFLES = 16  # tasks of a size
_LAYOUTS: Mapping[str, tuple[int, int]] = {"distinct": (128, 4), "foraging": (16, 32)}
"""By game: episodes side by side, and decisions of each in a rollout. An episode of `distinct` is one decision."""
_CLAIMED = ("distinct 8", "distinct 12")
_LEARNS = 0.05  # last return above the first, of the best method


@dataclass(frozen=True, order=True)
class SizeCell:
    """One training: a method on a task with a seed, at a rate, over a number of decisions."""

    task: str
    method: str
    seed: int
    rate: float
    decisions: int

    @property
    def key(self) -> str:
        """Returns the name of its file."""
        return f"{self.task}-{self.method}-{self.seed}-{self.rate:g}-{self.decisions}".replace(" ", "")


@dataclass(frozen=True)
class SizesPlan:
    """What the study fixes before it runs.

    Args:
        decisions: of a training. tuned_ratio: the share of them over which rates are tried.
        rates: tried by every method on every task with the seed `development`; `seeds` are the study's.
    """

    tasks: tuple[str, ...] = ("distinct 4", "distinct 8", "distinct 12", "foraging")
    decisions: int = 25_600
    tuned_ratio: float = 1.0
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    development: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)
    ppo_epochs: int = 5
    minibatches: int = 4
    entropy_coef: float = 0.01

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan, under which the study is frozen."""
        return f"{sample_seed(canonical_json({**asdict(self), 'cells': self.cell_digest})):016x}"

    @property
    def cell_digest(self) -> str:
        """Returns 16 hex digits of what a training depends on beside its task, method, seed, rate and length."""
        cells = [SizeCell(game, "mat", 0, 1e-3, 1024) for game in _LAYOUTS]
        settings = [version_1_values(self.configure(cell)) for cell in cells]
        return f"{sample_seed(canonical_json({'settings': settings, 'shuffles': _SHUFFLES, 'edition': 3})):016x}"

    @property
    def tuned_on(self) -> int:
        """Returns the decisions of a training that tries a rate, in whole rollouts."""
        return max(1, int(self.decisions * self.tuned_ratio) // 1024) * 1024

    def configure(self, cell: SizeCell) -> MATConfig:
        """Returns the settings of a training; methods differ in `kind` and rate alone."""
        rows, steps = layout_of(cell.task)
        update = TeamUpdateConfig(
            lr=cell.rate,
            ppo_epochs=self.ppo_epochs,
            minibatches=self.minibatches,
            clip_range=0.2,
            entropy_coef=self.entropy_coef,
        )
        return MATConfig.model_validate(
            {
                "kind": cell.method,
                "rows": rows,
                "steps": steps,
                "decisions": cell.decisions,
                "keep_every": 64,
                "update": update,
                "seed": cell.seed,
            }
        )


SIZES = SizesPlan()
FORAGING = SizesPlan(tasks=("foraging",), decisions=131_072, rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2))
QUICK_FORAGING = replace(FORAGING, decisions=2048, rates=(1e-3, 3e-3), seeds=(0, 1))
QUICK_SIZES = SizesPlan(tasks=("distinct 4", "distinct 8"), decisions=2048, rates=(3e-4, 1e-3, 3e-3), seeds=(0, 1))


def layout_of(task: str) -> tuple[int, int]:
    """Returns how many episodes of a task are played side by side, and the decisions of each in a rollout."""
    return _LAYOUTS[task.partition(" ")[0]]


def make_batch(task: str) -> TeamBatch:
    """Makes the episodes of a task; MissingExtra where its package is not installed."""
    name, _, number = task.partition(" ")
    if name == "foraging":
        settings = {"size": 6, "agents": 3, "food": 3, "cooperate": False}
        foraging = ForeignWorld("foraging", horizon=50, settings=settings)
        return foraging.batch(foraging.tasks("train", "seen"), layout_of(task)[0])
    world = GameWorld("distinct")
    tasks: list[Task] = [world.task(int(number), shuffle=shuffle) for shuffle in range(_SHUFFLES)]
    return world.batch(tasks, layout_of(task)[0])


def chance_return(agents: int) -> float:
    """Computes the return in `distinct` of agents that choose at random, each for itself.

    >>> round(chance_return(4), 3)
    0.422
    """
    return float((1 - 1 / agents) ** (agents - 1))


def count_updates(plan: SizesPlan, task: str) -> int:
    """Counts the updates of a training of the study."""
    rows, steps = layout_of(task)
    return plan.decisions // (rows * steps) * plan.ppo_epochs * plan.minibatches


class SizeCells:
    """The kept cells of a plan."""

    def __init__(self, folder: Path, plan: SizesPlan) -> None:
        self.plan = plan
        names = SizeCell.__dataclass_fields__
        rows = read_cells(folder, plan.cell_digest) if folder.is_dir() else []
        self.rows = {SizeCell(**{name: row[name] for name in names}): row for row in rows}

    def tried(self, task: str, method: str) -> dict[float, float]:
        """Returns the area of each rate that was tried."""
        plan = self.plan
        cells = {rate: SizeCell(task, method, plan.development, rate, plan.tuned_on) for rate in plan.rates}
        return {rate: self.rows[cell]["area"] for rate, cell in cells.items() if cell in self.rows}

    def choose_rate(self, task: str, method: str) -> float | None:
        """Returns the rate of the greatest area, the lowest of equals; None where not all were tried."""
        areas = self.tried(task, method)
        return max(areas, key=lambda rate: (areas[rate], -rate)) if len(areas) == len(self.plan.rates) else None

    def learns(self, task: str, method: str) -> bool:
        """Returns whether the method's last return is above its first at any rate that was tried."""
        plan = self.plan
        cells = [SizeCell(task, method, plan.development, rate, plan.tuned_on) for rate in plan.rates]
        curves = [self.rows[cell]["curve"] for cell in cells if cell in self.rows]
        return any(curve[-1] - curve[0] >= _LEARNS for curve in curves)

    def is_inside(self, task: str, method: str) -> bool | None:
        """Returns whether the chosen rate lies inside the grid; None where none is chosen."""
        rate = self.choose_rate(task, method)
        return None if rate is None else rate not in (min(self.plan.rates), max(self.plan.rates))

    def list_missing(self, tasks: Sequence[str] | None = None) -> list[SizeCell]:
        """Lists the cells of these tasks to play next: task by task the rates, then the study seed by seed."""
        missing = []
        for task in tasks or self.plan.tasks:
            pairs = [(task, method) for method in METHODS]
            tuning = [
                SizeCell(*pair, self.plan.development, rate, self.plan.tuned_on)
                for pair in pairs
                for rate in self.plan.rates
            ]
            study = [
                SizeCell(*pair, seed, rate, self.plan.decisions)
                for seed in self.plan.seeds
                for pair in pairs
                if (rate := self.choose_rate(*pair)) is not None
            ]
            missing += [cell for cell in [*tuning, *study] if cell not in self.rows]
        return missing

    def count_missing(self) -> dict[str, int]:
        """Counts for each task the trainings that are still to be played, its rates included."""
        wanted = len(METHODS) * (len(self.plan.rates) + len(self.plan.seeds))
        counts = {
            task: wanted - sum(len(self.tried(task, name)) + len(self.list_rows(task, name)) for name in METHODS)
            for task in self.plan.tasks
        }
        return {task: count for task, count in counts.items() if count}

    def list_rows(self, task: str, method: str) -> dict[int, dict[str, Any]]:
        """Returns the rows of a method at its rate, by seed of the study."""
        rate = self.choose_rate(task, method)
        cells = {seed: SizeCell(task, method, seed, rate or 0.0, self.plan.decisions) for seed in self.plan.seeds}
        return {seed: self.rows[cell] for seed, cell in cells.items() if cell in self.rows}


def play_sizes(folder: Path, plan: SizesPlan, tasks: Sequence[str] = ()) -> None:
    """Plays the cells that are missing, and keeps each. Tasks whose package is missing are left out.

    Args:
        tasks: of the plan; empty: all.
    """
    torch.set_num_threads(1)
    has_foraging = find_spec("lbforaging") is not None
    playable = [task for task in tasks or plan.tasks if task != "foraging" or has_foraging]
    with study_run(folder):
        freeze_plan(folder, asdict(plan), plan.digest)
        while missing := SizeCells(folder, plan).list_missing(playable) if playable else []:
            tuning = [cell for cell in missing if cell.seed == plan.development and cell.task == missing[0].task]
            num_played = 0
            for cell in tuning or missing:
                row = play_once(folder, cell.key, plan.cell_digest, partial(_play_cell, plan, cell, folder))
                if row is not None:
                    num_played += 1
                    print(f"{cell.key:36} area {row['area']:.3f}  last {row['curve'][-1]:.3f}", flush=True)
            if not num_played:  # other processes play the last of these
                time.sleep(1.0)


def _play_cell(plan: SizesPlan, cell: SizeCell, folder: Path) -> dict[str, Any]:
    began, config = time.process_time(), plan.configure(cell)
    with closing(make_batch(cell.task)) as batch:
        trained = mat(config, batch, folder=folder / "runs" / f"{plan.cell_digest}-{cell.key}")
    curve = curve_of(trained.history, cell.decisions)
    return {
        **asdict(cell),
        "digest": plan.cell_digest,
        "curve": [round(value, 4) for value in curve],
        "area": round(float(np.mean(curve)), 5),
        "updates": len(trained.history) * plan.ppo_epochs * plan.minibatches,
        "sources": sources(),
        "cpu_s": round(time.process_time() - began, 2),
    }


# ------------------------------------------------------------------ figures


def report_sizes(folder: Path, plan: SizesPlan) -> dict[str, Any]:
    """Computes all figures of the kept cells; what is not played yet is missing from them."""
    cells = SizeCells(folder, plan)
    rows = {task: {method: cells.list_rows(task, method) for method in METHODS} for task in plan.tasks}
    complete = [task for task in plan.tasks if all(len(own) == len(plan.seeds) for own in rows[task].values())]
    areas = {
        task: {method: {seed: row["area"] for seed, row in own.items()} for method, own in rows[task].items() if own}
        for task in plan.tasks
    }
    means = {task: {method: fmean(own.values()) for method, own in areas[task].items()} for task in complete}
    gates = {task: _check_gates(cells, task, rows[task]) for task in complete}
    passed = {task: all(gate.passed for gate in own) for task, own in gates.items()}
    first = {task: all(own["mat"] > own[name] for name in METHODS if name != "mat") for task, own in means.items()}
    minus = {
        task: {
            method: seed_interval(own["mat"], own[method])
            for method in METHODS
            if method != "mat" and method in own and set(own["mat"]) & set(own[method])
        }
        for task, own in areas.items()
        if "mat" in own
    }
    claimed = [task for task in plan.tasks if task in _CLAIMED] or list(plan.tasks)
    spent = [row["cpu_s"] for row in cells.rows.values()]
    return {
        "benchmark": "mat_sizes",
        "digest": plan.digest,
        "gate_passed": bool(claimed) and all(passed.get(task, False) for task in claimed),
        "gate_passed_by_task": passed,
        "gates": {task: [describe_gate(gate) for gate in own] for task, own in gates.items()},
        "verdict": _judge(claimed, passed, first, minus),
        "mat_first": first,
        "area": {
            task: {name: seed_interval(own) for name, own in each.items()} for task, each in areas.items() if each
        },
        "mat_minus_ci": {task: own for task, own in minus.items() if own},
        "last": {
            task: {method: seed_interval({seed: row["curve"][-1] for seed, row in own.items()})
                   for method, own in rows[task].items() if own}
            for task in plan.tasks if areas[task]
        },
        "curve": {
            task: {method: summarize_curves([row["curve"] for row in own.values()])
                   for method, own in rows[task].items() if own}
            for task in plan.tasks if areas[task]
        },
        "chance": {task: round(chance_return(int(task.split()[1])), 4) for task in plan.tasks if task != "foraging"},
        "rates": {task: {method: cells.choose_rate(task, method) for method in METHODS} for task in plan.tasks},
        "at_grid_end": [
            f"{task}: {method}"
            for task in plan.tasks for method in METHODS
            if cells.is_inside(task, method) is False and cells.learns(task, method)
        ],
        "tried": {
            task: {name: {f"{rate:g}": area for rate, area in cells.tried(task, name).items()} for name in METHODS}
            for task in plan.tasks
        },
        "learns_at_no_rate": [
            f"{task}: {method}"
            for task in plan.tasks for method in METHODS if cells.tried(task, method) and not cells.learns(task, method)
        ],
        "decisions": plan.decisions,
        "updates": {task: count_updates(plan, task) for task in plan.tasks},
        "seeds": list(plan.seeds),
        "missing": cells.count_missing(),
        "cells": len(cells.rows),
        "cpu_hours": round(sum(spent) / 3600, 3),
        "decisions_per_cpu_s": round(sum(cell.decisions for cell in cells.rows) / sum(spent)) if sum(spent) else None,
        "interval": "95 %, over training seeds, in pairs where differences are meant",
        "sources": sorted({row["sources"] for row in cells.rows.values()}),
        **about("evolvent", "torch", "numpy", "lbforaging", threads=1),
    }  # fmt: skip


def _check_gates(cells: SizeCells, task: str, rows: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[GateResult]:
    """Checks the gates of one task whose trainings are all played."""
    gains = {
        method: {seed: row["curve"][-1] - row["curve"][0] for seed, row in own.items()} for method, own in rows.items()
    }
    best = max(gains, key=lambda method: fmean(gains[method].values()))
    results = [check_gate(Gate(f"something is learned, {task}", best, "gain", minimum=_LEARNS), gains[best])]
    for method in METHODS:
        gate = Gate(f"rate inside the grid, or none learns, {task}", method, "rate_inside", minimum=1.0)
        settled = bool(cells.is_inside(task, method)) or not cells.learns(task, method)
        results.append(check_gate(gate, {cells.plan.development: float(settled)}))
    return results


def _judge(
    claimed: Sequence[str],
    passed: Mapping[str, bool],
    first: Mapping[str, bool],
    minus: Mapping[str, Mapping[str, Sequence[float]]],
) -> str:
    """Returns the verdict in words, task by task; none where a gate fails or trainings are missing."""
    verdicts = []
    for task in claimed:
        if task not in passed:
            verdicts.append(f"{task}: no verdict, trainings are missing")
        elif not passed[task]:
            verdicts.append(f"{task}: no verdict, a gate failed")
        elif first[task]:
            doubtful = [method for method, interval in minus[task].items() if interval[1] <= 0]
            doubt = f" (interval holds 0: {', '.join(doubtful)})" if doubtful else ""
            verdicts.append(f"{task}: MAT is first{doubt}")
        else:
            verdicts.append(f"{task}: MAT is not first")
    return "; ".join(verdicts)


def show_sizes(figures: Mapping[str, Any]) -> None:
    """Prints the tables for people."""
    for task, own in figures["area"].items():
        gate = figures["gate_passed_by_task"].get(task)
        chance = f", chance {figures['chance'][task]:.3f}" if task in figures["chance"] else ""
        print(f"\n{task}{chance}, gates passed: {gate}")
        for method, (mean, low, high) in own.items():
            minus = figures["mat_minus_ci"].get(task, {}).get(method)
            text = f"MAT - {method}: {minus[0]:+.3f} [{minus[1]:+.3f}, {minus[2]:+.3f}]" if minus else ""
            last, rate = figures["last"][task][method][0], figures["rates"][task][method]
            print(f"  {method:8} area {mean:.3f} [{low:.3f}, {high:.3f}]  last {last:.3f}  rate {rate:g}  {text}")
    if figures["missing"]:
        print(f"\ntrainings still to be played: {figures['missing']}")
    if figures["at_grid_end"]:
        print(f"best rate at an end of the grid: {', '.join(figures['at_grid_end'])}")
    if figures["learns_at_no_rate"]:
        print(f"at chance at every rate that was tried: {', '.join(figures['learns_at_no_rate'])}")
    print(f"{figures['verdict']}; {figures['cells']} cells, {figures['cpu_hours']:.2f} CPU-hours")


def run_sizes(
    folder: Path, plan: SizesPlan, *, play: bool, tasks: Sequence[str] = (), quick: bool = False
) -> dict[str, Any]:
    """Plays what is missing where asked, keeps the summary, and returns the figures."""
    if play:
        play_sizes(folder, plan, tasks)
    figures = {**report_sizes(folder, plan), "quick": quick}
    if play and not quick:
        write(summary_path(folder, folder.name), figures)
    show_sizes(figures)
    return figures

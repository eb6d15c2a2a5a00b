"""Speed and soundness of the embedded worlds.

    python -m benchmarks.worlds [--worlds NAME ...] [--quick] [--json] [--save [FILE]]

One thread, CPU time. Every world is measured in a process of its own. `steps_per_cpu_s` counts making and resetting
environments: the expert plays 200 tasks of each trained tier, again and again, as rollouts do. `first_visit` is the
rate when every task is new to the world object, which then prepares it; `first_visit_listed` is that with the legal
actions read at the start of every episode, which some worlds compute when they are read. `cold_cpu_s` is a fresh
process: seconds to import and make the world, to deal its first panel, and to reset its first task.

The audit plays every test task: the expert should win .95 of each tier, random legal actions at most .2 and blind
replay of training plans at most .05 of the held-out tiers. Battles (`battle:LAYOUT`) are played in a batch of 256 by
random actions; their expert is a script that was not made to win .95.

`--save` writes the file after every world. A world is not measured again while its sources are those of its figures.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import RESULTS, about, command_line, finish, machine, write
from benchmarks.teams_worlds import ROWS, batch_speed, choose
from evolvent import worlds as worlds_package
from evolvent.cli.setup.registry import ALL_WORLDS, load_world
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.audit import audit
from evolvent.worlds.base import World
from evolvent.worlds.teams.base import TeamView
from evolvent.worlds.teams.battle import BattleBatch, BattleWorld
from evolvent.worlds.teams.battle_planner import BattlePlanner

NEW_WORLDS = (
    "shop",
    "site",
    "science",
    "kitchen",
    "virtualhome",
    "datasci",
    "backoffice",
    "battle:3m",
    "battle:8m",
    "battle:2s3z",
)
AIMS = {"crafting": 100_000, "gridworld": 5_000, "site": 3_000}  # steps per CPU-second; of every other world:
AIM = 10_000
LIMITS = {"expert_success": 0.95, "random_success": 0.20, "blind_replay": 0.05}
SEED = 0
FIGURES = {"expert_success": "expert", "random_success": "random", "blind_replay": "replay"}
BATTLES = 96  # episodes by which a policy of battles is measured
_FORMAT = 1  # of a cell
_SHARED_SOURCES = ("base.py", "audit.py", "panel.py")
_COLD_START = """
import json, sys, time
start = time.process_time()
from evolvent.cli.setup.registry import load_world
world = load_world(sys.argv[1])
loaded = time.process_time()
task = world.tasks("train", world.tiers[0])[0]
dealt = time.process_time()
world.make(task).reset()
print(json.dumps({"load": loaded - start, "panel": dealt - loaded, "reset": time.process_time() - dealt}))
"""

Plans = Sequence[tuple[Task, Sequence[str]]]
Decide = Callable[[BattleBatch, TeamView], NDArray[Any]]


def steps_per_cpu_s(played: World, plans: Plans, steps: int) -> float:
    """Returns steps of expert episodes per CPU-second, making and resetting environments included."""
    done, start = 0, time.process_time()
    while done < steps:
        for task, plan in plans:
            env = played.make(task)
            env.reset()
            for action in plan:
                env.step(action)
            env.close()
            done += len(plan)
    return done / (time.process_time() - start)


def first_visit(played: World, plans: Plans, *, reads_actions: bool = False) -> float:
    """Returns steps per CPU-second in a world object that has not seen these tasks."""
    start = time.process_time()
    for task, plan in plans:
        env = played.make(task)
        _, info = env.reset()
        if reads_actions:
            info.get("admissible")
        for action in plan:
            env.step(action)
        env.close()
    return sum(len(plan) for _, plan in plans) / (time.process_time() - start)


def panel_seconds(world: World) -> float:
    """Returns the CPU-seconds that dealing all panels takes."""
    start = time.process_time()
    for tier in world.tiers:
        world.tasks("train", tier)
    return time.process_time() - start


def cold_start(name: str, *, repeats: int) -> dict[str, float]:
    """Returns the median CPU-seconds of a fresh process: `load`, first `panel`, `reset` of its first task."""
    command = [sys.executable, "-c", _COLD_START, name]
    rows = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return {part: statistics.median(row[part] for row in rows) for part in rows[0]}


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """Returns all figures of one world, as JSON values."""
    layout = name.removeprefix("battle:")
    if layout != name:
        return measure_battle(layout, quick=quick)
    world = load_world(name)
    seconds = panel_seconds(world)
    tasks = [task for tier in world.tiers for task in world.tasks("train", tier)[: 50 if quick else 200]]
    plans = [(task, world.expert(task) or ()) for task in tasks]
    visits = [first_visit(load_world(name), plans, reads_actions=reads) for reads in (False, True)]
    steps_per_cpu_s(world, plans, 1)
    rounds = [steps_per_cpu_s(world, plans, 2_000 if quick else 20_000) for _ in range(3 if quick else 5)]
    panels = audit(world, "test", limit=20 if quick else None, seed=SEED)
    return {
        "steps_per_cpu_s": statistics.median(rounds),
        "first_visit": visits[0],
        "first_visit_listed": visits[1],
        "panel_cpu_s": seconds,
        "cold_cpu_s": cold_start(name, repeats=1 if quick else 3),
        "tiers": {tier: asdict(row) for tier, row in panels.tiers.items()},
        "problems": [str(problem) for problem in panels.problems],
    }


def measure_apart(name: str, *, quick: bool) -> dict[str, Any]:
    """Returns all figures of one world, measured in a process of its own: caches of other worlds cost time."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, quick=quick).result()


def measure_battle(layout: str, *, quick: bool) -> dict[str, Any]:
    """Returns the figures of battles of one layout: speed in a batch, and won shares of `BATTLES` test episodes."""
    world, rng = BattleWorld(layout), sample_rng("worlds", layout)
    planner = BattlePlanner(world)
    plan = record_expert(world, planner)
    last = len(plan) - 1

    def replay(batch: BattleBatch, view: TeamView) -> NDArray[Any]:
        actions = plan[np.minimum(view.time, last)]
        is_legal = np.take_along_axis(view.available, actions[..., None], 2)[..., 0]
        return np.where(is_legal, actions, view.available.argmax(-1))

    players: Mapping[str, Decide] = {
        "expert": lambda batch, view: planner.plan(batch),
        "script": lambda batch, view: world.expert(batch),
        "random": lambda batch, view: choose(view.available, rng),
        "replay": replay,
    }
    tasks = world.tasks("test", "seen")
    shares = {player: won_share(world, decide, 12 if quick else BATTLES) for player, decide in players.items()}
    tier = {"tasks": len(tasks), "kinds": 1, "largest_kind": len(tasks), **shares, "duplicates": 0.0}
    return {
        "steps_per_cpu_s": batch_speed(layout, ROWS, 20 if quick else 150),
        "first_visit": None,
        "first_visit_listed": None,
        "panel_cpu_s": None,
        "cold_cpu_s": None,
        "tiers": {"seen": tier},
        "problems": [],
    }


def record_expert(world: BattleWorld, planner: BattlePlanner) -> NDArray[Any]:
    """Returns the planner's actions `[T, n]` in the first training episode."""
    batch = world.batch(world.tasks("train", "seen")[:1], 1)
    batch.reset([0])
    rows, is_over = [], False
    while not is_over:
        rows.append(planner.plan(batch)[0])
        is_over = bool(batch.step(rows[-1][None]).ended.size)
    return np.stack(rows)


def won_share(world: BattleWorld, decide: Decide, episodes: int) -> float:
    """Returns the share of the first test episodes that a policy wins, all of them side by side."""
    batch = world.batch(world.tasks("test", "seen"), episodes)
    view = batch.reset(np.arange(episodes))
    is_won, is_over = np.zeros(episodes, dtype=bool), np.zeros(episodes, dtype=bool)
    while not is_over.all():
        step = batch.step(decide(batch, view))
        is_won |= step.success & ~is_over
        is_over |= step.terminated | step.truncated
        view = step.view
    return float(is_won.mean())


def digest_sources(name: str) -> str:
    """Returns a digest of the files that a world's figures depend on: its own, and those that all worlds share."""
    root = Path(worlds_package.__file__).parent
    module = BattleWorld.__module__ if name.startswith("battle:") else type(load_world(name)).__module__
    parts = module.removeprefix(f"{worlds_package.__name__}.").split(".")
    own = sorted((root / parts[0]).rglob("*.py")) if len(parts) > 1 else [root / f"{parts[0]}.py"]
    digest = hashlib.sha256(str(_FORMAT).encode())
    for path in (*own, *(root / shared for shared in _SHARED_SOURCES)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def read_cells(path: Path | None) -> dict[str, dict[str, Any]]:
    """Returns the cells that a file keeps; none where there is no file."""
    if path is None or not path.exists():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")).get("cells", {}))


def list_table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the figures for people."""
    rows = ["world        steps/cpu-s      goal  reached  first visit   listed  panels cpu-s  load  first task"]
    for name, cell in cells.items():
        rate, goal = cell["steps_per_cpu_s"], AIMS.get(name, AIM)
        line = f"{name:12}{rate:12,.0f}{goal:10,}{rate / goal:8.2f}x"
        if cell["cold_cpu_s"]:
            cold = cell["cold_cpu_s"]
            line += f"{cell['first_visit']:13,.0f}{cell['first_visit_listed']:9,.0f}{cell['panel_cpu_s']:14.2f}"
            line += f"{cold['load']:6.2f}{cold['panel'] + cold['reset']:12.2f}"
        rows.append(line)
    limits = "(limits: >= .95, <= .20, <= .05, 0)"
    rows += ["", f"world        tier    tasks kinds  expert  random  replay  copies   {limits}"]
    for name, cell in cells.items():
        for tier, row in cell["tiers"].items():
            shares = [row[column] for column in (*FIGURES.values(), "duplicates")]
            columns = "".join(f"{'-' if share is None else format(share, '.3f'):>8}" for share in shares)
            rows.append(f"{name:12} {tier:7} {row['tasks']:5} {row['kinds']:5}{columns}")
        rows += [f"{name:12} ! {problem}" for problem in cell["problems"]]
    return "\n".join(rows)


def summarize_tiers(tiers: Mapping[str, Mapping[str, Any]], column: str) -> dict[str, Any]:
    """Returns the worst of the held-out tiers, and each tier by itself."""
    shares = {tier: row[column] for tier, row in tiers.items()}
    held_out = [share for tier, share in shares.items() if (tier != "seen" or len(shares) == 1) and share is not None]
    worst = (min if column == "expert" else max)(held_out, default=None)
    return {"value": worst, "tiers": shares}


def build_report(cells: Mapping[str, Mapping[str, Any]], *, quick: bool) -> dict[str, Any]:
    """Returns the figures as one JSON object; `missed` lists the goals that a world does not reach."""
    found: dict[str, Any] = {
        "benchmark": "worlds",
        "steps_per_cpu_s": {name: cell["steps_per_cpu_s"] for name, cell in cells.items()},
        "first_visit_steps_per_cpu_s": {name: cell["first_visit"] for name, cell in cells.items()},
        **{
            figure: {name: summarize_tiers(cell["tiers"], column) for name, cell in cells.items()}
            for figure, column in FIGURES.items()
        },
        "goals": {"steps_per_cpu_s": {name: AIMS.get(name, AIM) for name in cells}, **LIMITS},
    }
    return {
        **found,
        "missed": sorted(_list_missed(found)),
        "new_worlds": [name for name in cells if name in NEW_WORLDS],
        "cells": dict(cells),
        "quick": quick,
        "seed": SEED,
        **about("python", "numpy", threads=1),
    }


def _list_missed(found: Mapping[str, Any]) -> Iterable[str]:
    for name, rate in found["steps_per_cpu_s"].items():
        if rate < AIMS.get(name, AIM):
            yield f"{name}: steps_per_cpu_s"
        for figure, limit in LIMITS.items():
            share = found[figure][name]["value"]
            if share is not None and (share < limit if figure == "expert_success" else share > limit):
                yield f"{name}: {figure}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the worlds, or takes the figures that the file keeps."""
    few = "the new worlds alone, fewer steps and 20 tasks a tier"
    parser = command_line("worlds", __doc__, quick=few, save=RESULTS / "worlds.json")
    parser.add_argument("--worlds", nargs="+", help="only these; by default those of `all` and the new ones")
    options = parser.parse_args(arguments)
    names = options.worlds or (NEW_WORLDS if options.quick else (*ALL_WORLDS, *NEW_WORLDS))
    kept = read_cells(options.save)
    cells: dict[str, dict[str, Any]] = {}
    for name in names:
        digest = digest_sources(name)
        cell = kept.get(name, {})
        if cell.get("digest") != digest or cell.get("quick") != options.quick:
            cell = measure_apart(name, quick=options.quick)
            cell |= {"digest": digest, "quick": options.quick, "machine": machine(threads=1)}
        cells[name] = cell
        if options.save is not None:
            write(options.save, build_report({**kept, **cells}, quick=options.quick))
    print(list_table(cells))
    figures = build_report({**kept, **cells}, quick=options.quick)
    finish(figures, options)


if __name__ == "__main__":
    main()

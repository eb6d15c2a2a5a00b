"""Speed and soundness of the embedded worlds: `python -m benchmarks.worlds [--quick] [--json] [--save]`.

One thread, in process. Making and resetting environments counts; the expert plays 200 tasks of each trained tier, again
and again, as rollouts do. `first_visit` is the rate when every task is new to the world, which then prepares it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish
from evolvent.cli.setup.registry import ALL_WORLDS, load_world
from evolvent.trajectory import Task
from evolvent.worlds.audit import PanelAudit, TierAudit, audit
from evolvent.worlds.base import World

AIMS = {"crafting": 100_000, "gridworld": 5_000, "site": 3_000}  # steps per CPU-second; of every other world:
AIM = 10_000
LIMITS = {"expert_success": 0.95, "random_success": 0.20, "blind_replay": 0.05}
SEED = 0


def steps_per_cpu_s(played: World, plans: Sequence[tuple[Task, Sequence[str]]], steps: int) -> float:
    """Steps of expert episodes per CPU-second, making and resetting environments included."""
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


def first_visit(played: World, plans: Sequence[tuple[Task, Sequence[str]]]) -> float:
    """Steps per CPU-second in a world object that has not seen these tasks."""
    start = time.process_time()
    for task, plan in plans:
        env = played.make(task)
        env.reset()
        for action in plan:
            env.step(action)
        env.close()
    return sum(len(plan) for _, plan in plans) / (time.process_time() - start)


def panel_seconds(dealt: World) -> float:
    """CPU-seconds that dealing all panels takes."""
    start = time.process_time()
    for tier in dealt.tiers:
        dealt.tasks("train", tier)
    return time.process_time() - start


def measure(made: World, again: World, *, quick: bool) -> dict[str, Any]:
    """All figures of one world; `again` is the same in a new object."""
    seconds = panel_seconds(made)
    tasks = [task for tier in made.tiers for task in made.tasks("train", tier)[:200]]
    plans = [(task, made.expert(task) or ()) for task in tasks]
    steps_per_cpu_s(made, plans, 1)
    rounds = [steps_per_cpu_s(made, plans, 10_000 if quick else 100_000) for _ in range(3 if quick else 7)]
    found = audit(made, "test", limit=50 if quick else None, seed=SEED)
    first = first_visit(again, plans)
    return {"first_visit": first, "steps_per_cpu_s": statistics.median(rounds), "panel_cpu_s": seconds, "audit": found}


def table(found: dict[str, dict[str, Any]]) -> str:
    rows = ["world      steps/cpu-s      goal  reached  first visit  panels cpu-s"]
    for name, of in found.items():
        rate, goal = of["steps_per_cpu_s"], AIMS.get(name, AIM)
        first, panels = of["first_visit"], of["panel_cpu_s"]
        rows.append(f"{name:10} {rate:11,.0f} {goal:9,} {rate / goal:7.2f}x {first:12,.0f} {panels:13.2f}")
    rows += ["", "world      tier    tasks kinds  expert  random  replay  copies   (limits: >= .95, <= .20, <= .05, 0)"]
    for name, of in found.items():
        for tier, one in of["audit"].tiers.items():
            shares = "".join(f"{'-' if share is None else format(share, '.3f'):>8}" for share in _shares(one))
            rows.append(f"{name:10} {tier:7} {one.tasks:5} {one.kinds:5}{shares}")
        rows += [f"{name:10} ! {problem}" for problem in of["audit"].problems]
    return "\n".join(rows)


def _shares(tier: TierAudit) -> tuple[float | None, ...]:
    return tier.expert, tier.random, tier.replay, tier.duplicates


def _summary(panels: PanelAudit, name: str) -> dict[str, Any]:
    """The worst of the held-out tiers, and each tier by itself."""
    tiers = {tier: getattr(one, name) for tier, one in panels.tiers.items()}
    held_out = [share for tier, share in tiers.items() if (tier != "seen" or len(tiers) == 1) and share is not None]
    worst = (min if name == "expert" else max)(held_out, default=None)
    return {"value": worst, "tiers": tiers}


def report(found: dict[str, dict[str, Any]], *, quick: bool) -> dict[str, Any]:
    """The figures as one JSON object."""
    return {
        "steps_per_cpu_s": {name: of["steps_per_cpu_s"] for name, of in found.items()},
        "first_visit_steps_per_cpu_s": {name: of["first_visit"] for name, of in found.items()},
        "expert_success": {name: _summary(of["audit"], "expert") for name, of in found.items()},
        "random_success": {name: _summary(of["audit"], "random") for name, of in found.items()},
        "blind_replay": {name: _summary(of["audit"], "replay") for name, of in found.items()},
        "panel_cpu_s": {name: of["panel_cpu_s"] for name, of in found.items()},
        "problems": {name: [str(problem) for problem in of["audit"].problems] for name, of in found.items()},
        "goals": {"steps_per_cpu_s": {name: AIMS.get(name, AIM) for name in found}, **LIMITS},
        "quick": quick,
        "seed": SEED,
        **about("python", "numpy", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    few = "fewer steps and 50 tasks a tier"
    parser = command_line("worlds", __doc__, quick=few, save=RESULTS / "worlds.json")
    parser.add_argument("--worlds", nargs="+", help="only these; by default those of `all`")
    options = parser.parse_args(arguments)
    chosen = options.worlds or ALL_WORLDS
    found = {
        made.name: measure(made, load_world(name), quick=options.quick)
        for name in chosen
        for made in (load_world(name),)
    }
    print(table(found))
    finish(report(found, quick=options.quick), options)


if __name__ == "__main__":
    main()

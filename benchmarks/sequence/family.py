"""Decision Transformer beside cloning by the same network, on five data sets whose episodes differ in quality.

A return to ask for says something only where the data hold better and worse episodes: replay data of the three control
worlds, and the two mazes. Data of one quality (`medium`) are controls and not among the five. A task can show a gain
only where cloning leaves room for one: that is its gate, and a task whose gate fails is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from evolvent.bench.plan import Gate
from evolvent.bench.verdict import check_gate
from evolvent.stats import paired_interval
from evolvent.trajectory import sample_rng

__all__ = ["BEST", "METHODS", "SEEDS", "compare_family", "format_family"]

SEEDS = tuple(range(10))
EARLIER = (0, 1, 2)
"""Seeds whose cells were known when the five tasks, the gate and the other seeds were fixed."""
METHODS = ("bc", "dt")
BEST: Mapping[str, float] = {
    "cartpole-replay": 100.0,
    "pendulum-replay": 100.0,
    "hopper-replay": 100.0,
    "stitching-whole": 10.0,
    "stitching-pieces": 2.0,
}
"""The five tasks, with the score of the expert; in the maze the best return that imitation can reach
(`worlds.stitching.compute_reachable`)."""
_ROOM = 0.9  # of the best, that cloning may reach at most


def compare_family(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Computes DT minus cloning on the five tasks, over the seeds that have both, with intervals over seeds.

    Returns:
        "tasks": by task the scores, the difference [mean, low, high], of all seeds and of those that were not known
        before, and the gate; "judged": tasks whose gate passed; "above": judged tasks whose whole interval is above 0;
        "gate_passed": whether all tasks are judged.
    """
    tasks: dict[str, Any] = {}
    for name, best in BEST.items():
        scores = {
            method: {row["seed"]: float(np.mean(row["scores"])) for row in rows if _is_of(row, name, method)}
            for method in METHODS
        }
        seeds = sorted(set(scores["bc"]) & set(scores["dt"]))
        if not seeds:
            continue
        cloned, conditioned = ([scores[method][seed] for seed in seeds] for method in METHODS)
        later = [index for index, seed in enumerate(seeds) if seed not in EARLIER]
        gate = Gate(f"room above cloning, {name}", "bc", "share_of_best", maximum=_ROOM)
        result = check_gate(gate, {seed: score / best for seed, score in zip(seeds, cloned, strict=True)})
        tasks[name] = {
            "bc": [round(score, 3) for score in cloned],
            "dt": [round(score, 3) for score in conditioned],
            "best": best,
            "difference": _compute_difference(conditioned, cloned, name),
            "difference_of_later_seeds": _compute_difference(
                [conditioned[index] for index in later], [cloned[index] for index in later], name
            ),
            "seeds": seeds,
            "gate": {name: value for name, value in asdict(result).items() if name != "by_seed"},
            "cpu_s": round(sum(_cost(row) for row in rows if _is_of(row, name, *METHODS)), 1),
        }
    judged = [name for name, task in tasks.items() if task["gate"]["passed"]]
    above = [name for name in judged if task_low(tasks[name]) > 0 and len(tasks[name]["seeds"]) > 1]
    return {
        "tasks": tasks,
        "judged": judged,
        "above": above,
        "dt_above_bc": len(above),
        "gate_passed": len(judged) == len(BEST),
        "cpu_hours": round(sum(task["cpu_s"] for task in tasks.values()) / 3600, 3),
        "interval": "95 %, expanded percentile bootstrap over seeds, Student's t below 5 seeds",
    }


def _compute_difference(conditioned: Sequence[float], cloned: Sequence[float], name: str) -> list[float] | None:
    """Returns [mean, low, high] over seeds, the ends equal to the mean if there is one seed; None without a seed."""
    if not conditioned:
        return None
    difference = paired_interval(conditioned, cloned, rng=sample_rng("decision transformer", name))
    ends = (difference.mean, difference.low, difference.high)
    return [round(end if np.isfinite(end) else difference.mean, 3) for end in ends]


def task_low(task: Mapping[str, Any]) -> float:
    """Returns the lower end of a task's difference."""
    return float(task["difference"][1])


def _is_of(row: Mapping[str, Any], name: str, *methods: str) -> bool:
    return row["data"] == name and row["method"] in methods


def _cost(row: Mapping[str, Any]) -> float:
    return float(row["cpu_train_s"] + row["cpu_play_s"])


def format_family(figures: Mapping[str, Any]) -> list[str]:
    """Formats the comparison for people, a line a task."""
    lines = []
    for name, task in figures["tasks"].items():
        mean, low, high = task["difference"]
        verdict = "above" if name in figures["above"] else "not shown" if name in figures["judged"] else "not judged"
        lines.append(
            f"DT minus cloning, {name:17} {np.mean(task['dt']):6.1f} - {np.mean(task['bc']):6.1f} = {mean:+6.1f} "
            f"[{low:+.1f}, {high:+.1f}]  {len(task['seeds'])} seeds, {verdict}"
        )
    counts = (figures["dt_above_bc"], len(BEST), len(figures["judged"]))
    return [*lines, "DT above cloning in {} of {} tasks, {} judged".format(*counts)]

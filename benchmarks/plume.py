"""Finding a source: learned policies with and without cessation, beside planners that seek information.

    python -m benchmarks.plume [--quick] [--json] [--only NAME ...] [--folder FOLDER]

Everybody plays the same episodes of plume/25 on the test panel (its sources lie in no cell of the area where a source
of training lies), with the same sensor, the same filter of N = 1000 exact particles and the same detector; an episode
is its source, its noise and its first particles. A success is a right stop: ended by the agent with the estimate within
2 m. A false cessation is a stop with a wrong one.

Planners: random, greedy, go to the mean, infotaxis, entrotaxis, DCEE; the better of DCEE and go to mean is the bar.
Learners: DQN, PPO and DDPG of stable-baselines3, each with cessation (AGDC) and without (same features and budget, no
reward for ending, no early end while learning), five training seeds. DDPG chooses headings, so going to the mean and
DCEE are also played with eight headings.

A cell is one planner, or one learner with one seed; finished ones are read back from the folder, so a study that was
interrupted goes on. Intervals of learners are over seeds and kinds of task, of planners over kinds. CPU times are one
thread's. Settings were chosen on the dev panel with seed 100, which is none of the study's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cells import interval, keep, kept
from evolvent.belief.comparison import Chooser, Played, planner, play
from evolvent.belief.outcomes import outcomes
from evolvent.config import as_dict
from evolvent.methods.agdc import AGDC, agdc, detector_of, world_of
from evolvent.stats import wilson
from evolvent.trajectory import Start, canonical_json

FOLDER = Path(__file__).parent / "results" / "plume"
SEEDS, EPISODES, PARTICLES, BAR = 5, 512, 1000, ("dcee", "go_to_mean")
PLANNED = ("random", "greedy", "go_to_mean", "infotaxis", "entrotaxis", "dcee")
TURNING = ("go_to_mean/heading", "dcee/heading")
LEARNED: Mapping[str, Mapping[str, Any]] = {
    "dqn": {"algorithm": "dqn", "budget": 240_000},
    "ppo": {"algorithm": "ppo", "budget": 240_000},
    "ddpg": {"algorithm": "ddpg", "moves": "heading", "budget": 240_000},
}
ARMS = ("agdc", "without")


def names() -> list[str]:
    """All systems, planners first."""
    return [*PLANNED, *TURNING, *(f"{name}/{arm}" for name in LEARNED for arm in ARMS)]


def config_of(name: str, seed: int, *, quick: bool) -> AGDC:
    """The settings of a system; those of planners say what is played."""
    first, _, second = name.partition("/")
    if first not in LEARNED:
        return AGDC(algorithm="ppo", moves=second or "preset")
    small = {"budget": 2_000, "n_particles": 100} if quick else {}
    return AGDC(**{**LEARNED[first], **small, "arm": second, "seed": seed})


def protocol(name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """All that a cell depends on, as JSON values."""
    config = config_of(name, seed, quick=quick)
    world = world_of(config)
    return {"name": name, "config": as_dict(config), "world": [world.name, world.version, world.preset.sensor.id],
            "episodes": 24 if quick else EPISODES, "particles": 200 if quick else PARTICLES, "edition": 1}  # fmt: skip


def cell(name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """Learn where there is something to learn, and play."""
    said, config = protocol(name, seed, quick=quick), config_of(name, seed, quick=quick)
    first, curve, cpu_s = name.partition("/")[0], [], 0.0
    if first in LEARNED:
        began = time.process_time()
        learned = agdc(config)
        cpu_s, choose = time.process_time() - began, learned
        curve = [[one.at, one.ceased, one.right, one.steps] for one in learned.finished]
        chooser: Chooser = choose
    else:
        chooser = planner(first)
    world = world_of(config)
    tasks = world.tasks("test", "seen")
    starts = [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(said["episodes"])]
    began = time.process_time()
    played = play(chooser, world, starts, name=name, detector=detector_of(config), particles=said["particles"])
    return {**said, "seed": seed, "digest": digest(said), "episodes_played": rows_of(played), "curve": thin(curve),
            "train_cpu_s": cpu_s, "play_cpu_s": time.process_time() - began,
            "decision_ms": [played.decision_ms.mean, played.decision_ms.low, played.decision_ms.high]}  # fmt: skip


def rows_of(played: Played) -> list[list[Any]]:
    """[task, kind, sample, stopped, right or None, steps, metres, error in metres] of each episode."""
    return [[one.task.id, one.task.kind, one.sample, one.ended_by == "agent", one.success, len(one.steps),
             one.meta["travelled_m"], one.meta["error_m"]] for one in played.trajectories]  # fmt: skip


def thin(curve: Sequence[Sequence[Any]], points: int = 40) -> list[list[float]]:
    """[step, share of right stops, share of stops, mean length] over as many stretches of training."""
    parts = np.array_split(np.array(curve, np.float64).reshape(-1, 4), min(points, max(1, len(curve))))
    return [[float(part[-1, 0]), float((part[:, 1] * part[:, 2]).mean()), float(part[:, 1].mean()),
             float(part[:, 3].mean())] for part in parts if len(part)]  # fmt: skip


def digest(said: Mapping[str, Any]) -> str:
    """Of a protocol."""
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]


def done(folder: Path, name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """A cell, read back or made."""
    own = digest(protocol(name, seed, quick=quick))
    for row in kept(folder, own):
        return row
    made = cell(name, seed, quick=quick)
    keep(folder, f"{name.replace('/', '-')}-{seed}-{own[:6]}", made)
    return made


def row_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the table: the cells of one system, pooled; rates and means are [mean, low, high]."""
    rows = [row for each in cells for row in each["episodes_played"]]
    table = outcomes([row[3] for row in rows], [row[4] for row in rows], [row[5] for row in rows],
                     distance=[row[6] for row in rows]).as_dict()  # fmt: skip
    kinds = [row[1] for row in cells[0]["episodes_played"]]
    won = [[float(row[3] and bool(row[4])) for row in each["episodes_played"]] for each in cells]
    false = [[float(row[3] and row[4] is False) for row in each["episodes_played"]] for each in cells]
    none = [[0.0] * len(kinds)] * len(cells)
    decision = np.array([each["decision_ms"] for each in cells])
    return {
        "name": cells[0]["name"], "seeds": len(cells), "episodes": len(rows), "sensor": cells[0]["world"][2],
        "success": interval(won, none, kinds=kinds, name="plume success"),
        "success_wilson": _ends(sum(map(sum, won)), len(rows)),
        "false_cessation": interval(false, none, kinds=kinds, name="plume false"),
        "steps": table["steps"], "distance": table["distance"], "distance_right": table["distance_right"],
        "outcomes": {name: table[name] for name in ("right_stop", "false_stop", "withheld", "unfinished", "unknown")},
        "success_of_seeds": [float(np.mean(one)) for one in won], "decision_ms": decision.mean(0).tolist(),
        "train_cpu_s": float(np.mean([each["train_cpu_s"] for each in cells])),
    }  # fmt: skip


def _ends(successes: float, n: int) -> list[float]:
    found = wilson(int(successes), n)
    return [found.mean, found.low, found.high]


def report(folder: Path, only: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All rows, and the learners' differences from the bar."""
    torch.set_num_threads(1)
    cells: dict[str, list[dict[str, Any]]] = {}
    for name in names():
        if not only or name in only or name.partition("/")[0] in only:
            seeds = (1 if quick else SEEDS) if name.partition("/")[0] in LEARNED else 1
            cells[name] = [done(folder, name, seed, quick=quick) for seed in range(seeds)]
    rows = {name: row_of(each) for name, each in cells.items()}
    found: dict[str, Any] = {"rows": list(rows.values()), "quick": quick, "torch": torch.__version__}
    bars = [name for name in BAR if name in rows]
    if bars:
        bar = max(bars, key=lambda name: rows[name]["success"][0])
        found["bar"] = bar
        found["minus_bar"] = {name: against(each, cells[bar][0]) for name, each in cells.items() if name not in PLANNED}
        found["decision_of_dcee"] = {
            name: row["decision_ms"][0] / rows["dcee"]["decision_ms"][0] for name, row in rows.items()
        } if "dcee" in rows else {}  # fmt: skip
    return found


def against(cells: Sequence[Mapping[str, Any]], bar: Mapping[str, Any]) -> list[float]:
    """[mean, low, high] of the difference in success from one planner on the same episodes."""
    own = [[float(row[3] and bool(row[4])) for row in each["episodes_played"]] for each in cells]
    other = [[float(row[3] and bool(row[4])) for row in bar["episodes_played"]]] * len(cells)
    return interval(own, other, kinds=[row[1] for row in bar["episodes_played"]], name="plume against the bar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, few episodes, hardly any learning")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"some of: {', '.join(names())}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where cells are kept")
    options = parser.parse_args()
    found = report(options.folder, options.only, quick=options.quick)
    if options.json:
        print(json.dumps(found, allow_nan=False))
        return
    print(f"sensor: {found['rows'][0]['sensor']}")
    for row in found["rows"]:
        mean, low, high = row["success"]
        print(f"{row['name']:20} success {mean:.3f} [{low:.3f}, {high:.3f}]  false {row['false_cessation'][0]:.3f}  "
              f"steps {row['steps'][0]:5.1f}  m {row['distance'][0]:5.1f}  decision {row['decision_ms'][0]:.4f} ms  "
              f"training {row['train_cpu_s']:.0f} CPU s")  # fmt: skip
    for name, (mean, low, high) in found.get("minus_bar", {}).items():
        print(f"{name:20} minus {found['bar']}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    main()

"""Finding a source: learned policies with and without cessation, beside planners that seek information.

    python -m benchmarks.plume [--quick] [--json] [--save] [--only NAME ...] [--folder FOLDER]

Everybody plays the same episodes of plume/25 on the test panel (its sources lie in no cell of the area where a source
of training lies), with the same sensor, the same filter of N = 1000 exact particles and the same detector, a spread
below 1 m (the rule of AGDC's programme, `trace:1`); an episode is its source, its noise and its first particles. A
success is a right stop: ended by the agent with the estimate within 2 m. A false cessation is a stop with a wrong one.

Planners: random, greedy, go to the mean, infotaxis, entrotaxis, DCEE, with four moves; DDPG chooses headings, so the
last four are also played with eight headings. Learners: DQN, PPO and DDPG of stable-baselines3, each with cessation
(AGDC) and without (same features and budget, no reward for ending, no early end while learning), five training seeds.

The JSON has `policies` (name -> success, false_cessation, steps and distance over all episodes, each [mean, low, high],
and decision_ms), `agdc_above_infotaxis` with `above_by_agent` and `above_by_measure`, `against` (differences from
planners on the same episodes), and how the best agent stands to DCEE; `compared_with_planners` says how each is
decided.

A cell is one planner, or one learner with one seed; finished ones are read back from the folder, so a study that was
interrupted goes on. Intervals of learners are over seeds and kinds of task, of planners over kinds. CPU times are one
thread's. Settings were chosen on the dev panel with seed 100, which is none of the study's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import RESULTS, about, command_line, finish, versions
from benchmarks.study import read_cells, study_run, write_cell
from evolvent.belief.comparison import Chooser, ChooserResult, make_chooser, play_episodes
from evolvent.belief.learners import LEARNERS
from evolvent.belief.outcomes import CELLS, tabulate_outcomes
from evolvent.config import as_dict
from evolvent.methods.agdc import AGDCConfig, agdc, build_detector, build_world
from evolvent.stats import crossed_interval, paired_interval, wilson_interval
from evolvent.trajectory import Start, canonical_json, sample_rng

FOLDER = RESULTS / "plume"
SEEDS, EPISODES, PARTICLES = 5, 512, 1000
DETECTOR = "trace:1"
PLANNED = ("random", "greedy", "go_to_mean", "infotaxis", "entrotaxis", "dcee")
TURNING = ("go_to_mean/heading", "infotaxis/heading", "entrotaxis/heading", "dcee/heading")
BARS, RIVALS = ("dcee", "go_to_mean"), ("infotaxis", "entrotaxis")
LEARNED: Mapping[str, Mapping[str, Any]] = {
    "dqn": {"algorithm": "dqn", "budget": 120_000},
    "ppo": {"algorithm": "ppo", "budget": 200_000},
    "ddpg": {"algorithm": "ddpg", "moves": "heading", "budget": 120_000},
}
ARMS = ("agdc", "without")
MEASURES = {"success": 1, "distance": -1, "steps": -1}  # what is compared, and which sign is better


def names() -> list[str]:
    """All systems, planners first."""
    return [*PLANNED, *TURNING, *(f"{name}/{arm}" for name in LEARNED for arm in ARMS)]


def config_of(name: str, seed: int, *, quick: bool) -> AGDCConfig:
    """The settings of a system; those of planners say what is played."""
    first, _, second = name.partition("/")
    if first not in LEARNED:
        return AGDCConfig(algorithm="ppo", moves="heading" if second == "heading" else "preset", detector=DETECTOR)
    small = {"budget": 2_000, "n_particles": 100} if quick else {}
    return AGDCConfig(**{**LEARNED[first], **small, "arm": second, "seed": seed, "detector": DETECTOR})


def protocol(name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """All that a cell depends on, as JSON values. Compiled beliefs are the same equations, equal to rounding."""
    config = config_of(name, seed, quick=quick)
    world = build_world(config)
    told: dict[str, Any] = {"moves": world.preset.moves, "detector": DETECTOR}
    if name.partition("/")[0] in LEARNED:
        told = {key: value for key, value in as_dict(config).items() if key != "fused"}
        told["learner"] = dict(LEARNERS[config.algorithm])
    return {
        "name": name,
        "config": told,
        "world": [world.name, world.version, world.preset.sensor.id],
        "episodes": 24 if quick else EPISODES,
        "particles": 200 if quick else PARTICLES,
        "edition": 2 if name.startswith("entrotaxis") else 1,  # 2: entropy over readings in steps of the noise
    }


def cell(name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """Learn where there is something to learn, and play."""
    fused = find_spec("numba") is not None and not quick  # compiling takes longer than a quick run
    said = protocol(name, seed, quick=quick)
    config = config_of(name, seed, quick=quick).model_copy(update={"fused": fused})
    first, curve, cpu_s = name.partition("/")[0], [], 0.0
    if first in LEARNED:
        began = time.process_time()
        learned = agdc(config)
        cpu_s, choose = time.process_time() - began, learned
        curve = [[one.total_steps, one.ceased, one.right, one.steps] for one in learned.finished]
        chooser: Chooser = choose
    else:
        chooser = make_chooser(first)
    world = build_world(config)
    tasks = world.tasks("test", "seen")
    starts = [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(said["episodes"])]
    began = time.process_time()
    played = play_episodes(
        chooser, world, starts, name=name, detector=build_detector(config), particles=said["particles"], fused=fused
    )
    return {
        **said,
        "seed": seed,
        "digest": digest(said),
        "episodes_played": rows_of(played),
        "curve": thin(curve),
        "arithmetic": "fused" if fused else "torch",
        "train_cpu_s": cpu_s,
        "play_cpu_s": time.process_time() - began,
        "decision_ms": [played.decision_ms.mean, played.decision_ms.low, played.decision_ms.high],
    }


def rows_of(played: ChooserResult) -> list[list[Any]]:
    """[task, kind, sample, stopped, right or None, steps, metres, error in metres] of each episode."""
    return [
        [
            one.task.id,
            one.task.kind,
            one.sample,
            one.ended_by == "agent",
            one.success,
            len(one.steps),
            one.meta["travelled_m"],
            one.meta["error_m"],
        ]
        for one in played.trajectories
    ]


def thin(curve: Sequence[Sequence[Any]], points: int = 40) -> list[list[float]]:
    """[step, share of right stops, share of stops, mean length] over as many stretches of training."""
    parts = np.array_split(np.array(curve, np.float64).reshape(-1, 4), min(points, max(1, len(curve))))
    return [
        [
            float(part[-1, 0]),
            float((part[:, 1] * part[:, 2]).mean()),
            float(part[:, 1].mean()),
            float(part[:, 3].mean()),
        ]
        for part in parts
        if len(part)
    ]


def digest(said: Mapping[str, Any]) -> str:
    """Of a protocol."""
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]


def done(folder: Path, name: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """A cell, read back or made."""
    own = digest(protocol(name, seed, quick=quick))
    for row in read_cells(folder, own):
        return row
    made = cell(name, seed, quick=quick)
    write_cell(folder, f"{name.replace('/', '-')}-{seed}-{own[:6]}", made)
    return made


def measured(cells: Sequence[Mapping[str, Any]], measure: str) -> list[list[float]]:
    """[seeds, episodes] success or false cessation as 0 and 1, steps, or metres."""
    read: dict[str, Callable[[Sequence[Any]], float]] = {
        "success": lambda row: float(row[3] and row[4] is True),
        "false_cessation": lambda row: float(row[3] and row[4] is False),
        "steps": lambda row: float(row[5]),
        "distance": lambda row: float(row[6]),
    }
    return [[read[measure](row) for row in each["episodes_played"]] for each in cells]


def spread(cells: Sequence[Mapping[str, Any]], measure: str, other: Mapping[str, Any] | None = None) -> list[float]:
    """[mean, low, high] of a measure, or of its difference from one planner on the same episodes.

    Over seeds and kinds of task, of one seed over kinds alone. Where a rate is hardly ever 0 or hardly ever 1, nothing
    varies that could be drawn again: ends of rates are the outer ones of this interval and Wilson's.
    """
    own, kinds = measured(cells, measure), [row[1] for row in cells[0]["episodes_played"]]
    base = measured([other], measure)[0] if other else [0.0] * len(kinds)
    rng = sample_rng("plume", measure)
    if len(own) > 1:
        found = crossed_interval(own, [base] * len(own), kinds=kinds, rng=rng)
    else:
        found = paired_interval(own[0], base, levels=[kinds], rng=rng)
    ends = [found.low, found.high] if found.low == found.low else [found.mean, found.mean]
    if other is None and measure in ("success", "false_cessation"):
        alone = wilson_interval(int(sum(map(sum, own))), sum(map(len, own)))
        ends = [min(ends[0], alone.low), max(ends[1], alone.high)]
    return [round(value, 4) for value in (found.mean, *ends)]


def row_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is told of one system: its cells pooled; rates and means are [mean, low, high]."""
    rows = [row for each in cells for row in each["episodes_played"]]
    table = tabulate_outcomes([row[3] for row in rows], [row[4] for row in rows], [row[5] for row in rows])
    return {
        **{name: spread(cells, name) for name in ("success", "false_cessation", "steps", "distance")},
        "decision_ms": round(float(np.mean([each["decision_ms"][0] for each in cells])), 5),
        "seeds": len(cells),
        "episodes": len(rows),
        "sensor": cells[0]["world"][2],
        "outcomes": {cell: getattr(table, cell) for cell in (*CELLS, "unknown")},
        "success_of_seeds": [float(np.mean(one)) for one in measured(cells, "success")],
        "train_cpu_s": round(float(np.mean([each["train_cpu_s"] for each in cells])), 1),
        "arithmetic": sorted({each["arithmetic"] for each in cells}),
    }


def report(folder: Path, only: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All rows, and how the learned ones stand to planners."""
    torch.set_num_threads(1)
    cells: dict[str, list[dict[str, Any]]] = {}
    for name in names():
        if not only or name in only or name.partition("/")[0] in only:
            seeds = (1 if quick else SEEDS) if name.partition("/")[0] in LEARNED else 1
            cells[name] = [done(folder, name, seed, quick=quick) for seed in range(seeds)]
    found = {
        "policies": {name: row_of(each) for name, each in cells.items()},
        "quick": quick,
        "detector": DETECTOR,
        "seeds": list(range(1 if quick else SEEDS)),
        **versions("torch"),
        **about("evolvent", "torch", "numpy", "stable-baselines3", threads=1),
    }
    return {**found, **compared_with_planners(cells)}


def compared_with_planners(cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Differences of the learned from the planners, and what they decide.

    `agdc_above_infotaxis`: for every learner with cessation, against infotaxis and entrotaxis (who chooses headings
    also against theirs), the whole 95 % intervals of three differences on the same episodes are on the better side:
    success above 0, distance and steps (of all episodes, not only of those that ended well) below 0.
    None where a side was not played. `above_by_agent` and `above_by_measure` tell where it holds and where not.
    """
    agents = [f"{name}/agdc" for name in LEARNED if f"{name}/agdc" in cells]
    against = {
        name: {
            rival: {measure: spread(cells[name], measure, cells[rival][0]) for measure in MEASURES}
            for rival in rivals_of(name)
            if rival in cells
        }
        for name in cells
        if name.partition("/")[0] in LEARNED
    }
    complete = len(agents) == len(LEARNED) and all(rival in cells for name in agents for rival in rivals_of(name))
    above = (
        {
            name: all(above_all(against[name][rival]) for rival in rivals_of(name) if rival.split("/")[0] in RIVALS)
            for name in agents
        }
        if complete
        else {}
    )
    better = (
        {
            measure: all(
                above_all({measure: against[name][rival][measure]})
                for name in agents
                for rival in rivals_of(name)
                if rival.split("/")[0] in RIVALS
            )
            for measure in MEASURES
        }
        if complete
        else {}
    )
    found = {
        "against": against,
        "above_by_agent": above,
        "above_by_measure": better,
        "agdc_above_infotaxis": all(above.values()) if above else None,
    }
    if complete:
        found |= best_beside_dcee(cells, against)
    return found


def rivals_of(name: str) -> tuple[str, ...]:
    """The planners that a learned policy is compared with."""
    turning = LEARNED[name.partition("/")[0]].get("moves") == "heading"
    return (*RIVALS, *BARS, *(TURNING if turning else ()))


def above_all(differences: Mapping[str, Sequence[float]]) -> bool:
    """Whether the intervals of all given measures lie on the better side of 0."""
    return all(min(MEASURES[measure] * end for end in ends[1:]) > 0 for measure, ends in differences.items())


def best_beside_dcee(
    cells: Mapping[str, Sequence[Mapping[str, Any]]],
    against: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
) -> dict[str, Any]:
    """The agent with the most success: at least DCEE's within the interval, no more steps, at most 1/10 of the time."""
    rows = {name: row_of(each) for name, each in cells.items()}
    best = max((f"{name}/agdc" for name in LEARNED), key=lambda name: rows[name]["success"][0])
    beside = against[best]["dcee"]
    share = rows[best]["decision_ms"] / rows["dcee"]["decision_ms"]
    return {
        "best": best,
        "best_decision_of_dcee": round(share, 5),
        "best_reaches_dcee": beside["success"][2] >= 0 and beside["steps"][1] <= 0 and share <= 0.1,
        "false_cessation_at_most_2_percent": {
            f"{name}/agdc": rows[f"{name}/agdc"]["false_cessation"][0] <= 0.02 for name in LEARNED
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    few = "one seed, few episodes, hardly any learning"
    parser = command_line("plume", __doc__, quick=few, save=RESULTS / "plume.json")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"some of: {', '.join(names())}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where cells are kept")
    options = parser.parse_args(arguments)
    folder = FOLDER / "quick" if options.quick and options.folder == FOLDER else options.folder
    with study_run(folder):
        found = report(folder, options.only, quick=options.quick)
    for name, row in found["policies"].items():
        mean, low, high = row["success"]
        print(
            f"{name:20} success {mean:.3f} [{low:.3f}, {high:.3f}]  false {row['false_cessation'][0]:.3f}  "
            f"steps {row['steps'][0]:5.1f}  m {row['distance'][0]:5.1f}  decision {row['decision_ms']:.4f} ms  "
            f"training {row['train_cpu_s']:.0f} CPU s"
        )
    for name, rivals in found["against"].items():
        for rival, each in rivals.items():
            told = "  ".join(
                f"{measure} {mean:+.3f} [{low:+.3f}, {high:+.3f}]" for measure, (mean, low, high) in each.items()
            )
            print(f"{name:14} minus {rival:20} {told}")
    print(f"every agent above infotaxis and entrotaxis: {found['agdc_above_infotaxis']}")
    finish(found, options)


if __name__ == "__main__":
    main()

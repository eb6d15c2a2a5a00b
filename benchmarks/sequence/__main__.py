"""Five sequence policies on the same offline data: cloning, Decision Transformer, its online kin, planning, Q-learning.

    python -m benchmarks.sequence [--json] [--save] [--data ...] [--methods ...] [--seeds ...]
    python -m benchmarks.sequence --report [--json] [--save]     trains nothing, prints what is there
    python -m benchmarks.sequence --family [--json] [--save]     cloning and Decision Transformer over ten seeds alone
    python -m benchmarks.sequence --quick [--json]               the machinery in minutes; supports no claim

Data are mixtures made here, with their seeds (`rollout/mixtures.py`), and the maze of pieces (`worlds/stitching.py`).
All methods get the same episodes, the same network up to its embeddings and the same number of updates; who can be
asked for a return is asked for the best one that an episode from the same start has. A score is the mean return of the
same evaluation episodes: in the maze as it is, elsewhere 0 for random actions and 100 for the expert. Online DT is for
actions that are numbers, and also plays: its episodes stand beside its score. One policy for four tasks is compared
with four of one task each (`benchmarks/sequence/tasks.py`), and text policies, cloned and asked for a return, with
array methods on the same recordings (`benchmarks/sequence/text.py`; scores are 100 times the return). Decision
Transformer and cloning are cheap and have ten seeds on five data sets (`benchmarks/sequence/family.py`). Hopper needs
mujoco: without it, it is not run, and listed so.

A cell (data, method, seed) is written as soon as it is played, so a stopped study goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.sequence.family import BEST, SEEDS, compare_family, format_family
from benchmarks.sequence.family import METHODS as FAMILY
from benchmarks.sequence.tasks import Sized, gap, run_tasks
from benchmarks.sequence.text import ARMS, TEXT_WORLDS, TextSize, run_text
from benchmarks.study import compute_interval, read_cells, study_run, write_cell
from evolvent.methods.decision_transformer import DecisionTransformerConfig, decision_transformer
from evolvent.methods.online_dt import OnlineDTConfig, online_dt
from evolvent.methods.q_transformer import QTransformerConfig, q_transformer
from evolvent.methods.trajectory_transformer import TrajectoryTransformerConfig, trajectory_transformer
from evolvent.offline.acting import ArrayActor
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.mixtures import Kind, play_mixture
from evolvent.store.episodes import Episodes
from evolvent.worlds.control import CONTROLS, Control, make_control
from evolvent.worlds.stitching import ACTIONS, Stitching, StitchingEnv, compute_reachable, demonstrations

FOLDER = RESULTS / "sequence"
METHODS = ("bc", "dt", "odt", "tt", "q")
DATA: Mapping[str, tuple[str, str]] = {
    f"{world}-{kind}": (world, kind)
    for world, kinds in (
        ("cartpole", ("medium", "replay")),
        ("pendulum", ("medium", "replay")),
        ("hopper", ("medium", "replay")),
        ("stitching", ("pieces", "whole")),
    )
    for kind in kinds
}
TASKS = "tasks"  # one policy for several tasks beside policies of one each
ENDS: tuple[Kind, ...] = ("random", "expert")  # of a score
TEXTS = {f"text-{world}": world for world in TEXT_WORLDS}
NOT_RUN = {} if importlib.util.find_spec("mujoco") else {"hopper": "needs mujoco"}


@dataclass(frozen=True)
class Protocol:
    """What a cell depends on."""

    episodes: int = 200
    horizon: int = 200
    updates: int = 1000
    batch: int = 64
    width: int = 64
    layers: int = 2
    evaluation: int = 5
    plays: int = 20  # episodes that Online DT may play
    text: TextSize = field(default_factory=TextSize)
    seeds: tuple[int, ...] = (0, 1, 2)
    version: int = 4

    @property
    def digest(self) -> str:
        """Of all of it but the seeds."""
        fields = {name: value for name, value in asdict(self).items() if name != "seeds"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


QUICK = Protocol(
    episodes=8,
    horizon=20,
    updates=40,
    batch=16,
    width=16,
    layers=1,
    evaluation=1,
    plays=1,
    seeds=(0, 1),
    text=TextSize(episodes=12, tokens=300, updates=20, batch=8, width=16, layers=1, tests=3),
)


@dataclass(frozen=True)
class Place:
    """Where the policies are evaluated, and what the data are."""

    data: Episodes
    make: Callable[[], Any]
    horizon: int
    scale: float
    random: float
    expert: float
    target: float  # what is asked for: the best return in the data, of an episode from the start that is played

    def returns(self, actor: ArrayActor, *, episodes: int, seed: int) -> list[float]:
        """Of evaluation episodes."""
        return [float(x) for x in self.played(actor, episodes=episodes, seed=seed).returns]

    def played(self, actor: ArrayActor, *, episodes: int, seed: int) -> Episodes:
        """Episodes of an actor."""
        return play_arrays(
            actor,
            self.make,
            episodes=episodes,
            horizon=self.horizon,
            num_actions=self.data.actions,
            seed=seed,
            dim=self.data.action_dim,
            scale=self.scale,
        )

    def score(self, value: float) -> float:
        """0 for random actions, 100 for the expert."""
        return 100.0 * (value - self.random) / (self.expert - self.random)


def place_of(protocol: Protocol, name: str, seed: int) -> Place:
    """The data of a seed, and their world."""
    world, kind = DATA[name]
    if world == "stitching":
        maze = Stitching()
        data = demonstrations(maze, include_best=kind == "whole")
        target = compute_reachable(maze, data).conditioned
        return Place(data, partial(StitchingEnv, maze), maze.horizon, 1.0, 0.0, 100.0, target)
    control = dataclasses.replace(CONTROLS[world], horizon=min(CONTROLS[world].horizon, protocol.horizon))

    def made(kind: Kind, episodes: int) -> Episodes:
        return play_mixture(control, kind=kind, episodes=episodes, seed=seed).episodes

    random, expert = (float(made(each, max(10, protocol.evaluation)).returns.mean()) for each in ENDS)
    data = made(kind, protocol.episodes)  # type: ignore[arg-type]
    return Place(
        data, partial(make_control, control), control.horizon, control.scale, random, expert, float(data.returns.max())
    )


# ---------------------------------------------------------------------- the methods


def trained(protocol: Protocol, place: Place, method: str, seed: int) -> tuple[ArrayActor, dict[str, Any]]:
    """A policy that learned from the place's data, and what is to be said of it."""
    train = {
        "max_steps": protocol.updates,
        "batch": protocol.batch,
        "lr": 1e-3,
        "warmup": min(100, protocol.updates),
        "grad_norm": 1.0,
    }
    net = {"width": protocol.width, "layers": protocol.layers, "heads": 2, "seed": seed}
    best = place.target
    scale = max(1.0, float(np.abs(place.data.returns).max()) / 4.0)
    maze = place.data.actions == len(ACTIONS)
    if method in ("bc", "dt"):
        config = DecisionTransformerConfig(
            returns=method == "dt", context=8, scale=scale, dropout=0.0, horizon=place.horizon, train=train, **net
        )  # type: ignore[arg-type]
        return decision_transformer(config, place.data).build_actor(best), {"target": best}
    if method == "q":
        q = QTransformerConfig(bins=32, gamma=0.98, scale=scale, polyak=0.02, conservative=0.5, train=train, **net)  # type: ignore[arg-type]
        return q_transformer(q, place.data).build_actor(), {}
    if method == "tt":
        planning = {"keep": 8, "horizon": 6 if maze else 5, "width": 4, "memory": 1}
        tt = TrajectoryTransformerConfig(context=4, bins=32, dropout=0.0, train=train, planning=planning, **net)  # type: ignore[arg-type]
        return trajectory_transformer(tt, place.data).build_actor(), {}
    odt = OnlineDTConfig(
        context=8,
        acting=5,
        scale=scale,
        dropout=0.0,
        target=best,
        explore=1.0,
        replay=protocol.episodes,
        rounds=protocol.plays,
        updates=max(1, protocol.updates // 40),
        temperature_lr=1e-3,
        train={**train, "updates": protocol.updates // 2},
        **net,
    )  # type: ignore[arg-type]

    def explore(actor: ArrayActor, number: int) -> Episodes:
        return place.played(actor, episodes=1, seed=10_000 * (seed + 1) + number)

    found = online_dt(odt, place.data, explore=explore)
    return found.policy.build_actor(best, context=5), {"target": best, "played": len(found.online_returns)}


def run_cell(protocol: Protocol, name: str, method: str, seed: int) -> dict[str, Any]:
    """Train one method on one data set and play its evaluation episodes."""
    place, began = place_of(protocol, name, seed), time.process_time()
    actor, said = trained(protocol, place, method, seed)
    fitted = time.process_time() - began
    episodes = 1 if DATA[name][0] == "stitching" else protocol.evaluation
    returns = place.returns(actor, episodes=episodes, seed=77)
    return {
        "data": name,
        "method": method,
        "seed": seed,
        "digest": protocol.digest,
        "returns": returns,
        "scores": [place.score(x) for x in returns],
        "cpu_train_s": round(fitted, 2),
        **said,
        "cpu_play_s": round(time.process_time() - began - fitted, 2),
        "data_digest": place.data.digest,
    }


def run_generalist(protocol: Protocol, seed: int) -> dict[str, Any]:
    """One policy for four tasks, and four of one task each."""
    began = time.process_time()
    sized = Sized(
        min(20, protocol.episodes),
        protocol.horizon,
        protocol.updates,
        protocol.batch,
        protocol.width,
        protocol.layers,
        protocol.evaluation,
    )
    found = run_tasks(sized, seed)
    return {
        "data": TASKS,
        "method": "gato",
        "seed": seed,
        "digest": protocol.digest,
        **found,
        "cpu_s": round(time.process_time() - began, 2),
    }


def run_texts(protocol: Protocol, name: str, arm: str, seed: int) -> dict[str, Any]:
    """One arm on the recordings of one world of texts."""
    began = time.process_time()
    found = run_text(protocol.text, TEXTS[name], arm, seed)
    scores = {
        f"scores{how}": [100.0 * x for x in found[f"returns{how}"]]
        for how in ("", "_drawn")
        if f"returns{how}" in found
    }
    return {
        "data": name,
        "method": arm,
        "seed": seed,
        "digest": protocol.digest,
        **found,
        **scores,
        "cpu_s": round(time.process_time() - began, 2),
    }


def takes(name: str, method: str) -> bool:
    """Whether a method can learn from this data, here."""
    return DATA[name][0] not in NOT_RUN and _takes(name, method)


def _takes(name: str, method: str) -> bool:
    return method != "odt" or CONTROLS.get(DATA[name][0], Control("", 0, 1, 0, 1.0, 1, None)).dim > 0


# ---------------------------------------------------------------------- reporting


def report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures: scores, which of the published orderings hold in the means, and the differences, paired."""
    score = {name: found for name in (*DATA, *TEXTS) if (found := _scores(rows, name, "scores"))}
    drawn = {name: found for name in TEXTS if (found := _scores(rows, name, "scores_drawn"))}
    wanted = [(name, "dt", "bc") for name in ("cartpole-replay", "pendulum-replay", "hopper-replay")]
    wanted += [("stitching-pieces", method, "dt") for method in ("tt", "q")]
    above = {
        f"{name}: {better} > {worse}": found
        for name, better, worse in wanted
        if (found := _above(rows, name, (better, worse), "scores"))
    }
    asked = {
        f"{name}, {how}": found
        for how, what in (("greedy", "scores"), ("drawn", "scores_drawn"))
        for name in TEXTS
        if (found := _above(rows, name, ("asked", "clone"), what))
    }
    maze = Stitching()
    limits = {
        kind: asdict(compute_reachable(maze, demonstrations(maze, include_best=kind == "whole")))
        for kind in ("pieces", "whole")
    }
    several = [row for row in rows if row["data"] == TASKS]
    return {
        "score": score,
        "orderings_held": {name: found[0] > 0 for name, found in above.items()},
        "orderings": above,
        "multi_task_gap": gap(several),
        "text_drawn": drawn,
        "asking_above_cloning": asked,
        "multi_task": [{name: row[name] for name in ("seed", "specialist", "generalist")} for row in several],
        "reachable": limits,
        "family": compare_family(rows),
        "not_run": NOT_RUN,
        "cpu_s": round(sum(map(_cost, rows))),
        "cells": len(rows),
        "seeds": sorted({row["seed"] for row in rows}),
        **about("evolvent", "torch", "numpy", "gymnasium", "mujoco", threads=1),
    }


def _scores(rows: Sequence[Mapping[str, Any]], name: str, what: str) -> dict[str, list[float]]:
    """By method, [mean, low, high] over seeds and episodes (of texts: tasks)."""
    found = {}
    for method in (*METHODS, *(arm for arm in ARMS if arm not in METHODS)):
        own = [row[what] for row in rows if (row["data"], row["method"]) == (name, method) and what in row]
        if own:
            nothing = [[0.0] * len(each) for each in own]
            found[method] = compute_interval(own, nothing, kinds=range(len(own[0])), name=name)
    return found


def _above(rows: Sequence[Mapping[str, Any]], name: str, pair: tuple[str, str], what: str) -> list[float] | None:
    """[mean, low, high] of one method's scores minus another's, by seed and episode; None without a common seed."""
    own, other = (
        {row["seed"]: row[what] for row in rows if (row["data"], row["method"]) == (name, one) and what in row}
        for one in pair
    )
    seeds = sorted({*own} & {*other})
    if not seeds:
        return None
    kinds = range(len(own[seeds[0]]))
    return compute_interval([own[seed] for seed in seeds], [other[seed] for seed in seeds], kinds=kinds, name=name)


def _cost(row: Mapping[str, Any]) -> float:
    return float(sum(row.get(part, 0.0) for part in ("cpu_s", "cpu_train_s", "cpu_play_s")))


def _ends(found: Sequence[float]) -> str:
    return f"{found[0]:+.1f} [{found[1]:+.1f}, {found[2]:+.1f}]"


def told(found: Mapping[str, Any]) -> str:
    """The figures for people."""
    every = (*METHODS, *(arm for arm in ARMS if arm not in METHODS))
    lines = [f"{'':18}" + "".join(f"{method:>24}" for method in every)]
    drawn = {f"{name} drawn": row for name, row in found["text_drawn"].items()}
    for name, row in {**found["score"], **drawn}.items():
        cells = [f"{row[m][0]:8.1f} [{row[m][1]:6.1f}, {row[m][2]:6.1f}]" if m in row else "-" for m in every]
        lines.append(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells))
    lines += [
        f"{'holds' if found['orderings_held'][name] else 'does not hold':14} {name:34} {_ends(ends)}"
        for name, ends in found["orderings"].items()
    ]
    lines += [f"asking minus cloning, {name:30} {_ends(ends)}" for name, ends in found["asking_above_cloning"].items()]
    lines.append(f"one policy for four tasks is behind by {found['multi_task_gap']} in its worst")
    lines += format_family(found["family"])
    lines += [f"not run: {name} ({why})" for name, why in found["not_run"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is asked for and not there yet, then report."""
    kept_at = RESULTS / "sequence.json"
    parser = command_line("sequence", __doc__, quick="small everything: the machinery alone", save=kept_at)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--family", action="store_true", help="train cloning and DT alone, ten seeds on five data sets")
    parser.add_argument("--data", nargs="*", default=[*DATA, *TEXTS, TASKS], choices=[*DATA, *TEXTS, TASKS])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=None)
    given = parser.parse_args(arguments)
    if given.family:
        given.data, given.methods, given.seeds = [*BEST], [*FAMILY], list(SEEDS if given.seeds is None else given.seeds)
    torch.set_num_threads(1)
    protocol, folder = (QUICK, FOLDER / "quick") if given.quick else (Protocol(), FOLDER)
    if not given.report:
        with study_run(folder):
            play_missing(protocol, folder, given)
    found = report(read_cells(folder, protocol.digest))
    print(told(found))
    finish(found, given)


def play_missing(protocol: Protocol, folder: Path, given: argparse.Namespace) -> None:
    """Plays the chosen cells that have no row in the folder and stores their rows."""
    done = {(row["data"], row["method"], row["seed"]) for row in read_cells(folder, protocol.digest)}
    seeds = protocol.seeds if given.seeds is None else given.seeds
    names = [name for name in given.data if name in DATA]
    todo = [
        (name, method, seed)
        for seed in seeds
        for name in names
        for method in given.methods
        if takes(name, method) and (name, method, seed) not in done
    ]
    for name, method, seed in todo:
        row = run_cell(protocol, name, method, seed)
        write_cell(folder, f"{name}-{method}-{seed}", row)
        print(
            f"{name:18} {method:4} seed {seed}: {np.mean(row['scores']):8.2f}  "
            f"{row['cpu_train_s'] + row['cpu_play_s']:.1f} cpu-s",
            flush=True,
        )
    texts = [name for name in given.data if name in TEXTS]
    for name, arm, seed in ((name, arm, seed) for seed in seeds for name in texts for arm in ARMS):
        if (name, arm, seed) not in done:
            write_cell(folder, f"{name}-{arm}-{seed}", run_texts(protocol, name, arm, seed))
    for seed in seeds if TASKS in given.data else ():
        if (TASKS, "gato", seed) not in done:
            write_cell(folder, f"{TASKS}-gato-{seed}", run_generalist(protocol, seed))


if __name__ == "__main__":
    main()

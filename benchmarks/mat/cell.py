"""Cells of the MAT study: what is played and how, one training or one transfer at a time."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evolvent.identity import version_1_values
from evolvent.marl.policy import TeamPolicy, team_shape
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import MATConfig, mat
from evolvent.models.team_files import load_team, make_team, save_team
from evolvent.rollout.teams import play_episodes
from evolvent.trajectory import Task, canonical_json
from evolvent.worlds.teams.base import TeamBatch
from evolvent.worlds.teams.extras import ForeignWorld
from evolvent.worlds.teams.games import GameWorld
from evolvent.worlds.teams.rescue import RescueWorld

__all__ = [
    "ARMS",
    "GRID",
    "METHODS",
    "MOVES",
    "PARTS",
    "TASKS",
    "Move",
    "Play",
    "cell_of",
    "curve_of",
    "digest",
    "installed",
    "protocol",
    "settings_of",
    "train",
    "transfer",
]

METHODS = ("mat", "mat_dec", "mappo", "happo")
ARMS = ("mat", "scratch", "mappo", "happo")  # of a transfer; "scratch" is MAT that begins anew
GRID = (3e-4, 7e-4, 1.5e-3)  # learning rates that every method may choose from
PARTS = (0, 1, 5, 10)  # per cent of the pretraining's decisions
STRETCHES, ROLLOUT = 20, 1024  # of a learning curve; decisions of all rows between two updates
_SAMPLES = 10**6  # episodes of measuring begin here: no training comes so far


@dataclass(frozen=True)
class Play:
    """A task of the study.

    Args:
        decisions: of a training. quick: of one in a quick run. rows: side by side.
        package: that has to be installed; "": none.
        world: and its tasks, for a place to transfer to ("": the task itself); no package is imported for that.
        entropy: weight of the entropy. episodes: that a transfer is measured on.
        places: what is transferred to.
    """

    decisions: int
    rows: int
    world: Callable[[str], tuple[Any, Sequence[Task]]]
    package: str = ""
    quick: int = 4096
    entropy: float = 0.01
    episodes: int = 16
    places: tuple[str, ...] = ()

    def batch(self, place: str = "") -> TeamBatch:
        """Its rows; MissingExtra where its package is not there."""
        world, tasks = self.world(place)
        made: TeamBatch = world.batch(tasks, self.rows)
        return made


def _robot(scenario: str, parts: str) -> Callable[[str], tuple[Any, Sequence[Task]]]:
    def world(place: str) -> tuple[Any, Sequence[Task]]:
        row = {"disabled": [int(place.removeprefix("joint "))]} if place else None
        made = ForeignWorld("mamujoco", horizon=200, settings={"scenario": scenario, "parts": parts}, row=row)
        return made, made.tasks("train", "seen")

    return world


def _foraging(place: str) -> tuple[Any, Sequence[Task]]:
    world = ForeignWorld("foraging", horizon=50, settings={"size": 6, "agents": 3, "food": 3, "cooperate": False})
    return world, world.tasks("train", "seen")


def _rescue(place: str) -> tuple[Any, Sequence[Task]]:
    world = RescueWorld()
    tasks: Sequence[Task] = [task for task in world.tasks("train", "seen") if task.spec["agents"] == 3]
    if place:
        tasks = [world.resize_team(task, int(place.split()[0])) for task in tasks]
    return world, tasks


def _distinct(place: str) -> tuple[Any, Sequence[Task]]:
    world = GameWorld("distinct")
    return world, [world.task(int(place.split()[0]) if place else 3)]


TASKS: Mapping[str, Play] = {
    "halfcheetah_6x1": Play(
        102_400,
        16,
        _robot("HalfCheetah", "6x1"),
        "gymnasium_robotics",
        entropy=0.001,
        places=tuple(f"joint {joint}" for joint in range(6)),
    ),
    "ant_4x2": Play(40_960, 16, _robot("Ant", "4x2"), "gymnasium_robotics", entropy=0.001),
    "walker2d_2x3": Play(61_440, 16, _robot("Walker2d", "2x3"), "gymnasium_robotics", entropy=0.001),
    "foraging": Play(61_440, 16, _foraging, "lbforaging"),
    "rescue": Play(102_400, 32, _rescue, episodes=64, places=("2 agents", "4 agents", "6 agents")),
    "distinct": Play(20_480, 64, _distinct, episodes=256, places=("2 agents", "4 agents", "6 agents")),
}
"""Robots are cut after 200 steps, so that a small budget holds many episodes; foraging is 3 agents, 3 pieces of food on
6 x 6. "distinct" is for quick runs."""


@dataclass(frozen=True)
class Move:
    """A transfer: `arm` goes on at `place` of a task."""

    task: str
    place: str
    arm: str


MOVES = tuple(Move(name, place, arm) for name, play in TASKS.items() for place in play.places for arm in ARMS)


def installed(task: str) -> bool:
    """Whether the package of a task is there."""
    package = TASKS[task].package
    return not package or find_spec(package) is not None


def settings_of(task: str, method: str, *, lr: float, seed: int, decisions: int) -> MATConfig:
    """The settings of a training; all but the learning rate are the same for every method of a task."""
    play = TASKS[task]
    update = TeamUpdateConfig(
        lr=lr, ppo_epochs=5, minibatches=4, clip_range=0.2, entropy_coef=play.entropy, grad_norm=0.5
    )
    kind: Any = "mat" if method == "scratch" else method
    return MATConfig(
        kind=kind,
        rows=play.rows,
        steps=ROLLOUT // play.rows,
        decisions=decisions,
        update=update,
        seed=seed,
        keep_every=10**6,
    )


def protocol(task: str, config: MATConfig, *, place: str = "", start: str = "", arm: str = "") -> dict[str, Any]:
    """All that a cell depends on, as JSON values.

    Args:
        start: the digest of the training whose policy it begins from.
    """
    play = TASKS[task]
    tasks = [one.id for one in play.world(place)[1]]
    return {
        "task": task,
        "config": version_1_values(config),
        "place": place,
        "start": start,
        "arm": arm or config.kind,
        "tasks": tasks,
        "episodes": play.episodes if arm else 0,
        "parts": list(PARTS) if arm else [],
        "edition": 1,
    }


def digest(said: Mapping[str, Any]) -> str:
    """Of a protocol."""
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]


def cell_of(said: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """A row to be kept."""
    return {**said, "digest": digest(said), "seed": said["config"]["seed"], **made}


def curve_of(history: Sequence[Mapping[str, float]], decisions: int, stretches: int = STRETCHES) -> list[float]:
    """`[stretches]` mean return of the episodes that ended in each equal stretch of training.

    A stretch in which none ended has what the one before it had, and those before the first ending have the first.
    """
    sums, counts = np.zeros(stretches), np.zeros(stretches)
    for row in history:
        at = min(stretches - 1, int((row["decisions"] - 1) * stretches / decisions))
        sums[at] += row["episodes"] * row.get("episode_return", 0.0)
        counts[at] += row["episodes"]
    known = np.flatnonzero(counts)
    if not known.size:
        raise ValueError("no episode ended: the training is shorter than an episode")
    last = np.maximum.accumulate(np.where(counts > 0, np.arange(stretches), known[0]))
    return [float(value) for value in sums[last] / counts[last]]


def train(task: str, config: MATConfig, policy: Path | None = None) -> dict[str, Any]:
    """One training: its learning curve, its area (mean over the curve), CPU seconds. `policy`: where it is kept."""
    play = TASKS[task]
    began = time.process_time()
    with closing(play.batch()) as batch:
        trained = mat(config, batch)
    spent = time.process_time() - began
    if policy is not None:
        save_team(trained.policy.model, policy)
    curve = curve_of(trained.history, config.decisions)
    return {"curve": curve, "auc": float(np.mean(curve)), "last": curve[-1], "cpu_s": spent}


def transfer(move: Move, config: MATConfig, *, decisions: int, start: Path | None) -> dict[str, Any]:
    """Go on at another place, and measure after each of `PARTS` of the pretraining's `decisions`.

    The policy is measured as it acts while it learns (actions are drawn), on the same episodes for every arm. Parts are
    whole rollouts, at least one where the part is above 0.
    """
    play, found = TASKS[move.task], {}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, closing(play.batch(move.place)) as batch:
        shape = team_shape(
            batch.spec, config.kind, width=config.width, heads=config.heads, blocks=config.blocks, share=config.share
        )
        model = make_team(shape, seed=config.seed) if start is None else load_team(start, expected=shape)
        policy = TeamPolicy(model, batch.spec)
        for part in PARTS:
            if part:
                rollouts = max(1, round(decisions * part / 100 / ROLLOUT))
                longer = config.model_copy(update={"decisions": rollouts * ROLLOUT})
                policy = mat(longer, batch, start=start, folder=Path(folder)).policy
            with torch.no_grad():
                played = play_episodes(batch, policy, play.episodes, first=_SAMPLES, seed=config.seed, greedy=False)
            found[str(part)] = float(np.mean([one.score.raw for one in played if one.score.raw is not None]))
    return {"returns": found, "cpu_s": time.process_time() - began}

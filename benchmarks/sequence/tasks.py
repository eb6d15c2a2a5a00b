"""One policy for four tasks beside four policies of one task each: text, choices, numbers (Gato, arXiv 2205.06175).

Everybody imitates the same episodes of experts with the same network. The generalist makes as many updates as the four
specialists together, so that each task is seen as often. Used by `benchmarks.sequence`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evolvent.methods.gato import GatoConfig, GatoTask, Generalist, build_array_task, build_text_task, gato
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.mixtures import play_mixture
from evolvent.worlds.control import CONTROLS, make_control
from evolvent.worlds.maze import Maze
from evolvent.worlds.stitching import Stitching, StitchingEnv, demonstrations

__all__ = ["Sized", "gap", "run_tasks"]


@dataclass(frozen=True)
class Sized:
    """How much is learned and played."""

    episodes: int
    horizon: int
    updates: int
    batch: int
    width: int
    layers: int
    evaluation: int


@dataclass(frozen=True)
class Trial:
    """A task, and the score of a policy in it: 0 for random actions (texts and the maze of pieces: nothing), 100 for
    the expert."""

    task: GatoTask
    score: Callable[[Generalist], float]


def trials(sized: Sized, seed: int) -> dict[str, Trial]:
    """The four tasks."""
    return {
        **{world: _control(sized, world, seed) for world in ("cartpole", "pendulum")},
        "stitching": _stitching(),
        "maze": _maze(),
    }


def run_tasks(sized: Sized, seed: int) -> dict[str, Any]:
    """Scores of the specialists and of the generalist, by task."""
    made = trials(sized, seed)
    train = {
        "updates": sized.updates,
        "batch": sized.batch,
        "lr": 1e-3,
        "warmup": min(100, sized.updates),
        "grad_norm": 1.0,
    }
    config = GatoConfig(context=2, width=sized.width, heads=2, layers=sized.layers, train=train, seed=seed)  # type: ignore[arg-type]
    own = {name: trial.score(gato(config, {name: trial.task})) for name, trial in made.items()}
    more = config.train.model_copy(update={"updates": sized.updates * len(made)})
    every = gato(config.model_copy(update={"train": more}), {name: trial.task for name, trial in made.items()})
    return {"specialist": own, "generalist": {name: trial.score(every) for name, trial in made.items()}}


def gap(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How far the generalist is behind the specialists in its worst task, as a share of theirs; None: no rows, or a
    specialist that learned nothing."""
    found = []
    for name in rows[0]["specialist"] if rows else ():
        own, all_ = (float(np.mean([row[who][name] for row in rows])) for who in ("specialist", "generalist"))
        if own <= 0:
            return None
        found.append((own - all_) / own)
    return round(max(found), 4) if found else None


def _control(sized: Sized, world: str, seed: int) -> Trial:
    control = dataclasses.replace(CONTROLS[world], horizon=min(CONTROLS[world].horizon, sized.horizon))
    data = play_mixture(control, kind="expert", episodes=sized.episodes, seed=seed).episodes
    random = play_mixture(control, kind="random", episodes=20, seed=seed).episodes.returns.mean()
    best = data.returns.mean()

    def score(policy: Generalist) -> float:
        found = play_arrays(
            policy.build_actor(world),
            partial(make_control, control),
            episodes=sized.evaluation,
            horizon=control.horizon,
            num_actions=control.actions,
            dim=control.dim,
            seed=77,
            scale=control.scale,
        )
        return float(100.0 * (found.returns.mean() - random) / (best - random))

    return Trial(build_array_task(data), score)


def _stitching() -> Trial:
    maze = Stitching()
    data = demonstrations(maze, copies=1, include_best=True)
    best = data.select(np.flatnonzero(data.returns == maze.optimum()))

    def score(policy: Generalist) -> float:
        found = play_arrays(
            policy.build_actor("stitching"),
            partial(StitchingEnv, maze),
            episodes=1,
            horizon=maze.horizon,
            num_actions=best.actions,
            seed=0,
        )
        return float(100.0 * found.returns[0] / maze.optimum())

    return Trial(build_array_task(best), score)


def _maze() -> Trial:
    """The one maze of LMRL-Gym, in words, from all its training starts."""
    world = Maze("double_t")
    tasks = world.tasks("train", "seen")
    told = []
    for task in tasks:
        env, episode = world.make(task), []
        seen, _ = env.reset()
        for action in world.expert(task) or ():
            episode.append((str(seen), str(action)))
            seen = env.step(action)[0]
        told.append(episode)

    def score(policy: Generalist) -> float:
        won = [_wins(world.make(task), policy, len(episode)) for task, episode in zip(tasks, told, strict=True)]
        return 100.0 * float(np.mean(won))

    return Trial(build_text_task([episode for episode in told if episode]), score)


def _wins(env: Any, policy: Generalist, best: int) -> bool:
    """Whether the policy reaches the goal within twice the expert's steps."""
    seen, _ = env.reset()
    past: list[tuple[str, str]] = []
    for _ in range(2 * best):
        action = policy.reply("maze", past, str(seen), max_bytes=16)
        past.append((str(seen), action))
        seen, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return bool(terminated)
    return False

"""Does asking for the best return beat cloning, in texts? The same recorded trajectories, as texts and as arrays.

Mazes in words (`worlds/maze.py`): the published one, and fresh ones with held-out test mazes. Recorded is a mixture of
known quality: random walks, walks of an expert half of whose moves are random, and the expert's. Every step costs
1 / horizon, so that the return says how soon the goal was reached. A text policy clones all of it ("clone") or reads a
line with the return-to-go ("asked"; `methods/return_text.py`); cloning and Decision Transformer over arrays ("bc",
"dt") and Q-learning ("q") read the same episodes as numbers. All are asked for the best return that was recorded, play
the same tasks greedily, and the text policies once more with drawn actions. Used by `benchmarks.sequence`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evolvent.learn.learner import TrainConfig
from evolvent.methods.decision_transformer import DecisionTransformerConfig, decision_transformer
from evolvent.methods.q_transformer import QTransformerConfig, q_transformer
from evolvent.methods.return_text import ReturnTextConfig, condition_worlds, return_text, returns_to_go
from evolvent.models.policy import tiny_policy
from evolvent.offline.acting import ArrayActor
from evolvent.rollout.arrays import play_arrays
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Start, Step, Task, Trajectory, sample_rng, sample_seed
from evolvent.worlds.maze import DIRECTIONS, Maze
from evolvent.worlds.panel import Sizes

__all__ = ["ARMS", "TEXT_WORLDS", "TextSize", "recorded", "run_text"]

ARMS = ("clone", "asked", "bc", "dt", "q")
TEXT_WORLDS = ("double_t", "maze")
_ACTIONS = tuple(f"move {direction}" for direction in DIRECTIONS)
_SHARES = (1.0, 1.0, 1.0, 0.5, 0.5, 0.0)  # of random moves, episode after episode


@dataclass(frozen=True)
class TextSize:
    """How much is recorded, learned and played. `tokens`: learned ones, of a text policy."""

    episodes: int = 600
    tokens: int = 120_000
    updates: int = 1500
    batch: int = 64
    width: int = 64
    layers: int = 2
    tests: int = 60


def world_of(name: str, size: TextSize) -> Maze:
    """The published maze, or fresh small ones."""
    if name == "double_t":
        return Maze("double_t", horizon=30)
    return Maze(size=4, loops=2, sizes=Sizes(train=max(2, size.episodes // 2), dev=2, test=max(2, size.tests)))


def panels(world: Maze, size: TextSize) -> tuple[list[Task], list[Task]]:
    """Tasks that are recorded, and those that are played: of the published maze, its 25 starts, the same."""
    if world.published:
        every = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
        return every, every
    return list(world.tasks("train", "seen")), list(world.tasks("test", "seen"))[: size.tests]


def recorded(world: Maze, tasks: Sequence[Task], *, episodes: int, seed: int) -> list[Trajectory]:
    """The mixture: episode n has a share of random moves by its number; the rest are on a shortest way from there."""
    found = []
    for number in range(episodes):
        task, share = tasks[number % len(tasks)], _SHARES[number % len(_SHARES)]
        rng, env = sample_rng("recorded", seed, number), world.make(task)
        seen, info = env.reset()
        steps: list[Step] = []
        over = cut = False
        while not (over or cut):
            action = _ACTIONS[int(rng.integers(len(_ACTIONS)))] if rng.random() < share else _shortest(env)
            after, reward, over, cut, info = env.step(action)
            steps.append(Step(seen, action, reward))
            seen, cut = after, cut or len(steps) >= world.horizon
        score = world.score([step.reward for step in steps], info)
        ended: Literal["world", "horizon"] = "world" if over else "horizon"
        found.append(Trajectory(f"recorded/{task.id}/{number}", task, tuple(steps), seen, ended, score, sample=number))
    return found


def _shortest(env: Any) -> str:
    """The first move of a shortest way from here, by trying all of them; the environment is as before afterwards."""
    here = env.snapshot()
    fringe, known = [(here, "")], {here.state.cell}
    try:
        for state, first in fringe:
            for action in _ACTIONS:
                env.restore(state)
                _, reward, over, cut, _ = env.step(action)
                if reward > 0:
                    return first or action
                at = env.snapshot()
                if not (over or cut) and at.state.cell not in known:
                    known.add(at.state.cell)
                    fringe.append((at, first or action))
    finally:
        env.restore(here)
    return _ACTIONS[0]


def numbers(text: str) -> np.ndarray[Any, Any]:
    """`[8]`, where one is, where the goal is (the goal itself: all of it 0), and which ways are walled."""
    words = text.split()
    if words[0] != "at":
        return np.zeros(8, np.float32)
    walls = [float(direction in words[7:]) for direction in DIRECTIONS]
    return np.array([*(float(words[at]) for at in (1, 2, 4, 5)), *walls], np.float32)


class MazeArrays:
    """The same episode in numbers; a step pays its reward less the cost."""

    def __init__(self, world: Maze, task: Task) -> None:
        self._env, self._cost = world.make(task), 1.0 / world.horizon

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Mapping[str, Any]]:
        """Begin."""
        return numbers(str(self._env.reset()[0])), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Move."""
        seen, reward, over, cut, _ = self._env.step(_ACTIONS[int(action)])
        return numbers(str(seen)), float(reward) - self._cost, over, cut, {}

    def close(self) -> None:
        """Give it back."""
        self._env.close()


def as_arrays(trajectories: Sequence[Trajectory], cost: float) -> Episodes:
    """The recorded episodes as numbers."""
    steps = [step for one in trajectories for step in one.steps]
    return Episodes(
        observation=np.stack([numbers(str(step.observation)) for step in steps]),
        actions=len(_ACTIONS),
        final=np.stack([numbers(str(one.final_observation)) for one in trajectories]),
        action=np.array([_ACTIONS.index(str(step.action)) for step in steps], np.int64),
        reward=np.array([float(step.reward or 0.0) - cost for step in steps]),
        lengths=np.array([len(one.steps) for one in trajectories], np.int64),
        terminated=np.array([one.terminated for one in trajectories]),
    )


def run_text(size: TextSize, name: str, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm on one world's recordings and play the panel: success, and the mean return of its episodes."""
    world = world_of(name, size)
    shown, tested = panels(world, size)
    data = recorded(world, shown, episodes=size.episodes, seed=seed)
    best = [returns_to_go(one, cost=1.0 / world.horizon)[0] for one in data]
    row = {"recorded_return": float(np.mean(best)), "recorded_success": float(np.mean([bool(t.success) for t in data]))}
    if arm in ("clone", "asked"):
        return {**row, **_texts(size, world, data, arm=arm, tested=tested, seed=seed)}
    return {**row, **_arrays(size, world, data, arm=arm, tested=tested, seed=seed)}


def _texts(
    size: TextSize, world: Maze, data: Sequence[Trajectory], *, arm: str, tested: Sequence[Task], seed: int
) -> dict[str, Any]:
    config = ReturnTextConfig(conditioned=arm == "asked", cost=1.0 / world.horizon, tokens=size.tokens)
    both = condition_worlds(
        {world.name: world}, data, config.model_copy(update={"conditioned": True})
    )  # one vocabulary for both
    words = sorted(both[world.name].vocabulary() or ())
    policy = tiny_policy(words, context=1024, seed=sample_seed("text", seed) % 2**31)
    train = TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=1024)
    verbs = LocalBackend(condition_worlds({world.name: world}, data, config), train=train, slots=64, max_tokens=8)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), verbs, seed=seed, settings=verbs.settings()) as run:
        learned = return_text(policy, data, config=config, run=run)
        for how, temperature in (("", 0.0), ("_drawn", 1.0)):
            played = run.collect(learned, [*map(Start, tested)], temperature=temperature)
            paid = [returns_to_go(one, cost=config.cost)[0] for one in played]
            found |= {f"returns{how}": paid, f"success{how}": [float(bool(one.success)) for one in played]}
    return found


def _arrays(
    size: TextSize, world: Maze, data: Sequence[Trajectory], *, arm: str, tested: Sequence[Task], seed: int
) -> dict[str, Any]:
    episodes = as_arrays(data, 1.0 / world.horizon)
    train: Any = {"updates": size.updates, "batch": size.batch, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0}
    net: Any = {"width": size.width, "layers": size.layers, "heads": 2, "seed": seed, "train": train}
    actor: ArrayActor
    if arm == "q":
        actor = q_transformer(
            QTransformerConfig(gamma=0.98, polyak=0.02, conservative=0.5, **net), episodes
        ).build_actor()
    else:
        how: Any = {"returns": arm == "dt", "context": 8, "scale": 1.0, "dropout": 0.0, "horizon": world.horizon}
        actor = decision_transformer(DecisionTransformerConfig(**how, **net), episodes).build_actor(
            float(episodes.returns.max())
        )
    tasks = iter(tested)
    played = play_arrays(
        actor,
        lambda: MazeArrays(world, next(tasks)),
        episodes=len(tested),
        horizon=world.horizon,
        num_actions=len(_ACTIONS),
        seed=seed,
    )
    return {"returns": played.returns.tolist(), "success": played.terminated.astype(float).tolist()}

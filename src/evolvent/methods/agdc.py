"""AGDC: an agent that looks for what it cannot see learns from its own verdict that it has found it.

"Autonomous Goal Detection and Cessation in Reinforcement Learning: A Case Study on Source Term Estimation" (arXiv
2409.09541). A step costs 1. The agent keeps a belief about the source; where the belief has contracted below zeta, the
agent ends the episode and takes the reward of the goal, 100, though nobody told it that it has arrived. Only the end
and the reward change (`belief/cessation.py`), so the learner is any: DQN, PPO, DDPG or SAC of stable-baselines3.

It departs from the published code on purpose: the policy sees its belief and not only its place, the sensor is as noisy
as the filter takes it to be, and sources are drawn anew, so that no path can be learned by heart.

`arm="without"` is the control: the same features, belief and budget, but an episode always runs to its horizon and
nothing is paid for ending it. When it is evaluated the same detector ends its episodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from evolvent.belief.named import read_detector
from evolvent.belief.stopping import Detector, StdBelow
from evolvent.belief.summary import BeliefSummary
from evolvent.config import Config, as_dict, resolve
from evolvent.errors import ConfigError, Problem, boundary
from evolvent.files import write_atomic
from evolvent.trajectory import Task
from evolvent.worlds.plume.presets import draw_spec, preset_named
from evolvent.worlds.plume.world import PlumeWorld

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from evolvent.belief.seeking import SourceSearch
    from evolvent.belief.vector import FinishedSearch, SourceSearchVec

__all__ = ["AGDC", "Seeker", "agdc", "detector_of", "load_seeker", "save_seeker", "world_of"]

_PLACE = BeliefSummary(
    entropy=np.zeros(1),
    mean=np.zeros((1, 8)),
    std=np.ones((1, 8)),
    covariance=np.ones((1, 2, 2)),
    spread=np.ones(1),
    ess=np.ones(1),
)
_WEIGHTS, _SETTINGS = "policy.safetensors", "agdc.json"


class AGDC(Config):
    """What can be chosen about AGDC."""

    world: str = Field(default="plume/25", description="preset of the plume world")
    moves: Literal["preset", "four", "twelve", "heading"] = Field(default="preset", description="how the agent moves")
    algorithm: Literal["dqn", "ppo", "ddpg", "sac"] = Field(default="dqn", description="learner of stable-baselines3")
    arm: Literal["agdc", "without"] = Field(default="agdc", description="with cessation, or the control without it")
    n_particles: int = Field(default=300, ge=1, description="particles of a belief while learning")
    zeta: float | None = Field(default=None, gt=0, description="metres below which to stop; none: the preset's")
    detector: str | None = Field(default=None, description="another detector, such as trace:1; none: std:zeta")
    paid_for: Literal["belief", "truth"] = Field(default="belief", description="what ceasing is paid for")
    reward: float = Field(default=100.0, description="of ceasing")
    step_cost: float = Field(default=-1.0, le=0, description="of every other step")
    budget: int = Field(default=240_000, ge=1, description="steps of all episodes together")
    at_once: int = Field(default=64, ge=1, description="episodes that are played at once")
    fused: bool = Field(default=False, description="beliefs in compiled loops (extra belief), some four times faster")
    lr: float = Field(default=1e-3, gt=0, description="learning rate at first; it falls to 0")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount")
    width: int = Field(default=128, ge=1, description="units of each of the two hidden layers")
    scale: float = Field(default=0.01, gt=0, description="what the learner's rewards are multiplied by")
    seed: int = Field(default=0, ge=0, description="of everything random")

    @model_validator(mode="after")
    def _fits(self) -> AGDC:
        moves = preset_named(self.world).moves if self.moves == "preset" else self.moves
        problems = []
        if self.algorithm == "dqn" and moves == "heading":
            problems.append(Problem("moves", "DQN cannot choose headings", "give 'four' or 'twelve'"))
        if self.algorithm in ("ddpg", "sac") and moves != "heading":
            problems.append(Problem("moves", f"{self.algorithm.upper()} cannot choose among moves", "give 'heading'"))
        if self.detector is not None and self.zeta is not None:
            problems.append(Problem("detector", "there is a zeta too", "give one of the two"))
        if problems:
            raise ConfigError(problems)
        detector_of(self)(_PLACE, [])  # one that looks at what a belief about a place does not have says so here
        return self


@dataclass(frozen=True)
class Seeker:
    """What was learned: a chooser of moves for `belief.comparison`.

    Args:
        config: what it was learned with. model: the learner of stable-baselines3 with its networks.
        finished: the episodes of training, in the order in which they ended.
    """

    config: AGDC
    model: BaseAlgorithm
    finished: Sequence[FinishedSearch] = ()

    def __call__(self, search: SourceSearch) -> NDArray[Any]:
        """[B] the best move by the policy, without exploring."""
        from evolvent.belief.cessation import to_moves

        actions, _ = self.model.predict(search.observe(), deterministic=True)
        return to_moves(search.preset, np.asarray(actions))


def world_of(config: AGDC) -> PlumeWorld:
    """The world that a configuration is about; ConfigError for an unknown preset."""
    preset = preset_named(config.world)
    return PlumeWorld(preset if config.moves == "preset" else replace(preset, moves=config.moves))


def detector_of(config: AGDC) -> Detector:
    """The detector that ends episodes; ConfigError for one that is none, or that looks at what a place has not."""
    if config.detector is not None:
        return read_detector(config.detector, where="detector")
    return StdBelow(preset_named(config.world).zeta if config.zeta is None else config.zeta)


def agdc(config: AGDC, tasks: Sequence[Task] | None = None) -> Seeker:
    """Learn to look for a source.

    The global random generators, which stable-baselines3 seeds and draws from, are given back as they were.

    Args:
        tasks: that are drawn from (None: the world's training panel).
    Raises:
        MissingExtra: stable-baselines3 is not installed.
    """
    from evolvent.belief.learners import generators_kept

    with generators_kept():
        env = _vector(config, config.at_once, tasks)
        first = {} if config.algorithm == "ppo" else {"learning_starts": min(5_000, config.budget // 20)}
        model = _model(config, env, **first)
        model.learn(config.budget)
    return Seeker(config, model, tuple(env.finished))


def _vector(config: AGDC, size: int, tasks: Sequence[Task] | None) -> SourceSearchVec:
    from evolvent.belief.seeking import Payment, SourceSearch
    from evolvent.belief.vector import SourceSearchVec

    world = world_of(config)
    return SourceSearchVec(
        SourceSearch(world.batch(size), particles=config.n_particles, fused=config.fused),
        world.tasks("train", "seen") if tasks is None else tasks,
        detector=detector_of(config) if config.arm == "agdc" else None,
        pay=Payment(reward=config.reward, cost=config.step_cost, paid_for=config.paid_for),
        seed=config.seed,
        scale=config.scale,
    )


def _model(config: AGDC, env: SourceSearchVec, **settings: int) -> BaseAlgorithm:
    from evolvent.belief.learners import learner

    return learner(
        config.algorithm, env, lr=config.lr, gamma=config.gamma, width=config.width, seed=config.seed, **settings
    )


def save_seeker(seeker: Seeker, folder: Path) -> None:
    """Write the networks as safetensors and the settings as JSON: nothing in the folder is ever run."""
    from evolvent.belief.learners import write_networks

    folder.mkdir(parents=True, exist_ok=True)
    write_networks(seeker.model, folder / _WEIGHTS)
    write_atomic(folder / _SETTINGS, json.dumps(as_dict(seeker.config), indent=1, sort_keys=True))


def load_seeker(folder: Path) -> Seeker:
    """Read what `save_seeker` wrote.

    Raises:
        ConfigError: no such folder, or other settings. ShapeMismatch: networks of another shape or algorithm.
    """
    from evolvent.belief.learners import generators_kept, read_networks

    if not (folder / _SETTINGS).is_file() or not (folder / _WEIGHTS).is_file():
        raise ConfigError("no policy of AGDC", value=str(folder), expected=f"{_SETTINGS} and {_WEIGHTS}")
    with boundary(ConfigError, f"{folder / _SETTINGS} holds no settings of AGDC"):
        config = resolve(AGDC, preset=dict(json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))))
    with generators_kept():
        small = {} if config.algorithm == "ppo" else {"buffer_size": 1}  # nothing is learned, so nothing is replayed
        world = world_of(config)
        one = Task(world.name, world.version, draw_spec(world.preset, 0))  # any task: none is played
        model = _model(config, _vector(config, 1, [one]), **small)
    read_networks(model, folder / _WEIGHTS)
    return Seeker(config, model)

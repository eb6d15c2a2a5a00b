"""AGDC: an agent that searches for a hidden goal learns from its own verdict that it has found the goal.

"Autonomous Goal Detection and Cessation in Reinforcement Learning: A Case Study on Source Term Estimation"
(arXiv 2409.09541). A step costs 1. The agent maintains a belief about the source. Where the belief has
contracted below zeta, the agent ends the episode and receives the reward of the goal, 100, although nobody told
it that it has arrived. Only the end and the reward change (`belief/cessation.py`), so any learner works: DQN,
PPO, DDPG or SAC of stable-baselines3.

It departs from the published code on purpose: the policy sees its belief and not only its position, the sensor
is as noisy as the filter assumes, and sources are sampled anew, so that no path can be memorized.

`arm="without"` is the control: the same features, belief and budget, but an episode always runs to its horizon
and nothing is paid for ending it. In evaluation the same detector ends its episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from evolvent.belief.named import parse_detector
from evolvent.belief.stopping import Detector, StdBelow
from evolvent.belief.summary import BeliefSummary
from evolvent.config import Config, as_dict, resolve
from evolvent.errors import ConfigError, Problem, boundary
from evolvent.files import write_atomic
from evolvent.trajectory import Task
from evolvent.worlds.plume.presets import draw_spec, get_preset
from evolvent.worlds.plume.world import PlumeWorld

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from evolvent.belief.seeking import SourceSearch
    from evolvent.belief.vector import FinishedSearch, SourceSearchVec

__all__ = ["AGDCConfig", "Seeker", "agdc", "build_detector", "build_world", "load_seeker", "save_seeker"]

_POSITION_BELIEF = BeliefSummary(
    entropy=np.zeros(1),
    mean=np.zeros((1, 8)),
    std=np.ones((1, 8)),
    covariance=np.ones((1, 2, 2)),
    spread=np.ones(1),
    ess=np.ones(1),
)
_WEIGHTS_FILE, _SETTINGS_FILE = "policy.safetensors", "agdc.json"


class AGDCConfig(Config):
    """Settings of AGDC."""

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
    def _check_combination(self) -> AGDCConfig:
        moves = get_preset(self.world).moves if self.moves == "preset" else self.moves
        problems = []
        if self.algorithm == "dqn" and moves == "heading":
            problems.append(Problem("moves", "DQN cannot choose headings", "give 'four' or 'twelve'"))
        if self.algorithm in ("ddpg", "sac") and moves != "heading":
            problems.append(Problem("moves", f"{self.algorithm.upper()} cannot choose among moves", "give 'heading'"))
        if self.detector is not None and self.zeta is not None:
            problems.append(Problem("detector", "zeta is set too", "set only one of them"))
        if problems:
            raise ConfigError(problems)
        build_detector(self)(
            _POSITION_BELIEF, []
        )  # one that looks at what a belief about a place does not have says so here
        return self


@dataclass(frozen=True)
class Seeker:
    """A trained policy that chooses moves, for `belief.comparison`.

    Args:
        config: its settings.
        model: the learner of stable-baselines3 with its networks.
        finished: the episodes of training, in the order in which they ended.
    """

    config: AGDCConfig
    model: BaseAlgorithm
    finished: Sequence[FinishedSearch] = ()

    def __call__(self, search: SourceSearch) -> NDArray[np.generic]:
        """Returns `[B]`, the best move by the policy, without exploring."""
        from evolvent.belief.cessation import actions_to_moves

        actions, _ = self.model.predict(search.observe(), deterministic=True)
        return actions_to_moves(search.preset, np.asarray(actions))


def build_world(config: AGDCConfig) -> PlumeWorld:
    """Builds the world of a configuration; raises ConfigError for an unknown preset."""
    preset = get_preset(config.world)
    return PlumeWorld(preset if config.moves == "preset" else replace(preset, moves=config.moves))


def build_detector(config: AGDCConfig) -> Detector:
    """Builds the detector that ends episodes; ConfigError for an unknown one, or one that needs more than positions."""
    if config.detector is not None:
        return parse_detector(config.detector, setting="detector")
    return StdBelow(get_preset(config.world).zeta if config.zeta is None else config.zeta)


def agdc(
    config: AGDCConfig,
    tasks: Sequence[Task] | None = None,
    *,
    report: Callable[[int, Sequence[FinishedSearch]], None] | None = None,
    device: str = "cpu",
) -> Seeker:
    """Trains a policy to search for a source.

    The global random generators, which stable-baselines3 seeds and uses, are restored afterwards.

    Args:
        tasks: to sample from (None: the world's training panel).
        report: called while it trains with the number of environment steps and the finished episodes so far.
        device: where the networks learn, as "cuda:1"; beliefs are computed on the CPU, where the policy is afterwards.
    Raises:
        MissingExtra: stable-baselines3 is not installed.
    """
    from evolvent.belief.learners import move_to_cpu, preserve_generators

    with preserve_generators():
        env = _build_envs(config, config.at_once, tasks)
        learning_start = {} if config.algorithm == "ppo" else {"learning_starts": min(5_000, config.budget // 20)}
        model = _build_learner(config, env, device=device, **learning_start)
        model.learn(config.budget, callback=None if report is None else _reporting(report, model, env))
    move_to_cpu(model)
    return Seeker(config, model, tuple(env.finished))


def _reporting(
    report: Callable[[int, Sequence[FinishedSearch]], None], model: BaseAlgorithm, env: SourceSearchVec
) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    """Returns the callback of stable-baselines3 that reports after every step of the environments."""

    def report_step(local_values: dict[str, Any], global_values: dict[str, Any]) -> bool:
        report(model.num_timesteps, env.finished)
        return True

    return report_step


def _build_envs(config: AGDCConfig, size: int, tasks: Sequence[Task] | None) -> SourceSearchVec:
    from evolvent.belief.seeking import SourceSearch, StopReward
    from evolvent.belief.vector import SourceSearchVec

    world = build_world(config)
    return SourceSearchVec(
        SourceSearch(world.batch(size), particles=config.n_particles, fused=config.fused),
        world.tasks("train", "seen") if tasks is None else tasks,
        detector=build_detector(config) if config.arm == "agdc" else None,
        pay=StopReward(reward=config.reward, cost=config.step_cost, paid_for=config.paid_for),
        seed=config.seed,
        scale=config.scale,
    )


def _build_learner(config: AGDCConfig, env: SourceSearchVec, *, device: str = "cpu", **settings: int) -> BaseAlgorithm:
    from evolvent.belief.learners import make_learner

    return make_learner(
        config.algorithm,
        env,
        lr=config.lr,
        gamma=config.gamma,
        width=config.width,
        seed=config.seed,
        device=device,
        **settings,
    )


def save_seeker(seeker: Seeker, folder: Path) -> None:
    """Writes the networks as safetensors and the settings as JSON: nothing in the folder is ever executed."""
    from evolvent.belief.learners import write_networks

    folder.mkdir(parents=True, exist_ok=True)
    write_networks(seeker.model, folder / _WEIGHTS_FILE)
    write_atomic(folder / _SETTINGS_FILE, json.dumps(as_dict(seeker.config), indent=1, sort_keys=True))


def load_seeker(folder: Path) -> Seeker:
    """Reads a policy that `save_seeker` wrote.

    Raises:
        ConfigError: the folder does not exist, or has other settings.
        ShapeMismatch: the networks have another shape or algorithm.
    """
    from evolvent.belief.learners import preserve_generators, read_networks

    if not (folder / _SETTINGS_FILE).is_file() or not (folder / _WEIGHTS_FILE).is_file():
        raise ConfigError(
            "the folder does not hold an AGDC policy",
            value=str(folder),
            expected=f"{_SETTINGS_FILE} and {_WEIGHTS_FILE}",
        )
    with boundary(ConfigError, f"{folder / _SETTINGS_FILE} holds no settings of AGDC"):
        config = resolve(AGDCConfig, preset=dict(json.loads((folder / _SETTINGS_FILE).read_text(encoding="utf-8"))))
    with preserve_generators():
        buffer_settings = (
            {} if config.algorithm == "ppo" else {"buffer_size": 1}
        )  # nothing is learned, so nothing is replayed
        world = build_world(config)
        any_task = Task(world.name, world.version, draw_spec(world.preset, 0))  # any task: none is played
        model = _build_learner(config, _build_envs(config, 1, [any_task]), device="cpu", **buffer_settings)
    read_networks(model, folder / _WEIGHTS_FILE)
    return Seeker(config, model)

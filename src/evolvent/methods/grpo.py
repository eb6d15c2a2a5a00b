"""GRPO and its family: episodes of one task are compared with each other, and no critic is needed.

GRPO: Shao et al., DeepSeekMath (arXiv 2402.03300). Dr.GRPO (2503.20783), DAPO (2503.14476), RLOO (2402.14740),
REINFORCE++ (2501.03262), GSPO (2507.18071), CISPO (2506.13585), Lite PPO (2508.08221), GiGPO (2505.10978): each
is a baseline, a scale and a loss (`rl/presets.py`). This file adds only DAPO's dynamic sampling: a group of
episodes with equal rewards gives no gradient, so further tasks are played until enough groups differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Choice
from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.identity import version_1_text
from evolvent.models.policy import Policy
from evolvent.plugins import installed_plugins, load_plugin, plugin_type_error
from evolvent.rl.advantages import episode_returns, overlong_penalty
from evolvent.rl.estimators import GroupEstimator
from evolvent.rl.presets import (
    DAPO,
    DR_GRPO,
    GIGPO,
    GRPO,
    GSPO,
    LITE_PPO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    RLOO,
    Preset,
    cispo,
)
from evolvent.rl.settings import Aggregate, Clip, Divergence, ImportanceCorrection, Reinforce, RLConfig
from evolvent.run import Run
from evolvent.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from evolvent.rl.scored_rollout import ScoredRollout
    from evolvent.rl.trainer import PolicyTrainer

__all__ = ["FAMILY", "GRPOConfig", "build_preset", "find_loss", "grpo", "loss_names"]

FAMILY: Mapping[str, Preset] = {
    "grpo": GRPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "rloo": RLOO,
    "reinforce_pp": REINFORCE_PP,
    "reinforce_pp_baseline": REINFORCE_PP_BASELINE,
    "gspo": GSPO,
    "lite_ppo": LITE_PPO,
    "gigpo": GIGPO,
}


def loss_names() -> tuple[str, ...]:
    """Returns the names of the losses that compare groups, those of other packages last."""
    builtin = tuple(FAMILY)
    builtin = (*builtin[: builtin.index("gspo") + 1], "cispo", *builtin[builtin.index("gspo") + 1 :])
    return (*builtin, *installed_plugins("losses", builtin))


def find_loss(name: str) -> Preset:
    """Returns the loss of a name, with its advantage estimator.

    Raises:
        ConfigError: the name is unknown, or a package's loss cannot be loaded or is not a `Preset`.
    """
    if name in FAMILY:
        return FAMILY[name]
    plugins = installed_plugins("losses", FAMILY)
    if name not in plugins:
        raise ConfigError([unknown_name_problem("loss", name, loss_names())])
    loaded = load_plugin("loss", plugins[name])
    if not isinstance(loaded, Preset) or not isinstance(loaded.estimator, GroupEstimator):
        expected = "an evolvent.rl.presets.Preset whose credit is a GroupCredit"
        raise plugin_type_error("loss", plugins[name], loaded, expected)
    return loaded


class GRPOConfig(ImportanceCorrection):
    """Settings of GRPO and its family; None: the value of the kind."""

    kind: Annotated[str, Choice(loss_names)] = Field(
        default="grpo", description="Loss of the family; it sets the defaults of the settings below."
    )
    kl: float | None = Field(
        default=None,
        ge=0,
        description="Coefficient of the KL to the policy at the start; grpo: 0.04. Raise it if replies degenerate.",
    )
    clip_range: float | None = Field(
        default=None, gt=0, description="Lower clip of the probability ratio (cispo: of its weight); most kinds: 0.2."
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        description="Upper clip of the ratio (cispo: of its weight); dapo: 0.28, else as the lower one.",
    )
    length: int | None = Field(
        default=None, ge=1, description="Constant number of tokens by which dr_grpo divides the sum over a sequence."
    )
    entropy_coef: float = Field(
        default=0.0, ge=0, description="Coefficient of the entropy bonus; raise it if replies become equal too early."
    )
    target_kl: float | None = Field(
        default=None, gt=0, description="KL from the sampling policy at which an iteration stops updating; none: never."
    )
    drop_equal: bool | None = Field(
        default=None,
        description="Leaves out groups whose episodes earned equal rewards, which give no gradient; dapo: true.",
    )
    refill: int = Field(
        default=0,
        ge=0,
        description="Largest number of times that tasks are drawn again to replace dropped groups (DAPO).",
    )
    overlong: int = Field(
        default=0,
        ge=0,
        description="Number of tokens before `overlong_limit` at which a length penalty begins (DAPO); 0: no penalty.",
    )
    overlong_limit: int = Field(
        default=256, ge=1, description="Number of written tokens of an episode at which the length penalty reaches -1."
    )
    practice: RLConfig = Field(default_factory=RLConfig, description="Settings of rollouts and updates.")

    @model_validator(mode="after")
    def _check_effects(self) -> GRPOConfig:
        algorithm, problems = published_preset(self), []
        if self.practice.group_size == 1 and algorithm.estimator != FAMILY["reinforce_pp"].estimator:
            problems.append(f"practice.group_size: {self.kind} compares episodes of a task; take 2 or more")
        if self.length is not None and self.kind != "dr_grpo":
            problems.append(f"length: {self.kind} does not divide by a constant; leave it out, or take dr_grpo")
        if (self.clip_range or self.clip_high) and isinstance(algorithm.loss.surrogate, Reinforce):
            problems.append(f"clip_range, clip_high: {self.kind} has no ratio to clip; leave them out")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def published_preset(config: GRPOConfig) -> Preset:
    """Returns estimator and loss of a kind as published; cispo takes the clip range of these settings."""
    if config.kind == "cispo":
        return cispo(low=config.clip_range or 1.0, high=config.clip_high or 0.28)
    return find_loss(config.kind)


def build_preset(config: GRPOConfig) -> Preset:
    """Builds estimator and loss from these settings."""
    low, high, algorithm = config.clip_range, config.clip_high, published_preset(config)
    loss, estimator = algorithm.loss, algorithm.estimator
    if not isinstance(estimator, GroupEstimator):
        raise ConfigError(f"{config.kind} does not compare groups", value=estimator)
    if isinstance(loss.surrogate, Clip) and (low or high):
        loss = replace(
            loss, surrogate=replace(loss.surrogate, low=low or loss.surrogate.low, high=high or loss.surrogate.high)
        )
    if config.kl is not None and estimator.kl_coef:
        estimator = replace(estimator, kl_coef=config.kl)
    elif config.kl is not None:
        loss = replace(loss, kl=Divergence(config.kl) if config.kl else None)
    if config.length is not None:
        loss = replace(loss, aggregate=Aggregate("constant_length", length=config.length))
    loss = replace(
        loss, importance_weights=config.importance_weights("sequence" if loss.ratio == "sequence" else "part")
    )
    if config.drop_equal is not None:
        estimator = replace(estimator, drop_equal=config.drop_equal)
    loss = replace(
        loss, entropy_coef=config.entropy_coef, target_kl=config.target_kl, temperature=config.practice.temperature
    )
    return replace(algorithm, estimator=estimator, loss=loss)


def grpo(policy: Policy, tasks: Sequence[Task], *, config: GRPOConfig, run: Run[Policy]) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Returns:
        the policy after the last iteration.
    """
    from evolvent.rl.trainer import RLSpec

    algorithm = build_preset(config)
    spec = RLSpec(
        config.kind,
        config.practice,
        algorithm.objective,
        settings=version_1_text(config),
        reference=algorithm.loss.kl is not None or "reference" in algorithm.estimator.needs,
        single_update_objective=algorithm.single_update_objective,
    )
    with run.train_rl(policy, spec, [task.id for task in tasks]) as trainer:
        for iteration in trainer.iterations():
            rollout = _penalize_overlong(trainer.score(sample_iteration(trainer, tasks, config)), config)
            trainer.update(rollout, rollout.estimate_advantages(algorithm.estimator))
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy


def sample_iteration(trainer: PolicyTrainer, tasks: Sequence[Task], config: GRPOConfig) -> list[Trajectory]:
    """Plays an iteration's episodes.

    Where dropped groups are to be replaced, it plays the next tasks, until enough groups differ, at most `refill`
    times.
    """
    trajectories = trainer.rollout(trainer.next_starts(tasks))
    for turn in range(1, config.refill + 1):
        num_missing = config.practice.tasks_per_iteration - _count_differing(trajectories)
        if num_missing <= 0:
            break
        more_trajectories = trainer.rollout(trainer.next_starts(tasks, turn=turn, count=num_missing))
        trainer.add_metrics({"refilled": float(turn)})
        trajectories += more_trajectories
    return trajectories


def _count_differing(trajectories: Sequence[Trajectory]) -> int:
    """Counts the tasks whose episodes earned different rewards."""
    rewards_by_group: dict[str | None, set[float]] = {}
    for trajectory in trajectories:
        if trajectory.score.raw is not None:
            rewards_by_group.setdefault(trajectory.group, set()).add(trajectory.score.raw)
    return sum(len(scores) > 1 for scores in rewards_by_group.values())


def _penalize_overlong(rollout: ScoredRollout, config: GRPOConfig) -> ScoredRollout:
    """Adds DAPO's soft penalty for long episodes, paid at their end."""
    if not config.overlong:
        return rollout
    lengths = np.bincount(rollout.batch.episode_of_token, minlength=len(episode_returns(rollout.batch)))
    penalty = overlong_penalty(lengths, limit=config.overlong_limit, cache=config.overlong)
    last_tokens = np.flatnonzero(np.append(np.diff(rollout.batch.episode_of_token) > 0, True))
    reward = rollout.batch.reward.copy()
    reward[last_tokens] += penalty
    return replace(rollout, batch=replace(rollout.batch, reward=reward))

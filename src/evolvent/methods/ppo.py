"""PPO, at the level of tokens, of whole actions, or of listed actions: the baselines of every other method here.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347); over tokens with a divergence in
the reward: Ouyang et al. (arXiv 2203.02155); over whole actions: Tan et al., TWOSOME (arXiv 2401.14151).

    level "token"   every token is a decision; gamma 1; -kl (log pi - log ref) is paid at each, the outcome at the last.
    level "action"  an action is one decision: one value (of its observation), one ratio (the product of its tokens').
    level "listed"  TWOSOME: a decision is one of the actions that the world lists, with probability
                    `softmax_a(sum_j log p(w_j) / n(a))`. It is evaluated so too (`LocalBackend(action_level=True)`).

The divisor n(a) is `normalization`: the words of the action (TWOSOME's word normalization, the default), its tokens
(token normalization), or 1 ("sum": TWOSOME without normalization, and GLAM, Carta et al., arXiv 2302.02662). Longer
actions are less likely under "sum".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from evolvent.identity import version_1_text
from evolvent.models.policy import Policy
from evolvent.rl.estimators import GaeEstimator
from evolvent.rl.presets import Preset
from evolvent.rl.settings import (
    Aggregate,
    ChoiceConfig,
    Clip,
    ImportanceCorrection,
    PolicyGradient,
    RLConfig,
    ValueLoss,
)
from evolvent.run import Run
from evolvent.trajectory import Task

if TYPE_CHECKING:
    from evolvent.agents.candidates import CandidateDivisor
    from evolvent.learn.objectives import Objective

__all__ = ["TOKEN", "PPOConfig", "build_objective", "build_preset", "ppo"]


class PPOConfig(ImportanceCorrection):
    """Settings of PPO."""

    level: Literal["token", "action", "listed"] = Field(
        default="action",
        description="Unit of a decision: a token, a whole action, or an action chosen from the world's list (TWOSOME).",
    )
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount between actions.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    clip_range: float = Field(default=0.2, gt=0, description="Clip range of the probability ratio and of values.")
    clip_high: float | None = Field(default=None, gt=0, description="Upper clip of the ratio; none: as `clip_range`.")
    entropy_coef: float = Field(default=1e-2, ge=0, description="Coefficient of the entropy bonus.")
    value_coef: float = Field(
        default=0.5, gt=0, description="Coefficient of the value loss where the critic shares the policy's trunk."
    )
    target_kl: float | None = Field(
        default=0.02, gt=0, description="KL from the sampling policy at which an iteration stops updating; none: never."
    )
    kl: float = Field(
        default=0.0,
        ge=0,
        description="Coefficient of log pi - log reference, subtracted from the reward of each token.",
    )
    whiten: bool = Field(default=True, description="Normalizes advantages to mean 0 and variance 1 over an iteration.")
    normalization: Literal["words", "tokens", "sum"] = Field(
        default="words",
        description="Divisor of a listed action's log-probability: its words, its tokens, or 1 (sum).",
    )
    practice: RLConfig = Field(default_factory=RLConfig, description="Settings of rollouts and updates.")

    @model_validator(mode="after")
    def _check_listed(self) -> PPOConfig:
        if self.level == "listed" and (self.kl or self.practice.restrict_to_admissible or self.practice.top_k):
            raise ValueError(
                "kl, restrict_to_admissible and top_k cannot be used when the policy chooses among listed actions"
            )
        if self.level != "listed" and self.normalization != "words":
            raise ValueError(f"normalization divides listed actions; got it with level {self.level}: leave it out")
        if self.level == "listed" and self.importance_correction != "none":
            raise ValueError(
                "importance_correction cannot be used when the policy chooses among listed actions; leave it out"
            )
        return self

    @property
    def candidate_divisor(self) -> CandidateDivisor:
        """Returns what the log-probability of a listed action is divided by."""
        return "one" if self.normalization == "sum" else self.normalization


TOKEN = {"level": "token", "gamma": 1.0, "kl": 0.05, "entropy_coef": 0.0, "target_kl": None, "whiten": True}
"""Settings of PPO as in learning from human feedback."""


def build_preset(config: PPOConfig) -> Preset:
    """Builds estimator and loss from these settings."""
    is_action_level = config.level != "token"
    level: Literal["action", "part"] = "action" if is_action_level else "part"
    has_separate_critic = config.practice.critic == "separate"
    return Preset(
        f"ppo_{config.level}",
        GaeEstimator(
            config.gamma,
            config.gae_lambda,
            token_lambda=config.gae_lambda,
            level=level,
            kl_coef=config.kl,
            whiten=config.whiten,
        ),
        PolicyGradient(
            ratio=level,
            surrogate=Clip(config.clip_range, config.clip_high or config.clip_range),
            aggregate=Aggregate("unit_mean", level="action") if is_action_level else Aggregate(),
            entropy_coef=config.entropy_coef,
            value_loss=None
            if has_separate_critic
            else ValueLoss(config.value_coef, clip=config.clip_range, level=level),
            importance_weights=config.importance_weights(),
            target_kl=config.target_kl,
            temperature=config.practice.temperature,
        ),
    )


def build_objective(config: PPOConfig) -> Objective:
    """Builds the objective from these settings."""
    from evolvent.rl.candidates import choice_objective

    if config.level != "listed":
        return build_preset(config).objective
    value_loss = ValueLoss(config.value_coef, clip=config.clip_range) if config.practice.critic == "shared" else None
    return choice_objective(
        ChoiceConfig(
            Clip(config.clip_range, config.clip_high or config.clip_range),
            config.entropy_coef,
            value_loss,
            config.target_kl,
            config.practice.temperature,
        )
    )


def ppo(policy: Policy, tasks: Sequence[Task], *, config: PPOConfig, run: Run[Policy]) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Returns:
        the policy after the last iteration.
    """
    from evolvent.rl.critic import critic_objective
    from evolvent.rl.trainer import RLSpec

    algorithm = build_preset(config)
    critic_loss = critic_objective(
        ValueLoss(clip=config.clip_range, level="part" if config.level == "token" else "action")
    )
    spec = RLSpec(
        algorithm.name,
        config.practice,
        build_objective(config),
        critic_loss,
        reference=config.kl > 0,
        action_level=config.level == "listed",
        candidate_divisor=config.candidate_divisor,
        settings=version_1_text(config),
    )
    with run.train_rl(policy, spec, [task.id for task in tasks]) as trainer:
        for iteration in trainer.iterations():
            rollout = trainer.score(trainer.rollout(trainer.next_starts(tasks)))
            trainer.update(rollout, rollout.estimate_advantages(algorithm.estimator))
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy

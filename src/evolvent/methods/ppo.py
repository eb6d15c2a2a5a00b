"""PPO, at the level of tokens, of whole actions, or of listed actions: the baselines of every other method here.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347); over tokens with a divergence in the
reward: Ouyang et al. (arXiv 2203.02155); over whole actions: Tan et al., TWOSOME (arXiv 2401.14151).

    level "token"   every token is a decision; gamma 1; -kl (log pi - log ref) is paid at each, the outcome at the last.
    level "action"  an action is one decision: one value (of its observation), one ratio (the product of its tokens').
    level "listed"  TWOSOME: a decision is one of the actions that the world lists, with probability
                    `softmax_a(sum_j log p(w_j) / words(a))`. It is measured so too (`LocalVerbs(deciding=True)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from evolvent.identity import version_1_text
from evolvent.learn.objectives import Objective
from evolvent.rl.candidates import Choice, choice_objective
from evolvent.rl.critic import critic
from evolvent.rl.estimators import GaeCredit
from evolvent.rl.objective import Aggregate, Clip, Corrected, PolicyGradient, ValueLoss
from evolvent.rl.presets import Preset
from evolvent.rl.trainer import PracticeConfig, Setup
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["PPO", "TOKEN", "objective", "ppo", "preset"]

P = TypeVar("P")


class PPO(Corrected):
    """What can be chosen about PPO."""

    level: Literal["token", "action", "listed"] = Field(default="action", description="what a decision is")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount between actions")
    lam: float = Field(default=0.95, ge=0, le=1, description="of generalised advantage estimation")
    clip: float = Field(default=0.2, gt=0, description="of the ratio, and of values")
    clip_high: float | None = Field(default=None, gt=0, description="the ratio's upper clip; none: the same")
    entropy: float = Field(default=1e-2, ge=0, description="coefficient of the entropy bonus")
    value: float = Field(default=0.5, gt=0, description="coefficient of the value loss, on a shared trunk")
    stop_kl: float | None = Field(default=0.02, gt=0, description="divergence that ends an iteration's passes")
    kl: float = Field(default=0.0, ge=0, description="times log pi - log reference is taken off every token's reward")
    whiten: bool = Field(default=False, description="advantages to mean 0 and variance 1 over an iteration")
    practice: PracticeConfig = Field(default_factory=PracticeConfig, description="playing and improving")

    @model_validator(mode="after")
    def _agree(self) -> PPO:
        if self.level == "listed" and (self.kl or self.practice.choose or self.practice.top_k):
            raise ValueError("a choice among listed actions has no kl, choose or top_k")
        if self.level == "listed" and self.correct != "none":
            raise ValueError("a choice among listed actions is not corrected: leave correct out")
        return self


TOKEN = {"level": "token", "gamma": 1.0, "kl": 0.05, "entropy": 0.0, "stop_kl": None, "whiten": True}
"""Settings of PPO as in learning from human feedback."""


def preset(config: PPO) -> Preset:
    """Credit and loss of these settings."""
    whole = config.level != "token"
    at: Literal["action", "part"] = "action" if whole else "part"
    own = config.practice.critic == "own"
    return Preset(
        f"ppo_{config.level}",
        GaeCredit(config.gamma, config.lam, lam_part=config.lam, level=at, kl=config.kl, whiten=config.whiten),
        PolicyGradient(
            ratio=at,
            surrogate=Clip(config.clip, config.clip_high or config.clip),
            aggregate=Aggregate("unit_mean", level="action") if whole else Aggregate(),
            entropy=config.entropy,
            value=None if own else ValueLoss(config.value, clip=config.clip, level=at),
            behaviour=config.behaviour(),
            stop_kl=config.stop_kl,
            temperature=config.practice.temperature,
        ),
    )


def objective(config: PPO) -> Objective:
    """What is minimised with these settings."""
    if config.level != "listed":
        return preset(config).objective
    value = ValueLoss(config.value, clip=config.clip) if config.practice.critic == "shared" else None
    return choice_objective(
        Choice(
            Clip(config.clip, config.clip_high or config.clip),
            config.entropy,
            value,
            config.stop_kl,
            config.practice.temperature,
        )
    )


def ppo(policy: P, tasks: Sequence[Task], *, config: PPO, run: Run[P]) -> P:
    """Practise on these tasks. The handed-in policy is left as it was.

    Returns:
        the policy after the last iteration.
    """
    chosen = preset(config)
    values = critic(ValueLoss(clip=config.clip, level="part" if config.level == "token" else "action"))
    setup = Setup(
        chosen.name,
        config.practice,
        objective(config),
        values,
        reference=config.kl > 0,
        deciding=config.level == "listed",
        settings=version_1_text(config),
    )
    with run.practise(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.rounds():
            seen = practice.look(practice.play(practice.starts(tasks)))
            practice.improve(seen, seen.credit(chosen.credit))
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result

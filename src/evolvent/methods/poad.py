"""POAD: policy optimization with action decomposition, advantages for every token of an action.

Wen et al., "Reinforcing Language Agents via Policy Optimization with Action Decomposition" (arXiv 2405.15821).

An action of an agent is a sequence of tokens. Backup with action decomposition gives every prefix a value that
is consistent with those of whole actions: no reward and no discount inside an action (`token_gamma = 1`),

    Q(o, w_<j, w_j) <- V(o, w_<=j)                inside,
    Q(o, w_<n, w_n) <- r + gamma V(o', ())        at its last token,

so that the advantages of an action's tokens add up to the action's own, and a search over V^n actions becomes
one over n x V tokens. The discount of `methods/ntpo.py` between tokens breaks that: its error grows with 1 -
gamma^(n-j). The released code applies lambda inside an action too, and whitens advantages; so do these defaults
(`token_lambda` .95, `whiten`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from evolvent.identity import version_1_text
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Advantages, decomposed_gae, whiten
from evolvent.rl.settings import Clip, ImportanceCorrection, PolicyGradient, RLConfig, ValueLoss
from evolvent.run import Run
from evolvent.trajectory import Task

if TYPE_CHECKING:
    from evolvent.rl.scored_rollout import ScoredRollout

__all__ = ["POADConfig", "estimate_advantages", "poad"]


class POADConfig(ImportanceCorrection):
    """Settings of POAD."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount between actions.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda between actions.")
    token_gamma: float = Field(
        default=1.0, ge=0, le=1, description="Discount between the tokens of an action; 1 is the paper's decomposition."
    )
    token_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda between the tokens of an action.")
    clip_range: float = Field(default=0.2, gt=0, description="Clip range of a token's probability ratio and of values.")
    entropy_coef: float = Field(default=1e-4, ge=0, description="Coefficient of the entropy bonus.")
    value_coef: float = Field(
        default=0.5, gt=0, description="Coefficient of the value loss where the critic shares the policy's trunk."
    )
    target_kl: float | None = Field(
        default=0.02, gt=0, description="KL from the sampling policy at which an iteration stops updating; none: never."
    )
    whiten: bool = Field(default=True, description="Normalizes advantages to mean 0 and variance 1 over an iteration.")
    practice: RLConfig = Field(default_factory=RLConfig, description="Settings of rollouts and updates.")


def estimate_advantages(rollout: ScoredRollout, config: POADConfig) -> Advantages:
    """Estimates the advantage of every token, and the return that its prefix's value is fitted to."""
    advantages = decomposed_gae(
        rollout.values,
        rollout.batch,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        token_gamma=config.token_gamma,
        token_lambda=config.token_lambda,
    )
    return replace(advantages, advantage=whiten(advantages.advantage)) if config.whiten else advantages


def poad(policy: Policy, tasks: Sequence[Task], *, config: POADConfig, run: Run[Policy], name: str = "poad") -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Returns:
        the policy after the last iteration.
    """
    from evolvent.rl.critic import critic_objective
    from evolvent.rl.objective import policy_gradient
    from evolvent.rl.trainer import RLSpec

    value_loss = ValueLoss(config.value_coef, clip=config.clip_range)
    loss = PolicyGradient(
        surrogate=Clip(config.clip_range, config.clip_range),
        entropy_coef=config.entropy_coef,
        target_kl=config.target_kl,
        value_loss=value_loss if config.practice.critic == "shared" else None,
        importance_weights=config.importance_weights(),
        temperature=config.practice.temperature,
    )
    spec = RLSpec(
        name,
        config.practice,
        policy_gradient(loss, name=name),
        critic_objective(value_loss),
        settings=version_1_text(config),
    )
    with run.train_rl(policy, spec, [task.id for task in tasks]) as trainer:
        for iteration in trainer.iterations():
            rollout = trainer.score(trainer.rollout(trainer.next_starts(tasks)))
            trainer.update(rollout, estimate_advantages(rollout, config))
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy

"""POAD: policy optimisation with action decomposition, credit for every token of an action.

Wen et al., "Reinforcing Language Agents via Policy Optimization with Action Decomposition" (arXiv 2405.15821).

An action of an agent is a sequence of tokens. Backup with action decomposition gives every prefix a value that is
consistent with those of whole actions: no reward and no discount inside an action (`gamma_part = 1`),

    Q(o, w_<j, w_j) <- V(o, w_<=j)                inside,
    Q(o, w_<n, w_n) <- r + gamma V(o', ())        at its last token,

so that the advantages of an action's tokens add up to the action's own, and a search over V^n actions becomes one over
n x V tokens. The discount of `methods/ntpo.py` between tokens breaks that: its error grows with 1 - gamma^(n-j). The
released code applies lambda inside an action too (`lam_part`, as published); 1 does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from evolvent.identity import version_1_text
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Advantages, decomposed_gae, whiten
from evolvent.rl.critic import critic_objective
from evolvent.rl.objective import Clip, ImportanceCorrection, PolicyGradient, ValueLoss, policy_gradient
from evolvent.rl.scored_rollout import ScoredRollout
from evolvent.rl.trainer import RLConfig, RLSpec
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["POAD", "credit", "poad"]


class POAD(ImportanceCorrection):
    """What can be chosen about POAD."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="discount between actions")
    lam: float = Field(default=0.95, ge=0, le=1, description="lambda between actions")
    gamma_part: float = Field(default=1.0, ge=0, le=1, description="discount between the tokens of an action")
    lam_part: float = Field(default=0.95, ge=0, le=1, description="lambda between the tokens of an action")
    clip: float = Field(default=0.2, gt=0, description="of a token's ratio, and of values")
    entropy: float = Field(default=1e-4, ge=0, description="coefficient of the entropy bonus")
    value: float = Field(default=0.5, gt=0, description="coefficient of the value loss, on a shared trunk")
    stop_kl: float | None = Field(default=0.02, gt=0, description="divergence that ends an iteration's passes")
    whiten: bool = Field(default=False, description="advantages to mean 0 and variance 1 over an iteration")
    practice: RLConfig = Field(default_factory=RLConfig, description="playing and improving")


def credit(seen: ScoredRollout, config: POAD) -> Advantages:
    """The advantage of every token, and the return that its prefix's value is fitted to."""
    found = decomposed_gae(
        seen.values,
        seen.batch,
        gamma=config.gamma,
        gae_lambda=config.lam,
        token_gamma=config.gamma_part,
        token_lambda=config.lam_part,
    )
    return replace(found, advantage=whiten(found.advantage)) if config.whiten else found


def poad(policy: Policy, tasks: Sequence[Task], *, config: POAD, run: Run[Policy], name: str = "poad") -> Policy:
    """Practise on these tasks. The handed-in policy is left as it was.

    Returns:
        the policy after the last iteration.
    """
    fitted = ValueLoss(config.value, clip=config.clip)
    loss = PolicyGradient(
        surrogate=Clip(config.clip, config.clip),
        entropy_coef=config.entropy,
        target_kl=config.stop_kl,
        value_loss=fitted if config.practice.critic == "shared" else None,
        importance_weights=config.importance_weights(),
        temperature=config.practice.temperature,
    )
    setup = RLSpec(
        name,
        config.practice,
        policy_gradient(loss, name=name),
        critic_objective(fitted),
        settings=version_1_text(config),
    )
    with run.train_rl(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.iterations():
            seen = practice.score(practice.rollout(practice.next_starts(tasks)))
            practice.update(seen, credit(seen, config))
            if practice.should_evaluate():
                run.evaluate(practice.policy, iteration)
    result: Policy = practice.policy
    return result

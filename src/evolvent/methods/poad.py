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
from typing import TypeVar

from pydantic import Field

from evolvent.identity import version_1_text
from evolvent.rl.advantages import Credit, decomposed_gae, whiten
from evolvent.rl.critic import critic
from evolvent.rl.objective import Clip, Corrected, PolicyGradient, ValueLoss, policy_gradient
from evolvent.rl.scored_rollout import Seen
from evolvent.rl.trainer import PracticeConfig, Setup
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["POAD", "credit", "poad"]

P = TypeVar("P")


class POAD(Corrected):
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
    practice: PracticeConfig = Field(default_factory=PracticeConfig, description="playing and improving")


def credit(seen: Seen, config: POAD) -> Credit:
    """The advantage of every token, and the return that its prefix's value is fitted to."""
    found = decomposed_gae(
        seen.values,
        seen.flat,
        gamma=config.gamma,
        lam=config.lam,
        gamma_part=config.gamma_part,
        lam_part=config.lam_part,
    )
    return replace(found, advantage=whiten(found.advantage)) if config.whiten else found


def poad(policy: P, tasks: Sequence[Task], *, config: POAD, run: Run[P], name: str = "poad") -> P:
    """Practise on these tasks. The handed-in policy is left as it was.

    Returns:
        the policy after the last iteration.
    """
    fitted = ValueLoss(config.value, clip=config.clip)
    loss = PolicyGradient(
        surrogate=Clip(config.clip, config.clip),
        entropy=config.entropy,
        stop_kl=config.stop_kl,
        value=fitted if config.practice.critic == "shared" else None,
        behaviour=config.behaviour(),
        temperature=config.practice.temperature,
    )
    setup = Setup(
        name, config.practice, policy_gradient(loss, name=name), critic(fitted), settings=version_1_text(config)
    )
    with run.practise(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.rounds():
            seen = practice.look(practice.play(practice.starts(tasks)))
            practice.improve(seen, credit(seen, config))
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result

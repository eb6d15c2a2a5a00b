"""ETPO: entropy-regularised token-level policy optimisation, soft values of every next token.

Wen et al., "Entropy-Regularized Token-Level Policy Optimization for Language Agent Reinforcement" (arXiv 2402.06700).

The policy is to earn reward and stay near a reference rho, here the policy that practice begins with. The soft backup
with action decomposition (sBAD) gives every token its value; with `v(prefix) = E_{w ~ pi} Q(prefix, w) - beta KL(pi ||
rho)` at that prefix, under a target network,

    Q(o, w_<j, w_j) <- v(o, w_<=j)                inside an action,
    Q(o, w_<n, w_n) <- r + gamma v(o', ())        at its last token,

and the policy moves to `rho exp(Q / beta) / Z` at every token: by the chain rule of the divergence the product of these
is the optimum of whole actions. One step is what is published: a reward then comes one token nearer to the beginning in
an iteration. `lam` and `lam_part` let what came of an action reach back at once (Q^pi(lambda), Harutyunyan et al.,
arXiv 1602.04951): the same fixed point, sooner.

Q is a language model of its own: `Q(prefix, w) = V(prefix) + l_q(w) - l_rho(w)`, with l the logits, so that it is 0
everywhere at first. Distributions over the vocabulary are computed when they are used, a micro-batch at a time; none is
stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from evolvent.config import Config
from evolvent.identity import version_1_text
from evolvent.learn.forward import calm, outputs, target_logits
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import Objective, Outputs, given
from evolvent.learn.packing import Batch
from evolvent.models.tuned import light_copy
from evolvent.rl.advantages import Credit, q_targets
from evolvent.rl.scored_rollout import Seen, gathered, with_final_values, with_finals
from evolvent.rl.scoring import said_of
from evolvent.rl.soft_values import expected_soft_value, soft_policy_kl, td_loss
from evolvent.rl.trainer import Practice, PracticeConfig, Setup
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["ETPO", "PUBLISHED", "Networks", "etpo"]

P = TypeVar("P")


class ETPO(Config):
    """What can be chosen about ETPO."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="discount between actions")
    beta: float = Field(default=0.3, gt=0, description="how strongly the policy is held to the reference")
    polyak: float = Field(default=0.5, ge=0, lt=1, description="share of the target network that an update keeps")
    lam: float = Field(default=0.0, ge=0, le=1, description="how far what came of an action reaches back; 0: one step")
    lam_part: float = Field(default=0.0, ge=0, le=1, description="the same inside an action; 0: one token")
    huber: float | None = Field(default=None, gt=0, description="errors of Q beyond it count linearly; none: none do")
    practice: PracticeConfig = Field(default_factory=PracticeConfig, description="playing and improving")


PUBLISHED: Mapping[str, object] = {"beta": 0.01, "polyak": 0.995, "practice": {"temperature": 0.5, "top_k": 50}}


class Networks:
    """Q, its target, and the reference, beside the policy that practises."""

    def __init__(self, config: ETPO) -> None:
        self.config = config
        self.learner: Learner
        self.target: Any
        self.moved: list[str]
        self.rho: Any

    def join(self, practice: Practice) -> None:
        """Make the networks of a practice, so that they are kept and come back with it."""
        self.rho = practice.first.model
        q = Objective("etpo_q", self._q_loss, _targets, ("logits", "values"), settings=(("huber", self.config.huber),))
        self.learner = practice.learns("q", practice.first.clone(), q)
        learning = self.learner.policy.model
        self.moved = [name for name, weight in learning.named_parameters() if weight.requires_grad]
        self.target = light_copy(learning, own=self.moved).requires_grad_(False)  # below an adapter all are one
        practice.follows("target", self.target)

    def _q_loss(self, found: Outputs, batch: Batch) -> tuple[Tensor, int]:
        logit = given(found.logits, "logits").float().gather(-1, batch.targets[:, None]).squeeze(-1)
        chosen = given(found.values, "values") + logit - batch.columns["rho_logit"]
        return td_loss(chosen, batch.columns["returns"], huber=self.config.huber).sum(), batch.count

    def policy_loss(self, found: Outputs, batch: Batch) -> tuple[Tensor, int]:
        """`KL(pi || rho exp(Q / beta) / Z)` at every token; what V adds is in Z."""
        own = given(found.logits, "logits")
        heat = self.config.practice.temperature
        with torch.no_grad(), calm(self.learner.policy.model):
            rho, q = target_logits(self.rho, batch).float(), target_logits(self.learner.policy.model, batch).float()
        logpi, logrho = (within(logits, batch).div(heat).log_softmax(-1) for logits in (own, rho))
        return soft_policy_kl(logpi, logrho, q - rho, beta=self.config.beta).sum(), batch.count

    def said(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Under the target network the soft value of every prefix and Q of its target; the target's logit under rho."""
        heat, rho = self.config.practice.temperature, target_logits(self.rho, batch).float()
        lagging = outputs(self.target, batch, needs=("logits", "values"))
        q = given(lagging.values, "values")[:, None] + given(lagging.logits, "logits").float() - rho
        logpi, logrho = (within(x, batch).div(heat).log_softmax(-1) for x in (target_logits(model, batch), rho))
        soft = expected_soft_value(q, logpi, logrho, beta=self.config.beta)
        chosen, rho_logit = (values.gather(-1, batch.targets[:, None]).squeeze(-1) for values in (q, rho))
        return {"soft": soft, "chosen": chosen, "rho_logit": rho_logit}

    def follow(self, updates: int) -> None:
        """The target network comes nearer to Q, as after so many updates."""
        keep = self.config.polyak**updates
        lagging, ahead = (dict(model.named_parameters()) for model in (self.target, self.learner.policy.model))
        for name in self.moved:
            lagging[name].lerp_(ahead[name].detach(), 1.0 - keep)


def within(logits: Tensor, batch: Batch) -> Tensor:
    """The logits `[N, V]` in float32, -inf for words that could not be drawn (top-k, listed actions)."""
    support = batch.columns.get("support")
    if support is None:
        return logits.float()
    possible = torch.zeros_like(logits, dtype=torch.int32)
    possible.scatter_add_(-1, support.long().clamp(min=0), (support >= 0).int())
    drawn = (possible > 0) | ~(support >= 0).any(-1, keepdim=True)  # after a final observation all are
    return logits.float().masked_fill(~drawn, -torch.inf)


def _targets(batch: Batch) -> int:
    return batch.count


def etpo(policy: P, tasks: Sequence[Task], *, config: ETPO, run: Run[P]) -> P:
    """Practise on these tasks. The handed-in policy is left as it was: it is the reference.

    Returns:
        the policy after the last iteration.
    """
    networks = Networks(config)
    objective = Objective("etpo", networks.policy_loss, _targets, ("logits",), settings=(("beta", config.beta),))
    setup = Setup("etpo", config.practice, objective, settings=version_1_text(config), prepare=networks.join)
    with run.practise(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.rounds():
            seen = practice.look(practice.play(practice.starts(tasks)))
            backup(practice, seen, networks)
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result


def backup(practice: Practice, seen: Seen, networks: Networks) -> None:
    """One iteration: targets by the soft backup, Q towards them, the target network after it, then the policy."""
    policy = practice.policy
    chains, flat, read = with_finals(
        seen.chains,
        seen.flat,
        seen.episodes,
        dialect=policy.dialect,
        context=policy.context,
        shorter=practice.shorter,
    )
    view = practice.view
    columns = said_of(policy.model, chains, networks.said, tokens=view.micro, sharing=view.sharing)
    soft, chosen, rho_logit = (gathered(columns, name, flat) for name in ("soft", "chosen", "rho_logit"))
    flat = with_final_values(flat, columns, read, name="soft")
    config = networks.config
    targets = q_targets(soft, chosen, flat, gamma=config.gamma, lam=config.lam, lam_part=config.lam_part)
    before = networks.learner.updates
    practice.passes_of("q", seen, {"returns": targets, "rho_logit": rho_logit})
    networks.follow(networks.learner.updates - before)
    practice.note({"soft_value": float(soft.mean())})
    practice.improve(replace(seen, flat=flat), Credit(targets - chosen, targets))

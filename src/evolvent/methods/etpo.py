"""ETPO: entropy-regularized token-level policy optimization, soft values of every next token.

Wen et al., "Entropy-Regularized Token-Level Policy Optimization for Language Agent Reinforcement" (arXiv
2402.06700).

The policy is to earn reward and stay near a reference rho, here the initial policy. The soft backup with action
decomposition (sBAD) gives every token its value; with `v(prefix) = E_{w ~ pi} Q(prefix, w) - beta KL(pi ||
rho)` at that prefix, under a target network,

    Q(o, w_<j, w_j) <- v(o, w_<=j)                inside an action,
    Q(o, w_<n, w_n) <- r + gamma v(o', ())        at its last token,

and the policy moves to `rho exp(Q / beta) / Z` at every token: by the chain rule of the divergence the product
of these is the optimum of whole actions. The published backup is one step: a reward then moves one token nearer
to the beginning in an iteration. `gae_lambda` and `token_lambda` let the outcome of an action reach back at
once (Q^pi(lambda), Harutyunyan et al., arXiv 1602.04951): the same fixed point, sooner. The defaults are .95; with
the published backup of one step (`PUBLISHED`) nothing was learned in the study of credit.

Q is a separate language model: `Q(prefix, w) = V(prefix) + l_q(w) - l_rho(w)`, with l the logits, so that it is
0 everywhere at first. Distributions over the vocabulary are computed when they are used, a micro-batch at a
time; none is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.config import Config
from evolvent.identity import version_1_text
from evolvent.learn.token_sequences import Batch
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Advantages, q_targets
from evolvent.rl.settings import RLConfig
from evolvent.run import Run
from evolvent.trajectory import Task

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from evolvent.learn.learner import Learner
    from evolvent.learn.objectives import Outputs
    from evolvent.rl.scored_rollout import ScoredRollout
    from evolvent.rl.trainer import PolicyTrainer

__all__ = ["PUBLISHED", "ETPOConfig", "Networks", "etpo"]


class ETPOConfig(Config):
    """Settings of ETPO."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount between actions.")
    beta: float = Field(
        default=0.3,
        gt=0,
        description="Coefficient of the KL to the reference in the value of each token; larger: closer to it.",
    )
    polyak: float = Field(
        default=0.5, ge=0, lt=1, description="Share of the target network's old weights that an update keeps."
    )
    gae_lambda: float = Field(
        default=0.95, ge=0, le=1, description="Lambda of the backup between actions; 0: one step."
    )
    token_lambda: float = Field(
        default=0.95, ge=0, le=1, description="Lambda of the backup inside an action; 0: one token."
    )
    huber: float | None = Field(
        default=None, gt=0, description="Threshold of the Huber loss of Q; none: squared error."
    )
    practice: RLConfig = Field(default_factory=RLConfig, description="Settings of rollouts and updates.")


PUBLISHED: Mapping[str, object] = {
    "beta": 0.01,
    "gae_lambda": 0.0,
    "token_lambda": 0.0,
    "polyak": 0.995,
    "practice": {"temperature": 0.5, "top_k": 50},
}


class Networks:
    """Q, its target network, and the reference, beside the policy that is trained."""

    def __init__(self, config: ETPOConfig) -> None:
        self.config = config
        self.learner: Learner
        self.target: Any
        self.moved: list[str]
        self.rho: Any

    def create(self, trainer: PolicyTrainer) -> None:
        """Creates the networks of a training, so that they are saved and restored with it."""
        from evolvent.learn.objectives import Objective
        from evolvent.models.tuned import light_copy

        self.rho = trainer.initial_policy.model
        q = Objective(
            "etpo_q", self._q_loss, _count_targets, ("logits", "values"), settings=(("huber", self.config.huber),)
        )
        self.learner = trainer.add_network("q", trainer.initial_policy.clone(), q)
        learning = self.learner.policy.model
        self.moved = [name for name, weight in learning.named_parameters() if weight.requires_grad]
        self.target = light_copy(learning, trained_names=self.moved).requires_grad_(
            False
        )  # below an adapter all are one
        trainer.track_weights("target", self.target)

    def _q_loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
        from evolvent.learn.objectives import require_output
        from evolvent.rl.soft_values import td_loss

        logit = require_output(outputs.logits, "logits").float().gather(-1, batch.targets[:, None]).squeeze(-1)
        q_values = require_output(outputs.values, "values") + logit - batch.columns["rho_logit"]
        return td_loss(q_values, batch.columns["returns"], huber=self.config.huber).sum(), batch.count

    def policy_loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
        """Computes `KL(pi || rho exp(Q / beta) / Z)` at every token; the part of V is in Z."""
        import torch

        from evolvent.learn.forward import eval_mode, target_logits
        from evolvent.learn.objectives import require_output
        from evolvent.rl.soft_values import mask_impossible, soft_policy_kl

        policy_logits = require_output(outputs.logits, "logits")
        temperature = self.config.practice.temperature
        with torch.no_grad(), eval_mode(self.learner.policy.model):
            rho, q = target_logits(self.rho, batch).float(), target_logits(self.learner.policy.model, batch).float()
        logpi, logrho = (
            mask_impossible(logits, batch).div(temperature).log_softmax(-1) for logits in (policy_logits, rho)
        )
        return soft_policy_kl(logpi, logrho, q - rho, beta=self.config.beta).sum(), batch.count

    def compute_values(self, model: PreTrainedModel, batch: Batch) -> dict[str, Tensor]:
        """Computes the soft value of every prefix and Q of its target under the target network; the target's logit
        under rho.
        """
        from evolvent.learn.forward import compute_outputs, target_logits
        from evolvent.learn.objectives import require_output
        from evolvent.rl.soft_values import expected_soft_value, mask_impossible

        temperature, rho = self.config.practice.temperature, target_logits(self.rho, batch).float()
        target_outputs = compute_outputs(self.target, batch, needs=("logits", "values"))
        q = (
            require_output(target_outputs.values, "values")[:, None]
            + require_output(target_outputs.logits, "logits").float()
            - rho
        )
        logpi, logrho = (
            mask_impossible(logits, batch).div(temperature).log_softmax(-1)
            for logits in (target_logits(model, batch), rho)
        )
        soft = expected_soft_value(q, logpi, logrho, beta=self.config.beta)
        target_q, rho_logit = (values.gather(-1, batch.targets[:, None]).squeeze(-1) for values in (q, rho))
        return {"soft": soft, "chosen": target_q, "rho_logit": rho_logit}

    def update(self, trainer: PolicyTrainer, rollout: ScoredRollout, backup: SoftBackup) -> None:
        """Trains Q towards the targets of a backup, and moves the target network after it."""
        updates_before = self.learner.updates
        trainer.update_network("q", rollout, backup.columns)
        self.update_target(self.learner.updates - updates_before)

    def update_target(self, updates: int) -> None:
        """Moves the target network towards Q, as after this number of updates."""
        decay = self.config.polyak**updates
        target_weights, q_weights = (
            dict(model.named_parameters()) for model in (self.target, self.learner.policy.model)
        )
        for name in self.moved:
            target_weights[name].lerp_(q_weights[name].detach(), 1.0 - decay)


def _count_targets(batch: Batch) -> int:
    return batch.count


def etpo(policy: Policy, tasks: Sequence[Task], *, config: ETPOConfig, run: Run[Policy]) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged and is the reference.

    Returns:
        the policy after the last iteration.
    """
    from evolvent.learn.objectives import Objective
    from evolvent.rl.trainer import RLSpec

    networks = Networks(config)
    objective = Objective("etpo", networks.policy_loss, _count_targets, ("logits",), settings=(("beta", config.beta),))
    spec = RLSpec("etpo", config.practice, objective, settings=version_1_text(config), on_start=networks.create)
    with run.train_rl(policy, spec, [task.id for task in tasks]) as trainer:
        for iteration in trainer.iterations():
            rollout = trainer.score(trainer.rollout(trainer.next_starts(tasks)))
            with trainer.reference_on_device():
                backup = run_backup(trainer, rollout, networks)
                networks.update(trainer, rollout, backup)
                trainer.update(backup.rollout, backup.advantages)
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy


@dataclass(frozen=True, slots=True)
class SoftBackup:
    """The result of one soft backup over a scored rollout.

    Attributes:
        rollout: the rollout with its final values.
        advantages: targets minus Q, and the targets as returns.
        columns: of Q's training: targets and the logits of the reference, `[num_tokens]` each.
    """

    rollout: ScoredRollout
    advantages: Advantages
    columns: Mapping[str, NDArray[np.generic]]


def run_backup(trainer: PolicyTrainer, rollout: ScoredRollout, networks: Networks) -> SoftBackup:
    """Computes the targets of Q by the soft backup, under the target network."""
    from evolvent.rl.scored_rollout import (
        append_final_observations,
        evaluate_targets,
        gather_column,
        set_final_values,
    )

    policy = trainer.policy
    sequences, batch, final_sequences = append_final_observations(
        rollout.sequences,
        rollout.batch,
        rollout.episodes,
        dialect=policy.dialect,
        context=policy.context,
        truncate_history=trainer.truncate_history,
    )
    scoring = trainer.scoring_config
    columns = evaluate_targets(
        policy.model,
        sequences,
        networks.compute_values,
        max_tokens_per_forward=scoring.max_tokens_per_forward,
        sharing=scoring.sharing,
        ranks=scoring.ranks,
    )
    soft, q_values, rho_logit = (gather_column(columns, name, batch) for name in ("soft", "chosen", "rho_logit"))
    batch = set_final_values(batch, columns, final_sequences, name="soft")
    config = networks.config
    targets = q_targets(
        soft, q_values, batch, gamma=config.gamma, gae_lambda=config.gae_lambda, token_lambda=config.token_lambda
    )
    trainer.add_metrics({"soft_value": float(soft.mean())})
    return SoftBackup(
        replace(rollout, batch=batch),
        Advantages(targets - q_values, targets),
        {"returns": targets, "rho_logit": rho_logit},
    )

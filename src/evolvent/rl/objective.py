"""Policy gradients as objectives: one loss with settings. `rl.presets` holds the published ones.

The batch's columns, one entry per target, are "advantages", "old" (log-probabilities of the policy before the
update, under the distribution it sampled from; not read with `single_update`), and as the settings require
"behaviour" (the sampler's own log-probabilities), "reference", "returns", "old_values", "action" and "span"
(running numbers inside the sequence).
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.former_names import former_fields
from evolvent.identity import version_1_text
from evolvent.learn.objectives import Need, Objective, Outputs, require_output
from evolvent.learn.token_sequences import Batch
from evolvent.rl import policy_losses as losses
from evolvent.rl.settings import (
    Aggregate,
    Clip,
    ClippedWeight,
    Divergence,
    ImportanceCorrection,
    ImportanceWeights,
    Level,
    PolicyGradient,
    Reinforce,
    ValueLoss,
)

__all__ = [
    "Aggregate",
    "Clip",
    "ClippedWeight",
    "Divergence",
    "ImportanceCorrection",
    "ImportanceWeights",
    "PolicyGradient",
    "Reinforce",
    "ValueLoss",
    "policy_gradient",
]


def policy_gradient(
    settings: PolicyGradient | None = None, *, name: str = "policy_gradient", single_update: bool = False
) -> Objective:
    """Builds the objective of these settings: surrogate + kl - entropy bonus + value loss.

    Args:
        settings: None: the defaults.
        name: of the objective in records.
        single_update: whether every rollout is learned in one update. Its forward then gives the log-probabilities
            before the update, so that the column "old" is not read, every ratio is 1, and the gradient is that of the
            policy gradient theorem. The metric "mismatch" compares them with the column "behaviour".

    Raises:
        BatchMismatch: (in the loss) a column that the settings need is not in the batch.

    >>> policy_gradient(PolicyGradient(entropy_coef=0.01)).needs
    ('logprobs', 'entropy')
    """
    gradient = settings or PolicyGradient()
    is_needed: dict[Need, bool] = {
        "logprobs": True,
        "values": gradient.value_loss is not None,
        "entropy": gradient.entropy_coef != 0,
        "reference": gradient.kl is not None,
    }
    former_names = former_fields(type(gradient))  # settings keep their identity when they are renamed
    identity = tuple(
        (former_names.get(f.name, f.name), _setting_identity(getattr(gradient, f.name))) for f in fields(gradient)
    )
    return Objective(
        name,
        partial(_loss, settings=gradient, single_update=single_update),
        partial(_count, settings=gradient),
        tuple(need for need, is_used in is_needed.items() if is_used),
        settings=identity,
        temperature=gradient.temperature,
        stats=partial(_stats, settings=gradient, single_update=single_update),
        metric_names=_metric_names(gradient, single_update=single_update),
        limit=None if gradient.target_kl is None else ("kl", gradient.target_kl),
    )


def _setting_identity(value: object) -> str | float | None:
    return value if value is None or isinstance(value, str | float) else version_1_text(value)


# ------------------------------------------------------------------ reading a batch

_COLUMN_HINTS = {
    "advantages": "estimate advantages (rl.estimators) and add them with rl.rollout_batch.add_columns(...)",
    "returns": "estimate advantages (rl.estimators) and add their returns with rl.rollout_batch.add_columns(...)",
    "old": "score the tokens with the policy before the update (learn.annotate)",
    "old_values": "score the tokens with the value head before the update",
    "behaviour": "add RolloutBatch.logp, the sampler's log-probabilities, with rl.rollout_batch.add_columns(...)",
    "reference": "compute it with learn.annotate.annotate(policy, sequences)",
    "action": "add the running number of the action inside its sequence, int64",
    "span": "add the running number of the span inside its sequence, int64",
}


def _get_column(batch: Batch, name: str) -> Tensor:
    if name not in batch.columns:
        raise BatchMismatch(
            f"the batch has no column {name!r}", value=sorted(batch.columns), expected=name, hint=_COLUMN_HINTS[name]
        )
    return batch.columns[name]


def _sequence_units(batch: Batch) -> Tensor:
    if batch.sequence is None:
        raise BatchMismatch("the batch has no sequence index", value="sequence=None")
    return losses.number_units(batch.sequence)


def _level_units(level: Level, batch: Batch) -> Tensor:
    """Returns the unit of each target at a level, `[N]`."""
    sequence = _sequence_units(batch)
    if level == "sequence":
        return sequence
    if level == "part":
        return torch.arange(batch.count, device=sequence.device)
    return losses.number_units(sequence, _get_column(batch, level))


def _compute_log_ratio(settings: PolicyGradient, logprobs: Tensor, old: Tensor, batch: Batch) -> Tensor:
    if settings.ratio == "part":
        return logprobs - old
    unit = _level_units(settings.ratio, batch)
    if settings.ratio == "sequence":
        return losses.sequence_log_ratio(logprobs, old, unit)
    return losses.sum_over_unit(logprobs - old, unit)


def _aggregation_weights(settings: PolicyGradient, batch: Batch) -> tuple[Tensor, int]:
    aggregate = settings.aggregate
    unit = _level_units(aggregate.level, batch) if aggregate.kind == "unit_mean" else None
    sequences = len(batch.samples) if batch.count else 0
    return losses.aggregation_weights(
        aggregate.kind, _sequence_units(batch), num_sequences=sequences, length=aggregate.length, unit=unit
    )


# ------------------------------------------------------------------ the loss


def _count(batch: Batch, *, settings: PolicyGradient) -> int:
    return _aggregation_weights(settings, batch)[1]


def _old_logprobs(outputs: Outputs, batch: Batch, *, single_update: bool) -> Tensor:
    """Returns the log-probabilities before the update, `[N]`, without a graph."""
    if single_update:
        return require_output(outputs.logprobs, "logprobs").detach()
    return _get_column(batch, "old")


def _loss(
    outputs: Outputs, batch: Batch, *, settings: PolicyGradient, single_update: bool = False
) -> tuple[Tensor, int]:
    target_weights, (aggregation, count) = batch.weights, _aggregation_weights(settings, batch)
    logprobs, old, advantages = losses.mask_unlearned(
        target_weights,
        require_output(outputs.logprobs, "logprobs"),
        _old_logprobs(outputs, batch, single_update=single_update),
        _get_column(batch, "advantages"),
    )
    weights = aggregation * target_weights
    terms = _surrogate_terms(settings, logprobs, _compute_log_ratio(settings, logprobs, old, batch), advantages)
    if settings.importance_weights is not None:
        (behavior_logprobs,) = losses.mask_unlearned(target_weights, _get_column(batch, "behaviour"))
        terms = _correct_terms(settings.importance_weights, terms, old, behavior_logprobs, batch)
    if settings.kl is not None:
        (reference,) = losses.mask_unlearned(target_weights, _get_column(batch, "reference"))
        divergence = losses.kl_k2 if settings.kl.kind == "k2" else losses.kl_k3
        terms = terms + settings.kl.beta * divergence(logprobs, reference)
    if settings.entropy_coef:
        (entropy,) = losses.mask_unlearned(target_weights, require_output(outputs.entropy, "entropy"))
        terms = terms - settings.entropy_coef * entropy
    loss = losses.weighted_sum(terms, weights)
    if settings.value_loss is not None:
        loss = loss + settings.value_loss.coefficient * _value_loss(settings.value_loss, outputs, batch, weights)
    return loss, count


def _surrogate_terms(settings: PolicyGradient, logprobs: Tensor, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    surrogate = settings.surrogate
    if isinstance(surrogate, Clip):
        return losses.clipped_surrogate(
            log_ratio, advantages, low=surrogate.low, high=surrogate.high, dual=surrogate.dual
        )
    if isinstance(surrogate, ClippedWeight):
        return losses.clipped_weight_surrogate(log_ratio, advantages, logprobs, low=surrogate.low, high=surrogate.high)
    return losses.reinforce(advantages, logprobs)


def _correct_terms(
    correction: ImportanceWeights, terms: Tensor, old: Tensor, behavior_logprobs: Tensor, batch: Batch
) -> Tensor:
    """Returns the surrogate's terms times their importance weights; terms of masked targets are ignored."""
    unit = _sequence_units(batch) if correction.level == "sequence" else None
    weight = losses.importance_weights(
        old, behavior_logprobs, max_weight=correction.max_weight, kind=correction.kind, unit=unit
    )
    return torch.where(weight != 0, weight * terms, 0.0)


def _value_loss(value_loss: ValueLoss, outputs: Outputs, batch: Batch, weights: Tensor) -> Tensor:
    if value_loss.level != "part":
        unit = _level_units(value_loss.level, batch)
        is_fitted = losses.is_first_of_unit(unit) & (weights != 0)
        weights = torch.where(is_fitted, losses.sum_over_unit(weights, unit), 0.0)
    values, returns = losses.mask_unlearned(
        weights, require_output(outputs.values, "values"), _get_column(batch, "returns")
    )
    (old,) = (
        losses.mask_unlearned(weights, _get_column(batch, "old_values")) if value_loss.clip is not None else (None,)
    )
    return losses.weighted_sum(
        losses.value_losses(values, returns, old, clip_range=value_loss.clip, huber=value_loss.huber), weights
    )


# ------------------------------------------------------------------ measurements


def _metric_names(settings: PolicyGradient, *, single_update: bool) -> tuple[str, ...]:
    names = ("kl", "clip_low", "clip_high", "ratio", "ratio_max", "effective")
    corrects = settings.importance_weights is not None
    mismatch = ("mismatch",) if corrects or single_update else ()
    clipped = ("mismatch_clipped",) if corrects else ()
    return names + mismatch + (("entropy",) if settings.entropy_coef else ()) + clipped


@torch.no_grad()
def _stats(
    outputs: Outputs, batch: Batch, *, settings: PolicyGradient, single_update: bool = False
) -> dict[str, tuple[Tensor, int]]:
    logprobs = require_output(outputs.logprobs, "logprobs")
    old = _old_logprobs(outputs, batch, single_update=single_update)
    surrogate = settings.surrogate
    measures_mismatch = settings.importance_weights is not None or single_update
    low, high = (1.0, float("inf")) if isinstance(surrogate, Reinforce) else (surrogate.low, surrogate.high)
    stats = losses.policy_stats(
        _compute_log_ratio(settings, logprobs, old, batch),
        logprobs - old,
        _get_column(batch, "advantages"),
        low=low,
        high=high,
        behavior_log_ratio=old - _get_column(batch, "behaviour") if measures_mismatch else None,
        entropy=require_output(outputs.entropy, "entropy") if settings.entropy_coef else None,
    )
    correction = settings.importance_weights
    if correction is not None:
        unit = _sequence_units(batch) if correction.level == "sequence" else None
        unbounded = losses.importance_weights(
            old, _get_column(batch, "behaviour"), max_weight=float("inf"), kind="truncated", unit=unit
        )
        stats["mismatch_clipped"] = ((unbounded > correction.max_weight).sum(), batch.count)
    return stats

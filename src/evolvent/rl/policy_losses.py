"""Policy losses: pure functions on tensors that return one term per target, and the weights to sum them with.

Shapes: `N` targets of whole sequences, one after the other. A *unit* is a run of targets (a span, an action, a
sequence), given by a running number `[N]`. Log-probabilities, in nats: `logprobs` of the policy that is
trained, `old` of the same policy before the update, `behavior` of the sampler, `reference` of the reference
policy.

Inputs are finite. Targets that are not learned are masked out first (`mask_unlearned`), never multiplied by 0,
because 0 times NaN is NaN, in the gradient too.
"""

from __future__ import annotations

from math import log, log1p
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch
from evolvent.rl.settings import Aggregation

__all__ = [
    "aggregation_weights",
    "clipped_surrogate",
    "clipped_weight_surrogate",
    "importance_weights",
    "is_first_of_unit",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "mask_unlearned",
    "number_units",
    "policy_stats",
    "reinforce",
    "sequence_log_ratio",
    "sum_over_unit",
    "value_losses",
    "weighted_sum",
]

_MAX_LOG_RATIO = 20.0  # of a measured mismatch


def mask_unlearned(weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the tensors with 0 where the weight is 0, so that neither value nor gradient depends on those entries.

    Args:
        weights: `[N]`.
        tensors: `[N]` each.

    >>> import torch
    >>> mask_unlearned(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([5.0, float("nan"), 7.0]))
    (tensor([5., 0., 7.]),)
    """
    return tuple(torch.where(weights != 0, tensor, 0.0) for tensor in tensors)


def weighted_sum(terms: Tensor, weights: Tensor) -> Tensor:
    """Computes `sum_n w_n l_n`; terms with weight 0 are ignored.

    Args:
        terms: `[N]`.
        weights: `[N]`.

    Returns:
        a scalar.

    >>> import torch
    >>> weighted_sum(torch.tensor([5.0, float("nan"), 7.0]), torch.tensor([1.0, 0.0, 2.0]))
    tensor(19.)
    """
    return torch.where(weights != 0, weights * terms, 0.0).sum()


# ------------------------------------------------------------------ units and ratios


def number_units(*indices: Tensor) -> Tensor:
    """Returns a running number `[N]` that grows by 1 wherever one of the indices `[N]` changes (sequence, action,
    ...).

    >>> import torch
    >>> number_units(torch.tensor([0, 0, 1]), torch.tensor([3, 4, 4]))
    tensor([0, 1, 2])
    """
    changed = torch.stack([index[1:] != index[:-1] for index in indices]).any(0)
    return F.pad(changed.long().cumsum(0), (1, 0))[: len(indices[0])]


def is_first_of_unit(unit: Tensor) -> Tensor:
    """Returns `[N]` bool, whether a target is the first of its unit.

    >>> import torch
    >>> is_first_of_unit(torch.tensor([0, 0, 1]))
    tensor([ True, False,  True])
    """
    return F.pad(unit[1:] != unit[:-1], (1, 0), value=True)[: len(unit)]


def sum_over_unit(values: Tensor, unit: Tensor) -> Tensor:
    """Computes the sum over its unit, at each target `[N]`. For log-ratios: the log-ratio of a span or action as a
    whole.

    >>> import torch
    >>> sum_over_unit(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))
    tensor([3., 3., 3.])
    """
    return torch.zeros_like(values).index_add(0, unit, values).index_select(0, unit)


def sequence_log_ratio(logprobs: Tensor, old: Tensor, unit: Tensor) -> Tensor:
    """Computes GSPO's log-ratio: its value is the mean over the sequence, its gradient is each target's own.

    `stop(mean_j (log pi_j - log old_j)) + (log pi_n - stop(log pi_n))` (GSPO-token: arXiv 2507.18071, equation 14).
    The bracket is exactly 0, so that clip ranges of 3e-4 are not lost in rounding.

    Args:
        logprobs: `[N]`, under the policy.
        old: `[N]`, before the update.
        unit: `[N]`, the sequence of each target.

    Returns:
        log-ratios `[N]`.

    >>> import torch
    >>> logprobs, old = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -1.0, -1.0])
    >>> sequence_log_ratio(logprobs, old, torch.tensor([0, 0, 1]))
    tensor([-0.5000, -0.5000, -2.0000])
    """
    log_ratio = (logprobs - old).detach()
    mean = sum_over_unit(log_ratio, unit) / sum_over_unit(torch.ones_like(log_ratio), unit)
    return mean + (logprobs - logprobs.detach())


# ------------------------------------------------------------------ surrogates


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Computes PPO's clipped surrogate loss `-min(rho A, clip(rho, 1 - low, 1 + high) A)`.

    PPO: arXiv 1707.06347, equation 7. With `high > low` it is clip-higher (DAPO, arXiv 2503.14476). With `dual = c` the
    loss of a negative advantage is at most `-c A` (arXiv 1912.09729, equation 5). A ratio far beyond its clip range has
    neither value nor gradient of its own, however large: it is never computed.

    Args:
        log_ratio: `[N]`, `log rho = log pi - log old`.
        advantages: `[N]`.
        low, high: clip range of the ratio.
        dual: bound of the loss for negative advantages; None: none.

    Returns:
        losses `[N]`.

    >>> import torch
    >>> clipped_surrogate(torch.tensor([0.5, 1.0, 2.0]).log(), torch.ones(3), low=0.2, high=0.2)
    tensor([-0.5000, -1.0000, -1.2000])
    """
    max_log_ratio = torch.full_like(advantages, torch.inf if dual is None else log(dual) + 1.0)
    max_log_ratio = torch.where(advantages > 0, log1p(high) + 1.0, max_log_ratio)
    ratio = mask_unlearned(advantages, log_ratio)[0].clamp(max=max_log_ratio).exp()  # an infinite ratio times 0 is NaN
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)
    return loss


def clipped_weight_surrogate(
    log_ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, low: float, high: float
) -> Tensor:
    """Computes CISPO's loss `-stop(clip(rho, 1 - low, 1 + high)) A log pi` (arXiv 2506.13585, equation 4).

    The weight is clipped and not the update: every target keeps a gradient.

    Args:
        log_ratio: `[N]`, `log rho`.
        advantages: `[N]`.
        logprobs: `[N]`, `log pi`.
        low, high: clip range of the weight.

    Returns:
        losses `[N]`.

    >>> import torch
    >>> clipped_weight_surrogate(
    ...     torch.tensor([0.5, 1.0, 2.0]).log(), torch.ones(3), -torch.ones(3), low=0.2, high=0.2
    ... )
    tensor([0.8000, 1.0000, 1.2000])
    """
    return -log_ratio.detach().exp().clamp(1.0 - low, 1.0 + high) * advantages * logprobs


def reinforce(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """Computes `-A log pi`: the policy gradient itself (Williams 1992).

    Args:
        advantages: `[N]`.
        logprobs: `[N]`, `log pi`.

    Returns:
        losses `[N]`.

    >>> import torch
    >>> reinforce(torch.tensor([1.0, 0.0, -1.0]), torch.tensor([-0.5, -1.0, -2.0]))
    tensor([ 0.5000,  0.0000, -2.0000])
    """
    return -advantages * logprobs


# ------------------------------------------------------------------ divergence, values, behavior


def kl_k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Computes the estimator k1 of the divergence: `log pi - log ref`.

    Its mean is the divergence; the mean of its gradient is 0. Use it in rewards, not in losses.

    Args:
        logprobs: `[N]`, `log pi`.
        reference: `[N]`, `log ref`.

    Returns:
        estimates `[N]`, nats.

    >>> import torch
    >>> kl_k1(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.5, -1.0, -0.5]))
    tensor([ 0.5000,  0.0000, -0.5000])
    """
    return logprobs - reference


def kl_k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Computes the estimator k2 of the divergence: `(log ref - log pi)^2 / 2`.

    It is biased as a value, but the mean of its gradient is the divergence's. J. Schulman, Approximating KL
    divergence, 2020; so are k1 and k3.

    Args:
        logprobs: `[N]`, `log pi`.
        reference: `[N]`, `log ref`.

    Returns:
        estimates `[N]`, nats.

    >>> import torch
    >>> kl_k2(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.5, -1.0, -0.5]))
    tensor([0.1250, 0.0000, 0.1250])
    """
    return 0.5 * (reference - logprobs).square()


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Computes the estimator k3 of the divergence: `e^d - d - 1` with `d = log ref - log pi`.

    It is unbiased and never negative (GRPO, arXiv 2402.03300).

    Args:
        logprobs: `[N]`, `log pi`.
        reference: `[N]`, `log ref`.

    Returns:
        estimates `[N]`, nats.

    >>> import torch
    >>> kl_k3(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.5, -1.0, -0.5]))
    tensor([0.1065, 0.0000, 0.1487])
    """
    log_ratio = reference - logprobs
    return log_ratio.expm1() - log_ratio


def value_losses(
    values: Tensor,
    returns: Tensor,
    old: Tensor | None = None,
    *,
    clip_range: float | None = None,
    huber: float | None = None,
) -> Tensor:
    """Computes `d^2 / 2` with `d = v_n - R_n`, linear beyond `|d| = huber`.

    Args:
        values: `[N]`, predictions v.
        returns: `[N]`, targets R.
        old: `[N]`, values before the update; needed by `clip_range`.
        clip_range: the loss is the greater of this and the loss of `old + clip(v - old, -clip_range, clip_range)`
            (PPO's code: a value that moved further towards its return than that has no gradient).
        huber: error beyond which the loss is linear; None: nowhere.

    Returns:
        losses `[N]`.

    Raises:
        BatchMismatch: `clip_range` without `old`.

    >>> import torch
    >>> value_losses(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3))
    tensor([0.5000, 0.0000, 2.0000])
    >>> value_losses(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3), huber=1.0)
    tensor([0.5000, 0.0000, 1.5000])
    """

    def loss(value: Tensor) -> Tensor:
        if huber is None:
            return 0.5 * (value - returns).square()
        return F.huber_loss(value, returns, reduction="none", delta=huber)

    if clip_range is None:
        return loss(values)
    if old is None:
        raise BatchMismatch("clipping values needs the values before the update", expected="old values")
    return torch.maximum(loss(values), loss(old + (values - old).clamp(-clip_range, clip_range)))


def importance_weights(
    old: Tensor,
    behavior: Tensor,
    *,
    max_weight: float,
    kind: Literal["truncated", "masked"],
    unit: Tensor | None = None,
) -> Tensor:
    """Computes the importance weights of terms where sampler and trainer differ (kernels, age), without a gradient.

    `u = old / behavior`, of the target or of its whole unit; "truncated": `min(u, max_weight)`; "masked": `u`, and
    0 above `max_weight`. Per target: low variance, biased; per sequence: unbiased before the bound.

    Args:
        old: `[N]`, log-probabilities of the policy before the update.
        behavior: `[N]`, log-probabilities of the sampler.
        max_weight: bound of the weights.
        kind: "truncated" or "masked".
        unit: `[N]`, units whose weight is the product over their targets; None: each target has its own.

    Returns:
        weights `[N]`.

    >>> import torch
    >>> old = torch.tensor([0.5, 1.0, 4.0]).log()
    >>> importance_weights(old, torch.zeros(3), max_weight=2.0, kind="truncated")
    tensor([0.5000, 1.0000, 2.0000])
    >>> importance_weights(old, torch.zeros(3), max_weight=2.0, kind="masked")
    tensor([0.5000, 1.0000, 0.0000])
    """
    log_ratio = (old - behavior).detach()
    weight = (log_ratio if unit is None else sum_over_unit(log_ratio, unit)).exp()
    return weight.clamp(max=max_weight) if kind == "truncated" else torch.where(weight <= max_weight, weight, 0.0)


# ------------------------------------------------------------------ adding up


def aggregation_weights(
    kind: Aggregation, sequence: Tensor, *, num_sequences: int, length: int | None = None, unit: Tensor | None = None
) -> tuple[Tensor, int]:
    """Computes the weights and the count of a mean: the loss is `sum_n w_n l_n / count`, with the count of the whole
    update.

    part_mean: over all targets (DAPO). sequence_mean: over sequences, of means over their targets (GRPO). sequence_sum:
    over sequences, of sums (RLOO). constant_length: over sequences, of sums divided by `length` (Dr.GRPO), which is a
    setting and never the width of a padded batch. unit_mean: over units, of means over their targets.

    Args:
        kind: the mean.
        sequence: `[N]`, the sequence of each target.
        num_sequences: number of sequences.
        length: divisor of constant_length, tokens.
        unit: `[N]`, the unit of each target, for unit_mean.

    Returns:
        weights `[N]` and the count.

    Raises:
        BatchMismatch: an argument that the kind needs is missing.

    >>> import torch
    >>> aggregation_weights("sequence_mean", torch.tensor([0, 0, 1]), num_sequences=2)
    (tensor([0.5000, 0.5000, 1.0000]), 2)
    """
    uniform = torch.ones(len(sequence), dtype=torch.float32, device=sequence.device)
    if kind == "part_mean":
        return uniform, len(sequence)
    if kind == "unit_mean":
        if unit is None:
            raise BatchMismatch("a mean over units needs the unit of each token", expected="unit [N]")
        return 1.0 / sum_over_unit(uniform, unit), int(unit[-1]) + 1 if len(unit) else 0
    if kind == "sequence_mean":
        return 1.0 / sum_over_unit(uniform, number_units(sequence)), num_sequences
    if kind == "sequence_sum":
        return uniform, num_sequences
    if length is None:
        raise BatchMismatch("a constant length must be set", expected="length")
    return uniform / length, num_sequences


# ------------------------------------------------------------------ measurements


def policy_stats(
    log_ratio: Tensor,
    target_log_ratio: Tensor,
    advantages: Tensor,
    *,
    low: float,
    high: float,
    behavior_log_ratio: Tensor | None = None,
    entropy: Tensor | None = None,
) -> dict[str, tuple[Tensor, int]]:
    """Measures how far an update has moved the policy, each number as (sum, count) over the targets, without
    gradients.

    kl: k3 of the old policy against the new one. clip_low, clip_high: the share of targets that the clip gives no
    gradient, below (A < 0) and above (A > 0). ratio: its mean. ratio_max: of a batch, the mean over batches.
    effective: the effective sample size `(sum u)^2 / sum u^2` as a share of the targets, batch by batch. mismatch:
    k3 of the sampler against the old policy. entropy: of the policy.

    Args:
        log_ratio: `[N]`, at the level at which it is clipped.
        target_log_ratio: `[N]`, `log pi - log old` of each target.
        advantages: `[N]`.
        low, high: the clip range.
        behavior_log_ratio: `[N]`, `log old - log behavior`; bounded by 20, so that one token cannot make it infinite.
        entropy: `[N]`, nats.

    >>> import torch
    >>> log_ratio = torch.tensor([0.5, 1.0, 2.0]).log()
    >>> stats = policy_stats(log_ratio, log_ratio, torch.ones(3), low=0.2, high=0.2)
    >>> stats["ratio"], stats["clip_high"]
    ((tensor(3.5000), 3), (tensor(1), 3))
    """
    log_ratio, target_log_ratio, count = log_ratio.detach(), target_log_ratio.detach(), len(target_log_ratio)
    ratio, weight = log_ratio.exp(), target_log_ratio.exp()
    sum_of_squares = weight.square().sum()
    effective_size = torch.where(sum_of_squares > 0, weight.sum().square() / sum_of_squares, 0.0)
    stats = {
        "kl": ((target_log_ratio.expm1() - target_log_ratio).sum(), count),
        "clip_low": (((ratio < 1.0 - low) & (advantages < 0)).sum(), count),
        "clip_high": (((ratio > 1.0 + high) & (advantages > 0)).sum(), count),
        "ratio": (ratio.sum(), count),
        "ratio_max": (ratio.max() if count else ratio.sum(), min(count, 1)),
        "effective": (effective_size, count),
    }
    if behavior_log_ratio is not None:
        mismatch = behavior_log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        stats["mismatch"] = ((mismatch.expm1() - mismatch).sum(), count)
    if entropy is not None:
        stats["entropy"] = (entropy.detach().sum(), count)
    return stats

"""Losses of policies: pure functions on tensors that give one term a target, and the weights to add them up with.

Shapes: `N` targets of whole sequences, one after the other. A *unit* is a run of targets (a span, an action, a
sequence), told by a running number `[N]`. Log-probabilities: `logprobs` of the policy that learns, `old` of the same
policy before the update, `behaviour` of what sampled, `reference` of the policy it is held to.

Inputs are finite: what is not learned is selected out first (`selected`), never multiplied by 0, because 0 times NaN
is NaN, in the gradient too.
"""

from __future__ import annotations

from math import log, log1p
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch

__all__ = [
    "aggregation",
    "behaviour_weights",
    "clipped",
    "clipped_weight",
    "first_of_unit",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "policy_stats",
    "reinforce",
    "selected",
    "sequence_log_ratio",
    "total",
    "unit_sums",
    "units",
    "value_terms",
]

Kind = Literal["part_mean", "sequence_mean", "sequence_sum", "constant_length", "unit_mean"]


def selected(weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors `[N]` with 0 where the weight is 0: neither value nor gradient looks at what was there."""
    return tuple(torch.where(weights != 0, tensor, 0.0) for tensor in tensors)


def total(terms: Tensor, weights: Tensor) -> Tensor:
    """`sum_n w_n l_n`; where the weight is 0 the term is not looked at."""
    return torch.where(weights != 0, weights * terms, 0.0).sum()


# ------------------------------------------------------------------ units and ratios


def units(*indices: Tensor) -> Tensor:
    """A running number `[N]` that grows by 1 wherever one of the indices `[N]` changes (sequence, action, ...)."""
    changed = torch.stack([index[1:] != index[:-1] for index in indices]).any(0)
    return F.pad(changed.long().cumsum(0), (1, 0))[: len(indices[0])]


def first_of_unit(unit: Tensor) -> Tensor:
    """`[N]` bool, whether a target is the first of its unit."""
    return F.pad(unit[1:] != unit[:-1], (1, 0), value=True)[: len(unit)]


def unit_sums(values: Tensor, unit: Tensor) -> Tensor:
    """The sum over its unit, at each target `[N]`. Of log-ratios: the log-ratio of a span or action as a whole."""
    return torch.zeros_like(values).index_add(0, unit, values).index_select(0, unit)


def sequence_log_ratio(logprobs: Tensor, old: Tensor, unit: Tensor) -> Tensor:
    """GSPO's log-ratio `[N]`: its value is the mean over the sequence, its gradient that of the target alone.

    `stop(mean_j (log pi_j - log old_j)) + (log pi_n - stop(log pi_n))` (GSPO-token: arXiv 2507.18071, equation 14). The
    bracket is exactly 0, so that clip ranges of 3e-4 are not lost in rounding.
    """
    gap = (logprobs - old).detach()
    mean = unit_sums(gap, unit) / unit_sums(torch.ones_like(gap), unit)
    return mean + (logprobs - logprobs.detach())


# ------------------------------------------------------------------ surrogates


def clipped(log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None) -> Tensor:
    """`-min(rho A, clip(rho, 1 - low, 1 + high) A)`, `[N]`: PPO (arXiv 1707.06347, equation 7).

    With `high > low` it is clip-higher (DAPO, arXiv 2503.14476). With `dual = c` the loss of a negative advantage is at
    most `-c A` (arXiv 1912.09729, equation 5).

    A ratio far beyond its clip has neither value nor gradient of its own, however large: it is never computed.
    """
    beyond = torch.full_like(advantages, torch.inf if dual is None else log(dual) + 1.0)
    beyond = torch.where(advantages > 0, log1p(high) + 1.0, beyond)
    ratio = selected(advantages, log_ratio)[0].clamp(max=beyond).exp()  # an infinite ratio times 0 is NaN
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)
    return loss


def clipped_weight(log_ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, low: float, high: float) -> Tensor:
    """`-stop(clip(rho, 1 - low, 1 + high)) A log pi`, `[N]`: CISPO (arXiv 2506.13585, equation 4).

    The weight is clipped and not the update: every target keeps a gradient.
    """
    return -log_ratio.detach().exp().clamp(1.0 - low, 1.0 + high) * advantages * logprobs


def reinforce(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """`-A log pi`, `[N]`: the policy gradient itself (Williams 1992)."""
    return -advantages * logprobs


# ------------------------------------------------------------------ divergence, values, behaviour


def kl_k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`log pi - log ref`, `[N]`: its mean is the divergence; the mean of its gradient is 0. For rewards, not losses."""
    return logprobs - reference


def kl_k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`(log ref - log pi)^2 / 2`, `[N]`: biased as a value, but the mean of its gradient is the divergence's.

    J. Schulman, Approximating KL divergence, 2020; so are k1 and k3.
    """
    return 0.5 * (reference - logprobs).square()


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`e^d - d - 1` with `d = log ref - log pi`, `[N]`: unbiased and never negative (GRPO, arXiv 2402.03300)."""
    gap = reference - logprobs
    return gap.expm1() - gap


def value_terms(
    values: Tensor, returns: Tensor, old: Tensor | None = None, *, clip: float | None = None, huber: float | None = None
) -> Tensor:
    """`d^2 / 2` with `d = v_n - R_n`, `[N]`, linear beyond `|d| = huber`.

    Args:
        values, returns: `[N]`. old: `[N]`, values before the update; needed by `clip`.
        clip: the greater of this and the loss of `old + clip(v - old, -clip, clip)` (PPO's code: a value that moved
            further towards its return than that has no gradient).
    Raises:
        BatchMismatch: `clip` without `old`.
    """

    def loss(value: Tensor) -> Tensor:
        if huber is None:
            return 0.5 * (value - returns).square()
        return F.huber_loss(value, returns, reduction="none", delta=huber)

    if clip is None:
        return loss(values)
    if old is None:
        raise BatchMismatch("values cannot be clipped without those before the update", expected="old values")
    return torch.maximum(loss(values), loss(old + (values - old).clamp(-clip, clip)))


def behaviour_weights(
    old: Tensor, behaviour: Tensor, *, cap: float, kind: Literal["truncated", "masked"], unit: Tensor | None = None
) -> Tensor:
    """What a term is multiplied by where sampler and trainer differ (kernels, age), `[N]`, without a gradient.

    `u = old / behaviour`, of the target or of its whole unit; "truncated": `min(u, cap)`; "masked": `u`, and 0 beyond
    the cap. Targets: low variance, biased; sequences: unbiased before the cap.
    """
    gap = (old - behaviour).detach()
    weight = (gap if unit is None else unit_sums(gap, unit)).exp()
    return weight.clamp(max=cap) if kind == "truncated" else torch.where(weight <= cap, weight, 0.0)


# ------------------------------------------------------------------ adding up


def aggregation(
    kind: Kind, sequence: Tensor, *, sequences: int, length: int | None = None, unit: Tensor | None = None
) -> tuple[Tensor, int]:
    """`(w [N], count)`: the loss is `sum_n w_n l_n / count`, its count that of the whole update.

    part_mean: over all targets (DAPO). sequence_mean: over sequences, of means over their targets (GRPO). sequence_sum:
    over sequences, of sums (RLOO). constant_length: over sequences, of sums divided by `length` (Dr.GRPO), which is a
    setting and never the width of a padded batch. unit_mean: over units, of means over their targets.

    Args:
        sequence: `[N]`. sequences: how many there are. unit: `[N]`, for unit_mean.
    Raises:
        BatchMismatch: what the kind needs is missing.
    """
    ones = torch.ones(len(sequence), dtype=torch.float32, device=sequence.device)
    if kind == "part_mean":
        return ones, len(sequence)
    if kind == "unit_mean":
        if unit is None:
            raise BatchMismatch("a mean over units needs to know them", expected="unit [N]")
        return 1.0 / unit_sums(ones, unit), int(unit[-1]) + 1 if len(unit) else 0
    if kind == "sequence_mean":
        return 1.0 / unit_sums(ones, units(sequence)), sequences
    if kind == "sequence_sum":
        return ones, sequences
    if length is None:
        raise BatchMismatch("a constant length is a setting", expected="length")
    return ones / length, sequences


# ------------------------------------------------------------------ measurements


def policy_stats(
    log_ratio: Tensor,
    gap: Tensor,
    advantages: Tensor,
    *,
    low: float,
    high: float,
    behaviour_gap: Tensor | None = None,
    entropy: Tensor | None = None,
) -> dict[str, tuple[Tensor, int]]:
    """How far an update has moved the policy, each as (sum, count) over the targets, without gradients.

    kl: k3 of the old policy against the new one. clip_low, clip_high: the share of targets that the clip gives no
    gradient, below (A < 0) and above (A > 0). ratio: its mean. ratio_max: of a batch, the mean over batches.
    effective: the effective sample size `(sum u)^2 / sum u^2` as a share of the targets, batch by batch. mismatch: k3
    of the sampler against the old policy. entropy: of the policy.

    Args:
        log_ratio: `[N]`, at the level at which it is clipped. gap: `[N]`, `log pi - log old` of each target.
        low, high: the clip range. behaviour_gap: `[N]`, `log old - log behaviour`. entropy: `[N]`.
    """
    log_ratio, gap, number = log_ratio.detach(), gap.detach(), len(gap)
    ratio, weight = log_ratio.exp(), gap.exp()
    squares = weight.square().sum()
    effective = torch.where(squares > 0, weight.sum().square() / squares, 0.0)
    found = {
        "kl": ((gap.expm1() - gap).sum(), number),
        "clip_low": (((ratio < 1.0 - low) & (advantages < 0)).sum(), number),
        "clip_high": (((ratio > 1.0 + high) & (advantages > 0)).sum(), number),
        "ratio": (ratio.sum(), number),
        "ratio_max": (ratio.max() if number else ratio.sum(), min(number, 1)),
        "effective": (effective, number),
    }
    if behaviour_gap is not None:
        found["mismatch"] = ((behaviour_gap.expm1() - behaviour_gap).sum(), number)
    if entropy is not None:
        found["entropy"] = (entropy.detach().sum(), number)
    return found

"""Objectives: a loss, its count and the model outputs that it needs, under a name. `loss(outputs, batch) -> (sum,
count)`.

Imitation, preferences, reward models, values and distillation are settings of this one contract. The count
depends on the batch alone; the settings are in the `repr`, by which a resumed training recognizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.learn import losses
from evolvent.learn.token_sequences import Batch

__all__ = [
    "Need",
    "Objective",
    "Outputs",
    "Sums",
    "distill_objective",
    "dpo_objective",
    "gauss_newton",
    "outcome",
    "pair_margins",
    "require_output",
    "reward_pairs_objective",
    "span_labels_objective",
    "value_objective",
    "weighted_nll",
]

Need = Literal["logprobs", "values", "teacher", "sampled", "reference", "entropy", "logits"]
Sums = Mapping[str, tuple[Tensor, Tensor | int]]
Setting = str | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The model's outputs for a batch, as far as the objective needs them; float32, one entry per target.

    Attributes:
        logprobs: `[N]`, of the targets.
        values: `[N]`, the value head's output where the target is predicted.
        teacher: `[N, k]`, log-probabilities of the tokens `batch.columns["teacher_ids"]`.
        sampled: `[N]`, log-probabilities of tokens sampled from the model's own distribution (SophiaG's curvature).
        entropy: `[N]`, of the distribution of the next token, in nats.
        logits: `[N, V]`, without temperature.
    """

    logprobs: Tensor | None = None
    values: Tensor | None = None
    teacher: Tensor | None = None
    sampled: Tensor | None = None
    entropy: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss with its count, its needs and its settings.

    Args:
        name: in records.
        loss: the sum over a batch (a scalar with its graph), and the batch's count.
        count: the normalizer, from the batch alone: it is known for a whole update before its first backward pass.
        needs: the model outputs that it reads (see `Outputs`) and, under "reference", the column of that name.
        together: number of neighboring sequences that are one sample and stay together: 2 for pairs (chosen,
            rejected).
        settings: tell it from other objectives of its name; part of the `repr`, which is equal in every process.
        temperature: sampling temperature of the targets: log-probabilities and entropy are of that distribution.
            Where a batch has the column "support" `[N, K]` (token ids, -1: none), they are of those tokens alone
            (top-k).
        stats: metrics beside the loss, each as (sum, count) over a batch, under the names `metric_names`.
        limit: (metric name, bound): an update beyond it is not applied, and ends the pass through the data.
    """

    name: str
    loss: Callable[[Outputs, Batch], tuple[Tensor, int]] = field(repr=False)
    count: Callable[[Batch], int] = field(repr=False)
    needs: tuple[Need, ...] = ("logprobs",)
    together: int = 1
    settings: tuple[tuple[str, Setting], ...] = ()
    temperature: float = field(default=1.0, repr=False)
    stats: Callable[[Outputs, Batch], Sums] | None = field(default=None, repr=False)
    metric_names: tuple[str, ...] = field(default=(), repr=False)
    limit: tuple[str, float] | None = field(default=None, repr=False)


def _count_targets(batch: Batch) -> int:
    return batch.count


def require_output(tensor: Tensor | None, name: str) -> Tensor:
    """Returns an output that an objective needs.

    Raises:
        BatchMismatch: the output is missing.
    """
    if tensor is None:
        raise BatchMismatch(
            f"the model's outputs lack {name!r}", expected="the outputs that the objective's `needs` lists"
        )
    return tensor


def _get_column(batch: Batch, name: str) -> Tensor:
    if name not in batch.columns:
        raise BatchMismatch(
            f"the batch has no column {name!r}", value=sorted(batch.columns), expected=name, hint=_COLUMN_HINTS[name]
        )
    return batch.columns[name]


_COLUMN_HINTS = {
    "reference": "compute it with learn.annotate.annotate(policy, sequences)",
    "returns": "compute it with learn.preferences.add_returns(...)",
    "outcome": "compute it with learn.preferences.append_outcome_readout(...)",
    "label": "compute it with reward.process.prepare_rows(...)",
    "teacher_logprobs": "compute it with learn.annotate.annotate(teacher, sequences, teacher_k=...)",
}


def _check_settings(*problems: tuple[bool, str, str]) -> None:
    """Raises a ConfigError that lists the invalid settings: (is invalid, name, message)."""
    invalid = [Problem(name, message) for is_wrong, name, message in problems if is_wrong]
    if invalid:
        raise ConfigError(invalid)


# ------------------------------------------------------------------ imitation


def _weighted_nll(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    return losses.weighted_nll(require_output(outputs.logprobs, "logprobs"), batch.weights), _count_targets(batch)


weighted_nll = Objective("weighted_nll", _weighted_nll, _count_targets)
"""Imitation: the mean over weighted targets of `-w log p`. The count is the number of targets whose weight is not 0,
and not the sum of weights: doubling all weights doubles the gradient."""


def _sampled_nll(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    return losses.sampled_nll(require_output(outputs.sampled, "sampled"), batch.weights), _count_targets(batch)


gauss_newton = Objective("gauss_newton", _sampled_nll, _count_targets, ("sampled",))
"""No aim to train on: its squared gradient is SophiaG's estimate of the curvature of `weighted_nll`."""


# ------------------------------------------------------------------ pairs


def _count_pairs(batch: Batch) -> int:
    """Counts the pairs of a batch; an empty batch has none."""
    samples = batch.samples
    is_complete = all(
        left % 2 == 0 and right == left + 1 for left, right in zip(samples[::2], samples[1::2], strict=False)
    )
    if len(samples) % 2 or not is_complete:
        raise BatchMismatch(
            "the batch separates the two sides of a pair",
            value=samples,
            expected="2i (chosen) before 2i + 1 (rejected)",
        )
    return len(samples) // 2


def _sum_by_side(values: Tensor, batch: Batch, weights: Tensor) -> Tensor:
    """Computes weighted sums of the targets' values as `[P, 2]`: chosen, rejected."""
    if batch.sequence is None:
        raise BatchMismatch("the batch of pairs has no sequence index", value="sequence=None")
    pairs = _count_pairs(batch)
    return losses.sum_per_sequence(values, weights, batch.sequence, count=2 * pairs).view(pairs, 2)


def _side_lengths(batch: Batch) -> Tensor:
    uniform = torch.ones_like(batch.weights)
    return _sum_by_side(uniform, batch, uniform).clamp(min=1.0)


def pair_margins(outputs: Outputs, batch: Batch, *, per_token: bool = False) -> Tensor:
    """Computes how much more the policy prefers the chosen side than the reference does.

    `m = log pi(c) / ref(c) - log pi(r) / ref(r)`, log-ratios summed over a side's weighted targets; positive where
    the policy has moved towards the chosen side.

    Args:
        outputs: with `logprobs [N]`.
        batch: pairs, with the column "reference" `[N]`.
        per_token: means over the targets of a side instead of sums.

    Returns:
        margins `[P]`.

    Raises:
        BatchMismatch: there is no column "reference", or the batch is not made of pairs.

    >>> index, reference = torch.arange(4), torch.tensor([-1.0, -1.0, -1.0, -1.0])
    >>> batch = Batch(
    ...     index[None], index, index, torch.ones(4), (0, 1), 4,
    ...     sequence=torch.tensor([0, 0, 1, 1]), columns={"reference": reference},
    ... )
    >>> pair_margins(Outputs(torch.tensor([-0.5, -1.0, -2.0, -1.0])), batch)  # 0.5 - -1.0
    tensor([1.5000])
    """
    ratios = require_output(outputs.logprobs, "logprobs") - _get_column(batch, "reference")
    sides = _sum_by_side(ratios, batch, batch.weights)
    if per_token:
        sides = sides / _side_lengths(batch)
    return sides[:, 0] - sides[:, 1]


def _dpo_loss(
    outputs: Outputs, batch: Batch, *, beta: float, kind: str, smoothing: float, per_token: bool, sft: float
) -> tuple[Tensor, int]:
    margins = pair_margins(outputs, batch, per_token=per_token)
    total = losses.ipo(margins, beta=beta) if kind == "ipo" else losses.dpo(margins, beta=beta, smoothing=smoothing)
    if sft:
        side_logprobs = _sum_by_side(
            require_output(outputs.logprobs, "logprobs"), batch, batch.weights
        ) / _side_lengths(batch)
        total = total - sft * side_logprobs[:, 0].sum()
    return total, _count_pairs(batch)


def dpo_objective(
    *,
    beta: float = 0.1,
    kind: Literal["sigmoid", "ipo"] = "sigmoid",
    smoothing: float = 0.0,
    per_token: bool = False,
    sft: float = 0.0,
) -> Objective:
    """Builds the objective of direct preference learning: the mean over pairs (see `losses.dpo`, `losses.ipo`).

    Args:
        beta: strength of the hold on the reference; greater is closer.
        kind: "sigmoid" (arXiv 2305.18290) or "ipo" (arXiv 2310.12036).
        smoothing: probability that a label is wrong (sigmoid only).
        per_token: log-ratios are means over a side's targets, not sums, so that lengths do not count. The IPO paper's
            equation has sums; its authors have stated that their figures are with means.
        sft: coefficient of the chosen side's mean negative log-likelihood (as in arXiv 2404.19733).
    Raises:
        ConfigError: a setting is out of its range.

    >>> objective = dpo_objective(beta=0.1)
    >>> objective.needs, objective.together
    (('logprobs', 'reference'), 2)
    >>> losses.dpo(torch.tensor([0.0, 1.0, 2.0]), beta=0.1)  # the sum over three margins
    tensor(1.9357)
    """
    _check_settings(
        (beta <= 0, "beta", f"got {beta}, expected above 0"),
        (kind not in ("sigmoid", "ipo"), "kind", f"got {kind!r}, expected 'sigmoid' or 'ipo'"),
        (not 0 <= smoothing < 0.5, "smoothing", f"got {smoothing}, expected 0 or more and below 0.5"),
        (kind == "ipo" and smoothing != 0, "smoothing", f"got {smoothing}, expected 0 for ipo"),
        (sft < 0, "sft", f"got {sft}, expected 0 or more"),
    )
    loss = partial(_dpo_loss, beta=beta, kind=kind, smoothing=smoothing, per_token=per_token, sft=sft)
    settings = (("beta", beta), ("kind", kind), ("smoothing", smoothing), ("per_token", per_token), ("sft", sft))
    return Objective("dpo", loss, _count_pairs, ("logprobs", "reference"), 2, settings)


def _reward_pairs_loss(outputs: Outputs, batch: Batch, *, center: float) -> tuple[Tensor, int]:
    rewards = _sum_by_side(require_output(outputs.values, "values"), batch, batch.weights)
    return losses.bradley_terry(rewards[:, 0], rewards[:, 1], center=center), _count_pairs(batch)


def reward_pairs_objective(*, center: float = 0.0) -> Objective:
    """Builds the objective of a reward model from pairs: the mean over pairs of `-log s(r_chosen - r_rejected)`.

    A side's reward is the value at its read-out (`learn.preferences.append_readout`), whose weight is 1.

    Args:
        center: keeps rewards around 0 (see `losses.bradley_terry`).
    Raises:
        ConfigError: `center` is negative.

    >>> reward_pairs_objective().needs
    ('values',)
    >>> losses.bradley_terry(torch.tensor([1.0, 2.0, 0.0]), torch.zeros(3))  # the sum over three pairs
    tensor(1.1333)
    """
    _check_settings((center < 0, "center", f"got {center}, expected 0 or more"))
    return Objective(
        "reward_pairs", partial(_reward_pairs_loss, center=center), _count_pairs, ("values",), 2, (("center", center),)
    )


# ------------------------------------------------------------------ values


def _outcome_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    values = require_output(outputs.values, "values")
    return losses.outcome_error(values, _get_column(batch, "outcome"), batch.weights), _count_targets(batch)


outcome = Objective("outcome", _outcome_loss, _count_targets, ("values",))
"""A reward model from scores: the mean over read-outs of the cross-entropy to the column "outcome", in 0..1."""


def _span_labels_loss(outputs: Outputs, batch: Batch, *, soft: bool) -> tuple[Tensor, int]:
    label_logprobs, labels = require_output(outputs.teacher, "teacher"), _get_column(batch, "label")
    if label_logprobs.shape[-1] != 2:
        raise BatchMismatch(
            "wrong number of label tokens", value=label_logprobs.shape[-1], expected="[good, bad] in 'teacher_ids'"
        )
    targets = labels if soft else (labels > 0).to(labels.dtype)
    return losses.two_label_error(label_logprobs, targets, batch.weights), _count_targets(batch)


def span_labels_objective(*, soft: bool = True) -> Objective:
    """Builds the objective of a process reward model: the mean over labeled spans of the cross-entropy of two label
    tokens.

    It reads only the two tokens of the column "teacher_ids" `[N, 2]` (good, bad), so that no distribution over all
    tokens is stored, and a vocabulary that is split over ranks will do. The column "label" `[N]` is the share of
    completions that were right.

    Args:
        soft: learn the share itself; False: 1 where it is above 0 (Math-Shepherd's hard label).

    >>> span_labels_objective(soft=False).settings
    (('soft', False),)
    """
    return Objective(
        "span_labels", partial(_span_labels_loss, soft=soft), _count_targets, ("teacher",), settings=(("soft", soft),)
    )


def _value_loss(outputs: Outputs, batch: Batch, *, huber: float | None) -> tuple[Tensor, int]:
    values = require_output(outputs.values, "values")
    return losses.value_error(values, _get_column(batch, "returns"), batch.weights, huber=huber), _count_targets(batch)


def value_objective(*, huber: float | None = None) -> Objective:
    """Builds the objective of state values: the mean over weighted targets of half the squared error to the column
    "returns".

    Args:
        huber: error beyond which the loss is linear; None: nowhere.
    Raises:
        ConfigError: `huber` is not above 0.

    >>> value_objective(huber=1.0).settings
    (('huber', 1.0),)
    >>> losses.value_error(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3), torch.ones(3))  # (1 + 0 + 4) / 2
    tensor(2.5000)
    """
    _check_settings((huber is not None and huber <= 0, "huber", f"got {huber}, expected above 0"))
    return Objective(
        "value", partial(_value_loss, huber=huber), _count_targets, ("values",), settings=(("huber", huber),)
    )


# ------------------------------------------------------------------ distillation


def _distill_loss(outputs: Outputs, batch: Batch, *, temperature: float, share: float) -> tuple[Tensor, int]:
    teacher = _get_column(batch, "teacher_logprobs")
    total = share * losses.distillation(
        require_output(outputs.teacher, "teacher"), teacher, batch.weights, temperature=temperature
    )
    if share < 1:
        total = total + (1 - share) * losses.weighted_nll(require_output(outputs.logprobs, "logprobs"), batch.weights)
    return total, _count_targets(batch)


def distill_objective(*, temperature: float = 1.0, share: float = 1.0) -> Objective:
    """Builds the objective of distillation: the mean over targets of `share KL(teacher || student) + (1 - share)
    NLL`.

    Args:
        temperature: of both distributions (see `losses.distillation`).
        share: of the divergence; the remainder is the likelihood of the text itself.
    Raises:
        ConfigError: a setting is out of its range.

    >>> distill_objective(share=0.5).needs
    ('teacher', 'logprobs')
    """
    _check_settings(
        (temperature <= 0, "temperature", f"got {temperature}, expected above 0"),
        (not 0 < share <= 1, "share", f"got {share}, expected above 0 and at most 1"),
    )
    needs: tuple[Need, ...] = ("teacher",) if share == 1 else ("teacher", "logprobs")
    loss = partial(_distill_loss, temperature=temperature, share=share)
    return Objective("distill", loss, _count_targets, needs, settings=(("temperature", temperature), ("share", share)))

"""Objectives: a loss, its count and what it needs, under a name. Contract: `loss(outputs, batch) -> (sum, count)`.

Imitation, preferences, reward models, values and distillation are settings of this one contract. The count depends on
the batch alone; the settings are in the `repr`, by which a resumed training knows that it is the same.
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
from evolvent.learn.packing import Batch

__all__ = [
    "Need",
    "Objective",
    "Outputs",
    "Sums",
    "distill",
    "dpo",
    "gauss_newton",
    "given",
    "outcome",
    "pair_margins",
    "reward_pairs",
    "span_labels",
    "value",
    "weighted_nll",
]

Need = Literal["logprobs", "values", "teacher", "sampled", "reference", "entropy", "logits"]
Sums = Mapping[str, tuple[Tensor, Tensor | int]]
Setting = str | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What the model said about a batch, as far as the objective needs it; float32, one entry a target.

    Attributes:
        logprobs: `[N]`, of the targets. values: `[N]`, the value head's output where the target is predicted.
        teacher: `[N, k]`, log-probabilities of the tokens `batch.columns["teacher_ids"]`.
        sampled: `[N]`, log-probabilities of tokens drawn from the model's own distribution (SophiaG's curvature).
        entropy: `[N]`, of the distribution of the next token, in nats. logits: `[N, V]`, the whole of it, untempered.
    """

    logprobs: Tensor | None = None
    values: Tensor | None = None
    teacher: Tensor | None = None
    sampled: Tensor | None = None
    entropy: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised.

    Args:
        name: how records call it.
        loss: the sum over a batch (a scalar with its graph), and the batch's count.
        count: the normaliser, from the batch alone: it is known for a whole update before its first backward.
        needs: what it reads of the model (see `Outputs`) and, under "reference", the column of that name.
        together: how many neighbouring parts are one sample, never torn apart: 2 for pairs (chosen, rejected).
        settings: what else tells it from others of its name; part of the `repr`, which is equal in every process.
        temperature: that the targets were sampled at: log-probabilities and entropy are of that distribution. Where a
            batch has the column "support" `[N, K]` (token ids, -1: none), they are of those tokens alone (top-k).
        stats: what is measured beside the loss, each as (sum, count) over a batch, under the names `measured`.
        stop: (measured name, limit): an update beyond it is not taken, and ends the pass through the data.
    """

    name: str
    loss: Callable[[Outputs, Batch], tuple[Tensor, int]] = field(repr=False)
    count: Callable[[Batch], int] = field(repr=False)
    needs: tuple[Need, ...] = ("logprobs",)
    together: int = 1
    settings: tuple[tuple[str, Setting], ...] = ()
    temperature: float = field(default=1.0, repr=False)
    stats: Callable[[Outputs, Batch], Sums] | None = field(default=None, repr=False)
    measured: tuple[str, ...] = field(default=(), repr=False)
    stop: tuple[str, float] | None = field(default=None, repr=False)


def _targets(batch: Batch) -> int:
    return batch.count


def given(tensor: Tensor | None, name: str) -> Tensor:
    """An output that an objective asked for.

    Raises:
        BatchMismatch: it is not there.
    """
    if tensor is None:
        raise BatchMismatch(f"the model's outputs have no {name!r}", expected="what the objective's `needs` names")
    return tensor


def _column(batch: Batch, name: str) -> Tensor:
    if name not in batch.columns:
        raise BatchMismatch(
            f"the batch has no column {name!r}", value=sorted(batch.columns), expected=name, hint=_MADE[name]
        )
    return batch.columns[name]


_MADE = {
    "reference": "make it with learn.annotate.annotate(policy, parts)",
    "returns": "make it with learn.preferences.with_returns(...)",
    "outcome": "make it with learn.preferences.outcome_readout(...)",
    "label": "make it with reward.process.prepare(...)",
    "teacher_logprobs": "make it with learn.annotate.annotate(teacher, parts, teacher_k=...)",
}


def _refuse(*problems: tuple[bool, str, str]) -> None:
    """Raise a ConfigError that lists the settings which are wrong: (wrong, name, what is)."""
    found = [Problem(name, what) for wrong, name, what in problems if wrong]
    if found:
        raise ConfigError(found)


# ------------------------------------------------------------------ imitation


def _weighted_nll(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    return losses.weighted_nll(given(outputs.logprobs, "logprobs"), batch.weights), _targets(batch)


weighted_nll = Objective("weighted_nll", _weighted_nll, _targets)
"""Imitation: the mean over weighted targets of `-w log p`. The count is the number of targets whose weight is not 0,
and not the sum of weights: doubling all weights doubles the gradient."""


def _sampled_nll(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    return losses.sampled_nll(given(outputs.sampled, "sampled"), batch.weights), _targets(batch)


gauss_newton = Objective("gauss_newton", _sampled_nll, _targets, ("sampled",))
"""No aim to train on: its squared gradient is SophiaG's estimate of the curvature of `weighted_nll`."""


# ------------------------------------------------------------------ pairs


def _pairs(batch: Batch) -> int:
    """How many pairs a batch has; an empty one has none."""
    samples = batch.samples
    whole = all(left % 2 == 0 and right == left + 1 for left, right in zip(samples[::2], samples[1::2], strict=False))
    if len(samples) % 2 or not whole:
        raise BatchMismatch(
            "a batch in which pairs are torn apart", value=samples, expected="2i (chosen) before 2i + 1 (rejected)"
        )
    return len(samples) // 2


def _by_side(values: Tensor, batch: Batch, weights: Tensor) -> Tensor:
    """Weighted sums of the targets' values as `[P, 2]`: chosen, rejected."""
    if batch.sequence is None:
        raise BatchMismatch("a batch of pairs does not say which sequence its targets belong to", value="sequence None")
    pairs = _pairs(batch)
    return losses.per_sequence(values, weights, batch.sequence, count=2 * pairs).view(pairs, 2)


def _lengths(batch: Batch) -> Tensor:
    ones = torch.ones_like(batch.weights)
    return _by_side(ones, batch, ones).clamp(min=1.0)


def pair_margins(outputs: Outputs, batch: Batch, *, per_token: bool = False) -> Tensor:
    """How much more the policy has come to prefer the chosen side than the reference does, `[P]`.

    `log pi(c) / ref(c) - log pi(r) / ref(r)`, log-ratios summed over a side's weighted targets; positive where a pair
    is told right.

    Args:
        per_token: means over the targets of a side instead of sums.
    Raises:
        BatchMismatch: no column "reference", or a batch that is not made of pairs.
    """
    ratios = given(outputs.logprobs, "logprobs") - _column(batch, "reference")
    sides = _by_side(ratios, batch, batch.weights)
    if per_token:
        sides = sides / _lengths(batch)
    return sides[:, 0] - sides[:, 1]


def _dpo(
    outputs: Outputs, batch: Batch, *, beta: float, kind: str, smoothing: float, per_token: bool, sft: float
) -> tuple[Tensor, int]:
    margins = pair_margins(outputs, batch, per_token=per_token)
    total = losses.ipo(margins, beta=beta) if kind == "ipo" else losses.dpo(margins, beta=beta, smoothing=smoothing)
    if sft:
        said = _by_side(given(outputs.logprobs, "logprobs"), batch, batch.weights) / _lengths(batch)
        total = total - sft * said[:, 0].sum()
    return total, _pairs(batch)


def dpo(
    *,
    beta: float = 0.1,
    kind: Literal["sigmoid", "ipo"] = "sigmoid",
    smoothing: float = 0.0,
    per_token: bool = False,
    sft: float = 0.0,
) -> Objective:
    """Preferences without a reward model: the mean over pairs (see `losses.dpo`, `losses.ipo`).

    Args:
        beta: how strongly the policy is held to the reference; greater is closer.
        kind: "sigmoid" (arXiv 2305.18290) or "ipo" (arXiv 2310.12036).
        smoothing: how often a label is taken to be wrong (sigmoid only).
        per_token: log-ratios are means over a side's targets, not sums: lengths do not count. The IPO paper's equation
            has sums; its authors have told that their figures are with means.
        sft: times the chosen side's mean negative log-likelihood is added (as in arXiv 2404.19733).
    Raises:
        ConfigError: a setting out of its range.
    """
    _refuse(
        (beta <= 0, "beta", f"must be above 0, got {beta}"),
        (kind not in ("sigmoid", "ipo"), "kind", f"must be 'sigmoid' or 'ipo', got {kind!r}"),
        (not 0 <= smoothing < 0.5, "smoothing", f"must be 0 or more and below 0.5, got {smoothing}"),
        (kind == "ipo" and smoothing != 0, "smoothing", f"ipo has none, got {smoothing}"),
        (sft < 0, "sft", f"must be 0 or more, got {sft}"),
    )
    loss = partial(_dpo, beta=beta, kind=kind, smoothing=smoothing, per_token=per_token, sft=sft)
    settings = (("beta", beta), ("kind", kind), ("smoothing", smoothing), ("per_token", per_token), ("sft", sft))
    return Objective("dpo", loss, _pairs, ("logprobs", "reference"), 2, settings)


def _reward_pairs(outputs: Outputs, batch: Batch, *, center: float) -> tuple[Tensor, int]:
    rewards = _by_side(given(outputs.values, "values"), batch, batch.weights)
    return losses.bradley_terry(rewards[:, 0], rewards[:, 1], center=center), _pairs(batch)


def reward_pairs(*, center: float = 0.0) -> Objective:
    """A reward model from pairs: the mean over pairs of `-log s(r_chosen - r_rejected)`.

    A side's reward is the value at its read-out (`learn.preferences.readouts`), whose weight is 1.

    Args:
        center: keeps rewards around 0 (see `losses.bradley_terry`).
    Raises:
        ConfigError: a negative `center`.
    """
    _refuse((center < 0, "center", f"must be 0 or more, got {center}"))
    return Objective(
        "reward_pairs", partial(_reward_pairs, center=center), _pairs, ("values",), 2, (("center", center),)
    )


# ------------------------------------------------------------------ values


def _outcome(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    values = given(outputs.values, "values")
    return losses.outcome_error(values, _column(batch, "outcome"), batch.weights), _targets(batch)


outcome = Objective("outcome", _outcome, _targets, ("values",))
"""A reward model from scores: the mean over read-outs of the cross-entropy to the column "outcome", in 0..1."""


def _span_labels(outputs: Outputs, batch: Batch, *, soft: bool) -> tuple[Tensor, int]:
    words, labels = given(outputs.teacher, "teacher"), _column(batch, "label")
    if words.shape[-1] != 2:
        raise BatchMismatch("not two label words", value=words.shape[-1], expected="[good, bad] in 'teacher_ids'")
    wanted = labels if soft else (labels > 0).to(labels.dtype)
    return losses.two_label_error(words, wanted, batch.weights), _targets(batch)


def span_labels(*, soft: bool = True) -> Objective:
    """A process reward model: the mean over labelled spans of the cross-entropy over two label words at the tag.

    It reads the two words of the column "teacher_ids" `[N, 2]` (good, bad) only, so no distribution over all words is
    kept, and a vocabulary that is cut over ranks will do. The column "label" `[N]` is the share of completions that
    were right.

    Args:
        soft: learn the share itself; False: 1 where it is above 0 (Math-Shepherd's hard label).
    """
    return Objective(
        "span_labels", partial(_span_labels, soft=soft), _targets, ("teacher",), settings=(("soft", soft),)
    )


def _value(outputs: Outputs, batch: Batch, *, huber: float | None) -> tuple[Tensor, int]:
    values = given(outputs.values, "values")
    return losses.value_error(values, _column(batch, "returns"), batch.weights, huber=huber), _targets(batch)


def value(*, huber: float | None = None) -> Objective:
    """State values: the mean over weighted targets of half the squared error to the column "returns".

    Args:
        huber: errors beyond it count linearly; None: none do.
    Raises:
        ConfigError: `huber` is not above 0.
    """
    _refuse((huber is not None and huber <= 0, "huber", f"must be above 0, got {huber}"))
    return Objective("value", partial(_value, huber=huber), _targets, ("values",), settings=(("huber", huber),))


# ------------------------------------------------------------------ distillation


def _distill(outputs: Outputs, batch: Batch, *, temperature: float, share: float) -> tuple[Tensor, int]:
    teacher = _column(batch, "teacher_logprobs")
    total = share * losses.distillation(
        given(outputs.teacher, "teacher"), teacher, batch.weights, temperature=temperature
    )
    if share < 1:
        total = total + (1 - share) * losses.weighted_nll(given(outputs.logprobs, "logprobs"), batch.weights)
    return total, _targets(batch)


def distill(*, temperature: float = 1.0, share: float = 1.0) -> Objective:
    """A teacher's distribution: the mean over weighted targets of `share KL(teacher || student) + (1 - share) NLL`.

    Args:
        temperature: of both distributions (see `losses.distillation`).
        share: of the divergence; the rest is the likelihood of the text itself.
    Raises:
        ConfigError: a setting out of its range.
    """
    _refuse(
        (temperature <= 0, "temperature", f"must be above 0, got {temperature}"),
        (not 0 < share <= 1, "share", f"must be above 0 and at most 1, got {share}"),
    )
    needs: tuple[Need, ...] = ("teacher",) if share == 1 else ("teacher", "logprobs")
    loss = partial(_distill, temperature=temperature, share=share)
    return Objective("distill", loss, _targets, needs, settings=(("temperature", temperature), ("share", share)))

"""Policy gradients as objectives: one loss with settings. `learn.presets` holds the published ones.

The batch's columns, one entry a target, are "advantages", "old" (log-probabilities of the policy before the update,
under the distribution it sampled from), and as the settings ask "behaviour" (the sampler's own), "reference",
"returns", "old_values", "action" and "span" (running numbers inside the sequence).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from evolvent.config import Config
from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.former_names import former_fields
from evolvent.identity import version_1_text
from evolvent.learn.objectives import Need, Objective, Outputs, given
from evolvent.learn.packing import Batch
from evolvent.rl import policy_losses as losses

__all__ = [
    "Aggregate",
    "Behaviour",
    "Clip",
    "ClippedWeight",
    "Corrected",
    "Divergence",
    "PolicyGradient",
    "Reinforce",
    "ValueLoss",
    "policy_gradient",
]

Level = Literal["part", "span", "action", "sequence"]


@dataclass(frozen=True, slots=True)
class Clip:
    """PPO's clipped ratio (see `policy_losses.clipped`)."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class ClippedWeight:
    """CISPO's clipped weight of the log-probability (see `policy_losses.clipped_weight`)."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Reinforce:
    """The policy gradient without a ratio."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """How terms are added up (see `policy_losses.aggregation`): `length` for constant_length, `level` for unit_mean."""

    kind: losses.Kind = "part_mean"
    length: int | None = None
    level: Level = "part"


@dataclass(frozen=True, slots=True)
class Divergence:
    """`beta` times the divergence from the reference, in the loss; k3 as a value, or k2, whose gradient is exact."""

    beta: float
    kind: Literal["k2", "k3"] = "k3"


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """`coefficient` times half the squared error of the values (see `policy_losses.value_terms`).

    At a level above "part" the value of a unit's first target alone is fitted, with the weight of the whole unit.
    """

    coefficient: float = 0.5
    clip: float | None = None
    huber: float | None = None
    level: Level = "part"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the surrogate is weighted with where sampler and trainer differ (see `policy_losses.behaviour_weights`)."""

    cap: float = 2.0
    kind: Literal["truncated", "masked"] = "truncated"
    level: Literal["part", "sequence"] = "part"


class Corrected(Config):
    """Settings of a method whose surrogate can be weighted against a sampler that is not the old policy."""

    correct: Literal["none", "truncated", "masked"] = Field(
        default="none", description="weights against a sampler that differs from the policy"
    )
    cap: float = Field(default=2.0, gt=0, description="largest such weight")

    def behaviour(self, level: Literal["part", "sequence"] = "part") -> Behaviour | None:
        """As a loss takes it; at the level at which its ratio is clipped."""
        return None if self.correct == "none" else Behaviour(self.cap, self.correct, level)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """The settings of `policy_gradient`; equal settings have an equal `repr`, in every process.

    Args:
        ratio: the level of the ratio of new to old policy: a part's own; the product over its span or action; of the
            sequence the geometric mean (GSPO).
        surrogate: what is made of ratio and advantage. aggregate: how terms are added up.
        kl: to the reference; None skips its pass. entropy: the coefficient of its bonus. value: None: no critic.
        behaviour: correction for a sampler that is not the old policy; None: none.
        stop_kl: an update at which the policy is further than that from the old one (k3) is not taken, and ends the
            pass through the data; None: never.
        temperature: that actions were sampled at.
    Raises:
        ConfigError: settings out of their range, all at once.
    """

    ratio: Level = "part"
    surrogate: Clip | ClippedWeight | Reinforce = Clip()
    aggregate: Aggregate = Aggregate()
    kl: Divergence | None = None
    entropy: float = 0.0
    value: ValueLoss | None = None
    behaviour: Behaviour | None = None
    stop_kl: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if problems := _problems(self):
            raise ConfigError(problems)


def policy_gradient(settings: PolicyGradient | None = None, *, name: str = "policy_gradient") -> Objective:
    """The objective of these settings: surrogate + kl - entropy bonus + value loss.

    Raises:
        BatchMismatch: (its loss) a column that the settings ask for is not in the batch.
    """
    chosen = settings or PolicyGradient()
    asked: dict[Need, bool] = {
        "logprobs": True,
        "values": chosen.value is not None,
        "entropy": chosen.entropy != 0,
        "reference": chosen.kl is not None,
    }
    former = former_fields(type(chosen))  # settings keep their identity when they are renamed
    described = tuple((former.get(f.name, f.name), _setting(getattr(chosen, f.name))) for f in fields(chosen))
    return Objective(
        name,
        partial(_loss, settings=chosen),
        partial(_count, settings=chosen),
        tuple(need for need, wanted in asked.items() if wanted),
        settings=described,
        temperature=chosen.temperature,
        stats=partial(_stats, settings=chosen),
        measured=_measured(chosen),
        stop=None if chosen.stop_kl is None else ("kl", chosen.stop_kl),
    )


def _setting(value: object) -> str | float | None:
    return value if value is None or isinstance(value, str | float) else version_1_text(value)


def _problems(settings: PolicyGradient) -> list[Problem]:
    """Everything that is wrong with these settings."""
    s, value, behaviour, aggregate = settings.surrogate, settings.value, settings.behaviour, settings.aggregate
    low, high = (s.low, s.high) if isinstance(s, Clip | ClippedWeight) else (0.0, 0.0)
    dual, stop = s.dual if isinstance(s, Clip) else None, settings.stop_kl
    clip, huber = (value.clip, value.huber) if value is not None else (None, None)
    checks = (
        (not 0 <= low <= 1, "surrogate.low", f"must be from 0 to 1, got {low}"),
        (not high >= 0, "surrogate.high", f"must be 0 or more, got {high}"),
        (dual is not None and not dual > 1, "surrogate.dual", f"must be above 1, got {dual}"),
        (settings.kl is not None and not settings.kl.beta > 0, "kl.beta", "must be above 0; use kl=None for none"),
        (value is not None and not value.coefficient > 0, "value.coefficient", "must be above 0"),
        (clip is not None and not clip > 0, "value.clip", f"must be above 0, got {clip}"),
        (huber is not None and not huber > 0, "value.huber", f"must be above 0, got {huber}"),
        (behaviour is not None and not behaviour.cap > 0, "behaviour.cap", "must be above 0"),
        (stop is not None and not stop > 0, "stop_kl", f"must be above 0, got {stop}"),
        (not settings.temperature > 0, "temperature", f"must be above 0, got {settings.temperature}"),
        (
            (aggregate.kind == "constant_length") != (aggregate.length is not None),
            "aggregate.length",
            "is what constant_length divides by, and of no other kind",
        ),
        (aggregate.length is not None and not aggregate.length > 0, "aggregate.length", "must be above 0"),
    )
    return [Problem(name, what) for wrong, name, what in checks if wrong]


# ------------------------------------------------------------------ reading a batch

_MADE = {
    "advantages": "give credit (learn.credit) and add it with learn.flat.with_columns(...)",
    "returns": "give credit (learn.credit) and add its returns with learn.flat.with_columns(...)",
    "old": "score the parts with the policy as it is before the update (learn.annotate)",
    "old_values": "score the parts with the value head as it is before the update",
    "behaviour": "the sampler's log-probabilities: Flat.logp, added with learn.flat.with_columns(...)",
    "reference": "make it with learn.annotate.annotate(policy, parts)",
    "action": "the running number of the action inside its sequence, int64",
    "span": "the running number of the span inside its sequence, int64",
}


def _column(batch: Batch, name: str) -> Tensor:
    if name not in batch.columns:
        raise BatchMismatch(
            f"the batch has no column {name!r}", value=sorted(batch.columns), expected=name, hint=_MADE[name]
        )
    return batch.columns[name]


def _sequence(batch: Batch) -> Tensor:
    if batch.sequence is None:
        raise BatchMismatch("the batch does not say which sequence its targets belong to", value="sequence None")
    return losses.units(batch.sequence)


def _units(level: Level, batch: Batch) -> Tensor:
    """The unit of each target at a level, `[N]`."""
    sequence = _sequence(batch)
    if level == "sequence":
        return sequence
    if level == "part":
        return torch.arange(batch.count, device=sequence.device)
    return losses.units(sequence, _column(batch, level))


def _log_ratio(settings: PolicyGradient, logprobs: Tensor, old: Tensor, batch: Batch) -> Tensor:
    if settings.ratio == "part":
        return logprobs - old
    unit = _units(settings.ratio, batch)
    if settings.ratio == "sequence":
        return losses.sequence_log_ratio(logprobs, old, unit)
    return losses.unit_sums(logprobs - old, unit)


def _weights(settings: PolicyGradient, batch: Batch) -> tuple[Tensor, int]:
    aggregate = settings.aggregate
    unit = _units(aggregate.level, batch) if aggregate.kind == "unit_mean" else None
    sequences = len(batch.samples) if batch.count else 0
    return losses.aggregation(aggregate.kind, _sequence(batch), sequences=sequences, length=aggregate.length, unit=unit)


# ------------------------------------------------------------------ the loss


def _count(batch: Batch, *, settings: PolicyGradient) -> int:
    return _weights(settings, batch)[1]


def _loss(outputs: Outputs, batch: Batch, *, settings: PolicyGradient) -> tuple[Tensor, int]:
    learned, (shares, count) = batch.weights, _weights(settings, batch)
    logprobs, old, advantages = losses.selected(
        learned, given(outputs.logprobs, "logprobs"), _column(batch, "old"), _column(batch, "advantages")
    )
    weights = shares * learned
    terms = _surrogate(settings, logprobs, _log_ratio(settings, logprobs, old, batch), advantages)
    if settings.behaviour is not None:
        (sampled,) = losses.selected(learned, _column(batch, "behaviour"))
        terms = _corrected(settings.behaviour, terms, old, sampled, batch)
    if settings.kl is not None:
        (reference,) = losses.selected(learned, _column(batch, "reference"))
        measure = losses.kl_k2 if settings.kl.kind == "k2" else losses.kl_k3
        terms = terms + settings.kl.beta * measure(logprobs, reference)
    if settings.entropy:
        (entropy,) = losses.selected(learned, given(outputs.entropy, "entropy"))
        terms = terms - settings.entropy * entropy
    loss = losses.total(terms, weights)
    if settings.value is not None:
        loss = loss + settings.value.coefficient * _value_loss(settings.value, outputs, batch, weights)
    return loss, count


def _surrogate(settings: PolicyGradient, logprobs: Tensor, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    how = settings.surrogate
    if isinstance(how, Clip):
        return losses.clipped(log_ratio, advantages, low=how.low, high=how.high, dual=how.dual)
    if isinstance(how, ClippedWeight):
        return losses.clipped_weight(log_ratio, advantages, logprobs, low=how.low, high=how.high)
    return losses.reinforce(advantages, logprobs)


def _corrected(how: Behaviour, terms: Tensor, old: Tensor, sampled: Tensor, batch: Batch) -> Tensor:
    """The surrogate's terms, weighted; those of masked targets are not looked at."""
    unit = _sequence(batch) if how.level == "sequence" else None
    weight = losses.behaviour_weights(old, sampled, cap=how.cap, kind=how.kind, unit=unit)
    return torch.where(weight != 0, weight * terms, 0.0)


def _value_loss(how: ValueLoss, outputs: Outputs, batch: Batch, weights: Tensor) -> Tensor:
    if how.level != "part":
        unit = _units(how.level, batch)
        fitted = losses.first_of_unit(unit) & (weights != 0)
        weights = torch.where(fitted, losses.unit_sums(weights, unit), 0.0)
    values, returns = losses.selected(weights, given(outputs.values, "values"), _column(batch, "returns"))
    (old,) = losses.selected(weights, _column(batch, "old_values")) if how.clip is not None else (None,)
    return losses.total(losses.value_terms(values, returns, old, clip=how.clip, huber=how.huber), weights)


# ------------------------------------------------------------------ measurements


def _measured(settings: PolicyGradient) -> tuple[str, ...]:
    names = ("kl", "clip_low", "clip_high", "ratio", "ratio_max", "effective")
    mismatch = ("mismatch",) if settings.behaviour is not None else ()
    return names + mismatch + (("entropy",) if settings.entropy else ())


@torch.no_grad()
def _stats(outputs: Outputs, batch: Batch, *, settings: PolicyGradient) -> dict[str, tuple[Tensor, int]]:
    logprobs, old = given(outputs.logprobs, "logprobs"), _column(batch, "old")
    how = settings.surrogate
    low, high = (1.0, float("inf")) if isinstance(how, Reinforce) else (how.low, how.high)
    return losses.policy_stats(
        _log_ratio(settings, logprobs, old, batch),
        logprobs - old,
        _column(batch, "advantages"),
        low=low,
        high=high,
        behaviour_gap=old - _column(batch, "behaviour") if settings.behaviour is not None else None,
        entropy=given(outputs.entropy, "entropy") if settings.entropy else None,
    )

"""Settings of reinforcement learning: of its iterations and its losses. They need no torch.

The command line checks settings before it loads the modules that learn, so that a mistake is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem

__all__ = [
    "Aggregate",
    "Aggregation",
    "ChoiceConfig",
    "Clip",
    "ClippedWeight",
    "Divergence",
    "ImportanceCorrection",
    "ImportanceWeights",
    "Level",
    "PolicyGradient",
    "RLConfig",
    "Reinforce",
    "ValueLoss",
]

Level = Literal["part", "span", "action", "sequence"]
Aggregation = Literal["part_mean", "sequence_mean", "sequence_sum", "constant_length", "unit_mean"]


class RLConfig(Config):
    """Settings of reinforcement learning that all methods share."""

    iterations: int = Field(default=50, ge=1, description="Number of iterations: rollout, scoring and update.")
    tasks_per_iteration: int = Field(default=16, ge=1, description="Tasks that an iteration plays.")
    group_size: int = Field(default=4, ge=1, description="Episodes of each task in an iteration: its group.")
    ppo_epochs: int = Field(default=2, ge=1, description="Passes through the episodes of an iteration.")
    minibatches: int = Field(default=2, ge=1, description="Updates in each pass.")
    temperature: float = Field(
        default=1.0, gt=0, description="Sampling temperature, also used when log-probabilities are recomputed."
    )
    top_k: int = Field(default=0, ge=0, le=256, description="Sample from this many likeliest tokens; 0: from all.")
    restrict_to_admissible: bool = Field(default=False, description="Sample only actions that the world lists.")
    horizon: int | None = Field(default=None, ge=1, description="Step limit of an episode; none: the world's limit.")
    prefetch_rollouts: bool = Field(
        default=False,
        description="Play max_policy_lag iterations ahead while one is trained on; they are that many versions behind.",
    )
    max_policy_lag: int = Field(default=1, ge=0, description="Iterations that an episode may be older than the policy.")
    critic: Literal["shared", "separate"] = Field(
        default="shared", description="Estimate values on the policy's trunk, or with a separate network."
    )
    critic_lr: float | None = Field(
        default=None, gt=0, description="Learning rate of a separate critic; none: the policy's rate."
    )
    critic_warmup: int = Field(default=0, ge=0, description="First iterations that train only the critic.")
    measure_every: int = Field(default=0, ge=0, description="Iterations between evaluations; 0: only at the end.")
    save_every: int = Field(default=5, ge=1, description="Iterations between checkpoints.")

    @model_validator(mode="after")
    def _check_prefetching(self) -> RLConfig:
        if self.prefetch_rollouts and not self.max_policy_lag:
            raise ValueError(
                "prefetch_rollouts plays with a policy that is max_policy_lag versions behind; set that to 1 or more"
            )
        if self.prefetch_rollouts and self.top_k:
            raise ValueError(
                "top_k needs the weights that sampled, but prefetch_rollouts replaces them; leave out one of the two"
            )
        return self


# ------------------------------------------------------------------ losses


@dataclass(frozen=True, slots=True)
class Clip:
    """PPO's clipped ratio (see `policy_losses.clipped_surrogate`)."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class ClippedWeight:
    """CISPO's clipped weight of the log-probability (see `policy_losses.clipped_weight_surrogate`)."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Reinforce:
    """The policy gradient without a ratio."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """How terms are aggregated: `length` for constant_length, `level` for unit_mean
    (`policy_losses.aggregation_weights`).
    """

    kind: Aggregation = "part_mean"
    length: int | None = None
    level: Level = "part"


@dataclass(frozen=True, slots=True)
class Divergence:
    """`beta` times the divergence from the reference, in the loss: k3 as a value, or k2 with an exact gradient."""

    beta: float
    kind: Literal["k2", "k3"] = "k3"


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """`coefficient` times half the squared error of the values (see `policy_losses.value_losses`).

    At a level above "part" only the value of a unit's first target is fitted, with the weight of the whole unit.
    """

    coefficient: float = 0.5
    clip: float | None = None
    huber: float | None = None
    level: Level = "part"


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Weights of the surrogate where sampler and trainer differ (see `policy_losses.importance_weights`)."""

    max_weight: float = 2.0
    kind: Literal["truncated", "masked"] = "truncated"
    level: Literal["part", "sequence"] = "part"


class ImportanceCorrection(Config):
    """Settings of a method whose surrogate can be reweighted for a sampler that differs from the old policy."""

    importance_correction: Literal["none", "truncated", "masked", "sequence_truncated", "sequence_masked"] = Field(
        default="none",
        description="Corrects for samples of another policy than the learner's, by token or sequence.",
    )
    max_importance_weight: float = Field(default=2.0, gt=0, description="Largest importance weight of the correction.")

    def importance_weights(self, level: Literal["part", "sequence"] = "part") -> ImportanceWeights | None:
        """Returns the settings as a loss takes them; None without correction.

        Args:
            level: the level at which the ratio of the loss is clipped; a correction of sequences stays one.
        """
        correction = self.importance_correction
        if correction == "none":
            return None
        is_masked = correction in ("masked", "sequence_masked")
        return ImportanceWeights(
            self.max_importance_weight,
            "masked" if is_masked else "truncated",
            "sequence" if correction.startswith("sequence_") else level,
        )


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """The settings of `policy_gradient`; equal settings have an equal `repr`, in every process.

    Args:
        ratio: the level of the ratio of new to old policy: each token's own; the product over its span or action;
            for a sequence the geometric mean (GSPO).
        surrogate: the function of ratio and advantage.
        aggregate: how terms are summed.
        kl: divergence from the reference; None skips the reference's forward pass.
        entropy_coef: coefficient of the entropy bonus.
        value_loss: loss of the values; None: no critic.
        importance_weights: correction for a sampler that differs from the old policy; None: none.
        target_kl: an update at which the policy is further than this from the old one (k3) is not taken, and ends
            the pass through the data; None: never.
        temperature: sampling temperature of the actions.
    Raises:
        ConfigError: settings are out of their range; lists all of them.
    """

    ratio: Level = "part"
    surrogate: Clip | ClippedWeight | Reinforce = Clip()
    aggregate: Aggregate = Aggregate()
    kl: Divergence | None = None
    entropy_coef: float = 0.0
    value_loss: ValueLoss | None = None
    importance_weights: ImportanceWeights | None = None
    target_kl: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if problems := _list_problems(self):
            raise ConfigError(problems)


def _list_problems(settings: PolicyGradient) -> list[Problem]:
    """Lists everything that is wrong with these settings."""
    surrogate, value, behaviour, aggregate = (
        settings.surrogate,
        settings.value_loss,
        settings.importance_weights,
        settings.aggregate,
    )
    low, high = (surrogate.low, surrogate.high) if isinstance(surrogate, Clip | ClippedWeight) else (0.0, 0.0)
    dual, target_kl = surrogate.dual if isinstance(surrogate, Clip) else None, settings.target_kl
    clip, huber = (value.clip, value.huber) if value is not None else (None, None)
    checks = (
        (not 0 <= low <= 1, "surrogate.low", f"got {low}, expected from 0 to 1"),
        (not high >= 0, "surrogate.high", f"got {high}, expected 0 or more"),
        (dual is not None and not dual > 1, "surrogate.dual", f"got {dual}, expected above 1"),
        (
            settings.kl is not None and not settings.kl.beta > 0,
            "kl.beta",
            "expected above 0; set kl=None to leave it out",
        ),
        (value is not None and not value.coefficient > 0, "value_loss.coefficient", "expected above 0"),
        (clip is not None and not clip > 0, "value_loss.clip", f"got {clip}, expected above 0"),
        (huber is not None and not huber > 0, "value_loss.huber", f"got {huber}, expected above 0"),
        (behaviour is not None and not behaviour.max_weight > 0, "importance_weights.max_weight", "expected above 0"),
        (target_kl is not None and not target_kl > 0, "target_kl", f"got {target_kl}, expected above 0"),
        (not settings.temperature > 0, "temperature", f"got {settings.temperature}, expected above 0"),
        (
            (aggregate.kind == "constant_length") != (aggregate.length is not None),
            "aggregate.length",
            "set it exactly when aggregate.kind is 'constant_length'",
        ),
        (
            aggregate.length is not None and not aggregate.length > 0,
            "aggregate.length",
            f"got {aggregate.length}, expected above 0",
        ),
    )
    return [Problem(name, message) for is_wrong, name, message in checks if is_wrong]


@dataclass(frozen=True, slots=True)
class ChoiceConfig:
    """Settings of `choice_objective`.

    Attributes:
        surrogate: clip range of a decision's ratio.
        entropy_coef: coefficient of the entropy bonus over candidates.
        value_loss: loss of the values; None: no critic.
        target_kl: divergence from the old policy at which training on the data stops; None: never.
        temperature: divides the candidates' scores.
    """

    surrogate: Clip = field(default_factory=Clip)
    entropy_coef: float = 0.0
    value_loss: ValueLoss | None = None
    target_kl: float | None = None
    temperature: float = 1.0

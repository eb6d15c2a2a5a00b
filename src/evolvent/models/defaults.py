"""Training settings that follow from a model: from its size, from pretrained weights, and from an adapter.

The defaults of `TrainConfig` are for small models that are trained from nothing. A pretrained model forgets what it
knows at such rates. Its rate falls with the square root of its size, 2e-5 at a billion weights, and is ten times as
high for an adapter (Schulman and Thinking Machines, "LoRA Without Regret", 2025). Reinforcement learning takes a tenth
of the rate of imitation: its gradients are noisier, and an update must stay near the policy that played.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

from evolvent.config import Config

__all__ = [
    "ADAM_EPS",
    "MIN_PRETRAINED",
    "PRETRAINED_REPLY_TOKENS",
    "REPLY_TOKENS",
    "ModelFacts",
    "fill_settings",
    "reply_length",
    "rl_settings",
    "train_settings",
]

C = TypeVar("C", bound=Config)

ADAM_EPS = 1e-8
"""AdamW's epsilon as torch has it; pretrained models keep it, whose gradients are spread over millions of weights."""

MIN_PRETRAINED = 10_000_000
"""Weights from which a model counts as pretrained; the smallest published ones have 14 million."""

_REFERENCE_LR, _REFERENCE_SIZE = 2e-5, 1e9
_ADAPTER_FACTOR, _RL_FACTOR = 10, 0.1


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that settings follow from.

    Attributes:
        num_parameters: weights of the model.
        is_pretrained: whether it has learned language: not a model over the words of worlds, nor one of less than ten
            million weights.
        has_adapter: whether an adapter is learned in place of all weights.
    """

    num_parameters: int
    is_pretrained: bool
    has_adapter: bool = False

    @classmethod
    def of_model(cls, num_parameters: int, dialect: str | None, *, has_adapter: bool) -> ModelFacts:
        """Returns the facts of a model; the dialect is that of its policy, None where no policy was saved."""
        is_pretrained = dialect != "words" and num_parameters >= MIN_PRETRAINED
        return cls(num_parameters, is_pretrained, has_adapter)


REPLY_TOKENS = 32
"""Default of the maximum tokens of a reply of a small model, which writes whole words."""
PRETRAINED_REPLY_TOKENS = 64
"""Default of the maximum tokens of a reply of a pretrained model, which writes pieces of words."""


def reply_length(facts: ModelFacts | None) -> int:
    """Returns the default of the maximum tokens of a reply.

    >>> reply_length(None), reply_length(ModelFacts(135_000_000, is_pretrained=True))
    (32, 64)
    """
    return PRETRAINED_REPLY_TOKENS if facts is not None and facts.is_pretrained else REPLY_TOKENS


def train_settings(facts: ModelFacts) -> dict[str, object]:
    """Returns settings of imitation that differ from the defaults of `TrainConfig`; empty for small models.

    >>> train_settings(ModelFacts(135_000_000, is_pretrained=True, has_adapter=True))["lr"]
    0.00054
    """
    if not facts.is_pretrained:
        return {}
    return {
        "lr": _learning_rate(facts),
        "weight_decay": 0.01,
        "warmup_steps": 10,
        "batch_tokens": 2048,
        "max_tokens_per_forward": 1024,
        "epochs": 3,
    }


def rl_settings(facts: ModelFacts) -> dict[str, object]:
    """Returns settings of reinforcement learning that differ from `RL_TRAIN`; empty for small models.

    An update of reinforcement learning takes a whole minibatch; `batch_tokens` are those of one forward.
    """
    if not facts.is_pretrained:
        return {}
    return {"lr": float(f"{_learning_rate(facts) * _RL_FACTOR:.2g}"), "batch_tokens": 1024}


def _learning_rate(facts: ModelFacts) -> float:
    rate = _REFERENCE_LR * sqrt(_REFERENCE_SIZE / max(facts.num_parameters, 1))
    rate = min(max(rate, 5e-6), 2e-4) * (_ADAPTER_FACTOR if facts.has_adapter else 1)
    return float(f"{rate:.2g}")


def fill_settings(config: C, settings: Mapping[str, object]) -> C:
    """Returns a configuration in which the given settings stand wherever nobody set a value."""
    unset = {name: value for name, value in settings.items() if name not in config.model_fields_set}
    return config.model_copy(update=unset) if unset else config

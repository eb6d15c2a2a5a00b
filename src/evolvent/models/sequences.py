"""Policies that read a stream of (return-to-go, observation, action): Decision Transformer and its variants.

One network: Decision Transformer (arXiv 2106.01345) reads the three; without returns it is behavior cloning by
the same GPT; with a squashed Gaussian in place of one action and without time steps it is Online Decision
Transformer (arXiv 2202.05607). A part of the stream is a linear embedding plus a learned one of its step's
number in the episode; the action is read at the position of its observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence policy") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.models.trunk import Trunk, TrunkShape

__all__ = ["DecisionModel", "SequenceShape", "squashed_logp", "squashed_sample"]

_MIN_LOG_STD, _MAX_LOG_STD = -5.0, 2.0  # of a log deviation
_EDGE = 1.0 - 1e-6  # an action at the edge has no finite pre-image


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceShape:
    """The architecture of a sequence policy.

    Attributes:
        observation: O. actions: of a discrete choice; 0: numbers. dim: D, numbers in -1..1; 0: a discrete choice.
        context: K, maximum number of steps that are read. horizon: time steps with an embedding; 0: none (Online
            DT).
        returns: whether returns-to-go are part of the stream (False: behavior cloning).
        scale: the divisor of returns. stochastic: a squashed Gaussian instead of one action, for numbers.
        condition: C, numbers of a step's condition; 1: its return-to-go.
        width, heads, layers, dropout, activation: of the trunk.
    Raises:
        ConfigError: sizes that are not possible, all of them at once.
    """

    observation: int
    actions: int = 0
    dim: int = 0
    context: int = 20
    horizon: int = 1000
    returns: bool = True
    scale: float = 1.0
    stochastic: bool = False
    condition: int = 1
    width: int = 128
    heads: int = 1
    layers: int = 3
    dropout: float = 0.1
    activation: Literal["gelu", "gelu_tanh", "relu"] = "relu"

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"got {getattr(self, name)}, expected at least 1")
            for name in ("observation", "context", "condition")
            if getattr(self, name) < 1
        ]
        if (self.actions > 0) == (self.dim > 0) or min(self.actions, self.dim, self.horizon) < 0:
            problems.append(
                Problem(
                    "actions", f"got {self.actions} choices and {self.dim} numbers", "set only one of actions and dim"
                )
            )
        if self.stochastic and not self.dim:
            problems.append(Problem("stochastic", "a squashed Gaussian needs continuous actions"))
        if not (math.isfinite(self.scale) and self.scale > 0):
            problems.append(Problem("scale", f"got {self.scale}, expected a number above 0"))
        if problems:
            raise ConfigError(problems)


class DecisionModel(nn.Module):
    """The network. Random numbers of initialization are torch's global ones: seed them inside `fork_rng`."""

    def __init__(self, shape: SequenceShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.embed_return = nn.Linear(shape.condition, width) if shape.returns else None
        self.embed_observation = nn.Linear(shape.observation, width)
        self.embed_action = nn.Linear(shape.actions or shape.dim, width)
        self.embed_time = nn.Embedding(shape.horizon, width) if shape.horizon else None
        self.norm = nn.LayerNorm(width)
        self.trunk = Trunk(
            TrunkShape(
                width=width, heads=shape.heads, layers=shape.layers, dropout=shape.dropout, activation=shape.activation
            )
        )
        self.head = nn.Linear(width, shape.actions or shape.dim * (1 + shape.stochastic))

    def forward(
        self, observation: Tensor, action: Tensor, *, to_go: Tensor, time: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Computes the policy's action or action distribution at each step.

        Args:
            observation: `[B, K, O]`. action: `[B, K]` int64 (-1: none) or `[B, K, D]`; a step's own is not read for it.
            to_go: `[B, K]`, in the world's units; with C > 1 `[B, K, C]`. time: `[B, K]` int64.
            attention_mask: `[B, K]` bool, False at padding.
        Returns:
            `[B, K, A]` logits; or `[B, K, D]` actions in -1..1; or, stochastic, `[B, K, 2, D]` mean and log deviation.
        Raises:
            BatchMismatch: arrays of another shape, more steps than the context, a time step without an embedding.
        """
        shape = self.shape
        self._check(observation, action, time)
        self._check_conditions(to_go)
        if shape.actions:
            action = F.one_hot(action.clamp(min=0), shape.actions) * (action >= 0)[..., None]
        parts = [self.embed_observation(observation), self.embed_action(action.to(observation.dtype))]
        if self.embed_return is not None:
            conditions = to_go if to_go.dim() == 3 else to_go[..., None]
            parts.insert(0, self.embed_return(conditions / shape.scale))
        stream = torch.stack(parts, 2)  # [B, K, 2 or 3, D]
        if self.embed_time is not None:
            stream = stream + self.embed_time(time)[:, :, None]
        tokens_per_step = len(parts)
        stream = F.dropout(self.norm(stream.flatten(1, 2)), shape.dropout, self.training)
        hidden = self.trunk(
            stream,
            attention_mask=None if attention_mask is None else attention_mask.repeat_interleave(tokens_per_step, 1),
        )
        outputs: Tensor = self.head(hidden[:, tokens_per_step - 2 :: tokens_per_step])
        if shape.actions:
            return outputs
        if not shape.stochastic:
            return outputs.tanh()
        mean, raw = outputs.view(*outputs.shape[:-1], 2, shape.dim).unbind(-2)
        return torch.stack([mean, _MIN_LOG_STD + 0.5 * (_MAX_LOG_STD - _MIN_LOG_STD) * (raw.tanh() + 1.0)], -2)

    def _check_conditions(self, to_go: Tensor) -> None:
        size = to_go.shape[2] if to_go.dim() == 3 else 1
        if self.embed_return is not None and size != self.shape.condition:
            raise BatchMismatch("conditions have the wrong size", value=size, expected=self.shape.condition)

    def _check(self, observation: Tensor, action: Tensor, time: Tensor) -> None:
        shape = self.shape
        if observation.dim() != 3 or observation.shape[2] != shape.observation or observation.shape[1] > shape.context:
            raise BatchMismatch(
                "windows have the wrong shape",
                value=tuple(observation.shape),
                expected=f"[B, at most {shape.context}, {shape.observation}]",
            )
        axes = (*observation.shape[:2], *((shape.dim,) if shape.dim else ()))
        if tuple(action.shape) != axes:
            raise BatchMismatch("actions have the wrong shape", value=tuple(action.shape), expected=axes)
        if shape.horizon and int(time.max()) >= shape.horizon:
            raise BatchMismatch(
                "time step out of range",
                value=int(time.max()),
                expected=f"0..{shape.horizon - 1}",
                hint="train with a longer horizon",
            )


def squashed_logp(gaussian: Tensor, action: Tensor) -> Tensor:
    """Computes the log-density of `tanh(u)`, `u ~ N(mean, exp(log deviation))`, at `action [..., D]`: `[...]`.

    Args:
        gaussian: `[..., 2, D]`, mean and log deviation. Actions at the edges are taken 1e-6 inside.
    """
    return _logp(gaussian, torch.atanh(action.clamp(-_EDGE, _EDGE)))


def squashed_sample(gaussian: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Samples an action `[..., D]` from standard normal `noise [..., D]`, with its log-density `[...]`.

    Both are differentiable. The mean of minus the log-density over noise is the entropy.
    """
    mean, log_deviation = gaussian.unbind(-2)
    inner = mean + log_deviation.exp() * noise
    return inner.tanh(), _logp(gaussian, inner)


def _logp(gaussian: Tensor, inner: Tensor) -> Tensor:
    mean, log_deviation = gaussian.unbind(-2)
    normal = -0.5 * ((inner - mean) / log_deviation.exp()).square() - log_deviation - 0.5 * math.log(2.0 * math.pi)
    slope = 2.0 * (math.log(2.0) - inner - F.softplus(-2.0 * inner))  # log(1 - tanh(u)^2), without cancellation
    return (normal - slope).sum(-1)

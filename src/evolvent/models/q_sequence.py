"""Q-Transformer's network: the values of an action's dimensions, one after the other, each given the earlier ones.

"Q-Transformer: Scalable Offline Reinforcement Learning via Autoregressive Q-Functions" (arXiv 2309.10150). The
stream is (observation, dimension 1, .., dimension d) of each of the last K steps. At the observation stand the
values of all bins of dimension 1, at dimension i's bin those of dimension i + 1. A discrete choice is one
dimension whose bins are the choices. There is no embedding of positions: a step's value may not depend on its
position in a window. The published network reads images and instructions; this one reads numbers, and has no
logistic at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a Q-Transformer") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem, SampleInvalid
from evolvent.models.trunk import Trunk, TrunkShape

__all__ = ["QSequence", "QShape", "bin_actions", "bin_middles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QShape:
    """The architecture of the network.

    Attributes:
        observation: O. dims: d, dimensions of an action. bins: of each; the choices, where actions are discrete.
        context: K. width, heads, layers, dropout: of the trunk.
    Raises:
        ConfigError: sizes below 1, or a single bin.
    """

    observation: int
    dims: int
    bins: int = 256
    context: int = 1
    width: int = 128
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        minimums = {"observation": 1, "dims": 1, "bins": 2, "context": 1}
        problems = [
            Problem(name, f"got {getattr(self, name)}, expected at least {minimum}")
            for name, minimum in minimums.items()
            if getattr(self, name) < minimum
        ]
        if problems:
            raise ConfigError(problems)


def bin_actions(action: ArrayLike, *, bins: int) -> NDArray[np.int64]:
    """Returns the even bins of actions in -1..1, of the same shape; raises SampleInvalid for an action outside."""
    x = np.asarray(action, np.float64)
    is_outside = ~(np.abs(x) <= 1.0)
    if is_outside.any():
        raise SampleInvalid("action out of range", value=float(x[is_outside].ravel()[0]), expected="-1..1")
    return np.minimum(((x + 1.0) / 2.0 * bins).astype(np.int64), bins - 1)


def bin_middles(index: ArrayLike, *, bins: int) -> NDArray[np.float32]:
    """Returns the actions in the middles of bins."""
    return ((np.asarray(index, np.float64) + 0.5) / bins * 2.0 - 1.0).astype(np.float32)


class QSequence(nn.Module):
    """The network. Its last layer begins at 0, so that all values do."""

    def __init__(self, shape: QShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_observation = nn.Linear(shape.observation, shape.width)
        self.embed_bin = nn.Embedding(shape.dims * shape.bins, shape.width)
        self.trunk = Trunk(TrunkShape(width=shape.width, heads=shape.heads, layers=shape.layers, dropout=shape.dropout))
        self.heads = nn.Parameter(torch.zeros(shape.dims, shape.bins, shape.width))
        self.offset = nn.Parameter(torch.zeros(shape.dims, shape.bins))

    def forward(self, observation: Tensor, bins: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Computes the values of each dimension's bins given the bins of earlier dimensions, `[B, K, d, bins]`.

        Args:
            observation: `[B, K, O]`; the newest at the right. bins: `[B, K, d]` int64; -1: not chosen yet, read as
                bin 0, which no earlier position attends to. attention_mask: `[B, K]` bool, False at padding.
        Raises:
            BatchMismatch: windows of another shape, a bin beyond the last.
        """
        shape, (batch, steps) = self.shape, observation.shape[:2]
        if tuple(bins.shape) != (batch, steps, shape.dims) or steps > shape.context:
            raise BatchMismatch(
                "windows have the wrong shape",
                value=tuple(bins.shape),
                expected=f"[B, at most {shape.context}, {shape.dims}]",
            )
        if bins.numel() and int(bins.max()) >= shape.bins:
            raise BatchMismatch("bin out of range", value=int(bins.max()), expected=f"0..{shape.bins - 1}")
        first = torch.arange(shape.dims, device=bins.device) * shape.bins
        embedded_bins = self.embed_bin(bins.clamp(min=0) + first)
        stream = torch.cat([self.embed_observation(observation)[:, :, None], embedded_bins], 2).flatten(1, 2)
        tokens_per_step = 1 + shape.dims
        hidden = self.trunk(
            stream,
            attention_mask=None if attention_mask is None else attention_mask.repeat_interleave(tokens_per_step, 1),
        )
        dim_hidden = hidden.view(batch, steps, tokens_per_step, -1)[:, :, : shape.dims]
        return torch.einsum("bkdw,dnw->bkdn", dim_hidden, self.heads) + self.offset

    @torch.no_grad()
    def best(self, observation: Tensor, bins: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Chooses the newest step's bins `[B, d]`, each the best given the earlier ones: d passes."""
        bins = bins.clone()
        for dim in range(self.shape.dims):
            bins[:, -1, dim] = self(observation, bins, attention_mask=attention_mask)[:, -1, dim].argmax(-1)
        return bins[:, -1]

"""Blocks at one new position, in as few and plain operations as possible: the cost of decoding with a small network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

try:
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence model") from error

from evolvent.errors import ConfigError
from evolvent.models.blocks import Attention, Block, Call

__all__ = ["BareAttention", "BareBlock", "bare"]


def bare(*layers: nn.Module) -> Call:
    """Returns layers as one plain function of their weights, applied one after the other, for decoding.

    At a few rows of a small network the calls of modules and the look-up of their weights cost as much as the
    arithmetic. Weights may change in place.
    """
    calls: list[Call] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            calls.append(partial(F.linear, weight=layer.weight, bias=layer.bias))
        elif isinstance(layer, nn.LayerNorm):
            parameters: dict[str, Any] = {"weight": layer.weight, "bias": layer.bias, "eps": layer.eps}
            calls.append(partial(F.layer_norm, normalized_shape=list(layer.normalized_shape), **parameters))
        else:
            calls.append(layer)
    return calls[0] if len(calls) == 1 else partial(_apply_all, calls)


def _apply_all(calls: Sequence[Call], x: Tensor) -> Tensor:
    for call in calls:
        x = call(x)
    return x


class BareAttention(NamedTuple):
    """Attention of one new position `[B, D]` to all earlier positions and itself: the same numbers in plain
    operations.
    """

    heads: int
    query: Call | None
    mix: Call
    out: Call

    @classmethod
    def of(cls, attention: Attention) -> BareAttention:
        """Builds the plain form of a module."""
        return cls(
            attention.heads,
            None if attention.query is None else bare(attention.query),
            bare(attention.mix),
            bare(attention.out),
        )

    def __call__(self, x: Tensor, queries: Tensor | None, buffer: Tensor, position: int, /) -> Tensor:
        """Computes attention of one position.

        Args:
            x: `[B, D]`; its keys and values are written to `buffer [:, position]`. queries: `[B, D]`; None: from `x`.
        """
        batch, width = x.shape
        mixed = self.mix(x)
        buffer[:, position] = mixed[:, -2 * width :]
        if position == 0:  # nothing else to look at
            return self.out(mixed[:, -width:])
        q = mixed[:, :width] if self.query is None or queries is None else self.query(queries)
        size = width // self.heads
        k, v = buffer[:, : position + 1].view(batch, position + 1, 2, self.heads, size).unbind(2)
        weight = (k * q.reshape(batch, 1, self.heads, size)).sum(-1, keepdim=True).mul_(size**-0.5).softmax(1)
        return self.out((weight * v).sum(1).view(batch, width))


class BareBlock(NamedTuple):
    """A block at one new position, in evaluation."""

    before: bool
    self_attention: BareAttention
    norm_self: Call
    cross: BareAttention | None
    norm_cross: Call | None
    mlp: Call
    norm_mlp: Call

    @classmethod
    def of(cls, block: nn.Module) -> BareBlock:
        """Builds the plain form of a module; raises ConfigError for a module that is not a `Block`."""
        if not isinstance(block, Block):
            raise ConfigError("no block of a trunk", value=type(block).__name__)
        cross = None if block.cross is None else BareAttention.of(block.cross)
        norm_cross = None if block.norm_cross is None else bare(block.norm_cross)
        mlp = partial(_apply_all, [bare(block.up), block.activation, bare(block.down)])
        return cls(
            block.before,
            BareAttention.of(block.attention),
            bare(block.norm_attention),
            cross,
            norm_cross,
            mlp,
            bare(block.norm_mlp),
        )

    def __call__(self, x: Tensor, memory: Tensor | None, buffers: Sequence[Tensor], position: int, /) -> Tensor:
        """Computes the block, `[B, D] -> [B, D]`, at one position; `buffers` are those of its attentions."""
        x = x + self.self_attention(self.norm_self(x) if self.before else x, None, buffers[0], position)
        x = x if self.before else self.norm_self(x)
        if self.cross is not None and self.norm_cross is not None and memory is not None:
            x = memory + self.cross(self.norm_cross(x) if self.before else x, memory, buffers[1], position)
            x = x if self.before else self.norm_cross(x)
        if self.before:
            return x + self.mlp(self.norm_mlp(x))
        return self.norm_mlp(x + self.mlp(x))

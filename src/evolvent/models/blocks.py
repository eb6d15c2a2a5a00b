"""Attention, and the block of attention and MLP that all sequence models here are built from (`models.trunk`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

try:
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence model") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem

__all__ = ["Attention", "Block", "Call", "Past", "TrunkShape", "orthogonal_"]

Call = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Call] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkShape:
    """The architecture of a trunk.

    Attributes:
        width: D. heads: they divide it. layers: L, blocks. mlp: its inner width, in widths.
        norm: "pre" (GPT-2: `x + f(norm(x))`, a norm at the end) or "post" (`norm(x + f(x))`, none at the end).
        activation: of the MLP; "gelu_tanh" is GPT-2's approximation.
        causal: whether a position attends only to itself and earlier positions.
        cross: whether blocks have cross attention with queries from the MEMORY and keys from the stream (MAT's
            decoder).
        dropout: of attention weights and of the residual branches; off at evaluation.
        init: "normal": N(0, .02), as GPT-2; "orthogonal": gains of .01 and, before an activation, sqrt(2), as MAT.
    Raises:
        ConfigError: sizes that are not positive, heads that do not divide the width, a dropout outside [0, 1).
    """

    width: int
    heads: int
    layers: int
    mlp: int = 4
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    causal: bool = True
    cross: bool = False
    dropout: float = 0.0
    init: Literal["normal", "orthogonal"] = "normal"

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"is {getattr(self, name)}", "give at least 1")
            for name in ("width", "heads", "layers", "mlp")
            if getattr(self, name) < 1
        ]
        if not problems and self.width % self.heads:
            problems.append(Problem("heads", f"{self.heads} heads do not divide a width of {self.width}"))
        if not 0.0 <= self.dropout < 1.0:
            problems.append(Problem("dropout", f"is {self.dropout}", "give a number in [0, 1)"))
        if problems:
            raise ConfigError(problems)


class Past(NamedTuple):
    """The keys and values of one attention, `buffer [B, room, 2 D]`, the first `length` of them filled."""

    buffer: Tensor
    length: int

    def extend(self, new: Tensor) -> Tensor:
        """Writes `new [B, t, 2 D]` after the stored positions and returns all of them, `[B, length + t, 2 D]`."""
        end = self.length + new.shape[1]
        self.buffer[:, self.length : end] = new
        return self.buffer[:, :end]


def orthogonal_(layer: nn.Linear, gain: float = 0.01, *, parts: int = 1) -> nn.Linear:
    """Sets an orthogonal weight times `gain` and a bias of 0, and returns the layer.

    Args:
        parts: the number of matrices that the weight stacks.
    """
    for part in layer.weight.data.chunk(parts):
        nn.init.orthogonal_(part, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Attention(nn.Module):
    """Softmax attention of several heads, `softmax(q k / sqrt(D / H)) v` (arXiv 1706.03762, equation 1).

    Args:
        cross: queries come from another stream than keys and values.
    """

    def __init__(self, shape: TrunkShape, *, cross: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.query = nn.Linear(shape.width, shape.width) if cross else None
        self.mix = nn.Linear(shape.width, (2 if cross else 3) * shape.width)  # [query,] key, value
        self.out = nn.Linear(shape.width, shape.width)

    def forward(
        self,
        x: Tensor,
        queries: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """Computes attention of the queries over `x` and the past, `[B, T, D]`.

        Args:
            x: `[B, T, D]`, the keys and values. queries: `[B, T, D]`; without cross attention they come from `x`
                itself.
            mask: `[B or 1, 1, T, S]` bool, True where row t attends to column s; S counts the past. None: all.
            causal: t attends to s <= t; without mask and past. past: keys and values before `x`; those of `x` are
                added.
        Raises:
            BatchMismatch: cross attention without a memory of the stream's size.
        """
        batch, length, width = x.shape
        mixed = F.linear(x, self.mix.weight, self.mix.bias)  # not self.mix(x): calls of modules cost more than this
        if self.query is None:
            q, k, v = mixed.chunk(3, -1)
        elif queries is None or queries.shape != x.shape:
            raise BatchMismatch(
                "cross attention needs a memory of the stream's size",
                expected=tuple(x.shape),
                value=None if queries is None else tuple(queries.shape),
            )
        else:
            q = F.linear(queries, self.query.weight, self.query.bias)
            k, v = mixed.chunk(2, -1)
        if past is not None:
            k, v = past.extend(mixed[..., -2 * width :]).chunk(2, -1)
        head_shape = (batch, -1, self.heads, width // self.heads)
        q, k, v = (part.view(head_shape).transpose(1, 2) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return F.linear(attended.transpose(1, 2).reshape(batch, length, width), self.out.weight, self.out.bias)


class Block(nn.Module):
    """Self attention, optional cross attention of the memory to the stream, and an MLP: `[B, T, D] -> [B, T, D]`.

    With cross attention (`shape.cross`) the output continues from the memory: its queries attend to the stream up
    to each position, and the result is added to the memory (MAT, arXiv 2205.14953, section 4.2).
    """

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.before, self.dropout = shape.norm == "pre", shape.dropout
        self.attention, self.norm_attention = Attention(shape), nn.LayerNorm(shape.width)
        self.cross = Attention(shape, cross=True) if shape.cross else None
        self.norm_cross = nn.LayerNorm(shape.width) if shape.cross else None
        self.up = nn.Linear(shape.width, shape.mlp * shape.width)
        self.activation = _ACTIVATIONS[shape.activation]
        self.down = nn.Linear(shape.mlp * shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        for layer in (m for m in self.modules() if isinstance(m, nn.Linear)):
            if shape.init == "orthogonal":
                parts = layer.out_features // shape.width if layer is not self.up else 1
                orthogonal_(layer, math.sqrt(2.0) if layer is self.up else 0.01, parts=parts)
            else:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        past: Sequence[Past | None] = (None, None),
    ) -> Tensor:
        """Computes the stream after this block.

        Args:
            x, memory: `[B, T, D]`. mask, causal: as `Attention` takes them.
            past: of the self attention and of the cross attention, where `x` continues earlier positions.
        """
        drop = self._drop
        if self.before:
            x = x + drop(self.attention(_layer_norm(self.norm_attention, x), mask=mask, causal=causal, past=past[0]))
        else:
            x = _layer_norm(self.norm_attention, x + drop(self.attention(x, mask=mask, causal=causal, past=past[0])))
        if self.cross is not None and self.norm_cross is not None and memory is not None:
            stream = _layer_norm(self.norm_cross, x) if self.before else x
            attended = drop(self.cross(stream, memory, mask=mask, causal=causal, past=past[1]))
            x = memory + attended if self.before else _layer_norm(self.norm_cross, memory + attended)
        if self.before:
            return x + drop(self._mlp(_layer_norm(self.norm_mlp, x)))
        return _layer_norm(self.norm_mlp, x + drop(self._mlp(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        inner = self.activation(F.linear(x, self.up.weight, self.up.bias))
        return F.linear(inner, self.down.weight, self.down.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

"""Attention, and the block of attention and MLP that every sequence model here is made of (`models.trunk`)."""

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
    """What a trunk is made of.

    Attributes:
        width: D. heads: they divide it. layers: L, blocks. mlp: its inner width, in widths.
        norm: "pre" (GPT-2: `x + f(norm(x))`, a norm at the end) or "post" (`norm(x + f(x))`, none at the end).
        activation: of the MLP; "gelu_tanh" is GPT-2's approximation.
        causal: whether a position sees only itself and those before it.
        cross: whether blocks have cross attention in which the MEMORY asks and the stream answers (MAT's decoder).
        dropout: of attention weights and of what is added to the stream; off at evaluation.
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
    """Where one attention keeps its keys and values, `kept [B, room, 2 D]`, the first `length` of them filled."""

    kept: Tensor
    length: int

    def extended(self, new: Tensor) -> Tensor:
        """Write `new [B, t, 2 D]` behind the others; all of them then, `[B, length + t, 2 D]`."""
        end = self.length + new.shape[1]
        self.kept[:, self.length : end] = new
        return self.kept[:, :end]


def orthogonal_(layer: nn.Linear, gain: float = 0.01, *, parts: int = 1) -> nn.Linear:
    """An orthogonal weight times `gain`, bias 0; returns the layer. `parts`: the weight stacks so many matrices."""
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
        asking: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """`[B, T, D]`, what `asking [B, T, D]` (without cross: `x` itself) finds in `x [B, T, D]` and in the past.

        Args:
            mask: `[B or 1, 1, T, S]` bool, True where row t sees column s; S counts the past. None: all.
            causal: t sees s <= t; without mask and past. past: keys and values before `x`, to which its own are added.
        Raises:
            BatchMismatch: cross attention without a memory of the stream's size.
        """
        batch, length, width = x.shape
        mixed = F.linear(x, self.mix.weight, self.mix.bias)  # not self.mix(x): calls of modules cost more than this
        if self.query is None:
            q, k, v = mixed.chunk(3, -1)
        elif asking is None or asking.shape != x.shape:
            raise BatchMismatch(
                "cross attention needs a memory of the stream's size",
                expected=tuple(x.shape),
                value=None if asking is None else tuple(asking.shape),
            )
        else:
            q = F.linear(asking, self.query.weight, self.query.bias)
            k, v = mixed.chunk(2, -1)
        if past is not None:
            k, v = past.extended(mixed[..., -2 * width :]).chunk(2, -1)
        each = (batch, -1, self.heads, width // self.heads)
        q, k, v = (part.view(each).transpose(1, 2) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return F.linear(found.transpose(1, 2).reshape(batch, length, width), self.out.weight, self.out.bias)


class Block(nn.Module):
    """Self attention, with `shape.cross` attention of the memory to the stream, and an MLP: `[B, T, D] -> [B, T, D]`.

    With cross attention what goes on from there is the memory: it asks at each position, the stream answers with what
    it holds up to there, and the answer is added to the memory (MAT, arXiv 2205.14953, section 4.2).
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
        """The stream after this block.

        Args:
            x, memory: `[B, T, D]`. mask, causal: as `Attention` takes them.
            past: of the self attention and of the cross attention, where `x` goes on after positions read before.
        """
        rest = self._drop
        if self.before:
            x = x + rest(self.attention(_normed(self.norm_attention, x), mask=mask, causal=causal, past=past[0]))
        else:
            x = _normed(self.norm_attention, x + rest(self.attention(x, mask=mask, causal=causal, past=past[0])))
        if self.cross is not None and self.norm_cross is not None and memory is not None:
            stream = _normed(self.norm_cross, x) if self.before else x
            found = rest(self.cross(stream, memory, mask=mask, causal=causal, past=past[1]))
            x = memory + found if self.before else _normed(self.norm_cross, memory + found)
        if self.before:
            return x + rest(self._mlp(_normed(self.norm_mlp, x)))
        return _normed(self.norm_mlp, x + rest(self._mlp(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        inner = self.activation(F.linear(x, self.up.weight, self.up.bias))
        return F.linear(inner, self.down.weight, self.down.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

"""The common transformer of all sequence models here except language models: blocks, a trunk of them, and its
cache.

Decision Transformer, Trajectory Transformer and Q-Transformer read it causally with norms before each part
(GPT-2); the Multi-Agent Transformer has an encoder without a mask and a decoder with cross attention, norms
after each part.
They are built from one block of attention and MLP.

Blocks at one new position, in as few and plain operations as possible: the cost of decoding with a small network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence model") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem

__all__ = [
    "Attention",
    "BareAttention",
    "BareBlock",
    "Block",
    "Cache",
    "Call",
    "Past",
    "Trunk",
    "TrunkShape",
    "bare",
    "orthogonal_",
]


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
            raise ConfigError("invalid trunk block", value=type(block).__name__)
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
            Problem(name, f"got {getattr(self, name)}, expected at least 1")
            for name in ("width", "heads", "layers", "mlp")
            if getattr(self, name) < 1
        ]
        if not problems and self.width % self.heads:
            problems.append(Problem("heads", f"got {self.heads}, expected a divisor of width {self.width}"))
        if not 0.0 <= self.dropout < 1.0:
            problems.append(Problem("dropout", f"got {self.dropout}, expected a number in [0, 1)"))
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
                "cross attention needs a memory with the shape of the stream",
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


_MAX_PLAIN_KEYS = (
    1 << 17
)  # keys of one attention (B S D) up to which plain operations are quicker than the fused kernel


@dataclass(slots=True)
class Cache:
    """Keys and values of the positions that were read so far. `Trunk.decode` appends to it in place.

    Attributes:
        buffers: for each attention of the trunk, `[B, capacity, 2 D]`, keys beside values; `length` positions are
            filled.
        attention_mask: `[B, capacity]` bool, the positions that may be attended to; None: all.
        bare: the blocks as plain calls, made when first needed.
    """

    buffers: list[Tensor]
    length: int = 0
    attention_mask: Tensor | None = None
    bare: list[BareBlock] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Returns the maximum number of positions."""
        return int(self.buffers[0].shape[1])

    def rows(self, index: Tensor) -> Cache:
        """Returns a copy with these rows `[R]` of the batch, in this order; a row may be repeated (a beam)."""
        return Cache(
            [x[index] for x in self.buffers],
            self.length,
            None if self.attention_mask is None else self.attention_mask[index],
        )


class Trunk(nn.Module):
    """Blocks and, with norms before each part, one more at the end: `x [B, T, D] -> [B, T, D]`.

    Embeddings, positions and heads belong to the models. Random numbers of initialization are torch's global ones: seed
    them inside `torch.random.fork_rng`.
    """

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width) if shape.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor | None = None, *, attention_mask: Tensor | None = None) -> Tensor:
        """Computes all positions in one pass.

        Args:
            x: `[B, T, D]`. memory: `[B, T, D]`, which a trunk with cross attention needs.
            attention_mask: `[B, T]` bool, the positions that others may attend to (False: padding, dead agents); None:
                all. Every position attends to itself, so that the output of a masked position is finite too.
        Raises:
            BatchMismatch: arrays that do not fit together.
        """
        self._check(x, memory, attention_mask)
        mask = None if attention_mask is None else self._build_mask(attention_mask, x.shape[1])
        causal = self.shape.causal and mask is None
        for block in self.blocks:
            x = block(x, memory, mask=mask, causal=causal)
        normalized: Tensor = self.norm(x)
        return normalized

    def cache(self, batch: int, capacity: int) -> Cache:
        """Returns an empty cache for `batch` rows of at most `capacity` positions, in the trunk's own dtype and on
        its device.
        """
        weight = self.blocks[0].get_parameter("down.weight")
        number = self.shape.layers * (2 if self.shape.cross else 1)
        return Cache([weight.new_empty(batch, capacity, 2 * self.shape.width) for _ in range(number)])

    @torch.no_grad()
    def decode(
        self, x: Tensor, cache: Cache, memory: Tensor | None = None, *, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Computes the next positions `x [B, t, D] -> [B, t, D]`, equal to the full pass over all of them;
        `cache` grows by t.

        Without gradients, and without dropout in evaluation mode. `memory` and `attention_mask` are those of the new
        positions alone.

        Raises:
            ConfigError: a trunk that is not causal. BatchMismatch: more positions than the cache can hold.
        """
        if not self.shape.causal:
            raise ConfigError("reading position by position needs a causal trunk", value="causal=False")
        self._check(x, memory, attention_mask)
        begin, end = cache.length, cache.length + x.shape[1]
        if end > cache.capacity or cache.buffers[0].shape[0] != x.shape[0]:
            raise BatchMismatch(
                "positions do not fit the cache",
                value=f"{x.shape[0]} rows to position {end}",
                expected=f"{cache.buffers[0].shape[0]} rows, at most {cache.capacity}",
            )
        if attention_mask is not None and cache.attention_mask is None:
            cache.attention_mask = torch.ones(x.shape[0], cache.capacity, dtype=torch.bool, device=x.device)
        if cache.attention_mask is not None:
            cache.attention_mask[:, begin:end] = True if attention_mask is None else attention_mask
        attentions_per_block, is_single = (
            2 if self.shape.cross else 1,
            x.shape[1] == 1 and cache.attention_mask is None,
        )  # all that is there is seen
        if (
            is_single
            and not (self.training and self.shape.dropout)
            and end * x.shape[0] * self.shape.width <= _MAX_PLAIN_KEYS
        ):
            cache.length = end
            return self._decode_one(x[:, 0], cache, None if memory is None else memory[:, 0])[:, None]
        mask = (
            None
            if is_single
            else self._build_mask(
                None if cache.attention_mask is None else cache.attention_mask[:, :end], end, begin, x.device
            )
        )
        for number, block in enumerate(self.blocks):
            past = [
                Past(cache.buffers[i], begin)
                for i in range(attentions_per_block * number, attentions_per_block * (number + 1))
            ]
            x = block(x, memory, mask=mask, past=past)
        cache.length = end
        normalized: Tensor = self.norm(x)
        return normalized

    def _decode_one(self, x: Tensor, cache: Cache, memory: Tensor | None) -> Tensor:
        """Computes the last position of the cache alone, `[B, D]`."""
        attentions_per_block = 2 if self.shape.cross else 1
        if not cache.bare:
            cache.bare.extend(BareBlock.of(block) for block in self.blocks)
        for number, block in enumerate(cache.bare):
            x = block(
                x,
                memory,
                cache.buffers[attentions_per_block * number : attentions_per_block * (number + 1)],
                cache.length - 1,
            )
        normalized: Tensor = self.norm(x)
        return normalized

    def _build_mask(
        self, attention_mask: Tensor | None, end: int, begin: int = 0, device: torch.device | None = None
    ) -> Tensor:
        """Returns `[B or 1, 1, end - begin, end]` bool, the positions that those from `begin` on attend to."""
        if attention_mask is not None:
            device = attention_mask.device
        column = torch.arange(end, device=device)
        row = column[begin:, None]
        allowed = (column <= row if self.shape.causal else torch.ones_like(column <= row))[None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, :] | (column == row)
        return allowed[:, None]

    def _check(self, x: Tensor, memory: Tensor | None, attention_mask: Tensor | None) -> None:
        if x.dim() != 3 or x.shape[2] != self.shape.width:
            raise BatchMismatch(
                "the stream has the wrong shape", value=tuple(x.shape), expected=f"[B, T, {self.shape.width}]"
            )
        if attention_mask is not None and attention_mask.shape != x.shape[:2]:
            raise BatchMismatch(
                "the attention mask has the wrong shape", value=tuple(attention_mask.shape), expected=x.shape[:2]
            )
        if (memory is None) == self.shape.cross:
            raise BatchMismatch("a memory needs a trunk with cross attention", value=f"cross={self.shape.cross}")

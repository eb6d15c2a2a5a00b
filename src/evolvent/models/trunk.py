"""The common transformer of all sequence models here except language models: blocks, a trunk of them, and its
cache.

Decision Transformer, Trajectory Transformer and Q-Transformer read it causally with norms before each part
(GPT-2); the Multi-Agent Transformer has an encoder without a mask and a decoder with cross attention, norms
after each part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence model") from error

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.models.blocks import Attention, Block, Past, TrunkShape, orthogonal_
from evolvent.models.decoding import BareBlock, bare

__all__ = ["Attention", "Block", "Cache", "Past", "Trunk", "TrunkShape", "bare", "orthogonal_"]

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
        bare: the blocks as plain calls, made when first needed (`models.decoding`).
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

    Embeddings, positions and heads belong to the models. Random numbers of initialisation are torch's global ones: seed
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
            raise ConfigError("only a causal trunk can be read position by position", value="causal=False")
        self._check(x, memory, attention_mask)
        begin, end = cache.length, cache.length + x.shape[1]
        if end > cache.capacity or cache.buffers[0].shape[0] != x.shape[0]:
            raise BatchMismatch(
                "positions that the cache cannot take",
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
            raise BatchMismatch("no stream of this trunk", value=tuple(x.shape), expected=f"[B, T, {self.shape.width}]")
        if attention_mask is not None and attention_mask.shape != x.shape[:2]:
            raise BatchMismatch(
                "what is seen is not one a position", value=tuple(attention_mask.shape), expected=x.shape[:2]
            )
        if (memory is None) == self.shape.cross:
            raise BatchMismatch("a memory is for a trunk with cross attention", value=f"cross={self.shape.cross}")

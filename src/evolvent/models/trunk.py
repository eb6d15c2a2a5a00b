"""The one transformer of every sequence model here that is no language model: blocks, a trunk of them, and its cache.

Decision Transformer, Trajectory Transformer and Q-Transformer read it causally with norms before each part (GPT-2); the
Multi-Agent Transformer has an encoder without a mask and a decoder with cross attention, norms after each part.
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

_FEW = 1 << 17  # keys of one attention (B S D) up to which plain operations are quicker than the fused kernel


@dataclass(slots=True)
class Cache:
    """Keys and values of the positions that were read so far. `Trunk.decode` appends to it in place.

    Attributes:
        kept: for each attention of the trunk, `[B, room, 2 D]`, keys beside values; `length` positions are filled.
        seen: `[B, room]` bool, which of them may be looked at; None: all.
        bare: the blocks as plain calls, made when first needed (`models.decoding`).
    """

    kept: list[Tensor]
    length: int = 0
    seen: Tensor | None = None
    bare: list[BareBlock] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Most positions that it holds."""
        return int(self.kept[0].shape[1])

    def rows(self, index: Tensor) -> Cache:
        """A copy that holds these rows `[R]` of the batch, in this order; a row may come several times (a beam)."""
        return Cache([x[index] for x in self.kept], self.length, None if self.seen is None else self.seen[index])


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

    def forward(self, x: Tensor, memory: Tensor | None = None, *, seen: Tensor | None = None) -> Tensor:
        """All positions in one pass.

        Args:
            x: `[B, T, D]`. memory: `[B, T, D]`, which a trunk with cross attention needs.
            seen: `[B, T]` bool, the positions that others may look at (False: padding, dead agents); None: all. Every
                position sees itself, so that what stands at one that others do not see is a number too.
        Raises:
            BatchMismatch: arrays that do not fit together.
        """
        self._check(x, memory, seen)
        mask = None if seen is None else self._mask(seen, x.shape[1])
        causal = self.shape.causal and mask is None
        for block in self.blocks:
            x = block(x, memory, mask=mask, causal=causal)
        found: Tensor = self.norm(x)
        return found

    def cache(self, batch: int, room: int) -> Cache:
        """An empty cache for `batch` rows of at most `room` positions, in the trunk's own dtype and on its device."""
        weight = self.blocks[0].get_parameter("down.weight")
        number = self.shape.layers * (2 if self.shape.cross else 1)
        return Cache([weight.new_empty(batch, room, 2 * self.shape.width) for _ in range(number)])

    @torch.no_grad()
    def decode(self, x: Tensor, cache: Cache, memory: Tensor | None = None, *, seen: Tensor | None = None) -> Tensor:
        """The next positions `x [B, t, D] -> [B, t, D]`, as the full pass over all of them has it; `cache` grows by t.

        Without gradients, and without dropout in a model that is set to evaluate. `memory` and `seen` are those of the
        new positions alone.

        Raises:
            ConfigError: a trunk that is not causal. BatchMismatch: more positions than the cache has room for.
        """
        if not self.shape.causal:
            raise ConfigError("only a causal trunk can be read position by position", value="causal=False")
        self._check(x, memory, seen)
        begin, end = cache.length, cache.length + x.shape[1]
        if end > cache.room or cache.kept[0].shape[0] != x.shape[0]:
            raise BatchMismatch(
                "positions that the cache cannot take",
                value=f"{x.shape[0]} rows to position {end}",
                expected=f"{cache.kept[0].shape[0]} rows, at most {cache.room}",
            )
        if seen is not None and cache.seen is None:
            cache.seen = torch.ones(x.shape[0], cache.room, dtype=torch.bool, device=x.device)
        if cache.seen is not None:
            cache.seen[:, begin:end] = True if seen is None else seen
        each, one = 2 if self.shape.cross else 1, x.shape[1] == 1 and cache.seen is None  # all that is there is seen
        if one and not (self.training and self.shape.dropout) and end * x.shape[0] * self.shape.width <= _FEW:
            cache.length = end
            return self._one(x[:, 0], cache, None if memory is None else memory[:, 0])[:, None]
        mask = None if one else self._mask(None if cache.seen is None else cache.seen[:, :end], end, begin, x.device)
        for number, block in enumerate(self.blocks):
            past = [Past(cache.kept[i], begin) for i in range(each * number, each * (number + 1))]
            x = block(x, memory, mask=mask, past=past)
        cache.length = end
        found: Tensor = self.norm(x)
        return found

    def _one(self, x: Tensor, cache: Cache, memory: Tensor | None) -> Tensor:
        """The last position of the cache alone, `[B, D]`."""
        each = 2 if self.shape.cross else 1
        if not cache.bare:
            cache.bare.extend(BareBlock.of(block) for block in self.blocks)
        for number, block in enumerate(cache.bare):
            x = block(x, memory, cache.kept[each * number : each * (number + 1)], cache.length - 1)
        found: Tensor = self.norm(x)
        return found

    def _mask(self, seen: Tensor | None, end: int, begin: int = 0, device: torch.device | None = None) -> Tensor:
        """`[B or 1, 1, end - begin, end]` bool, what the positions from `begin` on see."""
        if seen is not None:
            device = seen.device
        column = torch.arange(end, device=device)
        row = column[begin:, None]
        allowed = (column <= row if self.shape.causal else torch.ones_like(column <= row))[None]
        if seen is not None:
            allowed = allowed & seen[:, None, :] | (column == row)
        return allowed[:, None]

    def _check(self, x: Tensor, memory: Tensor | None, seen: Tensor | None) -> None:
        if x.dim() != 3 or x.shape[2] != self.shape.width:
            raise BatchMismatch("no stream of this trunk", value=tuple(x.shape), expected=f"[B, T, {self.shape.width}]")
        if seen is not None and seen.shape != x.shape[:2]:
            raise BatchMismatch("what is seen is not one a position", value=tuple(seen.shape), expected=x.shape[:2])
        if (memory is None) == self.shape.cross:
            raise BatchMismatch("a memory is for a trunk with cross attention", value=f"cross={self.shape.cross}")

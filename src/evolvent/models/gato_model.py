"""A GPT over Gato's tokens (arXiv 2205.06175), for as many tasks as are put into it.

Only tokens that its tasks can show have a row in its tables, so that a small generalist is small. Besides what a token
is, the model knows its place in its step; steps follow each other without a position of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a generalist") from error

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.models.trunk import Trunk, TrunkShape

__all__ = ["GatoModel", "GatoShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatoShape:
    """What the model is made of.

    Attributes:
        vocabulary: the tokens that it knows, ascending. longest: most tokens of a step.
        width, heads, layers, dropout: of the trunk.
    Raises:
        ConfigError: a vocabulary that is empty or not ascending, steps of no tokens.
    """

    vocabulary: tuple[int, ...]
    longest: int
    width: int = 64
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.vocabulary or any(b <= a for a, b in zip(self.vocabulary, self.vocabulary[1:], strict=False)):
            raise ConfigError("a vocabulary must be ascending", value=len(self.vocabulary))
        if self.longest < 1:
            raise ConfigError("steps need tokens", value=self.longest, expected="1 or more")


class GatoModel(nn.Module):
    """The network, over rows of its own vocabulary (`rows`)."""

    def __init__(self, shape: GatoShape) -> None:
        super().__init__()
        self.shape = shape
        self.known = np.array(shape.vocabulary, np.int64)
        self.embed = nn.Embedding(len(self.known), shape.width)
        self.place = nn.Embedding(shape.longest, shape.width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.trunk = Trunk(TrunkShape(width=shape.width, heads=shape.heads, layers=shape.layers, dropout=shape.dropout))
        self.head = nn.Linear(shape.width, len(self.known))

    def rows(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where tokens stand in the vocabulary; SampleInvalid for one that it does not know."""
        found = np.minimum(np.searchsorted(self.known, tokens), len(self.known) - 1)
        odd = self.known[found] != tokens
        if odd.any():
            raise SampleInvalid("a token that was never learned", value=int(np.asarray(tokens)[odd].ravel()[0]))
        return found

    def nearest(self, tokens: NDArray[np.int64], *, low: int) -> NDArray[np.int64]:
        """Tokens of numbers, `low` and above, moved to the nearest bin that was learned; others as they are."""
        known = self.known[(self.known >= low) & (self.known < low + 1024)]
        if not len(known):
            return tokens
        near = known[np.abs(known[:, None] - tokens.ravel()).argmin(0)].reshape(tokens.shape)
        return np.where((tokens >= low) & (tokens < low + 1024), near, tokens)

    def forward(self, rows: Tensor, place: Tensor, *, seen: Tensor | None = None) -> Tensor:
        """Logits of the next token, `[B, L, V]`.

        Args:
            rows, place: `[B, L]` int64, the token's row and its place in its step; places beyond the longest step that
                was learned share the last one. seen: `[B, L]`, False at padding.
        """
        place = place.clamp(max=self.shape.longest - 1)
        stream = F.dropout(self.embed(rows) + self.place(place), self.shape.dropout, self.training)
        logits: Tensor = self.head(self.trunk(stream, seen=seen))
        return logits

    @torch.no_grad()
    def written(
        self,
        tokens: NDArray[np.int64],
        place: NDArray[np.int64],
        *,
        allowed: NDArray[np.int64],
        most: int,
        stop: int | None = None,
    ) -> NDArray[np.int64]:
        """The likeliest continuation of each prefix `[B, L]` by allowed tokens, at most `most`: `[B, up to most]`.

        Args:
            place: `[B, L]`. allowed: tokens that may be written. stop: a token after which nothing more is written.
        """
        may = np.isin(self.known, allowed)
        if not may.any():
            raise ConfigError("none of the allowed tokens was learned", value=allowed[:5].tolist())
        mask = torch.from_numpy(~may)
        rows, at = torch.from_numpy(self.rows(tokens)), torch.from_numpy(place)
        made: list[Tensor] = []
        done = torch.zeros(len(rows), dtype=torch.bool)
        while len(made) < most and not bool(done.all()):
            best = self(rows, at)[:, -1].masked_fill(mask, -torch.inf).argmax(-1)
            made.append(best)
            rows, at = torch.cat([rows, best[:, None]], 1), torch.cat([at, at[:, -1:] + 1], 1)
            if stop is not None:
                done = done | (torch.from_numpy(self.known)[best] == stop)
        found: NDArray[np.int64] = self.known[torch.stack(made, 1).numpy()]
        return found

"""A GPT over Gato's tokens (arXiv 2205.06175), for any number of tasks.

Only tokens of its tasks have a row in its tables, so that a small generalist is small. Besides a token's
identity the model knows its position within its step; steps follow each other without their own position.
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
    """The architecture of the model.

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
            raise ConfigError("vocabulary is not ascending", value=len(self.vocabulary))
        if self.longest < 1:
            raise ConfigError("number of tokens per step out of range", value=self.longest, expected="1 or more")


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
        """Returns the rows of tokens in the vocabulary; raises SampleInvalid for an unknown token."""
        indices = np.minimum(np.searchsorted(self.known, tokens), len(self.known) - 1)
        unknown = self.known[indices] != tokens
        if unknown.any():
            raise SampleInvalid(
                "token is not in the trained vocabulary", value=int(np.asarray(tokens)[unknown].ravel()[0])
            )
        return indices

    def nearest(self, tokens: NDArray[np.int64], *, low: int) -> NDArray[np.int64]:
        """Moves number tokens, `low` and above, to the nearest learned bin; other tokens are unchanged."""
        number_tokens = self.known[(self.known >= low) & (self.known < low + 1024)]
        if not len(number_tokens):
            return tokens
        near = number_tokens[np.abs(number_tokens[:, None] - tokens.ravel()).argmin(0)].reshape(tokens.shape)
        return np.where((tokens >= low) & (tokens < low + 1024), near, tokens)

    def forward(self, rows: Tensor, step_position: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Computes the logits of the next token, `[B, L, V]`.

        Args:
            rows, step_position: `[B, L]` int64, the token's row and its position in its step; positions beyond the
                longest learned step share the last one. attention_mask: `[B, L]`, False at padding.
        """
        step_position = step_position.clamp(max=self.shape.longest - 1)
        stream = F.dropout(self.embed(rows) + self.place(step_position), self.shape.dropout, self.training)
        logits: Tensor = self.head(self.trunk(stream, attention_mask=attention_mask))
        return logits

    @torch.no_grad()
    def generate(
        self,
        tokens: NDArray[np.int64],
        step_position: NDArray[np.int64],
        *,
        allowed: NDArray[np.int64],
        max_tokens: int,
        stop: int | None = None,
        bonus: NDArray[np.float32] | None = None,
    ) -> NDArray[np.int64]:
        """Generates the likeliest continuation of each prefix `[B, L]` by allowed tokens: `[B, up to max_tokens]`.

        Args:
            step_position: `[B, L]`. allowed: tokens that may be written. stop: a token that ends the continuation.
            bonus: added to the logit of each allowed token.
        """
        is_allowed = np.isin(self.known, allowed)
        if not is_allowed.any():
            raise ConfigError("no allowed token is in the trained vocabulary", value=allowed[:5].tolist())
        addition = np.where(is_allowed, 0.0, -np.inf).astype(np.float32)
        if bonus is not None:
            bonus_by_token = dict(zip(allowed.tolist(), bonus.tolist(), strict=True))
            addition += np.array([bonus_by_token.get(token, 0.0) for token in self.known.tolist()], np.float32)
        logit_addition = torch.from_numpy(addition)
        rows, positions = torch.from_numpy(self.rows(tokens)), torch.from_numpy(step_position)
        new_rows: list[Tensor] = []
        done = torch.zeros(len(rows), dtype=torch.bool)
        while len(new_rows) < max_tokens and not bool(done.all()):
            best = (self(rows, positions)[:, -1] + logit_addition).argmax(-1)
            new_rows.append(best)
            rows, positions = torch.cat([rows, best[:, None]], 1), torch.cat([positions, positions[:, -1:] + 1], 1)
            if stop is not None:
                done = done | (torch.from_numpy(self.known)[best] == stop)
        generated: NDArray[np.int64] = self.known[torch.stack(new_rows, 1).numpy()]
        return generated

"""A GPT over the bins of whole transitions: it says what is done, what that pays and what is seen next.

"Offline Reinforcement Learning as One Big Sequence Modeling Problem" (Trajectory Transformer, arXiv 2106.02039). A
transition is the columns (observation, action, reward, what is earned after it, whether it ends), each one token; every
column has its own bins, embeddings and output layer. The last column is ours: the published model does not know ends.
"""

from __future__ import annotations

from dataclasses import dataclass

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a trajectory transformer") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.models.trunk import Trunk, TrunkShape

__all__ = ["TrajectoryModel", "TrajectoryShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryShape:
    """What the model is made of.

    Attributes:
        counts: bins of each of the T columns. observation, action: how many columns each of them has; T is their sum
            and three. context: K, most transitions that are read.
        width, heads, layers, dropout: of the trunk.
    Raises:
        ConfigError: columns that do not add up, a column without bins, no context.
    """

    counts: tuple[int, ...]
    observation: int
    action: int
    context: int = 10
    width: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        problems = []
        if len(self.counts) != self.observation + self.action + 3 or min(self.observation, self.action) < 1:
            problems.append(Problem("counts", f"{len(self.counts)} columns", "observation + action + 3 are needed"))
        if min(self.counts, default=0) < 1:
            problems.append(Problem("counts", "a column has no bins"))
        if self.context < 1:
            problems.append(Problem("context", f"is {self.context}", "give at least 1"))
        if problems:
            raise ConfigError(problems)

    @property
    def columns(self) -> int:
        """T."""
        return len(self.counts)


class TrajectoryModel(nn.Module):
    """The model. Positions are counted from the first token that is read, wherever in an episode that is."""

    def __init__(self, shape: TrajectoryShape) -> None:
        super().__init__()
        self.shape, most = shape, max(shape.counts)
        self.embed = nn.Embedding(shape.columns * most, shape.width)
        self.place = nn.Embedding(shape.context * shape.columns, shape.width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.trunk = Trunk(
            TrunkShape(
                width=shape.width, heads=shape.heads, layers=shape.layers, dropout=shape.dropout, activation="gelu"
            )
        )
        self.heads = nn.Parameter(torch.randn(shape.columns, most, shape.width) * 0.02)
        none = torch.arange(most)[None] >= torch.tensor(shape.counts)[:, None]
        self.register_buffer("none", none, persistent=False)

    def forward(self, tokens: Tensor, *, seen: Tensor | None = None) -> Tensor:
        """Logits of what comes next, `[B, L, bins]`: entry l is about token l + 1; -inf where a column has no such bin.

        Args:
            tokens: `[B, L]` int64, bins of the columns in turn, beginning with the first of an observation.
            seen: `[B, L]` bool, False at padding, which is at the left.
        Raises:
            BatchMismatch: more tokens than the context holds.
        """
        place = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        if seen is not None:
            place = (seen.long().cumsum(1) - 1).clamp(min=0)
        return self._read(self.trunk(self._stream(tokens, place, 0), seen=seen), 0)

    @torch.no_grad()
    def continued(self, tokens: Tensor, draws: Tensor, *, kept: float) -> Tensor:
        """One transition on: `[N, L + T]`, from prefixes that end with an observation to those that end with the next.

        Args:
            tokens: `[N, L]`, all columns of some transitions and an observation. draws: `[N, action]` in 0..1, with
                which actions are drawn from the likeliest bins that hold `kept` of the probability; all else is the
                likeliest bin.
        Raises:
            BatchMismatch: prefixes that end elsewhere, or that leave no room.
        """
        shape, length = self.shape, tokens.shape[1]
        if length % shape.columns != shape.observation:
            raise BatchMismatch("a prefix does not end with an observation", value=length)
        cache = self.trunk.cache(len(tokens), length + shape.columns)
        place = torch.arange(length + shape.columns, device=tokens.device).expand(len(tokens), -1)
        last = self._read(self.trunk.decode(self._stream(tokens, place[:, :length], 0), cache), 0)[:, -1]
        for at in range(shape.columns):
            action = at < shape.action
            token = _nucleus(last, draws[:, at], kept) if action else last.argmax(-1)
            tokens = torch.cat([tokens, token[:, None]], 1)
            if at + 1 < shape.columns:
                now = length + at
                stream = self._stream(token[:, None], place[:, now : now + 1], now)
                last = self._read(self.trunk.decode(stream, cache), now)[:, -1]
        return tokens

    def _stream(self, tokens: Tensor, place: Tensor, begin: int) -> Tensor:
        """Embeddings of the tokens; `begin`: how many came before the first, which says what column it is of."""
        if place.shape[1] and int(place[:, -1].max()) >= self.place.num_embeddings:
            raise BatchMismatch(
                "more transitions than the context holds",
                value=int(place[:, -1].max()) + 1,
                expected=f"{self.place.num_embeddings} tokens",
            )
        column = (torch.arange(tokens.shape[1], device=tokens.device) + begin) % self.shape.columns
        stream: Tensor = self.embed(tokens + column * self.heads.shape[1]) + self.place(place)
        return F.dropout(stream, self.shape.dropout, self.training)

    def _read(self, found: Tensor, begin: int) -> Tensor:
        """Logits of the column after each position."""
        column = (torch.arange(found.shape[1], device=found.device) + begin + 1) % self.shape.columns
        logits = torch.einsum("blw,lnw->bln", found, self.heads[column])
        return logits.masked_fill(self.get_buffer("none")[column], -torch.inf)


def _nucleus(logits: Tensor, draws: Tensor, kept: float) -> Tensor:
    """`[N]`, drawn among the likeliest bins that together hold `kept` of the probability."""
    chance, order = logits.softmax(-1).sort(-1, descending=True)
    before = chance.cumsum(-1) - chance
    inside = before < kept
    held = torch.where(inside, chance, 0.0).cumsum(-1)
    at = (held <= draws[:, None] * held[:, -1:]).sum(-1)
    at = at.minimum(inside.sum(-1) - 1)  # a draw that was rounded up to 1 stays among them
    return order.gather(-1, at[:, None])[:, 0]

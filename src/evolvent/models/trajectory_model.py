"""A GPT over the bins of whole transitions: it predicts actions, rewards, returns and the next observations.

"Offline Reinforcement Learning as One Big Sequence Modeling Problem" (Trajectory Transformer, arXiv
2106.02039). A transition is the columns (observation, action, reward, return after it, whether it ends), each
one token; every column has its own bins, embeddings and output layer. The last column is ours: the published
model does not know ends.
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
    """The architecture of the model.

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
            problems.append(Problem("counts", f"got {len(self.counts)} columns, expected observation + action + 3"))
        if min(self.counts, default=0) < 1:
            problems.append(Problem("counts", "a column has no bins"))
        if self.context < 1:
            problems.append(Problem("context", f"got {self.context}, expected at least 1"))
        if problems:
            raise ConfigError(problems)

    @property
    def columns(self) -> int:
        """Returns T, the number of columns."""
        return len(self.counts)


class TrajectoryModel(nn.Module):
    """The model. Positions are counted from the first token that is read, wherever in an episode that is."""

    def __init__(self, shape: TrajectoryShape) -> None:
        super().__init__()
        self.shape, max_bins = shape, max(shape.counts)
        self.embed = nn.Embedding(shape.columns * max_bins, shape.width)
        self.place = nn.Embedding(shape.context * shape.columns, shape.width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.trunk = Trunk(
            TrunkShape(
                width=shape.width, heads=shape.heads, layers=shape.layers, dropout=shape.dropout, activation="gelu"
            )
        )
        self.heads = nn.Parameter(torch.randn(shape.columns, max_bins, shape.width) * 0.02)
        missing_bins = torch.arange(max_bins)[None] >= torch.tensor(shape.counts)[:, None]
        self.register_buffer("none", missing_bins, persistent=False)

    def forward(self, tokens: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Computes the logits of the next tokens, `[B, L, bins]`.

        Entry l is about token l + 1; -inf where its column has no such bin.

        Args:
            tokens: `[B, L]` int64, bins of the columns in turn, beginning with the first of an observation.
            attention_mask: `[B, L]` bool, False at padding, which is at the left.
        Raises:
            BatchMismatch: more tokens than the context holds.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        if attention_mask is not None:
            positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        return self._compute_logits(self.trunk(self._embed(tokens, positions, 0), attention_mask=attention_mask), 0)

    @torch.no_grad()
    def continue_transition(self, tokens: Tensor, draws: Tensor, *, top_p: float) -> Tensor:
        """Extends prefixes by one transition, `[N, L + T]`: from the end of an observation to the end of the next.

        Args:
            tokens: `[N, L]`, all columns of some transitions and an observation. draws: `[N, action]` in 0..1, used to
                sample actions from the likeliest bins that hold `top_p` of the probability; other columns take the
                likeliest bin.
        Raises:
            BatchMismatch: prefixes that end elsewhere, or that leave no room.
        """
        shape, length = self.shape, tokens.shape[1]
        if length % shape.columns != shape.observation:
            raise BatchMismatch("prefix does not end with an observation", value=length)
        cache = self.trunk.cache(len(tokens), length + shape.columns)
        positions = torch.arange(length + shape.columns, device=tokens.device).expand(len(tokens), -1)
        last = self._compute_logits(self.trunk.decode(self._embed(tokens, positions[:, :length], 0), cache), 0)[:, -1]
        for column in range(shape.columns):
            action = column < shape.action
            token = _sample_nucleus(last, draws[:, column], top_p) if action else last.argmax(-1)
            tokens = torch.cat([tokens, token[:, None]], 1)
            if column + 1 < shape.columns:
                now = length + column
                stream = self._embed(token[:, None], positions[:, now : now + 1], now)
                last = self._compute_logits(self.trunk.decode(stream, cache), now)[:, -1]
        return tokens

    def _embed(self, tokens: Tensor, positions: Tensor, begin: int) -> Tensor:
        """Returns embeddings of the tokens; `begin` is the number of earlier tokens, which determines the column."""
        if positions.shape[1] and int(positions[:, -1].max()) >= self.place.num_embeddings:
            raise BatchMismatch(
                "number of transitions exceeds the context",
                value=int(positions[:, -1].max()) + 1,
                expected=f"{self.place.num_embeddings} tokens",
            )
        column = (torch.arange(tokens.shape[1], device=tokens.device) + begin) % self.shape.columns
        stream: Tensor = self.embed(tokens + column * self.heads.shape[1]) + self.place(positions)
        return F.dropout(stream, self.shape.dropout, self.training)

    def _compute_logits(self, hidden: Tensor, begin: int) -> Tensor:
        """Computes the logits of the column after each position."""
        column = (torch.arange(hidden.shape[1], device=hidden.device) + begin + 1) % self.shape.columns
        logits = torch.einsum("blw,lnw->bln", hidden, self.heads[column])
        return logits.masked_fill(self.get_buffer("none")[column], -torch.inf)


def _sample_nucleus(logits: Tensor, draws: Tensor, top_p: float) -> Tensor:
    """Samples `[N]` bins among the likeliest bins that together hold `top_p` of the probability."""
    probabilities, order = logits.softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    inside = before < top_p
    cumulative = torch.where(inside, probabilities, 0.0).cumsum(-1)
    rank = (cumulative <= draws[:, None] * cumulative[:, -1:]).sum(-1)
    rank = rank.minimum(inside.sum(-1) - 1)  # a draw that was rounded up to 1 stays among them
    return order.gather(-1, rank[:, None])[:, 0]

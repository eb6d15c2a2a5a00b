"""The Multi-Agent Transformer: a team's decision as a sequence, one agent after the other.

"Multi-Agent Reinforcement Learning is a Sequence Modeling Problem" (arXiv 2205.14953). The encoder lets all
observations look at each other and gives a representation and a value for each agent; the decoder reads the actions of
the agents before, and each agent's representation asks it what to do. Acting is sequential with a cache of keys and
values; training evaluates all agents in one pass. There is no embedding of agents or positions: the same weights fit
teams of any size, and the encoder's results follow any permutation of the agents.

The published network for HalfCheetah 6x1 counts 81,961 parameters. 4,088 of them are never read (an encoder of a
central state and a second encoder of observations); the 77,873 others are this one's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a multi-agent transformer") from error

from evolvent.models.team_actions import Acted, ActionHead, Judged, Seen, TeamModel, TeamShape
from evolvent.models.trunk import Cache, Trunk, TrunkShape, bare, orthogonal_

__all__ = ["MultiAgentTransformer", "head"]

_BEFORE_ACTIVATION = math.sqrt(2.0)


def head(width: int, outputs: int) -> nn.Sequential:
    """What reads a representation: `[..., D] -> [..., outputs]`."""
    return nn.Sequential(
        orthogonal_(nn.Linear(width, width), _BEFORE_ACTIVATION),
        nn.GELU(),
        nn.LayerNorm(width),
        orthogonal_(nn.Linear(width, outputs)),
    )


class _Recurrent(nn.Module):
    """In a trunk's place, a GRU over the agents (the ablation without attention).

    As an encoder it reads in both directions; as a decoder it reads each agent's representation and the action before.
    """

    def __init__(self, width: int, layers: int, *, both: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(
            width if both else 2 * width, width // 2 if both else width, layers, batch_first=True, bidirectional=both
        )

    def forward(self, x: Tensor, memory: Tensor | None = None, *, seen: Tensor | None = None) -> Tensor:
        if seen is not None:
            x = x * seen[..., None]
        found: Tensor = self.gru(x if memory is None else torch.cat([memory, x], -1))[0]
        return found

    def step(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """One agent, `[B, 1, D]`, and what is known of those before."""
        found, hidden = self.gru(torch.cat([memory, x], -1), hidden)
        return found, hidden


class MultiAgentTransformer(TeamModel):
    """Encoder and decoder over agents, and their ablations.

    `kind` "mat_encoder": without decoder, all decide at once from the encoder's representations. "mat_decoder": without
    attention between observations, agents know their own and the actions before theirs. "mat_gru": recurrent networks
    in place of attention.
    """

    def __init__(self, shape: TeamShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        gru = shape.kind == "mat_gru"
        trunk = TrunkShape(
            width=width, heads=shape.heads, layers=shape.blocks, mlp=1, norm="post", causal=False, init="orthogonal"
        )
        self.observe = nn.Sequential(
            nn.LayerNorm(shape.observation),
            orthogonal_(nn.Linear(shape.observation, width), _BEFORE_ACTIVATION),
            nn.GELU(),
            nn.LayerNorm(width),
        )
        self.encoder: Trunk | _Recurrent | None = None
        if shape.kind != "mat_decoder":
            self.encoder = _Recurrent(width, shape.blocks, both=True) if gru else Trunk(trunk)
        self.value_head = head(width, 1)
        self.policy_head = head(width, shape.outputs)
        self.head = ActionHead(shape)
        self.decoder: Trunk | _Recurrent | None = None
        if shape.kind == "mat_encoder":
            return
        first = not shape.dim  # a discrete stream begins with a symbol of its own, a continuous one with zeros
        embed = orthogonal_(nn.Linear(shape.outputs + first, width, bias=not first), _BEFORE_ACTIVATION)
        self.embed = nn.Sequential(embed, nn.GELU(), nn.LayerNorm(width))
        if gru:
            self.decoder = _Recurrent(width, shape.blocks, both=False)
        else:
            self.decoder = Trunk(
                TrunkShape(
                    width=width,
                    heads=shape.heads,
                    layers=shape.blocks,
                    mlp=1,
                    norm="post",
                    causal=True,
                    cross=True,
                    init="orthogonal",
                )
            )

    # ------------------------------------------------------------------ reading

    def encode(self, seen: Seen) -> Tensor:
        """Representations `[B, n, D]` of the agents; zeros where not alive, and nobody looks at such an agent."""
        self.check(seen)
        x: Tensor = self.observe(seen.observation)
        if self.encoder is not None:
            x = self.encoder(x, seen=seen.alive)
        return x if seen.alive is None else x * seen.alive[..., None]

    def values(self, seen: Seen) -> Tensor:
        """`[B, n]`. With `prefix_values` all agents have that of the empty prefix, which the first who lives reads."""
        representation = self.encode(seen)
        if not self.shape.prefix_values:
            return self._value(representation)
        tokens = self._tokens(seen, None)
        if seen.alive is None:
            found = self._value(self._decode(tokens[:, :1], representation[:, :1], None))
        else:
            every = self._value(self._decode(tokens, representation, _before(seen.alive)))
            found = every.gather(1, seen.alive.int().argmax(1, keepdim=True))
        return found.expand(representation.shape[:2])

    def evaluate(self, seen: Seen, actions: Tensor) -> Judged:
        """All agents in one teacher-forced pass."""
        representation = self.encode(seen)
        stream = representation
        if self.decoder is not None:
            stream = self._decode(self._tokens(seen, actions), representation, _before(seen.alive))
        logp, entropy = self.head.judge(self.policy_head(stream), actions, seen.available)
        return Judged(logp, entropy, self._value(stream if self.shape.prefix_values else representation))

    def _value(self, stream: Tensor) -> Tensor:
        found: Tensor = self.value_head(stream).squeeze(-1)
        return found

    def _decode(self, tokens: Tensor, representation: Tensor, seen: Tensor | None) -> Tensor:
        if self.decoder is None:
            return representation
        found: Tensor = self.decoder(self.embed(tokens), representation, seen=seen)
        return found

    def _tokens(self, seen: Seen, actions: Tensor | None) -> Tensor:
        """The stream of actions, shifted by one agent: `[B, n, A + 1]` behind a symbol of its own, or `[B, n, D]`
        behind zeros. The place of an agent that is not alive is all zeros. None: the beginning alone."""
        batch, agents = seen.observation.shape[:2]
        first = int(self.head.log_std is None)
        tokens = seen.observation.new_zeros(batch, agents, self.shape.outputs + first)
        if first:
            tokens[:, 0, 0] = 1.0
        if actions is not None and agents > 1:
            told = self.head.encode(actions[:, :-1]).to(tokens.dtype)
            tokens[:, 1:, first:] = told if seen.alive is None else told * seen.alive[:, :-1, None]
        return tokens

    # ------------------------------------------------------------------ acting

    @torch.no_grad()
    def act(self, seen: Seen, uniform: Tensor, *, greedy: bool = False) -> Acted:
        """Agent after agent; keys and values of those before are kept."""
        representation = self.encode(seen)
        if self.decoder is None:
            outputs_of_all = self.policy_head(representation)
            return Acted(
                *self.head.sample(outputs_of_all, uniform, seen.available, greedy=greedy), self._value(representation)
            )
        looked, agents = _before(seen.alive), seen.observation.shape[1]
        noise = uniform if greedy else self.head.noise(uniform)
        past: Cache | Tensor | None = None
        if isinstance(self.decoder, Trunk):
            past = self.decoder.cache(len(representation), agents)
        x, tell, read = (
            self.embed(self._tokens(seen, None)[:, :1]),
            self._teller(representation),
            bare(*self.policy_head),
        )
        chosen, streams, outputs = [], [], []
        for agent in range(agents):
            at = slice(agent, agent + 1)
            look = None if looked is None else looked[:, at]
            stream, past = self._next(x, representation[:, at], past, look)
            outputs.append(read(stream))
            available = None if seen.available is None else seen.available[:, at]
            chosen.append(self.head.draw(outputs[-1], noise[:, at], available, greedy=greedy))
            streams.append(stream)
            if agent + 1 < agents:
                x = tell(chosen[-1], None if seen.alive is None else seen.alive[:, at])
        actions = torch.cat(chosen, 1)
        logp = self.head.logp(torch.cat(outputs, 1), actions, seen.available)
        return Acted(actions, logp, self._value(torch.cat(streams, 1) if self.shape.prefix_values else representation))

    def _teller(self, like: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
        """What tells the next agent of an action `[B, 1, K]`: its embedding `[B, 1, D]`, that of zeros for the dead.

        Of one choice among few there are as many embeddings as choices: they are looked up.
        """
        first, embed = int(self.head.log_std is None), bare(*self.embed)
        if len(self.shape.sizes) == 1:
            none = self.shape.outputs  # the last row: of an agent that is not alive
            every = torch.zeros(none + 1, none + 1, dtype=like.dtype, device=like.device)
            every[:none, 1:] = torch.eye(none)
            table = embed(every)
            return lambda action, alive: table[
                (action if alive is None else action.masked_fill(~alive[..., None], none))[..., 0]
            ]

        def embedded(action: Tensor, alive: Tensor | None) -> Tensor:
            told = self.head.encode(action).to(like.dtype)
            told = told if alive is None else told * alive[..., None]
            return embed(nn.functional.pad(told, (first, 0)) if first else told)

        return embedded

    def _next(
        self, x: Tensor, representation: Tensor, past: Cache | Tensor | None, /, seen: Tensor | None
    ) -> tuple[Tensor, Cache | Tensor | None]:
        """The decoder at one more agent, `[B, 1, D]`, and its memory of those so far."""
        if isinstance(self.decoder, Trunk) and isinstance(past, Cache):
            return self.decoder.decode(x, past, representation, seen=seen), past
        if isinstance(self.decoder, _Recurrent) and not isinstance(past, Cache):
            return self.decoder.step(x if seen is None else x * seen[..., None], representation, past)
        return representation, past


def _before(alive: Tensor | None) -> Tensor | None:
    """`[B, n]` bool, which places of the shifted stream are looked at: the first, and those behind a living agent."""
    if alive is None:
        return None
    return torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)

"""The Multi-Agent Transformer: a team's decision as a sequence, one agent after the other.

"Multi-Agent Reinforcement Learning is a Sequence Modeling Problem" (arXiv 2205.14953). The encoder lets all
observations attend to each other and gives a representation and a value for each agent; the decoder reads the
actions of earlier agents, and each agent's representation queries it for an action. Acting is sequential with a
cache of keys and values; training evaluates all agents in one pass. There is no embedding of agents or
positions: the same weights fit teams of any size, and the encoder's results follow any permutation of the
agents.

The published network for HalfCheetah 6x1 counts 81,961 parameters. 4,088 of them are never read (an encoder of
a central state and a second encoder of observations); the 77,873 others are this one's.
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

from evolvent.models.team_actions import ActionHead, EvaluatedActions, SampledActions, TeamInputs, TeamModel, TeamShape
from evolvent.models.trunk import Cache, Trunk, TrunkShape, bare, orthogonal_

__all__ = ["MultiAgentTransformer", "build_head"]

_BEFORE_ACTIVATION = math.sqrt(2.0)


def build_head(width: int, outputs: int) -> nn.Sequential:
    """Builds a head that reads a representation: `[..., D] -> [..., outputs]`."""
    return nn.Sequential(
        orthogonal_(nn.Linear(width, width), _BEFORE_ACTIVATION),
        nn.GELU(),
        nn.LayerNorm(width),
        orthogonal_(nn.Linear(width, outputs)),
    )


class _Recurrent(nn.Module):
    """A GRU over the agents in place of a trunk (the ablation without attention).

    As an encoder it reads in both directions; as a decoder it reads each agent's representation and the action before.
    """

    def __init__(self, width: int, layers: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(
            width if bidirectional else 2 * width,
            width // 2 if bidirectional else width,
            layers,
            batch_first=True,
            bidirectional=bidirectional,
        )

    def forward(self, x: Tensor, memory: Tensor | None = None, *, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        outputs: Tensor = self.gru(x if memory is None else torch.cat([memory, x], -1))[0]
        return outputs

    def step(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Runs one agent, `[B, 1, D]`, and returns its output and the hidden state."""
        output, hidden = self.gru(torch.cat([memory, x], -1), hidden)
        return output, hidden


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
            self.encoder = _Recurrent(width, shape.blocks, bidirectional=True) if gru else Trunk(trunk)
        self.value_head = build_head(width, 1)
        self.policy_head = build_head(width, shape.outputs)
        self.head = ActionHead(shape)
        self.decoder: Trunk | _Recurrent | None = None
        if shape.kind == "mat_encoder":
            return
        first = not shape.dim  # a discrete stream begins with a symbol of its own, a continuous one with zeros
        embed = orthogonal_(nn.Linear(shape.outputs + first, width, bias=not first), _BEFORE_ACTIVATION)
        self.embed = nn.Sequential(embed, nn.GELU(), nn.LayerNorm(width))
        if gru:
            self.decoder = _Recurrent(width, shape.blocks, bidirectional=False)
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

    def encode(self, inputs: TeamInputs) -> Tensor:
        """Computes representations `[B, n, D]` of the agents; zeros for dead agents, which no agent attends to."""
        self.check(inputs)
        x: Tensor = self.observe(inputs.observation)
        if self.encoder is not None:
            x = self.encoder(x, attention_mask=inputs.alive)
        return x if inputs.alive is None else x * inputs.alive[..., None]

    def values(self, inputs: TeamInputs) -> Tensor:
        """Computes values `[B, n]`.

        With `prefix_values` all agents have the value of the empty prefix, which is read at the first living agent.
        """
        representation = self.encode(inputs)
        if not self.shape.prefix_values:
            return self._value(representation)
        tokens = self._shifted_actions(inputs, None)
        if inputs.alive is None:
            values = self._value(self._decode(tokens[:, :1], representation[:, :1], None))
        else:
            values_of_all = self._value(self._decode(tokens, representation, _shift_alive(inputs.alive)))
            values = values_of_all.gather(1, inputs.alive.int().argmax(1, keepdim=True))
        return values.expand(representation.shape[:2])

    def evaluate(self, inputs: TeamInputs, actions: Tensor) -> EvaluatedActions:
        """Evaluates all agents in one teacher-forced pass."""
        representation = self.encode(inputs)
        stream = representation
        if self.decoder is not None:
            stream = self._decode(self._shifted_actions(inputs, actions), representation, _shift_alive(inputs.alive))
        logp, entropy = self.head.evaluate(self.policy_head(stream), actions, inputs.available)
        return EvaluatedActions(logp, entropy, self._value(stream if self.shape.prefix_values else representation))

    def _value(self, stream: Tensor) -> Tensor:
        value: Tensor = self.value_head(stream).squeeze(-1)
        return value

    def _decode(self, tokens: Tensor, representation: Tensor, attention_mask: Tensor | None) -> Tensor:
        if self.decoder is None:
            return representation
        decoded: Tensor = self.decoder(self.embed(tokens), representation, attention_mask=attention_mask)
        return decoded

    def _shifted_actions(self, inputs: TeamInputs, actions: Tensor | None) -> Tensor:
        """Returns the stream of actions, shifted by one agent.

        It is `[B, n, A + 1]` after a start symbol, or `[B, n, D]` after zeros. The row of a dead agent is all zeros.
        With actions None it holds only the beginning.
        """
        batch, agents = inputs.observation.shape[:2]
        first = int(self.head.log_std is None)
        tokens = inputs.observation.new_zeros(batch, agents, self.shape.outputs + first)
        if first:
            tokens[:, 0, 0] = 1.0
        if actions is not None and agents > 1:
            encoded = self.head.encode(actions[:, :-1]).to(tokens.dtype)
            tokens[:, 1:, first:] = encoded if inputs.alive is None else encoded * inputs.alive[:, :-1, None]
        return tokens

    # ------------------------------------------------------------------ acting

    @torch.no_grad()
    def act(self, inputs: TeamInputs, uniform: Tensor, *, greedy: bool = False) -> SampledActions:
        """Samples actions agent after agent, with a cache of the keys and values of earlier agents."""
        representation = self.encode(inputs)
        if self.decoder is None:
            outputs_of_all = self.policy_head(representation)
            return SampledActions(
                *self.head.sample(outputs_of_all, uniform, inputs.available, greedy=greedy), self._value(representation)
            )
        attention_mask, agents = _shift_alive(inputs.alive), inputs.observation.shape[1]
        noise = uniform if greedy else self.head.noise(uniform)
        past: Cache | Tensor | None = None
        if isinstance(self.decoder, Trunk):
            past = self.decoder.cache(len(representation), agents)
        x, embed_action, policy_head = (
            self.embed(self._shifted_actions(inputs, None)[:, :1]),
            self._action_embedder(representation),
            bare(*self.policy_head),
        )
        actions_so_far, streams, outputs = [], [], []
        for agent in range(agents):
            column = slice(agent, agent + 1)
            column_mask = None if attention_mask is None else attention_mask[:, column]
            stream, past = self._decode_next(x, representation[:, column], past, column_mask)
            outputs.append(policy_head(stream))
            available = None if inputs.available is None else inputs.available[:, column]
            actions_so_far.append(self.head.draw(outputs[-1], noise[:, column], available, greedy=greedy))
            streams.append(stream)
            if agent + 1 < agents:
                x = embed_action(actions_so_far[-1], None if inputs.alive is None else inputs.alive[:, column])
        actions = torch.cat(actions_so_far, 1)
        logp = self.head.logp(torch.cat(outputs, 1), actions, inputs.available)
        return SampledActions(
            actions, logp, self._value(torch.cat(streams, 1) if self.shape.prefix_values else representation)
        )

    def _action_embedder(self, like: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Returns a function that embeds an action `[B, 1, K]` as `[B, 1, D]`; dead agents get the embedding of
        zeros.

        A single choice has as many embeddings as options: they are looked up in a table.
        """
        first, embed = int(self.head.log_std is None), bare(*self.embed)
        if len(self.shape.sizes) == 1:
            dead_index = self.shape.outputs  # the last row: of an agent that is not alive
            one_hot = torch.zeros(dead_index + 1, dead_index + 1, dtype=like.dtype, device=like.device)
            one_hot[:dead_index, 1:] = torch.eye(dead_index)
            table = embed(one_hot)
            return lambda action, alive: table[
                (action if alive is None else action.masked_fill(~alive[..., None], dead_index))[..., 0]
            ]

        def embed_one(action: Tensor, alive: Tensor | None) -> Tensor:
            encoded = self.head.encode(action).to(like.dtype)
            encoded = encoded if alive is None else encoded * alive[..., None]
            return embed(nn.functional.pad(encoded, (first, 0)) if first else encoded)

        return embed_one

    def _decode_next(
        self, x: Tensor, representation: Tensor, past: Cache | Tensor | None, /, attention_mask: Tensor | None
    ) -> tuple[Tensor, Cache | Tensor | None]:
        """Computes the decoder at one more agent, `[B, 1, D]`, and returns its output and its cache of earlier
        agents.
        """
        if isinstance(self.decoder, Trunk) and isinstance(past, Cache):
            return self.decoder.decode(x, past, representation, attention_mask=attention_mask), past
        if isinstance(self.decoder, _Recurrent) and not isinstance(past, Cache):
            return self.decoder.step(
                x if attention_mask is None else x * attention_mask[..., None], representation, past
            )
        return representation, past


def _shift_alive(alive: Tensor | None) -> Tensor | None:
    """Returns `[B, n]` bool, the visible positions of the shifted stream: the first, and those after a living agent."""
    if alive is None:
        return None
    return torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)

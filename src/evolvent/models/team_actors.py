"""Policies of teams whose agents decide at the same moment: MAT-Dec, MAPPO and HAPPO.

MAT-Dec (arXiv 2205.14953): the encoder of MAT as critic, an MLP as actor. MAPPO (arXiv 2103.01955): one actor for all
agents. HAPPO (arXiv 2109.11251): an actor for each. The last two have a critic that sees what is known in training
alone: the central state, or, where there is none, the mean of what the team sees. So every critic fits teams of any
size. All actors have the shape of the published MAT-Dec's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a policy of a team") from error

from evolvent.models.mat import head
from evolvent.models.team_actions import Acted, ActionHead, Judged, Seen, TeamModel, TeamShape
from evolvent.models.trunk import Trunk, TrunkShape, orthogonal_

__all__ = ["TeamActors", "team_mlp"]


def team_mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with norms: `[..., inputs] -> [..., outputs]`."""
    gain = math.sqrt(2.0)
    return nn.Sequential(
        nn.LayerNorm(inputs),
        orthogonal_(nn.Linear(inputs, width), gain),
        nn.GELU(),
        nn.LayerNorm(width),
        orthogonal_(nn.Linear(width, width), gain),
        nn.GELU(),
        nn.LayerNorm(width),
        orthogonal_(nn.Linear(width, outputs)),
    )


class TeamActors(TeamModel):
    """Actors that see their own observation, and a critic of the whole team: `kind` "mat_dec", "mappo" or "happo".

    Without `share` every agent has an actor and, where actions are continuous, a deviation of its own. A team with more
    agents than actors uses them in turn: agent i has actor `i mod shape.agents`.
    """

    def __init__(self, shape: TeamShape) -> None:
        super().__init__()
        self.shape = shape
        actors = 1 if shape.share or shape.kind == "mappo" else shape.agents
        self.actors = nn.ModuleList(team_mlp(shape.observation, shape.width, shape.outputs) for _ in range(actors))
        one = shape.kind == "mat_dec"  # as published: one deviation, whoever acts
        self.deviations = nn.ModuleList(ActionHead(shape) for _ in range(1 if one else actors))
        self.encoder: Trunk | None = None
        if shape.kind == "mat_dec":
            self.observe = nn.Sequential(
                nn.LayerNorm(shape.observation),
                orthogonal_(nn.Linear(shape.observation, shape.width), math.sqrt(2.0)),
                nn.GELU(),
                nn.LayerNorm(shape.width),
            )
            self.encoder = Trunk(
                TrunkShape(
                    width=shape.width,
                    heads=shape.heads,
                    layers=shape.blocks,
                    mlp=1,
                    norm="post",
                    causal=False,
                    init="orthogonal",
                )
            )
            self.critic: nn.Module = head(shape.width, 1)
        else:
            self.critic = team_mlp(shape.observation + (shape.state or shape.observation), shape.width, 1)

    def actor_of(self, agent: int) -> int:
        """Which actor an agent has."""
        return agent % len(self.actors)

    def actor_parameters(self, actor: int) -> list[nn.Parameter]:
        """What belongs to one actor alone."""
        return [*self.actors[actor].parameters(), *self._head(actor).parameters()]

    def values(self, seen: Seen) -> Tensor:
        self.check(seen)
        if self.encoder is not None:
            found: Tensor = self.critic(self.encoder(self.observe(seen.observation), seen=seen.alive)).squeeze(-1)
            return found
        own = seen.observation
        if seen.state is not None and self.shape.state:
            together = seen.state[:, None].expand(-1, own.shape[1], -1)
        elif seen.alive is None:
            together = own.mean(1, keepdim=True).expand_as(own)
        else:
            weight = seen.alive.to(own.dtype)[..., None]
            together = ((own * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1.0)).expand_as(own)
        critic: Tensor = self.critic(torch.cat([own, together], -1)).squeeze(-1)
        return critic

    @torch.no_grad()
    def act(self, seen: Seen, uniform: Tensor, *, greedy: bool = False) -> Acted:
        values = self.values(seen)
        if len(self.actors) == 1:
            outputs = self.actors[0](seen.observation)
            return Acted(*self._head(0).sample(outputs, uniform, seen.available, greedy=greedy), values)
        found = [
            self._head(self.actor_of(i)).sample(
                self.actors[self.actor_of(i)](seen.observation[:, i]),
                uniform[:, i],
                None if seen.available is None else seen.available[:, i],
                greedy=greedy,
            )
            for i in range(seen.observation.shape[1])
        ]
        return Acted(torch.stack([x[0] for x in found], 1), torch.stack([x[1] for x in found], 1), values)

    def evaluate(self, seen: Seen, actions: Tensor) -> Judged:
        """All agents; values by the critic."""
        logp, entropy = self.judge(seen, actions, range(seen.observation.shape[1]))
        return Judged(logp, entropy, self.values(seen))

    def judge(self, seen: Seen, actions: Tensor, agents: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies `[B, len(agents)]` of some agents' actions, without the critic."""
        if len(self.actors) == 1 and len(agents) == seen.observation.shape[1]:
            return self._head(0).judge(self.actors[0](seen.observation), actions, seen.available)
        found = [
            self._head(self.actor_of(i)).judge(
                self.actors[self.actor_of(i)](seen.observation[:, i]),
                actions[:, i],
                None if seen.available is None else seen.available[:, i],
            )
            for i in agents
        ]
        return torch.stack([x[0] for x in found], 1), torch.stack([x[1] for x in found], 1)

    def _head(self, actor: int) -> ActionHead:
        found = self.deviations[actor % len(self.deviations)]
        if not isinstance(found, ActionHead):
            raise TypeError(type(found))
        return found

"""Policies of teams whose agents decide at the same moment: MAT-Dec, MAPPO and HAPPO.

MAT-Dec (arXiv 2205.14953): the encoder of MAT as critic, an MLP as actor. MAPPO (arXiv 2103.01955): one actor
for all agents. HAPPO (arXiv 2109.11251): an actor for each. The last two have a critic with information of
training alone: the central state, or, where there is none, the mean of the team's observations. So every critic
fits teams of any size. All actors have the shape of the published MAT-Dec's.

`ControlModel` is the policy of a single agent over numbers.
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

from evolvent.models.mat import build_head
from evolvent.models.team_actions import ActionHead, EvaluatedActions, SampledActions, TeamInputs, TeamModel, TeamShape
from evolvent.models.trunk import Trunk, TrunkShape, orthogonal_

__all__ = ["ControlModel", "TeamActors", "team_mlp"]


def team_mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Builds two hidden layers with norms: `[..., inputs] -> [..., outputs]`."""
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
        is_shared = shape.kind == "mat_dec"  # as published: one deviation, whoever acts
        self.deviations = nn.ModuleList(ActionHead(shape) for _ in range(1 if is_shared else actors))
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
            self.critic: nn.Module = build_head(shape.width, 1)
        else:
            self.critic = team_mlp(shape.observation + (shape.state or shape.observation), shape.width, 1)

    def actor_index(self, agent: int) -> int:
        """Returns the index of an agent's actor."""
        return agent % len(self.actors)

    def actor_parameters(self, actor: int) -> list[nn.Parameter]:
        """Returns the parameters that belong to one actor alone."""
        return [*self.actors[actor].parameters(), *self._action_head(actor).parameters()]

    def values(self, inputs: TeamInputs) -> Tensor:
        self.check(inputs)
        if self.encoder is not None:
            values: Tensor = self.critic(
                self.encoder(self.observe(inputs.observation), attention_mask=inputs.alive)
            ).squeeze(-1)
            return values
        observation = inputs.observation
        if inputs.state is not None and self.shape.state:
            context = inputs.state[:, None].expand(-1, observation.shape[1], -1)
        elif inputs.alive is None:
            context = observation.mean(1, keepdim=True).expand_as(observation)
        else:
            weight = inputs.alive.to(observation.dtype)[..., None]
            context = (
                (observation * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1.0)
            ).expand_as(observation)
        critic: Tensor = self.critic(torch.cat([observation, context], -1)).squeeze(-1)
        return critic

    @torch.no_grad()
    def act(self, inputs: TeamInputs, uniform: Tensor, *, greedy: bool = False) -> SampledActions:
        values = self.values(inputs)
        if len(self.actors) == 1:
            outputs = self.actors[0](inputs.observation)
            return SampledActions(
                *self._action_head(0).sample(outputs, uniform, inputs.available, greedy=greedy), values
            )
        samples = [
            self._action_head(self.actor_index(i)).sample(
                self.actors[self.actor_index(i)](inputs.observation[:, i]),
                uniform[:, i],
                None if inputs.available is None else inputs.available[:, i],
                greedy=greedy,
            )
            for i in range(inputs.observation.shape[1])
        ]
        return SampledActions(torch.stack([x[0] for x in samples], 1), torch.stack([x[1] for x in samples], 1), values)

    def evaluate(self, inputs: TeamInputs, actions: Tensor) -> EvaluatedActions:
        """Evaluates all agents; values are the critic's."""
        logp, entropy = self.evaluate_agents(inputs, actions, range(inputs.observation.shape[1]))
        return EvaluatedActions(logp, entropy, self.values(inputs))

    def evaluate_agents(self, inputs: TeamInputs, actions: Tensor, agents: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Computes log-probabilities and entropies `[B, len(agents)]` of some agents' actions, without the critic."""
        if len(self.actors) == 1 and len(agents) == inputs.observation.shape[1]:
            return self._action_head(0).evaluate(self.actors[0](inputs.observation), actions, inputs.available)
        evaluations = [
            self._action_head(self.actor_index(i)).evaluate(
                self.actors[self.actor_index(i)](inputs.observation[:, i]),
                actions[:, i],
                None if inputs.available is None else inputs.available[:, i],
            )
            for i in agents
        ]
        return torch.stack([x[0] for x in evaluations], 1), torch.stack([x[1] for x in evaluations], 1)

    def _action_head(self, actor: int) -> ActionHead:
        action_head = self.deviations[actor % len(self.deviations)]
        if not isinstance(action_head, ActionHead):
            raise TypeError(type(action_head))
        return action_head


_LARGEST = 10.0  # of a standardized number


class ControlModel(TeamModel):
    """Two tanh layers each for the actor and the critic, over standardized observations: `kind` "mlp".

    Observations are standardized by the mean and variance of all that were learned from (`update_scales`), which are
    part of the weights.
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, shape: TeamShape) -> None:
        super().__init__()
        self.shape = shape
        self.actor = _build_mlp(shape.observation, shape.width, shape.outputs, gain=0.01)
        self.critic = _build_mlp(shape.observation, shape.width, 1, gain=1.0)
        self.head = ActionHead(shape)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape.observation, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(shape.observation, dtype=torch.float64))  # sum of squared deviations

    @torch.no_grad()
    def update_scales(self, observation: Tensor) -> None:
        """Adds observations `[N, n, O]` to the mean and the variance (Chan, Golub and LeVeque 1979).

        >>> model = ControlModel(TeamShape(kind="mlp", agents=1, observation=1, sizes=(2,)))
        >>> model.update_scales(torch.tensor([[[1.0]], [[3.0]]]))
        >>> model.update_scales(torch.tensor([[[8.0]]]))
        >>> float(model.mean), float(model.square / model.count)
        (4.0, 8.666666666666666)
        """
        rows = observation.reshape(-1, observation.shape[-1]).double()
        count, mean = float(len(rows)), rows.mean(0)
        total, shift = self.count + count, mean - self.mean
        self.square += (rows - mean).square().sum(0) + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count.copy_(total)

    def _standardize(self, observation: Tensor) -> Tensor:
        if not self.count:
            return observation
        deviation = (self.square / self.count).sqrt().clamp(min=1e-6)
        return ((observation - self.mean) / deviation).clamp(-_LARGEST, _LARGEST).to(observation.dtype)

    def values(self, inputs: TeamInputs) -> Tensor:
        """Computes the critic's values `[B, n]`."""
        self.check(inputs)
        values: Tensor = self.critic(self._standardize(inputs.observation)).squeeze(-1)
        return values

    @torch.no_grad()
    def act(self, inputs: TeamInputs, uniform: Tensor, *, greedy: bool = False) -> SampledActions:
        """Samples actions, or takes the likeliest."""
        self.check(inputs)
        observation = self._standardize(inputs.observation)
        actions, logp = self.head.sample(self.actor(observation), uniform, inputs.available, greedy=greedy)
        return SampledActions(actions, logp, self.critic(observation).squeeze(-1))

    def evaluate(self, inputs: TeamInputs, actions: Tensor) -> EvaluatedActions:
        """Computes log-probabilities, entropies and values of actions."""
        observation = self._standardize(inputs.observation)
        logp, entropy = self.head.evaluate(self.actor(observation), actions, inputs.available)
        return EvaluatedActions(logp, entropy, self.critic(observation).squeeze(-1))


def _build_mlp(inputs: int, width: int, outputs: int, *, gain: float) -> nn.Sequential:
    hidden_gain = math.sqrt(2.0)
    return nn.Sequential(
        orthogonal_(nn.Linear(inputs, width), hidden_gain),
        nn.Tanh(),
        orthogonal_(nn.Linear(width, width), hidden_gain),
        nn.Tanh(),
        orthogonal_(nn.Linear(width, outputs), gain),
    )

"""Updates of a team from a rollout: PPO over agents (MAT, MAPPO), and HAPPO's sequential updates of agents.

One loop serves all: advantages, then passes over the decisions in minibatches. A decision is never split: all
its agents are in one minibatch, as the transformer needs them. Clipping, values and sums come from
`rl.policy_losses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import NonFinite, ShapeMismatch
from evolvent.marl.credit import TeamAdvantages, ValueNormalizer, estimate_team_advantages
from evolvent.marl.policy import TeamPolicy, rollout_actions, rollout_tensors
from evolvent.marl.rollout import ArrayRollout
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.models.team_actions import TeamInputs, TeamModel
from evolvent.models.team_actors import TeamActors
from evolvent.rl.advantages import whiten
from evolvent.rl.policy_losses import clipped_surrogate, value_losses, weighted_sum
from evolvent.trajectory import sample_rng

__all__ = [
    "TeamBuffer",
    "TeamLearner",
    "build_team_buffer",
    "iterate_minibatches",
    "team_policy_loss",
    "team_value_loss",
]


class TeamBuffer(NamedTuple):
    """Decisions, one per row; those of lost episodes are left out.

    Attributes:
        observations, actions: `[N, ...]`.
        old_logprobs: `[N, n]` log-probabilities when sampled.
        advantage: `[N, n]` normalized over everything that is learned.
        returns, values: `[N, n]` on the critic's scale; values before the update.
        policy_mask, value_mask: `[N, n]` float32, 1 where the policy's (the value's) loss includes an agent.
        factor: `[N, 1]`, factor of the advantages (HAPPO's product of ratios; 1).
    """

    observations: TeamInputs
    actions: Tensor
    old_logprobs: Tensor
    advantage: Tensor
    returns: Tensor
    values: Tensor
    policy_mask: Tensor
    value_mask: Tensor
    factor: Tensor

    def select_rows(self, index: Tensor | slice) -> TeamBuffer:
        """Returns some of the decisions; a slice makes no copy."""
        return TeamBuffer(self.observations.rows(index), *(field[index] for field in self[1:]))


def build_team_buffer(
    rollout: ArrayRollout,
    advantages: TeamAdvantages,
    *,
    norm: ValueNormalizer,
    mask_policy: bool = True,
    mask_values: bool = True,
    device: torch.device | None = None,
) -> TeamBuffer:
    """Builds the buffer that an update learns from.

    Args:
        norm: of the returns.
        mask_policy, mask_values: whether a loss leaves out agents that are not alive.
    """
    agents = rollout.spec.agents

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32).reshape(-1, agents)).to(device)

    is_kept = np.broadcast_to(~rollout.lost[..., None], rollout.alive.shape)
    policy_mask, value_mask = (advantages.learned if mask else is_kept for mask in (mask_policy, mask_values))
    buffer = TeamBuffer(
        rollout_tensors(rollout, device),
        rollout_actions(rollout, device),
        tensor(rollout.logp),
        tensor(whiten(advantages.advantage, mask=policy_mask, epsilon=1e-10)),
        tensor(norm.normalize(advantages.returns)),
        tensor(rollout.value),
        tensor(policy_mask),
        tensor(value_mask),
        tensor(np.ones(rollout.alive.shape))[:, :1],
    )
    if not rollout.lost.any():
        return buffer
    return buffer.select_rows(torch.from_numpy(np.flatnonzero(~rollout.lost.reshape(-1))).to(device))


def iterate_minibatches(buffer: TeamBuffer, count: int, *key: object) -> Iterator[TeamBuffer]:
    """Yields one pass: all decisions in an order drawn from `key`, in `count` minibatches of (nearly) equal size.

    A decision is never split: its agents stay together. With fewer decisions than minibatches, each is a minibatch.
    """
    decisions = len(buffer.old_logprobs)
    order = sample_rng("team-update", *key).permutation(decisions)
    shuffled = buffer.select_rows(torch.from_numpy(order).to(buffer.old_logprobs.device))
    cuts = np.linspace(0, decisions, min(count, decisions) + 1).astype(int).tolist()
    for begin, end in pairwise(cuts):
        yield shuffled.select_rows(slice(begin, end))


def team_policy_loss(
    logp: Tensor, old_logprobs: Tensor, advantage: Tensor, *, weights: Tensor, clip_range: float
) -> tuple[Tensor, Tensor]:
    """Computes PPO's clipped surrogate with a ratio for each agent, as (sum, count) over nonzero weights.

    Args:
        logp: `[B, n]`, log-probabilities under the policy.
        old_logprobs: `[B, n]`, before the update.
        advantage: `[B, n]`; may be compounded (HAPPO).
        weights: `[B, n]`.
        clip_range: of the ratio, both ways.

    >>> import torch
    >>> logp, old = torch.tensor([[0.5, 1.0, 2.0]]).log(), torch.zeros(1, 3)
    >>> team_policy_loss(logp, old, torch.ones(1, 3), weights=torch.ones(1, 3), clip_range=0.2)
    (tensor(-2.7000), tensor(3.))
    """
    log_ratio = torch.where(weights != 0, logp - old_logprobs, 0.0)
    terms = clipped_surrogate(log_ratio.flatten(), advantage.flatten(), low=clip_range, high=clip_range)
    return weighted_sum(terms, weights.flatten()), weights.sum()


def team_value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, *, weights: Tensor, settings: TeamUpdateConfig
) -> tuple[Tensor, Tensor]:
    """Computes Huber's loss of values or of clipped values, whichever is greater, as (sum, count) over nonzero
    weights.

    Args:
        values, returns: `[B, n]`.
        old_values: `[B, n]`, before the update.
        weights: `[B, n]`.
        settings: clip range and Huber's bound.

    >>> import torch
    >>> team_value_loss(
    ...     torch.tensor([[0.0, 1.0, 3.0]]),
    ...     torch.ones(1, 3),
    ...     torch.tensor([[0.0, 1.0, 3.0]]),
    ...     weights=torch.ones(1, 3),
    ...     settings=TeamUpdateConfig(),
    ... )
    (tensor(2.5000), tensor(3.))
    """
    terms = value_losses(
        values.flatten(),
        returns.flatten(),
        old_values.flatten(),
        huber=settings.huber,
        clip_range=settings.clip_range if settings.clip_values else None,
    )
    return weighted_sum(terms, weights.flatten()), weights.sum()


class _FlatAdam:
    """Adam over weights that are stored in one array, with one norm and one step for all of them.

    The results are those of Adam tensor by tensor; a small network's updates are mostly overhead for each tensor. On a
    CPU the weights are parts of that array; on other devices they are copied from it after a step.
    """

    def __init__(self, weights: Sequence[Tensor], lr: float, *, max_norm: float) -> None:
        self.flat = torch.nn.Parameter(torch.cat([weight.detach().flatten() for weight in weights]))
        self.grads, self.largest, start = torch.zeros_like(self.flat), max_norm, 0
        self._copied: list[tuple[Tensor, Tensor]] = []  # weights, and the parts of the array that they are copied from
        for weight in weights:
            end = start + weight.numel()
            part = self.flat.data[start:end].view_as(weight)
            if weight.device.type == "cpu":
                weight.data = part
            else:
                self._copied.append((weight, part))
            weight.grad = self.grads[start:end].view_as(weight)
            start = end
        self.flat.grad = self.grads
        self.adam = torch.optim.Adam([self.flat], lr, eps=1e-5, fused=True)

    def step(self, loss: Tensor) -> float:
        """Takes one step; returns the norm of the gradient before it was clipped."""
        if not torch.isfinite(loss):
            raise NonFinite("a team's loss is not finite", value=loss.item(), hint="lower the learning rate")
        self.grads.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.linalg.vector_norm(self.grads))
        if not isfinite(norm):
            raise NonFinite("the gradient of a team's loss is not finite", value=norm, hint="lower the learning rate")
        if norm > self.largest:
            self.grads.mul_(self.largest / (norm + 1e-6))
        self.adam.step()
        with torch.no_grad():
            for weight, part in self._copied:
                weight.copy_(part)
        return norm

    def read_weights(self) -> None:
        """Takes weights that were changed from outside."""
        with torch.no_grad():
            for weight, part in self._copied:
                part.copy_(weight)


class TeamLearner:
    """A network, its optimizers and the normalization of its values. `update` is a function of the state and a
    rollout.

    Args:
        policy: is trained; its weights change in place.
        settings: of the updates.
        seed: of the order of minibatches and agents.
    """

    def __init__(self, policy: TeamPolicy, settings: TeamUpdateConfig, *, seed: int) -> None:
        self.policy, self.settings, self.seed = policy, settings, seed
        self.norm, self.updates = ValueNormalizer(), 0
        model = policy.model
        if model.shape.prefix_values != (settings.credit == "part"):
            conflict = f"credit={settings.credit}, prefix_values={model.shape.prefix_values}"
            raise ShapeMismatch("prefix values and credit by parts must be used together", value=conflict)
        if isinstance(model, TeamActors) and model.shape.kind == "happo":
            actors = [model.actor_parameters(i) for i in range(len(model.actors))]
            groups: list[Sequence[Tensor]] = [*actors, list(model.critic.parameters())]
        else:
            groups = [list(model.parameters())]
        self.optimizers = [_FlatAdam(group, settings.lr, max_norm=settings.grad_norm) for group in groups]

    @property
    def model(self) -> TeamModel:
        """Returns the network."""
        return self.policy.model

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate of the next updates."""
        for optimizer in self.optimizers:
            optimizer.adam.param_groups[0]["lr"] = lr

    def update(self, rollout: ArrayRollout) -> dict[str, float]:
        """Updates the network from one rollout; returns means of its metrics.

        Raises:
            NonFinite: a loss or its gradient is not finite; no step was taken with it.
            NothingToLearn: all episodes were lost.
        """
        settings = self.settings
        policy = TeamPolicy(self.model, rollout.spec)
        last_values = policy.values(rollout.last)
        final_values = policy.values(rollout.final) if rollout.final is not None else np.zeros((0, rollout.spec.agents))
        norm = self.norm if settings.value_norm else ValueNormalizer()
        advantages = estimate_team_advantages(
            rollout,
            last_values=last_values,
            final_values=final_values,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            part_lambda=settings.lam_part,
            level=settings.credit,
            norm=norm,
        )
        if settings.value_norm:
            self.norm = norm = norm.update(advantages.returns[advantages.learned])
        buffer = build_team_buffer(
            rollout,
            advantages,
            norm=norm,
            mask_policy=settings.mask_policy,
            mask_values=settings.mask_values,
            device=next(self.model.parameters()).device,
        )
        self.model.train()
        steps = self._update_sequentially(buffer) if self.model.shape.kind == "happo" else self._update_jointly(buffer)
        self.model.eval()
        self.model.update_scales(buffer.observations.observation)
        self.updates += 1
        names = {name: None for step in steps for name in step}
        return {name: float(np.mean([step[name] for step in steps if name in step])) for name in names} | {
            "advantage_std": float(advantages.advantage[advantages.learned].std()),
            "return": float(advantages.returns[advantages.learned].mean()),
        }

    def _value_loss(self, values: Tensor, batch: TeamBuffer) -> Tensor:
        value, count = team_value_loss(
            values, batch.returns, batch.values, weights=batch.value_mask, settings=self.settings
        )
        return value / count.clamp(min=1.0)

    # ------------------------------------------------------------------ MAT, MAT-Dec, MAPPO

    def _update_jointly(self, buffer: TeamBuffer) -> list[dict[str, float]]:
        rows, settings = [], self.settings
        for epoch in range(settings.ppo_epochs):
            for batch in iterate_minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch):
                outputs = self.model.evaluate(batch.observations, batch.actions)
                policy, count = team_policy_loss(
                    outputs.logp,
                    batch.old_logprobs,
                    batch.advantage,
                    weights=batch.policy_mask,
                    clip_range=settings.clip_range,
                )
                policy, entropy = (
                    term_sum / count.clamp(min=1.0)
                    for term_sum in (policy, weighted_sum(outputs.entropy, batch.policy_mask))
                )
                value = self._value_loss(outputs.values, batch)
                norm = self.optimizers[0].step(policy - settings.entropy_coef * entropy + settings.value_weight * value)
                rows.append(
                    {
                        "policy_loss": policy.item(),
                        "value_loss": value.item(),
                        "entropy": entropy.item(),
                        "grad_norm": norm,
                    }
                )
        return rows

    # ------------------------------------------------------------------ HAPPO

    def _update_sequentially(self, buffer: TeamBuffer) -> list[dict[str, float]]:
        """Updates agents in a random order, then the critic.

        Each agent maximizes its clipped ratio times the advantage times the product of the ratios, new to old, of the
        agents before it (arXiv 2109.11251, algorithm 4, M).
        """
        model, settings, rows = self.model, self.settings, []
        if not isinstance(model, TeamActors):
            raise ShapeMismatch("sequential updates need separate actors", value=model.shape.kind)
        for agent in map(
            int, sample_rng("team-order", self.seed, self.updates).permutation(buffer.old_logprobs.shape[1])
        ):
            agent_slice = slice(agent, agent + 1)
            for epoch in range(settings.ppo_epochs):
                for batch in iterate_minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch, agent):
                    logp, entropies = model.evaluate_agents(batch.observations, batch.actions, [agent])
                    policy, count = team_policy_loss(
                        logp,
                        batch.old_logprobs[:, agent_slice],
                        batch.factor * batch.advantage[:, agent_slice],
                        weights=batch.policy_mask[:, agent_slice],
                        clip_range=settings.clip_range,
                    )
                    policy, entropy = (
                        term_sum / count.clamp(min=1.0)
                        for term_sum in (policy, weighted_sum(entropies, batch.policy_mask[:, agent_slice]))
                    )
                    norm = self.optimizers[model.actor_index(agent)].step(policy - settings.entropy_coef * entropy)
                    rows.append({"policy_loss": policy.item(), "entropy": entropy.item(), "grad_norm": norm})
            buffer = buffer._replace(factor=buffer.factor * self._compute_ratio(model, buffer, agent))
        for epoch in range(settings.ppo_epochs):
            for batch in iterate_minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch, "critic"):
                value = self._value_loss(model.values(batch.observations), batch)
                self.optimizers[-1].step(settings.value_weight * value)
                rows.append({"value_loss": value.item()})
        return rows

    @torch.no_grad()
    def _compute_ratio(self, model: TeamActors, buffer: TeamBuffer, agent: int) -> Tensor:
        """Computes `[N, 1]`, the ratio of new to old probability of an agent's actions; 1 where it was dead,
        whatever the masks.
        """
        agent_slice = slice(agent, agent + 1)
        logp, _ = model.evaluate_agents(buffer.observations, buffer.actions, [agent])
        log_ratio, alive = logp - buffer.old_logprobs[:, agent_slice], buffer.observations.alive
        return (log_ratio if alive is None else torch.where(alive[:, agent_slice], log_ratio, 0.0)).exp()

    # ------------------------------------------------------------------ keeping and taking up

    def tensors(self) -> dict[str, Tensor]:
        """Returns everything that is learned, by name: weights, and moments of the optimizers."""
        tensors = {f"model/{name}": value.detach() for name, value in self.model.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, moments in optimizer.adam.state_dict()["state"].items():
                tensors |= {f"optimizer/{number}/{index}/{name}": value for name, value in moments.items()}
        return {name: value.contiguous().clone() for name, value in tensors.items()}

    def numbers(self) -> dict[str, float]:
        """Returns the rest of the state, as JSON values."""
        return {"updates": self.updates, "mean": self.norm.mean, "square": self.norm.square, "weight": self.norm.weight}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Restores `tensors` and `numbers`; raises ShapeMismatch where they are another network's."""
        weights = {name[6:]: value for name, value in tensors.items() if name.startswith("model/")}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise ShapeMismatch("the state belongs to another network", value=str(error)) from error
        for number, optimizer in enumerate(self.optimizers):
            optimizer.read_weights()
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, *keys = name.split("/")
                if kind == "optimizer" and int(keys[0]) == number:
                    state.setdefault(int(keys[1]), {})[keys[2]] = value.clone()
            optimizer.adam.load_state_dict(
                {"state": state, "param_groups": optimizer.adam.state_dict()["param_groups"]}
            )
        self.updates = int(numbers["updates"])
        self.norm = ValueNormalizer(mean=numbers["mean"], square=numbers["square"], weight=numbers["weight"])

"""How a team learns from a rollout: PPO over agents (MAT, MAPPO), and HAPPO's one agent after the other.

One loop for all: credit, then passes over the decisions in minibatches. A decision is never cut: all its agents are in
one minibatch, as the transformer needs them. Clip, values and sums are `learn.policy_losses`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from evolvent.config import Config
from evolvent.errors import NonFinite, ShapeMismatch
from evolvent.marl.buffer import TeamBuffer, minibatches, team_buffer
from evolvent.marl.credit import ValueNorm, team_credit
from evolvent.marl.policy import TeamPolicy
from evolvent.marl.rollout import ArrayRollout
from evolvent.models.team_actions import TeamModel
from evolvent.models.team_actors import TeamActors
from evolvent.rl.policy_losses import clipped, total, value_terms
from evolvent.trajectory import sample_rng

__all__ = ["TeamLearner", "TeamUpdates", "policy_term", "value_term"]


class TeamUpdates(Config):
    """How a team is updated. The defaults are MAT's for HalfCheetah 6x1 (arXiv 2205.14953, appendix)."""

    lr: float = Field(default=5e-5, gt=0, description="learning rate of Adam")
    epochs: int = Field(default=10, ge=1, description="passes over a rollout")
    minibatches: int = Field(default=40, ge=1, description="updates of a pass")
    clip: float = Field(default=0.05, gt=0, description="range of the ratio, and of values")
    entropy: float = Field(default=0.001, ge=0, description="weight of the entropy")
    value_weight: float = Field(default=1.0, gt=0, description="weight of the value loss")
    huber: float = Field(default=10.0, gt=0, description="error of a value beyond which its loss is linear")
    grad_norm: float = Field(default=0.5, gt=0, description="largest norm of the gradient")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount between decisions")
    lam: float = Field(default=0.95, ge=0, le=1, description="lambda between decisions")
    lam_part: float = Field(default=1.0, ge=0, le=1, description="lambda between agents, where credit is by parts")
    credit: Literal["action", "part"] = Field(default="action", description="level of credit: decisions, or agents")
    value_norm: bool = Field(default=True, description="whether values are trained on normalised returns")
    clip_values: bool = Field(default=True, description="whether values are clipped around those before")
    mask_policy: bool = Field(
        default=True, description="whether agents that are not alive are left out of the policy's loss"
    )
    mask_values: bool = Field(default=True, description="whether they are left out of the value loss")


def policy_term(logp: Tensor, old: Tensor, advantage: Tensor, *, weights: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's clip with a ratio for each agent, (sum, count) over where `weights [B, n]` is not 0.

    Args:
        logp, old, advantage: `[B, n]`; advantages may be compounded (HAPPO).
    """
    gap = torch.where(weights != 0, logp - old, 0.0)
    terms = clipped(gap.flatten(), advantage.flatten(), low=clip, high=clip)
    return total(terms, weights.flatten()), weights.sum()


def value_term(
    values: Tensor, returns: Tensor, old: Tensor, *, weights: Tensor, settings: TeamUpdates
) -> tuple[Tensor, Tensor]:
    """Huber's loss, the greater of it and that of clipped values, (sum, count) over where `weights [B, n]` is not 0."""
    terms = value_terms(
        values.flatten(),
        returns.flatten(),
        old.flatten(),
        huber=settings.huber,
        clip=settings.clip if settings.clip_values else None,
    )
    return total(terms, weights.flatten()), weights.sum()


class _FlatAdam:
    """Adam over weights that lie in one array, with one norm and one step for all of them.

    The numbers are those of Adam tensor by tensor; a small network's updates are mostly overhead for each tensor.
    """

    def __init__(self, weights: Sequence[Tensor], lr: float, *, largest: float) -> None:
        self.flat = torch.nn.Parameter(torch.cat([weight.detach().flatten() for weight in weights]))
        self.grads, self.largest, begin = torch.zeros_like(self.flat), largest, 0
        for weight in weights:
            end = begin + weight.numel()
            weight.data = self.flat.data[begin:end].view_as(weight)
            weight.grad = self.grads[begin:end].view_as(weight)
            begin = end
        self.flat.grad = self.grads
        self.adam = torch.optim.Adam([self.flat], lr, eps=1e-5, fused=True)

    def step(self, loss: Tensor) -> float:
        """One step down; returns the norm of the gradient before it was cut to `largest`."""
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
        return norm


class TeamLearner:
    """A network, its optimizers and the normalisation of its values. `update` is a function of the state and a rollout.

    Args:
        policy: what learns; its weights change in place. settings: how. seed: of the order of minibatches and agents.
    """

    def __init__(self, policy: TeamPolicy, settings: TeamUpdates, *, seed: int) -> None:
        self.policy, self.settings, self.seed = policy, settings, seed
        self.norm, self.updates = ValueNorm(), 0
        model = policy.model
        if model.shape.prefix_values != (settings.credit == "part"):
            given = f"credit={settings.credit}, prefix_values={model.shape.prefix_values}"
            raise ShapeMismatch("credit by parts needs values of prefixes, and only that does", value=given)
        if isinstance(model, TeamActors) and model.shape.kind == "happo":
            actors = [model.actor_parameters(i) for i in range(len(model.actors))]
            groups: list[Sequence[Tensor]] = [*actors, list(model.critic.parameters())]
        else:
            groups = [list(model.parameters())]
        self.optimizers = [_FlatAdam(group, settings.lr, largest=settings.grad_norm) for group in groups]

    @property
    def model(self) -> TeamModel:
        """The network."""
        return self.policy.model

    def update(self, rollout: ArrayRollout) -> dict[str, float]:
        """Learn from one rollout; returns means of what was measured.

        Raises:
            NonFinite: a loss or its gradient that is not finite; no step was taken with it.
            NothingToLearn: all episodes were lost.
        """
        settings = self.settings
        policy = TeamPolicy(self.model, rollout.spec)
        last = policy.values(rollout.last)
        final = policy.values(rollout.final) if rollout.final is not None else np.zeros((0, rollout.spec.agents))
        norm = self.norm if settings.value_norm else ValueNorm()
        credit = team_credit(
            rollout,
            last=last,
            final=final,
            gamma=settings.gamma,
            lam=settings.lam,
            lam_part=settings.lam_part,
            level=settings.credit,
            norm=norm,
        )
        if settings.value_norm:
            self.norm = norm = norm.updated(credit.returns[credit.learned])
        buffer = team_buffer(
            rollout,
            credit,
            norm=norm,
            mask_policy=settings.mask_policy,
            mask_values=settings.mask_values,
            device=next(self.model.parameters()).device,
        )
        self.model.train()
        steps = self._one_after_the_other(buffer) if self.model.shape.kind == "happo" else self._together(buffer)
        self.model.eval()
        self.updates += 1
        names = {name: None for step in steps for name in step}
        return {name: float(np.mean([step[name] for step in steps if name in step])) for name in names} | {
            "advantage_std": float(credit.advantage[credit.learned].std()),
            "return": float(credit.returns[credit.learned].mean()),
        }

    def _value_loss(self, values: Tensor, batch: TeamBuffer) -> Tensor:
        value, count = value_term(values, batch.returns, batch.values, weights=batch.valued, settings=self.settings)
        return value / count.clamp(min=1.0)

    # ------------------------------------------------------------------ MAT, MAT-Dec, MAPPO

    def _together(self, buffer: TeamBuffer) -> list[dict[str, float]]:
        found, settings = [], self.settings
        for epoch in range(settings.epochs):
            for batch in minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch):
                judged = self.model.evaluate(batch.seen, batch.actions)
                policy, count = policy_term(
                    judged.logp, batch.old, batch.advantage, weights=batch.acted, clip=settings.clip
                )
                policy, entropy = (x / count.clamp(min=1.0) for x in (policy, total(judged.entropy, batch.acted)))
                value = self._value_loss(judged.values, batch)
                norm = self.optimizers[0].step(policy - settings.entropy * entropy + settings.value_weight * value)
                found.append(
                    {
                        "policy_loss": policy.item(),
                        "value_loss": value.item(),
                        "entropy": entropy.item(),
                        "grad_norm": norm,
                    }
                )
        return found

    # ------------------------------------------------------------------ HAPPO

    def _one_after_the_other(self, buffer: TeamBuffer) -> list[dict[str, float]]:
        """Agents in a drawn order; each maximises its clipped ratio times the advantage times the product of the ratios
        of those before it, new to old (arXiv 2109.11251, algorithm 4, M). Then the critic."""
        model, settings, found = self.model, self.settings, []
        if not isinstance(model, TeamActors):
            raise ShapeMismatch("only separate actors are updated one after the other", value=model.shape.kind)
        for agent in map(int, sample_rng("team-order", self.seed, self.updates).permutation(buffer.old.shape[1])):
            at = slice(agent, agent + 1)
            for epoch in range(settings.epochs):
                for batch in minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch, agent):
                    logp, spread = model.judge(batch.seen, batch.actions, [agent])
                    policy, count = policy_term(
                        logp,
                        batch.old[:, at],
                        batch.factor * batch.advantage[:, at],
                        weights=batch.acted[:, at],
                        clip=settings.clip,
                    )
                    policy, entropy = (x / count.clamp(min=1.0) for x in (policy, total(spread, batch.acted[:, at])))
                    norm = self.optimizers[model.actor_of(agent)].step(policy - settings.entropy * entropy)
                    found.append({"policy_loss": policy.item(), "entropy": entropy.item(), "grad_norm": norm})
            buffer = buffer._replace(factor=buffer.factor * self._ratio(model, buffer, agent))
        for epoch in range(settings.epochs):
            for batch in minibatches(buffer, settings.minibatches, self.seed, self.updates, epoch, "critic"):
                value = self._value_loss(model.values(batch.seen), batch)
                self.optimizers[-1].step(settings.value_weight * value)
                found.append({"value_loss": value.item()})
        return found

    @torch.no_grad()
    def _ratio(self, model: TeamActors, buffer: TeamBuffer, agent: int) -> Tensor:
        """`[N, 1]`, how much likelier an agent's actions have become; 1 where it was dead, whatever a loss looks at."""
        at = slice(agent, agent + 1)
        logp, _ = model.judge(buffer.seen, buffer.actions, [agent])
        gap, alive = logp - buffer.old[:, at], buffer.seen.alive
        return (gap if alive is None else torch.where(alive[:, at], gap, 0.0)).exp()

    # ------------------------------------------------------------------ keeping and taking up

    def tensors(self) -> dict[str, Tensor]:
        """All that is learned, by name: weights, and moments of the optimizers."""
        found = {f"model/{name}": value.detach() for name, value in self.model.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for at, moments in optimizer.adam.state_dict()["state"].items():
                found |= {f"optimizer/{number}/{at}/{name}": value for name, value in moments.items()}
        return {name: value.contiguous().clone() for name, value in found.items()}

    def numbers(self) -> dict[str, float]:
        """The rest of the state, as JSON values."""
        return {"updates": self.updates, "mean": self.norm.mean, "square": self.norm.square, "weight": self.norm.weight}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Back to what `tensors` and `numbers` gave; ShapeMismatch where they are another network's."""
        weights = {name[6:]: value for name, value in tensors.items() if name.startswith("model/")}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise ShapeMismatch("a state of another network", value=str(error)) from error
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, *rest = name.split("/")
                if kind == "optimizer" and int(rest[0]) == number:
                    state.setdefault(int(rest[1]), {})[rest[2]] = value.clone()
            optimizer.adam.load_state_dict(
                {"state": state, "param_groups": optimizer.adam.state_dict()["param_groups"]}
            )
        self.updates = int(numbers["updates"])
        self.norm = ValueNorm(mean=numbers["mean"], square=numbers["square"], weight=numbers["weight"])

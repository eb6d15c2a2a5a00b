"""A team's rollout as tensors, and passes over it in minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.marl.credit import TeamAdvantages, ValueNormalizer
from evolvent.marl.policy import rollout_actions, rollout_tensors
from evolvent.marl.rollout import ArrayRollout
from evolvent.models.team_actions import TeamInputs
from evolvent.rl.advantages import whiten
from evolvent.trajectory import sample_rng

__all__ = ["TeamBuffer", "build_team_buffer", "iterate_minibatches"]


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

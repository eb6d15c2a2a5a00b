"""A team's rollout as tensors, and passes over it in minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.marl.credit import TeamCredit, ValueNorm
from evolvent.marl.policy import rollout_actions, rollout_seen
from evolvent.marl.rollout import ArrayRollout
from evolvent.models.team_actions import Seen
from evolvent.rl.advantages import whiten
from evolvent.trajectory import sample_rng

__all__ = ["TeamBuffer", "minibatches", "team_buffer"]


class TeamBuffer(NamedTuple):
    """Decisions, one a row; those of lost episodes are not among them.

    Attributes:
        seen, actions: `[N, ...]`. old: `[N, n]` log-probabilities when sampled. advantage: `[N, n]` normalised over all
            that is learned. returns, values: `[N, n]` on the critic's scale; values before the update.
        acted, valued: `[N, n]` float32, 1 where the policy's (the value's) loss looks at an agent.
        factor: `[N, 1]`, what the advantages are multiplied by (HAPPO's product of ratios; 1).
    """

    seen: Seen
    actions: Tensor
    old: Tensor
    advantage: Tensor
    returns: Tensor
    values: Tensor
    acted: Tensor
    valued: Tensor
    factor: Tensor

    def rows(self, index: Tensor | slice) -> TeamBuffer:
        """Some of the decisions; of a slice no copy is made."""
        return TeamBuffer(self.seen.rows(index), *(x[index] for x in self[1:]))


def team_buffer(
    rollout: ArrayRollout,
    credit: TeamCredit,
    *,
    norm: ValueNorm,
    mask_policy: bool = True,
    mask_values: bool = True,
    device: torch.device | None = None,
) -> TeamBuffer:
    """What an update learns from.

    Args:
        norm: of the returns. mask_policy, mask_values: whether a loss leaves out agents that are not alive.
    """
    agents = rollout.spec.agents

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32).reshape(-1, agents)).to(device)

    kept = np.broadcast_to(~rollout.lost[..., None], rollout.alive.shape)
    acted, valued = (credit.learned if mask else kept for mask in (mask_policy, mask_values))
    whole = TeamBuffer(
        rollout_seen(rollout, device),
        rollout_actions(rollout, device),
        tensor(rollout.logp),
        tensor(whiten(credit.advantage, mask=acted, epsilon=1e-10)),
        tensor(norm.normalize(credit.returns)),
        tensor(rollout.value),
        tensor(acted),
        tensor(valued),
        tensor(np.ones(rollout.alive.shape))[:, :1],
    )
    if not rollout.lost.any():
        return whole
    return whole.rows(torch.from_numpy(np.flatnonzero(~rollout.lost.reshape(-1))).to(device))


def minibatches(buffer: TeamBuffer, number: int, *key: object) -> Iterator[TeamBuffer]:
    """A pass: all decisions in an order that `key` draws, cut into `number` minibatches of (nearly) equal size.

    A decision is never cut: its agents stay together. Fewer decisions than minibatches: one each.
    """
    decisions = len(buffer.old)
    order = sample_rng("team-update", *key).permutation(decisions)
    mixed = buffer.rows(torch.from_numpy(order).to(buffer.old.device))
    cuts = np.linspace(0, decisions, min(number, decisions) + 1).astype(int).tolist()
    for begin, end in pairwise(cuts):
        yield mixed.rows(slice(begin, end))

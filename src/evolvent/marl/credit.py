"""Advantages of a team's decisions: one shared reward, one value per agent or per prefix, through `rl.advantages`.

At action level (MAT as published, arXiv 2205.14953) a team's decision is one action; each agent has its own
value, so agent j's advantage is the scan over entry j. At part level (ours) agents are the parts of the
decision: before agent j decides, the value of the decision so far is known, and only the last agent is followed
by reward and discount.

Values are stored and trained normalized; advantages are computed on the rewards' own scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, NothingToLearn
from evolvent.marl.rollout import ArrayRollout
from evolvent.rl.advantages import decomposed_gae
from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, TRUNCATED, RolloutBatch

__all__ = ["TeamAdvantages", "ValueNormalizer", "estimate_team_advantages", "fill_dead_values"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_MIN_VARIANCE = 1e-2


@dataclass(frozen=True, slots=True)
class ValueNormalizer:
    """Running mean and variance of returns; values are trained and stored as `(v - mean) / std`.

    Exponential averages that begin at 0 and are divided by their total weight (arXiv 2103.01955, section 5.1, and
    its code: beta .99999, variance at least .01). Before the first update nothing is changed.

    Attributes:
        beta: weight of the past at an update.
        mean, square: averages so far.
        weight: 1 - beta ** updates.

    >>> norm = ValueNormalizer(beta=0.5).update([1.0, 2.0, 3.0])
    >>> norm.normalize([2.0]).tolist()
    [0.0]
    """

    beta: float = 0.99999
    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def update(self, returns: ArrayLike) -> ValueNormalizer:
        """Returns the normalizer after more returns, of any shape; empty returns change nothing."""
        array = np.asarray(returns, np.float64)
        if not array.size:
            return self
        new_weight, old_weight = 1.0 - self.beta, self.beta
        return replace(
            self,
            mean=old_weight * self.mean + new_weight * float(array.mean()),
            weight=old_weight * self.weight + new_weight,
            square=old_weight * self.square + new_weight * float(np.square(array).mean()),
        )

    @property
    def moments(self) -> tuple[float, float]:
        """Returns the mean and standard deviation in use."""
        if self.weight == 0.0:
            return 0.0, 1.0
        mean = self.mean / self.weight
        return mean, float(np.sqrt(max(self.square / self.weight - mean * mean, _MIN_VARIANCE)))

    def normalize(self, returns: ArrayLike) -> Floats:
        """Converts returns from the scale of rewards to that of the critic."""
        mean, std = self.moments
        return (np.asarray(returns, np.float64) - mean) / std

    def denormalize(self, values: ArrayLike) -> Floats:
        """Converts values from the scale of the critic to that of rewards."""
        mean, std = self.moments
        return np.asarray(values, np.float64) * std + mean


@dataclass(frozen=True, slots=True, eq=False)
class TeamAdvantages:
    """Advantages of decisions, on the scale of rewards.

    Attributes:
        advantage, returns: `[T, E, n]`; 0 in lost episodes, and at part level also where an agent was not alive.
        learned: `[T, E, n]` bool: agents that decided, in episodes that were not lost.
    """

    advantage: Floats
    returns: Floats
    learned: Bools


def fill_dead_values(values: ArrayLike, alive: ArrayLike) -> Floats:
    """Returns values `[..., n]` where an agent that is not alive has the mean of those that are (0 where none is).

    The reward is shared: the expectation of the others is the team's, and the value of an agent without
    observations is not trained. So an agent that dies is credited with the rewards of its team after its death.

    Args:
        values: `[..., n]`.
        alive: `[..., n]` bool.

    >>> fill_dead_values([[1.0, 9.0, 3.0]], [[True, False, True]]).tolist()
    [[1.0, 2.0, 3.0]]
    """
    value_array, is_alive = np.asarray(values, np.float64), np.asarray(alive, np.bool_)
    mean = np.where(is_alive, value_array, 0.0).sum(-1, keepdims=True) / np.maximum(is_alive.sum(-1, keepdims=True), 1)
    return np.where(is_alive, value_array, mean)


def estimate_team_advantages(
    rollout: ArrayRollout,
    *,
    last_values: ArrayLike,
    final_values: ArrayLike,
    gamma: float,
    gae_lambda: float,
    part_lambda: float = 1.0,
    level: Literal["action", "part"] = "action",
    norm: ValueNormalizer | None = None,
) -> TeamAdvantages:
    """Estimates generalized advantages over a team's decisions.

    An episode that terminated has nothing after it. An episode that was cut continues with the value of the
    observation at the cut; the end of the rollout is a cut too.

    Args:
        last_values: `[E, n]`, the critic's values of `rollout.last`.
        final_values: `[K, n]`, of `rollout.final`.
        gamma, gae_lambda: discount and lambda between decisions.
        part_lambda: lambda between agents of one decision (level "part"), undiscounted.
        level: "action": an entry per agent. "part": agents in order; values are of prefixes, `last_values` and
            `final_values` of the empty one, which is the same for all agents.
        norm: that values were stored with; None: they are on the scale of rewards.
    Raises:
        BatchMismatch: values have other axes.
        NothingToLearn: all episodes were lost.
        NonFinite: a value is not finite.

    >>> from evolvent.worlds.teams.base import Discrete, TeamSpec, TeamView
    >>> steps, flags, zeros = (3, 1), np.zeros((3, 1), bool), np.zeros((3, 1), np.int64)
    >>> rollout = ArrayRollout(
    ...     spec=TeamSpec(agents=1, observation=1, actions=Discrete(2), horizon=3),
    ...     observation=np.zeros((3, 1, 1, 1), np.float32), alive=np.ones((3, 1, 1), bool), available=None, state=None,
    ...     actions=np.zeros((3, 1, 1), np.int64), logp=np.zeros((3, 1, 1), np.float32),
    ...     value=np.full((3, 1, 1), 0.5, np.float32), reward=np.array([[0.0], [0.0], [1.0]]),
    ...     terminated=np.array([[False], [False], [True]]), truncated=flags, lost=flags, number=zeros, time=zeros,
    ...     success=None, final=None, final_at=np.zeros((0, 2), np.int64),
    ...     last=TeamView(
    ...         observation=np.zeros((1, 1, 1), np.float32), alive=np.ones((1, 1), bool), number=zeros[0], time=zeros[0]
    ...     ),
    ... )
    >>> credit = estimate_team_advantages(
    ...     rollout, last_values=[[0.0]], final_values=np.zeros((0, 1)), gamma=1.0, gae_lambda=1.0
    ... )
    >>> credit.advantage[:, 0, 0].tolist()  # the return 1 minus the value 0.5
    [0.5, 0.5, 0.5]
    """
    norm = norm or ValueNormalizer()
    steps, rows = rollout.reward.shape
    agents = rollout.spec.agents
    values, values_after, values_at_cuts = (
        norm.denormalize(stored_values) for stored_values in (rollout.value, last_values, final_values)
    )
    if values_after.shape != (rows, agents) or (
        len(rollout.final_at) and values_at_cuts.shape != (len(rollout.final_at), agents)
    ):
        raise BatchMismatch(
            "bootstrap values have the wrong shape",
            value=(values_after.shape, values_at_cuts.shape),
            expected=((rows, agents), (len(rollout.final_at), agents)),
        )
    learned = rollout.alive & ~rollout.lost[..., None]
    if not learned.any():
        raise NothingToLearn("no agent made a decision in the episodes that completed", value=f"{steps} x {rows}")
    values = np.where(rollout.lost[..., None] | ~rollout.alive.any(-1, keepdims=True), 0.0, values)  # nobody's: 0
    bootstrap = np.zeros((steps, rows, agents))
    bootstrap[-1] = fill_dead_values(values_after, rollout.last.alive)
    if rollout.final is not None:
        bootstrap[rollout.final_at[:, 0], rollout.final_at[:, 1]] = fill_dead_values(
            values_at_cuts, rollout.final.alive
        )
    if level == "action":
        values, is_part = fill_dead_values(values, rollout.alive), np.ones((rows, steps, 1), np.bool_)
    else:
        is_part = rollout.alive.transpose(1, 0, 2).copy()
        is_part[..., 0] |= ~is_part.any(-1)  # a decision of nobody is one part, which is not learned
    batch = _build_batch(rollout, is_part, bootstrap if level == "action" else bootstrap[..., 0])
    by_row = values.transpose(1, 0, 2)
    part_values = by_row.reshape(-1, agents) if level == "action" else by_row[is_part]
    estimate = decomposed_gae(part_values, batch, gamma=gamma, gae_lambda=gae_lambda, token_lambda=part_lambda)
    arrays = []
    for column in (estimate.advantage, estimate.returns):
        padded = np.zeros((rows, steps, agents))
        if level == "action":
            padded[:] = column.reshape(rows, steps, agents)
        else:
            padded[is_part] = column
            padded[~rollout.alive.transpose(1, 0, 2)] = 0.0  # of nobody
        arrays.append(np.where(rollout.lost[..., None], 0.0, padded.transpose(1, 0, 2)))
    return TeamAdvantages(arrays[0], arrays[1], learned)


def _build_batch(rollout: ArrayRollout, is_part: Bools, bootstrap: Floats) -> RolloutBatch:
    """Builds the batch of decisions in time order, row after row, from the marked parts `[E, T, n or 1]`."""
    steps, rows = rollout.reward.shape
    ended = np.where(rollout.terminated, TERMINATED, np.where(rollout.truncated, TRUNCATED, GOES_ON)).astype(np.int8)
    ended[-1] = np.where(ended[-1] == GOES_ON, TRUNCATED, ended[-1])
    ended[rollout.lost] = np.where(rollout.lost_end | (ended != GOES_ON), TERMINATED, GOES_ON)[rollout.lost]
    ended = ended.T.reshape(-1)
    episode = np.concatenate([[0], np.cumsum(ended != GOES_ON)[:-1]]).astype(np.int64)
    action = np.nonzero(is_part.reshape(rows * steps, -1))[0].astype(np.int64)
    num_parts = len(action)
    reward, is_last = np.zeros(num_parts), np.append(np.diff(action) > 0, True)
    reward[is_last] = np.where(rollout.lost, 0.0, rollout.reward).T.reshape(-1)
    zeros, positions = np.zeros(num_parts, np.int64), np.arange(num_parts)
    return RolloutBatch(
        logp=np.zeros(num_parts, np.float32),
        version=zeros.astype(np.int32),
        span=positions,
        action=action,
        episode=episode,
        group=np.zeros(int(episode[-1]) + 1, np.int64),
        reward=reward,
        ended=ended,
        bootstrap=np.swapaxes(bootstrap, 0, 1).reshape(rows * steps, *bootstrap.shape[2:]),
        sequence=zeros,
        position=positions,
    )

"""Credit of a team's decisions: one shared reward, one value an agent or one a prefix, through `learn.advantages`.

At action level (MAT as published, arXiv 2205.14953) a team's decision is one action; each agent has a value of its own,
so agent j's advantage is the scan over entry j. By parts (ours) agents are the parts of the decision: before agent j
decides, the value of what was decided so far is known, and only the last one is followed by reward and discount.

Values that are stored and trained are normalised; credit is computed on the rewards' own scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, NothingToLearn
from evolvent.marl.rollout import ArrayRollout
from evolvent.rl.advantages import decomposed_gae
from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, TRUNCATED, Flat

__all__ = ["TeamCredit", "ValueNorm", "living_values", "team_credit"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_LEAST_VARIANCE = 1e-2


@dataclass(frozen=True, slots=True)
class ValueNorm:
    """Running mean and variance of returns; values are trained and stored as `(v - mean) / std`.

    Exponential averages that begin at 0 and are divided by the weight that they have gathered (arXiv 2103.01955,
    section 5.1, and its code: beta .99999, variance at least .01). Before the first update nothing is changed.

    Attributes:
        beta: weight of the past at an update. mean, square: averages so far. weight: 1 - beta ** updates.
    """

    beta: float = 0.99999
    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def updated(self, returns: ArrayLike) -> ValueNorm:
        """After more returns, of any shape; without any it is the same."""
        found = np.asarray(returns, np.float64)
        if not found.size:
            return self
        new, keep = 1.0 - self.beta, self.beta
        return replace(
            self,
            mean=keep * self.mean + new * float(found.mean()),
            weight=keep * self.weight + new,
            square=keep * self.square + new * float(np.square(found).mean()),
        )

    @property
    def moments(self) -> tuple[float, float]:
        """(mean, standard deviation) in use."""
        if self.weight == 0.0:
            return 0.0, 1.0
        mean = self.mean / self.weight
        return mean, float(np.sqrt(max(self.square / self.weight - mean * mean, _LEAST_VARIANCE)))

    def normalize(self, returns: ArrayLike) -> Floats:
        """From the scale of rewards to that of the critic."""
        mean, std = self.moments
        return (np.asarray(returns, np.float64) - mean) / std

    def denormalize(self, values: ArrayLike) -> Floats:
        """From the scale of the critic to that of rewards."""
        mean, std = self.moments
        return np.asarray(values, np.float64) * std + mean


@dataclass(frozen=True, slots=True, eq=False)
class TeamCredit:
    """What decisions are worth, on the scale of rewards.

    Attributes:
        advantage, returns: `[T, E, n]`; 0 in lost episodes, and by parts also where an agent was not alive.
        learned: `[T, E, n]` bool: agents that decided, in episodes that were not lost.
    """

    advantage: Floats
    returns: Floats
    learned: Bools


def living_values(values: ArrayLike, alive: ArrayLike) -> Floats:
    """Values `[..., n]` where an agent that is not alive has the mean of those that are (0 where none is).

    The reward is shared: what the others expect is what the team will get, and what a critic says of an agent that does
    not see is not trained. So an agent that dies is credited with what its team does after its death.
    """
    found, live = np.asarray(values, np.float64), np.asarray(alive, np.bool_)
    mean = np.where(live, found, 0.0).sum(-1, keepdims=True) / np.maximum(live.sum(-1, keepdims=True), 1)
    return np.where(live, found, mean)


def team_credit(
    rollout: ArrayRollout,
    *,
    last: ArrayLike,
    final: ArrayLike,
    gamma: float,
    lam: float,
    lam_part: float = 1.0,
    level: Literal["action", "part"] = "action",
    norm: ValueNorm | None = None,
) -> TeamCredit:
    """Generalised advantage estimation over a team's decisions.

    An episode that terminated has nothing after it. One that was cut goes on with the value of what was seen at the
    cut; the end of the rollout is a cut too.

    Args:
        last: `[E, n]`, the critic's values of `rollout.last`. final: `[K, n]`, of `rollout.final`.
        gamma, lam: between decisions. lam_part: between agents of one decision (level "part"), undiscounted.
        level: "action": an entry an agent. "part": agents in order; values are of prefixes, `last` and `final` of the
            empty one, which is the same for all agents.
        norm: that values were stored with; None: they are on the scale of rewards.
    Raises:
        BatchMismatch: values of other axes. NothingToLearn: all episodes were lost. NonFinite: a value.
    """
    norm = norm or ValueNorm()
    steps, rows = rollout.reward.shape
    agents = rollout.spec.agents
    values, after, ends = (norm.denormalize(x) for x in (rollout.value, last, final))
    if after.shape != (rows, agents) or (len(rollout.final_at) and ends.shape != (len(rollout.final_at), agents)):
        raise BatchMismatch(
            "values of what follows",
            value=(after.shape, ends.shape),
            expected=((rows, agents), (len(rollout.final_at), agents)),
        )
    learned = rollout.alive & ~rollout.lost[..., None]
    if not learned.any():
        raise NothingToLearn("nobody decided anything in episodes that were not lost", value=f"{steps} x {rows}")
    values = np.where(rollout.lost[..., None] | ~rollout.alive.any(-1, keepdims=True), 0.0, values)  # nobody's: 0
    bootstrap = np.zeros((steps, rows, agents))
    bootstrap[-1] = living_values(after, rollout.last.alive)
    if rollout.final is not None:
        bootstrap[rollout.final_at[:, 0], rollout.final_at[:, 1]] = living_values(ends, rollout.final.alive)
    if level == "action":
        values, parts = living_values(values, rollout.alive), np.ones((rows, steps, 1), np.bool_)
    else:
        parts = rollout.alive.transpose(1, 0, 2).copy()
        parts[..., 0] |= ~parts.any(-1)  # a decision of nobody is one part, which is not learned
    flat = _flat(rollout, parts, bootstrap if level == "action" else bootstrap[..., 0])
    by_row = values.transpose(1, 0, 2)
    given = by_row.reshape(-1, agents) if level == "action" else by_row[parts]
    credit = decomposed_gae(given, flat, gamma=gamma, lam=lam, lam_part=lam_part)
    found = []
    for each in (credit.advantage, credit.returns):
        square = np.zeros((rows, steps, agents))
        if level == "action":
            square[:] = each.reshape(rows, steps, agents)
        else:
            square[parts] = each
            square[~rollout.alive.transpose(1, 0, 2)] = 0.0  # of nobody
        found.append(np.where(rollout.lost[..., None], 0.0, square.transpose(1, 0, 2)))
    return TeamCredit(found[0], found[1], learned)


def _flat(rollout: ArrayRollout, parts: Bools, bootstrap: Floats) -> Flat:
    """Decisions in time order, row after row, made of the marked parts `[E, T, n or 1]`; `bootstrap [T, E, ...]`."""
    steps, rows = rollout.reward.shape
    ended = np.where(rollout.terminated, TERMINATED, np.where(rollout.truncated, TRUNCATED, GOES_ON)).astype(np.int8)
    ended[-1] = np.where(ended[-1] == GOES_ON, TRUNCATED, ended[-1])
    ended[rollout.lost] = np.where(rollout.lost_end | (ended != GOES_ON), TERMINATED, GOES_ON)[rollout.lost]
    ended = ended.T.reshape(-1)
    episode = np.concatenate([[0], np.cumsum(ended != GOES_ON)[:-1]]).astype(np.int64)
    action = np.nonzero(parts.reshape(rows * steps, -1))[0].astype(np.int64)
    number = len(action)
    reward, final = np.zeros(number), np.append(np.diff(action) > 0, True)
    reward[final] = np.where(rollout.lost, 0.0, rollout.reward).T.reshape(-1)
    nought, places = np.zeros(number, np.int64), np.arange(number)
    return Flat(
        logp=np.zeros(number, np.float32),
        version=nought.astype(np.int32),
        span=places,
        action=action,
        episode=episode,
        group=np.zeros(int(episode[-1]) + 1, np.int64),
        reward=reward,
        ended=ended,
        bootstrap=np.swapaxes(bootstrap, 0, 1).reshape(rows * steps, *bootstrap.shape[2:]),
        chain=nought,
        place=places,
    )

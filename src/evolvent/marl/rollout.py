"""What a team did: rectangular rollouts, who plays them, and the numbers that actions are drawn with.

Axes of every array: T decisions, E rows (episodes side by side), n agents, then what the array is of. A row plays one
episode after the other; where an episode goes on beyond the rollout, `last` holds what is seen next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.sampling import uniforms
from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.trajectory import sample_seed
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView

__all__ = ["ArrayRollout", "Decision", "Ended", "TeamPlayer", "action_axes", "decision_draws", "ended_episodes"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_AGENTS, _PARTS = 1 << 10, 1 << 8  # most agents of a team, and parts of an agent's action, that draws are laid out for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What a team decided in E rows at once.

    Args:
        actions: as `TeamSpec.actions` says: `[E, n]`, `[E, n, parts]` integers or `[E, n, D]` float32.
        logp: `[E, n]` float32, log-probability of each agent's action given those of the agents before it.
        value: `[E, n]` float32, the critic's, on the scale that it is trained on (see `learn.teams.credit`).
    """

    actions: NDArray[Any]
    logp: NDArray[np.float32]
    value: NDArray[np.float32]


class TeamPlayer(Protocol):
    """Whoever decides for a team."""

    @property
    def spec(self) -> TeamSpec:
        """The team that it was made for; agents may be more or fewer."""
        ...

    def act(self, view: TeamView, *, seed: int, greedy: bool = False) -> Decision:
        """Decide in all rows. What row e draws is a function of `seed` and of `view.number[e]`, `view.time[e]` alone;
        greedy: the likeliest action, and nothing is drawn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayRollout:
    """T decisions of E rows, as arrays.

    Args:
        spec: of the team.
        observation: `[T, E, n, O]` float32. alive: `[T, E, n]` bool, who decided.
        available: `[T, E, n, A]` bool, or None. state: `[T, E, S]` float32, or None.
        actions: `[T, E, n]`, `[T, E, n, parts]` integers or `[T, E, n, D]` float32, as sampled: not yet clipped.
        logp, value: `[T, E, n]` float32, as `Decision` has them.
        reward: `[T, E]` float64, shared. terminated, truncated: `[T, E]` bool, never both.
        lost: `[T, E]` bool, decisions of episodes that were lost: nothing of them is learned, and nothing follows.
        number, time: `[T, E]` int64, which episode, and its step.
        success: `[T, E]` bool at the ends of episodes, or None where the world does not say.
        last: what the E rows see next. final: what was seen where an episode was cut, K of them; None where K is 0.
        final_at: `[K, 2]` int64, the (t, e) of each.
    Raises:
        BatchMismatch: arrays that do not fit each other, an episode that both terminated and was cut, a cut without
            its final view. NonFinite: a reward, observation, log-probability or value, naming its place.
    """

    spec: TeamSpec
    observation: NDArray[np.float32]
    alive: Bools
    available: Bools | None
    state: NDArray[np.float32] | None
    actions: NDArray[Any]
    logp: NDArray[np.float32]
    value: NDArray[np.float32]
    reward: Floats
    terminated: Bools
    truncated: Bools
    lost: Bools
    number: NDArray[np.int64]
    time: NDArray[np.int64]
    success: Bools | None
    last: TeamView
    final: TeamView | None
    final_at: NDArray[np.int64]

    def __post_init__(self) -> None:
        steps, rows = self.reward.shape
        team = (steps, rows, self.spec.agents)
        expected = {
            "observation": (*team, self.spec.observation),
            "alive": team,
            "logp": team,
            "value": team,
            "actions": (*team, *action_axes(self.spec)),
            "terminated": (steps, rows),
            "truncated": (steps, rows),
            "lost": (steps, rows),
            "number": (steps, rows),
            "time": (steps, rows),
            "final_at": (len(self.final_at), 2),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise BatchMismatch(f"a rollout's {name}", value=getattr(self, name).shape, expected=shape)
        if (self.terminated & self.truncated).any():
            raise BatchMismatch(
                "an episode both terminated and was cut",
                value=np.argwhere(self.terminated & self.truncated)[0].tolist(),
            )
        self._check_cuts()
        decided = self.alive & ~self.lost[..., None]
        used = {"reward": ~self.lost, "observation": decided[..., None], "logp": decided, "value": decided}
        for name, where in used.items():
            bad = ~np.isfinite(getattr(self, name)) & where
            if bad.any():
                at = np.argwhere(bad)[0]
                raise NonFinite(
                    f"the {name} at {self.where(int(at[0]), int(at[1]))} is not finite",
                    value=float(getattr(self, name)[tuple(at)]),
                )

    def _check_cuts(self) -> None:
        views = 0 if self.final is None else len(self.final.number)
        cuts, given = np.argwhere(self.truncated & ~self.lost), {tuple(at) for at in self.final_at.tolist()}
        missing = [tuple(at) for at in cuts.tolist() if tuple(at) not in given]
        if missing or views != len(self.final_at):
            raise BatchMismatch(
                "a cut episode without what was seen at its end",
                value=missing[:3] or views,
                expected=f"{len(self.final_at)} final views, one a cut",
            )

    @property
    def ended(self) -> Bools:
        """`[T, E]`, where an episode ended in whatever way."""
        over: Bools = self.terminated | self.truncated | self.lost_end
        return over

    @property
    def lost_end(self) -> Bools:
        """`[T, E]`, the last decision of each lost episode in this rollout (it may have been lost beyond it)."""
        after = np.concatenate([self.number[1:], self.last.number[None]])
        found: Bools = self.lost & (after != self.number)
        return found

    def where(self, step: int, row: int) -> str:
        """A decision's place in words."""
        return f"row {row}, episode {int(self.number[step, row])}, step {int(self.time[step, row])}"


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """The episodes that ended in a rollout, in time order: returns `[M]`, lengths `[M]`, success `[M]` or None."""

    returns: Floats
    lengths: NDArray[np.int64]
    success: Bools | None


def ended_episodes(rollout: ArrayRollout, running: Floats) -> tuple[Ended, Floats]:
    """The episodes that ended, without those that were lost, and what the running ones have earned so far.

    Args:
        running: `[E]`, earned before this rollout by the episodes that went on into it (not discounted).
    Raises:
        BatchMismatch: not one a row.
    """
    steps, rows = rollout.reward.shape
    if np.shape(running) != (rows,):
        raise BatchMismatch("what running episodes have earned", value=np.shape(running), expected=(rows,))
    earned, returns = np.array(running, np.float64), np.zeros((steps, rows))
    over = rollout.ended
    for step in range(steps):
        earned = earned + np.where(rollout.lost[step], 0.0, rollout.reward[step])
        returns[step] = earned
        earned = np.where(over[step], 0.0, earned)
    told = (rollout.terminated | rollout.truncated) & ~rollout.lost
    success = None if rollout.success is None else rollout.success[told]
    return Ended(returns[told], rollout.time[told] + 1, success), earned


def action_axes(spec: TeamSpec) -> tuple[int, ...]:
    """The axes of one agent's action: (), (parts,) or (D,)."""
    kind = spec.actions
    if isinstance(kind, Discrete):
        return ()
    return (kind.dim,) if isinstance(kind, Continuous) else (len(kind.sizes),)


@lru_cache(maxsize=64)
def _base(seed: int) -> np.uint64:
    return np.uint64(sample_seed("team", seed))


def decision_draws(seed: int, number: NDArray[np.int64], time: NDArray[np.int64], *, agents: int, parts: int) -> Floats:
    """Uniform numbers `[E, n, parts]` in [2^-40, 1 - 2^-40], one for each part of each agent's action.

    A counter hash of (seed, episode, step, agent, part): they depend neither on the row nor on the size of the batch,
    and a team of another size draws the same for the agents that both have.

    Args:
        number, time: `[E]`, which episode, and its step.
    Raises:
        ConfigError: more than 1024 agents, or 256 parts of an action: their numbers would repeat.
    """
    if agents > _AGENTS or parts > _PARTS:
        raise ConfigError(
            "too many draws for one decision",
            value=f"{agents} agents, {parts} parts",
            expected=f"at most {_AGENTS} agents, {_PARTS} parts",
        )
    keys = _base(seed) ^ (np.asarray(number, np.int64).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    place = (np.arange(agents)[:, None] * _PARTS + np.arange(parts)).astype(np.int64)
    places = np.asarray(time, np.int64)[:, None, None] * (_AGENTS * _PARTS) + place
    found = uniforms(np.broadcast_to(keys[:, None, None], places.shape), places)
    return np.clip(found, 2.0**-40, 1.0 - 2.0**-40)  # sums of probabilities are rounded

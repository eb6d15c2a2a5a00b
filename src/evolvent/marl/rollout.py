"""Team rollouts: rectangular arrays of decisions, the interface of players, and the random numbers of actions.

Axes of every array: T decisions, E rows (episodes side by side), n agents, then the array's own axes. A row
plays one episode after the other; where an episode continues beyond the rollout, `last` holds the next
observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.streams import uniforms
from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.trajectory import Array, sample_seed
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView

__all__ = ["ArrayRollout", "Decision", "EndedEpisodes", "TeamPlayer", "action_axes", "collect_ended", "draw_uniforms"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_MAX_AGENTS, _MAX_PARTS = (
    1 << 10,
    1 << 8,
)  # most agents of a team, and parts of an agent's action, that draws are laid out for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """The decisions of a team in E rows at once.

    Args:
        actions: as in `TeamSpec.actions`: `[E, n]`, `[E, n, parts]` integers or `[E, n, D]` float32.
        logp: `[E, n]` float32, log-probability of each agent's action given those of the agents before it.
        value: `[E, n]` float32, the critic's, on the scale that it is trained on (see `marl.credit`).
    """

    actions: Array
    logp: NDArray[np.float32]
    value: NDArray[np.float32]


class TeamPlayer(Protocol):
    """The interface of a player that decides for a team."""

    @property
    def spec(self) -> TeamSpec:
        """Returns the team that it was made for; the number of agents may differ."""
        ...

    def act(self, view: TeamView, *, seed: int, greedy: bool = False) -> Decision:
        """Decides in all rows.

        The samples of row e depend on `seed`, `view.number[e]` and `view.time[e]` alone; greedy: the likeliest action,
        without sampling.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayRollout:
    """T decisions of E rows, as arrays.

    Args:
        spec: of the team.
        observation: `[T, E, n, O]` float32.
        alive: `[T, E, n]` bool, the agents that decided.
        available: `[T, E, n, A]` bool, or None.
        state: `[T, E, S]` float32, or None.
        actions: `[T, E, n]`, `[T, E, n, parts]` integers or `[T, E, n, D]` float32, as sampled: not yet clipped.
        logp, value: `[T, E, n]` float32, as in `Decision`.
        reward: `[T, E]` float64, shared.
        terminated, truncated: `[T, E]` bool, never both.
        lost: `[T, E]` bool, decisions of episodes that were lost: they are not learned, and nothing follows them.
        number, time: `[T, E]` int64, the episode, and its step.
        success: `[T, E]` bool at the ends of episodes, or None where the world does not report it.
        last: the next observations of the E rows.
        final: the observations where episodes were cut, K of them; None where K is 0.
        final_at: `[K, 2]` int64, the (t, e) of each.
    Raises:
        BatchMismatch: arrays do not fit each other, an episode was both terminated and truncated, or a cut has no final
            view.
        NonFinite: a reward, observation, log-probability or value is not finite; the message names its position.
    """

    spec: TeamSpec
    observation: NDArray[np.float32]
    alive: Bools
    available: Bools | None
    state: NDArray[np.float32] | None
    actions: Array
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
                raise BatchMismatch(
                    f"wrong shape of the rollout's {name}", value=getattr(self, name).shape, expected=shape
                )
        if (self.terminated & self.truncated).any():
            raise BatchMismatch(
                "an episode was both terminated and truncated",
                value=np.argwhere(self.terminated & self.truncated)[0].tolist(),
            )
        self._check_cuts()
        is_decided = self.alive & ~self.lost[..., None]
        used = {"reward": ~self.lost, "observation": is_decided[..., None], "logp": is_decided, "value": is_decided}
        for name, relevant in used.items():
            is_invalid = ~np.isfinite(getattr(self, name)) & relevant
            if is_invalid.any():
                position = np.argwhere(is_invalid)[0]
                raise NonFinite(
                    f"the {name} at {self.describe_position(int(position[0]), int(position[1]))} is not finite",
                    value=float(getattr(self, name)[tuple(position)]),
                )

    def _check_cuts(self) -> None:
        num_views = 0 if self.final is None else len(self.final.number)
        cuts, final_positions = (
            np.argwhere(self.truncated & ~self.lost),
            {tuple(position) for position in self.final_at.tolist()},
        )
        missing = [tuple(position) for position in cuts.tolist() if tuple(position) not in final_positions]
        if missing or num_views != len(self.final_at):
            raise BatchMismatch(
                "a truncated episode has no final observation",
                value=missing[:3] or num_views,
                expected=f"{len(self.final_at)} final views, one per truncation",
            )

    @property
    def ended(self) -> Bools:
        """Returns `[T, E]` bool, whether an episode ended in any way."""
        has_ended: Bools = self.terminated | self.truncated | self.lost_end
        return has_ended

    @property
    def lost_end(self) -> Bools:
        """Returns `[T, E]` bool, the last decision of each lost episode in this rollout (it may be lost beyond it)."""
        next_numbers = np.concatenate([self.number[1:], self.last.number[None]])
        is_lost_end: Bools = self.lost & (next_numbers != self.number)
        return is_lost_end

    def describe_position(self, step: int, row: int) -> str:
        """Formats the position of a decision: row, episode and step."""
        return f"row {row}, episode {int(self.number[step, row])}, step {int(self.time[step, row])}"


@dataclass(frozen=True, slots=True, eq=False)
class EndedEpisodes:
    """The episodes that ended in a rollout, in time order: returns `[M]`, lengths `[M]`, success `[M]` or None."""

    returns: Floats
    lengths: NDArray[np.int64]
    success: Bools | None

    def summarize(self) -> dict[str, float]:
        """Returns the metrics of the episodes that ended; only their number where none did."""
        if not len(self.returns):
            return {"episodes": 0.0}
        summary = {
            "episodes": float(len(self.returns)),
            "episode_return": float(self.returns.mean()),
            "episode_length": float(self.lengths.mean()),
        }
        return summary if self.success is None else {**summary, "success": float(self.success.mean())}


def collect_ended(rollout: ArrayRollout, running: Floats) -> tuple[EndedEpisodes, Floats]:
    """Returns the episodes that ended, without lost ones, and the returns so far of the running episodes.

    Args:
        running: `[E]`, undiscounted returns before this rollout of the episodes that continued into it.
    Raises:
        BatchMismatch: their number differs from the number of rows.
    """
    steps, rows = rollout.reward.shape
    if np.shape(running) != (rows,):
        raise BatchMismatch("wrong shape of the returns of running episodes", value=np.shape(running), expected=(rows,))
    returns_so_far, returns = np.array(running, np.float64), np.zeros((steps, rows))
    has_ended = rollout.ended
    for step in range(steps):
        returns_so_far = returns_so_far + np.where(rollout.lost[step], 0.0, rollout.reward[step])
        returns[step] = returns_so_far
        returns_so_far = np.where(has_ended[step], 0.0, returns_so_far)
    is_reported = (rollout.terminated | rollout.truncated) & ~rollout.lost
    success = None if rollout.success is None else rollout.success[is_reported]
    return EndedEpisodes(returns[is_reported], rollout.time[is_reported] + 1, success), returns_so_far


def action_axes(spec: TeamSpec) -> tuple[int, ...]:
    """Returns the axes of one agent's action: (), (parts,) or (D,)."""
    kind = spec.actions
    if isinstance(kind, Discrete):
        return ()
    return (kind.dim,) if isinstance(kind, Continuous) else (len(kind.sizes),)


@lru_cache(maxsize=64)
def _base_key(seed: int) -> np.uint64:
    return np.uint64(sample_seed("team", seed))


def draw_uniforms(seed: int, number: NDArray[np.int64], time: NDArray[np.int64], *, agents: int, parts: int) -> Floats:
    """Returns uniform numbers `[E, n, parts]` in [2^-40, 1 - 2^-40], one for each part of each agent's action.

    They are a counter hash of (seed, episode, step, agent, part): they depend neither on the row nor on the size of
    the batch, and a team of another size draws the same for the agents that both have.

    Args:
        number, time: `[E]`, the episode, and its step.
    Raises:
        ConfigError: there are more than 1024 agents, or 256 parts of an action: their numbers would repeat.
    """
    if agents > _MAX_AGENTS or parts > _MAX_PARTS:
        raise ConfigError(
            "too many samples for one decision",
            value=f"{agents} agents, {parts} parts",
            expected=f"at most {_MAX_AGENTS} agents, {_MAX_PARTS} parts",
        )
    keys = _base_key(seed) ^ (np.asarray(number, np.int64).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    offset = (np.arange(agents)[:, None] * _MAX_PARTS + np.arange(parts)).astype(np.int64)
    counters = np.asarray(time, np.int64)[:, None, None] * (_MAX_AGENTS * _MAX_PARTS) + offset
    uniform = uniforms(np.broadcast_to(keys[:, None, None], counters.shape), counters)
    return np.clip(uniform, 2.0**-40, 1.0 - 2.0**-40)  # sums of probabilities are rounded

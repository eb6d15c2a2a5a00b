"""One PettingZoo parallel environment as a row of a batch: dictionaries by agent become arrays by agent index.

PettingZoo is not imported here: any object with the members of its `ParallelEnv` works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, EnvLost, NonFinite, WorldError, boundary
from evolvent.trajectory import Array, JsonObject
from evolvent.worlds.teams.base import Actions, Continuous, Discrete, Multi, TeamSpec, TeamView, check_view

__all__ = ["ByAgent", "ForeignEnv", "Parallel", "ParallelRow", "Row", "RowState", "Space", "box_bounds"]

Share = Literal["mean", "sum"]
_OPEN_WIDTH = 2.0  # of the range of an action without one of its bounds
ByAgent: TypeAlias = Mapping[str, Any]
"""Observations, actions, rewards, flags or infos of a package's environment, by agent."""
ForeignEnv: TypeAlias = Any
"""An environment of a package that has no types of its own."""
Space: TypeAlias = Any
"""A space of Gymnasium, which not every environment takes from Gymnasium itself."""


class Parallel(Protocol):
    """The part of PettingZoo's `ParallelEnv` that is used. `state()` is called if the environment has a state space."""

    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> Space: ...

    def action_space(self, agent: str) -> Space: ...

    def reset(self, seed: int | None = None, options: JsonObject | None = None) -> tuple[ByAgent, ByAgent]: ...

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowState:
    """The state of one row after one decision, or at the start of an episode.

    Args:
        observation: `[n, O]` float32. alive: `[n]` bool. available: `[n, A]` bool or None. state: `[S]` or None.
        reward: of the team. terminated, truncated: never both. success: None: the environment does not say.
    """

    observation: NDArray[np.float32]
    alive: NDArray[np.bool_]
    available: NDArray[np.bool_] | None = None
    state: NDArray[np.float32] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None

    def to_view(self, number: int, time: int) -> TeamView:
        """Returns the state as a view of one row."""
        return TeamView(
            observation=self.observation[None],
            alive=self.alive[None],
            available=None if self.available is None else self.available[None],
            state=None if self.state is None else self.state[None],
            number=np.array([number], dtype=np.int64),
            time=np.array([time], dtype=np.int64),
        )


class Row(Protocol):
    """One environment with an array interface; a host owns it."""

    spec: TeamSpec

    def begin(self, seed: int) -> RowState:
        """Starts an episode."""
        ...

    def step(self, actions: Array) -> RowState:
        """Steps the environment once with actions `[n, ...]` checked by `check_actions`."""
        ...

    def close(self) -> None:
        """Closes the environment."""
        ...


class ParallelRow:
    """A parallel environment with an array interface.

    Observations are flattened and padded with zeros to the longest observation of an agent. Discrete actions are
    padded to the largest number of actions (the extra actions are never available). Box actions are padded to the
    longest and scaled from [-1, 1] to the box. A mask is read from `{"observation": ..., "action_mask": ...}` or
    from `info[agent]["action_mask"]`.

    Args:
        env: an environment whose agents have one kind of action.
        horizon: steps of an episode; the environment may truncate earlier.
        share: how the agents' rewards become the team's: the mean over the rewarded agents, or the sum.
        identity: whether every agent also observes its index (one-hot, n more numbers).
        disabled: agents whose actions reach the environment as 0 (the middle of a box, or action 0).
        success: name of an entry of an agent's info that states whether the episode succeeded.
        masked: whether masks come in `info`, which spaces do not show.
    Raises:
        ConfigError: spaces that are neither boxes nor discrete, or of several kinds; an invalid index in
            `disabled`.
    """

    def __init__(
        self,
        env: Parallel,
        *,
        horizon: int,
        share: Share = "mean",
        identity: bool = False,
        disabled: Sequence[int] = (),
        success: str | None = None,
        masked: bool = False,
    ) -> None:
        self._env, self._share, self._identity, self._success = env, share, identity, success
        self.names = list(env.possible_agents)
        self._place = {name: index for index, name in enumerate(self.names)}
        invalid = sorted(set(disabled) - set(range(len(self.names))))
        if invalid:
            raise ConfigError(
                "disabled agents out of range", value=invalid, expected=f"indices from 0 to {len(self.names) - 1}"
            )
        self._disabled = list(disabled)
        self._widths = [_observation_width(env.observation_space(name)) for name in self.names]
        self._spaces = [env.action_space(name) for name in self.names]
        self._sizes = [_action_sizes(space) for space in self._spaces]
        self._bounds = [box_bounds(space) for space in self._spaces]
        self.spec = TeamSpec(
            agents=len(self.names),
            observation=max(self._widths) + len(self.names) * identity,
            actions=self._action_kind(),
            horizon=horizon,
            state=self._state_width(),
        )
        has_uneven_actions = len({tuple(size) for size in self._sizes}) > 1
        has_mask = any(_holds_mask(env.observation_space(name)) for name in self.names)
        self._masked = not isinstance(self.spec.actions, Continuous) and (masked or has_uneven_actions or has_mask)
        self._alone = np.eye(len(self.names), dtype=np.float32)  # who is who
        self._dead: set[Any] = set()

    def begin(self, seed: int) -> RowState:
        """Starts an episode; raises EnvLost if the environment raised."""
        self._dead = set()
        with boundary(EnvLost, "a team environment failed to begin"):
            observations, infos = self._env.reset(seed=seed)
            return self._build_state(observations, infos, list(self._env.agents))

    def step(self, actions: Array) -> RowState:
        """Steps the environment once with actions `[n, ...]` checked by `check_actions`.

        Raises:
            EnvLost: the environment raised. WorldError: an agent that was not announced or came back. NonFinite: a
                reward, observation or state that is not finite. NoLegalAction: an agent without an available action.
        """
        effective = actions.copy()
        effective[self._disabled] = 0
        acting = set(self._env.agents)
        env_actions = {
            name: self._to_env_action(index, effective[index])
            for index, name in enumerate(self.names)
            if name in acting
        }
        with boundary(EnvLost, "a team environment failed at a step"):
            observations, rewards, ended, truncations, infos = self._env.step(env_actions)
            paid_rewards = [float(reward) for reward in rewards.values()]
            reward = sum(paid_rewards) / (max(1, len(paid_rewards)) if self._share == "mean" else 1)
            if not isfinite(reward):
                raise NonFinite("a reward of the team is not finite", value=reward)
            departed = {name for name in env_actions if ended.get(name, False) or truncations.get(name, False)}
            remaining = [name for name in self._env.agents if name not in departed]
            truncated = not remaining and any(
                truncations.get(name, False) and not ended.get(name, False) for name in env_actions
            )
            # Where an episode was cut, those who lived to see it are looked at: the value of that view goes on.
            survivors = [name for name in env_actions if name in observations and not ended.get(name, False)]
            visible = survivors if truncated else remaining
            return self._build_state(
                observations, infos, visible, reward=reward, over=not remaining, truncated=truncated
            )

    def close(self) -> None:
        """Closes the environment; raises EnvLost if it raised."""
        with boundary(EnvLost, "a team environment failed to close"):
            self._env.close()

    def _build_state(
        self,
        observations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
        visible: Sequence[Any],
        *,
        reward: float = 0.0,
        over: bool = False,
        truncated: bool = False,
    ) -> RowState:
        self._check_names(visible)
        observation = np.zeros((len(self.names), self.spec.observation), dtype=np.float32)
        alive = np.zeros(len(self.names), dtype=bool)
        available = self._initial_masks()
        for name in visible:
            index, agent_observation = self._place[name], observations.get(name)
            if agent_observation is None:
                raise WorldError(
                    "an active agent has no observation", value=name, expected="an observation at every step"
                )
            values = np.asarray(
                agent_observation["observation"] if isinstance(agent_observation, Mapping) else agent_observation,
                dtype=np.float32,
            ).reshape(-1)
            if values.size != self._widths[index]:
                raise BatchMismatch(
                    f"wrong observation size of agent {name!r}", value=values.size, expected=self._widths[index]
                )
            observation[index, : values.size], alive[index] = values, True
            mask = None if available is None else _read_mask(agent_observation, infos.get(name, {}))
            if mask is not None and available is not None:
                available[index, : mask.size] &= mask.astype(bool).reshape(-1)
        if self._identity:
            observation[:, -len(self.names) :] = self._alone * alive[:, None]
        if available is not None:
            available[~alive] = np.arange(available.shape[1]) == 0
        row_state = RowState(
            observation=observation,
            alive=alive,
            available=available,
            state=self._read_state(),
            reward=reward,
            terminated=over and not truncated,
            truncated=truncated,
            success=self._has_succeeded(infos),
        )
        check_view(row_state.to_view(0, 0), self.spec)
        return row_state

    def _check_names(self, living: Sequence[Any]) -> None:
        unknown = [name for name in living if name not in self._place]
        if unknown:
            raise WorldError("unannounced agents", value=unknown, expected=f"among {self.names}")
        if len(living) == len(self.names) and not self._dead:
            return
        returned = sorted(str(name) for name in living if name in self._dead)
        if returned:
            raise WorldError("agents returned after their end", value=returned, expected="agents that stay away")
        self._dead |= {name for name in self.names if name not in living}

    def _initial_masks(self) -> NDArray[np.bool_] | None:
        if not self._masked:
            return None
        max_logits = cast("Discrete | Multi", self.spec.actions).logits
        num_logits = np.array([sum(sizes) for sizes in self._sizes])
        return np.arange(max_logits) < num_logits[:, None]

    def _action_kind(self) -> Actions:
        kinds = {type(space).__name__ for space in self._spaces}
        if kinds == {"Discrete"}:
            return Discrete(max(sizes[0] for sizes in self._sizes))
        if kinds == {"MultiDiscrete"} and len({tuple(sizes) for sizes in self._sizes}) == 1:
            return Multi(tuple(self._sizes[0]))
        if kinds == {"Box"}:
            return Continuous(max(int(np.prod(space.shape)) for space in self._spaces))
        expected = "all Discrete, one MultiDiscrete, or Box"
        raise ConfigError("unsupported action spaces of a team", value=sorted(kinds), expected=expected)

    def _to_env_action(self, index: int, action: NDArray[Any]) -> Any:
        """Converts an action to the environment's space."""
        space = self._spaces[index]
        if isinstance(self.spec.actions, Discrete):
            return int(space.start) + int(action)
        if isinstance(self.spec.actions, Multi):
            return (action + np.asarray(getattr(space, "start", 0)).reshape(-1)).astype(space.dtype)
        low, half_range = self._bounds[index]
        scaled = low + (action[: low.size].reshape(low.shape) + 1.0) * half_range
        return np.clip(scaled.astype(space.dtype), space.low, space.high)  # a cast may round past a bound

    def _state_width(self) -> int:
        space = getattr(self._env, "state_space", None)
        return int(np.prod(space.shape)) if space is not None and getattr(space, "shape", None) else 0

    def _read_state(self) -> NDArray[np.float32] | None:
        if not self.spec.state:
            return None
        with boundary(EnvLost, "a team environment failed to tell its state"):
            return np.asarray(cast("Any", self._env).state(), dtype=np.float32).reshape(-1)

    def _has_succeeded(self, infos: Mapping[Any, Any]) -> bool | None:
        if self._success is None:
            return None
        return any(bool(info.get(self._success, False)) for info in infos.values() if isinstance(info, Mapping))


def _observation_width(space: Any) -> int:
    inner = space["observation"] if _holds_mask(space) else space
    shape = getattr(inner, "shape", None)
    if shape is None or not np.issubdtype(inner.dtype, np.number):
        raise ConfigError(
            "unsupported observation space of a team", value=str(space), expected="a Box, with or without a mask"
        )
    return max(1, int(np.prod(shape)))


def _holds_mask(space: Any) -> bool:
    return type(space).__name__ == "Dict" and {"observation", "action_mask"} <= set(space.spaces)


def _action_sizes(space: Any) -> list[int]:
    kind = type(space).__name__
    if kind == "Discrete":
        return [int(space.n)]
    return [int(size) for size in np.asarray(space.nvec).reshape(-1)] if kind == "MultiDiscrete" else [0]


def box_bounds(space: Space) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns (lower bound, half the range) of a box; empty for other spaces.

    Without bounds the range is -1 to 1; with one bound it has the same width and ends there, so that every action lies
    in the box.
    """
    if type(space).__name__ != "Box":
        return np.zeros(0), np.zeros(0)
    low, high = np.asarray(space.low, dtype=np.float64), np.asarray(space.high, dtype=np.float64)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    lower = np.where(has_low, low, np.where(has_high, high - _OPEN_WIDTH, -_OPEN_WIDTH / 2.0))
    upper = np.where(has_high, high, lower + _OPEN_WIDTH)
    return lower, (upper - lower) / 2.0


def _read_mask(observation: Any, info: Any) -> NDArray[Any] | None:
    for source in (observation, info):
        if isinstance(source, Mapping) and "action_mask" in source:
            return np.asarray(source["action_mask"])
    return None

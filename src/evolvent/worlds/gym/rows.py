"""Episodes of a Gymnasium world side by side, as arrays: what policies over numbers act in.

An environment is a team of one agent, so that the same batches, rollouts and updates serve both (`worlds.teams`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, EnvLost, ErrorRecord, EvolventError, NonFinite, user_boundary
from evolvent.trajectory import Array, Task
from evolvent.worlds.gym.spaces import space_kind
from evolvent.worlds.gym.world import GYMNASIUM, GymnasiumWorld, unpack_reset, unpack_step
from evolvent.worlds.teams.base import Actions, Continuous, Discrete, Multi, TeamSpec
from evolvent.worlds.teams.parallel import RowState, Space, box_bounds
from evolvent.worlds.teams.rows import RowTeam

__all__ = ["GymnasiumRows", "control_spec", "make_control_batch", "tell_action", "tell_numbers"]

_log = logging.getLogger(__name__)
_ALIVE = np.ones(1, np.bool_)


def control_spec(world: GymnasiumWorld) -> TeamSpec:
    """Returns the numbers that a policy must know of a world: sizes of observations and actions, and the horizon.

    Raises:
        ConfigError: spaces that are not numbers, such as texts.
    """
    spaces = GYMNASIUM.load_module("gymnasium.spaces")
    if not world.observation_space.is_np_flattenable or any(
        space_kind(part) == "Text" for part in _parts(world.observation_space)
    ):
        raise ConfigError(
            f"{world.name} has observations that are not numbers",
            value=str(world.observation_space),
            hint="name a language policy, such as --policy xs",
        )
    return TeamSpec(
        agents=1,
        observation=max(1, int(spaces.flatdim(world.observation_space))),
        actions=_read_actions(world),
        horizon=world.horizon,
    )


def _parts(space: Space) -> list[Space]:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return [space]
    return [part for child in (inner.values() if isinstance(inner, Mapping) else inner) for part in _parts(child)]


def _read_actions(world: GymnasiumWorld) -> Actions:
    space = world.action_space
    match space_kind(space):
        case "Discrete":
            return Discrete(int(space.n))
        case "MultiDiscrete":
            return Multi(tuple(int(size) for size in space.nvec.reshape(-1)))
        case "MultiBinary":
            return Multi((2,) * int(np.prod(space.shape)))
        case "Box":
            return Continuous(int(np.prod(space.shape)))
        case kind:
            raise ConfigError(
                f"{world.name} has {kind} actions, which are not numbers",
                hint="name a language policy, such as --policy xs",
            )


class _Row:
    """One environment, used for one episode after the other."""

    def __init__(self, world: GymnasiumWorld, spec: TeamSpec) -> None:
        self._world, self._spec = world, spec
        self._env = world.open_env()
        self._spaces = GYMNASIUM.load_module("gymnasium.spaces")
        self._is_box = space_kind(world.observation_space) == "Box"
        self._low, self._half_range = box_bounds(world.action_space)
        self._return = 0.0

    def begin(self, task: Task) -> RowState:
        with user_boundary(EnvLost, f"{self._world.name} failed in reset"):
            value, info = unpack_reset(self._env.reset(seed=int(task.spec["seed"])), self._world.name)
        self._return = 0.0
        return self._to_state(value, info)

    def step(self, actions: Array) -> RowState:
        with user_boundary(EnvLost, f"{self._world.name} failed in step"):
            result = self._env.step(self._to_env_action(actions[0]))
            value, number, terminated, truncated, info = unpack_step(result, self._world.name)
        self._return += number
        return self._to_state(value, info, number, terminated=bool(terminated), truncated=bool(truncated))

    def close(self) -> None:
        self._env.close()

    def _to_env_action(self, action: Array) -> object:
        space = self._world.action_space
        if isinstance(self._spec.actions, Discrete):
            return int(space.start) + int(action)
        if isinstance(self._spec.actions, Multi):
            shaped = np.asarray(action).reshape(space.shape) + np.asarray(getattr(space, "start", 0))
            return shaped.astype(space.dtype)
        scaled = self._low + (np.asarray(action).reshape(space.shape) + 1.0) * self._half_range
        return np.clip(scaled.astype(space.dtype), space.low, space.high)

    def _to_state(
        self,
        value: object,
        info: Mapping[str, object],
        reward: float = 0.0,
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> RowState:
        flat = value if self._is_box else self._spaces.flatten(self._world.observation_space, value)
        numbers: NDArray[np.float32] = np.asarray(flat, np.float32).reshape(1, -1)
        if not np.isfinite(numbers).all():
            raise NonFinite(f"{self._world.name} gave an observation that is not finite", value=str(value))
        score = self._world.score([self._return], info)
        return RowState(
            observation=numbers,
            alive=~_ALIVE if terminated else _ALIVE,
            available=self._read_mask(info),
            reward=reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            success=bool(score.success),
        )

    def _read_mask(self, info: Mapping[str, object]) -> NDArray[np.bool_] | None:
        if not isinstance(self._spec.actions, Discrete) or "action_mask" not in info:
            return None
        mask = np.asarray(info["action_mask"]).astype(bool).reshape(1, -1)
        return (
            mask if mask.shape[1] == self._spec.actions.n and mask.any() else np.ones((1, self._spec.actions.n), bool)
        )


class GymnasiumRows:
    """Environments of a world in this process, one for each row: a `RowHost`.

    An episode begins with the seed of its task, as it does for language agents.
    """

    def __init__(self, world: GymnasiumWorld, spec: TeamSpec) -> None:
        self._world, self._spec = world, spec
        self._rows: dict[int, _Row] = {}
        self._has_told = False

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> dict[int, RowState | ErrorRecord]:
        """Starts episodes: row -> (task, seed of the sample, which is not used)."""
        return {row: self._begin(row, task) for row, (task, _) in starts.items()}

    def step(self, actions: Mapping[int, Array]) -> dict[int, RowState | ErrorRecord]:
        """Steps some rows once: row -> action `[1, ...]`."""
        return {row: self._step(row, action) for row, action in actions.items()}

    def close(self) -> None:
        """Closes all environments."""
        for row in self._rows.values():
            row.close()
        self._rows = {}

    def _begin(self, row: int, task: Task) -> RowState | ErrorRecord:
        try:
            if row not in self._rows:
                self._rows[row] = _Row(self._world, self._spec)
            return self._rows[row].begin(task)
        except EvolventError as error:
            return self._drop(row, error)

    def _step(self, row: int, action: Array) -> RowState | ErrorRecord:
        try:
            return self._rows[row].step(action)
        except EvolventError as error:
            return self._drop(row, error)

    def _drop(self, row: int, error: EvolventError) -> ErrorRecord:
        """Forgets a failed environment, so that the next episode gets another, and tells the first error."""
        self._rows.pop(row, None)
        if not self._has_told:
            _log.warning("an episode could not be scored: %s", error)
            self._has_told = True
        return ErrorRecord.of(error)


def make_control_batch(world: GymnasiumWorld, tasks: Sequence[Task], size: int) -> RowTeam:
    """Creates E rows of episodes of these tasks; `reset` starts them."""
    spec = control_spec(world)
    return RowTeam(spec, tasks, size, host=GymnasiumRows(world, spec))


def tell_numbers(world: GymnasiumWorld, observation: Array) -> str:
    """Returns the text of an observation that was flattened for a policy over numbers."""
    spaces = GYMNASIUM.load_module("gymnasium.spaces")
    return world.observation_text.tell(spaces.unflatten(world.observation_space, np.asarray(observation)))


def tell_action(world: GymnasiumWorld, action: Array) -> str:
    """Returns the text of an action of a policy over numbers: its name, or its numbers."""
    names = world.action_text.names
    if names:
        return names[int(np.asarray(action).reshape(-1)[0])]
    return " ".join(f"{number:g}" for number in np.asarray(action).reshape(-1))

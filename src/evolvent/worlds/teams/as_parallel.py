"""A team world as a PettingZoo parallel environment, for libraries that use that interface (needs the extra
`marl`).

Rewards are the team's, the same for every agent. An agent that dies receives its last reward with `terminated`
and leaves. If actions can be masked, an observation is `{"observation": ..., "action_mask": ...}`.
Multi-discrete masks contain the choices of all parts one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.extras.wrapped import Extra
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView, TeamWorld
from evolvent.worlds.teams.parallel import ByAgent, Space

__all__ = ["TeamParallel", "as_parallel"]

_PETTINGZOO = Extra("marl", "pettingzoo", "a team world as a PettingZoo environment")
_ByAgent = dict[str, Any]


class TeamParallel:
    """One row of a batch with the members of PettingZoo's `ParallelEnv`.

    `reset(seed=s)` starts sample s of the task (None: the sample after the last one).

    Args:
        world: creates the batch. task: its agents are the possible ones.
    """

    render_mode = None

    def __init__(self, world: TeamWorld, task: Task) -> None:
        self._batch = world.batch([task], 1)
        self.metadata: dict[str, Any] = {"name": world.name, "render_modes": []}
        view = self._batch.reset([0])
        self._next = 0
        self._places = {f"agent_{index}": index for index in range(self._batch.spec.agents) if view.alive[0, index]}
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        self._view = view
        self._masked = view.available is not None
        self.action_spaces, self.observation_spaces = _make_spaces(self._batch.spec, self.possible_agents, self._masked)
        if self._batch.spec.state:
            self.state_space = _make_box(self._batch.spec.state)

    @property
    def unwrapped(self) -> TeamParallel:
        """Returns the environment itself."""
        return self

    @property
    def num_agents(self) -> int:
        """Returns the number of agents in play."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Returns the number of possible agents."""
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> Space:
        """Returns the observation space of one agent, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """Returns the action space of one agent, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: _ByAgent | None = None) -> tuple[_ByAgent, _ByAgent]:
        """Starts an episode and returns (observations, infos) by agent; raises ConfigError for a negative seed."""
        self._view = self._batch.reset([self._next if seed is None else seed])
        self._next = int(self._view.number[0]) + 1
        self.agents = list(self.possible_agents)
        return self._observations_of(self._view, self.agents), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> tuple[_ByAgent, _ByAgent, _ByAgent, _ByAgent, _ByAgent]:
        """Steps the team once and returns observations, rewards, terminations, truncations and infos by agent.

        Raises:
            SessionGone: no agent is in play. ConfigError: an agent without an action. InvalidAction: see `TeamBatch`.
        """
        if not self.agents:
            raise SessionGone("step was called after the end of the episode", expected="reset() first")
        missing = [name for name in self.agents if name not in actions]
        if missing:
            raise ConfigError("agents lack an action", value=missing, expected=f"an action for each of {self.agents}")
        result = self._batch.step(self._join_actions(actions))
        is_over = bool(result.ended.size)
        view = result.final if is_over and result.final is not None else result.view
        acting, is_truncated = list(self.agents), bool(result.truncated[0])
        gone = {name: is_over or not view.alive[0, self._places[name]] for name in acting}
        ended = {name: gone[name] and not (is_truncated and view.alive[0, self._places[name]]) for name in acting}
        self.agents = [name for name in acting if not gone[name]]
        self._view = view
        info: _ByAgent = {} if result.success is None or not is_over else {"success": bool(result.success[0])}
        return (
            self._observations_of(view, acting),
            dict.fromkeys(acting, float(result.reward[0])),
            ended,
            {name: gone[name] and not ended[name] for name in acting},
            {name: dict(info) for name in acting},
        )

    def state(self) -> NDArray[np.float32]:
        """Returns the central state, `[S]` float32; raises ConfigError if this world has none."""
        if self._view.state is None:
            raise ConfigError("the world has no central state", value=self.metadata["name"])
        state: NDArray[np.float32] = self._view.state[0]
        return state

    def render(self) -> None:
        """Returns None: pictures are drawn from scenes."""

    def close(self) -> None:
        """Closes the batch."""
        self._batch.close()

    def _join_actions(self, actions: Mapping[str, Any]) -> Any:
        spec = self._batch.spec
        kind = spec.actions
        tail = () if isinstance(kind, Discrete) else (kind.dim,) if isinstance(kind, Continuous) else (len(kind.sizes),)
        joint = np.zeros((1, spec.agents, *tail), dtype=np.float64 if isinstance(kind, Continuous) else np.int64)
        for name in self.agents:
            joint[0, self._places[name]] = actions[name]
        return joint

    def _observations_of(self, view: TeamView, names: list[str]) -> _ByAgent:
        observations: _ByAgent = {}
        for name in names:
            observation = view.observation[0, self._places[name]].copy()
            mask = None if view.available is None else view.available[0, self._places[name]].astype(np.int8)
            observations[name] = observation if mask is None else {"observation": observation, "action_mask": mask}
        return observations


def _make_box(size: int) -> Any:
    spaces = _PETTINGZOO.load_module("gymnasium.spaces")
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _make_spaces(spec: TeamSpec, names: list[str], is_masked: bool) -> tuple[_ByAgent, _ByAgent]:
    spaces, kind = _PETTINGZOO.load_module("gymnasium.spaces"), spec.actions
    actions, observations = {}, {}
    for name in names:
        if isinstance(kind, Continuous):
            actions[name] = spaces.Box(-1.0, 1.0, (kind.dim,), np.float32)
        else:
            actions[name] = spaces.Discrete(kind.n) if isinstance(kind, Discrete) else spaces.MultiDiscrete(kind.sizes)
        observation_space = _make_box(spec.observation)
        if is_masked and not isinstance(kind, Continuous):
            observation_space = spaces.Dict(
                {"observation": observation_space, "action_mask": spaces.MultiBinary(kind.logits)}
            )
        observations[name] = observation_space
    return actions, observations


def as_parallel(world: TeamWorld, task: Task) -> TeamParallel:
    """Creates an environment of a task that is also an instance of PettingZoo's `ParallelEnv`.

    Raises:
        MissingExtra: PettingZoo is not installed.
    """
    base_class = _PETTINGZOO.load_module("pettingzoo").ParallelEnv
    environment: TeamParallel = type("TeamParallelEnv", (TeamParallel, base_class), {})(world, task)
    return environment

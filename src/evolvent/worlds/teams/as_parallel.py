"""A team world as a PettingZoo parallel environment, for whatever speaks that interface (needs the extra `marl`).

Rewards are the team's, the same for every agent. An agent that dies gets its last reward with `terminated` and is gone.
Where actions can be masked, an observation is `{"observation": ..., "action_mask": ...}`. Multi-discrete masks have the
choices of all parts one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.extras.wrapped import Extra
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView, TeamWorld

__all__ = ["TeamParallel", "as_parallel"]

_PETTINGZOO = Extra("marl", "pettingzoo", "a team world as a PettingZoo environment")
_Told = dict[str, Any]


class TeamParallel:
    """One row of a batch behind the members of PettingZoo's `ParallelEnv`.

    `reset(seed=s)` begins sample s of the task (None: the sample after the last one).

    Args:
        world: makes the batch. task: its agents are the possible ones.
    """

    render_mode = None

    def __init__(self, world: TeamWorld, task: Task) -> None:
        self._batch = world.batch([task], 1)
        self.metadata: dict[str, Any] = {"name": world.name, "render_modes": []}
        view = self._batch.reset([0])
        self._next = 0
        self._places = {f"agent_{at}": at for at in range(self._batch.spec.agents) if view.alive[0, at]}
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        self._view = view
        self._masked = view.available is not None
        self.action_spaces, self.observation_spaces = _spaces(self._batch.spec, self.possible_agents, self._masked)
        if self._batch.spec.state:
            self.state_space = _box(self._batch.spec.state)

    @property
    def unwrapped(self) -> TeamParallel:
        """Itself."""
        return self

    @property
    def num_agents(self) -> int:
        """How many are in play."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """How many there can be."""
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> Any:
        """Of one agent; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Of one agent; always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: _Told | None = None) -> tuple[_Told, _Told]:
        """Begin an episode: (observations, infos) by agent. ConfigError: a negative seed."""
        self._view = self._batch.reset([self._next if seed is None else seed])
        self._next = int(self._view.number[0]) + 1
        self.agents = list(self.possible_agents)
        return self._told(self._view, self.agents), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[_Told, _Told, _Told, _Told, _Told]:
        """One decision: observations, rewards, terminations, truncations and infos by agent.

        Raises:
            SessionGone: nobody is in play. ConfigError: an agent without an action. InvalidAction: see `TeamBatch`.
        """
        if not self.agents:
            raise SessionGone("a step after the end of the episode", expected="reset() first")
        missing = [name for name in self.agents if name not in actions]
        if missing:
            raise ConfigError("agents without an action", value=missing, expected=f"one for each of {self.agents}")
        result = self._batch.step(self._joint(actions))
        over = bool(result.ended.size)
        seen = result.final if over and result.final is not None else result.view
        asked, cut = list(self.agents), bool(result.truncated[0])
        gone = {name: over or not seen.alive[0, self._places[name]] for name in asked}
        ended = {name: gone[name] and not (cut and seen.alive[0, self._places[name]]) for name in asked}
        self.agents = [name for name in asked if not gone[name]]
        self._view = seen
        info: _Told = {} if result.success is None or not over else {"success": bool(result.success[0])}
        return (
            self._told(seen, asked),
            dict.fromkeys(asked, float(result.reward[0])),
            ended,
            {name: gone[name] and not ended[name] for name in asked},
            {name: dict(info) for name in asked},
        )

    def state(self) -> Any:
        """`[S]` float32, the central state. ConfigError: this world has none."""
        if self._view.state is None:
            raise ConfigError("a world without a central state", value=self.metadata["name"])
        return self._view.state[0]

    def render(self) -> None:
        """Nothing: pictures are drawn from scenes."""

    def close(self) -> None:
        """Close the batch."""
        self._batch.close()

    def _joint(self, actions: Mapping[str, Any]) -> Any:
        spec = self._batch.spec
        kind = spec.actions
        tail = () if isinstance(kind, Discrete) else (kind.dim,) if isinstance(kind, Continuous) else (len(kind.sizes),)
        joint = np.zeros((1, spec.agents, *tail), dtype=np.float64 if isinstance(kind, Continuous) else np.int64)
        for name in self.agents:
            joint[0, self._places[name]] = actions[name]
        return joint

    def _told(self, view: TeamView, names: list[str]) -> _Told:
        told: _Told = {}
        for name in names:
            own = view.observation[0, self._places[name]].copy()
            mask = None if view.available is None else view.available[0, self._places[name]].astype(np.int8)
            told[name] = own if mask is None else {"observation": own, "action_mask": mask}
        return told


def _box(size: int) -> Any:
    spaces = _PETTINGZOO.module("gymnasium.spaces")
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _spaces(spec: TeamSpec, names: list[str], masked: bool) -> tuple[_Told, _Told]:
    spaces, kind = _PETTINGZOO.module("gymnasium.spaces"), spec.actions
    actions, observations = {}, {}
    for name in names:
        if isinstance(kind, Continuous):
            actions[name] = spaces.Box(-1.0, 1.0, (kind.dim,), np.float32)
        else:
            actions[name] = spaces.Discrete(kind.n) if isinstance(kind, Discrete) else spaces.MultiDiscrete(kind.sizes)
        seen = _box(spec.observation)
        if masked and not isinstance(kind, Continuous):
            seen = spaces.Dict({"observation": seen, "action_mask": spaces.MultiBinary(kind.logits)})
        observations[name] = seen
    return actions, observations


def as_parallel(world: TeamWorld, task: Task) -> TeamParallel:
    """A task as an environment that is also an instance of PettingZoo's `ParallelEnv`. MissingExtra: without it."""
    base = _PETTINGZOO.module("pettingzoo").ParallelEnv
    made: TeamParallel = type("TeamParallelEnv", (TeamParallel, base), {})(world, task)
    return made

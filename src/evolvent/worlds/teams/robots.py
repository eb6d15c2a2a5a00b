"""Robots of multi-agent MuJoCo whose agents all observe the whole robot; the joints are divided among the agents.

`Robot` is the parallel environment. `RobotRow` is the same as a row without dictionaries by agent, which cost
more than the physics of a small robot; tests verify that both are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, EnvLost, NonFinite, boundary
from evolvent.trajectory import Array, JsonObject
from evolvent.worlds.teams.base import Continuous, TeamSpec
from evolvent.worlds.teams.parallel import ByAgent, ForeignEnv, RowState, Space

__all__ = ["Robot", "RobotRow"]


class Robot:
    """A parallel environment whose agents all observe the whole robot.

    Args:
        env: gymnasium-robotics' `MultiAgentMujocoEnv`, whose own local observations are not used.
    """

    def __init__(self, env: ForeignEnv) -> None:
        self._env, self.single = env, env.single_agent_env
        self.possible_agents = list(env.possible_agents)
        self.joints = [[int(node.act_ids) for node in part] for part in env.agent_action_partitions]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space:
        """Returns the observation space of the robot, for every agent."""
        return self.single.observation_space

    def action_space(self, agent: str) -> Space:
        """Returns the action space of an agent's joints."""
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: JsonObject | None = None) -> tuple[ByAgent, ByAgent]:
        """Starts an episode; see `Parallel`."""
        observation, _ = self.single.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, observation), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps the robot once; see `Parallel`."""
        names = self.possible_agents
        observation, reward, ended, truncated, _ = self.single.step(
            self._env.map_local_actions_to_global_action(actions)
        )
        self.agents = [] if ended or truncated else list(names)
        return (
            dict.fromkeys(names, observation),
            dict.fromkeys(names, reward),
            dict.fromkeys(names, bool(ended)),
            dict.fromkeys(names, bool(truncated)),
            {name: {} for name in names},
        )

    def close(self) -> None:
        """Closes the environment; see `Parallel`."""
        self._env.close()


class RobotRow:
    """A robot as a row.

    Args:
        horizon, identity, disabled: as in `ParallelRow`.
    Raises:
        ConfigError: an invalid index in `disabled`.
    """

    def __init__(self, robot: Robot, *, horizon: int, identity: bool = False, disabled: Sequence[int] = ()) -> None:
        self._robot, agents = robot, len(robot.possible_agents)
        invalid = sorted(set(disabled) - set(range(agents)))
        if invalid:
            raise ConfigError("disabled agents", value=invalid, expected=f"places 0 to {agents - 1}")
        space, self._disabled = robot.single.action_space, list(disabled)
        assignments = sorted(
            (joint, agent, action_index)
            for agent, agent_joints in enumerate(robot.joints)
            for action_index, joint in enumerate(agent_joints)
        )
        self._agent, self._at = (
            np.array([assignment[1] for assignment in assignments]),
            np.array([assignment[2] for assignment in assignments]),
        )
        self._low = np.asarray(space.low, dtype=np.float64)
        self._half = (np.asarray(space.high, dtype=np.float64) - self._low) / 2.0
        self._width, self._kind = int(np.prod(robot.single.observation_space.shape)), space.dtype
        self._who = (
            np.eye(agents if identity else 0, dtype=np.float32) if identity else np.zeros((agents, 0), np.float32)
        )
        self.spec = TeamSpec(
            agents=agents,
            observation=self._width + self._who.shape[1],
            horizon=horizon,
            actions=Continuous(max(len(agent_joints) for agent_joints in robot.joints)),
        )

    def begin(self, seed: int) -> RowState:
        """Starts an episode; raises EnvLost if the simulator raised."""
        with boundary(EnvLost, "a team environment failed to begin"):
            observation, _ = self._robot.single.reset(seed=seed)
        return self._build_state(observation)

    def step(self, actions: Array) -> RowState:
        """Steps the robot once with actions `[n, D]`.

        Raises:
            EnvLost: the simulator raised. NonFinite: a reward or observation that is not finite.
        """
        effective = actions.copy()
        effective[self._disabled] = 0.0
        force = (
            (self._low + (effective[self._agent, self._at] + 1.0) * self._half).astype(self._kind).astype(np.float64)
        )
        with boundary(EnvLost, "a team environment failed at a step"):
            observation, reward, ended, truncated, _ = self._robot.single.step(force)
        return self._build_state(
            observation, reward=float(reward), terminated=bool(ended), truncated=bool(truncated) and not ended
        )

    def close(self) -> None:
        """Closes the simulator."""
        with boundary(EnvLost, "a team environment failed to close"):
            self._robot.close()

    def _build_state(
        self, observation: Any, *, reward: float = 0.0, terminated: bool = False, truncated: bool = False
    ) -> RowState:
        state = np.asarray(observation, dtype=np.float32).reshape(-1)
        if not (np.isfinite(state).all() and np.isfinite(reward)):
            raise NonFinite("a robot's observation or reward that is not finite", value=reward)
        agents = self.spec.agents
        view = np.concatenate([np.broadcast_to(state, (agents, self._width)), self._who], -1)
        if terminated:
            view = np.zeros_like(view)
        return RowState(
            observation=view,
            alive=np.full(agents, not terminated),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

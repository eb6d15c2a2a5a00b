"""Robots of multi-agent MuJoCo whose agents all see the whole robot: joints are shared out, what is seen is not.

`Robot` is the parallel environment. `RobotRow` is the same as a row without dictionaries by agent, which cost more than
the physics of a small robot; tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, EnvLost, NonFinite, boundary
from evolvent.worlds.teams.base import Continuous, TeamSpec
from evolvent.worlds.teams.parallel import Moment

__all__ = ["Robot", "RobotRow"]


class Robot:
    """Agents that all see the whole robot, as a parallel environment.

    Args:
        env: gymnasium-robotics' `MultiAgentMujocoEnv`, whose own local observations are not used.
    """

    def __init__(self, env: Any) -> None:
        self._env, self.single = env, env.single_agent_env
        self.possible_agents = list(env.possible_agents)
        self.joints = [[int(node.act_ids) for node in part] for part in env.agent_action_partitions]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """The robot's, for every agent."""
        return self.single.observation_space

    def action_space(self, agent: str) -> Any:
        """Of an agent's joints."""
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """See `Parallel`."""
        seen, _ = self.single.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, seen), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """See `Parallel`."""
        names = self.possible_agents
        seen, paid, ended, cut, _ = self.single.step(self._env.map_local_actions_to_global_action(actions))
        self.agents = [] if ended or cut else list(names)
        return (
            dict.fromkeys(names, seen),
            dict.fromkeys(names, paid),
            dict.fromkeys(names, bool(ended)),
            dict.fromkeys(names, bool(cut)),
            {name: {} for name in names},
        )

    def close(self) -> None:
        """See `Parallel`."""
        self._env.close()


class RobotRow:
    """A robot as a row.

    Args:
        horizon, identity, disabled: as of `ParallelRow`.
    Raises:
        ConfigError: a `disabled` that is no agent.
    """

    def __init__(self, robot: Robot, *, horizon: int, identity: bool = False, disabled: Sequence[int] = ()) -> None:
        self._robot, agents = robot, len(robot.possible_agents)
        wrong = sorted(set(disabled) - set(range(agents)))
        if wrong:
            raise ConfigError("disabled agents", value=wrong, expected=f"places 0 to {agents - 1}")
        space, self._disabled = robot.single.action_space, list(disabled)
        places = sorted((joint, agent, at) for agent, own in enumerate(robot.joints) for at, joint in enumerate(own))
        self._agent, self._at = np.array([p[1] for p in places]), np.array([p[2] for p in places])
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
            actions=Continuous(max(len(own) for own in robot.joints)),
        )

    def begin(self, seed: int) -> Moment:
        """Begin an episode. EnvLost: the simulator raised."""
        with boundary(EnvLost, "a team environment failed to begin"):
            seen, _ = self._robot.single.reset(seed=seed)
        return self._moment(seen)

    def step(self, actions: NDArray[Any]) -> Moment:
        """One decision `[n, D]`. EnvLost: the simulator raised. NonFinite: a reward or observation that is not."""
        chosen = actions.copy()
        chosen[self._disabled] = 0.0
        force = (self._low + (chosen[self._agent, self._at] + 1.0) * self._half).astype(self._kind).astype(np.float64)
        with boundary(EnvLost, "a team environment failed at a step"):
            seen, reward, ended, cut, _ = self._robot.single.step(force)
        return self._moment(seen, reward=float(reward), terminated=bool(ended), truncated=bool(cut) and not ended)

    def close(self) -> None:
        """Close the simulator."""
        with boundary(EnvLost, "a team environment failed to close"):
            self._robot.close()

    def _moment(self, seen: Any, *, reward: float = 0.0, terminated: bool = False, truncated: bool = False) -> Moment:
        state = np.asarray(seen, dtype=np.float32).reshape(-1)
        if not (np.isfinite(state).all() and np.isfinite(reward)):
            raise NonFinite("a robot's observation or reward that is not finite", value=reward)
        agents = self.spec.agents
        view = np.concatenate([np.broadcast_to(state, (agents, self._width)), self._who], -1)
        if terminated:
            view = np.zeros_like(view)
        return Moment(
            observation=view,
            alive=np.full(agents, not terminated),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

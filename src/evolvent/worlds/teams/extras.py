"""Team environments of other packages, by name: their makers, and the world around each (extra `marl`).

| maker | package | environment |
|---|---|---|
| mamujoco | gymnasium-robotics | a robot whose joints are agents; continuous |
| foraging | lbforaging | agents of levels load food together; discrete |
| warehouse | rware | robots bring shelves; discrete, sparse |
| particles | mpe2 | the multi-agent particle environments; continuous or discrete |
| vmas | vmas | two-dimensional physics in torch; continuous |
| football | gfootball | scenarios of its academy; discrete |
| hands | gymnasium-robotics | a hand whose fingers and wrist are agents; continuous |
| parallel | - | any PettingZoo parallel environment: `module:function` that creates one |
| pettingzoo | pettingzoo, or any | an id of its registry, or the `parallel_env` of a module |

The MAT paper plays football's academy, and pairs of hands in Isaac Gym. `gfootball` builds its own game engine, which
current compilers refuse; its maker is written for the documented interface and tested on a stand-in.

Robots of multi-agent MuJoCo whose agents all observe the whole robot; the joints are divided among the agents.

`Robot` is the parallel environment. `RobotRow` is the same as a row without dictionaries by agent, which cost
more than the physics of a small robot; tests verify that both are equal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, EnvLost, NonFinite, Problem, boundary, unknown_name_problem
from evolvent.trajectory import Array, Json, JsonObject, Task
from evolvent.worlds.extras.wrapped import Extra
from evolvent.worlds.panel import check_names
from evolvent.worlds.teams.base import Continuous, Optimum, TeamSpec
from evolvent.worlds.teams.parallel import ByAgent, ForeignEnv, Parallel, ParallelRow, Row, RowState, Space
from evolvent.worlds.teams.rows import LocalRows, RowHost, RowTeam

__all__ = ["MAKERS", "ForeignWorld", "Robot", "RobotRow", "TupleParallel", "make_row"]


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
            raise ConfigError("disabled agents", value=invalid, expected=f"indices from 0 to {agents - 1}")
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
            raise NonFinite("an observation or reward of a robot is not finite", value=reward)
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


_NO_LIMIT = 10**9  # of a package's own steps: the horizon is the world's, and cuts instead of terminating


def _extra(distribution: str, feature: str) -> Extra:
    return Extra("marl", distribution, feature)


class TupleParallel:
    """A parallel environment around one whose observations, actions and rewards are sequences by agent.

    Args:
        env: has `observation_space` and `action_space` that are tuples by agent, and Gymnasium's reset and step.
    """

    def __init__(self, env: ForeignEnv) -> None:
        self._env = env
        self.possible_agents = [f"agent_{index}" for index in range(len(env.action_space))]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space:
        """Returns the observation space of one agent."""
        return self._env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Space:
        """Returns the action space of one agent."""
        return self._env.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: JsonObject | None = None) -> tuple[ByAgent, ByAgent]:
        """Starts an episode; see `Parallel`."""
        observations, _ = self._env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return dict(zip(self.agents, observations, strict=True)), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps the environment once; see `Parallel`."""
        names = self.possible_agents
        observations, rewards, terminated, truncated, info = self._env.step([actions[name] for name in names])
        ended, is_truncated = bool(np.all(terminated)), bool(np.all(truncated))
        self.agents = [] if ended or is_truncated else list(names)
        return (
            dict(zip(names, observations, strict=True)),
            dict(zip(names, rewards, strict=True)),
            dict.fromkeys(names, ended),
            dict.fromkeys(names, is_truncated),
            dict.fromkeys(names, info),
        )

    def close(self) -> None:
        """Closes the environment; see `Parallel`."""
        self._env.close()


class _ForagingEnv:
    """Level-based foraging, with agent positions cleared at reset: stale ones would block cells in the next episode."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.step, self.close = env.step, env.close

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for player in self._env.players:
            player.position = None
        return self._env.reset(seed=seed, options=options)


class _VmasEnv:
    """One environment of VMAS: lists of torch tensors with a leading axis of 1.

    VMAS's own batches share one random state, so an episode in a batch differs from the same episode alone; they
    are not used. So do all environments of a process (vmas 1.5.2, simulator/environment/environment.py, line 59):
    each has its own stream here, put in place while the package is called.

    Args:
        make: creates the environment.
        shared: the states of torch, numpy and Python that VMAS's environments share.
    """

    def __init__(self, make: Callable[[], Any], shared: list[Any]) -> None:
        torch = import_module("torch")
        self._shared = shared
        self._states = [
            torch.Generator().manual_seed(0).get_state(),
            np.random.RandomState(0).get_state(),
            random.Random(0).getstate(),
        ]
        with self._own_stream():
            self._env = make()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        before = list(self._shared)
        self._shared[:] = self._states
        try:
            yield
        finally:
            self._states, self._shared[:] = list(self._shared), before

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], Any]:
        with self._own_stream():
            observations = self._env.reset(seed=seed)
        return [observation[0].numpy() for observation in observations], {}

    def step(self, actions: Sequence[Any]) -> tuple[Any, ...]:
        torch = import_module("torch")
        tensors = [torch.as_tensor(np.asarray(row, dtype=np.float32)).reshape(1, -1) for row in actions]
        with self._own_stream():
            observations, rewards, ended, truncated, _ = self._env.step(tensors)
        return (
            [row[0].numpy() for row in observations],
            [float(row[0]) for row in rewards],
            bool(ended[0]),
            bool(truncated[0]),
            {},
        )

    def close(self) -> None:
        """Returns at once: VMAS holds only memory."""


_ACADEMY: Mapping[str, int] = {
    "academy_pass_and_shoot_with_keeper": 2,
    "academy_run_pass_and_shoot_with_keeper": 2,
    "academy_3_vs_1_with_keeper": 3,
    "academy_counterattack_easy": 4,
    "academy_counterattack_hard": 4,
    "academy_corner": 11,
    "academy_single_goal_versus_lazy": 11,
}
"""Scenarios, and how many players are controlled where nothing else is set; the first, third and fourth are MAT's."""
_PARTS = ("WR", "FF", "MF", "RF", "LF", "TH")  # in names of actuators: wrist, four fingers, thumb


class _FootballEnv:
    """An academy scenario with tuples by agent and Gymnasium's interface.

    The engine draws its seed from Python's random numbers at a reset; they are put back afterwards.

    Args:
        env: of `gfootball.env.create_environment`, with the representation simple115v2.
        agents: the controlled players.
    """

    def __init__(self, env: Any, agents: int) -> None:
        self._env, self._agents = env, agents
        spaces = import_module("gymnasium").spaces
        width = int(env.observation_space.shape[-1])
        choices = getattr(env.action_space, "nvec", getattr(env.action_space, "n", 0))
        counts = np.broadcast_to(np.asarray(choices), agents)
        self.observation_space = tuple(spaces.Box(-np.inf, np.inf, (width,), np.float32) for _ in range(agents))
        self.action_space = tuple(spaces.Discrete(int(count)) for count in counts)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Starts an episode; returns an observation for each agent."""
        before = random.getstate()
        random.seed(seed)
        try:
            answer = self._env.reset()
        finally:
            random.setstate(before)
        observations = answer[0] if isinstance(answer, tuple) else answer
        return self._split(observations), {}

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], bool, bool, dict[str, Any]]:
        """Plays one action for each agent."""
        choices = [int(np.asarray(action).item()) for action in actions]
        answer = self._env.step(choices if self._agents > 1 else choices[0])
        observations, rewards, *ends, info = answer
        shares = np.broadcast_to(np.asarray(rewards, np.float64), self._agents)
        terminated, truncated = (bool(ends[0]), bool(ends[1]) if len(ends) > 1 else False)
        return self._split(observations), [float(share) for share in shares], terminated, truncated, dict(info)

    def _split(self, observations: Any) -> list[Any]:
        return list(np.asarray(observations, np.float32).reshape(self._agents, -1))

    def close(self) -> None:
        """Closes the game."""
        self._env.close()


def _open_academy(*, scenario: str = "academy_3_vs_1_with_keeper", agents: int | None = None) -> _FootballEnv:
    """Creates an academy scenario with the rewards for goals and for coming near them, as in MAT.

    Raises:
        ConfigError: an unknown scenario, or gfootball is not installed.
    """
    if scenario not in _ACADEMY:
        raise ConfigError([unknown_name_problem("scenario", scenario, _ACADEMY)])
    try:
        football = import_module("gfootball.env")
    except ImportError as error:
        hint = "pip install gfootball, which builds its own game engine; battle, foraging and warehouse need none"
        raise ConfigError([Problem("football", "the package gfootball is not installed", hint)]) from error
    count = agents or _ACADEMY[scenario]
    env = football.create_environment(
        env_name=scenario,
        representation="simple115v2",
        rewards="scoring,checkpoints",
        stacked=False,
        render=False,
        write_goal_dumps=False,
        write_full_episode_dumps=False,
        write_video=False,
        number_of_left_players_agent_controls=count,
        number_of_right_players_agent_controls=0,
    )
    return _FootballEnv(env, count)


@dataclass(frozen=True)
class _Joint:
    """An actuator of an agent, as multi-agent MuJoCo names them."""

    act_ids: int


class _FlatHand:
    """A hand whose observation is one array: what it sees and, where it has one, what is asked for."""

    def __init__(self, env: Any) -> None:
        self._env, self.action_space = env, env.action_space
        spaces = getattr(env.observation_space, "spaces", None)
        self._keys = [key for key in ("observation", "desired_goal") if spaces and key in spaces]
        boxes = [spaces[key] for key in self._keys] if spaces else [env.observation_space]
        width = sum(int(np.prod(box.shape)) for box in boxes)
        self.observation_space = import_module("gymnasium").spaces.Box(-np.inf, np.inf, (width,), np.float64)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Starts an episode."""
        observation, info = self._env.reset(seed=seed, options=options)
        return self._flatten(observation), info

    def step(self, force: Any) -> tuple[Any, ...]:
        """Moves the joints once."""
        observation, *outcome = self._env.step(np.asarray(force, self.action_space.dtype))
        return self._flatten(observation), *outcome

    def _flatten(self, observation: Any) -> Any:
        parts = [observation[key] for key in self._keys] if self._keys else [observation]
        return np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])


class _HandEnv:
    """A hand with the members of multi-agent MuJoCo's environments: agents, and the actuators of each."""

    def __init__(self, env: Any, partitions: Sequence[Sequence[int]]) -> None:
        self._env, self.single_agent_env = env, _FlatHand(env)
        self.possible_agents = [f"agent_{index}" for index in range(len(partitions))]
        self.agent_action_partitions = [tuple(_Joint(index) for index in part) for part in partitions]

    def action_space(self, agent: str) -> Any:
        """Returns the action space of an agent's actuators."""
        part = self._indices(agent)
        hand_space = self._env.action_space
        low, high = hand_space.low[part], hand_space.high[part]
        return import_module("gymnasium").spaces.Box(low, high, dtype=hand_space.dtype)

    def map_local_actions_to_global_action(self, actions: Mapping[str, Any]) -> Any:
        """Returns the action of the whole hand."""
        force = np.zeros(self._env.action_space.shape, self._env.action_space.dtype)
        for agent, action in actions.items():
            force[self._indices(agent)] = action
        return force

    def _indices(self, agent: str) -> list[int]:
        return [joint.act_ids for joint in self.agent_action_partitions[self.possible_agents.index(agent)]]

    def close(self) -> None:
        """Closes the simulator."""
        self._env.close()


def _open_hand(*, scenario: str = "AdroitHandDoor-v1", agents: int | None = None) -> _HandEnv:
    """Creates a hand of gymnasium-robotics, such as AdroitHandDoor-v1 or HandReachDense-v3.

    Args:
        scenario: an id with a Shadow or Adroit hand.
        agents: into how many agents of neighboring actuators the hand is divided; None: one for each finger that the
            names of the actuators tell, one for the wrist, and one for the arm where there is one.
    Raises:
        ConfigError: an unknown scenario, or more agents than actuators. MissingExtra: gymnasium-robotics is missing.
    """
    robotics = Extra("marl", "gymnasium-robotics", "hands").load_module("gymnasium_robotics")
    gymnasium, mujoco = import_module("gymnasium"), import_module("mujoco")
    gymnasium.register_envs(robotics)
    known_ids = [name for name in gymnasium.registry if "Hand" in name]
    if scenario not in known_ids:
        raise ConfigError([unknown_name_problem("scenario", scenario, known_ids)])
    try:
        env = gymnasium.make(scenario, max_episode_steps=_NO_LIMIT, disable_env_checker=True)
    except AssertionError as error:  # gymnasium-robotics 1.4.2, utils/mujoco_utils.py, compares types of joints
        message = f"{scenario} cannot be made with mujoco {mujoco.__version__}"
        hint = "Shadow hands run with mujoco 3.11 and earlier, Adroit hands with later ones too"
        raise ConfigError([Problem("scenario", message, hint)]) from error
    model = env.unwrapped.model
    names = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_ACTUATOR, index) or "" for index in range(model.nu)]
    if agents is None:
        part_of = [next((part for part in _PARTS if part in name), "") for name in names]
        groups = [[index for index, part in enumerate(part_of) if part == group] for group in ("", *_PARTS)]
        return _HandEnv(env, [group for group in groups if group])
    if not 1 <= agents <= len(names):
        raise ConfigError([Problem("agents", f"got {agents}, expected 1 to {len(names)} for {scenario}")])
    return _HandEnv(env, [part.tolist() for part in np.array_split(np.arange(len(names)), agents)])


def _make_mamujoco(*, scenario: str = "HalfCheetah", parts: str = "6x1", sees: int | None = None) -> Parallel:
    """Creates a robot; `sees` is the number of joints that an agent sees (`agent_obsk`), None the whole robot as in
    MAT.
    """
    module = _extra("gymnasium-robotics", "multi-agent MuJoCo").load_module("gymnasium_robotics").mamujoco_v1
    env: Parallel = module.parallel_env(scenario, parts, agent_obsk=sees or 0)
    return env if sees is not None else Robot(env)


def _make_foraging(
    *, size: int = 8, agents: int = 2, food: int = 2, sight: int = 8, cooperate: bool = True
) -> Parallel:
    foraging = _extra("lbforaging", "level-based foraging").load_module("lbforaging.foraging")
    return TupleParallel(
        _ForagingEnv(
            foraging.ForagingEnv(
                players=agents,
                field_size=(size, size),
                max_num_food=food,
                min_player_level=1,
                max_player_level=2,
                sight=sight,
                min_food_level=1,
                max_food_level=None,
                max_episode_steps=_NO_LIMIT,
                force_coop=cooperate,
            )
        )
    )


def _make_warehouse(
    *, columns: int = 3, rows: int = 1, height: int = 8, agents: int = 2, requests: int | None = None
) -> Parallel:
    rware = _extra("rware", "the robotic warehouse").load_module("rware.warehouse")
    return TupleParallel(
        rware.Warehouse(
            shelf_columns=columns,
            shelf_rows=rows,
            column_height=height,
            n_agents=agents,
            msg_bits=0,
            sensor_range=1,
            request_queue_size=requests or agents,
            max_inactivity_steps=None,
            max_steps=None,
            reward_type=rware.RewardType.GLOBAL,
        )
    )


def _make_particles(*, scenario: str = "simple_spread_v3", agents: int | None = 3, continuous: bool = True) -> Parallel:
    module = _extra("mpe2", "the particle environments").load_module(f"mpe2.{scenario}")
    size = {} if agents is None else {"N": agents}
    env: Parallel = module.parallel_env(max_cycles=_NO_LIMIT, continuous_actions=continuous, **size)
    return env


def _make_vmas(*, scenario: str = "balance", agents: int = 3) -> Parallel:
    vmas = _extra("vmas", "VMAS").load_module("vmas")

    def make() -> Any:
        return vmas.make_env(
            scenario,
            num_envs=1,
            continuous_actions=True,
            max_steps=None,
            terminated_truncated=True,
            clamp_actions=True,
            n_agents=agents,
        )

    return TupleParallel(_VmasEnv(make, vmas.simulator.environment.Environment.vmas_random_state))


def _make_football(*, scenario: str = "academy_3_vs_1_with_keeper", agents: int | None = None) -> Parallel:
    return TupleParallel(_open_academy(scenario=scenario, agents=agents))


def _make_hands(*, scenario: str = "AdroitHandDoor-v1", agents: int | None = None) -> Parallel:
    return Robot(_open_hand(scenario=scenario, agents=agents))


def _make_parallel(*, make: str, arguments: Mapping[str, Any] | None = None) -> Parallel:
    module, _, name = make.partition(":")
    with boundary(ConfigError, "no function that makes an environment", name=make):
        env: Parallel = getattr(import_module(module), name)(**(arguments or {}))
    return env


def _make_pettingzoo(*, id: str, arguments: Mapping[str, Any] | None = None) -> Parallel:
    """Creates an environment of PettingZoo's registry, or the `parallel_env` of a module.

    Raises:
        ConfigError: an unknown id, an environment whose agents take turns, or arguments that it refuses.
    """
    pettingzoo = _extra("pettingzoo", "PettingZoo's environments").load_module("pettingzoo")
    registry_id = re.sub(r"_v(?=\d+$)", "-v", id)
    parallel_ids, turn_ids = (getattr(pettingzoo, f"{kind}_registry", {}) for kind in ("parallel", "aec"))
    module = id.replace("/", ".")
    with boundary(ConfigError, f"pettingzoo:{id} cannot be made"):
        if registry_id in parallel_ids:
            env: Parallel = pettingzoo.make("parallel", registry_id, **(arguments or {}))
            return env
        loaded = import_module(module) if registry_id not in turn_ids and _exists(module) else None
        if loaded is not None and hasattr(loaded, "parallel_env"):
            made: Parallel = loaded.parallel_env(**(arguments or {}))
            return made
    if registry_id in turn_ids or loaded is not None:
        message = f"{id} has no parallel environment: its agents take turns"
        raise ConfigError([Problem("pettingzoo", message, "choose an environment whose agents act at once")])
    known_ids = [known_id.replace("-v", "_v") if "_v" in id else known_id for known_id in parallel_ids]
    problem = unknown_name_problem("environment", id, known_ids, location="pettingzoo")
    if "did you mean" not in problem.hint:
        problem = Problem(problem.where, problem.what, "one of another package is a module, as mpe2.simple_spread_v3")
    raise ConfigError([problem])


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent that does not exist, or an empty name
        return False


MAKERS: Mapping[str, tuple[Callable[..., Parallel], JsonObject]] = {
    "mamujoco": (_make_mamujoco, {"identity": True}),
    "foraging": (_make_foraging, {"share": "sum"}),
    "warehouse": (_make_warehouse, {"share": "mean"}),
    "particles": (_make_particles, {"share": "mean"}),
    "vmas": (_make_vmas, {"share": "mean"}),
    "football": (_make_football, {"share": "mean"}),
    "hands": (_make_hands, {"identity": True}),
    "parallel": (_make_parallel, {"share": "mean"}),
    "pettingzoo": (_make_pettingzoo, {"share": "mean"}),
}
_ROW_SETTINGS = ("horizon", "share", "identity", "disabled", "success", "masked")


def make_row(task: Task) -> Row:
    """Creates the environment of a task of `ForeignWorld`, for a batch or a worker process.

    Raises:
        ConfigError: an unknown maker, or settings that it does not have. MissingExtra: its package is not
            installed.
        EnvLost: the package refused.
    """
    spec = dict(task.spec)
    maker = str(spec.get("maker"))
    if maker not in MAKERS:
        raise ConfigError([unknown_name_problem("maker of teams", maker, MAKERS)])
    make, default_settings = MAKERS[maker]
    row_settings = {name: spec["row"][name] for name in _ROW_SETTINGS if name in spec["row"]}
    with boundary(EnvLost, f"{maker} cannot be made", settings=spec["settings"]):
        env = make(**spec["settings"])
    if isinstance(env, Robot) and set(row_settings) <= {"horizon", "identity", "disabled"}:
        return RobotRow(env, **{**default_settings, **row_settings})
    return ParallelRow(env, **{**default_settings, **row_settings})


class ForeignWorld:
    """A maker with its settings as a world: one task for each split, so that no two splits share a seed.

    Args:
        maker: a name of `MAKERS`.
        horizon: steps of an episode.
        settings: settings of the maker (JSON values), such as `{"scenario": "Ant", "parts": "4x2"}`.
        row: settings of `ParallelRow`: share, identity, disabled, success, masked.
    Raises:
        ConfigError: an unknown maker, or settings that it does not have; all at once.
    """

    version = "1"
    tiers = ("seen",)

    def __init__(
        self,
        maker: str,
        *,
        horizon: int,
        settings: JsonObject | None = None,
        row: JsonObject | None = None,
    ) -> None:
        problems = [
            unknown_name_problem("setting of a row", name, _ROW_SETTINGS)
            for name in row or {}
            if name not in _ROW_SETTINGS
        ]
        if maker in MAKERS:
            parameters = signature(MAKERS[maker][0]).parameters
            problems += [
                unknown_name_problem(f"setting of {maker}", name, parameters)
                for name in settings or {}
                if name not in parameters
            ]
        else:
            problems.append(unknown_name_problem("maker of teams", maker, MAKERS))
        if problems:
            raise ConfigError(problems)
        self.name, self.maker, self.horizon = f"team_{maker}", maker, horizon
        self._settings, self._row = dict(settings or {}), {**(row or {}), "horizon": horizon}

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns one task: samples are its seeds."""
        check_names(split, tier, self.tiers)
        return (self.task(split=split),)

    def task(self, *, split: str = "train", row: JsonObject | None = None, **settings: Json) -> Task:
        """Returns a task with changed settings, such as `task(row={"disabled": [2]})`."""
        spec = {
            "maker": self.maker,
            "settings": {**self._settings, **settings},
            "row": {**self._row, **(row or {})},
            "split": split,
        }
        return Task(self.name, self.version, spec, self.maker, "seen", split)

    def batch(self, tasks: Sequence[Task], size: int, *, host: RowHost | None = None) -> RowTeam:
        """Creates E rows, in this process or on `host`.

        Raises:
            ConfigError, MissingExtra, EnvLost: as `make_row`.
        """
        if not tasks:
            raise ConfigError("the batch has no tasks", expected="1 or more")
        probe = make_row(tasks[0])
        spec = probe.spec
        probe.close()
        return RowTeam(spec, tasks, size, host=host or LocalRows(make_row))

    def optimum(self, task: Task) -> Optimum | None:
        """Returns None: the best return is unknown."""
        return None

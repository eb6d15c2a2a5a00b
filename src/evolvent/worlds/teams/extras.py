"""Team environments of other packages, by name: how they are made, and the world around each (extra `marl`).

| maker | package | what it is |
|---|---|---|
| mamujoco | gymnasium-robotics | a robot whose joints are agents; continuous |
| foraging | lbforaging | agents of levels load food together; discrete |
| warehouse | rware | robots bring shelves; discrete, sparse |
| particles | mpe2 | the multi-agent particle environments; continuous or discrete |
| vmas | vmas | two-dimensional physics in torch; continuous |
| parallel | - | any PettingZoo parallel environment: `module:function` that makes one |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, EnvLost, boundary, unknown
from evolvent.trajectory import Task
from evolvent.worlds.extras.wrapped import Extra
from evolvent.worlds.panel import check_names
from evolvent.worlds.teams.base import Optimum
from evolvent.worlds.teams.parallel import Parallel, ParallelRow, Row
from evolvent.worlds.teams.robots import Robot, RobotRow
from evolvent.worlds.teams.rows import LocalRows, RowHost, RowTeam

__all__ = ["MAKERS", "ForeignWorld", "TupleParallel", "make_row"]


_NO_LIMIT = 10**9  # of a package's own steps: the horizon is the world's, and cuts instead of terminating


def _extra(distribution: str, feature: str) -> Extra:
    return Extra("marl", distribution, feature)


class TupleParallel:
    """An environment whose observations, actions and rewards are sequences by agent, as a parallel environment.

    Args:
        env: with `observation_space` and `action_space` that are tuples by agent, and Gymnasium's reset and step.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.possible_agents = [f"agent_{at}" for at in range(len(env.action_space))]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._env.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """See `Parallel`."""
        observations, _ = self._env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return dict(zip(self.agents, observations, strict=True)), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """See `Parallel`."""
        names = self.possible_agents
        observations, rewards, terminated, truncated, info = self._env.step([actions[name] for name in names])
        ended, cut = bool(np.all(terminated)), bool(np.all(truncated))
        self.agents = [] if ended or cut else list(names)
        return (
            dict(zip(names, observations, strict=True)),
            dict(zip(names, rewards, strict=True)),
            dict.fromkeys(names, ended),
            dict.fromkeys(names, cut),
            dict.fromkeys(names, info),
        )

    def close(self) -> None:
        """See `Parallel`."""
        self._env.close()


class _Foraging:
    """Level-based foraging, in which places of the last episode would keep agents of the next from beginning there."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.step, self.close = env.step, env.close

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for player in self._env.players:
            player.position = None
        return self._env.reset(seed=seed, options=options)


class _Vmas:
    """One environment of VMAS: lists of torch tensors with a leading axis of 1. Its own batches share one random state,
    so that an episode among others is not the episode alone; they are not used."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], Any]:
        return [own[0].numpy() for own in self._env.reset(seed=seed)], {}

    def step(self, actions: Sequence[Any]) -> tuple[Any, ...]:
        torch = import_module("torch")
        told = [torch.as_tensor(np.asarray(own, dtype=np.float32)).reshape(1, -1) for own in actions]
        seen, paid, ended, cut, _ = self._env.step(told)
        return [own[0].numpy() for own in seen], [float(own[0]) for own in paid], bool(ended[0]), bool(cut[0]), {}

    def close(self) -> None:
        """VMAS holds no more than memory."""


def _mamujoco(*, scenario: str = "HalfCheetah", parts: str = "6x1", sees: int | None = None) -> Parallel:
    """`sees`: how many joints away an agent sees (`agent_obsk`); None: the whole robot, as in MAT's experiments."""
    made = _extra("gymnasium-robotics", "multi-agent MuJoCo").module("gymnasium_robotics").mamujoco_v1
    env: Parallel = made.parallel_env(scenario, parts, agent_obsk=sees or 0)
    return env if sees is not None else Robot(env)


def _foraging(*, size: int = 8, agents: int = 2, food: int = 2, sight: int = 8, cooperate: bool = True) -> Parallel:
    foraging = _extra("lbforaging", "level-based foraging").module("lbforaging.foraging")
    return TupleParallel(
        _Foraging(
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


def _warehouse(
    *, columns: int = 3, rows: int = 1, height: int = 8, agents: int = 2, requests: int | None = None
) -> Parallel:
    rware = _extra("rware", "the robotic warehouse").module("rware.warehouse")
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


def _particles(*, scenario: str = "simple_spread_v3", agents: int | None = 3, continuous: bool = True) -> Parallel:
    module = _extra("mpe2", "the particle environments").module(f"mpe2.{scenario}")
    size = {} if agents is None else {"N": agents}
    made: Parallel = module.parallel_env(max_cycles=_NO_LIMIT, continuous_actions=continuous, **size)
    return made


def _vmas(*, scenario: str = "balance", agents: int = 3) -> Parallel:
    vmas = _extra("vmas", "VMAS").module("vmas")
    made = vmas.make_env(
        scenario,
        num_envs=1,
        continuous_actions=True,
        max_steps=None,
        terminated_truncated=True,
        clamp_actions=True,
        n_agents=agents,
    )
    return TupleParallel(_Vmas(made))


def _parallel(*, make: str, arguments: Mapping[str, Any] | None = None) -> Parallel:
    module, _, name = make.partition(":")
    with boundary(ConfigError, "no function that makes an environment", name=make):
        made: Parallel = getattr(import_module(module), name)(**(arguments or {}))
    return made


MAKERS: Mapping[str, tuple[Callable[..., Parallel], Mapping[str, Any]]] = {
    "mamujoco": (_mamujoco, {"identity": True}),
    "foraging": (_foraging, {"share": "sum"}),
    "warehouse": (_warehouse, {"share": "mean"}),
    "particles": (_particles, {"share": "mean"}),
    "vmas": (_vmas, {"share": "mean"}),
    "parallel": (_parallel, {"share": "mean"}),
}
_OF_ROW = ("horizon", "share", "identity", "disabled", "success", "masked")


def make_row(task: Task) -> Row:
    """The environment of a task of `ForeignWorld`: what worker processes are told to make.

    Raises:
        ConfigError: no such maker, or settings that it does not have. MissingExtra: its package is not installed.
        EnvLost: the package refused.
    """
    spec = dict(task.spec)
    maker = str(spec.get("maker"))
    if maker not in MAKERS:
        raise ConfigError([unknown("maker of teams", maker, MAKERS)])
    make, usual = MAKERS[maker]
    row = {name: spec["row"][name] for name in _OF_ROW if name in spec["row"]}
    with boundary(EnvLost, f"{maker} cannot be made", settings=spec["settings"]):
        env = make(**spec["settings"])
    if isinstance(env, Robot) and set(row) <= {"horizon", "identity", "disabled"}:
        return RobotRow(env, **{**usual, **row})
    return ParallelRow(env, **{**usual, **row})


class ForeignWorld:
    """A maker with its settings as a world: one task for each split, so that no two splits share a seed.

    Args:
        maker: a name of `MAKERS`.
        horizon: steps of an episode.
        settings: of the maker (JSON values), such as `{"scenario": "Ant", "parts": "4x2"}`.
        row: of `ParallelRow`: share, identity, disabled, success, masked.
    Raises:
        ConfigError: no such maker, or settings that it does not have; all at once.
    """

    version = "1"
    tiers = ("seen",)

    def __init__(
        self,
        maker: str,
        *,
        horizon: int,
        settings: Mapping[str, Any] | None = None,
        row: Mapping[str, Any] | None = None,
    ) -> None:
        wrong = [unknown("setting of a row", name, _OF_ROW) for name in row or {} if name not in _OF_ROW]
        if maker in MAKERS:
            known = signature(MAKERS[maker][0]).parameters
            wrong += [unknown(f"setting of {maker}", name, known) for name in settings or {} if name not in known]
        else:
            wrong.append(unknown("maker of teams", maker, MAKERS))
        if wrong:
            raise ConfigError(wrong)
        self.name, self.maker, self.horizon = f"team_{maker}", maker, horizon
        self._settings, self._row = dict(settings or {}), {**(row or {}), "horizon": horizon}

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """One task: samples are its seeds."""
        check_names(split, tier, self.tiers)
        return (self.task(split=split),)

    def task(self, *, split: str = "train", row: Mapping[str, Any] | None = None, **settings: Any) -> Task:
        """A task with settings changed, such as `task(row={"disabled": [2]})`."""
        spec = {
            "maker": self.maker,
            "settings": {**self._settings, **settings},
            "row": {**self._row, **(row or {})},
            "split": split,
        }
        return Task(self.name, self.version, spec, self.maker, "seen", split)

    def batch(self, tasks: Sequence[Task], size: int, *, host: RowHost | None = None) -> RowTeam:
        """E rows, in this process or where `host` keeps them.

        Raises:
            ConfigError, MissingExtra, EnvLost: as `make_row`.
        """
        if not tasks:
            raise ConfigError("a batch of no tasks", expected="1 or more")
        one = make_row(tasks[0])
        spec = one.spec
        one.close()
        return RowTeam(spec, tasks, size, host=host or LocalRows(make_row))

    def optimum(self, task: Task) -> Optimum | None:
        """Not known."""
        return None

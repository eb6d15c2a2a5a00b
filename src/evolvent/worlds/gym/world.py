"""An environment of Gymnasium as a world: observations told as text, actions read from text, seeds as tasks.

A task is a seed of `reset`; the hash of a task deals it to train, dev or test. Episodes fork by replay: a snapshot is
the list of actions, which is exact where the environment repeats itself under one seed. A restored episode whose
observation differs is refused.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType, ModuleType
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from evolvent.errors import (
    ConfigError,
    EnvLost,
    EvolventError,
    InvalidAction,
    Problem,
    boundary,
    unknown_name_problem,
    user_boundary,
)
from evolvent.trajectory import Json, JsonObject, Score, Task
from evolvent.worlds.base import Info, Reply, Snapshot, check_snapshot, check_task
from evolvent.worlds.extras.wrapped import Extra, WrappedEnv, WrappedWorld, make_candidate, read_number, widen_sizes
from evolvent.worlds.gym.spaces import ActionText, ObservationText, split_words
from evolvent.worlds.panel import Candidate, Sizes
from evolvent.worlds.teams.parallel import ForeignEnv

__all__ = ["GYMNASIUM", "GymnasiumEnv", "GymnasiumWorld", "open_gymnasium_world", "unpack_reset", "unpack_step"]

GYMNASIUM = Extra("gymnasium", "gymnasium", "an environment of Gymnasium")
_DEFAULT_HORIZON = 1000  # steps of an episode, where the environment sets no limit
_MAX_DECIMALS = 9
_NOT_AN_ACTION = "That is not an action."
_MARKED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m")  # a colored text of a picture, which is put in brackets
_log = logging.getLogger(__name__)


_LUNAR = ("x", "y", "horizontal velocity", "vertical velocity", "angle", "angular velocity", "left leg", "right leg")

_OBSERVATION_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CartPole": ("cart position", "cart velocity", "pole angle", "pole velocity"),
        "MountainCar": ("position", "velocity"),
        "MountainCarContinuous": ("position", "velocity"),
        "Pendulum": ("x", "y", "angular velocity"),
        "Acrobot": ("cosine 1", "sine 1", "cosine 2", "sine 2", "velocity 1", "velocity 2"),
        "LunarLander": _LUNAR,
        "LunarLanderContinuous": _LUNAR,
        "Blackjack": ("your sum", "dealer card", "usable ace"),
        "FrozenLake": ("square",),
        "FrozenLake8x8": ("square",),
        "CliffWalking": ("square",),
        "CliffWalkingSlippery": ("square",),
        "Taxi": ("state",),
    }
)
"""Names of the numbers of an observation."""

_ACTION_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CartPole": ("left", "right"),
        "MountainCar": ("left", "none", "right"),
        "Acrobot": ("negative", "none", "positive"),
        "LunarLander": ("none", "left engine", "main engine", "right engine"),
        "Blackjack": ("stick", "hit"),
        "FrozenLake": ("left", "down", "right", "up"),
        "FrozenLake8x8": ("left", "down", "right", "up"),
        "CliffWalking": ("up", "right", "down", "left"),
        "CliffWalkingSlippery": ("up", "right", "down", "left"),
        "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    }
)
"""Names of the actions of a discrete space, in their order."""


class GymnasiumWorld(WrappedWorld):
    """A Gymnasium environment.

    The success of an episode is what its last info says (`is_success` or `success`). Otherwise its return must reach
    `success_at`: the environment's reward threshold, or, where it has none, any return above 0.

    Args:
        env: an id such as "CartPole-v1" or "module:MyEnv-v0"; or a class or function that creates an environment.
        settings: keyword arguments of the environment, JSON values.
        horizon: maximum steps of an episode; None: the environment's own limit, or 1,000.
        success_at: the return from which an episode counts as a success; None: see above.
        decimals: digits after the decimal point of told numbers.
        observations: names of the numbers of an observation; None: those known of Gymnasium's own environments.
        actions: names of the actions of a Discrete space; None: those that the environment or Gymnasium names.
        render: whether an observation also holds the state drawn as text, for environments that draw it ("ansi").
        sizes: the panel sizes.
    Raises:
        ConfigError: an unknown id, settings that the environment refuses, or spaces that cannot be told as text.
        MissingExtra: Gymnasium is not installed.

    >>> world = GymnasiumWorld("CartPole-v1")
    >>> env = world.make(world.tasks("test", "seen")[0])
    >>> observation, info = env.reset()
    >>> observation.startswith("cart position "), info["admissible"]
    (True, ['left', 'right'])
    """

    def __init__(
        self,
        env: str | Callable[..., ForeignEnv],
        settings: JsonObject | None = None,
        *,
        horizon: int | None = None,
        success_at: float | None = None,
        decimals: int = 3,
        observations: Sequence[str] | None = None,
        actions: Sequence[str] | None = None,
        render: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        self.env_name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        self.settings = dict(settings or {})
        query = "&".join(f"{key}={_format_setting(value)}" for key, value in sorted(self.settings.items()))
        self.name = f"gymnasium:{self.env_name}{'?' if query else ''}{query}"
        _check_options(self.name, horizon, decimals)
        self._source, self._limit, self.is_drawn, self.can_draw = env, horizon, render, False
        probe = self.open_env()
        try:
            spec, self.observation_space, self.action_space = probe.spec, probe.observation_space, probe.action_space
            self.can_draw = "ansi" in (probe.metadata or {}).get("render_modes", ()) and isinstance(env, str)
            known_actions = _find_action_names(probe, self._short_name)
        finally:
            _close_env(probe, self.name)
        if render and not self.can_draw:
            raise ConfigError([Problem(self.name, "does not draw its state as text", "leave out render")])
        self.horizon = horizon or getattr(spec, "max_episode_steps", None) or _DEFAULT_HORIZON
        threshold = getattr(spec, "reward_threshold", None)
        self.success_at = success_at if success_at is not None else None if threshold is None else float(threshold)
        self.reward_range = (0.0, self.success_at if self.success_at is not None and self.success_at > 0 else 1.0)
        names = _OBSERVATION_NAMES.get(self._short_name, ()) if observations is None else observations
        with _named_errors(self.name):
            self.observation_text = ObservationText(self.observation_space, names, decimals=decimals)
            self.action_text = ActionText(self.action_space, tuple(known_actions if actions is None else actions))
        self.instructions = f"You act in {self.env_name}. {self.action_text.describe()}"
        super().__init__(GYMNASIUM, sizes=widen_sizes(sizes, 1))

    @property
    def _short_name(self) -> str:
        return self.env_name.rpartition(":")[2].rpartition("/")[2].rpartition("-v")[0] or self.env_name

    def open_env(self) -> ForeignEnv:
        """Creates an environment, which the caller closes.

        Raises:
            ConfigError: an unknown id, or settings that the environment refuses. MissingExtra: a missing package.
        """
        gymnasium = GYMNASIUM.load_module("gymnasium")
        with _creation_errors(self.name, self.env_name, gymnasium):
            if not isinstance(self._source, str):
                env: ForeignEnv = self._source(**self.settings)
                return env if self._limit is None else gymnasium.wrappers.TimeLimit(env, self._limit)
            options: dict[str, Any] = {"disable_env_checker": True, **self.settings}
            if self._limit is not None:
                options["max_episode_steps"] = self._limit
            if self.can_draw and "render_mode" not in options:
                options["render_mode"] = "ansi"
            packaged_env: ForeignEnv = gymnasium.make(self._source, **options)
        return packaged_env

    def describe(self) -> str:
        """Returns a line with the seeds of each split and what a success is."""
        counts = ", ".join(f"{len(self.tasks(split, 'seen'))} {split}" for split in ("train", "dev", "test"))
        success_text = "a return above 0" if self.success_at is None else f"a return of at least {self.success_at:g}"
        return f"{self.name}: {counts} seeds; at most {self.horizon} steps; success is {success_text}"

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for seed in count():
            yield make_candidate({"env": self.env_name, "seed": seed, "settings": self.settings}, self.env_name)

    def _open_session(self, task: Task) -> _GymnasiumSession:
        seed = read_number({"seed": task.spec.get("seed", -1)}, "seed", names=("seed",))
        return _GymnasiumSession(self, seed)

    def make(self, task: Task) -> GymnasiumEnv:
        """Creates an Env for one task; the environment is created at its first reset."""
        check_task(self, task)
        return GymnasiumEnv(task, self._open_session(task), player_name=self.name)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = its return; unit = the part of `success_at` that it reached, within 0 and 1."""
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        raw = math.fsum(known_rewards)
        stated = next((info[key] for key in ("is_success", "success") if key in info), None)
        success = self.reaches_success(raw) if stated is None else bool(stated)
        is_graded = self.success_at is not None and self.success_at > 0
        unit = min(1.0, max(0.0, raw / self.success_at)) if is_graded and self.success_at else float(success)
        return Score(raw, unit, success)

    def reaches_success(self, episode_return: float) -> bool:
        """Returns whether a return is a success."""
        return episode_return > 0 if self.success_at is None else episode_return >= self.success_at - 1e-9

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word of observations and actions; None where they hold open texts."""
        observation_words, action_words = self.observation_text.words(), self.action_text.words()
        if observation_words is None or action_words is None or self.is_drawn:
            return None
        fixed = f"{_NOT_AN_ACTION} {self.action_text.describe()}"
        return sorted({*observation_words, *action_words, *split_words(fixed)})


@dataclass(frozen=True, slots=True)
class _ReplayedSnapshot(Snapshot[tuple[str, ...]]):
    """A snapshot that also holds the last observation, which a replay must repeat."""

    observation: str


class GymnasiumEnv(WrappedEnv):
    """An episode of an environment. It forks by replaying its actions under the same seed."""

    def __init__(self, task: Task, session: _GymnasiumSession, *, player_name: str) -> None:
        super().__init__(task, session, player_name=player_name)
        self._episode = session

    def snapshot(self) -> object:
        """Returns a snapshot, which stays valid whatever the Env does afterwards."""
        return _ReplayedSnapshot(self._task.id, self._running, self._state, self._episode.observation)

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises EnvLost where the environment does not repeat itself."""
        snapshot = check_snapshot(value, _ReplayedSnapshot, self._task)
        super().restore(snapshot)
        if (snapshot.running or snapshot.state) and self._episode.observation != snapshot.observation:
            raise EnvLost(
                f"{self._task.world} does not repeat itself: the same seed and actions gave another observation",
                hint="search and reverse curricula need an environment that draws only from its np_random",
            )


class _GymnasiumSession:
    """An episode of an environment, which is created at the first reset and used for all others."""

    def __init__(self, world: GymnasiumWorld, seed: int) -> None:
        self._world, self._seed = world, seed
        self._env: ForeignEnv | None = None
        self._info: dict[str, object] = {}
        self.observation = ""

    def begin(self) -> tuple[str, Info]:
        if self._env is None:
            self._env = self._world.open_env()
        with user_boundary(EnvLost, f"{self._world.name} failed in reset"):
            value, info = unpack_reset(self._env.reset(seed=self._seed), self._world.name)
            self.observation = self._tell(value)
        return self.observation, self._make_info(info)

    def act(self, action: str) -> Reply:
        if self._env is None:
            raise EnvLost(f"{self._world.name} was not reset")
        try:
            env_action = self._world.action_text.parse(action)
        except InvalidAction:
            text = f"{_NOT_AN_ACTION} {self._world.action_text.describe()}\n{self.observation}"
            return text, 0.0, False, False, {**self._info, "invalid": True}
        with user_boundary(EnvLost, f"{self._world.name} failed in step"):
            value, number, terminated, truncated, info = unpack_step(self._env.step(env_action), self._world.name)
            self.observation = self._tell(value)
        is_cut = bool(truncated) and not terminated
        return self.observation, number, bool(terminated), is_cut, self._make_info(info)

    def _tell(self, value: object) -> str:
        text = self._world.observation_text.tell(value)
        picture = self._draw() if self._world.is_drawn else ""
        return f"{picture}\n{text}" if picture else text

    def _draw(self) -> str:
        picture = self._env.render() if self._env is not None and self._world.can_draw else ""
        return _MARKED.sub(r"[\1]", picture).strip("\n") if isinstance(picture, str) else ""

    def _make_info(self, info: Mapping[str, Any]) -> dict[str, object]:
        info_fields: dict[str, object] = {}
        listed = self._world.action_text.listed
        if listed:
            mask = np.asarray(info.get("action_mask", ()))
            is_mask = mask.shape == (len(listed),) and bool(mask.any())
            info_fields["admissible"] = [name for index, name in enumerate(listed) if not is_mask or mask[index]]
        info_fields |= {key: bool(info[key]) for key in ("is_success", "success") if key in info}
        picture = self._draw()
        self._info = {**info_fields, "image": picture} if picture else info_fields
        return dict(self._info)

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            _close_env(env, self._world.name)


def unpack_reset(result: object, world_name: str) -> tuple[object, Mapping[str, object]]:
    """Splits what `reset` returned into (observation, info).

    Raises:
        EnvLost: it is something else, such as the bare observation of Gym's older interface.
    """
    if isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Mapping):
        return result[0], result[1]
    raise EnvLost(
        f"reset of {world_name} returned {_describe_result(result)}",
        expected="(observation, info), with a dict as info",
        hint="return both, as Gymnasium's interface says",
    )


def unpack_step(result: object, world_name: str) -> tuple[object, float, object, object, Mapping[str, object]]:
    """Splits what `step` returned into (observation, reward, terminated, truncated, info), with a finite reward.

    Raises:
        EnvLost: it is something else, such as the four values of Gym's older interface; or the reward is not finite.
    """
    if not (isinstance(result, tuple | list) and len(result) == 5 and isinstance(result[4], Mapping)):
        raise EnvLost(
            f"step of {world_name} returned {_describe_result(result)}",
            expected="(observation, reward, terminated, truncated, info), with a dict as info",
            hint="return all five, as Gymnasium's interface says",
        )
    value, reward, terminated, truncated, info = result
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise EnvLost(f"{world_name} gave a reward that is not a number", value=repr(reward)) from None
    if not math.isfinite(number):
        raise EnvLost(f"{world_name} gave a reward that is not finite", value=number)
    return value, number, terminated, truncated, info


def _describe_result(result: object) -> str:
    if isinstance(result, tuple | list):
        return (
            f"a {type(result).__name__} of {len(result)} values ({', '.join(type(part).__name__ for part in result)})"
        )
    return f"one value ({type(result).__name__})"


def open_gymnasium_world(option: str) -> GymnasiumWorld:
    """Opens the world of `ID?key=value&...`: keys of the world (horizon, success_at, decimals, observations, actions,
    render), and keyword arguments of the environment as JSON values.

    Raises:
        ConfigError: no id, or a value that does not fit; see also `GymnasiumWorld`.

    >>> open_gymnasium_world("Pendulum-v1?horizon=50&g=9.8").horizon
    50
    """
    env_id, _, query = option.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    if not env_id:
        raise ConfigError([Problem("gymnasium", "needs the id of an environment", "for example gymnasium:CartPole-v1")])
    problems = []
    options: dict[str, Any] = {}
    readers: Mapping[str, Callable[[str], object]] = {
        "horizon": int,
        "decimals": int,
        "success_at": float,
        "render": lambda text: text.lower() in ("1", "true", "ansi"),
        "observations": lambda text: [name.strip() for name in text.split(",")],
        "actions": lambda text: [name.strip() for name in text.split(",")],
    }
    for key, text in pairs.items():
        if key in readers:
            try:
                options[key] = readers[key](text)
            except ValueError:
                problems.append(Problem(f"gymnasium:{env_id}", f"{key} is not a number: got {text!r}"))
    if problems:
        raise ConfigError(problems)
    settings = {key: _parse_setting(text) for key, text in pairs.items() if key not in readers}
    return GymnasiumWorld(env_id, settings, **options)


def _check_options(name: str, horizon: int | None, decimals: int) -> None:
    problems = []
    if horizon is not None and horizon < 1:
        problems.append(Problem(name, f"got a horizon of {horizon} steps, expected 1 or more"))
    if not 0 <= decimals <= _MAX_DECIMALS:
        problems.append(Problem(name, f"got {decimals} decimals, expected 0 to {_MAX_DECIMALS}"))
    if problems:
        raise ConfigError(problems)


def _parse_setting(text: str) -> Json:
    """Parses a JSON value, or one of Python's words for it; other texts are returned unchanged."""
    constants: Mapping[str, Json] = {"True": True, "False": False, "None": None}
    if text in constants:
        return constants[text]
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def _format_setting(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Puts the world's name before errors about its spaces."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{name}: {error.what}", value=error.value, expected=error.expected, hint=error.hint
        ) from error


@contextmanager
def _creation_errors(name: str, env_id: str, gymnasium: ModuleType) -> Iterator[None]:
    """Raises errors of creating an environment as ConfigError, an unknown id with the nearest ids."""
    try:
        with user_boundary(ConfigError, f"{name} cannot be made"):
            yield
    except ConfigError as error:
        if isinstance(error.__cause__, gymnasium.error.UnregisteredEnv):
            problem = unknown_name_problem("environment", env_id, gymnasium.registry, location="gymnasium")
            if "did you mean" not in problem.hint:
                hint = "one of another package is written gymnasium:MODULE:ID; gymnasium.pprint_registry() lists all"
                problem = replace(problem, hint=hint)
            raise ConfigError([problem]) from error
        raise


def _close_env(env: ForeignEnv, name: str) -> None:
    """Closes an environment; an error is logged, because nobody can act on it."""
    try:
        with boundary(EnvLost, f"{name} failed in close"):
            env.close()
    except EvolventError as error:
        _log.warning("%s", error)


def _find_action_names(env: ForeignEnv, short_name: str) -> Sequence[str]:
    """Returns the names of discrete actions: an enumeration `actions` of the environment, as MiniGrid has, or those
    known of Gymnasium's own environments.
    """
    actions = getattr(env.unwrapped, "actions", None)
    size = getattr(env.action_space, "n", None)
    if isinstance(actions, type) and issubclass(actions, enum.IntEnum) and size is not None:
        names = {int(action): action.name for action in actions}
        if set(range(int(size))) <= set(names):
            return [names[index] for index in range(int(size))]
    action_names = _ACTION_NAMES.get(short_name, ())
    return action_names if len(action_names) == size else ()

"""One environment of a search: restored to a snapshot, stepped, and stored, at once or off the driver's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evolvent.engine.asks import Answer, Ask, BlockingCall, RoutedAsk
from evolvent.errors import ConfigError, EnvLost, StepTimeout, boundary
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import DeferredClose, Env, Forkable, Info, Limits, World

__all__ = ["EnvMoment", "EnvSession"]


@dataclass(frozen=True, slots=True)
class EnvMoment:
    """A moment of an environment: its output, and a snapshot to restore it; a snapshot of None: the episode is over."""

    observation: Value
    info: Info
    snapshot: object
    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False


Stepping = Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], EnvMoment]


class EnvSession:
    """One Env at a time for all moments of a search; an Env that hung is abandoned and replaced.

    Attributes:
        steps: environment steps so far.
    """

    def __init__(self, world: World, task: Task, limits: Limits) -> None:
        self._world, self._task, self._limits = world, task, limits
        self._held: DeferredClose | None = None
        self._turn = 0  # which Env: one that comes late, when it was given up, is closed
        self.steps = 0

    def begin(self, seed: int) -> Stepping:
        """Creates the environment and begins the episode.

        Raises:
            ConfigError: an Env that cannot be forked. EnvLost, StepTimeout: it failed.
        """
        return (yield from self._call_env(partial(_reset, seed=seed), "reset", self._limits.reset_s))

    def step(self, snapshot: object, action: Value) -> Stepping:
        """Restores a moment and steps once. Raises EnvLost or StepTimeout where that fails."""
        self.steps += 1
        call = partial(_restore_and_step, snapshot=snapshot, action=action)
        return (yield from self._call_env(call, "step", self._limits.step_s))

    def end(self) -> None:
        """Closes the environment, or leaves that to the call that still runs."""
        env_holder, self._held = self._held, None
        self._turn += 1
        if env_holder is not None:
            env_holder.end()

    def _call_env(self, call: Callable[[Env], EnvMoment], operation: str, timeout_s: float) -> Stepping:
        with boundary(EnvLost, f"world {self._world.name!r} failed in {operation}"):
            if not self._world.run_in_thread:
                return self._run(call, self._turn)
            try:
                (answer,) = yield (BlockingCall(partial(self._run, call, self._turn), timeout_s),)
            except StepTimeout:
                self.end()
                raise
            moment: EnvMoment = answer
            return moment

    def _run(self, call: Callable[[Env], EnvMoment], turn: int) -> EnvMoment:
        """Runs a call on the Env, which is created where there is none."""
        env_holder = self._held
        if env_holder is None or turn != self._turn:
            env_holder = DeferredClose(self._world.name, self._world.make(self._task))
            if turn != self._turn:
                env_holder.end()
                raise EnvLost("an environment was made too late", value=self._world.name)
            self._held = env_holder
        env = env_holder.env
        if env is None:
            raise EnvLost("an environment is gone", value=self._world.name)
        return env_holder.run(partial(call, env))


def _reset(env: Env, *, seed: int) -> EnvMoment:
    if not isinstance(env, Forkable):
        raise ConfigError(
            "a search needs environments that can be forked",
            value=type(env).__name__,
            expected="an Env with snapshot() and restore()",
        )
    observation, info = env.reset(seed=seed)
    _check_output(observation, info)
    return EnvMoment(observation, info, env.snapshot())


def _restore_and_step(env: Env, *, snapshot: object, action: Value) -> EnvMoment:
    if not isinstance(env, Forkable):
        raise EnvLost("an environment that can no longer be forked", value=type(env).__name__)
    env.restore(snapshot)
    observation, reward, terminated, truncated, info = env.step(action)
    _check_output(observation, info)
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
    over = bool(terminated or truncated)
    return EnvMoment(observation, info, None if over else env.snapshot(), reward, bool(terminated), bool(truncated))


def _check_output(observation: object, info: object) -> None:
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost(
            "an observation that is no text or array, or an info that is no mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )

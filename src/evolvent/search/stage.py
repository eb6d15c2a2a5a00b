"""One environment of a search: brought back to a moment, stepped, and kept, at once or off the driver's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evolvent.engine.asks import Answer, Ask, To, Wait
from evolvent.errors import ConfigError, EnvLost, StepTimeout, boundary
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Env, Forkable, Info, World
from evolvent.worlds.deferred_close import Held, Limits

__all__ = ["Moved", "Stage"]


@dataclass(frozen=True, slots=True)
class Moved:
    """A moment of an environment: what it says there, and how to come back; a snapshot of None: the episode is over."""

    observation: Value
    info: Info
    snapshot: object
    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False


Moving = Generator[Sequence["Ask | To | Wait"], Sequence[Answer], Moved]


class Stage:
    """One Env at a time for all moments of a search; one that hung is left behind, and another takes its place.

    Attributes:
        steps: environment steps so far.
    """

    def __init__(self, world: World, task: Task, limits: Limits) -> None:
        self._world, self._task, self._limits = world, task, limits
        self._held: Held | None = None
        self._turn = 0  # which Env: one that comes late, when it was given up, is closed
        self.steps = 0

    def begin(self, seed: int) -> Moving:
        """Make the environment and begin the episode.

        Raises:
            ConfigError: an Env that cannot be forked. EnvLost, StepTimeout: it failed.
        """
        return (yield from self._called(partial(_begun, seed=seed), "reset", self._limits.reset_s))

    def step(self, snapshot: object, action: Value) -> Moving:
        """Back to a moment, and one step on. Raises EnvLost or StepTimeout where that fails."""
        self.steps += 1
        call = partial(_stepped, snapshot=snapshot, action=action)
        return (yield from self._called(call, "step", self._limits.step_s))

    def end(self) -> None:
        """Close the environment, or leave that to the call that still runs."""
        held, self._held = self._held, None
        self._turn += 1
        if held is not None:
            held.end()

    def _called(self, call: Callable[[Env], Moved], what: str, timeout_s: float) -> Moving:
        with boundary(EnvLost, f"world {self._world.name!r} failed in {what}"):
            if not self._world.blocking:
                return self._run(call, self._turn)
            try:
                (moved,) = yield (Wait(partial(self._run, call, self._turn), timeout_s),)
            except StepTimeout:
                self.end()
                raise
            found: Moved = moved
            return found

    def _run(self, call: Callable[[Env], Moved], turn: int) -> Moved:
        """A call on the Env, which is made where there is none."""
        held = self._held
        if held is None or turn != self._turn:
            held = Held(self._world.name, self._world.make(self._task))
            if turn != self._turn:
                held.end()
                raise EnvLost("an environment was made too late", value=self._world.name)
            self._held = held
        env = held.env
        if env is None:
            raise EnvLost("an environment is gone", value=self._world.name)
        return held.run(partial(call, env))


def _begun(env: Env, *, seed: int) -> Moved:
    if not isinstance(env, Forkable):
        raise ConfigError(
            "a search needs environments that can be forked",
            value=type(env).__name__,
            expected="an Env with snapshot() and restore()",
        )
    observation, info = env.reset(seed=seed)
    _check(observation, info)
    return Moved(observation, info, env.snapshot())


def _stepped(env: Env, *, snapshot: object, action: Value) -> Moved:
    if not isinstance(env, Forkable):
        raise EnvLost("an environment that can no longer be forked", value=type(env).__name__)
    env.restore(snapshot)
    observation, reward, terminated, truncated, info = env.step(action)
    _check(observation, info)
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
    over = bool(terminated or truncated)
    return Moved(observation, info, None if over else env.snapshot(), reward, bool(terminated), bool(truncated))


def _check(observation: object, info: object) -> None:
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost(
            "an observation that is no text or array, or an info that is no mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )

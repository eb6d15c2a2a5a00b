"""One episode as a work for the driver: an agent's mind and an environment take turns until one of them ends it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evolvent.agents.base import Agent
from evolvent.engine.asks import Answer, Ask, Wait, Work
from evolvent.errors import EnvLost, ErrorRecord, EvolventError, StepTimeout, boundary
from evolvent.trajectory import EndedBy, Start, Step, Task, Trajectory, Value, unscored
from evolvent.worlds.base import Env, Info, Reply, World

__all__ = ["Limits", "episode"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of one environment in seconds (blocking worlds only), and a horizon that replaces the world's."""

    reset_s: float = 60.0
    step_s: float = 60.0
    horizon: int | None = None


class _Stage:
    """The environment of one episode. It is closed once: at the end, or by a call that was still running then."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self._task = world, task
        self.env: Env | None = None
        self._lock = threading.Lock()
        self._running = self._over = False

    def make(self) -> Env:
        """Make the environment."""
        self.env = self.world.make(self._task)
        return self.env

    def run(self, call: Callable[[], Any]) -> Any:
        """A call that may hang, on a thread of its own: the episode may end before it does."""
        with self._lock:
            self._running = True
        try:
            return call()
        finally:
            with self._lock:
                self._running = False
                late = self._over
            if late:
                self._close()

    def end(self) -> None:
        """Close the environment, or leave that to the call that runs now; a second time does nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._running:
                return
        self._close()

    def _close(self) -> None:
        if self.env is None:
            return
        try:
            with boundary(EnvLost, f"world {self.world.name!r} failed in close"):
                self.env.close()
        except EvolventError as problem:
            _log.warning("%s", problem)


def _call(
    stage: _Stage, call: Callable[[], Any], timeout_s: float, *, what: str, read: Callable[[Any], Any] | None = None
) -> Generator[Sequence[Ask | Wait], Sequence[Answer], Any]:
    """Run a call of an environment: at once, or off the driver's thread with a deadline where the world may block."""
    with boundary(EnvLost, f"world {stage.world.name!r} failed in {what}"):
        if stage.world.blocking:
            (answer,) = yield (Wait(partial(stage.run, call), timeout_s),)
        else:
            answer = call()
        return answer if read is None else read(answer)


def _seen(observation: object, info: object) -> tuple[Value, Info]:
    """An observation and info, if that is what they are."""
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost("an observation that is no text or array, or an info that is no mapping",
                      value=f"{type(observation).__name__}, {type(info).__name__}")  # fmt: skip
    return observation, info


def _reply(answer: Any) -> Reply:
    """The answer to a step, if it is one: a reward that is not finite could neither be stored nor averaged."""
    observation, reward, terminated, truncated, info = answer
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
    observation, info = _seen(observation, info)
    return observation, reward, bool(terminated), bool(truncated), info


def episode(world: World, start: Start, agent: Agent, *, name: str, seed: int, limits: Limits) -> Work[Trajectory]:
    """Play one episode; always ends in a trajectory, also when the world fails (then `error` is set, nothing scored).

    Args:
        name: the trajectory's id.
        seed: of this episode alone: the trajectory depends on neither order nor concurrency.
    """
    stage = _Stage(world, start.task)
    try:
        played = yield from _played(stage, start, agent, name=name, seed=seed, limits=limits)
        if world.blocking:
            try:
                yield (Wait(stage.end, limits.step_s),)
            except StepTimeout as problem:
                _log.warning("world %r did not close: %s", world.name, problem)
        return played
    finally:
        stage.end()


def _played(stage: _Stage, start: Start, agent: Agent, *, name: str, seed: int, limits: Limits) -> Work[Trajectory]:
    world = stage.world
    steps: list[Step] = []
    observation: Value = ""
    info: Info = {}
    marks: Mapping[str, Any] = {}
    ended: EndedBy = "horizon"
    error: ErrorRecord | None = None
    score = unscored()
    try:
        env = yield from _call(stage, stage.make, limits.reset_s, what="make")
        begin = partial(env.reset, seed=seed)
        observation, info = yield from _call(stage, begin, limits.reset_s, what="reset", read=lambda pair: _seen(*pair))
        mind = agent.begin(world, start.task, seed=seed)
        for _ in range(limits.horizon or world.horizon):
            decision = yield from mind.act(observation, info)
            if decision.ends is not None:
                ended, marks = decision.ends, decision.info
                break
            do = partial(env.step, decision.action)
            reply = yield from _call(stage, do, limits.step_s, what="step", read=_reply)
            seen, (observation, reward, terminated, truncated, info) = observation, reply
            noted = {**decision.info, "invalid": True} if info.get("invalid") else dict(decision.info)
            steps.append(Step(seen, decision.action, reward, decision.thought, decision.generations, None, noted))
            if terminated or truncated:
                ended = "world" if terminated else "horizon"
                break
        with boundary(EnvLost, f"world {world.name!r} failed in score"):
            score = world.score([step.reward for step in steps], info)
    except EvolventError as problem:
        ended, error = "error", ErrorRecord.of(problem, at_step=len(steps), retryable=isinstance(problem, StepTimeout))
    return Trajectory(
        name, start.task, tuple(steps), observation, ended, score, start.sample, start.branch, error, start.task.id,
        dict(marks),
    )  # fmt: skip

"""One episode as a work for the driver: an agent's mind and an environment take turns until one of them ends it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from evolvent.agents.base import Agent
from evolvent.engine.asks import Answer, Ask, Wait, Work
from evolvent.errors import EnvLost, ErrorRecord, EvolventError, StepTimeout, boundary
from evolvent.trajectory import EndedBy, Start, Step, Trajectory, Value, unscored
from evolvent.worlds.base import Info, World

__all__ = ["Limits", "episode"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of one environment in seconds (blocking worlds only), and a horizon that replaces the world's."""

    reset_s: float = 60.0
    step_s: float = 60.0
    horizon: int | None = None


def _call(
    world: World, call: Callable[[], Any], timeout_s: float, what: str
) -> Generator[Sequence[Ask | Wait], Sequence[Answer], Any]:
    """Run a call of an environment: at once, or off the driver's thread with a deadline where the world may block."""
    with boundary(EnvLost, f"world {world.name!r} failed in {what}"):
        if not world.blocking:
            return call()
        (answer,) = yield (Wait(call, timeout_s),)
        return answer


def episode(world: World, start: Start, agent: Agent, *, name: str, seed: int, limits: Limits) -> Work[Trajectory]:
    """Play one episode; always ends in a trajectory, also when the world fails (then `error` is set, nothing scored).

    Args:
        name: the trajectory's id.
        seed: of this episode alone: the trajectory depends on neither order nor concurrency.
    """
    steps: list[Step] = []
    observation: Value = ""
    info: Info = {}
    ended: EndedBy = "horizon"
    error: ErrorRecord | None = None
    env = None
    try:
        env = yield from _call(world, partial(world.make, start.task), limits.reset_s, "make")
        observation, info = yield from _call(world, partial(env.reset, seed=seed), limits.reset_s, "reset")
        mind = agent.begin(world, start.task, seed=seed)
        for _ in range(limits.horizon or world.horizon):
            decision = yield from mind.act(observation, info)
            if decision.ends is not None:
                ended = decision.ends
                break
            action = decision.action
            reply = yield from _call(world, partial(env.step, action), limits.step_s, "step")
            seen, (observation, reward, terminated, truncated, info) = observation, reply
            marks = dict(decision.info)
            if info.get("invalid"):
                marks["invalid"] = True
            steps.append(Step(seen, action, reward, decision.thought, decision.generations, None, marks))
            if terminated or truncated:
                ended = "world" if terminated else "horizon"
                break
    except EvolventError as problem:
        ended, error = "error", ErrorRecord.of(problem, at_step=len(steps), retryable=isinstance(problem, StepTimeout))
    finally:
        if env is not None and (error is None or error.kind != StepTimeout.__name__):  # a hung one would hang again
            with suppress(EnvLost), boundary(EnvLost, f"world {world.name!r} failed in close"):
                env.close()
    score = unscored() if error else world.score([step.reward for step in steps], info)
    return Trajectory(
        name, start.task, tuple(steps), observation, ended, score, start.sample, start.branch, error, start.task.id
    )

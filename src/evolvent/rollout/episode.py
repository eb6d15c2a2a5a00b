"""One episode as a work for the driver: an agent's mind and an environment take turns until one of them ends it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from evolvent.agents.base import Agent, Mind
from evolvent.engine.asks import Answer, Ask, Wait, Work
from evolvent.errors import EnvLost, ErrorRecord, EvolventError, StepTimeout, boundary
from evolvent.logs import in_episode
from evolvent.rollout.branches import Moment, Origins, check_replayed, resuming
from evolvent.trajectory import Branch, EndedBy, Start, Step, Task, Trajectory, Value, unscored
from evolvent.worlds.base import Env, Forkable, Info, Reply, World
from evolvent.worlds.deferred_close import Held, Limits

__all__ = ["Limits", "episode"]

_log = logging.getLogger(__name__)


class _Stage(Held):
    """The environment of one episode."""

    def __init__(self, world: World, task: Task) -> None:
        super().__init__(world.name)
        self.world, self._task = world, task

    def make(self) -> Env:
        """Make the environment."""
        self.env = self.world.make(self._task)
        return self.env


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
        raise EnvLost(
            "an observation that is no text or array, or an info that is no mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )
    return observation, info


def _reply(answer: Any) -> Reply:
    """The answer to a step, if it is one: a reward that is not finite could neither be stored nor averaged."""
    observation, reward, terminated, truncated, info = answer
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
    if isinstance(reward, np.generic):  # sums of these are rounded: an episode would be scored otherwise over a server
        reward = reward.item()
    observation, info = _seen(observation, info)
    return observation, reward, bool(terminated), bool(truncated), info


def episode(
    world: World, start: Start, agent: Agent, *, name: str, seed: int, limits: Limits, origins: Origins | None = None
) -> Work[Trajectory]:
    """Play one episode; always ends in a trajectory, also when the world fails (then `error` is set, nothing scored).

    A branch has its own steps alone. Its score is that of the whole episode: what the steps before it earned counts.

    Args:
        name: the trajectory's id.
        seed: of this episode alone: the trajectory depends on neither order nor concurrency.
        origins: what a branch leaves.
    """
    in_episode(name)
    stage = _Stage(world, start.task)
    opening = _Opening(stage, start, agent, seed, limits, origins or Origins())
    try:
        played = yield from _played(opening, name=name)
        if world.blocking:
            try:
                yield (Wait(stage.end, limits.step_s),)
            except StepTimeout as problem:
                _log.warning("world %r did not close: %s", world.name, problem)
        return played
    finally:
        stage.end()


@dataclass(frozen=True, slots=True)
class _Opening:
    """All that an episode begins with."""

    stage: _Stage
    start: Start
    agent: Agent
    seed: int
    limits: Limits
    origins: Origins

    @property
    def steps(self) -> int:
        """How many steps the episode may take: a branch those that its parent had left."""
        whole = self.limits.horizon or self.stage.world.horizon
        return whole if self.start.branch is None else max(1, whole - self.start.branch.step)


def _begun(opening: _Opening) -> Generator[Sequence[Ask | Wait], Sequence[Answer], tuple[Env, Mind, Moment]]:
    """The environment, the agent's mind, and the moment at which it begins to act."""
    stage, start, agent, seed = opening.stage, opening.start, opening.agent, opening.seed
    reset_s = opening.limits.reset_s
    env = yield from _call(stage, stage.make, reset_s, what="make")
    if start.branch is None:
        begin = partial(env.reset, seed=seed)
        first = yield from _call(stage, begin, reset_s, what="reset", read=lambda pair: _seen(*pair))
        return env, agent.begin(stage.world, start.task, seed=seed), Moment(*first)
    moment = yield from _reached(opening, env, start.branch)
    parent = opening.origins.parents[start.branch.parent]
    mind = resuming(agent).resume(stage.world, start.task, seed=seed, parent=parent, branch=start.branch)
    return env, mind, moment


def _reached(opening: _Opening, env: Env, branch: Branch) -> Generator[Sequence[Ask | Wait], Sequence[Answer], Moment]:
    """Bring the environment to a parent's step: from the nearest snapshot before it, or from the beginning."""
    stage, limits, origins = opening.stage, opening.limits, opening.origins
    parent, known = origins.parents[branch.parent], origins.moments(branch.parent)
    if known:
        at = min(branch.step, len(known) - 1)
        now = known[at]
        if isinstance(env, Forkable):
            yield from _call(stage, partial(env.restore, now.snapshot), limits.reset_s, what="restore")
            origins.restored += 1
    else:
        begin = partial(env.reset, seed=opening.seed)
        first = yield from _call(stage, begin, limits.reset_s, what="reset", read=lambda pair: _seen(*pair))
        at, now = 0, Moment(*first)
        check_replayed(parent, 0, now.observation, over=False)
        now = yield from _kept(opening, env, now, known, at)
    for step in parent.steps[at : branch.step]:
        do = partial(env.step, step.action)
        seen, reward, terminated, truncated, info = yield from _call(stage, do, limits.step_s, what="step", read=_reply)
        at, origins.replayed = at + 1, origins.replayed + 1
        check_replayed(parent, at, seen, over=terminated or truncated)
        now = yield from _kept(opening, env, Moment(seen, info, (*now.rewards, reward)), known, at)
    return now


def _kept(
    opening: _Opening, env: Env, now: Moment, known: list[Moment], at: int
) -> Generator[Sequence[Ask | Wait], Sequence[Answer], Moment]:
    """The moment, with a snapshot among the known ones where the Env can be forked."""
    if isinstance(env, Forkable) and len(known) == at:
        saved = yield from _call(opening.stage, env.snapshot, opening.limits.step_s, what="snapshot")
        now = replace(now, snapshot=saved)
        if len(known) == at:  # an Env that blocks lets another episode come here first
            known.append(now)
    return now


def _played(opening: _Opening, *, name: str) -> Work[Trajectory]:
    stage, start, limits = opening.stage, opening.start, opening.limits
    world = stage.world
    steps: list[Step] = []
    observation: Value = ""
    info: Info = {}
    marks: Mapping[str, Any] = {}
    ended: EndedBy = "horizon"
    error: ErrorRecord | None = None
    score = unscored()
    try:
        env, mind, first = yield from _begun(opening)
        observation, info = first.observation, first.info
        for _ in range(opening.steps):
            decision = yield from mind.act(observation, info)
            if decision.ends is not None:
                ended, marks = decision.ends, decision.info
                break
            do = partial(env.step, decision.action)
            reply = yield from _call(stage, do, limits.step_s, what="step", read=_reply)
            seen, (observation, reward, terminated, truncated, info) = observation, reply
            noted = {**decision.info, **_marks(info)}
            steps.append(Step(seen, decision.action, reward, decision.thought, decision.generations, None, noted))
            if terminated or truncated:
                ended = "world" if terminated else "horizon"
                break
        with boundary(EnvLost, f"world {world.name!r} failed in score"):
            score = world.score([*first.rewards, *(step.reward for step in steps)], info)
    except EvolventError as problem:
        ended, error = "error", ErrorRecord.of(problem, at_step=len(steps), retryable=isinstance(problem, StepTimeout))
    return Trajectory(
        name,
        start.task,
        tuple(steps),
        observation,
        ended,
        score,
        start.sample,
        start.branch,
        error,
        start.task.id,
        dict(marks),
    )


def _marks(info: Info) -> dict[str, Any]:
    """What an environment's info says about a step that its record keeps."""
    marks: dict[str, Any] = {"invalid": True} if info.get("invalid") else {}
    return marks | ({"answered": bool(info["answered"])} if "answered" in info else {})

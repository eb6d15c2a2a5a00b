"""One episode as a job for the driver: an agent's mind and an environment take turns until one of them ends it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from evolvent.agents.base import Agent, Mind
from evolvent.engine.asks import Answer, Ask, BlockingCall, Job
from evolvent.errors import EnvLost, ErrorRecord, EvolventError, StepTimeout, boundary
from evolvent.logs import set_episode
from evolvent.rollout.branches import BranchOrigins, BranchState, check_replayed, require_resuming
from evolvent.trajectory import Branch, EndedBy, Start, Step, Task, Trajectory, Value, unscored
from evolvent.worlds.base import Env, Forkable, Info, Reply, World
from evolvent.worlds.deferred_close import DeferredClose, Limits

__all__ = ["Limits", "play_episode"]

_log = logging.getLogger(__name__)


class _EnvSession(DeferredClose):
    """The environment of one episode."""

    def __init__(self, world: World, task: Task) -> None:
        super().__init__(world.name)
        self.world, self._task = world, task

    def make(self) -> Env:
        """Creates the environment."""
        self.env = self.world.make(self._task)
        return self.env


def _call_env(
    session: _EnvSession,
    call: Callable[[], Any],
    timeout_s: float,
    *,
    operation: str,
    parse: Callable[[Any], Any] | None = None,
) -> Generator[Sequence[Ask | BlockingCall], Sequence[Answer], Any]:
    """Runs a call of an environment: directly, or off the driver's thread with a deadline where the world may block."""
    with boundary(EnvLost, f"world {session.world.name!r} failed in {operation}"):
        if session.world.run_in_thread:
            (answer,) = yield (BlockingCall(partial(session.run, call), timeout_s),)
        else:
            answer = call()
        return answer if parse is None else parse(answer)


def _check_observation(observation: object, info: object) -> tuple[Value, Info]:
    """Checks the types of an observation and info, and returns them."""
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost(
            "an observation that is no text or array, or an info that is no mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )
    return observation, info


def _check_reply(answer: Any) -> Reply:
    """Checks the answer to a step; a reward that is not finite could neither be stored nor averaged."""
    observation, reward, terminated, truncated, info = answer
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
    if isinstance(reward, np.generic):  # sums of these are rounded: an episode would be scored otherwise over a server
        reward = reward.item()
    observation, info = _check_observation(observation, info)
    return observation, reward, bool(terminated), bool(truncated), info


def play_episode(
    world: World,
    start: Start,
    agent: Agent,
    *,
    name: str,
    seed: int,
    limits: Limits,
    origins: BranchOrigins | None = None,
) -> Job[Trajectory]:
    """Plays one episode; always ends in a trajectory, also when the world fails (then `error` is set, and there is
    no score).

    A branch has only its own steps. Its score is that of the whole episode: rewards of the steps before it count.

    Args:
        world: The world.
        start: The start.
        agent: The agent.
        name: Id of the trajectory.
        seed: Seed of this episode alone: the trajectory depends on neither order nor concurrency.
        limits: Deadlines and horizon of the environment.
        origins: Origins of branches.
    """
    set_episode(name)
    session = _EnvSession(world, start.task)
    opening = _EpisodeSetup(session, start, agent, seed, limits, origins or BranchOrigins())
    try:
        trajectory = yield from _play_steps(opening, name=name)
        if world.run_in_thread:
            try:
                yield (BlockingCall(session.end, limits.step_s),)
            except StepTimeout as problem:
                _log.warning("world %r did not close: %s", world.name, problem)
        return trajectory
    finally:
        session.end()


@dataclass(frozen=True, slots=True)
class _EpisodeSetup:
    """Everything that an episode starts with."""

    session: _EnvSession
    start: Start
    agent: Agent
    seed: int
    limits: Limits
    origins: BranchOrigins

    @property
    def max_steps(self) -> int:
        """Returns the maximum steps of the episode: for a branch the remaining steps of its parent."""
        horizon = self.limits.horizon or self.session.world.horizon
        return horizon if self.start.branch is None else max(1, horizon - self.start.branch.step)


def _start_episode(
    setup: _EpisodeSetup,
) -> Generator[Sequence[Ask | BlockingCall], Sequence[Answer], tuple[Env, Mind, BranchState]]:
    """Returns the environment, the agent's mind, and the state in which it starts to act."""
    session, start, agent, seed = setup.session, setup.start, setup.agent, setup.seed
    reset_s = setup.limits.reset_s
    env = yield from _call_env(session, session.make, reset_s, operation="make")
    if start.branch is None:
        begin = partial(env.reset, seed=seed)
        first = yield from _call_env(
            session, begin, reset_s, operation="reset", parse=lambda pair: _check_observation(*pair)
        )
        return env, agent.begin(session.world, start.task, seed=seed), BranchState(*first)
    moment = yield from _reach_step(setup, env, start.branch)
    parent = setup.origins.parents[start.branch.parent]
    mind = require_resuming(agent).resume(session.world, start.task, seed=seed, parent=parent, branch=start.branch)
    return env, mind, moment


def _reach_step(
    setup: _EpisodeSetup, env: Env, branch: Branch
) -> Generator[Sequence[Ask | BlockingCall], Sequence[Answer], BranchState]:
    """Runs the environment up to a parent's step: from the nearest snapshot before it, or from the beginning."""
    session, limits, origins = setup.session, setup.limits, setup.origins
    parent, known_states = origins.parents[branch.parent], origins.get_states(branch.parent)
    if known_states:
        step_number = min(branch.step, len(known_states) - 1)
        state = known_states[step_number]
        if isinstance(env, Forkable):
            yield from _call_env(session, partial(env.restore, state.snapshot), limits.reset_s, operation="restore")
            origins.restored += 1
    else:
        begin = partial(env.reset, seed=setup.seed)
        first = yield from _call_env(
            session, begin, limits.reset_s, operation="reset", parse=lambda pair: _check_observation(*pair)
        )
        step_number, state = 0, BranchState(*first)
        check_replayed(parent, 0, state.observation, is_over=False)
        state = yield from _save_state(setup, env, state, known_states, step_number)
    for step in parent.steps[step_number : branch.step]:
        do = partial(env.step, step.action)
        observation, reward, terminated, truncated, info = yield from _call_env(
            session, do, limits.step_s, operation="step", parse=_check_reply
        )
        step_number, origins.replayed = step_number + 1, origins.replayed + 1
        check_replayed(parent, step_number, observation, is_over=terminated or truncated)
        state = yield from _save_state(
            setup, env, BranchState(observation, info, (*state.rewards, reward)), known_states, step_number
        )
    return state


def _save_state(
    setup: _EpisodeSetup, env: Env, state: BranchState, known_states: list[BranchState], step_number: int
) -> Generator[Sequence[Ask | BlockingCall], Sequence[Answer], BranchState]:
    """Returns the state, with a snapshot among the known states where the Env can be forked."""
    if isinstance(env, Forkable) and len(known_states) == step_number:
        saved = yield from _call_env(setup.session, env.snapshot, setup.limits.step_s, operation="snapshot")
        state = replace(state, snapshot=saved)
        if len(known_states) == step_number:  # an Env that blocks lets another episode come here first
            known_states.append(state)
    return state


def _play_steps(setup: _EpisodeSetup, *, name: str) -> Job[Trajectory]:
    """Plays the steps of an episode and returns its trajectory."""
    session, start, limits = setup.session, setup.start, setup.limits
    world = session.world
    steps: list[Step] = []
    observation: Value = ""
    info: Info = {}
    marks: Mapping[str, Any] = {}
    ended_by: EndedBy = "horizon"
    error: ErrorRecord | None = None
    score = unscored()
    try:
        env, mind, first = yield from _start_episode(setup)
        observation, info = first.observation, first.info
        for _ in range(setup.max_steps):
            decision = yield from mind.act(observation, info)
            if decision.ends is not None:
                ended_by, marks = decision.ends, decision.info
                break
            do = partial(env.step, decision.action)
            reply = yield from _call_env(session, do, limits.step_s, operation="step", parse=_check_reply)
            previous_observation, (observation, reward, terminated, truncated, info) = observation, reply
            step_info = {**decision.info, **_recorded_info(info)}
            steps.append(
                Step(
                    previous_observation,
                    decision.action,
                    reward,
                    decision.thought,
                    decision.generations,
                    None,
                    step_info,
                )
            )
            if terminated or truncated:
                ended_by = "world" if terminated else "horizon"
                break
        with boundary(EnvLost, f"world {world.name!r} failed in score"):
            score = world.score([*first.rewards, *(step.reward for step in steps)], info)
    except EvolventError as problem:
        ended_by, error = (
            "error",
            ErrorRecord.of(problem, at_step=len(steps), retryable=isinstance(problem, StepTimeout)),
        )
    return Trajectory(
        name,
        start.task,
        tuple(steps),
        observation,
        ended_by,
        score,
        start.sample,
        start.branch,
        error,
        start.task.id,
        dict(marks),
    )


def _recorded_info(info: Info) -> dict[str, Any]:
    """Returns the parts of an environment's info that the record of a step keeps."""
    recorded: dict[str, Any] = {"invalid": True} if info.get("invalid") else {}
    return recorded | ({"answered": bool(info["answered"])} if "answered" in info else {})

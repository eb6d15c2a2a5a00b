"""One episode as a job for the driver: an agent's mind and an environment take turns until one of them ends it.

Branches: episodes that start in the middle of an earlier one, by `restore` or by replaying it.

A branch is (parent, step, token). Its episode stores its own steps only. The environment is brought to the
parent's `step`; the agent takes the parent's tokens up to there, and `token` tokens of the action, as its own
past (`agents.base.SupportsResume`). Reverse curricula start in the middle of demonstrations this way.

Collection: many episodes, many environments, one engine, no barrier. A free slot takes the next start at once.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from evolvent.agents.base import Agent, Mind, SupportsResume
from evolvent.engine.asks import Answer, Ask, BlockingCall, Engine, Job
from evolvent.engine.driver import run_jobs
from evolvent.errors import (
    ConfigError,
    EnvLost,
    ErrorRecord,
    EvolventError,
    Problem,
    StepTimeout,
    unknown_name_problem,
    user_boundary,
)
from evolvent.logs import set_episode
from evolvent.trajectory import (
    Branch,
    EndedBy,
    Start,
    Step,
    Task,
    Trajectory,
    Value,
    sample_seed,
    trajectory_name,
    unscored,
)
from evolvent.worlds.base import DeferredClose, Env, Forkable, Info, Limits, Reply, World, unwrap_number

__all__ = [
    "BranchOrigins",
    "BranchState",
    "BranchedStarts",
    "FailureCounts",
    "Limits",
    "check_branches",
    "check_replayed",
    "collect",
    "play_episode",
    "require_resuming",
    "trajectory_name",
]


_RECORDED_NOTES = ("problem", "rewards", "tool_problem", "metrics", "image")  # of worlds, as JSON values
_MAX_REASONS = 3  # that a warning names
_PLACE = re.compile(r" at \S+:\d+")  # of the user's code
_MAX_PARENTS = 1024  # parents whose snapshots are kept


@dataclass(frozen=True, slots=True)
class BranchState:
    """An environment before a step of a parent.

    Args:
        observation, info: Observation and info there.
        rewards: Rewards of the steps before.
        snapshot: Snapshot for `restore`; None where the Env cannot be forked.
    """

    observation: Value
    info: Info
    rewards: tuple[float | None, ...] = ()
    snapshot: object = None


@dataclass(eq=False)
class BranchOrigins:
    """The episodes that others branch from, and snapshots of the steps that were reached in them.

    Where an Env can be forked, each step of a parent is replayed once, however many episodes start after it.
    Replayed steps belong to no episode's environment steps: they are counted here.

    Args:
        parents: Episodes by id.
        max_parents: Maximum number of parents with snapshots; the least recently used are dropped.
    Attributes:
        replayed: Number of replayed steps of parents.
        restored: Number of restored snapshots.
    """

    parents: Mapping[str, Trajectory] = field(default_factory=dict)
    max_parents: int = _MAX_PARENTS
    replayed: int = 0
    restored: int = 0
    _moments: OrderedDict[str, list[BranchState]] = field(default_factory=OrderedDict)

    def get_states(self, parent: str) -> list[BranchState]:
        """Returns the known states of a parent, from its beginning without gaps. Appended states are kept."""
        states = self._moments.setdefault(parent, [])
        self._moments.move_to_end(parent)
        while len(self._moments) > self.max_parents:
            self._moments.popitem(last=False)
        return states


@dataclass(frozen=True, slots=True)
class BranchedStarts:
    """Starts together with the origins of branches."""

    starts: Sequence[Start]
    origins: BranchOrigins


@dataclass(eq=False)
class FailureCounts:
    """The number of episodes, and of those that could not be scored by reason.

    Reasons that differ in the value that they got are one reason; the first text stands for all of them.
    """

    episodes: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def record(self, trajectory: Trajectory) -> bool:
        """Counts an episode; returns whether it is the first that could not be scored for its reason."""
        self.episodes += 1
        failure = trajectory.failure
        if failure is None:
            return False
        reason = _reason_of(failure)
        self.examples.setdefault(reason, failure)
        self.by_reason[reason] += 1
        return self.by_reason[reason] == 1

    @property
    def num_unscored(self) -> int:
        """Returns the number of episodes that could not be scored."""
        return sum(self.by_reason.values())

    def has_reason_of(self, trajectory: Trajectory) -> bool:
        """Returns whether an episode failed for a reason that was recorded before."""
        return trajectory.failure is not None and _reason_of(trajectory.failure) in self.by_reason

    def describe(self) -> str:
        """Returns a sentence with the most common reasons; empty where every episode was scored."""
        if not self.by_reason:
            return ""
        reasons = [f"{count} x {self.examples[reason]}" for reason, count in self.by_reason.most_common(_MAX_REASONS)]
        others = len(self.by_reason) - len(reasons)
        total = f"{self.num_unscored} of {self.episodes} episodes could not be scored"
        action = ". Fix that line and start again" if any(map(_PLACE.search, reasons)) else ""
        return f"{total}: {'; '.join(reasons)}{f'; and {others} other reasons' if others else ''}{action}"


def _reason_of(failure: str) -> str:
    return re.split("[:;] got ", failure, maxsplit=1)[0]


def check_branches(starts: Sequence[Start], origins: BranchOrigins) -> None:
    """Raises an error for branches at which no episode can start.

    Raises:
        ConfigError: all of them, once for each branch.
    """
    branches = dict.fromkeys((start.task.id, start.branch) for start in starts if start.branch is not None)
    problems = [problem for task, branch in branches for problem in _find_problems(task, branch, origins.parents)]
    if problems:
        raise ConfigError(problems)


def _find_problems(task: str, branch: Branch, parents: Mapping[str, Trajectory]) -> list[Problem]:
    description, parent = (
        f"branch at step {branch.step}, token {branch.token} of {branch.parent!r}",
        parents.get(branch.parent),
    )
    if parent is None:
        return [Problem(description, "unknown parent trajectory", "pass the parent trajectories to `Origins`")]
    problems = []
    if parent.task.id != task:
        problems.append(
            Problem(
                description,
                f"task {parent.task.id} of the parent differs from task {task} of the start",
                "branch from the same task",
            )
        )
    if parent.branch is not None:
        problems.append(Problem(description, "the parent is a branch", "branch from a complete episode"))
    if not 0 <= branch.step < len(parent.steps) or branch.token < 0:
        problems.append(
            Problem(
                description,
                f"got a step beyond the {len(parent.steps)} steps of the parent",
                "branch at one of its steps",
            )
        )
    return problems


def check_replayed(parent: Trajectory, step: int, observation: Value, *, is_over: bool) -> None:
    """Raises an error where a replayed episode differs from its record.

    Args:
        step: the step that was reached. observation: what was seen there. is_over: whether the episode ended before it.
    Raises:
        EnvLost: names the parent and the step.
    """
    recorded = parent.steps[step].observation
    if is_over or not np.array_equal(observation, recorded):
        raise EnvLost(
            f"replay of {parent.id!r} differs at step {step}",
            value="its end" if is_over else observation,
            expected=recorded,
        )


def require_resuming(agent: Agent) -> SupportsResume:
    """Returns the agent, if it can start in the middle of an episode.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(agent, SupportsResume):
        raise ConfigError(
            "this agent cannot start in the middle of an episode",
            value=type(agent).__name__,
            expected="an agent with `resume`, such as LanguageAgent",
        )
    return agent


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
    with user_boundary(EnvLost, f"world {session.world.name!r} failed in {operation}"):
        if session.world.run_in_thread:
            try:
                (answer,) = yield (BlockingCall(partial(session.run, call), timeout_s),)
            except StepTimeout as error:
                hint = getattr(session.world, "timeout_hint", error.hint)
                message = f"world {session.world.name!r} did not answer before the deadline in {operation}"
                raise StepTimeout(message, value=error.value, hint=hint) from error
        else:
            answer = call()
        return answer if parse is None else parse(answer)


def _check_observation(observation: object, info: object) -> tuple[Value, Info]:
    """Checks the types of an observation and info, and returns them."""
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost(
            "the observation is not text or an array, or the info is not a mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )
    return observation, info


def _check_reply(answer: Any) -> Reply:
    """Checks the answer to a step; a reward that is not finite could neither be stored nor averaged."""
    observation, reward, terminated, truncated, info = answer
    reward = unwrap_number(reward)
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("reward is not finite", value=reward, expected="a number, or None for 'not scored'")
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
        with user_boundary(EnvLost, f"world {world.name!r} failed in score"):
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
    recorded |= {name: info[name] for name in _RECORDED_NOTES if name in info}
    return recorded | ({"answered": bool(info["answered"])} if "answered" in info else {})


def collect(
    worlds: Mapping[str, World],
    starts: Sequence[Start | Task] | BranchedStarts,
    agent: Agent,
    *,
    engine: Engine | None = None,
    seed: int = 0,
    slots: int = 192,
    limits: Limits | None = None,
    name: Callable[[Start], str] = trajectory_name,
    failures: FailureCounts | None = None,
) -> Generator[Trajectory, None, None]:
    """Plays every start; yields trajectories in order of completion.

    The random stream of an episode is its own, SHA-256 of (seed, task id, sample number): the set of trajectories
    depends on neither order nor concurrency. A world that fails ends only its own episode with an error.

    Args:
        worlds: Worlds by name, as the tasks name them.
        starts: Starts, or tasks that are played once; `BranchedStarts` where some of them are in the middle of an
            episode.
        agent: The agent.
        engine: The engine; None for agents that make no requests.
        seed: Seed of all episodes.
        slots: Number of simultaneous episodes.
        limits: Deadlines and horizon of the environments.
        name: Returns the id of the trajectory of a start.
        failures: Counts episodes that could not be scored; None: a warning at the end tells how many, and why.
    Raises:
        ConfigError: a task of a missing world; two starts of one id; slots below 1; a branch whose parent is
            missing or does not fit; a branch for an agent that cannot start there.

    >>> from evolvent import Expert, Lookup, Start
    >>> world = Lookup()
    >>> starts = [Start(task, sample=0) for task in world.tasks("test", "seen")[:2]]
    >>> trajectories = list(collect({"lookup": world}, starts, Expert(), engine=None))
    >>> [(trajectory.score.raw, len(trajectory.steps)) for trajectory in trajectories]
    [(1.0, 4), (1.0, 4)]
    """
    given, origins = (
        (starts.starts, starts.origins) if isinstance(starts, BranchedStarts) else (starts, BranchOrigins())
    )
    start_list = [Start(start) if isinstance(start, Task) else start for start in given]
    if slots < 1:
        raise ConfigError("number of slots out of range", value=slots, expected="1 or more")
    repeated = [trajectory for trajectory, count in Counter(map(name, start_list)).items() if count > 1]
    if repeated:
        raise ConfigError(
            "two starts would produce the same trajectory id",
            value=repeated[:5],
            hint="give each sample of a task a different number",
        )
    missing = sorted({start.task.world for start in start_list} - set(worlds))
    if missing:
        raise ConfigError([unknown_name_problem("world", world, worlds, location="task") for world in missing])
    check_branches(start_list, origins)
    if any(start.branch for start in start_list):
        require_resuming(agent)
    limits = limits or Limits()
    episodes = (
        play_episode(
            worlds[start.task.world],
            start,
            agent,
            name=name(start),
            seed=sample_seed(seed, start.task.id, start.sample),
            limits=limits,
            origins=origins,
        )
        for start in start_list
    )
    counts = FailureCounts() if failures is None else failures
    # A thread a slot: calls that wait for room on a server must not keep others from the steps that make room.
    playing = run_jobs(episodes, engine, slots=slots, threads=max(32, slots))
    with closing(playing) as finished:  # at once, also where a traceback would keep it
        for finished_episode in finished:
            if (
                finished_episode.value is None
            ):  # an episode catches what worlds and engines do; this is a mistake in an agent
                raise finished_episode.error or EvolventError(
                    "an episode ended without a trajectory", value=finished_episode.index
                )
            counts.record(finished_episode.value)
            yield finished_episode.value
    if failures is None and (description := counts.describe()):
        _log.warning("%s", description)

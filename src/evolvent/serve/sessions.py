"""Sessions of one process: their Envs, their leases, and their last answers. Synchronous; no sockets.

A session is open (no episode yet), running or ended; closed, reaped and lost ones are not in the table. Every use
renews its lease; sessions unused for `idle_s` seconds are removed by `pop_idle`.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from evolvent.errors import (
    AtCapacity,
    EnvLost,
    EvolventError,
    InvalidAction,
    SessionGone,
    WrongStep,
    unknown_name_problem,
    user_boundary,
)
from evolvent.serve.host import ResetResult, SessionSnapshot, SessionState, StepResult
from evolvent.serve.wire import EpisodeEnded, NotFound
from evolvent.trajectory import Task
from evolvent.worlds.base import Env, World, unwrap_number

__all__ = [
    "ACTION_CHARS",
    "OBSERVATION_CHARS",
    "SessionTable",
    "TableSession",
    "begin_episode",
    "create_session_id",
    "step_env",
]

ACTION_CHARS = 100_000  # a longer action is none
OBSERVATION_CHARS = 2**20  # a longer observation is cut, and marked
_MAX_LOST = 4096  # lost sessions whose fate is remembered
_RETRY_S = 1.0


class TableSession:
    """One session and its episode.

    Attributes:
        busy: number of its calls that run on threads now; a busy session is never reaped.
        turn: lock that keeps calls of a blocking world in order; the table does not use it.
    """

    __slots__ = (
        "action",
        "bounds",
        "busy",
        "env",
        "id",
        "info",
        "last",
        "name",
        "observation",
        "rewards",
        "state",
        "task",
        "touched",
        "turn",
        "world",
    )

    def __init__(self, id: str, name: str, world: World) -> None:
        self.id, self.name, self.world = id, name, world
        self.bounds = _StepBoundary(name)
        self.state: SessionState = "open"
        self.env: Env | None = None
        self.task: Task | None = None
        self.observation, self.info = "", dict[str, Any]()
        self.rewards: list[float | None] = []
        self.action = ""
        self.last: StepResult | None = None
        self.touched, self.busy = 0.0, 0
        self.turn: Any = None

    def start(self, env: Env, task: Task, reset_result: ResetResult) -> ResetResult:
        """Starts an episode; the Env of an earlier episode must have been detached."""
        self.env, self.task, self.state = env, task, "running"
        self.observation, self.info, self.rewards, self.last = (
            reset_result.observation,
            dict(reset_result.info),
            [],
            None,
        )
        return reset_result

    def detach_env(self) -> Env | None:
        """Removes the Env so that it can be closed: the session has no episode any more."""
        env, self.env, self.state, self.task = self.env, None, "open", None
        self.observation, self.info, self.rewards, self.last = "", {}, [], None
        return env

    def find_stored_answer(self, action: str, step: int | None) -> StepResult | None:
        """Returns the answer to a repetition of the last step; None: the step is the next one and may be taken.

        Raises:
            InvalidAction: too long, or text that cannot be written (NUL, half a surrogate pair).
            WrongStep: neither the next step nor a repetition of the last; `expected` is the next.
            EpisodeEnded: no episode, or it is over.
        """
        next_step = len(self.rewards)
        if step is not None and step != next_step:
            if step == next_step - 1 and action == self.action and self.last is not None:
                return self.last
            raise WrongStep("step number does not follow the last step", value=step, expected=next_step)
        if self.state != "running":
            problem = (
                "step was called before the first reset"
                if self.state == "open"
                else "step was called after the end of the episode"
            )
            raise EpisodeEnded(problem, value=self.id, expected="reset first")
        if len(action) > ACTION_CHARS:
            raise InvalidAction("an action that is too long", value=f"{len(action)} characters", expected=ACTION_CHARS)
        if "\0" in action or not (action.isascii() or _is_utf8(action)):
            raise InvalidAction("an action with NUL or half a surrogate pair", value=action, expected="Unicode text")
        return None

    def record_step(self, action: str, result: StepResult) -> StepResult:
        """Records the answer to a step, for repetitions."""
        self.rewards.append(result.reward)
        self.action, self.last = action, result
        if result.terminated or result.truncated:
            self.state = "ended"
        return result

    def snapshot(self) -> SessionSnapshot:
        """Returns the state of the session."""
        observation, info = self.observation, self.info
        if self.last is not None:
            observation, info = self.last.observation, dict(self.last.info)
        return SessionSnapshot(
            self.id, self.name, self.state, self.task, observation, info, tuple(self.rewards), len(self.rewards)
        )


class _StepBoundary:
    """`user_boundary` for the steps of a world: it is made once, and costs almost nothing without an error."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with user_boundary(EnvLost, f"world {self._name!r} failed in step"):
                raise error


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def begin_episode(world: World, task: Task, seed: int | None) -> tuple[Env, ResetResult]:
    """Starts an episode: makes an Env for the task and resets it.

    Raises:
        EnvLost: an error of the world, or an observation that is not text.
    """
    with user_boundary(EnvLost, f"world {world.name!r} failed in reset", task=task.id):
        with ExitStack() as cleanup:
            env = world.make(task)
            cleanup.callback(env.close)
            observation, info = env.reset(seed=seed)
            reset_result = ResetResult(*_check_observation(observation, info))
            cleanup.pop_all()
        return env, reset_result


def step_env(session: TableSession, action: str) -> StepResult:
    """Steps the session's Env and checks the result.

    Raises:
        EnvLost: an error of the world, reward is not finite, an observation that is not text.
    """
    with session.bounds:
        if session.env is None:
            raise EpisodeEnded("step was called before reset", value=session.id, expected="reset first")
        observation, reward, terminated, truncated, info = session.env.step(action)
        reward = unwrap_number(reward)
        if reward is not None and not math.isfinite(reward):
            raise EnvLost("reward is not finite", value=reward, expected="a number, or None for 'not scored'")
        text, step_info = _check_observation(observation, info)
        return StepResult(text, reward, bool(terminated), bool(truncated), step_info, len(session.rewards))


def _check_observation(observation: object, info: object) -> tuple[str, dict[str, Any]]:
    """Returns an observation and a copy of its info. A text beyond the limit is cut, and the info marks it."""
    if not isinstance(observation, str) or not (type(info) is dict or isinstance(info, Mapping)):
        kinds = f"{type(observation).__name__}, {type(info).__name__}"
        raise EnvLost("the observation is not text, or the info is not a mapping", value=kinds)
    copied_info = dict(info)
    if len(observation) > OBSERVATION_CHARS:
        observation = observation[:OBSERVATION_CHARS]
        copied_info["obs_truncated"] = True
    return observation, copied_info


class SessionTable:
    """All sessions of a process.

    Args:
        worlds: worlds by the name they are served under.
        capacity: maximum number of sessions.
        idle_s: lease: seconds that a session may be unused.
        clock: returns seconds that never jump.

    Attributes:
        created: number of sessions created since the table was made.
        steps: number of steps since the table was made.
    """

    def __init__(
        self, worlds: Mapping[str, World], *, capacity: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.worlds, self.capacity, self.idle_s = worlds, capacity, idle_s
        self.created = self.steps = 0
        self._clock = clock
        self._all: OrderedDict[str, TableSession] = OrderedDict()  # the longest unused first
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def open(self, world: str, *, short: bool = False, id: str | None = None) -> TableSession:
        """Opens a session, under a random id or under the caller's id.

        Raises:
            NotFound: a world that is not served, with the nearest name.
            AtCapacity: full.
        """
        if world not in self.worlds:
            raise NotFound([unknown_name_problem("world", world, self.worlds)])
        if len(self._all) >= self.capacity:
            raise AtCapacity("no free session", value=f"{len(self._all)} of {self.capacity}", retry_after_s=_RETRY_S)
        session_id = id or create_session_id(short=short)
        while session_id in self._all or session_id in self._lost:
            session_id = create_session_id(short=short)
        session = self._all[session_id] = TableSession(session_id, world, self.worlds[world])
        session.touched = self._clock()
        self._counts[world] += 1
        self.created += 1
        return session

    def get(self, id: str) -> TableSession:
        """Returns the session of this id and renews its lease.

        Raises:
            EnvLost: its Env was lost, and how.
            SessionGone: no such session, or it no longer exists.
        """
        session = self._all.get(id)
        if session is None:
            if id in self._lost:
                raise EnvLost("the session was lost", value=self._lost[id], hint="create another session")
            raise SessionGone("unknown session", value=id, expected="the id of an open session")
        session.touched = self._clock()
        self._all.move_to_end(id)
        return session

    def find(self, id: str) -> TableSession | None:
        """Returns the session of this id, or None; its lease is not renewed."""
        return self._all.get(id)

    def remove(self, session: TableSession) -> bool:
        """Removes the session from the table; returns False if it is not in it."""
        if self._all.get(session.id) is not session:
            return False
        del self._all[session.id]
        self._counts[session.name] -= 1
        return True

    def mark_lost(self, session: TableSession, error: EvolventError | str) -> bool:
        """Removes the session because its Env is lost. Later requests for it get an error with the reason."""
        if not self.remove(session):
            return False
        self._lost[session.id] = str(error)
        while len(self._lost) > _MAX_LOST:
            self._lost.popitem(last=False)
        return True

    def pop_idle(self) -> list[TableSession]:
        """Removes and returns the sessions whose lease has ended."""
        until = self._clock() - self.idle_s
        idle_sessions = []
        for session in self._all.values():
            if session.touched > until:
                break
            if not session.busy:
                idle_sessions.append(session)
        for session in idle_sessions:
            self.remove(session)
        return idle_sessions

    def list_sessions(self) -> list[TableSession]:
        """Returns every session."""
        return list(self._all.values())

    def count_by_world(self) -> dict[str, int]:
        """Returns the number of sessions of every served world."""
        return {name: self._counts[name] for name in self.worlds}


def create_session_id(*, short: bool = False) -> str:
    """Returns a random id: 128 bits, or (short) the decimal text of a 31-bit integer for clients that need numbers."""
    return str(secrets.randbelow(2**31 - 1) + 1) if short else secrets.token_hex(16)

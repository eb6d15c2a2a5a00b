"""Sessions of one process: who holds which Env, for how long, and what was answered last. Synchronous; no sockets.

A session is open (no episode yet), running or ended; closed, reaped and lost ones are gone from the table. Every use
renews its lease; what nobody used for `idle_s` seconds is given back by `idle`.
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
    boundary,
    unknown,
)
from evolvent.serve.host import Look, Seen, State, Stepped
from evolvent.serve.wire import Ended, NotFound
from evolvent.trajectory import Task
from evolvent.worlds.base import Env, World

__all__ = ["ACTION_CHARS", "OBSERVATION_CHARS", "Session", "SessionTable", "acted", "begun", "new_id"]

ACTION_CHARS = 100_000  # a longer action is none
OBSERVATION_CHARS = 2**20  # a longer observation is cut, and marked
_LOST = 4096  # lost sessions whose fate is remembered
_RETRY_S = 1.0


class Session:
    """One session and its episode.

    Attributes:
        busy: calls of it that run on threads now; a busy session is never reaped.
        turn: whatever keeps calls of a blocking world in order; the table does not look at it.
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
        self.bounds = _Bounds(name)
        self.state: State = "open"
        self.env: Env | None = None
        self.task: Task | None = None
        self.observation, self.info = "", dict[str, Any]()
        self.rewards: list[float | None] = []
        self.action = ""
        self.last: Stepped | None = None
        self.touched, self.busy = 0.0, 0
        self.turn: Any = None

    def start(self, env: Env, task: Task, seen: Seen) -> Seen:
        """An episode has begun; the Env of the one before must have been taken away."""
        self.env, self.task, self.state = env, task, "running"
        self.observation, self.info, self.rewards, self.last = seen.observation, dict(seen.info), [], None
        return seen

    def away(self) -> Env | None:
        """Take the Env away to close it: there is no episode any more."""
        env, self.env, self.state, self.task = self.env, None, "open", None
        self.observation, self.info, self.rewards, self.last = "", {}, [], None
        return env

    def stored(self, action: str, step: int | None) -> Stepped | None:
        """The answer to a repetition of the last step; None: the step is the next one and may be taken.

        Raises:
            InvalidAction: too long, or text that cannot be written (NUL, half a surrogate pair).
            WrongStep: neither the next step nor a repetition of the last; `expected` is the next.
            Ended: no episode, or it is over.
        """
        due = len(self.rewards)
        if step is not None and step != due:
            if step == due - 1 and action == self.action and self.last is not None:
                return self.last
            raise WrongStep("a step that does not follow the last one", value=step, expected=due)
        if self.state != "running":
            what = "a step before the first reset" if self.state == "open" else "a step after the end of the episode"
            raise Ended(what, value=self.id, expected="reset first")
        if len(action) > ACTION_CHARS:
            raise InvalidAction("an action that is too long", value=f"{len(action)} characters", expected=ACTION_CHARS)
        if "\0" in action or not (action.isascii() or _writable(action)):
            raise InvalidAction("an action with NUL or half a surrogate pair", value=action, expected="Unicode text")
        return None

    def take(self, action: str, done: Stepped) -> Stepped:
        """The step was taken: keep its answer for whoever asks again."""
        self.rewards.append(done.reward)
        self.action, self.last = action, done
        if done.terminated or done.truncated:
            self.state = "ended"
        return done

    def look(self) -> Look:
        """Where the session stands."""
        observation, info = self.observation, self.info
        if self.last is not None:
            observation, info = self.last.observation, dict(self.last.info)
        return Look(
            self.id, self.name, self.state, self.task, observation, info, tuple(self.rewards), len(self.rewards)
        )


class _Bounds:
    """`boundary` for the steps of a world: it is made once, and costs next to nothing while nothing goes wrong."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with boundary(EnvLost, f"world {self._name!r} failed in step"):
                raise error


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def begun(world: World, task: Task, seed: int | None) -> tuple[Env, Seen]:
    """Make an Env for the task and reset it.

    Raises:
        EnvLost: what the world raised, or an observation that is no text.
    """
    with boundary(EnvLost, f"world {world.name!r} failed in reset", task=task.id):
        with ExitStack() as undo:
            env = world.make(task)
            undo.callback(env.close)
            observation, info = env.reset(seed=seed)
            seen = Seen(*_seen(observation, info))
            undo.pop_all()
        return env, seen


def acted(session: Session, action: str) -> Stepped:
    """One step of the session's Env, checked.

    Raises:
        EnvLost: what the world raised, a reward that is not finite, an observation that is no text.
    """
    with session.bounds:
        if session.env is None:
            raise Ended("a step without an episode", value=session.id, expected="reset first")
        observation, reward, terminated, truncated, info = session.env.step(action)
        if reward is not None and not math.isfinite(reward):
            raise EnvLost("a reward that is not finite", value=reward, expected="a number, or None for 'not scored'")
        text, noted = _seen(observation, info)
        return Stepped(text, reward, bool(terminated), bool(truncated), noted, len(session.rewards))


def _seen(observation: object, info: object) -> tuple[str, dict[str, Any]]:
    """An observation and a copy of its info. A text beyond the limit is cut, and the info says so."""
    if not isinstance(observation, str) or not (type(info) is dict or isinstance(info, Mapping)):
        kinds = f"{type(observation).__name__}, {type(info).__name__}"
        raise EnvLost("an observation that is no text, or an info that is no mapping", value=kinds)
    noted = dict(info)
    if len(observation) > OBSERVATION_CHARS:
        observation = observation[:OBSERVATION_CHARS]
        noted["obs_truncated"] = True
    return observation, noted


class SessionTable:
    """All sessions of a process.

    Args:
        worlds: by the name they are served under.
        capacity: how many sessions there may be.
        idle_s: the lease: how long a session may be unused.
        clock: seconds that never jump.

    Attributes:
        created, steps: since the table was made.
    """

    def __init__(
        self, worlds: Mapping[str, World], *, capacity: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.worlds, self.capacity, self.idle_s = worlds, capacity, idle_s
        self.created = self.steps = 0
        self._clock = clock
        self._all: OrderedDict[str, Session] = OrderedDict()  # the longest unused first
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def open(self, world: str, *, short: bool = False, id: str | None = None) -> Session:
        """A new session, under a random id or under one that the caller made.

        Raises:
            NotFound: a world that is not served, with the nearest name.
            AtCapacity: full.
        """
        if world not in self.worlds:
            raise NotFound([unknown("world", world, self.worlds)])
        if len(self._all) >= self.capacity:
            raise AtCapacity("no free session", value=f"{len(self._all)} of {self.capacity}", retry_after_s=_RETRY_S)
        name = id or new_id(short=short)
        while name in self._all or name in self._lost:
            name = new_id(short=short)
        session = self._all[name] = Session(name, world, self.worlds[world])
        session.touched = self._clock()
        self._counts[world] += 1
        self.created += 1
        return session

    def get(self, id: str) -> Session:
        """The session of this id, its lease renewed.

        Raises:
            EnvLost: its Env was lost, and how.
            SessionGone: no such session, or none any more.
        """
        session = self._all.get(id)
        if session is None:
            if id in self._lost:
                raise EnvLost("the session was lost", value=self._lost[id], hint="create another one")
            raise SessionGone("no such session", value=id, expected="an open one: it was closed, idle or never here")
        session.touched = self._clock()
        self._all.move_to_end(id)
        return session

    def find(self, id: str) -> Session | None:
        """The session of this id, if there is one; its lease is not renewed."""
        return self._all.get(id)

    def remove(self, session: Session) -> bool:
        """Take the session out of the table; False where it is not in it any more."""
        if self._all.get(session.id) is not session:
            return False
        del self._all[session.id]
        self._counts[session.name] -= 1
        return True

    def lose(self, session: Session, error: EvolventError | str) -> bool:
        """Take it out because its Env is lost. Who asks for it later is told so."""
        if not self.remove(session):
            return False
        self._lost[session.id] = str(error)
        while len(self._lost) > _LOST:
            self._lost.popitem(last=False)
        return True

    def idle(self) -> list[Session]:
        """Take out and return the sessions whose lease has ended."""
        until = self._clock() - self.idle_s
        found = []
        for session in self._all.values():
            if session.touched > until:
                break
            if not session.busy:
                found.append(session)
        for session in found:
            self.remove(session)
        return found

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._all.values())

    def counts(self) -> dict[str, int]:
        """Sessions by world, of every world served."""
        return {name: self._counts[name] for name in self.worlds}


def new_id(*, short: bool = False) -> str:
    """A random id: 128 bits, or (short) the decimal text of a 31-bit integer for clients that want numbers."""
    return str(secrets.randbelow(2**31 - 1) + 1) if short else secrets.token_hex(16)

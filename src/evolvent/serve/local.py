"""Sessions in this process: quick worlds are stepped on the event loop, slow ones on threads with deadlines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from evolvent.errors import EnvLost, EvolventError, StepTimeout, boundary
from evolvent.serve.calls import Calls
from evolvent.serve.host import Look, Seen, Status, StepItem, Stepped
from evolvent.serve.sessions import Session, SessionTable, acted, begun
from evolvent.trajectory import Task
from evolvent.worlds.base import Env, World, check_task

__all__ = ["Limits", "LocalHost"]

_log = logging.getLogger(__name__)
_SLICE_S = 0.005  # how long a batch may hold the loop
_CLOSING_S = 5.0  # how long slow worlds may take to close at the end


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of blocking worlds in seconds, for a reset (with making the Env) and for a step."""

    reset_s: float = 60.0
    step_s: float = 60.0


class LocalHost:
    """A `Host` in this process. Use it as an asynchronous context manager (nested ones count as one).

    A world says with `blocking` whether its steps may take long. One that does not is stepped right on the loop, which
    costs microseconds and no task; one that does runs on threads, one call of a session at a time, in their order.
    There is no queue in front of a full host: who is turned away knows his own deadline, and comes back.

    Args:
        worlds: by the name they are served under.
        capacity: how many sessions there may be.
        idle_s: the lease of a session.
        limits: deadlines of blocking worlds.
        clock: seconds that never jump.
        reaped: told of the sessions whose lease has ended.
    """

    def __init__(
        self,
        worlds: Mapping[str, World],
        *,
        capacity: int = 1024,
        idle_s: float = 600.0,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        reaped: Callable[[list[str]], object] | None = None,
    ) -> None:
        self._table = SessionTable(worlds, capacity=capacity, idle_s=idle_s, clock=clock)
        self._limits = limits or Limits()
        self._calls = Calls()
        self._reaped = reaped
        self._depth = 0
        self._reaper: asyncio.Task[None] | None = None

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds served, by name."""
        return self._table.worlds

    def status(self) -> Status:
        """Live counts."""
        table = self._table
        return Status(table.counts(), table.capacity, table.created, table.steps)

    async def __aenter__(self) -> LocalHost:
        self._depth += 1
        if self._depth == 1:
            self._reaper = asyncio.create_task(self._reap(), name="reaper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self._reaper is not None:
            self._reaper.cancel()
        for session in self._table.all():
            self._table.remove(session)
            self._close(session)
        await self._calls.close(_CLOSING_S)

    async def create(self, world: str, *, short: bool = False, id: str | None = None) -> str:
        """A new session without an episode; `id` is for hosts in front of this one. Else as `Host.create`."""
        return self._table.open(world, short=short, id=id).id

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> Seen:
        """Begin an episode; see `Host.reset`. An earlier one is closed. What fails to begin leaves the session open.

        Raises:
            ConfigError, VersionMismatch: not a task of the session's world; an earlier episode goes on.
        """
        found = self._table.get(session)
        check_task(found.world, task)
        if not found.world.blocking:
            self._close(found)
            env, seen = begun(found.world, task, seed)
            return found.start(env, task, seen)
        async with _Turn(self._table, found):
            self._close(found)
            made = _Made(partial(begun, found.world, task, seed))
            try:
                env, seen = await self._calls.run(made.make, self._limits.reset_s, late=made.close)
            except (StepTimeout, asyncio.CancelledError) as error:
                self._table.lose(found, _why(error))
                raise
            return found.start(env, task, seen)

    async def step(self, session: str, action: str, *, step: int | None = None) -> Stepped:
        """Take a step, or give the stored answer again; see `Host.step`."""
        found = self._table.get(session)
        return await self._apart(found, action, step) if found.world.blocking else self._now(found, action, step)

    def quick(self, session: str) -> bool:
        """Whether the session is there and its steps are taken on the loop: `now` may be called for it."""
        found = self._table.find(session)
        return found is not None and not found.world.blocking

    def now(self, session: str, action: str, *, step: int | None = None) -> Stepped:
        """`step` without a coroutine, for sessions that are `quick`."""
        return self._now(self._table.get(session), action, step)

    def holds(self, session: str) -> bool:
        """Whether the session is there; its lease is not renewed."""
        return self._table.find(session) is not None

    async def steps(self, items: Sequence[StepItem]) -> list[Stepped | EvolventError]:
        """Many steps; see `Host.steps`. Those of one session are taken in the order of the items."""
        answers: list[Any] = [None] * len(items)
        apart: list[tuple[int, asyncio.Task[Stepped | EvolventError]]] = []
        since = time.perf_counter()
        for place, item in enumerate(items):
            if not place % 16 and time.perf_counter() - since > _SLICE_S:
                await asyncio.sleep(0)
                since = time.perf_counter()
            try:
                found = self._table.get(item.session)
                if found.world.blocking:
                    apart.append((place, asyncio.create_task(self._tried(found, item))))
                else:
                    answers[place] = self._now(found, item.action, item.step)
            except EvolventError as error:
                answers[place] = error
        for place, task in apart:
            answers[place] = await task
        return answers

    async def look(self, session: str) -> Look:
        """Where the session stands; see `Host.look`."""
        return self._table.get(session).look()

    async def close(self, session: str) -> bool:
        """Give a session back; after the calls of it that still run."""
        found = self._table.find(session)
        if found is None:
            return False
        if found.turn is not None:
            async with found.turn:
                pass
        if not self._table.remove(found):
            return False
        self._close(found)
        return True

    def _now(self, found: Session, action: str, step: int | None) -> Stepped:
        """A step on the loop."""
        stored = found.stored(action, step)
        if stored is not None:
            return stored
        try:
            done = acted(found, action)
        except (EnvLost, StepTimeout) as error:
            self._lose(found, error)
            raise
        self._table.steps += 1
        return found.take(action, done)

    async def _apart(self, found: Session, action: str, step: int | None) -> Stepped:
        """A step on a thread, when it is this call's turn."""
        async with _Turn(self._table, found):
            stored = found.stored(action, step)
            if stored is not None:
                return stored
            try:
                done: Stepped = await self._calls.run(
                    partial(acted, found, action), self._limits.step_s, late=partial(_shut, found.name, found.env)
                )
            except (StepTimeout, asyncio.CancelledError) as error:
                self._table.lose(found, _why(error))  # its thread closes the Env, whenever it ends
                raise
            except EnvLost as error:
                self._lose(found, error)
                raise
            self._table.steps += 1
            return found.take(action, done)

    async def _tried(self, found: Session, item: StepItem) -> Stepped | EvolventError:
        try:
            return await self._apart(found, item.action, item.step)
        except EvolventError as error:
            return error

    def _lose(self, found: Session, error: EvolventError) -> None:
        self._table.lose(found, error)
        self._close(found)

    def _close(self, found: Session) -> None:
        """End the session's episode, if it has one."""
        env = found.away()
        if env is None:
            return
        if found.world.blocking:
            self._calls.post(partial(_shut, found.name, env), self._limits.reset_s)
        else:
            _shut(found.name, env)

    async def _reap(self) -> None:
        """Give back what nobody used for the length of the lease."""
        pause = min(5.0, max(0.05, self._table.idle_s / 10))
        while True:
            await asyncio.sleep(pause)
            found = self._table.idle()
            for session in found:
                self._close(session)
            if found:
                _log.info("%d sessions were idle for %g s and are closed", len(found), self._table.idle_s)
                if self._reaped is not None:
                    self._reaped([session.id for session in found])


class _Turn:
    """One call of a session at a time. A session that went while the call waited is gone for it too."""

    __slots__ = ("_session", "_table")

    def __init__(self, table: SessionTable, session: Session) -> None:
        self._table, self._session = table, session

    async def __aenter__(self) -> None:
        session = self._session
        if session.turn is None:
            session.turn = asyncio.Lock()
        await session.turn.acquire()
        session.busy += 1
        try:
            self._table.get(session.id)
        except EvolventError:
            await self.__aexit__()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._session.turn.release()
        self._session.busy -= 1
        if self._table.find(self._session.id) is self._session:
            self._table.get(self._session.id)  # the lease begins when the call ends


class _Made:
    """An Env that is being made on a thread. If nobody waits for it any more, it is closed when it is there."""

    def __init__(self, begin: Callable[[], tuple[Env, Seen]]) -> None:
        self._begin = begin
        self._env: Env | None = None

    def make(self) -> tuple[Env, Seen]:
        self._env, seen = self._begin()
        return self._env, seen

    def close(self) -> None:
        _shut("", self._env)


def _shut(world: str, env: Env | None) -> None:
    """Close an Env. What it raises then is nobody's answer: it is logged."""
    if env is None:
        return
    try:
        with boundary(EnvLost, f"world {world!r} failed in close"):
            env.close()
    except EvolventError as problem:
        _log.warning("%s", problem)


def _why(error: BaseException) -> EvolventError:
    return error if isinstance(error, EvolventError) else EnvLost("the call was abandoned", value=type(error).__name__)

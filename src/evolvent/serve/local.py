"""Sessions in this process: fast worlds are stepped on the event loop, slow ones on threads with deadlines."""

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
from evolvent.serve.calls import CallRunner
from evolvent.serve.host import HostStatus, ResetResult, SessionSnapshot, StepRequest, StepResult
from evolvent.serve.sessions import SessionTable, TableSession, begin_episode, step_env
from evolvent.trajectory import Task
from evolvent.worlds.base import Env, World, check_task

__all__ = ["LocalHost", "WorldDeadlines"]

_log = logging.getLogger(__name__)
_MAX_LOOP_HOLD_S = 0.005  # how long a batch may hold the loop
_CLOSE_TIMEOUT_S = 5.0  # how long slow worlds may take to close at the end


@dataclass(frozen=True, slots=True)
class WorldDeadlines:
    """Deadlines of blocking worlds in seconds, for a reset (including the creation of the Env) and for a step."""

    reset_s: float = 60.0
    step_s: float = 60.0


class LocalHost:
    """A `SessionHost` in this process. Use it as an asynchronous context manager (nested ones count as one).

    A world declares with `run_in_thread` whether its steps may take long. Steps of the others run on the loop, which
    costs microseconds and no task; slow ones run on threads, one call of a session at a time, in their order. There
    is no
    queue in front of a full host: a refused client knows its own deadline, and comes back.

    Args:
        worlds: worlds by the name they are served under.
        capacity: maximum number of sessions.
        idle_s: lease of a session, in seconds.
        limits: deadlines of blocking worlds.
        clock: returns seconds that never jump.
        on_reaped: called with the ids of sessions whose lease has ended.
    """

    def __init__(
        self,
        worlds: Mapping[str, World],
        *,
        capacity: int = 1024,
        idle_s: float = 600.0,
        limits: WorldDeadlines | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_reaped: Callable[[list[str]], object] | None = None,
    ) -> None:
        self._table = SessionTable(worlds, capacity=capacity, idle_s=idle_s, clock=clock)
        self._limits = limits or WorldDeadlines()
        self._calls = CallRunner()
        self._reaped = on_reaped
        self._depth = 0
        self._reaper: asyncio.Task[None] | None = None

    @property
    def worlds(self) -> Mapping[str, World]:
        """Returns the served worlds by name."""
        return self._table.worlds

    def status(self) -> HostStatus:
        """Returns live counts."""
        table = self._table
        return HostStatus(table.count_by_world(), table.capacity, table.created, table.steps)

    async def __aenter__(self) -> LocalHost:
        self._depth += 1
        if self._depth == 1:
            self._reaper = asyncio.create_task(self._reap_idle(), name="reaper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self._reaper is not None:
            self._reaper.cancel()
        for session in self._table.list_sessions():
            self._table.remove(session)
            self._close_episode(session)
        await self._calls.close(_CLOSE_TIMEOUT_S)

    async def create(self, world: str, *, short: bool = False, id: str | None = None) -> str:
        """Creates a session without an episode; `id` is for hosts in front of this one. Otherwise as
        `SessionHost.create`.
        """
        return self._table.open(world, short=short, id=id).id

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> ResetResult:
        """Starts an episode; see `SessionHost.reset`. An earlier episode is closed. A failed reset leaves the
        session open.

        Raises:
            ConfigError, VersionMismatch: not a task of the session's world; an earlier episode goes on.
        """
        table_session = self._table.get(session)
        check_task(table_session.world, task)
        if not table_session.world.run_in_thread:
            self._close_episode(table_session)
            env, reset_result = begin_episode(table_session.world, task, seed)
            return table_session.start(env, task, reset_result)
        async with _Turn(self._table, table_session):
            self._close_episode(table_session)
            pending_env = _PendingEnv(partial(begin_episode, table_session.world, task, seed))
            try:
                env, reset_result = await self._calls.run(
                    pending_env.make, self._limits.reset_s, late=pending_env.close
                )
            except (StepTimeout, asyncio.CancelledError) as error:
                self._table.mark_lost(table_session, _loss_reason(error))
                raise
            return table_session.start(env, task, reset_result)

    async def step(self, session: str, action: str, *, step: int | None = None) -> StepResult:
        """Plays a step, or returns the stored answer again; see `SessionHost.step`."""
        table_session = self._table.get(session)
        return (
            await self._step_on_thread(table_session, action, step)
            if table_session.world.run_in_thread
            else self._step_on_loop(table_session, action, step)
        )

    def is_fast(self, session: str) -> bool:
        """Returns whether the session exists and its steps run on the loop, so that `step_now` may be called for it."""
        table_session = self._table.find(session)
        return table_session is not None and not table_session.world.run_in_thread

    def step_now(self, session: str, action: str, *, step: int | None = None) -> StepResult:
        """Plays a step without a coroutine, for sessions that are `is_fast`."""
        return self._step_on_loop(self._table.get(session), action, step)

    def has_session(self, session: str) -> bool:
        """Returns whether the session exists; its lease is not renewed."""
        return self._table.find(session) is not None

    async def steps(self, items: Sequence[StepRequest]) -> list[StepResult | EvolventError]:
        """Plays many steps; see `SessionHost.steps`. Those of one session run in the order of the items."""
        answers: list[Any] = [None] * len(items)
        threaded: list[tuple[int, asyncio.Task[StepResult | EvolventError]]] = []
        slice_start = time.perf_counter()
        for index, item in enumerate(items):
            if not index % 16 and time.perf_counter() - slice_start > _MAX_LOOP_HOLD_S:
                await asyncio.sleep(0)
                slice_start = time.perf_counter()
            try:
                table_session = self._table.get(item.session)
                if table_session.world.run_in_thread:
                    threaded.append((index, asyncio.create_task(self._step_or_error(table_session, item))))
                else:
                    answers[index] = self._step_on_loop(table_session, item.action, item.step)
            except EvolventError as error:
                answers[index] = error
        for index, task in threaded:
            answers[index] = await task
        return answers

    async def look(self, session: str) -> SessionSnapshot:
        """Returns the state of the session; see `SessionHost.look`."""
        return self._table.get(session).snapshot()

    async def close(self, session: str) -> bool:
        """Closes a session after its running calls have ended."""
        table_session = self._table.find(session)
        if table_session is None:
            return False
        if table_session.turn is not None:
            async with table_session.turn:
                pass
        if not self._table.remove(table_session):
            return False
        self._close_episode(table_session)
        return True

    def _step_on_loop(self, table_session: TableSession, action: str, step: int | None) -> StepResult:
        """Plays a step on the loop."""
        stored = table_session.find_stored_answer(action, step)
        if stored is not None:
            return stored
        try:
            result = step_env(table_session, action)
        except (EnvLost, StepTimeout) as error:
            self._lose_session(table_session, error)
            raise
        self._table.steps += 1
        return table_session.record_step(action, result)

    async def _step_on_thread(self, table_session: TableSession, action: str, step: int | None) -> StepResult:
        """Plays a step on a thread, when it is this call's turn."""
        async with _Turn(self._table, table_session):
            stored = table_session.find_stored_answer(action, step)
            if stored is not None:
                return stored
            try:
                result: StepResult = await self._calls.run(
                    partial(step_env, table_session, action),
                    self._limits.step_s,
                    late=partial(_close_env, table_session.name, table_session.env),
                )
            except (StepTimeout, asyncio.CancelledError) as error:
                self._table.mark_lost(table_session, _loss_reason(error))  # its thread closes the Env, whenever it ends
                raise
            except EnvLost as error:
                self._lose_session(table_session, error)
                raise
            self._table.steps += 1
            return table_session.record_step(action, result)

    async def _step_or_error(self, table_session: TableSession, item: StepRequest) -> StepResult | EvolventError:
        try:
            return await self._step_on_thread(table_session, item.action, item.step)
        except EvolventError as error:
            return error

    def _lose_session(self, table_session: TableSession, error: EvolventError) -> None:
        self._table.mark_lost(table_session, error)
        self._close_episode(table_session)

    def _close_episode(self, table_session: TableSession) -> None:
        """Ends the session's episode, if it has one."""
        env = table_session.detach_env()
        if env is None:
            return
        if table_session.world.run_in_thread:
            self._calls.post(partial(_close_env, table_session.name, env), self._limits.reset_s)
        else:
            _close_env(table_session.name, env)

    async def _reap_idle(self) -> None:
        """Closes sessions that were unused for the length of the lease."""
        pause = min(5.0, max(0.05, self._table.idle_s / 10))
        while True:
            await asyncio.sleep(pause)
            idle_sessions = self._table.pop_idle()
            for session in idle_sessions:
                self._close_episode(session)
            if idle_sessions:
                _log.info("%d sessions were idle for %g s and are closed", len(idle_sessions), self._table.idle_s)
                if self._reaped is not None:
                    self._reaped([session.id for session in idle_sessions])


class _Turn:
    """A lock for one call of a session at a time. A call that waits for a closed session fails."""

    __slots__ = ("_session", "_table")

    def __init__(self, table: SessionTable, session: TableSession) -> None:
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


class _PendingEnv:
    """An Env that is being made on a thread. If its caller stops waiting, it is closed when it is ready."""

    def __init__(self, begin: Callable[[], tuple[Env, ResetResult]]) -> None:
        self._begin = begin
        self._env: Env | None = None

    def make(self) -> tuple[Env, ResetResult]:
        self._env, reset_result = self._begin()
        return self._env, reset_result

    def close(self) -> None:
        _close_env("", self._env)


def _close_env(world: str, env: Env | None) -> None:
    """Closes an Env. Its errors are logged, as no caller waits for them."""
    if env is None:
        return
    try:
        with boundary(EnvLost, f"world {world!r} failed in close"):
            env.close()
    except EvolventError as problem:
        _log.warning("%s", problem)


def _loss_reason(error: BaseException) -> EvolventError:
    return error if isinstance(error, EvolventError) else EnvLost("the call was abandoned", value=type(error).__name__)

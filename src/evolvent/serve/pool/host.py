"""Sessions in worker processes: every session lives in one of them, and what is asked of it goes there.

A worker that dies takes its sessions along (EnvLost for whoever asks for one) and is started again; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from evolvent.errors import AtCapacity, ConfigError, EnvLost, EvolventError, Problem, SessionGone, StepTimeout, unknown
from evolvent.serve.host import Look, Seen, Status, StepItem, Stepped
from evolvent.serve.local import Limits
from evolvent.serve.pool.process import Factory, Gone, Plan, WorkerProcess, name_of
from evolvent.serve.pool.worker import HEARTBEAT_S
from evolvent.serve.sessions import new_id
from evolvent.serve.wire import NotFound, error_of, look_of, task_row
from evolvent.trajectory import Task
from evolvent.worlds.base import World

__all__ = ["PooledHost"]

_log = logging.getLogger(__name__)
_LOST = 4096  # lost sessions whose fate is remembered
_BRIEF_S = 10.0  # a worker that lived no longer is started again after a pause
_PAUSES_S = (0.5, 30.0)  # the first and the longest such pause
_SILENT_S = 10.0
_RETRY_S = 1.0


class PooledHost:
    """A `Host` whose Envs live in worker processes. Use it as an asynchronous context manager (nested: as one).

    Args:
        worlds: the worlds of this process, for panels, instructions, experts and scores.
        factory: makes the same worlds in a worker, from their names; a function at the top level of a module.
        names: what the factory is given.
        workers: how many processes.
        capacity, idle_s, limits: as for `LocalHost`, over all workers.
    """

    def __init__(
        self,
        worlds: Mapping[str, World],
        factory: Factory,
        names: Sequence[str],
        *,
        workers: int = 2,
        capacity: int = 1024,
        idle_s: float = 600.0,
        limits: Limits | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError([Problem("workers", f"got {workers}", "expected 1 or more")])
        self._worlds, self._capacity = worlds, capacity
        self._plan = Plan(name_of(factory), tuple(names), capacity, idle_s, limits or Limits())
        self._count = workers
        self._workers: list[WorkerProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._held: dict[str, tuple[WorkerProcess, str]] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._created = self._restarts = self._earlier_steps = self._depth = 0

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds served, by name."""
        return self._worlds

    @property
    def pids(self) -> list[int]:
        """Of the worker processes that run."""
        return [worker.pid for worker in self._workers if worker.alive]

    def status(self) -> Status:
        """Live counts."""
        steps = self._earlier_steps + sum(worker.steps for worker in self._workers)
        sessions = {name: self._counts[name] for name in self._worlds}
        return Status(sessions, self._capacity, self._created, steps, self._restarts)

    async def __aenter__(self) -> PooledHost:
        self._depth += 1
        if self._depth == 1:
            self._workers = [WorkerProcess(self._plan, self._noticed) for _ in range(self._count)]
            started = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
            failed = [error for error in started if isinstance(error, BaseException)]
            if failed:
                self._depth -= 1
                await asyncio.gather(*(worker.stop() for worker in self._workers))
                raise failed[0]
            self._keepers = [asyncio.create_task(self._keep(place)) for place in range(self._count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        self._held.clear()
        self._counts.clear()

    async def create(self, world: str, *, short: bool = False) -> str:
        """A new session, in the worker that holds the fewest; see `Host.create`."""
        if world not in self._worlds:
            raise NotFound([unknown("world", world, self._worlds)])
        alive = [worker for worker in self._workers if worker.alive]
        if len(self._held) >= self._capacity or not alive:
            full = f"{len(self._held)} of {self._capacity}" if alive else "every worker is starting"
            raise AtCapacity("no free session", value=full, retry_after_s=_RETRY_S)
        worker = min(alive, key=lambda one: len(one.sessions))
        session = new_id(short=short)
        while session in self._held or session in self._lost:
            session = new_id(short=short)
        self._held[session] = (worker, world)
        worker.sessions.add(session)
        self._counts[world] += 1
        opened = False
        try:
            await worker.ask("open", world, session)
            opened = True
        finally:
            if not opened:
                self._drop(session)
        self._created += 1
        return session

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> Seen:
        """Begin an episode; see `Host.reset`."""
        observation, info = await self._ask(session, "reset", task_row(task), seed)
        return Seen(observation, info)

    async def step(self, session: str, action: str, *, step: int | None = None) -> Stepped:
        """Take a step, or give the stored answer again; see `Host.step`."""
        return Stepped(*await self._ask(session, "step", action, step))

    async def steps(self, items: Sequence[StepItem]) -> list[Stepped | EvolventError]:
        """Many steps, one message a worker; see `Host.steps`."""
        answers: list[Any] = [None] * len(items)
        groups: dict[WorkerProcess, list[int]] = {}
        for place, item in enumerate(items):
            try:
                groups.setdefault(self._worker(item.session), []).append(place)
            except EvolventError as error:
                answers[place] = error
        asked = []
        for worker, places in groups.items():
            chosen = [items[place] for place in places]
            parts = [[item.session, item.action, item.step] for item in chosen]
            asked.append((places, worker.ask("steps", parts)))
        for places, future in asked:
            try:
                rows = await future
            except (EvolventError, Gone) as error:
                rows = [[error]] * len(places)
            for place, row in zip(places, rows, strict=True):
                answers[place] = self._answer(items[place].session, row)
        return answers

    async def look(self, session: str) -> Look:
        """Where the session stands; see `Host.look`."""
        return look_of(await self._ask(session, "look"))

    async def close(self, session: str) -> bool:
        """Give a session back; see `Host.close`."""
        if session not in self._held:
            return False
        try:
            closed = await self._ask(session, "close")
        except (SessionGone, EnvLost):
            return False
        self._drop(session)
        return bool(closed)

    def _worker(self, session: str) -> WorkerProcess:
        """The process that holds the session; SessionGone or EnvLost where none does."""
        held = self._held.get(session)
        if held is not None and held[0].alive:
            return held[0]
        if held is None and session not in self._lost:
            what = "an open one: it was closed, idle or never here"
            raise SessionGone("no such session", value=session, expected=what)
        why = self._lost.get(session, "its worker process has ended")
        raise EnvLost("the session was lost", value=why, hint="create another one")

    async def _ask(self, session: str, op: str, *args: Any) -> Any:
        try:
            return await self._worker(session).ask(op, session, *args)
        except Gone as gone:
            raise self._forget(session, gone) from gone

    def _answer(self, session: str, row: list[Any]) -> Stepped | EvolventError:
        """One answer of a batch: a step, an error (and whether the session is gone), or what failed all of it."""
        if len(row) == 1:
            error = row[0]
            return self._forget(session, error) if isinstance(error, Gone) else error
        if len(row) > 2:
            return Stepped(*row)
        error = error_of(row[0])
        return self._forget(session, Gone(error)) if row[1] else error

    def _forget(self, session: str, gone: Gone) -> EvolventError:
        """The worker has no such session any more: neither have we. What was lost is remembered."""
        error = gone.error
        if self._drop(session) and isinstance(error, EnvLost | StepTimeout):
            self._remember(session, str(error))
        return error

    def _remember(self, session: str, why: str) -> None:
        self._lost[session] = why
        while len(self._lost) > _LOST:
            self._lost.popitem(last=False)

    def _drop(self, session: str) -> bool:
        held = self._held.pop(session, None)
        if held is None:
            return False
        held[0].sessions.discard(session)
        self._counts[held[1]] -= 1
        return True

    def _noticed(self, what: str, sessions: Sequence[str]) -> None:
        """A worker tells of sessions whose lease has ended."""
        if what == "reaped":
            for session in sessions:
                self._drop(session)

    async def _keep(self, place: int) -> None:
        """Watch over one worker after another: when it ends, its sessions are lost and another is started."""
        pause = 0.0
        while True:
            worker = self._workers[place]
            await self._watch(worker)
            lived = time.monotonic() - worker.started_s
            _log.warning("worker %d is gone with %d sessions", worker.pid, len(worker.sessions))
            self._earlier_steps, worker.steps = self._earlier_steps + worker.steps, 0
            for session in list(worker.sessions):
                self._drop(session)
                self._remember(session, f"its worker process {worker.pid} ended")
            await worker.stop()
            pause = 0.0 if lived > _BRIEF_S else min(_PAUSES_S[1], max(_PAUSES_S[0], 2 * pause))
            await asyncio.sleep(pause)
            self._workers[place] = fresh = WorkerProcess(self._plan, self._noticed)
            try:
                await fresh.start()
                self._restarts += 1
            except EvolventError as error:
                _log.error("a worker could not be started again: %s", error)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait for the end of a worker; one that says nothing for longer than any call may take is killed."""
        longest = max(_SILENT_S, self._plan.limits.reset_s, self._plan.limits.step_s)
        while not worker.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), HEARTBEAT_S)
            if time.monotonic() - worker.heard_s > longest:
                _log.warning("worker %d said nothing for %g s and is killed", worker.pid, longest)
                worker.kill()

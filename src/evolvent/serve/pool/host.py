"""Sessions in worker processes: every session lives in one of them, and its calls are sent there.

A worker that dies loses its sessions (later calls raise EnvLost) and is started again; the others continue.

One worker process, seen from the parent process: its start, its requests, and its end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any

from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    Problem,
    SessionGone,
    StepTimeout,
    WorldError,
    unknown_name_problem,
)
from evolvent.serve.host import HostStatus, ResetResult, SessionSnapshot, StepRequest, StepResult
from evolvent.serve.local import WorldDeadlines
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.pool.frames import HEARTBEAT_S, ItemProtocol
from evolvent.serve.sessions import create_session_id
from evolvent.serve.wire import NotFound, WireValue, decode_error, decode_snapshot, encode_task
from evolvent.trajectory import Task
from evolvent.worlds.base import World

__all__ = ["Factory", "PooledHost", "SessionDropped", "WorkerConfig", "WorkerProcess", "qualified_name"]


_WORKER_MODULE = "evolvent.serve.pool.worker"
_START_TIMEOUT_S = 120.0  # how long the worlds may take to be built
_STOP_TIMEOUT_S = 8.0  # how long a worker may take to close its Envs
_POLL_S = 0.02
Factory = Callable[[Sequence[str]], Mapping[str, World]]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker: the function that makes the worlds (as `module:name`), their names, the limits."""

    factory: str
    names: tuple[str, ...]
    capacity: int
    idle_s: float
    limits: WorldDeadlines


class SessionDropped(Exception):
    """A request failed with this error, and the worker no longer has the session."""

    def __init__(self, error: EvolventError) -> None:
        super().__init__(str(error))
        self.error = error


def qualified_name(factory: Factory) -> str:
    """Returns the name by which another process finds a function.

    Raises:
        ConfigError: it is not at the top level of a module that can be imported.
    """
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__" or getattr(import_module(module) if module else None, name, None) is not factory:
        raise ConfigError(
            "workers cannot import this function",
            value=f"{module}:{name}",
            expected="a function at the top level of a module",
        )
    return f"{module}:{name}"


class WorkerProcess:
    """A process that holds sessions.

    Args:
        config: its settings.
        on_notice: called with unrequested messages of the worker: ("reaped", [ids]).

    Attributes:
        sessions: ids of its sessions; maintained by their creator.
        steps: number of steps that it has taken.
        ended: set when it has ended, for whatever reason.
        heard_s: time of its last message, by the monotonic clock.
    """

    def __init__(self, config: WorkerConfig, on_notice: Callable[[str, Sequence[str]], None]) -> None:
        self.sessions: set[str] = set()
        self.steps = 0
        self.ended = asyncio.Event()
        self.heard_s = self.started_s = time.monotonic()
        self._plan, self._noticed = config, on_notice
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: ItemProtocol | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Returns the id of the process; 0 before it is started."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_alive(self) -> bool:
        """Returns whether the process is ready and has not ended."""
        return self._frames is not None and self._ready.done() and not self.ended.is_set()

    async def start(self) -> None:
        """Starts the process and waits until its worlds are built.

        Raises:
            ConfigError, WorldError, ...: an error of its factory.
            WorldError: it ended by itself, or took too long.
        """
        is_ready = False
        try:
            await self._connect()
            config = self._plan
            self._send(
                {
                    "factory": config.factory,
                    "names": list(config.names),
                    "path": sys.path,
                    "capacity": config.capacity,
                    "idle_s": config.idle_s,
                    "reset_s": config.limits.reset_s,
                    "step_s": config.limits.step_s,
                }
            )
            done, _ = await asyncio.wait([self._ready], timeout=_START_TIMEOUT_S)
            if not done:
                raise WorldError(
                    "a worker was not ready in time", value=f"{_START_TIMEOUT_S:g} s", hint="read the worker's output"
                )
            await self._ready
            is_ready = True
        finally:
            if not is_ready:
                self.ended.set()
                await self._wait_for_exit(0.0 if self._ready.done() else 0.5)

    def ask(self, op: str, *args: object) -> asyncio.Future[WireValue]:
        """Submits an operation; the future has its answer, or a `SessionDropped`, or the typed error.

        Raises:
            EnvLost: the worker has ended.
        """
        if not self.is_alive:
            raise _lost_error(self.pid)
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._send([self._number, op, *args])
        return future

    def kill(self) -> None:
        """Kills the process at once: it hangs."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Stops the process after its Envs are closed. If it does not end by itself, it is killed."""
        if self._frames is not None:
            self._frames.close()
        await self._wait_for_exit(_STOP_TIMEOUT_S)

    async def _connect(self) -> None:
        parent_socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER_MODULE, str(child_socket.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()
        _, self._frames = await loop.create_connection(
            lambda: ItemProtocol(self._receive, self._handle_loss), sock=parent_socket
        )

    def _send(self, item: object) -> None:
        if self._frames is not None:
            self._frames.send(encode_compact(item))

    def _receive(self, item: Any) -> None:
        self.heard_s = time.monotonic()
        number, event, *details = item
        if number:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                _set_result(future, event, details)
        elif event == "steps":
            self.steps = details[0]
        elif event == "failed":
            self._ready.set_exception(decode_error(details[0]))
        elif event == "ready":
            self._ready.set_result(None)
        elif event != "alive":
            self._noticed(event, details[0])

    def _handle_loss(self) -> None:
        """Fails all open requests after the connection has ended."""
        self._frames = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_lost_error(self.pid))
        self._waiting.clear()
        if not self._ready.done():
            code = self._process.poll() if self._process is not None else None
            exit_text = "at once" if code is None else f"exit code {code}"
            self._ready.set_exception(
                WorldError("a worker ended before it was ready", value=exit_text, hint="read the worker's output")
            )
        self.ended.set()

    async def _wait_for_exit(self, timeout_s: float) -> None:
        """Waits for the end of the process; after the timeout it is terminated, then killed."""
        process = self._process
        if process is None:
            return
        for end, wait_s in ((process.terminate, timeout_s), (process.kill, 1.0), (process.kill, 5.0)):
            until = time.monotonic() + wait_s
            while process.poll() is None and time.monotonic() < until:
                await asyncio.sleep(_POLL_S)
            if process.poll() is not None:
                break
            end()
        if process.stdin is not None:
            process.stdin.close()
        if self._frames is not None:
            self._frames.close()


def _set_result(future: asyncio.Future[Any], answer: Any, error_parts: list[Any]) -> None:
    """Sets the answer of a request, or the error in `error_parts`."""
    if not error_parts:
        future.set_result(answer)
        return
    error = decode_error(error_parts[0])
    future.set_exception(SessionDropped(error) if error_parts[1] else error)


def _lost_error(pid: int) -> EnvLost:
    return EnvLost("the worker process of the session died", value=f"process {pid}", hint="create another session")


_log = logging.getLogger(__name__)
_MAX_LOST = 4096  # lost sessions whose fate is remembered
_SHORT_LIFE_S = 10.0  # a worker that lived no longer is started again after a pause
_PAUSES_S = (0.5, 30.0)  # the first and the longest such pause
_MIN_SILENCE_S = 10.0
_RETRY_S = 1.0


class PooledHost:
    """A `SessionHost` whose Envs live in worker processes. Use it as an asynchronous context manager (nested: as
    one).

    Args:
        worlds: worlds of this process, for panels, instructions, experts and scores.
        factory: makes the same worlds in a worker, from their names; a function at the top level of a module.
        names: arguments of the factory.
        workers: number of processes.
        capacity: as for `LocalHost`, over all workers.
        idle_s: as for `LocalHost`.
        limits: as for `LocalHost`.
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
        limits: WorldDeadlines | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError([Problem("workers", f"got {workers}, expected 1 or more")])
        self._worlds, self._capacity = worlds, capacity
        self._plan = WorkerConfig(qualified_name(factory), tuple(names), capacity, idle_s, limits or WorldDeadlines())
        self._count = workers
        self._workers: list[WorkerProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._held: dict[str, tuple[WorkerProcess, str]] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._created = self._restarts = self._earlier_steps = self._depth = 0

    @property
    def worlds(self) -> Mapping[str, World]:
        """Returns the served worlds by name."""
        return self._worlds

    @property
    def pids(self) -> list[int]:
        """Returns the process ids of the running workers."""
        return [worker.pid for worker in self._workers if worker.is_alive]

    def status(self) -> HostStatus:
        """Returns live counts."""
        steps = self._earlier_steps + sum(worker.steps for worker in self._workers)
        sessions = {name: self._counts[name] for name in self._worlds}
        return HostStatus(sessions, self._capacity, self._created, steps, self._restarts)

    async def __aenter__(self) -> PooledHost:
        self._depth += 1
        if self._depth == 1:
            self._workers = [WorkerProcess(self._plan, self._handle_notice) for _ in range(self._count)]
            started = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
            failed = [error for error in started if isinstance(error, BaseException)]
            if failed:
                self._depth -= 1
                await asyncio.gather(*(worker.stop() for worker in self._workers))
                raise failed[0]
            self._keepers = [asyncio.create_task(self._supervise(index)) for index in range(self._count)]
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
        """Creates a session in the worker that holds the fewest; see `SessionHost.create`."""
        if world not in self._worlds:
            raise NotFound([unknown_name_problem("world", world, self._worlds)])
        alive = [worker for worker in self._workers if worker.is_alive]
        if len(self._held) >= self._capacity or not alive:
            full = f"{len(self._held)} of {self._capacity}" if alive else "every worker is starting"
            raise AtCapacity("no free session", value=full, retry_after_s=_RETRY_S)
        worker = min(alive, key=lambda candidate: len(candidate.sessions))
        session = create_session_id(short=short)
        while session in self._held or session in self._lost:
            session = create_session_id(short=short)
        self._held[session] = (worker, world)
        worker.sessions.add(session)
        self._counts[world] += 1
        opened = False
        try:
            await worker.ask("open", world, session)
            opened = True
        finally:
            if not opened:
                self._remove_session(session)
        self._created += 1
        return session

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> ResetResult:
        """Starts an episode; see `SessionHost.reset`."""
        observation, info = await self._call_worker(session, "reset", encode_task(task), seed)
        return ResetResult(observation, info)

    async def step(self, session: str, action: str, *, step: int | None = None) -> StepResult:
        """Plays a step, or returns the stored answer again; see `SessionHost.step`."""
        return StepResult(*await self._call_worker(session, "step", action, step))

    async def steps(self, items: Sequence[StepRequest]) -> list[StepResult | EvolventError]:
        """Plays many steps, one message a worker; see `SessionHost.steps`."""
        answers: list[Any] = [None] * len(items)
        groups: dict[WorkerProcess, list[int]] = {}
        for index, item in enumerate(items):
            try:
                groups.setdefault(self._find_worker(item.session), []).append(index)
            except EvolventError as error:
                answers[index] = error
        pending = []
        for worker, indices in groups.items():
            requests = [items[index] for index in indices]
            parts = [[item.session, item.action, item.step] for item in requests]
            pending.append((indices, worker.ask("steps", parts)))
        for indices, future in pending:
            try:
                rows = await future
            except (EvolventError, SessionDropped) as error:
                rows = [[error]] * len(indices)
            for index, row in zip(indices, rows, strict=True):
                answers[index] = self._parse_answer(items[index].session, row)
        return answers

    async def look(self, session: str) -> SessionSnapshot:
        """Returns the state of the session; see `SessionHost.look`."""
        return decode_snapshot(await self._call_worker(session, "look"))

    async def close(self, session: str) -> bool:
        """Closes a session; see `SessionHost.close`."""
        if session not in self._held:
            return False
        try:
            closed = await self._call_worker(session, "close")
        except (SessionGone, EnvLost):
            return False
        self._remove_session(session)
        return bool(closed)

    def _find_worker(self, session: str) -> WorkerProcess:
        """Returns the process that holds the session; raises SessionGone or EnvLost if there is none."""
        assignment = self._held.get(session)
        if assignment is not None and assignment[0].is_alive:
            return assignment[0]
        if assignment is None and session not in self._lost:
            expected = "the id of an open session"
            raise SessionGone("unknown session", value=session, expected=expected)
        reason = self._lost.get(session, "its worker process has ended")
        raise EnvLost("the session was lost", value=reason, hint="create another session")

    async def _call_worker(self, session: str, op: str, *args: Any) -> Any:
        try:
            return await self._find_worker(session).ask(op, session, *args)
        except SessionDropped as dropped:
            raise self._forget_session(session, dropped) from dropped

    def _parse_answer(self, session: str, row: list[Any]) -> StepResult | EvolventError:
        """Parses one answer of a batch: a step, an error (and whether the session is gone), or the failure of the
        batch.
        """
        if len(row) == 1:
            error = row[0]
            return self._forget_session(session, error) if isinstance(error, SessionDropped) else error
        if len(row) > 2:
            return StepResult(*row)
        error = decode_error(row[0])
        return self._forget_session(session, SessionDropped(error)) if row[1] else error

    def _forget_session(self, session: str, dropped: SessionDropped) -> EvolventError:
        """Removes a session that its worker no longer has. The fate of a lost session is recorded."""
        error = dropped.error
        if self._remove_session(session) and isinstance(error, EnvLost | StepTimeout):
            self._record_loss(session, str(error))
        return error

    def _record_loss(self, session: str, reason: str) -> None:
        self._lost[session] = reason
        while len(self._lost) > _MAX_LOST:
            self._lost.popitem(last=False)

    def _remove_session(self, session: str) -> bool:
        assignment = self._held.pop(session, None)
        if assignment is None:
            return False
        assignment[0].sessions.discard(session)
        self._counts[assignment[1]] -= 1
        return True

    def _handle_notice(self, event: str, sessions: Sequence[str]) -> None:
        """Removes sessions whose lease has ended, as a worker reports."""
        if event == "reaped":
            for session in sessions:
                self._remove_session(session)

    async def _supervise(self, index: int) -> None:
        """Replaces ended workers in one slot: their sessions are lost and another worker is started."""
        pause = 0.0
        while True:
            worker = self._workers[index]
            await self._watch_worker(worker)
            lifetime_s = time.monotonic() - worker.started_s
            _log.warning("worker %d died with %d sessions", worker.pid, len(worker.sessions))
            self._earlier_steps, worker.steps = self._earlier_steps + worker.steps, 0
            for session in list(worker.sessions):
                self._remove_session(session)
                self._record_loss(session, f"its worker process {worker.pid} ended")
            await worker.stop()
            pause = 0.0 if lifetime_s > _SHORT_LIFE_S else min(_PAUSES_S[1], max(_PAUSES_S[0], 2 * pause))
            await asyncio.sleep(pause)
            self._workers[index] = replacement = WorkerProcess(self._plan, self._handle_notice)
            try:
                await replacement.start()
                self._restarts += 1
            except EvolventError as error:
                _log.error("a worker could not be started again: %s", error)

    async def _watch_worker(self, worker: WorkerProcess) -> None:
        """Waits for the end of a worker; kills one that is silent for longer than any call may take."""
        max_silence_s = max(_MIN_SILENCE_S, self._plan.limits.reset_s, self._plan.limits.step_s)
        while not worker.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), HEARTBEAT_S)
            if time.monotonic() - worker.heard_s > max_silence_s:
                _log.warning("killing worker %d: no answer for %g s", worker.pid, max_silence_s)
                worker.kill()

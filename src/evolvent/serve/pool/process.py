"""One worker process, seen from the process in front: started, asked, watched, ended."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from evolvent.errors import ConfigError, EnvLost, EvolventError, WorldError
from evolvent.serve.local import Limits
from evolvent.serve.native.rows import json_text
from evolvent.serve.pool.frames import Frames
from evolvent.serve.wire import error_of
from evolvent.worlds.base import World

__all__ = ["Factory", "Gone", "Plan", "WorkerProcess", "name_of"]

_log = logging.getLogger(__name__)
_WORKER = "evolvent.serve.pool.worker"
_START_S = 120.0  # how long the worlds may take to be built
_STOP_S = 8.0  # how long a worker may take to close its Envs
_POLL_S = 0.02
Factory = Callable[[Sequence[str]], Mapping[str, World]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker needs to know: the function that makes the worlds (as `module:name`), their names, the limits."""

    factory: str
    names: tuple[str, ...]
    capacity: int
    idle_s: float
    limits: Limits


class Gone(Exception):
    """A request failed with this error, and the worker has no such session any more."""

    def __init__(self, error: EvolventError) -> None:
        super().__init__(str(error))
        self.error = error


def name_of(factory: Factory) -> str:
    """The name by which another process finds a function.

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
        plan: what it serves.
        noticed: told of what the worker says unasked: ("reaped", [ids]).

    Attributes:
        sessions: the sessions that it holds; kept by whoever creates them.
        steps: taken by it so far.
        ended: set when it is gone, for whatever reason.
        heard_s: when it was heard last, by the monotonic clock.
    """

    def __init__(self, plan: Plan, noticed: Callable[[str, Any], None]) -> None:
        self.sessions: set[str] = set()
        self.steps = 0
        self.ended = asyncio.Event()
        self.heard_s = self.started_s = time.monotonic()
        self._plan, self._noticed = plan, noticed
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: Frames | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Of the process; 0 before it is started."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether it is ready and not gone."""
        return self._frames is not None and self._ready.done() and not self.ended.is_set()

    async def start(self) -> None:
        """Start it and wait until its worlds are built.

        Raises:
            ConfigError, WorldError, ...: what its factory raised.
            WorldError: it ended by itself, or took too long.
        """
        ready = False
        try:
            await self._connect()
            plan = self._plan
            self._say(
                {
                    "factory": plan.factory,
                    "names": list(plan.names),
                    "path": sys.path,
                    "capacity": plan.capacity,
                    "idle_s": plan.idle_s,
                    "reset_s": plan.limits.reset_s,
                    "step_s": plan.limits.step_s,
                }
            )
            done, _ = await asyncio.wait([self._ready], timeout=_START_S)
            if not done:
                raise WorldError("a worker did not get ready", value=f"{_START_S:g} s", hint="its output may say why")
            await self._ready
            ready = True
        finally:
            if not ready:
                self.ended.set()
                await self._over(0.0 if self._ready.done() else 0.5)

    def ask(self, op: str, *args: Any) -> asyncio.Future[Any]:
        """Ask for an operation; the future has its answer, or a `Gone`, or the typed error.

        Raises:
            EnvLost: the worker is gone.
        """
        if not self.alive:
            raise _lost_with(self.pid)
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._say([self._number, op, *args])
        return future

    def kill(self) -> None:
        """End it at once: it hangs."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """End it in good order: its Envs are closed. One that does not end by itself is killed."""
        if self._frames is not None:
            self._frames.close()
        await self._over(_STOP_S)

    async def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()
        _, self._frames = await loop.create_connection(lambda: Frames(self._heard, self._lost), sock=ours)

    def _say(self, item: object) -> None:
        if self._frames is not None:
            self._frames.send(json_text(item))

    def _heard(self, item: Any) -> None:
        self.heard_s = time.monotonic()
        number, said, *rest = item
        if number:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                _settle(future, said, rest)
        elif said == "steps":
            self.steps = rest[0]
        elif said == "failed":
            self._ready.set_exception(error_of(rest[0]))
        elif said == "ready":
            self._ready.set_result(None)
        elif said != "alive":
            self._noticed(said, rest[0])

    def _lost(self) -> None:
        """The connection has ended, and with it everything that the worker held."""
        self._frames = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_lost_with(self.pid))
        self._waiting.clear()
        if not self._ready.done():
            code = self._process.poll() if self._process is not None else None
            told = "at once" if code is None else f"exit code {code}"
            self._ready.set_exception(
                WorldError("a worker ended before it was ready", value=told, hint="its output says why")
            )
        self.ended.set()

    async def _over(self, patience_s: float) -> None:
        """Wait for the end of the process; after the patience it is terminated, then killed."""
        process = self._process
        if process is None:
            return
        for end, wait_s in ((process.terminate, patience_s), (process.kill, 1.0), (process.kill, 5.0)):
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


def _settle(future: asyncio.Future[Any], said: Any, rest: list[Any]) -> None:
    """Give a request its answer, or the error that `rest` tells of."""
    if not rest:
        future.set_result(said)
        return
    error = error_of(rest[0])
    future.set_exception(Gone(error) if rest[1] else error)


def _lost_with(pid: int) -> EnvLost:
    return EnvLost("the worker process of the session is gone", value=f"process {pid}", hint="create another session")

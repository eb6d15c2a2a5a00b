"""One worker process, seen from the parent process: its start, its requests, and its end."""

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
from evolvent.serve.local import WorldDeadlines
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.pool.frames import ItemProtocol
from evolvent.serve.wire import WireValue, decode_error
from evolvent.worlds.base import World

__all__ = ["Factory", "SessionDropped", "WorkerConfig", "WorkerProcess", "qualified_name"]

_log = logging.getLogger(__name__)
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
                    "a worker did not get ready", value=f"{_START_TIMEOUT_S:g} s", hint="its output may say why"
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
                WorldError("a worker ended before it was ready", value=exit_text, hint="its output says why")
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
    return EnvLost("the worker process of the session is gone", value=f"process {pid}", hint="create another session")

"""A worker process: it builds the worlds and holds the Envs of its sessions; the parent process does HTTP.

`serve.pool.host` starts it with the number of a socket as its only argument. Standard input shows whether the parent
lives: when it ends, the parent is gone, and the worker ends too, whatever a world is doing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from evolvent.errors import ConfigError, EnvLost, EvolventError, WorldError, boundary
from evolvent.logs import configure
from evolvent.serve.host import StepRequest, StepResult
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.pool.frames import HEARTBEAT_S, ItemProtocol
from evolvent.serve.wire import decode_task, encode_error, encode_snapshot
from evolvent.worlds.base import World

__all__ = ["build_worlds", "main"]

_CLOSE_TIMEOUT_S = 6.0  # how long worlds may take to close when the process in front is gone


def build_worlds(factory: str, names: list[str]) -> Mapping[str, World]:
    """Builds the worlds that a factory, named `module:function`, makes from their names.

    Raises:
        ConfigError: no such function.
        WorldError: it failed.
    """
    module, _, name = factory.partition(":")
    with boundary(WorldError, "the worlds could not be built", factory=factory):
        make: Callable[[list[str]], Mapping[str, World]] | None = getattr(import_module(module), name, None)
        if not callable(make):
            raise ConfigError("invalid world factory", value=factory, expected="module:function")
        return make(names)


class _Worker:
    """Runs the requests of the parent process on a `LocalHost`."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.frames: ItemProtocol | None = None
        self.host: LocalHost | None = None
        self._told = 0
        self._greeting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Receives the greeting, builds the worlds, then serves requests until the connection ends."""
        greeting = await self._greeting
        try:
            sys.path.extend(part for part in greeting["path"] if part not in sys.path)
            worlds = build_worlds(greeting["factory"], greeting["names"])
        except EvolventError as error:
            self._send([0, "failed", encode_error(error)])
            return
        limits = WorldDeadlines(greeting["reset_s"], greeting["step_s"])
        async with LocalHost(
            worlds,
            capacity=greeting["capacity"],
            idle_s=greeting["idle_s"],
            limits=limits,
            on_reaped=self._report_reaped,
        ) as self.host:
            self._send([0, "ready"])
            while not self.stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), HEARTBEAT_S)
                self._send([0, "alive"])

    def receive(self, item: Any) -> None:
        """Receives one request: `[number, op, ...]`, or first of all the greeting."""
        if self.host is None:
            if not self._greeting.done():
                self._greeting.set_result(item)
            return
        number, op, *arguments = item
        if op == "step" and self.host.is_fast(arguments[0]):
            try:
                answer = [number, _step_row(self.host.step_now(arguments[0], arguments[1], step=arguments[2]))]
            except EvolventError as error:
                answer = self._error_answer(number, arguments[0], error)
            self._send(answer)
            return
        task = asyncio.create_task(self._run_request(self.host, number, request=(op, *arguments)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def read_step_count(self) -> str | None:
        """Returns the number of steps taken as a message, if it has changed since the last message."""
        total = self.host.status().steps if self.host is not None else 0
        if total == self._told:
            return None
        self._told = total
        return f'[0,"steps",{total}]'

    async def _run_request(self, host: LocalHost, number: int, *, request: tuple[Any, ...]) -> None:
        try:
            with boundary(WorldError, "a fault of the worker"):
                answer = [number, await _run_operation(self, host, request)]
        except EvolventError as error:
            answer = self._error_answer(number, str(request[1]), error)
        self._send(answer, batch=request[0] == "steps" and len(answer) == 2)

    def _error_answer(self, number: int, session: str, error: EvolventError) -> list[Any]:
        """Returns an error, and whether the session is gone with it."""
        is_held = self.host is not None and self.host.has_session(session)
        return [number, None, encode_error(error), not is_held]

    def item_error(self, item: StepRequest, error: EvolventError) -> list[Any]:
        """Returns the error of one step of a batch, and whether its session is gone."""
        return self._error_answer(0, item.session, error)[2:]

    def _send(self, item: list[Any], *, batch: bool = False) -> None:
        """Sends an item. If a value of a world is not JSON, the request fails, in a batch only the step."""
        if self.frames is None:
            return
        try:
            text = encode_compact(item)
        except EnvLost as error:
            error_answer = (
                [item[0], list(map(_json_or_error, item[1]))] if batch else [item[0], None, encode_error(error), False]
            )
            text = encode_compact(error_answer)
        self.frames.send(text)

    def _report_reaped(self, sessions: list[str]) -> None:
        self._send([0, "reaped", sessions])


async def _run_operation(worker: _Worker, host: LocalHost, request: tuple[Any, ...]) -> Any:
    """Runs one request; the shapes are those that `serve.pool` sends and reads."""
    op, *arguments = request
    if op == "open":
        return await host.create(arguments[0], id=arguments[1])
    if op == "reset":
        reset_result = await host.reset(arguments[0], decode_task(arguments[1]), seed=arguments[2])
        return [reset_result.observation, reset_result.info]
    if op == "step":
        return _step_row(await host.step(arguments[0], arguments[1], step=arguments[2]))
    if op == "steps":
        items = [StepRequest(*part) for part in arguments[0]]
        answers = await host.steps(items)
        return [
            _step_row(answer) if isinstance(answer, StepResult) else worker.item_error(item, answer)
            for item, answer in zip(items, answers, strict=True)
        ]
    if op == "look":
        return encode_snapshot(await host.look(arguments[0]))
    return await host.close(arguments[0])


def _step_row(result: StepResult) -> list[Any]:
    return [result.observation, result.reward, result.terminated, result.truncated, result.info, result.step]


def _json_or_error(row: list[Any]) -> list[Any]:
    """Returns one answer of a batch; an error, which does not end the session, if it is not JSON."""
    try:
        encode_compact(row)
    except EnvLost as error:
        return [encode_error(error), False]
    return row


async def _serve_descriptor(descriptor: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    threading.Thread(target=_exit_with_parent, args=(loop, stop), name="lifeline", daemon=True).start()
    worker = _Worker(stop)
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    _, worker.frames = await loop.create_connection(
        lambda: ItemProtocol(worker.receive, stop.set, first_item=worker.read_step_count), sock=connection
    )
    ending = asyncio.create_task(stop.wait())
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait([ending, serving], return_when=asyncio.FIRST_COMPLETED)
    if worker.host is not None or serving.done():
        await serving
    worker.frames.close()


def _exit_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Waits on its own thread for the end of the parent process, then ends this one."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
    threading.Event().wait(_CLOSE_TIMEOUT_S)
    os._exit(1)


def main() -> int:
    """Serves the socket whose number is the argument."""
    configure(os.environ, template="worker %(process)d: %(message)s")
    asyncio.run(_serve_descriptor(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

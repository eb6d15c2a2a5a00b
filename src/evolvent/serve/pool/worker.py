"""A worker process: it builds the worlds and holds the Envs of its sessions; the process in front of it does HTTP.

Started by `serve.process` with a socket as its only argument's number. Standard input is its lifeline: when that ends,
the process in front is gone, and so is the worker, whatever a world is doing.
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
from evolvent.serve.host import StepItem, Stepped
from evolvent.serve.local import Limits, LocalHost
from evolvent.serve.native.rows import json_text
from evolvent.serve.pool.frames import Frames
from evolvent.serve.wire import error_row, look_row, task_of
from evolvent.worlds.base import World

__all__ = ["HEARTBEAT_S", "built", "main"]

HEARTBEAT_S = 1.0
_GRACE_S = 6.0  # how long worlds may take to close when the process in front is gone


def built(factory: str, names: list[str]) -> Mapping[str, World]:
    """The worlds that a factory, named `module:function`, makes of their names.

    Raises:
        ConfigError: no such function.
        WorldError: it failed.
    """
    module, _, name = factory.partition(":")
    with boundary(WorldError, "the worlds could not be built", factory=factory):
        make: Callable[[list[str]], Mapping[str, World]] | None = getattr(import_module(module), name, None)
        if not callable(make):
            raise ConfigError("no function that makes worlds", value=factory, expected="module:function")
        return make(names)


class _Worker:
    """The requests of the process in front, done by a `LocalHost`."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.frames: Frames | None = None
        self.host: LocalHost | None = None
        self._told = 0
        self._greeting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Greet, build, then do what is asked until the connection ends."""
        hello = await self._greeting
        try:
            sys.path.extend(part for part in hello["path"] if part not in sys.path)
            worlds = built(hello["factory"], hello["names"])
        except EvolventError as error:
            self._say([0, "failed", error_row(error)])
            return
        limits = Limits(hello["reset_s"], hello["step_s"])
        async with LocalHost(
            worlds, capacity=hello["capacity"], idle_s=hello["idle_s"], limits=limits, reaped=self._reaped
        ) as self.host:
            self._say([0, "ready"])
            while not self.stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), HEARTBEAT_S)
                self._say([0, "alive"])

    def heard(self, item: Any) -> None:
        """One request: `[number, op, ...]`, or first of all the greeting."""
        if self.host is None:
            if not self._greeting.done():
                self._greeting.set_result(item)
            return
        number, op, *rest = item
        if op == "step" and self.host.quick(rest[0]):
            try:
                said = [number, _row(self.host.now(rest[0], rest[1], step=rest[2]))]
            except EvolventError as error:
                said = self._failed(number, rest[0], error)
            self._say(said)
            return
        task = asyncio.create_task(self._do(self.host, number, asked=(op, *rest)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def steps(self) -> str | None:
        """The number of steps taken, where it has changed since it was last told."""
        total = self.host.status().steps if self.host is not None else 0
        if total == self._told:
            return None
        self._told = total
        return f'[0,"steps",{total}]'

    async def _do(self, host: LocalHost, number: int, *, asked: tuple[Any, ...]) -> None:
        try:
            with boundary(WorldError, "a fault of the worker"):
                said = [number, await _done(self, host, asked)]
        except EvolventError as error:
            said = self._failed(number, str(asked[1]), error)
        self._say(said, batch=asked[0] == "steps" and len(said) == 2)

    def _failed(self, number: int, session: str, error: EvolventError) -> list[Any]:
        """An error, and whether the session is gone with it."""
        held = self.host is not None and self.host.holds(session)
        return [number, None, error_row(error), not held]

    def failed_item(self, item: StepItem, error: EvolventError) -> list[Any]:
        """The same for one step of a batch."""
        return self._failed(0, item.session, error)[2:]

    def _say(self, item: list[Any], *, batch: bool = False) -> None:
        """Send an item. What a world handed out may be no JSON: then that fails, in a batch the step alone."""
        if self.frames is None:
            return
        try:
            said = json_text(item)
        except EnvLost as error:
            failed = [item[0], list(map(_readable, item[1]))] if batch else [item[0], None, error_row(error), False]
            said = json_text(failed)
        self.frames.send(said)

    def _reaped(self, sessions: list[str]) -> None:
        self._say([0, "reaped", sessions])


async def _done(worker: _Worker, host: LocalHost, asked: tuple[Any, ...]) -> Any:
    """Do one request; the shapes are those that `serve.pool` sends and reads."""
    op, *rest = asked
    if op == "open":
        return await host.create(rest[0], id=rest[1])
    if op == "reset":
        seen = await host.reset(rest[0], task_of(rest[1]), seed=rest[2])
        return [seen.observation, seen.info]
    if op == "step":
        return _row(await host.step(rest[0], rest[1], step=rest[2]))
    if op == "steps":
        items = [StepItem(*part) for part in rest[0]]
        answers = await host.steps(items)
        return [
            _row(answer) if isinstance(answer, Stepped) else worker.failed_item(item, answer)
            for item, answer in zip(items, answers, strict=True)
        ]
    if op == "look":
        return look_row(await host.look(rest[0]))
    return await host.close(rest[0])


def _row(done: Stepped) -> list[Any]:
    return [done.observation, done.reward, done.terminated, done.truncated, done.info, done.step]


def _readable(row: list[Any]) -> list[Any]:
    """One answer of a batch; an error, which does not end the session, where it is no JSON."""
    try:
        json_text(row)
    except EnvLost as error:
        return [error_row(error), False]
    return row


async def _serve(descriptor: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    threading.Thread(target=_lifeline, args=(loop, stop), name="lifeline", daemon=True).start()
    worker = _Worker(stop)
    os.set_inheritable(descriptor, False)
    link = socket.socket(fileno=descriptor)
    _, worker.frames = await loop.create_connection(
        lambda: Frames(worker.heard, stop.set, first=worker.steps), sock=link
    )
    ending = asyncio.create_task(stop.wait())
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait([ending, serving], return_when=asyncio.FIRST_COMPLETED)
    if worker.host is not None or serving.done():
        await serving
    worker.frames.close()


def _lifeline(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """On a thread of its own: wait for the end of the process in front, then end this one."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
    threading.Event().wait(_GRACE_S)
    os._exit(1)


def main() -> int:
    """Serve the socket whose number is the argument."""
    configure(os.environ, template="worker %(process)d: %(message)s")
    asyncio.run(_serve(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The native dialect over one WebSocket: many sessions, many requests at once, each answered when it is ready.

A request is `{request_id, op, ...fields}`, its answer `{request_id, ok: body}` or `{request_id, error: row}`. Requests
of different sessions run side by side, those of one session in the order in which they came. For a client
that does not read its answers nothing more is read or done, so that what waits for it stays bounded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from evolvent.errors import ConfigError, EvolventError, LimitExceeded, Problem, boundary, unknown
from evolvent.serve.native.operations import Operations
from evolvent.serve.native.rows import json_text
from evolvent.serve.wire import decoded, error_row
from evolvent.web import Receive, Send, too_deep

__all__ = ["DEPTH", "HELD", "IN_FLIGHT", "socket"]

IN_FLIGHT = 4096  # requests of a socket that are not answered yet: several for each of a thousand sessions
HELD = 16 * 2**20  # characters of such requests; and of answers that the client has not taken yet
DEPTH = 64
_ID_CHARS = 200


async def socket(operations: Operations, receive: Receive, send: Send) -> None:
    """Serve one WebSocket from its handshake to its end; what runs then is finished, and answered to nobody."""
    await receive()
    await send({"type": "websocket.accept"})
    await _Link(operations, send).serve(receive)


class _Link:
    """One socket: its running requests, and the last one of every session."""

    def __init__(self, operations: Operations, send: Send) -> None:
        self._operations, self._send = operations, send
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._requests, self._asked, self._unsent = _Gate(IN_FLIGHT), _Gate(HELD), _Gate(HELD)

    async def serve(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            try:
                name, op, body = _request(text)
            except _Unreadable as problem:
                await self._say(problem.request_id, f'"error":{json_text(error_row(problem.error))}')
                continue
            self._start(name, op, body=body, size=len(text or ""))
            for gate in (self._requests, self._asked, self._unsent):
                await gate.open.wait()
        if self._running:
            await asyncio.wait(self._running)

    def _start(self, name: str, op: str, *, body: Mapping[str, Any], size: int) -> None:
        """Begin a request, after those of its sessions that run."""
        sessions = list(_sessions(op, body))
        before = {self._last[session] for session in sessions if session in self._last}
        task = asyncio.create_task(self._answer(name, op, body=body, before=before))
        self._running.add(task)
        self._requests.add(1)
        self._asked.add(size)
        for session in sessions:
            self._last[session] = task
        task.add_done_callback(lambda done: self._end(done, sessions, size=size))

    def _end(self, task: asyncio.Task[None], sessions: Iterable[str], *, size: int) -> None:
        self._running.discard(task)
        self._requests.add(-1)
        self._asked.add(-size)
        for session in sessions:
            if self._last.get(session) is task:
                del self._last[session]

    async def _answer(self, name: str, op: str, *, body: Mapping[str, Any], before: set[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        await self._unsent.open.wait()
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                said = f'"ok":{await self._operations.by_name[op](body)}'
        except EvolventError as error:
            said = f'"error":{json_text(error_row(error))}'
        await self._say(name, said)

    async def _say(self, name: str, said: str) -> None:
        """Send an answer; where the client has left, or the server has closed the socket, there is nobody to tell."""
        self._unsent.add(len(said))
        try:
            await self._send({"type": "websocket.send", "text": f'{{"request_id":{name},{said}}}'})
        except (OSError, RuntimeError):
            return
        finally:
            self._unsent.add(-len(said))


class _Gate:
    """A sum that closes an event while it is at or above its limit."""

    __slots__ = ("_most", "_sum", "open")

    def __init__(self, most: int) -> None:
        self._most, self._sum = most, 0
        self.open = asyncio.Event()
        self.open.set()

    def add(self, amount: int) -> None:
        self._sum += amount
        if self._sum >= self._most:
            self.open.clear()
        elif not self.open.is_set():
            self.open.set()


class _Unreadable(Exception):
    """A frame that is no request: why, and the JSON of its id, as far as it has one."""

    def __init__(self, request_id: str, error: EvolventError) -> None:
        super().__init__(str(error))
        self.request_id, self.error = request_id, error


def _request(text: str | None) -> tuple[str, str, Mapping[str, Any]]:
    """The id (as JSON text), operation and fields of a frame."""
    name = "null"
    try:
        if text is None:
            raise ConfigError([Problem("frame", "got bytes, expected a text frame that holds one JSON object")])
        if text.count("{") + text.count("[") > DEPTH and too_deep(text.encode("utf-8", "surrogatepass"), DEPTH):
            raise LimitExceeded("a frame that is nested too deeply", expected=f"at most {DEPTH} levels")
        body = decoded(text)
        if not isinstance(body, dict):
            raise ConfigError([Problem("frame", f"got {type(body).__name__}, expected one JSON object")])
        given, op = body.get("request_id"), body.get("op")
        if (type(given) is not int and type(given) is not str) or len(str(given)) > _ID_CHARS:
            raise ConfigError([Problem("request_id", f"got {type(given).__name__}, expected a number or a short text")])
        name = json.dumps(given)
        if not isinstance(op, str) or op not in _OPS:
            raise ConfigError([unknown("op", str(op)[:_ID_CHARS], _OPS)])
    except EvolventError as error:
        raise _Unreadable(name, error) from error
    return name, op, body


_OPS = ("create", "reset", "step", "steps", "look", "close", "ping")


def _sessions(op: str, body: Mapping[str, Any]) -> Iterable[str]:
    """The sessions that a request is about."""
    if op == "steps":
        parts = body.get("steps")
        named = (part.get("session") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
        return {name for name in named if isinstance(name, str)}
    session = body.get("session")
    return (session,) if isinstance(session, str) else ()

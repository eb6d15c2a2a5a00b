"""The native dialect over one WebSocket: many sessions, many requests at once, each answered when it is ready.

A request is `{request_id, op, ...fields}`, its answer `{request_id, ok: body}` or `{request_id, error: row}`. Requests
of different sessions run side by side, those of one session in the order in which they came. While a client does not
read its answers, no further requests are read or run, so that pending data stays bounded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from evolvent.errors import ConfigError, EvolventError, LimitExceeded, Problem, boundary, unknown_name_problem
from evolvent.serve.native.operations import Operations
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.wire import decode_json, encode_error
from evolvent.web import Receive, Send, is_too_deep

__all__ = ["MAX_DEPTH", "MAX_IN_FLIGHT", "MAX_PENDING_CHARS", "serve_socket"]

MAX_IN_FLIGHT = 4096  # requests of a socket that are not answered yet: several for each of a thousand sessions
MAX_PENDING_CHARS = 16 * 2**20  # characters of such requests; and of answers that the client has not taken yet
MAX_DEPTH = 64
_MAX_ID_CHARS = 200


async def serve_socket(operations: Operations, receive: Receive, send: Send) -> None:
    """Serves one WebSocket from its handshake to its end; running requests are finished, without an answer."""
    await receive()
    await send({"type": "websocket.accept"})
    await _SocketConnection(operations, send).serve(receive)


class _SocketConnection:
    """One socket: its running requests, and the last one of every session."""

    def __init__(self, operations: Operations, send: Send) -> None:
        self._operations, self._send = operations, send
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._requests, self._asked, self._unsent = (
            _PendingLimit(MAX_IN_FLIGHT),
            _PendingLimit(MAX_PENDING_CHARS),
            _PendingLimit(MAX_PENDING_CHARS),
        )

    async def serve(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            try:
                name, op, body = _parse_request(text)
            except _InvalidFrame as problem:
                await self._send_answer(problem.request_id, f'"error":{encode_compact(encode_error(problem.error))}')
                continue
            self._start_request(name, op, body=body, size=len(text or ""))
            for limit in (self._requests, self._asked, self._unsent):
                await limit.open.wait()
        if self._running:
            await asyncio.wait(self._running)

    def _start_request(self, name: str, op: str, *, body: Mapping[str, Any], size: int) -> None:
        """Starts a request after the running requests of its sessions."""
        sessions = list(_find_sessions(op, body))
        predecessors = {self._last[session] for session in sessions if session in self._last}
        task = asyncio.create_task(self._answer_request(name, op, body=body, predecessors=predecessors))
        self._running.add(task)
        self._requests.add(1)
        self._asked.add(size)
        for session in sessions:
            self._last[session] = task
        task.add_done_callback(lambda done: self._finish_request(done, sessions, size=size))

    def _finish_request(self, task: asyncio.Task[None], sessions: Iterable[str], *, size: int) -> None:
        self._running.discard(task)
        self._requests.add(-1)
        self._asked.add(-size)
        for session in sessions:
            if self._last.get(session) is task:
                del self._last[session]

    async def _answer_request(
        self, name: str, op: str, *, body: Mapping[str, Any], predecessors: set[asyncio.Task[None]]
    ) -> None:
        if predecessors:
            await asyncio.wait(predecessors)
        await self._unsent.open.wait()
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                answer_text = f'"ok":{await self._operations.by_name[op](body)}'
        except EvolventError as error:
            answer_text = f'"error":{encode_compact(encode_error(error))}'
        await self._send_answer(name, answer_text)

    async def _send_answer(self, name: str, answer_text: str) -> None:
        """Sends an answer; does nothing if the client has left, or the server has closed the socket."""
        self._unsent.add(len(answer_text))
        try:
            await self._send({"type": "websocket.send", "text": f'{{"request_id":{name},{answer_text}}}'})
        except (OSError, RuntimeError):
            return
        finally:
            self._unsent.add(-len(answer_text))


class _PendingLimit:
    """A sum that clears an event while it is at or above its limit."""

    __slots__ = ("_most", "_sum", "open")

    def __init__(self, limit: int) -> None:
        self._most, self._sum = limit, 0
        self.open = asyncio.Event()
        self.open.set()

    def add(self, amount: int) -> None:
        self._sum += amount
        if self._sum >= self._most:
            self.open.clear()
        elif not self.open.is_set():
            self.open.set()


class _InvalidFrame(Exception):
    """Signals a frame that is not a request, with the error and the JSON of its id, if it has one."""

    def __init__(self, request_id: str, error: EvolventError) -> None:
        super().__init__(str(error))
        self.request_id, self.error = request_id, error


def _parse_request(text: str | None) -> tuple[str, str, Mapping[str, Any]]:
    """Returns the id (as JSON text), operation and fields of a frame."""
    name = "null"
    try:
        if text is None:
            raise ConfigError([Problem("frame", "got bytes, expected a text frame that holds one JSON object")])
        if text.count("{") + text.count("[") > MAX_DEPTH and is_too_deep(
            text.encode("utf-8", "surrogatepass"), MAX_DEPTH
        ):
            raise LimitExceeded("a frame that is nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        body = decode_json(text)
        if not isinstance(body, dict):
            raise ConfigError([Problem("frame", f"got {type(body).__name__}, expected one JSON object")])
        request_id, op = body.get("request_id"), body.get("op")
        if (type(request_id) is not int and type(request_id) is not str) or len(str(request_id)) > _MAX_ID_CHARS:
            raise ConfigError(
                [Problem("request_id", f"got {type(request_id).__name__}, expected a number or a short text")]
            )
        name = json.dumps(request_id)
        if not isinstance(op, str) or op not in _OPS:
            raise ConfigError([unknown_name_problem("op", str(op)[:_MAX_ID_CHARS], _OPS)])
    except EvolventError as error:
        raise _InvalidFrame(name, error) from error
    return name, op, body


_OPS = ("create", "reset", "step", "steps", "look", "close", "ping")


def _find_sessions(op: str, body: Mapping[str, Any]) -> Iterable[str]:
    """Returns the sessions that a request is about."""
    if op == "steps":
        parts = body.get("steps")
        session_ids = (
            (part.get("session") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
        )
        return {name for name in session_ids if isinstance(name, str)}
    session = body.get("session")
    return (session,) if isinstance(session, str) else ()

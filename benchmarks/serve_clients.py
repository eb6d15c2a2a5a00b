"""Lean clients for measuring servers: HTTP/1.1 and WebSocket on asyncio protocols, with nothing in between.

A client library costs more than what is measured here, and would slow down the server's clients rather than the server.
Both clients do what a client must: they build each request when it is sent, mask what RFC 6455 wants masked, and decode
the JSON of each answer. `play` runs lines of requests side by side, each line one request at a time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A


@dataclass(slots=True)
class Played:
    """How long each request took (seconds), and the decoded answers of every line in their order."""

    latencies: list[float]
    answers: list[list[Any]]


class Lost(ConnectionError):
    """The server ended the connection, or answered what is no answer."""


class _Run:
    """Lines of work being done: what is asked next, what has been answered, and whether all is done."""

    def __init__(self, work: Sequence[Sequence[Any]]) -> None:
        self.work = work
        self.played = Played([], [[] for _ in work])
        self.began = [0.0] * len(work)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = sum(map(bool, work))
        if not self._left:
            self.over.set_result(None)

    def next(self, line: int) -> Any:
        """What the line asks now."""
        self.began[line] = time.perf_counter()
        return self.work[line][len(self.played.answers[line])]

    def answered(self, line: int, answer: Any) -> bool:
        """Note an answer; whether the line goes on."""
        played = self.played
        played.latencies.append(time.perf_counter() - self.began[line])
        played.answers[line].append(answer)
        if len(played.answers[line]) < len(self.work[line]):
            return True
        self._left -= 1
        if not self._left and not self.over.done():
            self.over.set_result(None)
        return False

    def fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)


class _Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time."""

    def __init__(self, host: bytes) -> None:
        self._head = b" HTTP/1.1\r\nhost: " + host + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._in = b""
        self.transport: asyncio.Transport | None = None
        self.heard: Callable[[int, bytes], None] = lambda status, body: None
        self.lost: Callable[[Exception], None] = lambda error: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.lost(Lost(f"a connection was closed: {error}"))

    def ask(self, method: bytes, path: bytes, body: bytes) -> None:
        if self.transport is None:
            return self.lost(Lost("a connection is closed"))
        return self.transport.write(method + b" " + path + self._head % len(body) + body)

    def data_received(self, data: bytes) -> None:
        data = self._in + data if self._in else data
        end = data.find(b"\r\n\r\n")
        size = _length(data[:end]) if end >= 0 else 0
        if end < 0 or len(data) < end + 4 + size:
            self._in = data
            return
        self._in = data[end + 4 + size :]
        self.heard(int(data[9:12]), data[end + 4 : end + 4 + size])


def _length(head: bytes) -> int:
    at = head.find(b"content-length: ")
    return int(head[at + 16 :].partition(b"\r\n")[0]) if at >= 0 else 0


class HttpLines:
    """As many keep-alive connections to one server as there are lines of work."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._connections: list[_Connection] = []

    async def open(self, count: int) -> None:
        """Have so many connections."""
        loop = asyncio.get_running_loop()
        host = b"%s:%d" % (self._address[0].encode(), self._address[1])
        while len(self._connections) < count:
            _, made = await loop.create_connection(lambda: _Connection(host), *self._address)
            self._connections.append(made)

    async def play(
        self, work: Sequence[Sequence[Any]], encode: Callable[[Any], tuple[bytes, bytes]], method: bytes = b"POST"
    ) -> Played:
        """Do the work, each line on a connection of its own; `encode` gives path and body of a request."""
        run = _Run(work)
        for line, connection in enumerate(self._connections[: len(work)]):
            self._bind(run, line, connection=connection, encode=encode, method=method)
            if work[line]:
                connection.ask(method, *encode(run.next(line)))
        try:
            await run.over
        finally:
            for connection in self._connections:
                connection.heard, connection.lost = (lambda status, body: None), (lambda error: None)
        return run.played

    def _bind(
        self,
        run: _Run,
        line: int,
        *,
        connection: _Connection,
        encode: Callable[[Any], tuple[bytes, bytes]],
        method: bytes,
    ) -> None:
        def heard(status: int, body: bytes) -> None:
            answer = json.loads(body)
            if status >= 300:
                answer = {"error": answer, "status": status}
            if run.answered(line, answer):
                connection.ask(method, *encode(run.next(line)))

        connection.heard, connection.lost = heard, run.fail

    async def close(self) -> None:
        for connection in self._connections:
            if connection.transport is not None:
                connection.transport.close()
        self._connections.clear()
        await asyncio.sleep(0)


class FreshLines:
    """A new connection for every request, as clients have that call `requests.post` without a session."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self, count: int) -> None:
        """Nothing is kept open."""

    async def play(self, work: Sequence[Sequence[Any]], encode: Callable[[Any], tuple[bytes, bytes]]) -> Played:
        """Do the work; the time of a request begins before its connection is made."""
        played = Played([], [[] for _ in work])

        async def line(part: Sequence[Any], answers: list[Any]) -> None:
            for asked in part:
                began = time.perf_counter()
                once = HttpLines(self._url)
                await once.open(1)
                answers += (await once.play([[asked]], encode)).answers[0]
                await once.close()
                played.latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(line(part, answers) for part, answers in zip(work, played.answers, strict=True)))
        return played

    async def close(self) -> None:
        """Nothing was kept open."""


class SocketLines(asyncio.Protocol):
    """One WebSocket that carries all lines; what is to be sent in one turn of the loop is written at once."""

    def __init__(self, url: str, path: str = "/v1/ws") -> None:
        parts = urlsplit(url)
        self._address, self._path = (parts.hostname or "", parts.port or 80), path
        self._in, self._out = bytearray(), list[bytes]()
        self._transport: asyncio.Transport | None = None
        self._open: asyncio.Future[None] | None = None
        self._run: _Run | None = None
        self._encode: Callable[[Any], str] = str

    async def open(self, count: int) -> None:
        """Connect and shake hands; however many lines there are, it is one socket."""
        if self._transport is not None:
            return
        loop = asyncio.get_running_loop()
        self._open = loop.create_future()
        await loop.create_connection(lambda: self, *self._address)
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {self._path} HTTP/1.1\r\nhost: {self._address[0]}:{self._address[1]}\r\nupgrade: websocket\r\n"
            f"connection: Upgrade\r\nsec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n"
        )
        self._write(head.encode())
        await self._open

    async def play(self, work: Sequence[Sequence[Any]], encode: Callable[[Any], str]) -> Played:
        """Do the work; `encode` gives the members of a request beside its id."""
        run = self._run = _Run(work)
        self._encode = encode
        for line, part in enumerate(work):
            if part:
                self._ask(line)
        try:
            await run.over
        finally:
            self._run = None
        return run.played

    async def close(self) -> None:
        if self._transport is not None:
            self._frame(CLOSE, b"\x03\xe8")
            self._flush()
            self._transport.close()
            await asyncio.sleep(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        lost = Lost(f"the WebSocket was closed: {error}")
        if self._open is not None and not self._open.done():
            self._open.set_exception(lost)
        if self._run is not None:
            self._run.fail(lost)

    def data_received(self, data: bytes) -> None:
        buffer = self._in
        buffer += data
        if self._open is not None and not self._open.done() and not self._shaken():
            return
        at = 0
        while (frame := _frame_at(buffer, at)) is not None:
            kind, start, at = frame
            self._heard(kind, bytes(buffer[start:at]))
        del buffer[:at]

    def _shaken(self) -> bool:
        """Whether the handshake is complete; its head is taken out of the buffer."""
        head, mark, rest = bytes(self._in).partition(b"\r\n\r\n")
        if not mark or self._open is None:
            return False
        if head.startswith(b"HTTP/1.1 101"):
            self._open.set_result(None)
        else:
            self._open.set_exception(Lost(f"no WebSocket: {head[:80]!r} {rest[:200]!r}"))
        self._in[:] = rest
        return True

    def _heard(self, kind: int, data: bytes) -> None:
        if kind == PING:
            self._frame(PONG, data)
        elif kind == TEXT and self._run is not None:
            message = json.loads(data)
            line = message["request_id"]
            if self._run.answered(line, message.get("ok", message)):
                self._ask(line)

    def _ask(self, line: int) -> None:
        if self._run is not None:
            self._frame(TEXT, f'{{"request_id":{line},{self._encode(self._run.next(line))}}}'.encode())

    def _frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes((kind, 0x80 | size))
        elif size < 1 << 16:
            head = bytes((kind, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((kind, 0xFF)) + size.to_bytes(8, "big")
        mask = os.urandom(4)
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (head, mask, (int.from_bytes(data, "big") ^ key).to_bytes(size, "big"))

    def _flush(self) -> None:
        self._write(b"".join(self._out))
        self._out.clear()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _frame_at(buffer: bytearray, at: int) -> tuple[int, int, int] | None:
    """Kind, start and end of the payload of the whole frame that begins there; servers do not mask."""
    if len(buffer) < at + 2:
        return None
    size, start = buffer[at + 1], at + 2
    if size >= 126:
        wide = 2 if size == 126 else 8
        size, start = int.from_bytes(buffer[start : start + wide], "big"), start + wide
    if len(buffer) < start + size:
        return None
    return buffer[at], start, start + size

"""One server of the native dialect over one WebSocket: many requests under way at once, each known by its number.

An answer that comes after its request was given up has a number that nobody waits for, and is dropped: it can never be
taken for the answer to something else. The other side is asked for signs of life, so that a connection that silently
carries nothing is known to be lost after two heartbeats.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from evolvent.errors import AccessDenied, EvolventError, SampleInvalid, WorldError
from evolvent.serve.remote.http import LinkLost, Peer, TooLarge
from evolvent.serve.wire import decoded, encoded

__all__ = ["MESSAGE_BYTES", "Socket", "Straight"]

MESSAGE_BYTES = 16 << 20  # of one message, which may hold the answers of a batch
PARTING_S = 1.0  # for the closing handshake
TOO_BIG = 1009  # the close code of RFC 6455, 7.4.1


def _silent() -> logging.Logger:
    """A logger that nobody hears: the WebSocket library would log the token among the headers."""
    quiet = logging.Logger("evolvent.serve.socket", logging.CRITICAL)
    quiet.addHandler(logging.NullHandler())
    return quiet


class Straight(connect):
    """Opens a WebSocket without following redirects, which lead a token astray."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Socket:
    """The connection to `/v1/ws`, opened when first needed and again when it was lost. Used on one event loop.

    Args:
        peer: the server.
        heartbeat_s: after so many silent seconds the server is asked for a sign of life; it has as many to give one.
        limit: bytes of one message; a larger one ends the connection.
    """

    def __init__(self, peer: Peer, *, heartbeat_s: float, limit: int = MESSAGE_BYTES) -> None:
        self._peer, self._heartbeat_s, self._limit = peer, heartbeat_s, limit
        self._numbers = itertools.count(1)
        self._opening = asyncio.Lock()
        self._line: _Line | None = None
        self.url = "ws" + peer.base.removeprefix("http") + "/v1/ws"

    @property
    def lost(self) -> bool:
        """Whether there was a connection that is gone."""
        return self._line is not None and bool(self._line.why)

    async def ask(self, op: str, body: Mapping[str, Any]) -> Any:
        """The body of the answer to a request.

        Raises:
            LinkLost: no connection, or it was lost before the answer came; TooLarge where the answer broke the limit.
            WorldError: what came is no message of the dialect.
            EvolventError: the typed error that the server answered with.
        """
        line = self._line if self._line is not None and not self._line.why else await self.connected()
        return await line.ask(next(self._numbers), op, body)

    async def connected(self) -> _Line:
        """The connection, opened if there is none. Raises as `ask` does."""
        async with self._opening:
            if self._line is None or self._line.why:
                self._line = _Line(await self._open(), self._peer, self.url, self._heartbeat_s)
            return self._line

    async def close(self) -> None:
        """Say goodbye; what is under way is lost."""
        if self._line is not None:
            await self._line.close()

    async def _open(self) -> ClientConnection:
        try:
            return await Straight(
                self.url,
                additional_headers=self._peer.headers(),
                compression=None,
                proxy=None,
                logger=_silent(),
                open_timeout=self._heartbeat_s,
                ping_interval=None,
                close_timeout=PARTING_S,
                max_size=self._limit,
                max_queue=256,
            )
        except InvalidStatus as error:
            raise self._refused(error) from error
        except (OSError, EOFError, TimeoutError, InvalidHandshake) as error:
            said = self._peer.clean(f"{type(error).__name__}: {error}")
            raise LinkLost(f"{self.url}: no connection", value=said) from error

    def _refused(self, error: InvalidStatus) -> EvolventError:
        """A handshake that was answered by another status than 101."""
        status, data = error.response.status_code, error.response.body or b""
        try:
            row = decoded(bytes(data))
        except SampleInvalid:
            row = None
        if isinstance(row, Mapping) and isinstance(row.get("kind"), str):
            return self._peer.told(row)
        if status in (401, 403):
            return AccessDenied(f"{self.url}: the server refuses, status {status}", hint="check the token")
        if status in (502, 503, 504):
            return LinkLost(f"{self.url}: no connection", value=f"status {status}")
        return self._peer.unreadable(self.url, bytes(data), f"status {status}, which opens no WebSocket")


class _Line:
    """One opened connection, until it is lost.

    Attributes:
        why: empty while it is there; then why it was lost.
    """

    def __init__(self, socket: ClientConnection, peer: Peer, url: str, heartbeat_s: float) -> None:
        self.why = ""
        self._socket, self._peer, self._url, self._heartbeat_s = socket, peer, url, heartbeat_s
        self._kind: type[WorldError] = LinkLost
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._heard = 0
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    async def ask(self, number: int, op: str, body: Mapping[str, Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            if self.why:
                raise self._lost()
            try:
                await self._socket.send(encoded({"request_id": number, "op": op, **body}), text=True)
            except ConnectionClosed as error:
                self._end(_reason(error), error)
            return await future
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=PARTING_S)

    async def _listen(self) -> None:
        """Hand every answer to who waits for it, until the connection ends."""
        try:
            while True:
                message = await self._socket.recv()
                self._heard += 1
                self._take(message)
        except ConnectionClosed as error:
            self._end(_reason(error), error)
        except WorldError as error:  # not what it should be: asking again would bring the same
            self._kind = WorldError
            self._end(str(error))
        finally:
            self._end("closed")
            self._socket.transport.abort()

    def _take(self, message: str | bytes) -> None:
        try:
            answer = decoded(message)
        except SampleInvalid as error:
            raise self._peer.unreadable(self._url, message, "a message that is no JSON") from error
        number = answer.get("request_id") if isinstance(answer, Mapping) else None
        if not isinstance(answer, Mapping) or not isinstance(number, int) or not {"ok", "error"} & answer.keys():
            raise self._peer.unreadable(self._url, message, "a message that answers nothing")
        future = self._pending.get(number)
        if future is None or future.done():  # given up, or answered twice
            return
        if "ok" in answer:
            future.set_result(answer["ok"])
        else:
            future.set_exception(self._peer.told(answer["error"]))

    async def _watch(self) -> None:
        """Ask for a sign of life where nothing was heard for a heartbeat."""
        while not self.why:
            heard = self._heard
            await asyncio.sleep(self._heartbeat_s)
            if self._heard != heard:
                continue
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await (await self._socket.ping())
            except TimeoutError:
                if self._heard == heard:
                    self._end(f"no sign of life for {2 * self._heartbeat_s:g} s")
                    self._socket.transport.abort()
            except ConnectionClosed:
                return

    def _end(self, why: str, error: ConnectionClosed | None = None) -> None:
        """The connection is lost: everybody who waits hears it, once."""
        if self.why:
            return
        self.why = why
        if error is not None and error.sent is not None and error.sent.code == TOO_BIG:
            self._kind = TooLarge
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost())

    def _lost(self) -> WorldError:
        return self._kind(f"{self._url}: the connection was lost", value=self._peer.clean(self.why))


def _reason(error: ConnectionClosed) -> str:
    frame = error.rcvd or error.sent
    return "without a word" if frame is None else f"close code {frame.code} {frame.reason!a}"

"""One server of the native dialect over one WebSocket: many requests in flight at once, each known by its number.

An answer that comes after its request was given up has an unknown number, and is dropped: it can never be taken for
the answer to another request. The client pings the server, so that a connection that silently carries nothing is known
to be lost after two heartbeats.
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
from evolvent.serve.remote.http import AnswerTooLarge, ConnectionLost, ServerPeer
from evolvent.serve.wire import WireValue, decode_json, encode_json
from evolvent.trajectory import JsonObject

__all__ = ["MAX_MESSAGE_BYTES", "NoRedirectConnect", "SocketClient"]

MAX_MESSAGE_BYTES = 16 << 20  # of one message, which may hold the answers of a batch
CLOSE_TIMEOUT_S = 1.0  # for the closing handshake
TOO_BIG_CODE = 1009  # the close code of RFC 6455, 7.4.1


def _silent_logger() -> logging.Logger:
    """Returns a logger without output: the WebSocket library would log the token among the headers."""
    quiet = logging.Logger("evolvent.serve.socket", logging.CRITICAL)
    quiet.addHandler(logging.NullHandler())
    return quiet


class NoRedirectConnect(connect):
    """Opens a WebSocket without following redirects, which could send the token to another host."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class SocketClient:
    """The connection to `/v1/ws`, opened when first needed and again after a loss. Used on one event loop.

    Args:
        peer: the server.
        heartbeat_s: silent seconds after which the server is pinged; it has the same time to answer.
        limit: bytes of one message; a larger one ends the connection.
    """

    def __init__(self, peer: ServerPeer, *, heartbeat_s: float, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._peer, self._heartbeat_s, self._limit = peer, heartbeat_s, limit
        self._numbers = itertools.count(1)
        self._opening = asyncio.Lock()
        self._line: _OpenConnection | None = None
        self.url = "ws" + peer.base.removeprefix("http") + "/v1/ws"

    @property
    def is_lost(self) -> bool:
        """Returns whether there was a connection that is lost."""
        return self._line is not None and bool(self._line.why)

    async def ask(self, op: str, body: JsonObject) -> WireValue:
        """Returns the body of the answer to a request.

        Raises:
            ConnectionLost: no connection, or it was lost before the answer; AnswerTooLarge if the answer exceeded the
                limit.
            WorldError: an invalid message.
            EvolventError: the typed error of the server.
        """
        connection = self._line if self._line is not None and not self._line.why else await self.connect()
        return await connection.ask(next(self._numbers), op, body)

    async def connect(self) -> _OpenConnection:
        """Returns the connection, opened if there is none. Raises as `ask` does."""
        async with self._opening:
            if self._line is None or self._line.why:
                self._line = _OpenConnection(await self._open_socket(), self._peer, self.url, self._heartbeat_s)
            return self._line

    async def close(self) -> None:
        """Closes the connection; requests in flight are lost."""
        if self._line is not None:
            await self._line.close()

    async def _open_socket(self) -> ClientConnection:
        try:
            return await NoRedirectConnect(
                self.url,
                additional_headers=self._peer.headers(),
                compression=None,
                proxy=None,
                logger=_silent_logger(),
                open_timeout=self._heartbeat_s,
                ping_interval=None,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=self._limit,
                max_queue=256,
            )
        except InvalidStatus as error:
            raise self._handshake_error(error) from error
        except (OSError, EOFError, TimeoutError, InvalidHandshake) as error:
            problem = self._peer.hide_token(f"{type(error).__name__}: {error}")
            raise ConnectionLost(f"{self.url}: no connection", value=problem) from error

    def _handshake_error(self, error: InvalidStatus) -> EvolventError:
        """Returns the error of a handshake that was answered with another status than 101."""
        status, data = error.response.status_code, error.response.body or b""
        try:
            row = decode_json(bytes(data))
        except SampleInvalid:
            row = None
        if isinstance(row, Mapping) and isinstance(row.get("kind"), str):
            return self._peer.decode_error(row)
        if status in (401, 403):
            return AccessDenied(f"{self.url}: the server refuses, status {status}", hint="check the token")
        if status in (502, 503, 504):
            return ConnectionLost(f"{self.url}: no connection", value=f"status {status}")
        return self._peer.answer_error(self.url, bytes(data), f"status {status}, which opens no WebSocket")


class _OpenConnection:
    """One opened connection, until it is lost.

    Attributes:
        why: empty while it is open; then the reason of the loss.
    """

    def __init__(self, socket: ClientConnection, peer: ServerPeer, url: str, heartbeat_s: float) -> None:
        self.why = ""
        self._socket, self._peer, self._url, self._heartbeat_s = socket, peer, url, heartbeat_s
        self._kind: type[WorldError] = ConnectionLost
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._heard = 0
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._ping_when_silent())]

    async def ask(self, number: int, op: str, body: Mapping[str, Any]) -> WireValue:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            if self.why:
                raise self._lost_error()
            try:
                await self._socket.send(encode_json({"request_id": number, "op": op, **body}), text=True)
            except ConnectionClosed as error:
                self._mark_lost(_close_reason(error), error)
            return await future
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)

    async def _listen(self) -> None:
        """Passes every answer to its waiting caller, until the connection ends."""
        try:
            while True:
                message = await self._socket.recv()
                self._heard += 1
                self._handle_message(message)
        except ConnectionClosed as error:
            self._mark_lost(_close_reason(error), error)
        except WorldError as error:  # not what it should be: asking again would bring the same
            self._kind = WorldError
            self._mark_lost(str(error))
        finally:
            self._mark_lost("closed")
            self._socket.transport.abort()

    def _handle_message(self, message: str | bytes) -> None:
        try:
            answer = decode_json(message)
        except SampleInvalid as error:
            raise self._peer.answer_error(self._url, message, "the message is not JSON") from error
        number = answer.get("request_id") if isinstance(answer, Mapping) else None
        if not isinstance(answer, Mapping) or not isinstance(number, int) or not {"ok", "error"} & answer.keys():
            raise self._peer.answer_error(self._url, message, "the message does not answer a request")
        future = self._pending.get(number)
        if future is None or future.done():  # given up, or answered twice
            return
        if "ok" in answer:
            future.set_result(answer["ok"])
        else:
            future.set_exception(self._peer.decode_error(answer["error"]))

    async def _ping_when_silent(self) -> None:
        """Sends a ping if nothing was received for a heartbeat."""
        while not self.why:
            num_heard = self._heard
            await asyncio.sleep(self._heartbeat_s)
            if self._heard != num_heard:
                continue
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await (await self._socket.ping())
            except TimeoutError:
                if self._heard == num_heard:
                    self._mark_lost(f"no sign of life for {2 * self._heartbeat_s:g} s")
                    self._socket.transport.abort()
            except ConnectionClosed:
                return

    def _mark_lost(self, reason: str, error: ConnectionClosed | None = None) -> None:
        """Marks the connection as lost: every waiting caller gets the error, once."""
        if self.why:
            return
        self.why = reason
        if error is not None and error.sent is not None and error.sent.code == TOO_BIG_CODE:
            self._kind = AnswerTooLarge
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost_error())

    def _lost_error(self) -> WorldError:
        return self._kind(f"{self._url}: the connection was lost", value=self._peer.hide_token(self.why))


def _close_reason(error: ConnectionClosed) -> str:
    frame = error.rcvd or error.sent
    return "without a word" if frame is None else f"close code {frame.code} {frame.reason!a}"

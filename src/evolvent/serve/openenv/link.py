"""One WebSocket to an OpenEnv server: a message, its answer, and never the answer to another message.

The protocol has no ids. An answer that comes late would be read as the answer to the next message; so a connection on
which an answer was not awaited to its end (a deadline, an interrupt, an answer that is none) is dropped, and the next
reset opens another. Where the server names the `evolvent` feature, messages carry a `request_id` besides, and the
answer has to bear it. A foreign server refuses unknown keys and is sent none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    PayloadTooBig,
    WebSocketException,
)

from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    EnvLost,
    EvolventError,
    InvalidAction,
    LimitExceeded,
    SampleInvalid,
    WorldError,
)
from evolvent.serve.given import Patience
from evolvent.serve.remote.socket import Straight
from evolvent.serve.wire import decoded, encoded, error_of
from evolvent.trajectory import Json

__all__ = ["Link", "described"]

_TOO_BIG = 1009  # the close code of RFC 6455, 7.4.1
_HEAD = 200
_GONE = ("FACTORY_ERROR", "SESSION_ERROR")


class Link:
    """A connection that is opened when first asked. Its coroutines run on one event loop, one after another.

    Args:
        base: of the environment: `http://host:8000/openenv/crafting`.
        numbered: whether the server understands `request_id`.
        headers: of the handshake (a token).
    """

    def __init__(self, base: str, patience: Patience, *, numbered: bool, headers: Mapping[str, str]) -> None:
        scheme, *rest = urlsplit(base)
        self._url = urlunsplit(("wss" if scheme == "https" else "ws", *rest)).rstrip("/") + "/ws"
        self._patience, self._numbered, self._headers = patience, numbered, headers
        self._socket: ClientConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether there is a connection that was not dropped."""
        return self._socket is not None

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The `data` of the answer to a message.

        Raises:
            InvalidAction: the server refused the data of the message.
            AtCapacity: the server is full.
            EnvLost: the server cannot be reached, or went away.
            LimitExceeded: an answer larger than allowed.
            WorldError: what the environment raised there, or an answer that is none.
        """
        whole = False
        try:
            socket = await self._connected()
            self._number += 1
            message: dict[str, Any] = {"type": kind, "data": dict(data)}
            if self._numbered:
                message["request_id"] = self._number
            with suppress(ConnectionClosed):  # by a server that has no place; why is still to be read
                await socket.send(encoded(message).decode("ascii"))
            answer = self._read(await socket.recv())
            whole = answer.get("type") != "error" or _stays(answer)
            return self._data(answer)
        except PayloadTooBig as error:
            raise self._too_large() from error
        except (OSError, WebSocketException) as error:
            raise self._lost(error) from error
        finally:
            if not whole:
                self.drop()

    async def close(self) -> None:
        """Say goodbye, if there is a connection."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        try:
            await socket.send(encoded({"type": "close"}).decode("ascii"))
            await socket.close()
        except (OSError, WebSocketException):
            socket.transport.abort()

    def drop(self) -> None:
        """End the connection at once, without a word: what still comes on it is of no interest."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()

    async def _connected(self) -> ClientConnection:
        if self._socket is None:
            try:
                self._socket = await Straight(
                    self._url,
                    proxy=None,
                    additional_headers=self._headers,
                    compression=None,
                    ping_timeout=None,
                    open_timeout=self._patience.connect_s,
                    close_timeout=2.0,
                    max_size=self._patience.message_bytes,
                )
            except TimeoutError as error:
                raise EnvLost(f"{self._url} cannot be reached", value=f"{self._patience.connect_s:g} s") from error
            except InvalidStatus as error:
                raise self._refused(error.response.status_code) from error
            except (InvalidHandshake, InvalidURI) as error:
                raise EnvLost(f"{self._url} is no WebSocket", value=str(error)) from error
            self._keeper = asyncio.create_task(_kept(self._socket))
        return self._socket

    def _refused(self, status: int) -> EvolventError:
        if status in (401, 403):
            hint = "check the token and the address"  # servers refuse a socket in this way where there is nothing, too
            return AccessDenied(f"{self._url} refuses this client", value=f"HTTP {status}", hint=hint)
        if status == 503:
            return AtCapacity(f"{self._url} is full", retry_after_s=1.0, value=f"HTTP {status}")
        return EnvLost(f"{self._url} is no WebSocket", value=f"HTTP {status}", hint="check the address")

    def _read(self, raw: str | bytes) -> dict[str, Any]:
        """The answer in a message: an object with a type and data, for the message just sent."""
        try:
            answer = decoded(raw)
        except SampleInvalid as error:
            raise self._strange(raw, error.what) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise self._strange(raw, "no object with type and data")
        late = self._numbered and answer.get("type") != "error" and answer.get("request_id") != self._number
        if late:
            raise self._strange(raw, f"not the answer to message {self._number}")
        return answer

    def _data(self, answer: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = answer["data"]
        if answer.get("type") == "error":
            raise self._told(data)
        if answer.get("type") not in ("observation", "state"):
            raise self._strange(str(answer), "neither an observation nor an error")
        return data

    def _told(self, data: Mapping[str, Any]) -> EvolventError:
        """The error that a server tells of."""
        code, message = data.get("code"), str(data.get("message", ""))[:2000]
        if code == "VALIDATION_ERROR":
            return InvalidAction(message, value=_reasons(data.get("errors")))
        if code == "CAPACITY_REACHED":
            counts = f"{data.get('active_sessions')} of {data.get('max_sessions')} sessions"
            return AtCapacity(f"{self._url}: {message}", retry_after_s=1.0, value=counts)
        if code in _GONE:
            return EnvLost(f"{self._url}: {message}", value=code)
        if self._numbered and "kind" in data:
            return error_of({"kind": data["kind"], "message": message})
        return WorldError(f"{self._url}: {message}", value=code)

    def _strange(self, raw: str | bytes, what: str) -> WorldError:
        head = raw[:_HEAD] if isinstance(raw, str) else raw[:_HEAD].decode("utf-8", "replace")
        return WorldError(f"{self._url} answered what is no answer: {what}", value=ascii(head))

    def _too_large(self) -> LimitExceeded:
        limit = self._patience.message_bytes
        return LimitExceeded(f"{self._url} sent a message that is too large", expected=f"at most {limit} bytes")

    def _lost(self, error: Exception) -> EvolventError:
        closed = error.sent or error.rcvd if isinstance(error, ConnectionClosed) else None
        if isinstance(error.__cause__, PayloadTooBig) or (closed is not None and closed.code == _TOO_BIG):
            return self._too_large()
        return EnvLost(f"the connection to {self._url} was lost", value=f"{type(error).__name__}: {error}"[:_HEAD])


async def _kept(socket: ClientConnection) -> None:
    """Gives the socket back when the loop ends and cancels this."""
    try:
        await socket.wait_closed()
    finally:
        socket.transport.abort()


def _stays(answer: Mapping[str, Any]) -> bool:
    """Whether the connection stays open after an error."""
    code = answer.get("data", {}).get("code")
    return code in ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR")


def _reasons(errors: object) -> str | None:
    """What a refused message did wrong, in short: `field: why`."""
    rows = [row for row in errors if isinstance(row, Mapping)] if isinstance(errors, list) else []
    told = [f"{'.'.join(map(str, row.get('loc') or ['message']))}: {row.get('msg')}" for row in rows[:5]]
    return "; ".join(told) or None


async def described(base: str, patience: Patience, *, headers: Mapping[str, str]) -> Mapping[str, Json]:
    """What a server says about its environment (`/metadata`); empty where it has no such page.

    Raises:
        AccessDenied, EnvLost, WorldError: it refuses, cannot be reached, or answers something else.
    """
    url = f"{base.rstrip('/')}/metadata"
    asked = {"accept-encoding": "identity", **headers}
    client = httpx2.AsyncClient(headers=asked, timeout=patience.connect_s, trust_env=False)
    try:
        async with client, client.stream("GET", url) as reply:
            data = bytearray()
            async for part in reply.aiter_raw():  # nothing is unpacked
                data += part
                if len(data) > patience.message_bytes:
                    raise LimitExceeded(f"{url} is too large", expected=f"at most {patience.message_bytes} bytes")
    except (OSError, httpx2.HTTPError) as error:
        raise EnvLost(f"{url} cannot be read", value=f"{type(error).__name__}: {error}"[:_HEAD]) from error
    if reply.status_code in (401, 403):
        raise AccessDenied(f"{url} refuses this client", value=f"HTTP {reply.status_code}", hint="check the token")
    if reply.status_code == 404:
        return {}
    try:
        told = decoded(bytes(data)) if reply.status_code == 200 else None
    except SampleInvalid:
        told = None
    if not isinstance(told, dict):
        head = bytes(data[:_HEAD]).decode("utf-8", "replace")
        raise WorldError(f"{url} does not describe an environment", value=f"HTTP {reply.status_code}: {head!a}")
    return told

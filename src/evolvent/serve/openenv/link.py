"""One WebSocket to an OpenEnv server: a message, its answer, and never the answer to another message.

The protocol has no ids. A late answer would be read as the answer to the next message; so a connection whose answer was
not fully received (a deadline, an interrupt, an invalid answer) is dropped, and the next reset opens another. If the
server declares the `evolvent` feature, messages also carry a `request_id`, and the answer has to repeat it. A foreign
server refuses unknown keys and is sent none.
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
from evolvent.serve.given import ClientTimeouts
from evolvent.serve.remote.socket import NoRedirectConnect
from evolvent.serve.wire import decode_error, decode_json, encode_json
from evolvent.trajectory import Json, JsonObject

__all__ = ["OpenEnvConnection", "fetch_description"]

_TOO_BIG_CODE = 1009  # the close code of RFC 6455, 7.4.1
_MAX_SHOWN_CHARS = 200
_LOST_CODES = ("FACTORY_ERROR", "SESSION_ERROR")


class OpenEnvConnection:
    """A connection that is opened on first use. Its coroutines run on one event loop, one after another.

    Args:
        base: address of the environment: `http://host:8000/openenv/crafting`.
        numbered: whether the server understands `request_id`.
        headers: headers of the handshake (a token).
    """

    def __init__(
        self, base: str, timeouts: ClientTimeouts, *, with_request_ids: bool, headers: Mapping[str, str]
    ) -> None:
        scheme, *url_parts = urlsplit(base)
        self._url = urlunsplit(("wss" if scheme == "https" else "ws", *url_parts)).rstrip("/") + "/ws"
        self._patience, self._numbered, self._headers = timeouts, with_request_ids, headers
        self._socket: ClientConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._number = 0

    @property
    def is_open(self) -> bool:
        """Returns whether there is a connection that was not dropped."""
        return self._socket is not None

    async def ask(self, kind: str, data: JsonObject) -> JsonObject:
        """Sends a message and returns the `data` of its answer.

        Raises:
            InvalidAction: the server refused the data of the message.
            AtCapacity: the server is full.
            EnvLost: the server cannot be reached, or went away.
            LimitExceeded: an answer larger than allowed.
            WorldError: an error of the environment, or an invalid answer.
        """
        is_complete = False
        try:
            socket = await self._connect()
            self._number += 1
            message: dict[str, Any] = {"type": kind, "data": dict(data)}
            if self._numbered:
                message["request_id"] = self._number
            with suppress(ConnectionClosed):  # by a server that has no place; why is still to be read
                await socket.send(encode_json(message).decode("ascii"))
            answer = self._parse_answer(await socket.recv())
            is_complete = answer.get("type") != "error" or _keeps_open(answer)
            return self._get_data(answer)
        except PayloadTooBig as error:
            raise self._size_error() from error
        except (OSError, WebSocketException) as error:
            raise self._connection_error(error) from error
        finally:
            if not is_complete:
                self.abort()

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        try:
            await socket.send(encode_json({"type": "close"}).decode("ascii"))
            await socket.close()
        except (OSError, WebSocketException):
            socket.transport.abort()

    def abort(self) -> None:
        """Ends the connection at once, without a close message: later data on it is ignored."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()

    async def _connect(self) -> ClientConnection:
        if self._socket is None:
            try:
                self._socket = await NoRedirectConnect(
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
                raise self._handshake_error(error.response.status_code) from error
            except (InvalidHandshake, InvalidURI) as error:
                raise EnvLost(f"{self._url} is no WebSocket", value=str(error)) from error
            self._keeper = asyncio.create_task(_abort_on_exit(self._socket))
        return self._socket

    def _handshake_error(self, status: int) -> EvolventError:
        if status in (401, 403):
            hint = "check the token and the address"  # servers refuse a socket in this way where there is nothing, too
            return AccessDenied(f"{self._url} refuses this client", value=f"HTTP {status}", hint=hint)
        if status == 503:
            return AtCapacity(f"{self._url} is full", retry_after_s=1.0, value=f"HTTP {status}")
        return EnvLost(f"{self._url} is no WebSocket", value=f"HTTP {status}", hint="check the address")

    def _parse_answer(self, raw: str | bytes) -> dict[str, Any]:
        """Parses the answer in a message: an object with a type and data, for the message just sent."""
        try:
            answer = decode_json(raw)
        except SampleInvalid as error:
            raise self._answer_error(raw, error.what) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise self._answer_error(raw, "no object with type and data")
        is_late = self._numbered and answer.get("type") != "error" and answer.get("request_id") != self._number
        if is_late:
            raise self._answer_error(raw, f"not the answer to message {self._number}")
        return answer

    def _get_data(self, answer: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = answer["data"]
        if answer.get("type") == "error":
            raise self._decode_error(data)
        if answer.get("type") not in ("observation", "state"):
            raise self._answer_error(str(answer), "neither an observation nor an error")
        return data

    def _decode_error(self, data: Mapping[str, Any]) -> EvolventError:
        """Returns the error that a server reports."""
        code, message = data.get("code"), str(data.get("message", ""))[:2000]
        if code == "VALIDATION_ERROR":
            return InvalidAction(message, value=_format_reasons(data.get("errors")))
        if code == "CAPACITY_REACHED":
            counts = f"{data.get('active_sessions')} of {data.get('max_sessions')} sessions"
            return AtCapacity(f"{self._url}: {message}", retry_after_s=1.0, value=counts)
        if code in _LOST_CODES:
            return EnvLost(f"{self._url}: {message}", value=code)
        if self._numbered and "kind" in data:
            return decode_error({"kind": data["kind"], "message": message})
        return WorldError(f"{self._url}: {message}", value=code)

    def _answer_error(self, raw: str | bytes, problem: str) -> WorldError:
        head = raw[:_MAX_SHOWN_CHARS] if isinstance(raw, str) else raw[:_MAX_SHOWN_CHARS].decode("utf-8", "replace")
        return WorldError(f"{self._url} answered what is no answer: {problem}", value=ascii(head))

    def _size_error(self) -> LimitExceeded:
        limit = self._patience.message_bytes
        return LimitExceeded(f"{self._url} sent a message that is too large", expected=f"at most {limit} bytes")

    def _connection_error(self, error: Exception) -> EvolventError:
        close_frame = error.sent or error.rcvd if isinstance(error, ConnectionClosed) else None
        if isinstance(error.__cause__, PayloadTooBig) or (
            close_frame is not None and close_frame.code == _TOO_BIG_CODE
        ):
            return self._size_error()
        return EnvLost(
            f"the connection to {self._url} was lost", value=f"{type(error).__name__}: {error}"[:_MAX_SHOWN_CHARS]
        )


async def _abort_on_exit(socket: ClientConnection) -> None:
    """Closes the socket when the loop ends and cancels this task."""
    try:
        await socket.wait_closed()
    finally:
        socket.transport.abort()


def _keeps_open(answer: Mapping[str, Any]) -> bool:
    """Returns whether the connection stays open after an error."""
    code = answer.get("data", {}).get("code")
    return code in ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR")


def _format_reasons(errors: object) -> str | None:
    """Formats the problems of a refused message in short: `field: reason`."""
    rows = [row for row in errors if isinstance(row, Mapping)] if isinstance(errors, list) else []
    reasons = [f"{'.'.join(map(str, row.get('loc') or ['message']))}: {row.get('msg')}" for row in rows[:5]]
    return "; ".join(reasons) or None


async def fetch_description(base: str, timeouts: ClientTimeouts, *, headers: Mapping[str, str]) -> Mapping[str, Json]:
    """Fetches a server's description of its environment (`/metadata`); returns {} if it has no such page.

    Raises:
        AccessDenied, EnvLost, WorldError: the server refuses, cannot be reached, or gives another answer.
    """
    url = f"{base.rstrip('/')}/metadata"
    request_headers = {"accept-encoding": "identity", **headers}
    client = httpx2.AsyncClient(headers=request_headers, timeout=timeouts.connect_s, trust_env=False)
    try:
        async with client, client.stream("GET", url) as reply:
            data = bytearray()
            async for chunk in reply.aiter_raw():  # nothing is unpacked
                data += chunk
                if len(data) > timeouts.message_bytes:
                    raise LimitExceeded(f"{url} is too large", expected=f"at most {timeouts.message_bytes} bytes")
    except (OSError, httpx2.HTTPError) as error:
        raise EnvLost(f"{url} cannot be read", value=f"{type(error).__name__}: {error}"[:_MAX_SHOWN_CHARS]) from error
    if reply.status_code in (401, 403):
        raise AccessDenied(f"{url} refuses this client", value=f"HTTP {reply.status_code}", hint="check the token")
    if reply.status_code == 404:
        return {}
    try:
        description = decode_json(bytes(data)) if reply.status_code == 200 else None
    except SampleInvalid:
        description = None
    if not isinstance(description, dict):
        head = bytes(data[:_MAX_SHOWN_CHARS]).decode("utf-8", "replace")
        raise WorldError(f"{url} does not describe an environment", value=f"HTTP {reply.status_code}: {head!a}")
    return description

"""The HTTP server of every command: uvicorn's h11 protocol with deadlines, limits and an end that clients can read.

`make_server_config(app, connections)` is the configuration of the servers of worlds, policies, the viewer and the chat
page; `LimitedServer` runs it. Slow requests are answered 408 where a part of them has arrived.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from evolvent.errors import AtCapacity, EvolventError, LimitExceeded
from evolvent.serve.connections import ACCEPTS_PER_TURN, ConnectionTable
from evolvent.serve.wire import encode_error
from evolvent.web import App, Message, Receive, Scope, Send, is_loopback, reject

__all__ = ["EncodeRefusal", "LimitedConfig", "LimitedProtocol", "LimitedServer", "log_answers", "make_server_config"]

_RESERVED_PATHS = ("/health", "/metrics")
_BACKLOG = 2048  # connections that the system holds until they are accepted
_PROGRESS_BYTES = 16 * 2**10  # a client that takes so many bytes reads
_CONTROL_OPCODE, _MAX_CONTROL_BYTES = 0x08, 131  # of a WebSocket's frame: a ping, a pong or a close
_PROBES = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))  # a vanished client is noticed in 2 minutes
_REPEAT_S, _MAX_REPEATS = 60.0, 100
_access_log = logging.getLogger("uvicorn.access")
EncodeRefusal = Callable[[EvolventError, int], Mapping[str, object]]
_ACCEPT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LimitedConfig(uvicorn.Config):
    """A configuration of uvicorn with the table of the server's connections.

    Args:
        encode_refusal: makes the JSON body of an error and a status that are answered without the app.
    """

    def __init__(
        self, app: App, connections: ConnectionTable, encode_refusal: EncodeRefusal, **settings: object
    ) -> None:
        super().__init__(cast(Any, app), http=LimitedProtocol, backlog=ACCEPTS_PER_TURN, **cast(Any, settings))
        self.connections, self.encode_refusal = connections, encode_refusal


def make_server_config(
    app: App,
    connections: ConnectionTable | None = None,
    *,
    log_requests: bool = False,
    encode_refusal: EncodeRefusal | None = None,
    **settings: object,
) -> LimitedConfig:
    """Returns the configuration of a server here.

    Args:
        connections: its table; None: a new one with the usual limits.
        log_requests: log a line for each request, without the values of its query.
        encode_refusal: see `LimitedConfig`.
        settings: further ones of `uvicorn.Config`.
    """
    table = connections or ConnectionTable()
    usual: dict[str, object] = {
        "log_config": None,  # where to is said once, for all logs
        "log_level": "warning",
        "access_log": log_requests,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": int(table.limits.idle_s),
    }
    logging.getLogger("uvicorn.error").addFilter(_REPEATS)
    logged_app = log_answers(app) if log_requests else app
    config = LimitedConfig(logged_app, table, encode_refusal or _encode_refusal, **(usual | settings))
    if log_requests:
        _access_log.setLevel(logging.INFO)
    return config


def _encode_refusal(error: EvolventError, status: int) -> Mapping[str, object]:
    return encode_error(error) | {"status": status}


def log_answers(app: App) -> App:
    """Wraps an app so that it logs a line for each request: client, method, path and status.

    A query is shown as `?...`, because clients put keys into it.
    """

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_logged(message: Message) -> None:
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                _log_answer(scope, str(message["status"]))
            elif kind == "websocket.accept":
                _log_answer(scope, "accepted")
            await send(message)

        await app(scope, receive, send_logged if scope["type"] in ("http", "websocket") else send)

    return logged


def _log_answer(scope: Scope, outcome: str) -> None:
    client = scope.get("client") or ("", 0)
    query = "?..." if scope["query_string"] else ""
    _access_log.info(
        '%s:%d - "%s %s%s HTTP/%s" %s',
        *client,
        scope.get("method", "WebSocket"),
        quote(scope["path"]),
        query,
        scope["http_version"],
        outcome,
    )


class _Repeats(logging.Filter):
    """Lets the same warning through once a minute: any client can cause one."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now, last = time.monotonic(), self._last.get(record.msg)
        if last is not None and now - last < _REPEAT_S:
            return False
        if len(self._last) < _MAX_REPEATS:
            self._last[record.msg] = now
        return True


_REPEATS = _Repeats()


class LimitedServer(uvicorn.Server):
    """A server of uvicorn that is told by one line, not by a trace for each, that descriptors ran out."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._handle_loop_error)
        await super().startup(sockets)
        for bound_socket in sockets or ():
            if bound_socket.fileno() >= 0:
                # asyncio listens with as many places as it accepts connections at once; the system may hold more.
                bound_socket.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops in an orderly way; what is open after that is ended."""
        await super().shutdown(sockets)
        if isinstance(self.config, LimitedConfig) and self.config.connections.abort_all():
            await asyncio.sleep(0)

    def _handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, config = context.get("exception"), self.config
        if (
            isinstance(config, LimitedConfig)
            and isinstance(error, OSError)
            and error.errno in _ACCEPT_ERRORS
            and "accept" in str(context.get("message", ""))
        ):
            config.connections.note_accept_error(error)
        else:
            loop.default_exception_handler(context)


class LimitedProtocol(H11Protocol):
    """One connection: it waits for a request, reads its head and its body, is being answered, and waits again.

    A WebSocket's protocol gets what arrives through this one, so that the connection stays counted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        limited_config = cast(LimitedConfig, config)
        self._table, self._encode_refusal = limited_config.connections, limited_config.encode_refusal
        self.access_log = False  # `log_answers` writes it
        self._limits = self._table.limits
        self.deadline: float | None = None
        self.socket_protocol: Any = None  # that of a WebSocket, once there is one
        self._raw: asyncio.Transport = cast(Any, None)
        self._is_reserved = self._is_draining = self._is_reading_body = self._is_idle = False
        self._num_drained = 0
        self._unsent, self._stalled_since = 0, 0.0

    # ------------------------------------------------------------------ what asyncio reports

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts the connection; one of the reserve serves one request to `/health` or `/metrics`."""
        self._raw = transport
        _probe_vanished(transport)
        peer = transport.get_extra_info("peername")
        address = _address_key(peer[0]) if isinstance(peer, tuple) and peer else None
        super().connection_made(cast(Any, _LingeringTransport(transport, self)))
        self.deadline = self._table.clock() + self._limits.head_s
        if not self._table.admit(self, address):
            self._is_reserved = True
            self.app = cast(Any, _serve_reserved(cast(Any, self.app), self._encode_refusal))
            self._table.reserve(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._table.release(self)
        self.deadline = None
        if self.socket_protocol is not None:
            self.socket_protocol.connection_lost(exc)
        else:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads what has arrived; the rest of a refused request is thrown away, up to a limit."""
        if self.socket_protocol is not None:
            if not (data[0] & _CONTROL_OPCODE and len(data) <= _MAX_CONTROL_BYTES):
                self.deadline = self._table.clock() + self._limits.socket_idle_s
            return self.socket_protocol.data_received(data)  # type: ignore[no-any-return]
        if self._is_draining or self._is_answered_early():
            self._num_drained += len(data)
            if self._num_drained > self._limits.drain_bytes:
                return self.abort()
            if self._is_draining:
                return None
        super().data_received(data)
        self._note_progress(len(data))
        return None

    def eof_received(self) -> None:
        """Ends a half-closed connection: asyncio closes it where this returns nothing."""
        if self.socket_protocol is not None:
            self.socket_protocol.eof_received()

    def pause_writing(self) -> None:
        """Waits until the client has read more."""
        if self.socket_protocol is not None:
            self.socket_protocol.pause_writing()
        else:
            super().pause_writing()

    def resume_writing(self) -> None:
        """Goes on writing."""
        if self.socket_protocol is not None:
            self.socket_protocol.resume_writing()
        else:
            super().resume_writing()

    # ------------------------------------------------------------------ what uvicorn reports

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hands the connection over to the protocol of a WebSocket; a reserved connection is refused."""
        if self._is_reserved:
            return self._answer(_too_many_connections(), 503)
        super().handle_websocket_upgrade(event)
        return None

    def hand_over(self, socket_protocol: asyncio.BaseProtocol) -> None:
        """Lets the protocol of a WebSocket read from now on."""
        self.socket_protocol = socket_protocol
        self._table.note_request(self)
        self.deadline = self._table.clock() + self._limits.socket_idle_s

    def on_response_complete(self) -> None:
        """Goes on with the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._note_progress(0)

    def shutdown(self) -> None:
        """Ends the connection after its response, at once where its request has not arrived."""
        if self._is_draining or self._is_reading_body:
            self.abort()
        else:
            super().shutdown()

    # ------------------------------------------------------------------ deadlines

    def _note_progress(self, size: int) -> None:
        """Sets the deadline of what the connection waits for."""
        state, limits = self.conn.their_state, self._limits
        if self._is_draining or self.socket_protocol is not None:
            return
        if state is h11.SEND_BODY:
            now = self._table.clock()
            if not self._is_reading_body:
                self._begin_request()
                self._table.note_arriving(self)
                self._is_reading_body, self.deadline = True, now + limits.body_s
            elif self.deadline is not None:
                self.deadline = min(self.deadline + size / limits.min_bytes_per_s, now + limits.body_s)
        elif state is h11.IDLE:
            self._is_reading_body = False
            if self.conn.trailing_data[0]:
                if self._is_idle or self.deadline is None:  # the first bytes of the next head
                    self._is_idle, self.deadline = False, self._table.clock() + limits.head_s
            elif self.cycle is not None and not self._is_idle:
                self._is_idle, self.deadline = True, self._table.clock() + limits.idle_s
                self._table.note_idle(self)
        else:
            self._begin_request()
            self._table.note_request(self)
            self._is_reading_body, self.deadline = False, None

    def _begin_request(self) -> None:
        """Notes that a whole head has arrived."""
        self._is_idle = False
        if self._is_reserved and self.cycle is not None:
            self.cycle.keep_alive = False

    def _is_answered_early(self) -> bool:
        """Returns whether the request that still arrives has its answer."""
        return self._is_reading_body and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    def expire(self) -> None:
        """Ends the connection, whose deadline is over; a request that has begun is answered 408."""
        self.deadline = None
        if self.socket_protocol is not None:
            self._table.refuse("socket_idle")
            return self.socket_protocol.shutdown()  # type: ignore[no-any-return]
        if self._is_draining or self._raw.is_closing():
            return self.abort()
        if self._is_reading_body:
            if self.flow.read_paused:  # the client waits for this server
                self.deadline = self._table.clock() + self._limits.body_s
                return None
            return self._time_out("body")
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            return self._time_out("head")
        if not self._is_idle:
            self._table.refuse("idle")
        self._raw.close()
        return None

    def _time_out(self, part: str) -> None:
        self._table.refuse(part)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            limit = self._limits.head_s if part == "head" else self._limits.body_s
            message = f"the {part} of the request did not arrive in time"
            self._answer(LimitExceeded(message, expected=f"all of it in {limit:g} s"), 408)
        else:
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _answer(self, error: EvolventError, status: int) -> None:
        """Sends an error without the app, and ends the connection."""
        body = json.dumps(self._encode_refusal(error, status)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [(b"connection", b"close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def check_writing(self, now: float) -> None:
        """Ends the connection where the client has taken nothing for too long of what is sent."""
        unsent = self._raw.get_write_buffer_size()
        if not unsent or unsent <= self._unsent - _PROGRESS_BYTES or not self._unsent:
            self._unsent, self._stalled_since = unsent, now
            return
        self._unsent = max(self._unsent, unsent)
        if now - self._stalled_since >= self._limits.stalled_s:
            self._table.refuse("stalled")
            self.abort()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._raw.abort()

    def close_orderly(self) -> None:
        """Ends the connection once everything is sent. Where a request is still arriving, it is read for a while.

        A connection that is closed with unread bytes is reset, and its client never sees the answer.
        """
        unread = self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])
        if self.socket_protocol is not None or not unread or self._raw.is_closing() or not self._raw.can_write_eof():
            return self._raw.close()
        self._is_draining = True
        self._unset_keepalive_if_required()
        self.deadline = self._table.clock() + self._limits.drain_s
        self._table.note_idle(self)
        self._raw.write_eof()
        self._raw.resume_reading()
        return None

    @property
    def is_ending(self) -> bool:
        """Returns whether the connection is being closed."""
        return self._is_draining or self._raw.is_closing()


class _LingeringTransport:
    """The transport as uvicorn sees it: closing it lets the protocol end the connection in an orderly way."""

    __slots__ = ("_protocol", "get_extra_info", "pause_reading", "resume_reading", "write")

    def __init__(self, transport: asyncio.Transport, protocol: LimitedProtocol) -> None:
        self._protocol = protocol
        self.write, self.get_extra_info = transport.write, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def close(self) -> None:
        self._protocol.close_orderly()

    def abort(self) -> None:
        self._protocol.abort()

    def is_closing(self) -> bool:
        return self._protocol.is_ending

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol.hand_over(protocol)


def _probe_vanished(transport: asyncio.Transport) -> None:
    """Lets the system notice a client that vanished without a word."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is None:
        return
    try:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, number in _PROBES:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)
    except OSError:
        pass  # the client has left already


def _address_key(address: str) -> str | None:
    """Returns what connections of a client are counted by; None for the loopback, which may hide a proxy's clients.

    >>> _address_key("192.0.2.7"), _address_key("2001:db8::1:2:3:4"), _address_key("127.0.0.1")
    ('192.0.2.7', '2001:db8:0:0', None)
    """
    if is_loopback(address):
        return None
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    if packed[:12] == bytes(10) + b"\xff\xff":
        return _address_key(socket.inet_ntop(socket.AF_INET, packed[12:]))
    return ":".join(f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, 8, 2))  # a host may use 2**64 addresses


def _too_many_connections() -> AtCapacity:
    return AtCapacity("the server has too many connections", retry_after_s=1.0)


def _serve_reserved(app: App, encode_refusal: EncodeRefusal) -> App:
    """Wraps an app for a connection of the reserve: it answers one request, and only how the server does."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _RESERVED_PATHS:
            body = json.dumps(encode_refusal(_too_many_connections(), 503)).encode()
            headers = [(b"retry-after", b"1"), (b"connection", b"close")]
            return await reject(scope, send, status=503, body=body, headers=headers)

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        return await app(scope, receive, send_last)

    return serve

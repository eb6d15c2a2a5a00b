"""Checks of every server here before a request is handled: host, origin, token, size and nesting of bodies.

`guard_app(app, access)` is pure ASGI and independent of frameworks. It answers refused requests itself, with
the error body of all servers here: `{kind, message, expected, status}`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import AccessDenied, AtCapacity, ConfigError, EvolventError, LimitExceeded, Problem

__all__ = [
    "Access",
    "App",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "build_access",
    "guard_app",
    "is_loopback",
    "is_too_deep",
    "reject",
    "send_response",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOKEN_PATTERN = re.compile(r"[!-~]+")
_MIN_TOKEN_LENGTH = 16
_BRACKETED = re.compile(r"\[([^]]*)\](?::\d*)?")  # an IPv6 address in a Host header
_MAX_ARRIVING_BODIES = 16  # whole bodies; further large ones are refused while so many bytes arrive
_SMALL_BODY_BYTES = 2**16  # such a body is read in any case
_MAX_REMEMBERED_HOSTS = 64  # accepted Host headers that are remembered


@dataclass(frozen=True, slots=True)
class Access:
    """The clients that may call a server, and the limits of their requests.

    Args:
        token: every request must carry it (`Authorization: Bearer TOKEN`, or Basic with it as the password); None:
            no token is required, which only a server on the loopback may allow. See `build_access`.
        hosts: accepted names in the Host header, beside those of the loopback. A page of another site can make a
            browser send requests here under its own name (DNS rebinding), but not under one of these.
        addresses: accept any IP address as Host too: rebinding needs a name.
        origins: other sites whose pages may call, as `https://name[:port]`. The server's own pages always may.
        body_bytes: the largest body of a request, and the largest message of a WebSocket.
        depth: how deeply the JSON of a body may be nested.
    """

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    addresses: bool = False
    origins: frozenset[str] = frozenset()
    body_bytes: int = 8 * 2**20
    depth: int = 64


def is_loopback(host: str) -> bool:
    """Returns whether a name or address is this machine's loopback, as far as is known without asking a name server."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def build_access(
    host: str, *, token: str | None = None, hosts: Iterable[str] = (), origins: Iterable[str] = ()
) -> Access:
    """Returns the access rules for a server that listens on `host`.

    Raises:
        ConfigError: the host is beyond the loopback and no token is set, or the token can be guessed or cannot be sent.
    """
    problems = []
    if token is None and not is_loopback(host):
        message = f"other machines can reach {host!r}, but no token is set"
        problems.append(Problem("host", message, "set a token, or listen on 127.0.0.1"))
    if token is not None and (len(token) < _MIN_TOKEN_LENGTH or not _TOKEN_PATTERN.fullmatch(token)):
        message = f"got {len(token)} characters, expected at least {_MIN_TOKEN_LENGTH} letters, digits and signs"
        problems.append(
            Problem("token", message, 'python -c "import secrets; print(secrets.token_urlsafe())" makes one')
        )
    if problems:
        raise ConfigError(problems)
    names = {name.lower() for name in (host, *hosts)}
    return Access(token, frozenset(names), not is_loopback(host), frozenset(map(str.lower, origins)))


def guard_app(app: App, access: Access) -> App:
    """Wraps an app with the checks of `access`; request bodies are read completely before the app is called.

    Refused requests are answered 403 (AccessDenied) or 413 (LimitExceeded); a WebSocket is refused in its handshake.
    Messages of an open WebSocket are not checked: the server limits their size, and dialects can call `is_too_deep`.
    """
    return _Guard(app, access)


class _Guard:
    """The checks, cheapest first."""

    __slots__ = ("_access", "_app", "_bearer", "_known", "_limit", "_num_arriving_bytes")

    def __init__(self, app: App, access: Access) -> None:
        self._app, self._access, self._limit = app, access, access.body_bytes
        self._bearer = None if access.token is None else b"Bearer " + access.token.encode()
        self._known: set[bytes] = set()
        self._num_arriving_bytes = 0  # of bodies that have begun to arrive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        problem = self._find_access_problem(headers, origin)
        if problem is None and origin is not None and kind == "http":
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                return await _answer_preflight(send, origin)  # it bears no token, and nothing is done
            send = _share_with_origin(send, origin)
        if (
            problem is None
            and self._bearer is not None
            and not self._has_valid_token(headers.get(b"authorization", b""))
        ):
            problem = AccessDenied("missing or wrong token", expected="Authorization: Bearer TOKEN")
        if problem is not None:
            return await _refuse(scope, send, problem)
        if kind == "http" and (b"content-length" in headers or b"transfer-encoding" in headers):
            try:
                body = await self._read_body(headers, receive)
            except (LimitExceeded, AtCapacity) as error:
                return await _refuse(scope, send, error)
            if body is None:
                return None  # the client went away
            receive = _replay_body(body, receive)
        return await self._app(scope, receive, send)

    def _find_access_problem(self, headers: dict[bytes, bytes], origin: bytes | None) -> AccessDenied | None:
        """Returns the problem of an unknown Host or a foreign Origin; None where both are accepted."""
        host = headers.get(b"host", b"")
        if host not in self._known and not self._is_known_host(host):
            name = host.decode("latin-1")
            return AccessDenied("unknown Host", value=name, expected="the host name of this server")
        if origin is not None and not self._is_allowed_origin(origin.lower(), host.lower()):
            return AccessDenied(
                "request from another site",
                value=origin.decode("latin-1"),
                expected="no Origin, or the Origin of this server",
            )
        return None

    def _is_known_host(self, header: bytes) -> bool:
        name = _parse_host_name(header.decode("latin-1"))
        is_accepted = name in self._access.hosts or is_loopback(name) or (self._access.addresses and _is_address(name))
        if is_accepted and len(self._known) < _MAX_REMEMBERED_HOSTS:
            self._known.add(header)
        return is_accepted

    def _is_allowed_origin(self, origin: bytes, host: bytes) -> bool:
        is_own_page = origin in (b"http://" + host, b"https://" + host)
        return is_own_page or origin.decode("latin-1") in self._access.origins

    def _has_valid_token(self, authorization: bytes) -> bool:
        """Returns whether the header carries the token; the time does not depend on where it differs."""
        if authorization[:6].lower() == b"basic ":
            try:
                password = base64.b64decode(authorization[6:].strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                password = b""
            authorization = b"Bearer " + password
        elif authorization[:7].lower() == b"bearer ":
            authorization = b"Bearer " + authorization[7:].strip()
        return hmac.compare_digest(authorization, self._bearer or b"")

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Reads the whole body; returns None where the client left before its end."""
        content_length = headers.get(b"content-length", b"0")
        if not content_length.isdigit() or int(content_length[:20]) > self._limit:
            raise self._too_large(content_length.decode("latin-1")[:20])
        message = await receive()
        if message["type"] != "http.request":
            return None
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts = await self._read_parts(body, receive)
            if parts is None:
                return None
            body = b"".join(parts)
        if len(body) > self._limit:
            raise self._too_large(len(body))
        if is_too_deep(body, self._access.depth):
            raise LimitExceeded("the body is nested too deeply", expected=f"at most {self._access.depth} levels")
        return body

    async def _read_parts(self, first: bytes, receive: Receive) -> list[bytes] | None:
        """Reads the parts of a body that arrives in several; returns None where the client left before its end.

        Bodies that arrive slowly would fill the memory together: beyond `_MAX_ARRIVING_BODIES` whole ones, further
        large bodies are refused.
        """
        parts, size = [first], len(first)
        self._num_arriving_bytes += size
        try:
            is_more = True
            while is_more:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                self._num_arriving_bytes += len(part)
                if size > self._limit:
                    raise self._too_large(size)
                if size > _SMALL_BODY_BYTES and self._num_arriving_bytes > _MAX_ARRIVING_BODIES * self._limit:
                    raise AtCapacity("too many large bodies arrive at once", retry_after_s=1.0)
                is_more = message.get("more_body", False)
            return parts
        finally:
            self._num_arriving_bytes -= size

    def _too_large(self, size: object) -> LimitExceeded:
        return LimitExceeded("the body is too large", value=f"{size} bytes", expected=f"at most {self._limit} bytes")


async def _answer_preflight(send: Send, origin: bytes) -> None:
    """Sends a browser the answer to its preflight request: the methods and headers that an allowed site may use."""
    headers = [
        (b"access-control-allow-origin", origin),
        (b"vary", b"origin"),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-max-age", b"600"),
        (b"access-control-allow-headers", b"authorization, content-type, evolvent-protocol"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _share_with_origin(send: Send, origin: bytes) -> Send:
    """Wraps `send` so that a page of an allowed site can read the response."""

    async def send_shared(message: Message) -> None:
        if message["type"] == "http.response.start":
            cors_headers = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *cors_headers]}
        await send(message)

    return send_shared


def _parse_host_name(header: str) -> str:
    """Returns the name in a Host header without its port and brackets."""
    match = _BRACKETED.fullmatch(header)
    name = match[1] if match else header.rpartition(":")[0] or header
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that delivers the body once, then continues with the connection (which reports its
    closing).
    """
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def receive_replayed() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        body_message, message = message, None
        return body_message

    return receive_replayed


def is_too_deep(data: bytes, depth: int) -> bool:
    """Returns whether a JSON text nests more than `depth` lists and objects; nothing is parsed.

    Strings are cut out, everything but the brackets is deleted, and the innermost pairs are removed `depth` times, each
    at the speed of `bytes.replace`. In a text that does not close its brackets every opening counts.
    """
    if data.count(b"[") + data.count(b"{") <= depth:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(data.split(b'"')[::2]).translate(_BRACES_TO_BRACKETS, _NON_BRACKETS)
    for _ in range(depth):
        reduced = brackets.replace(b"[]", b"")
        if len(reduced) == len(brackets):
            return brackets.count(b"[") > depth
        brackets = reduced
    return bool(brackets)


async def send_response(
    send: Send, status: int, body: bytes, *, headers: Sequence[tuple[bytes, bytes]] = (), kind: bytes = _JSON[1]
) -> None:
    """Sends a whole response, JSON unless `kind` gives another content type."""
    base_headers = [(_JSON[0], kind), (b"content-length", b"%d" % len(body)), _NOSNIFF]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*base_headers, *headers] if headers else base_headers,
        }
    )
    await send({"type": "http.response.body", "body": body})


async def reject(
    scope: Scope, send: Send, *, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Sends an error body in answer to a request or to the handshake of a WebSocket."""
    if scope["type"] == "http":
        await send_response(send, status, body, headers=headers)
    elif "websocket.http.response" in scope.get("extensions", {}):
        base_headers = [_JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "websocket.http.response.start", "status": status, "headers": [*base_headers, *headers]})
        await send({"type": "websocket.http.response.body", "body": body})
        await asyncio.sleep(0)  # uvicorn complains of an unfinished handshake unless it has seen the connection close
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _refuse(scope: Scope, send: Send, error: EvolventError) -> None:
    """Sends 403, or 413 or 503 and ends the connection, because its body will not be read."""
    status = 413 if isinstance(error, LimitExceeded) else 503 if isinstance(error, AtCapacity) else 403
    message = str(EvolventError(error.what, value=error.value, hint=error.hint))
    row: dict[str, object] = {"kind": type(error).__name__, "message": message, "expected": error.expected}
    row["status"] = status
    headers = [(b"connection", b"close")] if status != 403 else []
    if isinstance(error, AtCapacity):
        row["retry_after_s"] = error.retry_after_s
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    await reject(scope, send, status=status, body=json.dumps(row).encode(), headers=headers)

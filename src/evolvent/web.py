"""What every server here checks before anything else sees a request: host, origin, token, size and nesting of bodies.

`guarded(app, access)` is pure ASGI and knows no framework. What it refuses it answers itself, with the error body of
all servers here: `{kind, message, expected, status}`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import AccessDenied, ConfigError, EvolventError, LimitExceeded, Problem

__all__ = [
    "Access",
    "App",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "answer",
    "bound_to",
    "guarded",
    "is_loopback",
    "reject",
    "too_deep",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b"[]{}"))
_TOKEN = re.compile(r"[!-~]+")
_TOKEN_LENGTH = 16
_BRACKETED = re.compile(r"\[([^]]*)\](?::\d*)?")  # an IPv6 address in a Host header
_KNOWN_HOSTS = 64  # accepted Host headers that are remembered


@dataclass(frozen=True, slots=True)
class Access:
    """Who may talk to a server, and how much at once.

    Args:
        token: every request must bear it (`Authorization: Bearer TOKEN`, or Basic with it as the password); None: no
            token is asked for, which only a server on the loopback may do. See `bound_to`.
        hosts: names in the Host header that are ours, beside the loopback's. A page of another site can make a browser
            send requests here under its own name (DNS rebinding), but not under one of these.
        addresses: any IP address is ours too: rebinding needs a name.
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
    """Whether a name or address is this machine's loopback, as far as can be told without asking a name server."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound_to(host: str, *, token: str | None = None, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> Access:
    """What is right for a server that listens on `host`.

    Raises:
        ConfigError: beyond the loopback without a token, or a token that could be guessed or not be sent.
    """
    problems = []
    if token is None and not is_loopback(host):
        what = f"{host!r} can be reached from other machines, and no token is set"
        problems.append(Problem("host", what, "set a token, or listen on 127.0.0.1"))
    if token is not None and (len(token) < _TOKEN_LENGTH or not _TOKEN.fullmatch(token)):
        what = f"a token of {len(token)} characters, expected at least {_TOKEN_LENGTH}: letters, digits and signs"
        problems.append(Problem("token", what, 'python -c "import secrets; print(secrets.token_urlsafe())" makes one'))
    if problems:
        raise ConfigError(problems)
    names = {name.lower() for name in (host, *hosts)}
    return Access(token, frozenset(names), not is_loopback(host), frozenset(map(str.lower, origins)))


def guarded(app: App, access: Access) -> App:
    """The app behind the checks of `access`. Bodies arrive whole, and are read before the app is called.

    Refused requests are answered 403 (AccessDenied) or 413 (LimitExceeded); a WebSocket is refused in its handshake.
    Messages of an open WebSocket are not looked at: the server limits their size, and `too_deep` is there for faces.
    """
    return _Guard(app, access)


class _Guard:
    """The checks, in the order of what they cost."""

    __slots__ = ("_access", "_app", "_bearer", "_known", "_limit")

    def __init__(self, app: App, access: Access) -> None:
        self._app, self._access, self._limit = app, access, access.body_bytes
        self._bearer = None if access.token is None else b"Bearer " + access.token.encode()
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        problem = self._foreign(headers, origin)
        if problem is None and origin is not None and kind == "http":
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                return await _permit(send, origin)  # it bears no token, and nothing is done
            send = _shared(send, origin)
        if problem is None and self._bearer is not None and not self._token(headers.get(b"authorization", b"")):
            problem = AccessDenied("no token, or a wrong one", expected="Authorization: Bearer TOKEN")
        if problem is not None:
            return await _refuse(scope, send, problem)
        if kind == "http" and (b"content-length" in headers or b"transfer-encoding" in headers):
            try:
                body = await self._body(headers, receive)
            except LimitExceeded as error:
                return await _refuse(scope, send, error)
            if body is None:
                return None  # the client went away
            receive = _again(body, receive)
        return await self._app(scope, receive, send)

    def _foreign(self, headers: dict[bytes, bytes], origin: bytes | None) -> AccessDenied | None:
        """What is wrong with the name we are called by, or with the page that calls."""
        host = headers.get(b"host", b"")
        if host not in self._known and not self._known_host(host):
            name = host.decode("latin-1")
            return AccessDenied("a Host that is not ours", value=name, expected="the name this server is known by")
        if origin is not None and not self._ours(origin.lower(), host.lower()):
            return AccessDenied("a page of another site", value=origin.decode("latin-1"), expected="no foreign Origin")
        return None

    def _known_host(self, header: bytes) -> bool:
        name = _host_name(header.decode("latin-1"))
        fits = name in self._access.hosts or is_loopback(name) or (self._access.addresses and _is_address(name))
        if fits and len(self._known) < _KNOWN_HOSTS:
            self._known.add(header)
        return fits

    def _ours(self, origin: bytes, host: bytes) -> bool:
        own = origin in (b"http://" + host, b"https://" + host)
        return own or origin.decode("latin-1") in self._access.origins

    def _token(self, given: bytes) -> bool:
        """Whether the header bears the token; takes as long whatever is wrong with it."""
        if given[:6].lower() == b"basic ":
            try:
                password = base64.b64decode(given[6:].strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                password = b""
            given = b"Bearer " + password
        elif given[:7].lower() == b"bearer ":
            given = b"Bearer " + given[7:].strip()
        return hmac.compare_digest(given, self._bearer or b"")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body, None where the client left before its end."""
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told[:20]) > self._limit:
            raise self._too_large(told.decode("latin-1")[:20])
        message = await receive()
        if message["type"] != "http.request":
            return None
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts, size = [body], len(body)
            while message.get("more_body", False):
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > self._limit:
                    raise self._too_large(size)
            body = b"".join(parts)
        if len(body) > self._limit:
            raise self._too_large(len(body))
        if too_deep(body, self._access.depth):
            raise LimitExceeded("a body that is nested too deeply", expected=f"at most {self._access.depth} levels")
        return body

    def _too_large(self, size: object) -> LimitExceeded:
        return LimitExceeded("a body that is too large", value=f"{size} bytes", expected=f"at most {self._limit} bytes")


async def _permit(send: Send, origin: bytes) -> None:
    """Tell a browser, which asks before it lets a page of an allowed site call, what that page may do."""
    headers = [
        (b"access-control-allow-origin", origin),
        (b"vary", b"origin"),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-max-age", b"600"),
        (b"access-control-allow-headers", b"authorization, content-type, evolvent-protocol"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _shared(send: Send, origin: bytes) -> Send:
    """A `send` that lets the page of an allowed site read the answer."""

    async def sharing(message: Message) -> None:
        if message["type"] == "http.response.start":
            shown = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *shown]}
        await send(message)

    return sharing


def _host_name(header: str) -> str:
    """The name of a Host header without its port and brackets."""
    found = _BRACKETED.fullmatch(header)
    name = found[1] if found else header.rpartition(":")[0] or header
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands the body out once, then goes on with the connection (which tells when it is closed)."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def once() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        first, message = message, None
        return first

    return once


def too_deep(data: bytes, depth: int) -> bool:
    """Whether a JSON text opens more than `depth` lists and objects inside one another; nothing is parsed.

    Strings are cut out, all but the brackets is deleted, and the innermost pairs are removed `depth` times, each at the
    speed of `bytes.replace`. In a text that does not close what it opens every opening counts.
    """
    if data.count(b"[") + data.count(b"{") <= depth:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = b"".join(data.split(b'"')[::2]).translate(_ONE_KIND, _NO_MARKS)
    for _ in range(depth):
        inner = marks.replace(b"[]", b"")
        if len(inner) == len(marks):
            return marks.count(b"[") > depth
        marks = inner
    return bool(marks)


async def answer(
    send: Send, status: int, body: bytes, *, headers: Sequence[tuple[bytes, bytes]] = (), kind: bytes = _JSON[1]
) -> None:
    """Send a whole response, JSON unless `kind` says another content type."""
    fixed = [(_JSON[0], kind), (b"content-length", b"%d" % len(body)), _NOSNIFF]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers] if headers else fixed})
    await send({"type": "http.response.body", "body": body})


async def reject(
    scope: Scope, send: Send, *, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Answer a request, or the handshake of a WebSocket, by an error body."""
    if scope["type"] == "http":
        await answer(send, status, body, headers=headers)
    elif "websocket.http.response" in scope.get("extensions", {}):
        fixed = [_JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "websocket.http.response.start", "status": status, "headers": [*fixed, *headers]})
        await send({"type": "websocket.http.response.body", "body": body})
        await asyncio.sleep(0)  # uvicorn complains of an unfinished handshake unless it has seen the connection close
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _refuse(scope: Scope, send: Send, error: EvolventError) -> None:
    """Answer 403, or 413 and end the connection, whose body nobody will read."""
    status = 413 if isinstance(error, LimitExceeded) else 403
    message = str(EvolventError(error.what, value=error.value, hint=error.hint))
    row = {"kind": type(error).__name__, "message": message, "expected": error.expected, "status": status}
    headers = [(b"connection", b"close")] if status == 413 else []
    await reject(scope, send, status=status, body=json.dumps(row).encode(), headers=headers)

"""One server of the native dialect over HTTP: a request and its answer, read within limits, and every failure typed.

Nothing is repeated here; `remote.link` does that. No proxy of the environment is used and no redirect followed, since
both would give the token to another host.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    Problem,
    SampleInvalid,
    WorldError,
)
from evolvent.serve.wire import PROTOCOL, PROTOCOL_HEADER, WireValue, decode_error, decode_json, encode_json

__all__ = [
    "MAX_PANEL_BYTES",
    "MAX_REPLY_BYTES",
    "AnswerTooLarge",
    "ConnectionLost",
    "HttpClient",
    "ServerPeer",
    "parse_server_url",
]

MAX_REPLY_BYTES = 8 << 20  # of one answer; its text is limited further
MAX_PANEL_BYTES = 64 << 20  # of a task panel
MAX_SHOWN_CHARS = 200  # characters of an unreadable answer that an error shows
MAX_MESSAGE_CHARS = 2000  # characters of a server's own message that are kept


class ConnectionLost(EnvLost):
    """The connection broke: whether the request arrived is unknown."""


class AnswerTooLarge(ConnectionLost):
    """The connection was given up because an answer was larger than its limit."""


def parse_server_url(url: str) -> tuple[str, str | None]:
    """Parses a URL into the base of a server and the world it names: `http://host:8000[/prefix][/v1/worlds/NAME]`.

    Raises:
        ConfigError: not an http or https URL of a host, or one with a user, a query or a fragment.
    """
    problems = []
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise ConfigError(
            [Problem("url", f"got {url[:MAX_SHOWN_CHARS]!r}, expected the address of a server", str(error))]
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(
            Problem(
                "url",
                f"got {url[:MAX_SHOWN_CHARS]!r}, expected the address of a server",
                "for example http://127.0.0.1:8000",
            )
        )
    if "@" in parts.netloc:
        problems.append(Problem("url", "the address contains a user or password", "pass the token as token=..."))
    if parts.query or parts.fragment:
        problems.append(
            Problem("url", f"got a query or fragment in {url[:MAX_SHOWN_CHARS]!r}", "use the address without them")
        )
    if problems:
        raise ConfigError(problems if "@" not in parts.netloc else problems[-1:])
    path, _, name = parts.path.partition("/v1/worlds/")
    base = urlunsplit((parts.scheme, parts.netloc, path.rstrip("/").removesuffix("/v1"), "", ""))
    return base, name.strip("/") or None


@dataclass(frozen=True, slots=True)
class ServerPeer:
    """A server: its address and its token. The token appears in no text that leaves here.

    Raises:
        ConfigError: a token that no header can carry (the text does not show it).
    """

    base: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError(
                "the token has characters that an HTTP header cannot contain",
                value=f"{len(self.token)} characters",
                expected="printable ASCII",
            )

    def headers(self) -> dict[str, str]:
        """Returns the headers of every request."""
        headers = {PROTOCOL_HEADER: str(PROTOCOL)}
        return headers if self.token is None else {**headers, "authorization": f"Bearer {self.token}"}

    def hide_token(self, text: str) -> str:
        """Returns the text without the token."""
        return text if self.token is None else text.replace(self.token, "***")

    def answer_error(self, origin: str, data: str | bytes, problem: str) -> WorldError:
        """Returns the error of an invalid answer: it names the origin and shows the start of the answer."""
        head = (
            data[: 4 * MAX_SHOWN_CHARS]
            if isinstance(data, str)
            else data[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")
        )
        return WorldError(
            f"{origin}: {self.hide_token(problem)}",
            value=ascii(self.hide_token(head)[:MAX_SHOWN_CHARS]),
            expected="an answer of the native dialect",
        )

    def decode_error(self, row: object) -> EvolventError:
        """Decodes the error that a server reports, cut to a readable length."""
        if isinstance(row, Mapping):
            row = {**row, "message": self.hide_token(str(row.get("message", "")))[:MAX_MESSAGE_CHARS]}
            if isinstance(row.get("expected"), str):
                row["expected"] = self.hide_token(row["expected"])[:MAX_MESSAGE_CHARS]
        return decode_error(row)


class HttpClient:
    """HTTP to one server with kept connections. Used on one event loop; closed by its creator.

    Args:
        peer: the server.
        connect_s: seconds for opening a connection. Answers have no limit here: the caller has one.
    """

    def __init__(self, peer: ServerPeer, *, connect_s: float) -> None:
        self.peer = peer
        # Reading the authorities of TLS takes a while. Without TLS none is trusted, which costs nothing.
        is_plain = peer.base.startswith("http:")
        self._client = httpx2.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True,
            headers={**peer.headers(), "accept-encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=connect_s),
            limits=httpx2.Limits(max_connections=128, max_keepalive_connections=32),
            trust_env=False,
            follow_redirects=False,
        )

    async def ask(self, method: str, path: str, body: object = None, *, limit: int = MAX_REPLY_BYTES) -> WireValue:
        """Returns the JSON value of an answer.

        Raises:
            ConnectionLost: no connection, or it broke before the answer was complete.
            AnswerTooLarge: more than `limit` bytes; the rest is not read.
            EvolventError: the typed error of the server; WorldError for an invalid answer.
        """
        origin = f"{method} {self.peer.base}{path}"
        content = None if body is None else encode_json(body)
        request = self._client.build_request(
            method, self.peer.base + path, content=content, headers={"content-type": "application/json"}
        )
        try:
            response = await self._client.send(request, stream=True)
            try:
                data = await _read_body(response, origin, limit)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise ConnectionLost(f"{origin}: no answer", value=f"{type(error).__name__}: {error}") from error
        return self._parse_response(origin, response, data)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    def _parse_response(self, origin: str, response: httpx2.Response, data: bytes) -> Any:
        """Returns the value of a good answer; servers of other kinds also report errors with status 200."""
        status = response.status_code
        if 300 <= status < 400:
            target = self.peer.hide_token(response.headers.get("location", ""))[:MAX_SHOWN_CHARS]
            raise WorldError(
                f"{origin}: refused a redirect",
                value=ascii(target),
                hint="use the target address",
            )
        try:
            value = decode_json(data)
        except SampleInvalid as error:
            raise self._status_error(origin, response, data) from error
        row = value.get("error") if status < 300 and isinstance(value, Mapping) else value
        if status < 300 and not row:
            return value
        if not isinstance(row, Mapping) or not isinstance(row.get("kind"), str):
            raise self._status_error(origin, response, data)
        retry_after = response.headers.get("retry-after", "")
        raise self.peer.decode_error({"retry_after_s": _parse_seconds(retry_after), **row} if retry_after else row)

    def _status_error(self, origin: str, response: httpx2.Response, data: bytes) -> EvolventError:
        """Returns the error of an answer without a typed error, by its status."""
        status = response.status_code
        problem = self.peer.answer_error(origin, data, f"status {status} is not an answer of a world")
        if status in (401, 403):
            return AccessDenied(f"{origin}: the server refuses, status {status}", hint="check the token")
        if status == 503:
            return AtCapacity(
                f"{origin}: the server is full", retry_after_s=_parse_seconds(response.headers.get("retry-after"))
            )
        if status in (502, 504):
            return ConnectionLost(problem.what, value=problem.value)
        return problem if status >= 300 else self.peer.answer_error(origin, data, "an answer that tells of no result")


def _parse_seconds(text: str | None) -> float:
    """Parses the seconds of a Retry-After header; returns 1 if it names none."""
    try:
        seconds = float(text or "")
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < math.inf else 1.0


async def _read_body(response: httpx2.Response, origin: str, limit: int) -> bytes:
    """Reads the raw body (nothing is decompressed), at most `limit` bytes."""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > limit:
            raise AnswerTooLarge(
                f"{origin}: the answer is too large",
                value=f"more than {len(data)} bytes",
                expected=f"at most {limit}",
            )
    return bytes(data)

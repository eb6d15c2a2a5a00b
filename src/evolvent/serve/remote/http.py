"""One server of the native dialect over HTTP: a request and its answer, read within limits, and every failure typed.

Nothing is repeated here; `remote_link` does that. No proxy of the environment is used and no redirect followed, since
both would hand the token to somebody else.
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
from evolvent.serve.wire import PROTOCOL, PROTOCOL_HEADER, decoded, encoded, error_of

__all__ = ["PANEL_BYTES", "REPLY_BYTES", "Http", "LinkLost", "Peer", "TooLarge", "address"]

REPLY_BYTES = 8 << 20  # of one answer; its text is limited further
PANEL_BYTES = 64 << 20  # of a task panel
HEAD = 200  # characters of an unreadable answer that an error shows
SAID = 2000  # characters of a server's own message that are kept


class LinkLost(EnvLost):
    """The connection broke: whether the request arrived is not known."""


class TooLarge(LinkLost):
    """The connection was given up because what came over it is larger than its limit."""


def address(url: str) -> tuple[str, str | None]:
    """The base of a server and the name of the world that a URL names: `http://host:8000[/prefix][/v1/worlds/NAME]`.

    Raises:
        ConfigError: no http or https URL of a host, or one with a user, a query or a fragment.
    """
    problems = []
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise ConfigError([Problem("url", f"no address of a server: {url[:HEAD]!r}", str(error))]) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(Problem("url", f"no address of a server: {url[:HEAD]!r}", "for example http://127.0.0.1:8000"))
    if "@" in parts.netloc:
        problems.append(Problem("url", "a user or password in the address", "hand the token over as token=..."))
    if parts.query or parts.fragment:
        problems.append(Problem("url", f"a query or fragment: {url[:HEAD]!r}", "give the address alone"))
    if problems:
        raise ConfigError(problems if "@" not in parts.netloc else problems[-1:])
    path, _, name = parts.path.partition("/v1/worlds/")
    base = urlunsplit((parts.scheme, parts.netloc, path.rstrip("/").removesuffix("/v1"), "", ""))
    return base, name.strip("/") or None


@dataclass(frozen=True, slots=True)
class Peer:
    """A server: its address and the token it wants. The token is in no text that leaves here.

    Raises:
        ConfigError: a token that no header can carry (the text does not show it).
    """

    base: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError(
                "a token that no HTTP header can carry",
                value=f"{len(self.token)} characters",
                expected="printable ASCII",
            )

    def headers(self) -> dict[str, str]:
        """What every request bears."""
        said = {PROTOCOL_HEADER: str(PROTOCOL)}
        return said if self.token is None else {**said, "authorization": f"Bearer {self.token}"}

    def clean(self, text: str) -> str:
        """The text without the token."""
        return text if self.token is None else text.replace(self.token, "***")

    def unreadable(self, where: str, data: str | bytes, why: str) -> WorldError:
        """An answer that is none: names where it came from and shows its head."""
        head = data[: 4 * HEAD] if isinstance(data, str) else data[: 4 * HEAD].decode("utf-8", "replace")
        return WorldError(
            f"{where}: {self.clean(why)}",
            value=ascii(self.clean(head)[:HEAD]),
            expected="an answer of the native dialect",
        )

    def told(self, row: object) -> EvolventError:
        """The error that a server tells of, cut to a readable length."""
        if isinstance(row, Mapping):
            row = {**row, "message": self.clean(str(row.get("message", "")))[:SAID]}
            if isinstance(row.get("expected"), str):
                row["expected"] = self.clean(row["expected"])[:SAID]
        return error_of(row)


class Http:
    """HTTP to one server with kept connections. Used on one event loop; closed by whoever made it.

    Args:
        peer: the server.
        connect_s: how long opening a connection may take. Answers have no limit of their own: the caller has one.
    """

    def __init__(self, peer: Peer, *, connect_s: float) -> None:
        self.peer = peer
        # Reading the authorities of TLS takes a while. Without TLS none is trusted, which costs nothing.
        plain = peer.base.startswith("http:")
        self._client = httpx2.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
            headers={**peer.headers(), "accept-encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=connect_s),
            limits=httpx2.Limits(max_connections=128, max_keepalive_connections=32),
            trust_env=False,
            follow_redirects=False,
        )

    async def ask(self, method: str, path: str, body: object = None, *, limit: int = REPLY_BYTES) -> Any:
        """The JSON value of an answer.

        Raises:
            LinkLost: no connection, or it broke before the answer was whole.
            TooLarge: more than `limit` bytes; the rest is not read.
            EvolventError: the typed error that the server answered with; WorldError for an answer that is none.
        """
        where = f"{method} {self.peer.base}{path}"
        content = None if body is None else encoded(body)
        request = self._client.build_request(
            method, self.peer.base + path, content=content, headers={"content-type": "application/json"}
        )
        try:
            response = await self._client.send(request, stream=True)
            try:
                data = await _read(response, where, limit)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise LinkLost(f"{where}: no answer", value=f"{type(error).__name__}: {error}") from error
        return self._value(where, response, data)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _value(self, where: str, response: httpx2.Response, data: bytes) -> Any:
        """The value of a good answer; servers of other kinds also tell of errors with status 200."""
        status = response.status_code
        if 300 <= status < 400:
            target = self.peer.clean(response.headers.get("location", ""))[:HEAD]
            raise WorldError(
                f"{where}: a redirect, which is not followed",
                value=ascii(target),
                hint="give the address that it points to",
            )
        try:
            value = decoded(data)
        except SampleInvalid as error:
            raise self._refused(where, response, data) from error
        row = value.get("error") if status < 300 and isinstance(value, Mapping) else value
        if status < 300 and not row:
            return value
        if not isinstance(row, Mapping) or not isinstance(row.get("kind"), str):
            raise self._refused(where, response, data)
        after = response.headers.get("retry-after", "")
        raise self.peer.told({"retry_after_s": _seconds(after), **row} if after else row)

    def _refused(self, where: str, response: httpx2.Response, data: bytes) -> EvolventError:
        """An answer without a typed error: what its status says."""
        status = response.status_code
        problem = self.peer.unreadable(where, data, f"status {status}, which is no answer of a world")
        if status in (401, 403):
            return AccessDenied(f"{where}: the server refuses, status {status}", hint="check the token")
        if status == 503:
            return AtCapacity(
                f"{where}: the server is full", retry_after_s=_seconds(response.headers.get("retry-after"))
            )
        if status in (502, 504):
            return LinkLost(problem.what, value=problem.value)
        return problem if status >= 300 else self.peer.unreadable(where, data, "an answer that tells of no result")


def _seconds(text: str | None) -> float:
    """The seconds of a Retry-After header; 1 where it names none."""
    try:
        seconds = float(text or "")
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < math.inf else 1.0


async def _read(response: httpx2.Response, where: str, limit: int) -> bytes:
    """The body as it came (nothing is unpacked), no more than the limit of it."""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > limit:
            raise TooLarge(
                f"{where}: an answer that is too large",
                value=f"more than {len(data)} bytes",
                expected=f"at most {limit}",
            )
    return bytes(data)

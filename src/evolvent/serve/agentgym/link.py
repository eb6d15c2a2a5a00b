"""One AgentGym server over HTTP: kept-alive connections, deadlines, limits, and every failure as a typed error.

Creating, resetting, observing and closing may be tried again until a deadline; a step is sent once. Nothing is followed
to another address, no proxy of the environment is used, and an answer is read no further than its limit.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx2

from evolvent.deadline import Deadline, backoff
from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    LimitExceeded,
    Problem,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    WorldError,
)
from evolvent.serve.wire import decoded, encoded, error_of
from evolvent.trajectory import Json

__all__ = ["Link", "LinkLimits"]

_HEAD = 300  # characters of a body that an error shows
_GONE = ("not valid", "finished", "deleted", "not found")
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """How long and how much.

    Args:
        step_s: seconds for one step.
        reset_s: seconds for a creation, a reset or a closing, with all tries of it.
        max_bytes: the largest answer that is read.
        connections: how many at once; more requests wait.
        retry_s: how long a server that is out of reach is asked again; a full one is until `reset_s`.
        idle_s: how long an unused connection is kept. Servers close theirs after 5 s as a rule, and a request that
            meets the closing is lost.
        trust_env: whether proxies of the environment are used.
    """

    step_s: float = 300.0
    reset_s: float = 300.0
    max_bytes: int = 2**20
    connections: int = 256
    retry_s: float = 15.0
    idle_s: float = 4.0
    trust_env: bool = False

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{getattr(self, name)} is no limit", "give more than 0")
            for name in ("step_s", "reset_s", "max_bytes", "connections", "retry_s", "idle_s")
            if not getattr(self, name) > 0
        ]
        if problems:
            raise ConfigError(problems)


class Link:
    """The connections to one server; threads share them.

    Args:
        url: the address that paths are appended to.
        token: sent as a bearer token; it appears in no error.

    Raises:
        ConfigError: no http address.
    """

    def __init__(self, url: str, *, token: str | None = None, limits: LinkLimits | None = None) -> None:
        if not _is_address(url):
            hint = "for example http://127.0.0.1:8000/agentgym/textcraft"
            raise ConfigError([Problem("url", f"{_without_login(url)!r} is no address of a server", hint)])
        self.limits = limits or LinkLimits()
        self.url = _without_login(url).rstrip("/")
        self._base, self._token = url.rstrip("/"), token
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def once(self, method: str, path: str, body: Mapping[str, Any] | None, *, deadline: Deadline) -> Json:
        """Send a request once. The body goes as JSON, or as the query of a GET.

        Raises:
            StepTimeout: no answer before the deadline.
            EnvLost: the server cannot be reached, or the connection broke.
            LimitExceeded: an answer beyond the limit.
            SessionGone: the session is not there, or has ended.
            AtCapacity: 503 or 429.
            WorldError: any other answer than 200, no JSON, or an `error` in it. What our server names is raised as
                that.
        """
        said = _Said(method, f"{self.url}{path}", encoded(body) if body is not None else b"", self._token)
        query = f"?{urlencode(body)}" if method == "GET" and body else ""
        status, headers, data = self._exchange(said, f"{self._base}{path}{query}", deadline)
        if status != 200:
            raise said.refused(status, headers, data)
        try:
            answer = decoded(data)
        except SampleInvalid as error:
            raise said.wrong("an answer that is no JSON", data, "JSON") from error
        if isinstance(answer, dict) and "error" in answer:
            text = str(answer["error"])
            kind = SessionGone if any(word in text.lower() for word in _GONE) else WorldError
            raise said.wrong("the server reports an error", text, None, kind=kind)
        return answer

    def retried(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, deadline: Deadline, rng: Random
    ) -> Json:
        """Send a request that is safe to repeat: again while the server is full, restarting or out of reach.

        Raises what `once` raises last.
        """
        attempt, patience = 0, deadline.within(self.limits.retry_s)
        while True:
            try:
                return self.once(method, path, body, deadline=deadline)
            except (AtCapacity, EnvLost) as error:
                pause = backoff(attempt, rng)
                if isinstance(error, AtCapacity):
                    pause = max(pause, min(error.retry_after_s, 5.0) * (0.5 + rng.random() / 2))
                if pause >= (deadline if isinstance(error, AtCapacity) else patience).left():
                    raise
            attempt += 1
            time.sleep(pause)

    def _exchange(self, said: _Said, address: str, deadline: Deadline) -> tuple[int, Mapping[str, str], bytes]:
        """Send and read. Where an answer stops half-way, that is noticed after twice the deadline at the latest."""
        deadline.check(said.what)
        content = said.sent if said.method != "GET" else None
        try:
            with self._open().stream(said.method, address, content=content, timeout=deadline.left()) as reply:
                data = bytearray()
                for part in reply.iter_raw():
                    data += part
                    if len(data) > self.limits.max_bytes:
                        raise LimitExceeded(
                            f"{said.what}: an answer beyond the limit",
                            expected=f"at most {self.limits.max_bytes} bytes",
                        )
                    deadline.check(said.what)
                return reply.status_code, reply.headers, bytes(data)
        except httpx2.TimeoutException as error:
            late = f"{deadline.total_s:g} s"
            raise StepTimeout(f"{said.what}: no answer before the deadline", value=late) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EnvLost(
                f"{said.what}: {said.hidden(str(error)) or type(error).__name__}", hint="is the server running?"
            ) from error

    def _open(self) -> httpx2.Client:
        with self._lock:
            if self._client is None:
                headers = {"accept": "application/json", "accept-encoding": "identity"}
                headers |= {"content-type": "application/json"}
                headers |= {"authorization": f"Bearer {self._token}"} if self._token else {}
                many = self.limits.connections
                self._client = httpx2.Client(
                    headers=headers,
                    trust_env=self.limits.trust_env,
                    follow_redirects=False,
                    limits=httpx2.Limits(
                        max_connections=many, max_keepalive_connections=many, keepalive_expiry=self.limits.idle_s
                    ),
                )
                weakref.finalize(self, self._client.close)
            return self._client


@dataclass(frozen=True, slots=True)
class _Said:
    """A request as errors tell of it, without secrets."""

    method: str
    url: str
    sent: bytes
    token: str | None

    @property
    def what(self) -> str:
        return f"{self.method} {self.url}"

    def hidden(self, text: str) -> str:
        return text.replace(self.token, _HIDDEN) if self.token else text

    def wrong(
        self, what: str, got: object, expected: object, *, kind: type[EvolventError] = WorldError
    ) -> EvolventError:
        """An error that shows the address, what was sent and the head of what came back."""
        head = got.decode("utf-8", "replace") if isinstance(got, bytes) else str(got)
        sent = self.hidden(self.sent[:_HEAD].decode("utf-8", "replace"))
        hint = f"sent {sent}" if sent else None
        return kind(f"{self.what}: {what}", value=self.hidden(head[:_HEAD]), expected=expected, hint=hint)

    def refused(self, status: int, headers: Mapping[str, str], data: bytes) -> EvolventError:
        """The error that an answer other than 200 is."""
        try:
            row = decoded(data)
        except SampleInvalid:
            row = None
        if isinstance(row, dict) and isinstance(row.get("kind"), str):
            told = error_of(row)
            if isinstance(told, AtCapacity):
                return told
            kind = next(kind for kind in type(told).__mro__ if kind.__module__ == EvolventError.__module__)
            return self.wrong(f"{kind.__name__}, {told.what}", f"status {status}", told.expected, kind=kind)
        if status in (429, 503):
            return AtCapacity(f"{self.what}: the server is full ({status})", retry_after_s=_seconds(headers))
        if status in (502, 504):
            return self.wrong(f"answered {status}", data, 200, kind=EnvLost)
        if 300 <= status < 400:
            return self.wrong("a redirection, which is not followed", headers.get("location", ""), 200)
        missing = "no such address; is this a server of AgentGym's?" if status == 404 else f"answered {status}"
        return self.wrong(missing, data, 200)


def _seconds(headers: Mapping[str, str]) -> float:
    told = headers.get("retry-after", "")
    return float(told) if told.isascii() and told.isdigit() and len(told) < 6 else 0.1


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment


def _without_login(url: str) -> str:
    """The address without a user's name and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _HIDDEN
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{_HIDDEN}@{parts.netloc.rpartition('@')[2]}"))

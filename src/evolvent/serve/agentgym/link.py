"""One AgentGym server over HTTP: kept-alive connections, deadlines, limits, and every failure as a typed error.

Creating, resetting, observing and closing may be repeated until a deadline; a step is sent once. Redirections are not
followed, no proxy of the environment is used, and an answer is read no further than its limit.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
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
from evolvent.serve.wire import decode_error, decode_json, encode_json
from evolvent.trajectory import Json

__all__ = ["AgentGymClient", "LinkLimits"]

_MAX_SHOWN_CHARS = 300  # characters of a body that an error shows
_GONE_PHRASES = ("not valid", "finished", "deleted", "not found")
_SECRET_MASK = "***"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Deadlines and size limits of a client.

    Args:
        step_s: seconds for one step.
        reset_s: seconds for a creation, a reset or a closing, with all its tries.
        max_bytes: largest answer that is read.
        connections: number of connections at once; more requests wait.
        retry_s: seconds that an unreachable server is tried again; a full one is until `reset_s`.
        idle_s: seconds that an unused connection is kept. Servers usually close theirs after 5 s, and a request that
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


class AgentGymClient:
    """The connections to one server; threads share them.

    Args:
        url: address that paths are appended to.
        token: sent as a bearer token; it appears in no error.

    Raises:
        ConfigError: not an http address.
    """

    def __init__(self, url: str, *, token: str | None = None, limits: LinkLimits | None = None) -> None:
        if not _is_http_url(url):
            hint = "for example http://127.0.0.1:8000/agentgym/textcraft"
            raise ConfigError([Problem("url", f"{_hide_login(url)!r} is no address of a server", hint)])
        self.limits = limits or LinkLimits()
        self.url = _hide_login(url).rstrip("/")
        self._base, self._token = url.rstrip("/"), token
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def send_once(self, method: str, path: str, body: Mapping[str, object] | None, *, deadline: Deadline) -> Json:
        """Sends a request once. The body is sent as JSON, or as the query of a GET.

        Raises:
            StepTimeout: no answer before the deadline.
            EnvLost: the server cannot be reached, or the connection broke.
            LimitExceeded: an answer beyond the limit.
            SessionGone: the session does not exist, or has ended.
            AtCapacity: 503 or 429.
            WorldError: any other answer than 200, not JSON, or an `error` in it. A typed error of our own server is
                raised
                as that type.
        """
        request = _SentRequest(method, f"{self.url}{path}", encode_json(body) if body is not None else b"", self._token)
        query = f"?{urlencode(body)}" if method == "GET" and body else ""
        status, headers, data = self._exchange(request, f"{self._base}{path}{query}", deadline)
        if status != 200:
            raise request.status_error(status, headers, data)
        try:
            answer = decode_json(data)
        except SampleInvalid as error:
            raise request.make_error("an answer that is no JSON", data, "JSON") from error
        if isinstance(answer, dict) and "error" in answer:
            text = str(answer["error"])
            error_class = SessionGone if any(word in text.lower() for word in _GONE_PHRASES) else WorldError
            raise request.make_error("the server reports an error", text, None, error_class=error_class)
        return answer

    def send_with_retries(
        self, method: str, path: str, body: Mapping[str, object] | None, *, deadline: Deadline, rng: Random
    ) -> Json:
        """Sends a request that is safe to repeat: again while the server is full, restarting or unreachable.

        Raises what `once` raises last.
        """
        attempt, retry_deadline = 0, deadline.within(self.limits.retry_s)
        while True:
            try:
                return self.send_once(method, path, body, deadline=deadline)
            except (AtCapacity, EnvLost) as error:
                pause = backoff(attempt, rng)
                if isinstance(error, AtCapacity):
                    pause = max(pause, min(error.retry_after_s, 5.0) * (0.5 + rng.random() / 2))
                if pause >= (deadline if isinstance(error, AtCapacity) else retry_deadline).left():
                    raise
            attempt += 1
            time.sleep(pause)

    def _exchange(
        self, request: _SentRequest, address: str, deadline: Deadline
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request and reads the answer. An answer that stalls is noticed after twice the deadline at the
        latest.
        """
        deadline.check(request.label)
        content = request.body if request.method != "GET" else None
        try:
            with self._get_client().stream(request.method, address, content=content, timeout=deadline.left()) as reply:
                data = bytearray()
                for chunk in reply.iter_raw():
                    data += chunk
                    if len(data) > self.limits.max_bytes:
                        raise LimitExceeded(
                            f"{request.label}: an answer beyond the limit",
                            expected=f"at most {self.limits.max_bytes} bytes",
                        )
                    deadline.check(request.label)
                return reply.status_code, reply.headers, bytes(data)
        except httpx2.TimeoutException as error:
            time_limit = f"{deadline.total_s:g} s"
            raise StepTimeout(f"{request.label}: no answer before the deadline", value=time_limit) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EnvLost(
                f"{request.label}: {request.hide_token(str(error)) or type(error).__name__}",
                hint="is the server running?",
            ) from error

    def _get_client(self) -> httpx2.Client:
        with self._lock:
            if self._client is None:
                headers = {"accept": "application/json", "accept-encoding": "identity"}
                headers |= {"content-type": "application/json"}
                headers |= {"authorization": f"Bearer {self._token}"} if self._token else {}
                max_connections = self.limits.connections
                self._client = httpx2.Client(
                    headers=headers,
                    trust_env=self.limits.trust_env,
                    follow_redirects=False,
                    limits=httpx2.Limits(
                        max_connections=max_connections,
                        max_keepalive_connections=max_connections,
                        keepalive_expiry=self.limits.idle_s,
                    ),
                )
                weakref.finalize(self, self._client.close)
            return self._client


@dataclass(frozen=True, slots=True)
class _SentRequest:
    """A request as errors describe it, without secrets."""

    method: str
    url: str
    body: bytes
    token: str | None

    @property
    def label(self) -> str:
        return f"{self.method} {self.url}"

    def hide_token(self, text: str) -> str:
        return text.replace(self.token, _SECRET_MASK) if self.token else text

    def make_error(
        self, problem: str, answer: object, expected: object, *, error_class: type[EvolventError] = WorldError
    ) -> EvolventError:
        """Returns an error that shows the address, the request and the start of the answer."""
        head = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
        shown_body = self.hide_token(self.body[:_MAX_SHOWN_CHARS].decode("utf-8", "replace"))
        hint = f"sent {shown_body}" if shown_body else None
        return error_class(
            f"{self.label}: {problem}", value=self.hide_token(head[:_MAX_SHOWN_CHARS]), expected=expected, hint=hint
        )

    def status_error(self, status: int, headers: Mapping[str, str], data: bytes) -> EvolventError:
        """Returns the error of an answer other than 200."""
        try:
            row = decode_json(data)
        except SampleInvalid:
            row = None
        if isinstance(row, dict) and isinstance(row.get("kind"), str):
            error = decode_error(row)
            if isinstance(error, AtCapacity):
                return error
            error_class = next(
                error_class for error_class in type(error).__mro__ if error_class.__module__ == EvolventError.__module__
            )
            return self.make_error(
                f"{error_class.__name__}, {error.what}", f"status {status}", error.expected, error_class=error_class
            )
        if status in (429, 503):
            return AtCapacity(f"{self.label}: the server is full ({status})", retry_after_s=_retry_after(headers))
        if status in (502, 504):
            return self.make_error(f"answered {status}", data, 200, error_class=EnvLost)
        if 300 <= status < 400:
            return self.make_error("a redirection, which is not followed", headers.get("location", ""), 200)
        problem = "no such address; is this a server of AgentGym's?" if status == 404 else f"answered {status}"
        return self.make_error(problem, data, 200)


def _retry_after(headers: Mapping[str, str]) -> float:
    header = headers.get("retry-after", "")
    return float(header) if header.isascii() and header.isdigit() and len(header) < 6 else 0.1


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment


def _hide_login(url: str) -> str:
    """Returns the URL without a user's name and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _SECRET_MASK
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{_SECRET_MASK}@{parts.netloc.rpartition('@')[2]}"))

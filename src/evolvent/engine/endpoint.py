"""A model behind an OpenAI-compatible endpoint: chat and completions, with deadlines and retries.

Calls block; agents hand them to the driver as `Wait`s, which run on threads. A completion changes nothing at the
endpoint, so a request that failed is repeated until its deadline; what is lost at worst is what it cost. Neither a
proxy of the environment nor a redirect is followed, since both would hand the key to somebody else.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

from evolvent.deadline import Deadline, backoff
from evolvent.engine.asks import GREEDY, Sampling
from evolvent.engine.replies import SESSION_HEADER, Reply, read_reply
from evolvent.errors import ConfigError, ContextOverflow, EndpointError, EngineError, Problem, unknown
from evolvent.messages import Message
from evolvent.trajectory import Json
from evolvent.web import is_loopback, too_deep

__all__ = ["Endpoint", "EndpointUsage"]

log = logging.getLogger(__name__)
_REPLY_BYTES = 16 << 20
_DEPTH = 64
_CONNECT_S = 10.0
_SAID = 500  # characters of the endpoint's own message that an error shows
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # after these the same request may succeed
_LASTING = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # codes that no waiting helps against
_OVERFLOW = re.compile(r"context[ _-]?(length|window|size)|maximum (input|prompt) length|prompt is too long", re.I)
_CHECK_S = 15.0  # how long to wait for an endpoint before anything is played
_UPDATE = "/update_weights_from_disk"  # SGLang's name, outside the versioned paths
_GRACE_S = 10.0  # a call ends by itself at its deadline; where a connection trickles, its thread is left behind


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """What an endpoint was asked and has counted: requests that were answered, tries repeated, tokens read, written."""

    requests: int = 0
    retries: int = 0
    prompt: int = 0
    completion: int = 0


class _Passing(Exception):
    """A try failed in a way that may pass: what to raise if it does not, and how long the endpoint wants to rest."""

    def __init__(self, error: EngineError, after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


class Endpoint:
    """An OpenAI-compatible endpoint and the model that is asked of it. May be used from many threads.

    Args:
        base_url: up to and with the version, for example `http://127.0.0.1:8000/v1`; without any path, `/v1` is meant.
        model: its name there.
        key: sent as a bearer token; it is in no text that leaves this object.
        timeout_s: of one completion, all its tries together.
        tokens: demand token ids and log-probabilities with every reply, which training needs. Endpoints that do not
            know `return_token_ids` refuse such requests, or are refused with TokensMissing.
        processed: the log-probabilities are those of the distribution that was sampled from (vLLM with
            `--logprobs-mode processed_logprobs`; evolvent always), not those at temperature 1.
        extra: more fields of every request body; None takes a field out (`{"seed": None}`).
    Raises:
        ConfigError: a URL that is none, a key that no header can carry, a timeout that is not positive.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: SecretStr | None = None,
        timeout_s: float = 120.0,
        tokens: bool = False,
        processed: bool = False,
        extra: Mapping[str, Json] | None = None,
    ) -> None:
        problems = _url_problems(base_url)
        secret = None if key is None else key.get_secret_value()
        if secret is not None and not (secret.isascii() and secret.isprintable() and secret.strip()):
            problems.append(Problem("key", f"no header can carry it: {len(secret)} characters", "printable ASCII"))
        if not timeout_s > 0:
            problems.append(Problem("timeout_s", f"must be positive, got {timeout_s}"))
        if not model:
            problems.append(Problem("model", f"no model is named for {base_url!r}", "GET /models lists them"))
        if problems:
            raise ConfigError(problems)
        self.base_url, self.model, self.timeout_s = _base(base_url), model, timeout_s
        self.tokens, self.processed = tokens, processed
        self._extra, self._secret = dict(extra or {}), secret
        if secret is not None and not self.base_url.startswith("https:") and not is_loopback(_host(self.base_url)):
            log.warning("the key for %s travels in clear text: use https", self.base_url)
        self._client = httpx2.Client(
            headers={"accept-encoding": "identity"} | ({} if secret is None else {"authorization": f"Bearer {secret}"}),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
            follow_redirects=False,
        )
        self._closed, self._lock, self._rng = threading.Event(), threading.Lock(), Random()
        self._requests = self._retries = self._prompt = self._completion = 0

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, {self.model!r})"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Calls that wait for their next try end with EndpointError."""
        self._closed.set()
        self._client.close()

    @property
    def root(self) -> str:
        """The address without the version: where routes are that OpenAI does not have."""
        return self.base_url.removesuffix("/v1")

    @property
    def usage(self) -> EndpointUsage:
        """The counts so far."""
        with self._lock:
            return EndpointUsage(self._requests, self._retries, self._prompt, self._completion)

    @property
    def patience_s(self) -> float:
        """Seconds after which a call that has not ended is not going to: for `Wait`."""
        return self.timeout_s + _GRACE_S

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        session: str | None = None,
    ) -> Reply:
        """The next message of a conversation.

        Args:
            seed: what the endpoint's random numbers derive from; None: its own choice.
            session: names the episode, so that its requests find the same prefix cache.
        Raises:
            EndpointError: no answer before the deadline, an error status (`value` holds it), or no completion.
            ContextOverflow: the conversation is longer than the model's context.
            TokensMissing: demanded token ids or log-probabilities did not come.
        """
        body = {
            "messages": [message.as_openai() for message in messages],
            **_settings(sampling, max_tokens=max_tokens, seed=seed, stop=stop),
        }
        if self.tokens:
            body |= {"logprobs": True, "return_token_ids": True}
        return self._completed("/chat/completions", body, tokens=self.tokens, session=session)

    def complete(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        session: str | None = None,
    ) -> Reply:
        """What follows these token ids: always with ids and log-probabilities. Raises what `chat` raises."""
        body = {
            "prompt": [int(token) for token in prompt],
            "logprobs": 0,
            "return_token_ids": True,
            **_settings(sampling, max_tokens=max_tokens, seed=seed, stop=stop),
        }
        return self._completed("/completions", body, tokens=True, session=session)

    def tokens_of(self, text: str) -> NDArray[np.int32]:
        """`[P]`, how the endpoint's tokenizer reads a text. Raises what `chat` raises."""
        body = {
            "prompt": text,
            "logprobs": 0,
            "return_token_ids": True,
            **_settings(GREEDY, max_tokens=1, seed=None, stop=()),
        }
        tokens = self._completed("/completions", body, tokens=True, session=None).tokens
        return np.zeros(0, np.int32) if tokens is None else tokens.prompt

    def hand_over(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Have the endpoint take the weights of a model folder, in SGLang's form (`/update_weights_from_disk`).

        To take the same folder twice changes nothing, so the request is repeated like all others. Where no answer came
        in time the weights may have been taken, or not: hand them over again.

        Args:
            folder: as the endpoint is to find it: a file system that both see.
            wait_s: for all tries together; reading a large model takes longer than a completion.
        Returns:
            the fingerprint of what is served now; "" where the endpoint tells none.
        Raises:
            EndpointError: it takes no weights, not these, or did not answer in time.
        """
        return self._taken({"model_path": str(folder)}, wait_s=wait_s)

    def _taken(self, body: Json, *, wait_s: float) -> str:
        url = self.root + _UPDATE
        row = self._answered("POST", url, body, {}, wait_s=wait_s)
        if not isinstance(row, Mapping) or row.get("success") is not True:
            raise EndpointError(
                f"POST {url}: the weights were not taken", value=ascii(row)[:_SAID], expected='{"success": true}'
            )
        told = row.get("system_fingerprint")
        return told if isinstance(told, str) else ""

    def models(self, *, wait_s: float | None = None) -> list[str]:
        """The names of the models that the endpoint has; waits at most `wait_s`. Raises EndpointError."""
        wait_s = self.timeout_s if wait_s is None else min(wait_s, self.timeout_s)
        row = self._answered("GET", f"{self.base_url}/models", None, {}, wait_s=wait_s)
        found = row.get("data") if isinstance(row, Mapping) else None
        names = [one.get("id") for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        return [name for name in names if isinstance(name, str)]

    def check(self) -> None:
        """Find out before any episode is played whether there is such a model and the key is right.

        Raises:
            ConfigError: the endpoint does not have the model; names the nearest. EndpointError: no or another answer.
        """
        names = self.models(wait_s=_CHECK_S)
        if self.model not in names:
            raise ConfigError([unknown("model", self.model, names, where=self.base_url)])

    def _completed(self, path: str, body: dict[str, Any], *, tokens: bool, session: str | None) -> Reply:
        whole = {"model": self.model, **body, **self._extra}
        headers = {} if session is None else {SESSION_HEADER: session}
        url, said = self.base_url + path, {key: value for key, value in whole.items() if value is not None}
        row = self._answered("POST", url, said, headers, wait_s=self.timeout_s)
        return self._counted(self._read(row, chat=path.startswith("/chat"), tokens=tokens, where=f"POST {url}"))

    def _read(self, row: object, *, chat: bool, tokens: bool, where: str) -> Reply:
        return read_reply(row, chat=chat, tokens=tokens, where=where)

    def _counted(self, reply: Reply) -> Reply:
        with self._lock:
            self._prompt += reply.prompt_tokens
            self._completion += reply.completion_tokens
        return reply

    def _answered(self, method: str, url: str, body: Json, headers: Mapping[str, str], *, wait_s: float) -> Any:
        """The JSON value of a good answer; tries again, with pauses, what may pass."""
        deadline, problem = Deadline(wait_s), None
        for attempt in itertools.count():
            try:
                value = self._tried(method, url, body=body, headers=headers, deadline=deadline)
            except _Passing as passing:
                problem = passing
            except EndpointError:
                if problem is not None and deadline.expired:  # it cut this try: what the one before said, says more
                    raise problem.error from problem
                raise
            else:
                with self._lock:
                    self._requests += 1
                return value
            pause = max(_pause(attempt, self._rng), problem.after_s)
            if pause >= deadline.left() or self._closed.wait(pause):
                raise problem.error from problem
            with self._lock:
                self._retries += 1
        raise EndpointError("no try was made", value=url)

    def _tried(self, method: str, url: str, *, body: Json, headers: Mapping[str, str], deadline: Deadline) -> Any:
        where = f"{method} {url}"
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            with self._client.stream(
                method,
                url,
                content=content,
                timeout=_timeout(deadline),
                headers={**headers, **({} if content is None else {"content-type": "application/json"})},
            ) as response:
                data = _read(response, where, deadline)
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
            raise _late(where, deadline) from error
        except (httpx2.TransportError, RuntimeError) as error:
            told = f"{type(error).__name__}: {error}"
            raise _Passing(EndpointError(f"{where}: no answer", value=told, hint="is it running there?")) from error
        return self._value(where, response, data)

    def _value(self, where: str, response: httpx2.Response, data: bytes) -> Any:
        status = response.status_code
        if 300 <= status < 400:
            target = self._clean(response.headers.get("location", ""))
            raise EndpointError(
                f"{where}: a redirect to {target!r}, which is not followed",
                value=status,
                hint="give the address that it points to",
            )
        row = _parsed(data)
        told = row.get("error") if isinstance(row, Mapping) else None
        if status < 300 and not told:
            if row is None:
                raise EndpointError(f"{where}: an answer that is no JSON", value=ascii(self._clean(_text(data))))
            return row
        raise self._refused(where, response, told if told else row, _text(data))

    def _refused(self, where: str, response: httpx2.Response, told: object, text: str) -> Exception:
        """What an error answer means; some endpoints tell of errors with status 200 and a code in the body."""
        status, said, code = response.status_code, text, ""
        if isinstance(told, Mapping):
            said, code = str(told.get("message") or text), str(told.get("code") or told.get("type") or "")
            if status < 300:
                status = int(code) if code.isdigit() and len(code) == 3 else 500
        said = self._clean(said)
        if status in (400, 413, 422) and (code == "context_length_exceeded" or _OVERFLOW.search(said)):
            return ContextOverflow(f"{where}: the conversation is too long for the model", value=said)
        hints = {401: "check the key; ", 403: "check the key; ", 404: "check the address and the model; "}
        error = EndpointError(
            f"{where}: the endpoint answered with an error status",
            value=status,
            hint=f"{hints.get(status, '')}it says: {said!r}",
        )
        if status in _PASSING and code not in _LASTING:
            return _Passing(error, _seconds(response.headers.get("retry-after")))
        return error

    def _clean(self, text: str) -> str:
        """The text without the key, cut to a readable length."""
        return (text if self._secret is None else text.replace(self._secret, "***"))[:_SAID]


def _late(where: str, deadline: Deadline) -> EndpointError:
    return EndpointError(
        f"{where}: no answer before the deadline",
        value=f"{deadline.total_s:g} s",
        hint="raise timeout_s, or ask for fewer tokens",
    )


def _pause(attempt: int, rng: Random) -> float:
    """Seconds to wait after a try that failed in passing."""
    return backoff(attempt, rng, base_s=0.25, cap_s=20.0)


def _timeout(deadline: Deadline) -> httpx2.Timeout:
    left = max(0.001, deadline.left())
    return httpx2.Timeout(left, connect=min(left, _CONNECT_S))


def _settings(sampling: Sampling, *, max_tokens: int, seed: int | None, stop: Sequence[str]) -> dict[str, Any]:
    """Sampling as request fields; what is left at its default is not said, so that plain endpoints understand it."""
    said: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": max_tokens, "seed": seed}
    if sampling.top_p < 1:
        said["top_p"] = sampling.top_p
    if sampling.top_k:
        said["top_k"] = sampling.top_k
    if stop:
        said["stop"] = list(stop)
    return said


def _url_problems(url: str) -> list[Problem]:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return [Problem("base_url", "a user or password in the address", "hand the key over as key=...")]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [Problem("base_url", f"no address of an endpoint: {url[:200]!r}", "like http://127.0.0.1:8000/v1")]
    if parts.query or parts.fragment:
        return [Problem("base_url", f"a query or fragment: {url[:200]!r}", "give the address alone")]
    return []


def _base(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _read(response: httpx2.Response, where: str, deadline: Deadline) -> bytes:
    """The body as it came, within its limit and the deadline."""
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > _REPLY_BYTES:
            raise EndpointError(
                f"{where}: an answer that is too large",
                value=f"more than {len(data)} bytes",
                expected=f"at most {_REPLY_BYTES}",
            )
        if deadline.expired:
            raise EndpointError(f"{where}: no whole answer before the deadline", value=f"{deadline.total_s:g} s")
    return bytes(data)


def _text(data: bytes) -> str:
    return data[: 4 * _SAID].decode("utf-8", "replace")


def _parsed(data: bytes) -> Any:
    """The JSON value, None where it is none (or nested so deeply that nobody means it)."""
    if too_deep(data, _DEPTH):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _seconds(after: str | None) -> float:
    """The pause that a Retry-After header asks for, in seconds or as a date; 0 where it names none."""
    if after is None:
        return 0.0
    try:
        seconds = float(after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return seconds if 0 <= seconds < float("inf") else 0.0

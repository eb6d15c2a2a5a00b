"""A model behind an OpenAI-compatible endpoint: chat and completions, with deadlines and retries.

Calls block; agents hand them to the driver as `BlockingCall`s, which run on threads. A completion changes
nothing at the endpoint, so a failed request is repeated until its deadline; at worst its cost is lost. Neither
a proxy of the environment nor a redirect is followed, since both would hand the key to another party.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import Random
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import httpx2
import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

from evolvent.deadline import Deadline, backoff
from evolvent.engine.asks import GREEDY, Sampling
from evolvent.engine.replies import SESSION_HEADER, Reply, read_reply
from evolvent.engine.served_adapters import ServedAdapter, is_already_loaded, is_unknown_adapter
from evolvent.errors import (
    ConfigError,
    ContextOverflow,
    EndpointError,
    EngineError,
    Problem,
    WeightsChanged,
    unknown_name_problem,
)
from evolvent.messages import Message
from evolvent.trajectory import Json
from evolvent.web import is_loopback, is_too_deep

__all__ = ["Endpoint", "EndpointUsage"]

log = logging.getLogger(__name__)
_REPLY_BYTES = 16 << 20
_DEPTH = 64
_CONNECT_S = 10.0
_MESSAGE_CHARS = 500  # characters of the endpoint's own message that an error shows
_TRANSIENT_STATUSES = frozenset(
    {408, 409, 425, 429, 500, 502, 503, 504, 529}
)  # after these the same request may succeed
_PERMANENT_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached"}
)  # codes that no waiting helps against
_OVERFLOW = re.compile(r"context[ _-]?(length|window|size)|maximum (input|prompt) length|prompt is too long", re.I)
_NOTICE_S = 20.0  # tries that fail for so long are told, since nothing else happens meanwhile
_CHECK_S = 15.0  # how long to wait for an endpoint before anything is played
_UPDATE = "/update_weights_from_disk"  # SGLang's name, outside the versioned paths
_LOAD_S = 600.0  # how long a server may take to load an adapter
_NO_REPEAT = frozenset({500})  # a server that cannot load an adapter says so with a status that otherwise passes
_NEW_LIMIT = "max_completion_tokens"  # instead of max_tokens
_GRACE_S = 10.0  # a call ends by itself at its deadline; where a connection trickles, its thread is left behind


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """Request and token counts of an endpoint: answered requests, repeated tries, tokens read, tokens written."""

    requests: int = 0
    retries: int = 0
    prompt: int = 0
    completion: int = 0


class _Counts:
    """The counts of an endpoint, which all its views share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._retries = self._prompt = self._completion = 0

    def add(self, *, requests: int = 0, retries: int = 0, prompt: int = 0, completion: int = 0) -> None:
        with self._lock:
            self._requests += requests
            self._retries += retries
            self._prompt += prompt
            self._completion += completion

    def read(self) -> EndpointUsage:
        with self._lock:
            return EndpointUsage(self._requests, self._retries, self._prompt, self._completion)


class _TransientFailure(Exception):
    """A failed try that may succeed later: the error to raise if it does not, and the pause that the endpoint
    requests.
    """

    def __init__(self, error: EngineError, after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


class _OpenedConnection:
    """Closes the connection that a request has opened once the endpoint is closed, as the request's `trace`.

    A client that is closed closes the connections that it has by then. One that is being opened at that moment would
    stay open after its request has ended.
    """

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self._stream: Any = None

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = details["return_value"]
        if self._closed.is_set() and self._stream is not None:
            self._stream.close()


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
            problems.append(
                Problem("key", f"got {len(secret)} characters with unprintable ones", "use printable ASCII")
            )
        if not timeout_s > 0:
            problems.append(Problem("timeout_s", f"got {timeout_s}, expected positive"))
        if not model:
            problems.append(Problem("model", f"missing model name for {base_url!r}", "GET /models lists the models"))
        if problems:
            raise ConfigError(problems)
        self.base_url, self.model, self.timeout_s = _base_url(base_url), model, timeout_s
        self.tokens, self.processed = tokens, processed
        self._extra, self._secret = dict(extra or {}), secret
        if secret is not None and not self.base_url.startswith("https:") and not is_loopback(_host_name(self.base_url)):
            log.warning("the key for %s is sent unencrypted: use https", self.base_url)
        self._client = httpx2.Client(
            headers={"accept-encoding": "identity"} | ({} if secret is None else {"authorization": f"Bearer {secret}"}),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
            follow_redirects=False,
        )
        self._closed, self._counts, self._rng = threading.Event(), _Counts(), Random()
        self._has_told_outage = False
        self._renames_max_tokens = False
        self._adapter: ServedAdapter | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, {self.model!r})"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Calls that are on their way or wait for their next try end with EndpointError."""
        self._closed.set()
        self._client.close()

    @property
    def root(self) -> str:
        """Returns the address without the version, where routes outside OpenAI's interface are."""
        return self.base_url.removesuffix("/v1")

    @property
    def usage(self) -> EndpointUsage:
        """Returns the counts so far."""
        return self._counts.read()

    @property
    def call_timeout_s(self) -> float:
        """Returns the seconds after which an unfinished call is abandoned, for `BlockingCall`."""
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
        """Returns the next message of a conversation.

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
            **_sampling_fields(sampling, max_tokens=max_tokens, seed=seed, stop=stop),
        }
        if self.tokens:
            body |= {"logprobs": True, "return_token_ids": True}
        return self._request_completion("/chat/completions", body, tokens=self.tokens, session=session)

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
        """Returns the continuation of token ids, always with ids and log-probabilities. Raises the errors of `chat`."""
        body = {
            "prompt": [int(token) for token in prompt],
            "logprobs": 0,
            "return_token_ids": True,
            **_sampling_fields(sampling, max_tokens=max_tokens, seed=seed, stop=stop),
        }
        return self._request_completion("/completions", body, tokens=True, session=session)

    def tokenize(self, text: str) -> NDArray[np.int32]:
        """Returns the token ids `[P]` that the endpoint's tokenizer makes of a text. Raises the errors of `chat`."""
        body = {
            "prompt": text,
            "logprobs": 0,
            "return_token_ids": True,
            **_sampling_fields(GREEDY, max_tokens=1, seed=None, stop=()),
        }
        tokens = self._request_completion("/completions", body, tokens=True, session=None).tokens
        return np.zeros(0, np.int32) if tokens is None else tokens.prompt

    def load_weights(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Loads the weights of a model folder at the endpoint, in SGLang's form (`/update_weights_from_disk`).

        Loading the same folder twice changes nothing, so the request is repeated like all others. Where no answer came
        in time the endpoint may or may not have loaded the weights: load them again.

        Args:
            folder: as the endpoint finds it: a file system that both see.
            wait_s: for all tries together; reading a large model takes longer than a completion.
        Returns:
            the fingerprint of the served weights; "" where the endpoint reports none.
        Raises:
            EndpointError: it does not load weights, refuses these, or did not answer in time.
        """
        return self._post_weights({"model_path": str(folder)}, wait_s=wait_s)

    def using(self, adapter: ServedAdapter) -> Self:
        """Returns this endpoint with requests that name an adapter: no other weights answer them.

        A server that does not know the adapter any more, because it began anew, is told to load it again. The view
        shares the connections and counts of this endpoint; close either.
        """
        view = copy.copy(self)
        view._adapter = adapter
        return view

    def load_adapter(self, adapter: ServedAdapter, *, wait_s: float = _LOAD_S) -> None:
        """Lets the server load an adapter over the base that it serves; one that it has loaded stays.

        Args:
            adapter: its name is the label of its weights, so that a name never stands for others.
            wait_s: for all tries together.
        Raises:
            EndpointError: it loads no adapters, refuses this one, or did not answer in time.
        """
        try:
            self._post_adapter("load", {"lora_name": adapter.name, "lora_path": str(adapter.folder)}, wait_s=wait_s)
        except EndpointError as error:
            if not is_already_loaded(error):
                raise

    def unload_adapter(self, name: str, *, wait_s: float = _LOAD_S) -> None:
        """Lets the server drop an adapter; one that it does not know is gone already. Raises EndpointError."""
        try:
            self._post_adapter("unload", {"lora_name": name}, wait_s=wait_s)
        except EndpointError as error:
            if not is_unknown_adapter(error):
                raise

    def check_adapters(self) -> None:
        """Checks that the endpoint has the routes that load adapters, without loading any.

        Raises:
            ConfigError: a route is missing. EndpointError: no answer in time.
        """
        self._check_route(
            "/v1/load_lora_adapter",
            hint="start evolvent serve with --reload FOLDER, or vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
            lacking="loads no adapters",
        )

    def _post_adapter(self, verb: str, body: Json, *, wait_s: float) -> None:
        """Sends an adapter's name in vLLM's form, which is answered with a text."""
        url = f"{self.base_url}/{verb}_lora_adapter"
        self._request_json("POST", url, body, {}, wait_s=wait_s, final_statuses=_NO_REPEAT, is_text=True)

    def _adapter_fields(self) -> dict[str, str]:
        """Returns the fields of a request that name the adapter."""
        return {} if self._adapter is None else {"model": self._adapter.name}

    def _request_reply(self, request: Callable[[], Reply]) -> Reply:
        """Returns the reply of a request; a server that does not know the adapter loads it again, once.

        Raises:
            WeightsChanged: another model answered than was asked.
        """
        adapter = self._adapter
        if adapter is None:
            return request()
        try:
            reply = request()
        except EndpointError as error:
            if not is_unknown_adapter(error):
                raise
            log.warning("%s does not know %s: it loads it again", self.root, adapter.name)
            self.load_adapter(adapter, wait_s=self.timeout_s)
            reply = request()
        asked_model = self._adapter_fields().get("model", "")
        if asked_model and reply.model not in ("", asked_model):
            raise WeightsChanged(
                f"{self.root} answered with another model than was asked", value=reply.model, expected=asked_model
            )
        return replace(reply, fingerprint=adapter.name)

    def check_weights(self) -> None:
        """Checks that the endpoint has the routes that take weights, without sending any.

        Raises:
            ConfigError: it has not. EndpointError: no answer in time.
        """
        self._check_route(_UPDATE, hint="start it with --reload FOLDER, or name the server's --dialect")

    def _check_route(self, path: str, *, hint: str, lacking: str = "takes no weights") -> None:
        """Checks that a route is there: it answers 405 to a GET, which changes nothing, and a missing one 404."""
        url = self.root + path
        try:
            self._request_json("GET", url, None, {}, wait_s=_CHECK_S)
        except EndpointError as error:
            if error.value == 405:
                return
            if error.value not in (404, 501):
                raise
            message = f"{self.root} {lacking}: it has no {path}"
            raise ConfigError([Problem("endpoint", message, hint)]) from error

    def _post_weights(self, body: Json, *, wait_s: float) -> str:
        url = self.root + _UPDATE
        row = self._request_json("POST", url, body, {}, wait_s=wait_s)
        if not isinstance(row, Mapping) or row.get("success") is not True:
            raise EndpointError(
                f"POST {url}: the endpoint refused the weights",
                value=ascii(row)[:_MESSAGE_CHARS],
                expected='{"success": true}',
            )
        fingerprint = row.get("system_fingerprint")
        return fingerprint if isinstance(fingerprint, str) else ""

    def models(self, *, wait_s: float | None = None) -> list[str]:
        """Lists the names of the endpoint's models; waits at most `wait_s`. Raises EndpointError."""
        wait_s = self.timeout_s if wait_s is None else min(wait_s, self.timeout_s)
        row = self._request_json("GET", f"{self.base_url}/models", None, {}, wait_s=wait_s)
        rows = row.get("data") if isinstance(row, Mapping) else None
        names = [entry.get("id") for entry in rows if isinstance(entry, Mapping)] if isinstance(rows, list) else []
        return [name for name in names if isinstance(name, str)]

    def check(self) -> None:
        """Checks that the endpoint serves the model and accepts the key, before any episode is played.

        Raises:
            ConfigError: the endpoint does not have the model; names the nearest. EndpointError: no or another answer.
        """
        names = self.models(wait_s=_CHECK_S)
        if self.model not in names:
            raise ConfigError([unknown_name_problem("model", self.model, names, location=self.base_url)])

    def _request_completion(self, path: str, body: dict[str, Any], *, tokens: bool, session: str | None) -> Reply:
        fields = {"model": self.model, **body, **self._adapter_fields(), **self._extra}
        return self._request_reply(lambda: self._post_completion(path, fields, tokens=tokens, session=session))

    def _post_completion(self, path: str, fields: Mapping[str, Any], *, tokens: bool, session: str | None) -> Reply:
        headers = {} if session is None else {SESSION_HEADER: session}
        url, payload = self.base_url + path, {key: value for key, value in fields.items() if value is not None}
        if self._renames_max_tokens:
            payload = _rename_max_tokens(payload)
        try:
            row = self._request_json("POST", url, payload, headers, wait_s=self.timeout_s)
        except EndpointError as error:
            if error.value != 400 or _NEW_LIMIT not in (error.hint or "") or "max_tokens" not in payload:
                raise
            row = self._request_json("POST", url, _rename_max_tokens(payload), headers, wait_s=self.timeout_s)
            self._renames_max_tokens = True
        return self._count_tokens(
            self._parse_reply(row, chat=path.startswith("/chat"), tokens=tokens, request_name=f"POST {url}")
        )

    def _parse_reply(self, row: object, *, chat: bool, tokens: bool, request_name: str) -> Reply:
        return read_reply(row, chat=chat, tokens=tokens, request_name=request_name)

    def _count_tokens(self, reply: Reply) -> Reply:
        self._counts.add(prompt=reply.prompt_tokens, completion=reply.completion_tokens)
        return reply

    def _request_json(
        self,
        method: str,
        url: str,
        body: Json,
        headers: Mapping[str, str],
        *,
        wait_s: float,
        final_statuses: frozenset[int] = frozenset(),
        is_text: bool = False,
    ) -> Any:
        """Returns the JSON value of a successful answer; repeats transient failures after pauses.

        Args:
            final_statuses: statuses that are not transient here.
            is_text: whether a successful answer is a text, which is not read.
        """
        deadline, problem = Deadline(wait_s), None
        for attempt in itertools.count():
            try:
                value = self._request_once(method, url, body=body, headers=headers, deadline=deadline, is_text=is_text)
            except _TransientFailure as failure:
                if failure.error.value in final_statuses:
                    raise failure.error from failure
                problem = failure
            except EndpointError:
                if problem is not None and deadline.expired:  # it cut this try: what the one before said, says more
                    raise problem.error from problem
                raise
            else:
                self._counts.add(requests=1)
                self._has_told_outage = False
                return value
            pause = max(_backoff_s(attempt, self._rng), problem.after_s)
            if pause >= deadline.left() or self._closed.wait(pause):
                raise problem.error from problem
            self._counts.add(retries=1)
            if deadline.total_s - deadline.left() >= _NOTICE_S and not self._has_told_outage:
                self._has_told_outage = True  # two threads may both tell it, which does no harm
                log.warning("%s It is tried again for up to %.0f s.", problem.error, deadline.left())
        raise EndpointError("no attempt was made", value=url)

    def _request_once(
        self, method: str, url: str, *, body: Json, headers: Mapping[str, str], deadline: Deadline, is_text: bool
    ) -> Any:
        request_name = f"{method} {url}"
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            with self._client.stream(
                method,
                url,
                content=content,
                timeout=_timeout(deadline),
                headers={**headers, **({} if content is None else {"content-type": "application/json"})},
                extensions={"trace": _OpenedConnection(self._closed)},
            ) as response:
                data = _read_body(response, request_name, deadline)
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
            raise _deadline_error(request_name, deadline) from error
        except (httpx2.TransportError, RuntimeError) as error:
            description = f"{type(error).__name__}: {error}"
            raise _TransientFailure(
                EndpointError(
                    f"{request_name}: no answer", value=description, hint="check that the endpoint is running"
                )
            ) from error
        return self._parse_response(request_name, response, data, is_text=is_text)

    def _parse_response(self, request_name: str, response: httpx2.Response, data: bytes, *, is_text: bool) -> Any:
        status = response.status_code
        if 300 <= status < 400:
            target = self._redact(response.headers.get("location", ""))
            raise EndpointError(
                f"{request_name}: refused a redirect to {target!r}",
                value=status,
                hint="use the target address",
            )
        row = _parse_json(data)
        error_body = row.get("error") if isinstance(row, Mapping) else None
        if status < 300 and not error_body:
            if row is None and not is_text:
                encoding = response.headers.get("content-encoding", "identity")
                if encoding.lower() not in ("", "identity"):
                    raise EndpointError(
                        f"{request_name}: the answer is encoded",
                        value=self._redact(encoding),
                        expected="the plain text that was asked for",
                        hint="turn the compression of the server or proxy off",
                    )
                raise EndpointError(
                    f"{request_name}: the answer is not JSON", value=ascii(self._redact(_decode_excerpt(data)))
                )
            return row
        raise self._response_error(request_name, response, error_body if error_body else row, _decode_excerpt(data))

    def _response_error(self, request_name: str, response: httpx2.Response, error_body: object, text: str) -> Exception:
        """Returns the exception for an error answer; some endpoints report errors with status 200 and a code in the
        body.
        """
        status, message, code = response.status_code, text, ""
        if isinstance(error_body, Mapping):
            message, code = (
                str(error_body.get("message") or text),
                str(error_body.get("code") or error_body.get("type") or ""),
            )
            if status < 300:
                status = int(code) if code.isdigit() and len(code) == 3 else 500
        message = self._redact(message)
        if status in (400, 413, 422) and (code == "context_length_exceeded" or _OVERFLOW.search(message)):
            return ContextOverflow(f"{request_name}: the conversation is too long for the model", value=message)
        hints = (
            {}
            if code == "unsafe_path"
            else {401: "check the key; ", 403: "check the key; ", 404: "check the address and the model; "}
        )
        error = EndpointError(
            f"{request_name}: the endpoint returned an error",
            value=status,
            hint=f"{hints.get(status, '')}the endpoint says: {message!r}",
        )
        if status in _TRANSIENT_STATUSES and code not in _PERMANENT_CODES:
            return _TransientFailure(error, _retry_after_s(response.headers.get("retry-after")))
        return error

    def _redact(self, text: str) -> str:
        """Returns the text without the key, trimmed to a readable length."""
        return (text if self._secret is None else text.replace(self._secret, "***"))[:_MESSAGE_CHARS]


def _rename_max_tokens(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request with the limit under the only name that newer models of OpenAI take."""
    return {_NEW_LIMIT if name == "max_tokens" else name: value for name, value in payload.items()}


def _deadline_error(request_name: str, deadline: Deadline) -> EndpointError:
    return EndpointError(
        f"{request_name}: no answer before the deadline",
        value=f"{deadline.total_s:g} s",
        hint="raise timeout_s, or lower max_tokens",
    )


def _backoff_s(attempt: int, rng: Random) -> float:
    """Returns the seconds to wait after a transient failure."""
    return backoff(attempt, rng, base_s=0.25, cap_s=20.0)


def _timeout(deadline: Deadline) -> httpx2.Timeout:
    left = max(0.001, deadline.left())
    return httpx2.Timeout(left, connect=min(left, _CONNECT_S))


def _sampling_fields(sampling: Sampling, *, max_tokens: int, seed: int | None, stop: Sequence[str]) -> dict[str, Any]:
    """Converts sampling settings to request fields and omits defaults, so that plain endpoints understand them."""
    fields: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": max_tokens, "seed": seed}
    if sampling.top_p < 1:
        fields["top_p"] = sampling.top_p
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if stop:
        fields["stop"] = list(stop)
    return fields


def _url_problems(url: str) -> list[Problem]:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return [Problem("base_url", "the address contains a user or password", "pass the key as key=...")]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [
            Problem(
                "base_url",
                f"got {url[:200]!r}, expected the address of an endpoint",
                "for example http://127.0.0.1:8000/v1",
            )
        ]
    if parts.query or parts.fragment:
        return [Problem("base_url", f"got a query or fragment in {url[:200]!r}", "use the address without them")]
    return []


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def _host_name(url: str) -> str:
    return urlsplit(url).hostname or ""


def _read_body(response: httpx2.Response, request_name: str, deadline: Deadline) -> bytes:
    """Reads the raw body within its size limit and the deadline."""
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > _REPLY_BYTES:
            raise EndpointError(
                f"{request_name}: the answer is too large",
                value=f"more than {len(data)} bytes",
                expected=f"at most {_REPLY_BYTES}",
            )
        if deadline.expired:
            raise EndpointError(
                f"{request_name}: no complete answer before the deadline", value=f"{deadline.total_s:g} s"
            )
    return bytes(data)


def _decode_excerpt(data: bytes) -> str:
    return data[: 4 * _MESSAGE_CHARS].decode("utf-8", "replace")


def _parse_json(data: bytes) -> Any:
    """Parses a JSON value; returns None for invalid JSON or extreme nesting."""
    if is_too_deep(data, _DEPTH):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _retry_after_s(header: str | None) -> float:
    """Parses the pause of a Retry-After header, in seconds or as a date; returns 0 where it holds none."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return seconds if 0 <= seconds < float("inf") else 0.0

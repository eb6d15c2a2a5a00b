"""An OpenEnv server as a world: `OpenEnvWorld("http://127.0.0.1:8000", tasks=[{"seed": 0}, ...])`.

Every Env has its own WebSocket, since a socket is a session there. The sockets of a world live on one event loop; its
Envs are called from threads (`run_in_thread`), each call with its own deadline.

One WebSocket to an OpenEnv server: a message, its answer, and never the answer to another message.

The protocol has no ids. A late answer would be read as the answer to the next message; so a connection whose answer was
not fully received (a deadline, an interrupt, an invalid answer) is dropped, and the next reset opens another. If the
server declares the `evolvent` feature, messages also carry a `request_id`, and the answer has to repeat it. A foreign
server refuses unknown keys and is sent none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
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

from evolvent.deadline import Deadline, backoff
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    InvalidAction,
    LimitExceeded,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    WorldError,
)
from evolvent.serve.given import ClientTimeouts, SpecWorld, TaskPanels, TaskSpecs, WorldRules
from evolvent.serve.loop import Loop
from evolvent.serve.openenv.wire import FEATURE_KEY
from evolvent.serve.remote.http import parse_server_url
from evolvent.serve.remote.socket import NoRedirectConnect
from evolvent.serve.wire import decode_error, decode_json, encode_json, finite_or_none, replace_surrogates, to_json
from evolvent.trajectory import Json, JsonObject, Task, Value
from evolvent.worlds.base import Env, Info, Reply, check_task

__all__ = ["OpenEnvConnection", "OpenEnvWorld", "fetch_description"]


_TOO_BIG_CODE = 1009  # the close code of RFC 6455, 7.4.1
_MAX_SHOWN_CHARS = 200
_LOST_CODES = ("FACTORY_ERROR", "SESSION_ERROR")


class OpenEnvConnection:
    """A connection that is opened on first use. Its coroutines run on one event loop, one after another.

    Args:
        base: address of the environment: `http://host:8000/openenv/crafting`.
        with_request_ids: whether the server understands `request_id`.
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
                raise EnvLost(f"{self._url} is not a WebSocket", value=str(error)) from error
            self._keeper = asyncio.create_task(_abort_on_exit(self._socket))
        return self._socket

    def _handshake_error(self, status: int) -> EvolventError:
        if status in (401, 403):
            hint = "check the token and the address"  # servers refuse a socket in this way where there is nothing, too
            return AccessDenied(f"{self._url} refuses this client", value=f"HTTP {status}", hint=hint)
        if status == 503:
            return AtCapacity(f"{self._url} is full", retry_after_s=1.0, value=f"HTTP {status}")
        return EnvLost(f"{self._url} is not a WebSocket", value=f"HTTP {status}", hint="check the address")

    def _parse_answer(self, raw: str | bytes) -> dict[str, Any]:
        """Parses the answer in a message: an object with a type and data, for the message just sent."""
        try:
            answer = decode_json(raw)
        except SampleInvalid as error:
            raise self._answer_error(raw, error.what) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise self._answer_error(raw, "the message is not an object with type and data")
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
        return WorldError(f"{self._url} sent an invalid answer: {problem}", value=ascii(head))

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


Writer = Callable[[Value], Mapping[str, object]]
Reader = Callable[[Mapping[str, object]], str]


class OpenEnvWorld(SpecWorld):
    """The environment of an OpenEnv server.

    Args:
        base_url: address of the environment.
        tasks: fields of the reset, one spec a task: `{"seed": 3}`, `{"episode_id": "a"}`, or whatever the environment
            takes. A list is dealt to splits by hash; a mapping by split is used as it is.
        action: field of the action that holds the agent's text, or a function from it to all fields. Fields are sent as
            they are: a list stays a list.
        text: field of the observation that the agent reads, or a function from all fields to that text.
        name: name of the world; None: the server's name for itself.
        rules: properties that the server does not report.
        timeouts: timeouts, and the largest message.
        token: sent as a bearer token.

    Raises:
        ConfigError: invalid tasks, or an invalid address.
        EnvLost, AccessDenied: the server cannot be reached, or refuses.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tasks: TaskSpecs,
        action: str | Writer = "message",
        text: str | Reader = "text",
        name: str | None = None,
        rules: WorldRules | None = None,
        timeouts: ClientTimeouts | None = None,
        token: str | None = None,
    ) -> None:
        self.base, _ = parse_server_url(base_url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.patience, rules = timeouts or ClientTimeouts(), rules or WorldRules()
        self.loop = Loop("evolvent-openenv")
        description_call = fetch_description(self.base, self.patience, headers=self._headers)
        description = self.loop.run(description_call, self.patience.connect_s + 1, label=self.base)
        self.name = name or str(description.get("name") or "openenv")
        self.version = str(description.get("version") or "0")
        self.instructions = (
            str(description.get("description") or "") if rules.instructions is None else rules.instructions
        )
        self.grammar, self.horizon, self.reward_range = rules.grammar, rules.horizon, rules.reward_range
        self._success, self._action, self._text = rules.success, action, text
        self.ours = isinstance(description.get(FEATURE_KEY), Mapping)
        self._panels = TaskPanels(self.name, self.version, tasks)

    def __repr__(self) -> str:
        return f"OpenEnvWorld({self.base!r}, name={self.name!r})"

    def make(self, task: Task) -> Env:
        """Creates an Env; it connects at its first reset."""
        check_task(self, task)
        return _OpenEnvEnv(self, task)

    def close(self) -> None:
        """Closes all connections; the world cannot be used any more."""
        self.loop.close()

    def create_connection(self) -> OpenEnvConnection:
        """Creates a separate connection."""
        return OpenEnvConnection(self.base, self.patience, with_request_ids=self.ours, headers=self._headers)

    def encode_action(self, action: Value) -> dict[str, object]:
        """Returns the fields of an action.

        Raises:
            SampleInvalid: a field that JSON does not have.
        """
        fields = self._action(action) if callable(self._action) else {self._action: action}
        json_fields = to_json(fields)
        return dict(json_fields) if isinstance(json_fields, dict) else {}

    def parse_observation(self, answer: Mapping[str, object]) -> tuple[str, Info]:
        """Returns the text of an observation, and all other fields as info.

        Raises:
            WorldError: the field of the text is missing.
        """
        fields = answer.get("observation")
        if not isinstance(fields, Mapping):
            raise WorldError(f"the answer of {self.base} has no observation", value=answer, expected="{observation}")
        if callable(self._text):
            return replace_surrogates(str(self._text(fields))), dict(fields)
        if not isinstance(fields.get(self._text), str):
            raise WorldError(
                f"the observation of {self.base} has no text",
                value=sorted(map(str, fields)),
                expected=self._text,
                hint="set text=... to the name of the field that holds the text",
            )
        info = {str(key): value for key, value in fields.items() if key != self._text}
        if self.ours:
            metadata = info.pop("metadata", {})
            nested_info = metadata.get("info", {}) if isinstance(metadata, Mapping) else {}
            info = {**(nested_info if isinstance(nested_info, Mapping) else {}), **info}
        return replace_surrogates(fields[self._text]), info


class _OpenEnvEnv:
    """One session of an OpenEnv server, on its own connection."""

    def __init__(self, world: OpenEnvWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._link = world.create_connection()
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode. A full server is asked again until the deadline."""
        self._playing = False
        deadline = Deadline(self._world.patience.reset_s)
        rng, attempt = Random(), 0
        while True:
            was_open = self._link.is_open
            try:
                answer = self._ask("reset", self._task.spec, deadline.left())
                break
            except AtCapacity as capacity_error:
                pause = max(backoff(attempt, rng), min(capacity_error.retry_after_s, 1.0))
                if pause >= deadline.left():
                    raise
                time.sleep(pause)
                attempt += 1
            except EnvLost:
                if not was_open:  # else the server ended it meanwhile, and a fresh one may do
                    raise
            except InvalidAction as error:
                message = f"{self._world.base} refuses the task: {error}"
                raise ConfigError(message, value=dict(self._task.spec)) from error
        parsed = self._world.parse_observation(answer)
        self._playing = not answer.get("done")
        return parsed

    def step(self, action: Value) -> Reply:
        """Plays a step. It is never sent twice: a lost step may have been taken or not."""
        if not self._playing:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._playing = False
        try:
            answer = self._ask("step", self._world.encode_action(action), self._world.patience.step_s)
        except InvalidAction as error:
            self._playing = True
            return f"invalid action: {error}", 0.0, False, False, {"invalid": True}
        observation, info = self._world.parse_observation(answer)
        done = answer.get("done")
        if not isinstance(done, bool):
            raise WorldError(f"the answer of {self._world.base} has no done", value=done, expected="true or false")
        reward, truncated = _parse_reward(answer.get("reward")), done and self._is_truncated(answer)
        self._playing = not done
        return observation, reward, done and not truncated, truncated, info  # type: ignore[return-value]

    def close(self) -> None:
        """Closes the session."""
        self._playing = False
        if self._link.is_open and self._world.loop.is_running:
            self._world.loop.run(self._link.close(), self._world.patience.connect_s, label="close")

    def _ask(self, kind: str, data: Mapping[str, Any], timeout_s: float) -> JsonObject:
        try:
            return self._world.loop.run(self._link.ask(kind, data), timeout_s, label=f"{kind} at {self._world.base}")
        except StepTimeout:
            self._link = self._world.create_connection()  # the late answer comes on the old one, which is dropped
            raise

    def _is_truncated(self, answer: Mapping[str, Any]) -> bool:
        """Returns whether the episode was truncated, which only our own server reports."""
        metadata = answer["observation"].get("metadata")
        return self._world.ours and isinstance(metadata, Mapping) and metadata.get("truncated") is True


def _parse_reward(value: object) -> float | None:
    """Returns a reward; None stays None: not scored is not 0."""
    if value is None:
        return None
    number = finite_or_none(value)
    if number is not None:
        return number
    raise WorldError("reward is not a number", value=value, expected="a finite number, or null")

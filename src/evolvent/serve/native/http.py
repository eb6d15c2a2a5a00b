"""The native dialect over HTTP: plain ASGI functions behind one table of routes. The bodies are described in `wire`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.routing import BaseRoute

from evolvent import __version__
from evolvent.errors import (
    ConfigError,
    EvolventError,
    LimitExceeded,
    Problem,
    SampleInvalid,
    VersionMismatch,
    WorldError,
    boundary,
    unknown_name_problem,
    user_boundary,
)
from evolvent.serve.app import PrefixRoute, StaticRoute, send_not_allowed
from evolvent.serve.calls import CallRunner
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.native.openapi import build_document
from evolvent.serve.native.operations import Operations
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.wire import (
    PROTOCOL,
    PROTOCOL_HEADER,
    NotFound,
    decode_json,
    encode_error,
    encode_json,
    encode_score,
    encode_task,
    encode_world,
    finite_or_none,
)
from evolvent.trajectory import JsonObject, Task
from evolvent.web import Receive, Scope, Send, is_too_deep, send_response
from evolvent.worlds.base import Parsed, SupportsRationales, World

__all__ = ["MAX_DEPTH", "MAX_IN_FLIGHT", "MAX_PENDING_CHARS", "NativeDialect", "serve_socket"]


MAX_IN_FLIGHT = 4096  # requests of a socket that are not answered yet: several for each of a thousand sessions
MAX_PENDING_CHARS = 16 * 2**20  # characters of such requests; and of answers that the client has not taken yet
MAX_DEPTH = 64
_MAX_ID_CHARS = 200


async def serve_socket(operations: Operations, receive: Receive, send: Send) -> None:
    """Serves one WebSocket from its handshake to its end; running requests are finished, without an answer."""
    await receive()
    await send({"type": "websocket.accept"})
    await _SocketConnection(operations, send).serve(receive)


class _SocketConnection:
    """One socket: its running requests, and the last one of every session."""

    def __init__(self, operations: Operations, send: Send) -> None:
        self._operations, self._send = operations, send
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._requests, self._asked, self._unsent = (
            _PendingLimit(MAX_IN_FLIGHT),
            _PendingLimit(MAX_PENDING_CHARS),
            _PendingLimit(MAX_PENDING_CHARS),
        )

    async def serve(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            try:
                name, op, body = _parse_request(text)
            except _InvalidFrame as problem:
                await self._send_answer(problem.request_id, f'"error":{encode_compact(encode_error(problem.error))}')
                continue
            self._start_request(name, op, body=body, size=len(text or ""))
            for limit in (self._requests, self._asked, self._unsent):
                await limit.open.wait()
        if self._running:
            await asyncio.wait(self._running)

    def _start_request(self, name: str, op: str, *, body: Mapping[str, Any], size: int) -> None:
        """Starts a request after the running requests of its sessions."""
        sessions = list(_find_sessions(op, body))
        predecessors = {self._last[session] for session in sessions if session in self._last}
        task = asyncio.create_task(self._answer_request(name, op, body=body, predecessors=predecessors))
        self._running.add(task)
        self._requests.add(1)
        self._asked.add(size)
        for session in sessions:
            self._last[session] = task
        task.add_done_callback(lambda done: self._finish_request(done, sessions, size=size))

    def _finish_request(self, task: asyncio.Task[None], sessions: Iterable[str], *, size: int) -> None:
        self._running.discard(task)
        self._requests.add(-1)
        self._asked.add(-size)
        for session in sessions:
            if self._last.get(session) is task:
                del self._last[session]

    async def _answer_request(
        self, name: str, op: str, *, body: Mapping[str, Any], predecessors: set[asyncio.Task[None]]
    ) -> None:
        if predecessors:
            await asyncio.wait(predecessors)
        await self._unsent.open.wait()
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                answer_text = f'"ok":{await self._operations.by_name[op](body)}'
        except EvolventError as error:
            answer_text = f'"error":{encode_compact(encode_error(error))}'
        await self._send_answer(name, answer_text)

    async def _send_answer(self, name: str, answer_text: str) -> None:
        """Sends an answer; does nothing if the client has left, or the server has closed the socket."""
        self._unsent.add(len(answer_text))
        try:
            await self._send({"type": "websocket.send", "text": f'{{"request_id":{name},{answer_text}}}'})
        except (OSError, RuntimeError):
            return
        finally:
            self._unsent.add(-len(answer_text))


class _PendingLimit:
    """A sum that clears an event while it is at or above its limit."""

    __slots__ = ("_most", "_sum", "open")

    def __init__(self, limit: int) -> None:
        self._most, self._sum = limit, 0
        self.open = asyncio.Event()
        self.open.set()

    def add(self, amount: int) -> None:
        self._sum += amount
        if self._sum >= self._most:
            self.open.clear()
        elif not self.open.is_set():
            self.open.set()


class _InvalidFrame(Exception):
    """Signals a frame that is not a request, with the error and the JSON of its id, if it has one."""

    def __init__(self, request_id: str, error: EvolventError) -> None:
        super().__init__(str(error))
        self.request_id, self.error = request_id, error


def _parse_request(text: str | None) -> tuple[str, str, Mapping[str, Any]]:
    """Returns the id (as JSON text), operation and fields of a frame."""
    name = "null"
    try:
        if text is None:
            raise ConfigError([Problem("frame", "got bytes, expected a text frame that holds one JSON object")])
        if text.count("{") + text.count("[") > MAX_DEPTH and is_too_deep(
            text.encode("utf-8", "surrogatepass"), MAX_DEPTH
        ):
            raise LimitExceeded("the frame is nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        body = decode_json(text)
        if not isinstance(body, dict):
            raise ConfigError([Problem("frame", f"got {type(body).__name__}, expected one JSON object")])
        request_id, op = body.get("request_id"), body.get("op")
        if (type(request_id) is not int and type(request_id) is not str) or len(str(request_id)) > _MAX_ID_CHARS:
            raise ConfigError(
                [Problem("request_id", f"got {type(request_id).__name__}, expected a number or a short text")]
            )
        name = json.dumps(request_id)
        if not isinstance(op, str) or op not in _OPS:
            raise ConfigError([unknown_name_problem("op", str(op)[:_MAX_ID_CHARS], _OPS)])
    except EvolventError as error:
        raise _InvalidFrame(name, error) from error
    return name, op, body


_OPS = ("create", "reset", "step", "steps", "look", "close", "ping")


def _find_sessions(op: str, body: Mapping[str, Any]) -> Iterable[str]:
    """Returns the sessions that a request is about."""
    if op == "steps":
        parts = body.get("steps")
        session_ids = (
            (part.get("session") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
        )
        return {name for name in session_ids if isinstance(name, str)}
    session = body.get("session")
    return (session,) if isinstance(session, str) else ()


T = TypeVar("T")
Params = tuple[str, ...]
RequestFields = JsonObject
_HEADER, _OWN_VERSION = PROTOCOL_HEADER.encode(), str(PROTOCOL).encode()
_CALL_TIMEOUT_S = 60.0  # how long an expert, a score or a vocabulary of a blocking world may take
_MAX_INLINE_TASKS = 200  # so many tasks are written off the event loop
_MAX_REWARDS = 100_000  # of one episode


@dataclass(frozen=True, slots=True)
class _Route:
    """A handler of a path's method, called with the path's parameters and the body or the query."""

    handle: Callable[[Params, RequestFields], Awaitable[str]]
    status: int = 200


class NativeDialect:
    """The native dialect: `/v1/...`, `/v1/ws` and `/openapi.json`."""

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns the routes of the dialect."""
        openapi = encode_json(build_document(list(host.worlds)))
        return [PrefixRoute("/v1", _NativeApp(host, task_index)), StaticRoute("/openapi.json", lambda: openapi)]


class _NativeApp:
    """The ASGI app at `/v1`."""

    def __init__(self, host: SessionHost, task_index: TaskIndex) -> None:
        self._host, self._catalogue = host, task_index
        self._calls = CallRunner()
        self._words: dict[str, list[str] | None] = {}
        self._met: set[str] = set()  # worlds whose expert has answered before
        self._meeting = asyncio.Lock()
        self._operations = operations = Operations(host, task_index)
        session = self._session_route
        self._routes: Mapping[tuple[Params, int], Mapping[str, _Route]] = {
            ((), 0): {"GET": _Route(self._get_about)},
            (("worlds",), 0): {"GET": _Route(self._get_worlds)},
            (("worlds",), 1): {"GET": _Route(self._get_world)},
            (("worlds", "tasks"), 1): {"GET": _Route(self._get_tasks)},
            (("worlds", "tasks"), 2): {"GET": _Route(self._get_task)},
            (("worlds", "tasks", "expert"), 2): {"GET": _Route(self._get_expert)},
            (("worlds", "vocabulary"), 1): {"GET": _Route(self._get_vocabulary)},
            (("worlds", "score"), 1): {"POST": _Route(self._score_episode)},
            (("sessions",), 0): {"POST": _Route(lambda params, body: operations.create(body), 201)},
            (("sessions",), 1): {"GET": session(operations.look), "DELETE": session(operations.close)},
            (("sessions", "reset"), 1): {"POST": session(operations.reset)},
            (("sessions", "step"), 1): {"POST": session(operations.step)},
            (("steps",), 0): {"POST": _Route(lambda params, body: operations.steps(body))},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        version_header = dict(scope["headers"]).get(_HEADER)
        if version_header is not None and version_header.strip() != _OWN_VERSION:
            client_version = version_header.decode("latin-1")[:20]
            raise VersionMismatch(f"unsupported protocol version {client_version}", expected=PROTOCOL)
        # A path is a word, a name, a word, a name ...: the words choose the route, the names are its parameters.
        parts = scope["path"].split("/")
        params = tuple(parts[3::2])
        methods = self._routes.get((tuple(parts[2::2]), len(params)))
        if scope["type"] == "websocket":
            if parts[2:] != ["ws"]:
                raise NotFound([Problem("path", f"unknown WebSocket path {scope['path'][:200]!r}", "use /v1/ws")])
            return await serve_socket(self._operations, receive, send)
        if methods is None:
            raise NotFound([Problem("path", f"unknown path {scope['path'][:200]!r}", "/openapi.json lists all paths")])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method)
        if route is None:
            return await send_not_allowed(scope, send, sorted(methods))
        fields = await _read_body(receive) if method == "POST" else _parse_query(scope)
        answer_text = await route.handle(params, fields)
        return await send_response(send, route.status, answer_text.encode("ascii"))

    def _session_route(self, operation: Callable[[RequestFields], Awaitable[str]]) -> _Route:
        """Returns a route whose parameter is the session."""

        def handle(params: Params, fields: RequestFields) -> Awaitable[str]:
            return operation({**fields, "session": params[0]})

        return _Route(handle)

    async def _get_about(self, params: Params, query: RequestFields) -> str:
        worlds = self._host.worlds
        versions = {"evolvent": __version__, "worlds": {name: world.version for name, world in worlds.items()}}
        return encode_compact(
            {"name": "evolvent", "protocol": PROTOCOL, "versions": versions, "worlds": list(worlds), "ws": "/v1/ws"}
        )

    async def _get_worlds(self, params: Params, query: RequestFields) -> str:
        return encode_compact({"worlds": [await self._describe_world(name) for name in self._host.worlds]})

    async def _get_world(self, params: Params, query: RequestFields) -> str:
        return encode_compact(await self._describe_world(params[0]))

    async def _describe_world(self, name: str) -> dict[str, Any]:
        """Returns a world's row, under the name it is served as."""
        world = self._find_world(name)
        return {**encode_world(world), "name": name, "vocabulary": await self._load_vocabulary(name) is not None}

    async def _get_tasks(self, params: Params, query: RequestFields) -> str:
        missing = [
            Problem(name, "is missing", "give split and tier") for name in ("split", "tier") if name not in query
        ]
        if missing:
            raise ConfigError(missing)
        panel = await self._catalogue.get_panel(params[0], query["split"], query["tier"])
        offset, limit = _get_integer(query, "offset", 0), _get_integer(query, "limit", len(panel))
        page = panel[offset : offset + limit]
        panel_page = {"tasks": page, "total": len(panel), "offset": offset}
        return (
            await asyncio.to_thread(_encode_page, panel_page)
            if len(page) > _MAX_INLINE_TASKS
            else _encode_page(panel_page)
        )

    async def _get_task(self, params: Params, query: RequestFields) -> str:
        return encode_compact(encode_task(await self._catalogue.get_by_id(*params)))

    async def _get_expert(self, params: Params, query: RequestFields) -> str:
        task = await self._catalogue.get_by_id(*params)
        world = self._find_world(params[0])
        if world.run_in_thread or params[0] in self._met:
            moves = await self._call_world(world, "expert", lambda: _expert_moves(world, task))
        else:
            async with self._meeting:
                moves = await self._run_first_expert(params[0], lambda: _expert_moves(world, task))
        if moves is None or not isinstance(world, SupportsRationales):
            return encode_compact({"actions": None if moves is None else [move.action for move in moves]})
        return encode_compact(
            {"actions": [move.action for move in moves], "thoughts": [move.thought for move in moves]}
        )

    async def _run_first_expert(self, name: str, call: Callable[[], T]) -> T:
        """Returns the first answer of a world's expert from a thread: the expert may take a while to build its
        tables.

        Wordle's table of all marks takes a second. Whoever asks meanwhile waits, else the loop would build it too.
        """
        with user_boundary(WorldError, f"world {name!r} failed in expert"):
            result: T = await self._calls.run(call, _CALL_TIMEOUT_S)
        self._met.add(name)
        return result

    async def _get_vocabulary(self, params: Params, query: RequestFields) -> str:
        return encode_compact({"words": await self._load_vocabulary(params[0])})

    async def _load_vocabulary(self, name: str) -> list[str] | None:
        """Returns a world's vocabulary, asked for once."""
        if name not in self._words:
            vocabulary = await self._call_world(self._find_world(name), "vocabulary", self._find_world(name).vocabulary)
            self._words[name] = None if vocabulary is None else list(vocabulary)
        return self._words[name]

    async def _score_episode(self, params: Params, body: RequestFields) -> str:
        world, rewards, info = self._find_world(params[0]), body.get("rewards"), body.get("info", {})
        problems = []
        if not isinstance(rewards, list) or len(rewards) > _MAX_REWARDS or not all(map(_is_reward, rewards)):
            expected = f"expected a list of at most {_MAX_REWARDS} finite numbers and nulls"
            problems.append(Problem("rewards", "has the wrong type", expected))
        if not isinstance(info, dict):
            problems.append(Problem("info", f"got {type(info).__name__}, expected an object"))
        if problems:
            raise ConfigError(problems)
        return encode_compact(
            encode_score(await self._call_world(world, "score", lambda: world.score(rewards or [], info)))
        )

    def _find_world(self, name: str) -> World:
        if name not in self._host.worlds:
            raise NotFound([unknown_name_problem("world", name[:64], self._host.worlds)])
        return self._host.worlds[name]

    async def _call_world(self, world: World, operation: str, call: Callable[[], T]) -> T:
        """Calls a world: on a thread if it may block, else directly (its methods need not be safe for threads)."""
        with user_boundary(WorldError, f"world {world.name!r} failed in {operation}"):
            if not world.run_in_thread:
                return call()
            result: T = await self._calls.run(call, _CALL_TIMEOUT_S)
            return result


async def _read_body(receive: Receive) -> RequestFields:
    """Reads the JSON object of a request; the guard has made it one message."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        data += message.get("body", b"")
    value = decode_json(data)
    if not isinstance(value, dict):
        raise SampleInvalid("the body is not an object", value=type(value).__name__, expected="a JSON object")
    return value


def _parse_query(scope: Scope) -> RequestFields:
    raw = scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(raw, keep_blank_values=True, max_num_fields=20)) if raw else {}
    except ValueError as error:
        raise ConfigError([Problem("query", f"cannot be read: {error}", "expected name=value&...")]) from error


def _get_integer(query: RequestFields, name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError([Problem(name, f"got {text[:40]!r}, expected a whole number of 0 or more")])
    return int(text)


def _is_reward(value: object) -> bool:
    return value is None or (not isinstance(value, bool) and finite_or_none(value) is not None)


def _expert_moves(world: World, task: Task) -> Sequence[Parsed] | None:
    """Returns the actions of the world's expert, with its thoughts if the world explains them."""
    explained = world.explain(task) if isinstance(world, SupportsRationales) else None
    actions = world.expert(task) if explained is None else None
    return explained if actions is None else [*map(Parsed, actions)]


def _encode_page(panel_page: dict[str, Any]) -> str:
    return encode_compact({**panel_page, "tasks": [encode_task(task) for task in panel_page["tasks"]]})

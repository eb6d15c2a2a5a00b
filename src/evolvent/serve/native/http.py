"""The native dialect over HTTP: plain ASGI functions behind one table of routes. The bodies are described in `wire`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.routing import BaseRoute

from evolvent import __version__
from evolvent.errors import (
    ConfigError,
    Problem,
    SampleInvalid,
    VersionMismatch,
    WorldError,
    boundary,
    unknown_name_problem,
)
from evolvent.serve.app import PrefixRoute, StaticRoute, send_not_allowed
from evolvent.serve.calls import CallRunner
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.native.openapi import build_document
from evolvent.serve.native.operations import Operations
from evolvent.serve.native.rows import encode_compact
from evolvent.serve.native.ws import serve_socket
from evolvent.serve.wire import (
    PROTOCOL,
    PROTOCOL_HEADER,
    NotFound,
    decode_json,
    encode_json,
    encode_score,
    encode_task,
    encode_world,
    finite_or_none,
)
from evolvent.trajectory import Task
from evolvent.web import Receive, Scope, Send, send_response
from evolvent.worlds.base import SupportsRationales, World
from evolvent.worlds.grammar import Parsed

__all__ = ["NativeDialect"]

T = TypeVar("T")
Params = tuple[str, ...]
RequestFields = dict[str, Any]
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
            raise VersionMismatch(
                f"protocol {client_version} was asked for, and {PROTOCOL} is spoken here", expected=PROTOCOL
            )
        # A path is a word, a name, a word, a name ...: the words choose the route, the names are its parameters.
        parts = scope["path"].split("/")
        params = tuple(parts[3::2])
        methods = self._routes.get((tuple(parts[2::2]), len(params)))
        if scope["type"] == "websocket":
            if parts[2:] != ["ws"]:
                raise NotFound([Problem("path", f"no WebSocket at {scope['path'][:200]!r}", "it is at /v1/ws")])
            return await serve_socket(self._operations, receive, send)
        if methods is None:
            raise NotFound([Problem("path", f"nothing at {scope['path'][:200]!r}", "/openapi.json lists all paths")])
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
            fields["session"] = params[0]
            return operation(fields)

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
        with boundary(WorldError, f"world {name!r} failed in expert"):
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
            problems.append(Problem("rewards", "got something else", expected))
        if not isinstance(info, dict):
            problems.append(Problem("info", f"got {type(info).__name__}", "expected an object"))
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
        with boundary(WorldError, f"world {world.name!r} failed in {operation}"):
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
        raise SampleInvalid("a body that is no object", value=type(value).__name__, expected="a JSON object")
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
        raise ConfigError([Problem(name, f"got {text[:40]!r}", "expected a whole number of 0 or more")])
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

"""The native dialect over HTTP: plain ASGI functions behind one table of routes. The bodies are described in `wire`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.routing import BaseRoute

from evolvent import __version__
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch, WorldError, boundary, unknown
from evolvent.serve.app import Prefix, Told, not_allowed
from evolvent.serve.calls import Calls
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.native.openapi import document
from evolvent.serve.native.operations import Operations
from evolvent.serve.native.rows import json_text
from evolvent.serve.native.ws import socket
from evolvent.serve.wire import (
    PROTOCOL,
    PROTOCOL_HEADER,
    NotFound,
    decoded,
    encoded,
    finite,
    score_row,
    task_row,
    world_row,
)
from evolvent.trajectory import Task
from evolvent.web import Receive, Scope, Send, answer
from evolvent.worlds.base import Explaining, World
from evolvent.worlds.grammar import Parsed

__all__ = ["NativeFace"]

T = TypeVar("T")
Params = tuple[str, ...]
Asked = dict[str, Any]
_HEADER, _SPOKEN = PROTOCOL_HEADER.encode(), str(PROTOCOL).encode()
_SLOW_S = 60.0  # how long an expert, a score or a vocabulary of a blocking world may take
_MANY = 200  # so many tasks are written off the event loop
_REWARDS = 100_000  # of one episode


@dataclass(frozen=True, slots=True)
class _Route:
    """What a method of a path does. It is given the path's parameters and the body or the query."""

    handle: Callable[[Params, Asked], Awaitable[str]]
    status: int = 200


class NativeFace:
    """The native dialect: `/v1/...`, `/v1/ws` and `/openapi.json`."""

    def routes(self, host: Host, catalogue: Catalogue) -> Sequence[BaseRoute]:
        """Its routes."""
        openapi = encoded(document(list(host.worlds)))
        return [Prefix("/v1", _Native(host, catalogue)), Told("/openapi.json", lambda: openapi)]


class _Native:
    """The ASGI app at `/v1`."""

    def __init__(self, host: Host, catalogue: Catalogue) -> None:
        self._host, self._catalogue = host, catalogue
        self._calls = Calls()
        self._words: dict[str, list[str] | None] = {}
        self._met: set[str] = set()  # worlds whose expert has answered before
        self._meeting = asyncio.Lock()
        self._operations = operations = Operations(host, catalogue)
        session = self._of_session
        self._routes: Mapping[tuple[Params, int], Mapping[str, _Route]] = {
            ((), 0): {"GET": _Route(self._about)},
            (("worlds",), 0): {"GET": _Route(self._worlds)},
            (("worlds",), 1): {"GET": _Route(self._world)},
            (("worlds", "tasks"), 1): {"GET": _Route(self._tasks)},
            (("worlds", "tasks"), 2): {"GET": _Route(self._task)},
            (("worlds", "tasks", "expert"), 2): {"GET": _Route(self._expert)},
            (("worlds", "vocabulary"), 1): {"GET": _Route(self._vocabulary)},
            (("worlds", "score"), 1): {"POST": _Route(self._score)},
            (("sessions",), 0): {"POST": _Route(lambda params, body: operations.create(body), 201)},
            (("sessions",), 1): {"GET": session(operations.look), "DELETE": session(operations.close)},
            (("sessions", "reset"), 1): {"POST": session(operations.reset)},
            (("sessions", "step"), 1): {"POST": session(operations.step)},
            (("steps",), 0): {"POST": _Route(lambda params, body: operations.steps(body))},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        spoken = dict(scope["headers"]).get(_HEADER)
        if spoken is not None and spoken.strip() != _SPOKEN:
            theirs = spoken.decode("latin-1")[:20]
            raise VersionMismatch(f"protocol {theirs} was asked for, and {PROTOCOL} is spoken here", expected=PROTOCOL)
        # A path is a word, a name, a word, a name ...: the words choose the route, the names are its parameters.
        parts = scope["path"].split("/")
        params = tuple(parts[3::2])
        methods = self._routes.get((tuple(parts[2::2]), len(params)))
        if scope["type"] == "websocket":
            if parts[2:] != ["ws"]:
                raise NotFound([Problem("path", f"no WebSocket at {scope['path'][:200]!r}", "it is at /v1/ws")])
            return await socket(self._operations, receive, send)
        if methods is None:
            raise NotFound([Problem("path", f"nothing at {scope['path'][:200]!r}", "/openapi.json lists all paths")])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method)
        if route is None:
            return await not_allowed(scope, send, sorted(methods))
        asked = await _body(receive) if method == "POST" else _query(scope)
        said = await route.handle(params, asked)
        return await answer(send, route.status, said.encode("ascii"))

    def _of_session(self, operation: Callable[[Asked], Awaitable[str]]) -> _Route:
        """A route whose parameter is the session."""

        def handle(params: Params, asked: Asked) -> Awaitable[str]:
            asked["session"] = params[0]
            return operation(asked)

        return _Route(handle)

    async def _about(self, params: Params, query: Asked) -> str:
        worlds = self._host.worlds
        versions = {"evolvent": __version__, "worlds": {name: world.version for name, world in worlds.items()}}
        return json_text(
            {"name": "evolvent", "protocol": PROTOCOL, "versions": versions, "worlds": list(worlds), "ws": "/v1/ws"}
        )

    async def _worlds(self, params: Params, query: Asked) -> str:
        return json_text({"worlds": [await self._card(name) for name in self._host.worlds]})

    async def _world(self, params: Params, query: Asked) -> str:
        return json_text(await self._card(params[0]))

    async def _card(self, name: str) -> dict[str, Any]:
        """A world's row, under the name it is served as."""
        world = self._named(name)
        return {**world_row(world), "name": name, "vocabulary": await self._spoken(name) is not None}

    async def _tasks(self, params: Params, query: Asked) -> str:
        missing = [
            Problem(name, "is missing", "give split and tier") for name in ("split", "tier") if name not in query
        ]
        if missing:
            raise ConfigError(missing)
        panel = await self._catalogue.panel(params[0], query["split"], query["tier"])
        offset, limit = _whole(query, "offset", 0), _whole(query, "limit", len(panel))
        chosen = panel[offset : offset + limit]
        made = {"tasks": chosen, "total": len(panel), "offset": offset}
        return await asyncio.to_thread(_panel_text, made) if len(chosen) > _MANY else _panel_text(made)

    async def _task(self, params: Params, query: Asked) -> str:
        return json_text(task_row(await self._catalogue.task(*params)))

    async def _expert(self, params: Params, query: Asked) -> str:
        task = await self._catalogue.task(*params)
        world = self._named(params[0])
        if world.blocking or params[0] in self._met:
            moves = await self._asked(world, "expert", lambda: _moves(world, task))
        else:
            async with self._meeting:
                moves = await self._met_expert(params[0], lambda: _moves(world, task))
        if moves is None or not isinstance(world, Explaining):
            return json_text({"actions": None if moves is None else [move.action for move in moves]})
        return json_text({"actions": [move.action for move in moves], "thoughts": [move.thought for move in moves]})

    async def _met_expert(self, name: str, call: Callable[[], T]) -> T:
        """The first answer of a world's expert comes from a thread: what it builds for it may take a while.

        Wordle's table of all marks takes a second. Whoever asks meanwhile waits, else the loop would build it too.
        """
        with boundary(WorldError, f"world {name!r} failed in expert"):
            found: T = await self._calls.run(call, _SLOW_S)
        self._met.add(name)
        return found

    async def _vocabulary(self, params: Params, query: Asked) -> str:
        return json_text({"words": await self._spoken(params[0])})

    async def _spoken(self, name: str) -> list[str] | None:
        """A world's vocabulary, asked for once."""
        if name not in self._words:
            words = await self._asked(self._named(name), "vocabulary", self._named(name).vocabulary)
            self._words[name] = None if words is None else list(words)
        return self._words[name]

    async def _score(self, params: Params, body: Asked) -> str:
        world, rewards, info = self._named(params[0]), body.get("rewards"), body.get("info", {})
        problems = []
        if not isinstance(rewards, list) or len(rewards) > _REWARDS or not all(map(_is_reward, rewards)):
            what = f"expected a list of at most {_REWARDS} finite numbers and nulls"
            problems.append(Problem("rewards", "got something else", what))
        if not isinstance(info, dict):
            problems.append(Problem("info", f"got {type(info).__name__}", "expected an object"))
        if problems:
            raise ConfigError(problems)
        return json_text(score_row(await self._asked(world, "score", lambda: world.score(rewards or [], info))))

    def _named(self, name: str) -> World:
        if name not in self._host.worlds:
            raise NotFound([unknown("world", name[:64], self._host.worlds)])
        return self._host.worlds[name]

    async def _asked(self, world: World, what: str, call: Callable[[], T]) -> T:
        """Ask a world: on a thread if it may block, else here and now (its methods need not be safe for threads)."""
        with boundary(WorldError, f"world {world.name!r} failed in {what}"):
            if not world.blocking:
                return call()
            found: T = await self._calls.run(call, _SLOW_S)
            return found


async def _body(receive: Receive) -> Asked:
    """The JSON object of a request; the guard has made it one message."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        data += message.get("body", b"")
    value = decoded(data)
    if not isinstance(value, dict):
        raise SampleInvalid("a body that is no object", value=type(value).__name__, expected="a JSON object")
    return value


def _query(scope: Scope) -> Asked:
    raw = scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(raw, keep_blank_values=True, max_num_fields=20)) if raw else {}
    except ValueError as error:
        raise ConfigError([Problem("query", f"cannot be read: {error}", "expected name=value&...")]) from error


def _whole(query: Asked, name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError([Problem(name, f"got {text[:40]!r}", "expected a whole number of 0 or more")])
    return int(text)


def _is_reward(value: object) -> bool:
    return value is None or (not isinstance(value, bool) and finite(value) is not None)


def _moves(world: World, task: Task) -> Sequence[Parsed] | None:
    """What the world's expert does, with its thoughts where the world explains it."""
    explained = world.explained(task) if isinstance(world, Explaining) else None
    actions = world.expert(task) if explained is None else None
    return explained if actions is None else [*map(Parsed, actions)]


def _panel_text(made: dict[str, Any]) -> str:
    return json_text({**made, "tasks": [task_row(task) for task in made["tasks"]]})

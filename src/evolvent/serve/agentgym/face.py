"""The AgentGym dialect of a server: one address for each mount, below `/agentgym`.

    POST /agentgym/textcraft/create   ->  {"id": 1804289383, "observation": ..., "done": false, "reward": 0}
    POST /agentgym/sqlgym/create      ->  1804289383

The released clients append their paths to such an address and work unchanged. The application is plain ASGI: a path is
found in a dictionary, a body is read once and an answer is written once, because a step of a world costs less than the
machinery of a web framework. `GET /agentgym` lists the mounts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.routing import BaseRoute

from evolvent.errors import ConfigError, Problem, SampleInvalid, find_nearest, unknown_name_problem
from evolvent.serve.agentgym.desk import AgentGymMount, Handler
from evolvent.serve.agentgym.dialects import default_mounts, get_dialect
from evolvent.serve.app import PrefixRoute, send_not_allowed
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.wire import NotFound, decode_json, encode_json
from evolvent.trajectory import Json
from evolvent.web import Receive, Scope, Send, send_response

__all__ = ["PREFIX", "AgentGymDialect"]

PREFIX = "/agentgym"
_MAX_QUERY_FIELDS = 32  # of a query


class AgentGymDialect:
    """The mounts of a server.

    Args:
        mounts: mount -> (world, dialect); None: every world that has a dialect by default, under its own name, and the
            first world of each dialect under the dialect's name too (`textcraft`, `babyai`, `maze`, ...).
    """

    name = "agentgym"

    def __init__(self, mounts: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._mounts = mounts

    def mounts(self, host: SessionHost) -> Mapping[str, tuple[str, str]]:
        """Returns mount -> (world, dialect) at this host."""
        return default_mounts(host.worlds) if self._mounts is None else self._mounts

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns the one route below which all mounts are.

        Raises:
            ConfigError: an unknown world or dialect, or a name that cannot be part of a path; all of them at once.
        """
        problems: list[Problem] = []
        handlers_by_path: dict[str, Mapping[str, Handler]] = {}
        for mount, (world, dialect) in self.mounts(host).items():
            if world not in host.worlds:
                problems.append(unknown_name_problem("world", world, host.worlds, location=f"mount {mount}"))
            try:
                row = get_dialect(dialect)
            except ConfigError as error:
                problems += error.problems
                continue
            if not mount or not mount.replace("-", "_").isidentifier():
                problems.append(unknown_name_problem("mount", mount, [dialect], location="mounts"))
            if world in host.worlds:
                mounted = AgentGymMount(host, task_index, world=world, dialect=row)
                handlers_by_path |= {f"/{mount}{path}": handlers for path, handlers in mounted.routes().items()}
        if problems:
            raise ConfigError(problems)
        handlers_by_path[""] = handlers_by_path["/"] = {"GET": self._mounts_handler(host)}
        return (PrefixRoute(PREFIX, _Application(handlers_by_path)),)

    def _mounts_handler(self, host: SessionHost) -> Handler:
        mounts: dict[str, Json] = {
            mount: {"world": world, "dialect": dialect} for mount, (world, dialect) in self.mounts(host).items()
        }

        async def listing(body: Mapping[str, Any]) -> Json:
            return {"mounts": mounts}

        return listing


class _Application:
    """Finds the handler of a path, reads the request, writes the answer. Typed errors are passed on to the server."""

    def __init__(self, routes: Mapping[str, Mapping[str, Handler]]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"][len(PREFIX) :]
        methods = self._routes.get(path)
        if methods is None or scope["type"] != "http":
            raise self._path_error(path)
        handler = methods.get(scope["method"])
        if handler is None:
            return await send_not_allowed(scope, send, tuple(methods))
        body: object
        if scope["method"] == "POST":
            data = await _read_body(receive)
            body = decode_json(data) if data else {}
            if not isinstance(body, Mapping):
                raise SampleInvalid("a body that is no object", value=body, expected='{"id": 0, ...}')
        else:
            body = _parse_query(scope["query_string"])
        return await send_response(send, 200, encode_json(await handler(body)))

    def _path_error(self, path: str) -> NotFound:
        similar = find_nearest(path, self._routes)
        hint = f"did you mean {similar}?" if similar else f"GET {PREFIX} lists the mounts"
        return NotFound(f"no such path below {PREFIX}", value=path, hint=hint)


def _parse_query(text: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(text.decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS))
    except ValueError as error:
        raise SampleInvalid(f"a query that cannot be read: {error}", value=text[:200]) from error


async def _read_body(receive: Receive) -> bytes:
    """Reads the body of a request, whose size the server's guard has checked."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        data += message.get("body", b"")
    return data

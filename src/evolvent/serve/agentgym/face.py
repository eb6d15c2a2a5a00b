"""The AgentGym face of a server: one address for each mount, below `/agentgym`.

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

from evolvent.errors import ConfigError, Problem, SampleInvalid, nearest, unknown
from evolvent.serve.agentgym.desk import Desk, Handler
from evolvent.serve.agentgym.dialects import default_mounts, dialect_named
from evolvent.serve.app import Prefix, not_allowed
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.wire import NotFound, decoded, encoded
from evolvent.trajectory import Json
from evolvent.web import Receive, Scope, Send, answer

__all__ = ["PREFIX", "AgentGymFace"]

PREFIX = "/agentgym"
_MOST_FIELDS = 32  # of a query


class AgentGymFace:
    """The mounts of a server.

    Args:
        mounts: mount -> (world, dialect); None: every world that has a dialect by default, under its own name, and the
            first world of each dialect under the dialect's name too (`textcraft`, `babyai`, `maze`, ...).
    """

    name = "agentgym"

    def __init__(self, mounts: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._mounts = mounts

    def mounts(self, host: Host) -> Mapping[str, tuple[str, str]]:
        """Mount -> (world, dialect) at this host."""
        return default_mounts(host.worlds) if self._mounts is None else self._mounts

    def routes(self, host: Host, catalogue: Catalogue) -> Sequence[BaseRoute]:
        """The one route below which all mounts live.

        Raises:
            ConfigError: an unknown world or dialect, or a name that is no part of a path; all of them at once.
        """
        problems: list[Problem] = []
        found: dict[str, Mapping[str, Handler]] = {}
        for mount, (world, dialect) in self.mounts(host).items():
            if world not in host.worlds:
                problems.append(unknown("world", world, host.worlds, where=f"mount {mount}"))
            try:
                row = dialect_named(dialect)
            except ConfigError as error:
                problems += error.problems
                continue
            if not mount or not mount.replace("-", "_").isidentifier():
                problems.append(unknown("mount", mount, [dialect], where="mounts"))
            if world in host.worlds:
                desk = Desk(host, catalogue, world=world, dialect=row)
                found |= {f"/{mount}{path}": handlers for path, handlers in desk.routes().items()}
        if problems:
            raise ConfigError(problems)
        found[""] = found["/"] = {"GET": self._listing(host)}
        return (Prefix(PREFIX, _Application(found)),)

    def _listing(self, host: Host) -> Handler:
        told: dict[str, Json] = {
            mount: {"world": world, "dialect": dialect} for mount, (world, dialect) in self.mounts(host).items()
        }

        async def listing(body: Mapping[str, Any]) -> Json:
            return {"mounts": told}

        return listing


class _Application:
    """Finds the handler of a path, reads the request, writes the answer. Errors leave typed, for the server to tell."""

    def __init__(self, routes: Mapping[str, Mapping[str, Handler]]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"][len(PREFIX) :]
        methods = self._routes.get(path)
        if methods is None or scope["type"] != "http":
            raise self._nowhere(path)
        handler = methods.get(scope["method"])
        if handler is None:
            return await not_allowed(scope, send, tuple(methods))
        body: object
        if scope["method"] == "POST":
            data = await _body(receive)
            body = decoded(data) if data else {}
            if not isinstance(body, Mapping):
                raise SampleInvalid("a body that is no object", value=body, expected='{"id": 0, ...}')
        else:
            body = _query(scope["query_string"])
        return await answer(send, 200, encoded(await handler(body)))

    def _nowhere(self, path: str) -> NotFound:
        near = nearest(path, self._routes)
        hint = f"did you mean {near}?" if near else f"GET {PREFIX} lists the mounts"
        return NotFound(f"no such path below {PREFIX}", value=path, hint=hint)


def _query(text: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(text.decode("latin-1"), max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise SampleInvalid(f"a query that cannot be read: {error}", value=text[:200]) from error


async def _body(receive: Receive) -> bytes:
    """The body of a request, which the server's guard has read and measured."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        data += message.get("body", b"")
    return data

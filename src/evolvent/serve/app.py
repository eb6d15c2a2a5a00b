"""The server as one ASGI app: a guard, an index of the routes of all dialects, and typed errors for every failure."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NoReturn, Protocol, runtime_checkable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Router

from evolvent import __version__
from evolvent.errors import AtCapacity, EvolventError, Problem, boundary
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.connections import ConnectionTable
from evolvent.serve.host import SessionHost
from evolvent.serve.metrics import EXPOSITION_CONTENT_TYPE, Family, MeasuredApp, MeasuredHost, format_exposition
from evolvent.serve.wire import NotFound, encode_error, encode_json
from evolvent.trajectory import Json
from evolvent.web import Access, App, Message, Receive, Scope, Send, guard_app, reject, send_response

__all__ = ["Dialect", "HasLifespan", "PrefixRoute", "StaticRoute", "build_app", "send_error", "send_not_allowed"]

_log = logging.getLogger(__name__)


class Dialect(Protocol):
    """One protocol of the server."""

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns the routes of the dialect; they call the host, and pass its typed errors on or answer them
        themselves.
        """
        ...


@runtime_checkable
class HasLifespan(Protocol):
    """A dialect that starts before the first request and stops after the last."""

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Starts on entry, after the host, and stops on exit, before the host, both in one task."""
        ...


class PrefixRoute(BaseRoute):
    """A route for a path and everything below it, to an ASGI app that reads `scope["path"]` itself."""

    def __init__(self, path: str, app: App) -> None:
        self.path, self._app, self._below = path, app, path + "/"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether the path matches; the scope does not change."""
        path = scope["path"]
        return (Match.FULL if path == self.path or path.startswith(self._below) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        await self._app(scope, receive, send)


class StaticRoute(BaseRoute):
    """A read-only path: `GET` answers the result of a function, as JSON unless another content type is given."""

    def __init__(self, path: str, read_body: Callable[[], bytes], *, content_type: str = "application/json") -> None:
        self.path, self._tell, self._kind = path, read_body, content_type

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether an HTTP request is for this path."""
        return (Match.FULL if scope["path"] == self.path and scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves GET and HEAD; refuses other methods."""
        if scope["method"] in ("GET", "HEAD"):
            await send_response(send, 200, self._tell(), kind=self._kind.encode())
        else:
            await send_not_allowed(scope, send, ("GET", "HEAD"))


def build_app(
    host: SessionHost,
    task_index: TaskIndex,
    *,
    access: Access,
    dialects: Sequence[Dialect],
    connections: ConnectionTable | None = None,
) -> App:
    """Builds the whole server as an ASGI app.

    Args:
        connections: those of the server that runs the app, for `/metrics`; None: they are not told.

    Its lifespan enters the host (if it is an asynchronous context manager) and then the dialects with a lifespan.
    Beside the routes of the dialects there are `GET /`, `GET /health` and `GET /metrics`, behind the same guard.
    """
    measured_host = MeasuredHost(host)
    connection_families = connections.families if connections is not None else list[Family]
    common_routes = [
        StaticRoute("/", lambda: _describe_server(host)),
        StaticRoute("/health", lambda: _describe_health(host)),
    ]
    common_routes.append(
        StaticRoute(
            "/metrics",
            lambda: format_exposition([*measured_host.families(), *measured_app.families(), *connection_families()]),
            content_type=EXPOSITION_CONTENT_TYPE,
        )
    )
    routes = [*common_routes, *(route for dialect in dialects for route in dialect.routes(measured_host, task_index))]
    first_parts = [part for route in routes for part in _fixed_parts(getattr(route, "path", ""))[:1]]
    measured_app = MeasuredApp(guard_app(_ErrorHandler(_RouteIndex(routes)), access), first_parts)
    return _Server(measured_app, host, dialects)


def _describe_server(host: SessionHost) -> bytes:
    return encode_json(
        {
            "name": "evolvent",
            "evolvent": __version__,
            "worlds": list(host.worlds),
            "health": "/health",
            "metrics": "/metrics",
        }
    )


def _describe_health(host: SessionHost) -> bytes:
    status = host.status()
    return encode_json(
        {
            "status": "ok",
            "sessions": dict(status.sessions),
            "capacity": status.capacity,
            "created": status.created,
            "steps": status.steps,
            "restarts": status.restarts,
        }
    )


class _Server:
    """The lifespan around the app."""

    def __init__(self, app: App, host: SessionHost, dialects: Sequence[Dialect]) -> None:
        self._app, self._host, self._faces = app, host, dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await self._app(scope, receive, send)
        await receive()
        async with AsyncExitStack() as stack:
            try:
                with boundary(EvolventError, "the server could not start"):
                    await self._enter(stack)
            except EvolventError as error:
                return await send({"type": "lifespan.startup.failed", "message": str(error)})
            await send({"type": "lifespan.startup.complete"})
            await receive()
        return await send({"type": "lifespan.shutdown.complete"})

    async def _enter(self, stack: AsyncExitStack) -> None:
        if isinstance(self._host, AbstractAsyncContextManager):
            await stack.enter_async_context(self._host)
        for dialect in self._faces:
            if isinstance(dialect, HasLifespan):
                await stack.enter_async_context(dialect.lifespan())


class _RouteIndex:
    """Routes by the first two parts of their paths, so that a request does not try those of every other dialect."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        keyed = [(_fixed_parts(getattr(route, "path", "")), route) for route in routes]
        self._routers: dict[tuple[str, ...], Router] = {}
        for key in {(), *(key for key, _ in keyed)}:
            matching = [route for route_key, route in keyed if route_key == key[: len(route_key)]]
            self._routers[key] = Router(matching, redirect_slashes=False, default=_raise_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = tuple(scope["path"].split("/", 3)[1:3])
        routers = self._routers
        router = routers.get(parts) or routers.get(parts[:1]) or routers[()]
        await router.app(scope, receive, send)


def _fixed_parts(path: str) -> tuple[str, ...]:
    """Returns the first two parts of a route's path, up to the first parameter."""
    parts = tuple(part for part in path.split("/")[1:3] if part)
    return parts if "{" not in "".join(parts) else parts[:1] if "{" not in parts[0] else ()


async def _raise_not_found(scope: Scope, receive: Receive, send: Send) -> NoReturn:
    raise NotFound([Problem("path", f"unknown path {scope['path'][:200]!r}", "GET / lists the paths")])


class _ErrorHandler:
    """Converts errors to answers. An untyped error is a fault of the server: it is logged and answered with status
    500.
    """

    __slots__ = ("_app",)

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_noted(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            with boundary(EvolventError, "a fault of the server itself"):
                await _run_app(self._app, scope, receive, send_noted)
        except EvolventError as error:
            if type(error) is EvolventError:
                _log.error("%s %s: %s", scope["type"], scope["path"], error, exc_info=error)
            if is_started and scope["type"] == "http":
                raise
            await send_error(scope, send, error, is_started=is_started)


async def _run_app(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Runs the app; answers an HTTP error of Starlette as JSON, and ignores a WebSocket whose client has left."""
    try:
        await app(scope, receive, send)
    except HTTPException as error:
        row: dict[str, Json] = {"kind": "ConfigError" if error.status_code < 500 else "EvolventError"}
        row |= {"message": error.detail, "expected": None, "status": error.status_code}
        headers = [(key.lower().encode(), value.encode()) for key, value in (error.headers or {}).items()]
        await _send_row(scope, send, row, headers)
    except OSError:
        if scope["type"] != "websocket":
            raise


async def send_error(scope: Scope, send: Send, error: EvolventError, *, is_started: bool = False) -> None:
    """Sends an error as the answer to a request; closes a WebSocket that is open already (`is_started`)."""
    headers = []
    if isinstance(error, AtCapacity):
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    if is_started:
        await send({"type": "websocket.close", "code": 1011, "reason": type(error).__name__})
    else:
        await _send_row(scope, send, encode_error(error), headers)


async def send_not_allowed(scope: Scope, send: Send, methods: Sequence[str]) -> None:
    """Sends status 405 with the allowed methods."""
    message = f"no {scope['method']} here"
    row: dict[str, Json] = {"kind": "ConfigError", "message": message, "expected": ", ".join(methods), "status": 405}
    await _send_row(scope, send, row, [(b"allow", ", ".join(methods).encode())])


async def _send_row(scope: Scope, send: Send, row: dict[str, Json], headers: Sequence[tuple[bytes, bytes]]) -> None:
    await reject(scope, send, status=int(str(row["status"])), body=encode_json(row), headers=headers)

"""The server as one ASGI app: a guard, an index of the routes of all faces, and typed errors for whatever fails."""

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
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.metrics import EXPOSITION, Measured, MeasuredHost, exposition
from evolvent.serve.wire import NotFound, encoded, error_row
from evolvent.trajectory import Json
from evolvent.web import Access, App, Message, Receive, Scope, Send, answer, guarded, reject

__all__ = ["Face", "Lasting", "Prefix", "Told", "build", "failed", "not_allowed"]

_log = logging.getLogger(__name__)


class Face(Protocol):
    """One dialect of the server."""

    def routes(self, host: Host, catalogue: Catalogue) -> Sequence[BaseRoute]:
        """Its routes; they call the host, and let its typed errors out or answer them in their own way."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A face with something to begin before the first request and to end after the last."""

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Entered after the host, left before it, both in one task."""
        ...


class Prefix(BaseRoute):
    """Everything at a path and below it, given to an ASGI app that reads `scope["path"]` itself."""

    def __init__(self, path: str, app: App) -> None:
        self.path, self._app, self._below = path, app, path + "/"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the path is ours; nothing of the scope changes."""
        path = scope["path"]
        return (Match.FULL if path == self.path or path.startswith(self._below) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""
        await self._app(scope, receive, send)


class Told(BaseRoute):
    """One path that only tells something: `GET` answers what the function returns, JSON unless another kind is said."""

    def __init__(self, path: str, tell: Callable[[], bytes], *, kind: str = "application/json") -> None:
        self.path, self._tell, self._kind = path, tell, kind

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is this path, asked by HTTP."""
        return (Match.FULL if scope["path"] == self.path and scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; other methods than GET and HEAD are not allowed."""
        if scope["method"] in ("GET", "HEAD"):
            await answer(send, 200, self._tell(), kind=self._kind.encode())
        else:
            await not_allowed(scope, send, ("GET", "HEAD"))


def build(host: Host, catalogue: Catalogue, *, access: Access, faces: Sequence[Face]) -> App:
    """The whole server as an ASGI app.

    Its lifespan enters the host (where that is an asynchronous context manager) and then the faces that last. Beside
    the routes of the faces there are `GET /`, `GET /health` and `GET /metrics`, behind the same guard.
    """
    counted = MeasuredHost(host)
    own = [Told("/", lambda: _root(host)), Told("/health", lambda: _health(host))]
    own.append(Told("/metrics", lambda: exposition([*counted.families(), *measured.families()]), kind=EXPOSITION))
    routes = [*own, *(route for face in faces for route in face.routes(counted, catalogue))]
    heads = [part for route in routes for part in _fixed(getattr(route, "path", ""))[:1]]
    measured = Measured(guarded(_Answering(_Index(routes)), access), heads)
    return _Server(measured, host, faces)


def _root(host: Host) -> bytes:
    return encoded(
        {
            "name": "evolvent",
            "evolvent": __version__,
            "worlds": list(host.worlds),
            "health": "/health",
            "metrics": "/metrics",
        }
    )


def _health(host: Host) -> bytes:
    told = host.status()
    return encoded(
        {
            "status": "ok",
            "sessions": dict(told.sessions),
            "capacity": told.capacity,
            "created": told.created,
            "steps": told.steps,
            "restarts": told.restarts,
        }
    )


class _Server:
    """The lifespan around the app."""

    def __init__(self, app: App, host: Host, faces: Sequence[Face]) -> None:
        self._app, self._host, self._faces = app, host, faces

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
        for face in self._faces:
            if isinstance(face, Lasting):
                await stack.enter_async_context(face.lifespan())


class _Index:
    """Routes by the first two parts of their paths, so that a request does not try those of every other face."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        keyed = [(_fixed(getattr(route, "path", "")), route) for route in routes]
        self._routers: dict[tuple[str, ...], Router] = {}
        for key in {(), *(key for key, _ in keyed)}:
            chosen = [route for own, route in keyed if own == key[: len(own)]]
            self._routers[key] = Router(chosen, redirect_slashes=False, default=_nowhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = tuple(scope["path"].split("/", 3)[1:3])
        routers = self._routers
        router = routers.get(parts) or routers.get(parts[:1]) or routers[()]
        await router.app(scope, receive, send)


def _fixed(path: str) -> tuple[str, ...]:
    """The first two parts of a route's path, as far as they hold no parameter."""
    parts = tuple(part for part in path.split("/")[1:3] if part)
    return parts if "{" not in "".join(parts) else parts[:1] if "{" not in parts[0] else ()


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> NoReturn:
    raise NotFound([Problem("path", f"nothing at {scope['path'][:200]!r}", "GET / says what is here")])


class _Answering:
    """Turns errors into answers. What is no typed error is a fault of the server: it is logged, and answered 500."""

    __slots__ = ("_app",)

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            with boundary(EvolventError, "a fault of the server itself"):
                await _plainly(self._app, scope, receive, noted)
        except EvolventError as error:
            if type(error) is EvolventError:
                _log.error("%s %s: %s", scope["type"], scope["path"], error, exc_info=error)
            if begun and scope["type"] == "http":
                raise
            await failed(scope, send, error, begun=begun)


async def _plainly(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the app; an HTTP error of Starlette is answered in our form, a WebSocket whose client left is over."""
    try:
        await app(scope, receive, send)
    except HTTPException as told:
        row: dict[str, Json] = {"kind": "ConfigError" if told.status_code < 500 else "EvolventError"}
        row |= {"message": told.detail, "expected": None, "status": told.status_code}
        headers = [(key.lower().encode(), value.encode()) for key, value in (told.headers or {}).items()]
        await _tell(scope, send, row, headers)
    except OSError:
        if scope["type"] != "websocket":
            raise


async def failed(scope: Scope, send: Send, error: EvolventError, *, begun: bool = False) -> None:
    """Answer a request by an error; a WebSocket that is open already (begun) is closed."""
    headers = []
    if isinstance(error, AtCapacity):
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    if begun:
        await send({"type": "websocket.close", "code": 1011, "reason": type(error).__name__})
    else:
        await _tell(scope, send, error_row(error), headers)


async def not_allowed(scope: Scope, send: Send, methods: Sequence[str]) -> None:
    """Answer 405 with the methods that there are."""
    message = f"no {scope['method']} here"
    row: dict[str, Json] = {"kind": "ConfigError", "message": message, "expected": ", ".join(methods), "status": 405}
    await _tell(scope, send, row, [(b"allow", ", ".join(methods).encode())])


async def _tell(scope: Scope, send: Send, row: dict[str, Json], headers: Sequence[tuple[bytes, bytes]]) -> None:
    await reject(scope, send, status=int(str(row["status"])), body=encoded(row), headers=headers)

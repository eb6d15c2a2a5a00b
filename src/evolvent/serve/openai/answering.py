"""Answers as HTTP: bodies, lines of a stream, what the guard refuses put into OpenAI's form, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evolvent.errors import AccessDenied, AtCapacity, EvolventError, LimitExceeded
from evolvent.serve.openai.reply import error_body
from evolvent.serve.wire import encoded
from evolvent.web import App, Receive, Scope, Send
from evolvent.web import Message as Event

__all__ = ["Reached", "Refusals", "attended", "event_line", "json_answer"]

T = TypeVar("T")
_REACHED = "evolvent.reached"


class Reached:
    """Notes that a request has passed the guard."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_REACHED] = True
        await self._app(scope, receive, send)


class Refusals:
    """Puts what the guard answers into OpenAI's form: without the token 401, as clients expect of a key, else 403."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Event | None = None

        async def translated(message: Event) -> None:
            nonlocal begun
            if scope.get(_REACHED) or scope["type"] != "http":
                return await send(message)
            if message["type"] == "http.response.start":
                begun = message
                return None
            row = json.loads(message["body"])
            kind = LimitExceeded if row["kind"] == "LimitExceeded" else AccessDenied
            body, status = error_body(kind(row["message"], expected=row["expected"])), row["status"]
            if str(row["expected"]).startswith("Authorization:"):
                body["error"] |= {"type": "authentication_error", "code": "invalid_api_key"}
                status = 401
            response = json_answer(body, status)
            if begun is not None:
                response.headers.update(
                    {key.decode(): value.decode() for key, value in begun["headers"] if key == b"connection"}
                )
            return await response(scope, receive, send)

        await self._app(scope, receive, translated)


def json_answer(row: dict[str, Any] | list[Any], status: int = 200, *, after: EvolventError | None = None) -> Response:
    """A JSON value as an answer; after AtCapacity it says when to come back."""
    headers = {"retry-after": f"{after.retry_after_s:.0f}"} if isinstance(after, AtCapacity) else None
    return Response(encoded(row), status, headers, "application/json")


def event_line(row: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + encoded(row) + b"\n\n"


async def attended(request: Request, work: Awaitable[T]) -> T:
    """The value of a work that ends when the client leaves. Raises ClientDisconnect then."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()

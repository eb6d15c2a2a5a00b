"""Answers over HTTP: bodies, lines of a stream, refusals of the guard in OpenAI's form, and clients that disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evolvent.errors import AccessDenied, AtCapacity, EvolventError, LimitExceeded
from evolvent.serve.openai.reply import encode_error
from evolvent.serve.wire import encode_json
from evolvent.web import App, Receive, Scope, Send
from evolvent.web import Message as Event

__all__ = ["GuardMarker", "RefusalTranslator", "encode_event", "json_response", "run_while_connected"]

T = TypeVar("T")
_PASSED_GUARD_KEY = "evolvent.reached"


class GuardMarker:
    """Marks requests that have passed the guard."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_PASSED_GUARD_KEY] = True
        await self._app(scope, receive, send)


class RefusalTranslator:
    """Converts answers of the guard to OpenAI's form: 401 without the token, as clients expect of a key, else 403."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start_event: Event | None = None

        async def send_translated(message: Event) -> None:
            nonlocal start_event
            if scope.get(_PASSED_GUARD_KEY) or scope["type"] != "http":
                return await send(message)
            if message["type"] == "http.response.start":
                start_event = message
                return None
            row = json.loads(message["body"])
            kind = LimitExceeded if row["kind"] == "LimitExceeded" else AccessDenied
            body, status = encode_error(kind(row["message"], expected=row["expected"])), row["status"]
            if str(row["expected"]).startswith("Authorization:"):
                body["error"] |= {"type": "authentication_error", "code": "invalid_api_key"}
                status = 401
            response = json_response(body, status)
            if start_event is not None:
                response.headers.update(
                    {key.decode(): value.decode() for key, value in start_event["headers"] if key == b"connection"}
                )
            return await response(scope, receive, send)

        await self._app(scope, receive, send_translated)


def json_response(
    row: dict[str, Any] | list[Any], status: int = 200, *, error: EvolventError | None = None
) -> Response:
    """Returns a JSON value as a response; after AtCapacity it includes the time of a retry."""
    headers = {"retry-after": f"{error.retry_after_s:.0f}"} if isinstance(error, AtCapacity) else None
    return Response(encode_json(row), status, headers, "application/json")


def encode_event(row: dict[str, Any]) -> bytes:
    """Encodes a server-sent event."""
    return b"data: " + encode_json(row) + b"\n\n"


async def run_while_connected(request: Request, awaitable: Awaitable[T]) -> T:
    """Returns the value of an awaitable that is cancelled when the client leaves. Raises ClientDisconnect then."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(awaitable), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()

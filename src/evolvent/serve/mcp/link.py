"""One session with an MCP server, over HTTP or with a child process, held by the official SDK (extra `mcp`).

The SDK wants a session to be entered and left in one task: `Link` keeps one for it. What the SDK raises (groups of
errors of its transports among them) leaves as errors of ours; of a child that ends, its last words are told.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import anyio
import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    CallToolResult,
    EmbeddedResource,
    Implementation,
    TextContent,
    TextResourceContents,
)

from evolvent import __version__
from evolvent.errors import EnvLost, EvolventError, InvalidAction, LimitExceeded, StepTimeout, WorldError, boundary
from evolvent.messages import Tool
from evolvent.serve.given import Patience
from evolvent.serve.wire import plain, text_of
from evolvent.trajectory import Json

__all__ = ["Answer", "Link", "Said"]

_TAIL = 800  # characters of a child's last words that an error tells
_GOODBYE_S = 2.0  # how long a server over HTTP may take to hear that the session ends
_WHY_S = 0.5  # how long a session that broke may take to say why
_PAGES = 100  # of tools/list, so that a server without a last page ends
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said:
    """What a server says of itself."""

    name: str
    version: str
    instructions: str
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave. failed: the tool says that it did not work."""

    text: str
    structured: Json = None
    failed: bool = False


class Link:
    """A session. Its coroutines run on one event loop.

    Args:
        server: a URL of streamable HTTP, or the words of a command whose standard input and output speak MCP.
        headers: of every HTTP request (a token).
    """

    def __init__(self, server: str | Sequence[str], patience: Patience, *, headers: Mapping[str, str]) -> None:
        self._server, self._patience, self._headers = server, patience, headers
        self._what = server if isinstance(server, str) else " ".join(server)
        self._stop = asyncio.Event()
        self._scope: anyio.CancelScope | None = None
        self._holder: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._words: IO[str] | None = None  # what a child writes to its standard error
        self._why: EvolventError | None = None  # the session ended by itself

    async def open(self) -> Said:
        """Begin the session, and hear what there is. Servers without the handshake (2026-07-28) are met without it.

        Raises:
            EnvLost: the server cannot be started or reached, or is none.
        """
        try:
            await self._begin("legacy")
        except EnvLost as error:
            cause = _leaf(error.__cause__)
            if not isinstance(cause, MCPError) or cause.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise
            await self._begin("auto")
        return await self._guarded(self._said())

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Answer:
        """Call a tool.

        Raises:
            InvalidAction: the server refuses the call itself (its name or arguments).
            StepTimeout: no answer in time; what the server does is unknown.
            EnvLost: the server is gone.
            WorldError: it answers with an error, or with something else.
        """
        client = self._live()
        return self._answer(
            await self._guarded(client.call_tool(name, dict(arguments), read_timeout_seconds=timeout_s))
        )

    async def close(self) -> None:
        """End the session; a child is asked to go by the end of its input, then killed."""
        if self._client is None and self._scope is not None and not self._stop.is_set():
            self._scope.cancel()
        self._stop.set()
        self._client = None
        if self._holder is not None:
            await asyncio.wait({self._holder})

    async def _begin(self, mode: str) -> None:
        self._stop, self._scope, self._why = asyncio.Event(), anyio.CancelScope(), None
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(mode, ready, self._scope), name="mcp-session")
        self._client = await asyncio.shield(ready)

    async def _hold(self, mode: str, ready: asyncio.Future[Client], scope: anyio.CancelScope) -> None:
        """The life of the session. It is never cancelled as a task, which would leave a child behind."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as self._words:
            try:
                with boundary(EnvLost, f"the session with {self._what} failed"), scope:
                    async with AsyncExitStack() as stack:
                        client = Client(
                            await self._transport(stack, self._words),
                            mode=mode,
                            cache=None,
                            client_info=_SELF,
                            read_timeout_seconds=self._patience.reset_s,
                        )
                        await stack.enter_async_context(client)
                        ready.set_result(client)
                        await self._stop.wait()
                        scope.deadline = anyio.current_time() + _GOODBYE_S
            except EvolventError as error:
                self._why = self._lost(error, "is gone" if ready.done() else "does not speak MCP")
                if not ready.done():
                    ready.set_exception(self._why)
            finally:
                self._words = None
                if not ready.cancel() and not ready.cancelled():
                    ready.exception()  # somebody may have stopped waiting for it

    async def _transport(self, stack: AsyncExitStack, words: IO[str]) -> Any:
        if not isinstance(self._server, str):
            command, *arguments = self._server
            return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=words)  # type: ignore[arg-type]
        limits = httpx2.Timeout(None, connect=self._patience.connect_s)
        transport = _Limited(httpx2.AsyncHTTPTransport(), self._patience.message_bytes)
        headers = {"accept-encoding": "identity", **self._headers}
        client = httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False, transport=transport)
        await stack.enter_async_context(client)
        return streamable_http_client(self._server, http_client=client)

    def _live(self) -> Client:
        if self._client is None:
            raise EnvLost("no session with the MCP server", value=self._what, hint="reset first")
        return self._client

    async def _guarded(self, asked: Awaitable[T]) -> T:
        """The value, unless the session ends meanwhile."""
        call, holder = asyncio.ensure_future(asked), self._holder
        try:
            await asyncio.wait({call, holder} if holder else {call}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise self._ended("the session ended")
            return call.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and holder is not None:
                await asyncio.wait({holder}, timeout=_WHY_S)
            raise self._told(error) from error
        except (OSError, httpx2.HTTPError) as error:
            raise self._ended(error) from error
        except (ValueError, RuntimeError) as error:  # the SDK's word for results that break their schema
            raise WorldError(f"{self._what} answered what is no answer", value=str(error)[:200]) from error
        finally:
            call.cancel()

    def _ended(self, error: object) -> EvolventError:
        gone = EnvLost(f"the MCP server {self._what} is gone", value=str(error)[:200], hint=self._said_last())
        return self._why or gone

    def _told(self, error: MCPError) -> EvolventError:
        if error.code == INVALID_PARAMS:
            return InvalidAction(error.message[:2000])
        if error.code == REQUEST_TIMEOUT:
            return StepTimeout("no answer before the deadline", value=self._what)
        if error.code == CONNECTION_CLOSED:
            return self._ended(error)
        return WorldError(f"{self._what}: {error.message[:2000]}", value=error.code)

    def _lost(self, error: EvolventError, what: str) -> EvolventError:
        """The error with its cause told, and a child's last words."""
        leaf = _leaf(error.__cause__)
        if isinstance(leaf, EvolventError):
            return leaf
        why = f"{type(leaf).__name__}: {leaf}" if leaf is not None else str(error)
        lost = EnvLost(f"{self._what} {what}", value=why[:200], hint=self._said_last())
        lost.__cause__ = leaf
        return lost

    def _said_last(self) -> str | None:
        """The end of what a child wrote to its standard error."""
        if self._words is None:
            return None
        end = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, end - 4 * _TAIL))
        tail = self._words.read()[-_TAIL:].strip()
        return f"it said: {tail}" if tail else None

    async def _said(self) -> Said:
        client = self._live()
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        info = client.server_info
        name, version = (info.name, info.version) if info else ("mcp", "")
        return Said(name or "mcp", version or "0", client.instructions or "", tuple(tools))

    def _answer(self, result: CallToolResult) -> Answer:
        text = text_of("\n".join(map(_shown, result.content)))
        with boundary(WorldError, f"{self._what} answered with no JSON"):
            return Answer(text, plain(result.structured_content), result.is_error)


_SELF = Implementation(name="evolvent", version=__version__)


def _shown(block: object) -> str:
    """A block of content as text; what is none is named."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return f"[{getattr(block, 'type', 'content')} {getattr(block, 'mime_type', None) or ''}".strip() + "]"


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first error inside groups of errors, and inside what a boundary made of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Limited(httpx2.AsyncBaseTransport):
    """A transport whose answers may hold so many bytes each. Packed ones, whose size nobody knows, are refused."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, limit: int) -> None:
        self._inner, self._limit = inner, limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        packed = response.headers.get("content-encoding", "identity")
        if packed != "identity":
            await response.aclose()
            raise LimitExceeded("an answer that is packed, which was not asked for", value=packed)
        response.stream = _Counted(response.stream, self._limit)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    """A body that is refused beyond its limit, without being held."""

    def __init__(self, inner: Any, limit: int) -> None:
        self._inner, self._limit = inner, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                raise LimitExceeded("an answer that is too large", expected=f"at most {self._limit} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()

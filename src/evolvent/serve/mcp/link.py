"""One session with an MCP server, over HTTP or with a child process, held by the official SDK (extra `mcp`).

The SDK requires a session to be entered and left in one task: `McpSession` keeps one for it. Errors of the SDK (groups
of errors of its transports among them) become our errors; the error of a child that ends includes its last output.
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
from evolvent.serve.given import ClientTimeouts
from evolvent.serve.wire import replace_surrogates, to_json
from evolvent.trajectory import Json, JsonObject

__all__ = ["CallAnswer", "McpSession", "ServerDescription"]

_MAX_STDERR_CHARS = 800  # characters of a child's last words that an error tells
_CLOSE_TIMEOUT_S = 2.0  # how long a server over HTTP may take to hear that the session ends
_CAUSE_TIMEOUT_S = 0.5  # how long a session that broke may take to say why
_MAX_PAGES = 100  # of tools/list, so that a server without a last page ends
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A server's description of itself."""

    name: str
    version: str
    instructions: str
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The result of a call. failed: the tool reports a failure."""

    text: str
    structured: Json = None
    failed: bool = False


class McpSession:
    """A session. Its coroutines run on one event loop.

    Args:
        server: a URL of streamable HTTP, or the words of a command whose standard input and output speak MCP.
        headers: headers of every HTTP request (a token).
    """

    def __init__(self, server: str | Sequence[str], timeouts: ClientTimeouts, *, headers: Mapping[str, str]) -> None:
        self._server, self._patience, self._headers = server, timeouts, headers
        self._what = server if isinstance(server, str) else " ".join(server)
        self._stop = asyncio.Event()
        self._scope: anyio.CancelScope | None = None
        self._holder: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._words: IO[str] | None = None  # what a child writes to its standard error
        self._why: EvolventError | None = None  # the session ended by itself

    async def open(self) -> ServerDescription:
        """Starts the session and reads the server's description. Servers without the handshake (2026-07-28) are
        supported.

        Raises:
            EnvLost: the server cannot be started or reached, or is not an MCP server.
        """
        try:
            await self._start("legacy")
        except EnvLost as error:
            cause = _first_leaf(error.__cause__)
            if not isinstance(cause, MCPError) or cause.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise
            await self._start("auto")
        return await self._await_answer(self._describe_server())

    async def call(self, name: str, arguments: JsonObject, timeout_s: float) -> CallAnswer:
        """Calls a tool.

        Raises:
            InvalidAction: the server refuses the call itself (its name or arguments).
            StepTimeout: no answer in time; the state of the server is unknown.
            EnvLost: the server is gone.
            WorldError: an error, or an invalid answer.
        """
        client = self._require_client()
        return self._parse_answer(
            await self._await_answer(client.call_tool(name, dict(arguments), read_timeout_seconds=timeout_s))
        )

    async def close(self) -> None:
        """Ends the session; a child is ended by closing its input, then killed."""
        if self._client is None and self._scope is not None and not self._stop.is_set():
            self._scope.cancel()
        self._stop.set()
        self._client = None
        if self._holder is not None:
            await asyncio.wait({self._holder})

    async def _start(self, mode: str) -> None:
        self._stop, self._scope, self._why = asyncio.Event(), anyio.CancelScope(), None
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._run_session(mode, ready, self._scope), name="mcp-session")
        self._client = await asyncio.shield(ready)

    async def _run_session(self, mode: str, ready: asyncio.Future[Client], scope: anyio.CancelScope) -> None:
        """Runs the session until it is stopped. It is never canceled as a task, which would leave a child behind."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as self._words:
            try:
                with boundary(EnvLost, f"the session with {self._what} failed"), scope:
                    async with AsyncExitStack() as stack:
                        client = Client(
                            await self._open_transport(stack, self._words),
                            mode=mode,
                            cache=None,
                            client_info=_CLIENT_INFO,
                            read_timeout_seconds=self._patience.reset_s,
                        )
                        await stack.enter_async_context(client)
                        ready.set_result(client)
                        await self._stop.wait()
                        scope.deadline = anyio.current_time() + _CLOSE_TIMEOUT_S
            except EvolventError as error:
                self._why = self._explain_loss(error, "is gone" if ready.done() else "does not speak MCP")
                if not ready.done():
                    ready.set_exception(self._why)
            finally:
                self._words = None
                if not ready.cancel() and not ready.cancelled():
                    ready.exception()  # somebody may have stopped waiting for it

    async def _open_transport(self, stack: AsyncExitStack, error_log: IO[str]) -> Any:
        if not isinstance(self._server, str):
            command, *arguments = self._server
            return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=error_log)  # type: ignore[arg-type]
        limits = httpx2.Timeout(None, connect=self._patience.connect_s)
        transport = _LimitedTransport(httpx2.AsyncHTTPTransport(), self._patience.message_bytes)
        headers = {"accept-encoding": "identity", **self._headers}
        client = httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False, transport=transport)
        await stack.enter_async_context(client)
        return streamable_http_client(self._server, http_client=client)

    def _require_client(self) -> Client:
        if self._client is None:
            raise EnvLost("no session with the MCP server", value=self._what, hint="reset first")
        return self._client

    async def _await_answer(self, awaitable: Awaitable[T]) -> T:
        """Returns the value, unless the session ends meanwhile."""
        call, holder = asyncio.ensure_future(awaitable), self._holder
        try:
            await asyncio.wait({call, holder} if holder else {call}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise self._gone_error("the session ended")
            return call.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and holder is not None:
                await asyncio.wait({holder}, timeout=_CAUSE_TIMEOUT_S)
            raise self._translate_error(error) from error
        except (OSError, httpx2.HTTPError) as error:
            raise self._gone_error(error) from error
        except (ValueError, RuntimeError) as error:  # the SDK's word for results that break their schema
            raise WorldError(f"{self._what} sent an invalid answer", value=str(error)[:200]) from error
        finally:
            call.cancel()

    def _gone_error(self, error: object) -> EvolventError:
        gone = EnvLost(f"lost the MCP server {self._what}", value=str(error)[:200], hint=self._read_last_output())
        return self._why or gone

    def _translate_error(self, error: MCPError) -> EvolventError:
        if error.code == INVALID_PARAMS:
            return InvalidAction(error.message[:2000])
        if error.code == REQUEST_TIMEOUT:
            return StepTimeout(f"{self._what}: no answer before the deadline")
        if error.code == CONNECTION_CLOSED:
            return self._gone_error(error)
        return WorldError(f"{self._what}: {error.message[:2000]}", value=error.code)

    def _explain_loss(self, error: EvolventError, problem: str) -> EvolventError:
        """Returns the error with its cause and the last output of a child."""
        leaf = _first_leaf(error.__cause__)
        if isinstance(leaf, EvolventError):
            return leaf
        cause_text = f"{type(leaf).__name__}: {leaf}" if leaf is not None else str(error)
        explained = EnvLost(f"{self._what} {problem}", value=cause_text[:200], hint=self._read_last_output())
        explained.__cause__ = leaf
        return explained

    def _read_last_output(self) -> str | None:
        """Returns the end of a child's standard error."""
        if self._words is None:
            return None
        end = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, end - 4 * _MAX_STDERR_CHARS))
        tail = self._words.read()[-_MAX_STDERR_CHARS:].strip()
        return f"it said: {tail}" if tail else None

    async def _describe_server(self) -> ServerDescription:
        client = self._require_client()
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        info = client.server_info
        name, version = (info.name, info.version) if info else ("mcp", "")
        return ServerDescription(name or "mcp", version or "0", client.instructions or "", tuple(tools))

    def _parse_answer(self, result: CallToolResult) -> CallAnswer:
        text = replace_surrogates("\n".join(map(_format_block, result.content)))
        with boundary(WorldError, f"{self._what}: the answer is not JSON"):
            return CallAnswer(text, to_json(result.structured_content), result.is_error)


_CLIENT_INFO = Implementation(name="evolvent", version=__version__)


def _format_block(block: object) -> str:
    """Returns a block of content as text; other content is named by its type."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return f"[{getattr(block, 'type', 'content')} {getattr(block, 'mime_type', None) or ''}".strip() + "]"


def _first_leaf(error: BaseException | None) -> BaseException | None:
    """Returns the first error inside groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _LimitedTransport(httpx2.AsyncBaseTransport):
    """A transport that limits the bytes of each answer. Compressed answers, whose size is unknown, are refused."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, limit: int) -> None:
        self._inner, self._limit = inner, limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        packed = response.headers.get("content-encoding", "identity")
        if packed != "identity":
            await response.aclose()
            raise LimitExceeded("the answer is compressed, but no compression was requested", value=packed)
        response.stream = _LimitedStream(response.stream, self._limit)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    """A body that is refused beyond its limit, without being buffered."""

    def __init__(self, inner: Any, limit: int) -> None:
        self._inner, self._limit = inner, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                raise LimitExceeded("the answer is too large", expected=f"at most {self._limit} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()

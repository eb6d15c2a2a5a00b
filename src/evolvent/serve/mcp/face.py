"""Worlds as MCP servers: each world at `/mcp/<world>` over streamable HTTP, with the official SDK (extra `mcp`).

`/mcp/<world>/mcp` is the same, for clients that take only addresses that end in `/mcp` (the MCP inspector).

The convention: one MCP session is one client session, one episode at a time.

- `evolvent_reset(task?, index?, seed?)` starts (or restarts) an episode and answers with the first observation.
- The tools of the world are those of its tasks; a world without tools has `act(action)`. A call is a step. Its text is
  the next observation; `isError` marks a call that the world could not understand.
- `structuredContent` of a call is `{observation, reward, terminated, truncated, done, step, info}`: the call that ends
  the episode is marked. A call without an episode answers with `isError` and `{kind, message}`, and takes no step.
- Protocol versions from 2026-07-28 on have no sessions. There `evolvent_reset` answers with an `episode`, and every
  tool has one more argument of this name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.routing import BaseRoute, Route

from evolvent.errors import MissingExtra
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost

__all__ = ["McpDialect"]


class McpDialect:
    """Serves worlds to MCP clients.

    Args:
        worlds: names of the served worlds; None: all of the host.
        idle_s: seconds without a request after which an MCP session ends. Its episode ends with the lease of the host,
            which may be sooner; `evolvent_reset` then starts another.

    Raises:
        MissingExtra: the SDK is not installed.
    """

    name = "mcp"

    def __init__(self, worlds: Sequence[str] | None = None, *, idle_s: float = 1800.0) -> None:
        try:
            from evolvent.serve.mcp.mount import McpMount
        except ImportError as error:
            raise MissingExtra("mcp", "serving worlds over MCP") from error
        self._worlds, self._idle_s, self._mounted = worlds, idle_s, McpMount
        self._mounts: list[AbstractAsyncContextManager[object]] = []

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns one endpoint a world; they answer within the lifespan."""
        names = host.worlds if self._worlds is None else self._worlds
        mounts = [(name, self._mounted(host, task_index, name=name, idle_s=self._idle_s)) for name in names]
        self._mounts = [mount for _, mount in mounts]
        return [Route(f"/mcp/{name}{end}", mount) for name, mount in mounts for end in ("", "/mcp")]

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Runs the mounts; sessions live as long as this context."""
        async with AsyncExitStack() as stack:
            for mount in self._mounts:
                await stack.enter_async_context(mount)
            yield

"""Worlds as MCP servers: each world at `/mcp/<world>` over streamable HTTP, with the official SDK (extra `mcp`).

The convention: one MCP session is one client's place, one episode at a time.

- `evolvent_reset(task?, index?, seed?)` begins an episode (again) and answers with the first observation.
- The tools of the world are those of its tasks; a world that has none has `act(action)`. A call is a step. Its text is
  what is seen next; `isError` says that the call was none that the world could make sense of.
- `structuredContent` of a call is `{observation, reward, terminated, truncated, done, step, info}`: the call that ends
  the episode says so. A call without an episode answers with `isError` and `{kind, message}`, and takes no step.
- Protocol versions from 2026-07-28 on have no sessions. There `evolvent_reset` answers with an `episode`, and every
  tool has one more argument of this name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.routing import BaseRoute, Route

from evolvent.errors import MissingExtra
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host

__all__ = ["McpFace"]


class McpFace:
    """Serves worlds to MCP clients.

    Args:
        worlds: names of those served; None: all of the host.
        idle_s: after how many seconds without a request a session of MCP ends. Its episode ends with the lease of the
            host, which may be sooner; `evolvent_reset` then begins another.

    Raises:
        MissingExtra: the SDK is not installed.
    """

    name = "mcp"

    def __init__(self, worlds: Sequence[str] | None = None, *, idle_s: float = 1800.0) -> None:
        try:
            from evolvent.serve.mcp.mount import Mounted
        except ImportError as error:
            raise MissingExtra("mcp", "serving worlds over MCP") from error
        self._worlds, self._idle_s, self._mounted = worlds, idle_s, Mounted
        self._mounts: list[AbstractAsyncContextManager[object]] = []

    def routes(self, host: Host, catalogue: Catalogue) -> Sequence[BaseRoute]:
        """One endpoint a world; they answer within the lifespan."""
        names = host.worlds if self._worlds is None else self._worlds
        mounts = [(name, self._mounted(host, catalogue, name=name, idle_s=self._idle_s)) for name in names]
        self._mounts = [mount for _, mount in mounts]
        return [Route(f"/mcp/{name}", mount) for name, mount in mounts]

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The time in which sessions live."""
        async with AsyncExitStack() as stack:
            for mount in self._mounts:
                await stack.enter_async_context(mount)
            yield

"""One world as an MCP server (see `mcp_face.py` for the convention). Importing this needs the extra `mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from types import TracebackType
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from mcp.types import Tool as Listed
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from evolvent.errors import EvolventError, InvalidAction, SessionGone
from evolvent.messages import Call, Tool
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host, Stepped
from evolvent.serve.seats import Choice, Seat, Seats
from evolvent.serve.toolcalls import named
from evolvent.serve.wire import error_row, plain, step_row, text_of
from evolvent.trajectory import Json

__all__ = ["EPISODE", "RESET", "Mounted"]

RESET = "evolvent_reset"
EPISODE = "episode"
_SESSION = "mcp-session-id"
_MOST_ARGUMENTS = 16  # each wrong one is told of
_HANDLE: Mapping[str, Json] = {"type": "string", "description": f"Which episode, as {RESET} told."}
_HOW = f"Call {RESET} first: it begins an episode and answers with the first observation."


class _Reset(BaseModel):
    """The arguments of `evolvent_reset`."""

    model_config = ConfigDict(extra="forbid", title="Reset")
    task: str | None = Field(None, description="The id of the task to play.", max_length=255)
    index: int | None = Field(None, ge=0, description="The number of the task to play.")
    seed: int | None = Field(None, ge=0, description="Picks one of the tasks for training.")


class Mounted:
    """The ASGI app of one world; an asynchronous context manager around the time in which it answers.

    Args:
        name: under which the world is served.
        idle_s: after how long an unused session is forgotten.
    """

    def __init__(self, host: Host, catalogue: Catalogue, *, name: str, idle_s: float) -> None:
        self._seats = Seats(host, catalogue, name, idle_s=idle_s)
        self._name, self._world, self._idle_s = name, host.worlds[name], idle_s
        self._manager: StreamableHTTPSessionManager | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Mounted:
        sessions = max(64, 2 * self._seats.host.status().capacity)
        manager = StreamableHTTPSessionManager(
            app=self._server(), json_response=True, session_idle_timeout=self._idle_s, max_sessions=sessions
        )
        await self._stack.enter_async_context(manager.run())
        self._manager = manager
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager = None
        await self._seats.clear()
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "DELETE"):  # nothing but answers is ever sent: no stream to listen to
            refused = PlainTextResponse("Method Not Allowed", 405, {"allow": "POST, DELETE"})
            return await refused(scope, receive, send)
        if self._manager is None:
            raise EvolventError("the MCP endpoint is not running", value=self._name, hint="run the app's lifespan")
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            ended = dict(scope["headers"]).get(_SESSION.encode())
            await self._seats.drop(ended.decode("latin-1") if ended else "")
        return None

    def _server(self) -> Server[Any]:
        said = f"{self._world.instructions}\n\n{_HOW}".strip()
        return Server(
            f"evolvent/{self._name}",
            version=self._world.version,
            instructions=said,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        key = _session(context)
        seat = (self._seats.get(key) if key else None) or self._seats.new()
        about = "Begin an episode: of the task that is named, else of any for training."
        reset = Tool(RESET, about, _Reset.model_json_schema())
        tools = (reset, *await seat.tools())
        return ListToolsResult(tools=[_listed(tool, handle=key is None) for tool in tools])

    async def _call(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        key, arguments = _session(context), dict(params.arguments or {})
        if key is None:
            handle = arguments.pop(EPISODE, None)
            key = handle if isinstance(handle, str) else ""
        try:
            if params.name == RESET:
                choice = _wanted(arguments)
                async with self._seats.turn(key) if key else nullcontext():
                    seat = self._seats.get(key) or self._seats.new()
                    return await self._begin(seat, choice, session=_session(context))
            seat = self._seats.get(key) or self._seats.new()
            named(await seat.tools(), params.name)
        except InvalidAction as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except EvolventError as error:
            return _failed(error)
        try:
            if seat.fresh:
                raise SessionGone("a call without an episode", value=params.name, expected=f"{RESET} first")
            return _stepped(await seat.call(Call(params.name, arguments)))
        except EvolventError as error:
            return _failed(error)

    async def _begin(self, seat: Seat, choice: Choice, *, session: str | None) -> CallToolResult:
        """Begin an episode. A client without a session is told the name of its episode."""
        before = seat.session
        seen = await seat.begin(choice)
        key = session or str(seat.session)
        if session is None and before != seat.session:
            self._seats.forget(str(before))
        await self._seats.keep(key, seat)
        task = None if seat.task is None else seat.task.id
        row: dict[str, Json] = {"observation": seen.observation, "info": plain(seen.info), "task": task}
        if session is not None:
            return _result(seen.observation, row)
        return _result(f"{EPISODE}: {key}\n{seen.observation}", {**row, EPISODE: key})


def _session(context: ServerRequestContext[Any, Any]) -> str | None:
    """The session of MCP that a request is of; None in versions that have none, nor check the header."""
    request = context.request
    if request is None or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return None
    found = request.headers.get(_SESSION)
    return found if isinstance(found, str) else None


def _wanted(arguments: Mapping[str, Any]) -> Choice:
    """The choice of a task; InvalidAction for arguments that are none."""
    if len(arguments) > _MOST_ARGUMENTS:
        raise InvalidAction(f"too many arguments of {RESET}", value=len(arguments), expected=_MOST_ARGUMENTS)
    try:
        wanted = _Reset.model_validate(arguments)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise InvalidAction(f"wrong arguments of {RESET}", value=wrong) from error
    return Choice(wanted.task, wanted.index, wanted.seed)


def _listed(tool: Tool, *, handle: bool) -> Listed:
    """A tool as MCP lists it. handle: with an argument that names the episode."""
    schema: dict[str, Any] = {"type": "object", **tool.parameters}
    if handle:
        schema["properties"] = {**schema.get("properties", {}), EPISODE: _HANDLE}
        if tool.name != RESET:
            schema["required"] = [*schema.get("required", ()), EPISODE]
    return Listed(name=tool.name, description=tool.description, input_schema=schema)


def _result(text: str, row: dict[str, Json], *, failed: bool = False) -> CallToolResult:
    told = [TextContent(type="text", text=text_of(text))]
    return CallToolResult(content=list(told), structured_content=_utf8(row), is_error=failed)


def _utf8(value: Json) -> Json:
    """The value with texts that can be written as UTF-8."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, dict):
        return {text_of(key): _utf8(part) for key, part in value.items()}
    return [_utf8(part) for part in value] if isinstance(value, list) else value


def _stepped(stepped: Stepped) -> CallToolResult:
    row: dict[str, Json] = {**step_row(stepped), "done": stepped.done}
    return _result(stepped.observation, row, failed=bool(stepped.info.get("invalid")))


def _failed(error: EvolventError) -> CallToolResult:
    """A call that took no step, or lost the episode: the model reads why, a program reads the kind."""
    row = error_row(error)
    return _result(f"{row['kind']}: {error}", row, failed=True)

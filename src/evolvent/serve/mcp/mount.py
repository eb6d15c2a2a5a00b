"""One world as an MCP server (see `face.py` for the convention). Importing this needs the extra `mcp`."""

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
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost, StepResult
from evolvent.serve.seats import ClientSession, ClientSessions, TaskChoice
from evolvent.serve.toolcalls import find_tool
from evolvent.serve.wire import encode_error, encode_step, replace_surrogates, to_json
from evolvent.trajectory import Json

__all__ = ["EPISODE_KEY", "RESET_TOOL", "McpMount"]

RESET_TOOL = "evolvent_reset"
EPISODE_KEY = "episode"
_SESSION_HEADER = "mcp-session-id"
_MAX_ARGUMENTS = 16  # each wrong one is told of
_EPISODE_SCHEMA: Mapping[str, Json] = {"type": "string", "description": f"Which episode, as {RESET_TOOL} told."}
_RESET_HINT = f"Call {RESET_TOOL} first: it begins an episode and answers with the first observation."


class _ResetArguments(BaseModel):
    """The arguments of `evolvent_reset`."""

    model_config = ConfigDict(extra="forbid", title="Reset")
    task: str | None = Field(None, description="The id of the task to play.", max_length=255)
    index: int | None = Field(None, ge=0, description="The number of the task to play.")
    seed: int | None = Field(None, ge=0, description="Picks one of the tasks for training.")


class McpMount:
    """The ASGI app of one world; an asynchronous context manager around the time in which it answers.

    Args:
        name: name under which the world is served.
        idle_s: seconds after which an unused session is forgotten.
    """

    def __init__(self, host: SessionHost, task_index: TaskIndex, *, name: str, idle_s: float) -> None:
        self._seats = ClientSessions(host, task_index, name, idle_s=idle_s)
        self._name, self._world, self._idle_s = name, host.worlds[name], idle_s
        self._manager: StreamableHTTPSessionManager | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> McpMount:
        sessions = max(64, 2 * self._seats.host.status().capacity)
        manager = StreamableHTTPSessionManager(
            app=self._build_server(), json_response=True, session_idle_timeout=self._idle_s, max_sessions=sessions
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
            ended = dict(scope["headers"]).get(_SESSION_HEADER.encode())
            await self._seats.drop(ended.decode("latin-1") if ended else "")
        return None

    def _build_server(self) -> Server[Any]:
        instructions_text = f"{self._world.instructions}\n\n{_RESET_HINT}".strip()
        return Server(
            f"evolvent/{self._name}",
            version=self._world.version,
            instructions=instructions_text,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def _list_tools(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        key = _get_session(context)
        client_session = (self._seats.get(key) if key else None) or self._seats.create()
        description = "Begin an episode: of the task that is named, else of any for training."
        reset = Tool(RESET_TOOL, description, _ResetArguments.model_json_schema())
        tools = (reset, *await client_session.tools())
        return ListToolsResult(tools=[_describe_tool(tool, with_episode=key is None) for tool in tools])

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        key, arguments = _get_session(context), dict(params.arguments or {})
        if key is None:
            handle = arguments.pop(EPISODE_KEY, None)
            key = handle if isinstance(handle, str) else ""
        try:
            if params.name == RESET_TOOL:
                choice = _parse_choice(arguments)
                async with self._seats.lock_for(key) if key else nullcontext():
                    client_session = self._seats.get(key) or self._seats.create()
                    return await self._begin_episode(client_session, choice, session=_get_session(context))
            client_session = self._seats.get(key) or self._seats.create()
            find_tool(await client_session.tools(), params.name)
        except InvalidAction as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except EvolventError as error:
            return _error_result(error)
        try:
            if client_session.fresh:
                raise SessionGone(
                    "a tool was called before the episode began",
                    value=params.name,
                    expected=f"a call of {RESET_TOOL} first",
                )
            return _step_result(await client_session.call(Call(params.name, arguments)))
        except EvolventError as error:
            return _error_result(error)

    async def _begin_episode(
        self, client_session: ClientSession, choice: TaskChoice, *, session: str | None
    ) -> CallToolResult:
        """Starts an episode. A client without a session gets the name of its episode."""
        old_session = client_session.session
        reset_result = await client_session.begin(choice)
        key = session or str(client_session.session)
        if session is None and old_session != client_session.session:
            self._seats.forget(str(old_session))
        await self._seats.keep(key, client_session)
        task = None if client_session.task is None else client_session.task.id
        row: dict[str, Json] = {
            "observation": reset_result.observation,
            "info": to_json(reset_result.info),
            "task": task,
        }
        if session is not None:
            return _make_result(reset_result.observation, row)
        return _make_result(f"{EPISODE_KEY}: {key}\n{reset_result.observation}", {**row, EPISODE_KEY: key})


def _get_session(context: ServerRequestContext[Any, Any]) -> str | None:
    """Returns the MCP session of a request; None in versions without sessions, which do not check the header."""
    request = context.request
    if request is None or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return None
    session_id = request.headers.get(_SESSION_HEADER)
    return session_id if isinstance(session_id, str) else None


def _parse_choice(arguments: Mapping[str, Any]) -> TaskChoice:
    """Parses the choice of a task; raises InvalidAction for invalid arguments."""
    if len(arguments) > _MAX_ARGUMENTS:
        raise InvalidAction(f"too many arguments of {RESET_TOOL}", value=len(arguments), expected=_MAX_ARGUMENTS)
    try:
        reset_arguments = _ResetArguments.model_validate(arguments)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors())
        raise InvalidAction(f"wrong arguments of {RESET_TOOL}", value=problems) from error
    return TaskChoice(reset_arguments.task, reset_arguments.index, reset_arguments.seed)


def _describe_tool(tool: Tool, *, with_episode: bool) -> Listed:
    """Returns a tool as MCP lists it. `with_episode`: with an argument that names the episode."""
    schema: dict[str, Any] = {"type": "object", **tool.parameters}
    if with_episode:
        schema["properties"] = {**schema.get("properties", {}), EPISODE_KEY: _EPISODE_SCHEMA}
        if tool.name != RESET_TOOL:
            schema["required"] = [*schema.get("required", ()), EPISODE_KEY]
    return Listed(name=tool.name, description=tool.description, input_schema=schema)


def _make_result(text: str, row: dict[str, Json], *, failed: bool = False) -> CallToolResult:
    content = [TextContent(type="text", text=replace_surrogates(text))]
    return CallToolResult(content=list(content), structured_content=_replace_surrogates(row), is_error=failed)


def _replace_surrogates(value: Json) -> Json:
    """Returns the value with texts that can be written as UTF-8."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(key): _replace_surrogates(part) for key, part in value.items()}
    return [_replace_surrogates(part) for part in value] if isinstance(value, list) else value


def _step_result(result: StepResult) -> CallToolResult:
    row: dict[str, Json] = {**encode_step(result), "done": result.is_done}
    return _make_result(result.observation, row, failed=bool(result.info.get("invalid")))


def _error_result(error: EvolventError) -> CallToolResult:
    """Returns the result of a failed call: the model reads the message, a program reads the kind."""
    row = encode_error(error)
    return _make_result(f"{row['kind']}: {error}", row, failed=True)

"""OpenEnv's server: each world at `/openenv/<world>`, over WebSocket (sessions) and HTTP (one environment a
request).

`openenv-core` clients connect unchanged: `EnvClient(base_url=".../openenv/crafting")`. A text world takes the action
`{message}` and answers `{text, admissible?, metadata}`; the tools of a tool world are called by `{type: "call_tool",
tool_name, arguments}`, or by JSON-RPC. A reset takes `task` or `index` for a certain task; `seed` picks one
of train, `seed % n`; without any of them it is another one each time.

    GET  /metadata /health /schema /state /openapi.json
    POST /reset {seed?, episode_id?, task?, index?}          a first observation, of an episode that is then closed
    POST /step  {action, seed?, task?, index?, ...}          the first step of an episode (of the first task)
    POST /mcp, WebSocket /mcp                                JSON-RPC
    WebSocket /ws                                            one environment a connection

OpenEnv's WebSockets: `/ws` (reset, step, state, close, mcp) and `/mcp` (bare JSON-RPC). One session a connection.

Messages of a connection are answered one after another, in their order. Problems of a message, an action or an episode
are answered by an error that keeps the socket open; a connection that gets no session is told the reason and closed.

JSON-RPC 2.0 inside OpenEnv (`POST /mcp`, the WebSocket `/mcp`, and `{type: mcp}`): calls of an episode's tools.

`tools/list` and `tools/call` as in MCP, without its handshake. Over HTTP `openenv/session/create` opens a session (its
`params` may choose the task as a reset does), which every call names by `session_id`; a call without one has its own
environment that ends with it. A call is a step: its reward is in `structuredContent`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from evolvent.errors import AtCapacity, ConfigError, EvolventError, InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.openenv.wire import (
    FEATURE_KEY,
    CallTool,
    Envelope,
    Observation,
    RefusedMessage,
    Reset,
    Say,
    State,
    StepBody,
    call_data,
    call_result,
    parse_action,
    parse_envelope,
    reset_data,
    step_data,
    tool_rows,
    tools_data,
    validate,
)
from evolvent.serve.seats import ClientSession, ClientSessions, TaskChoice
from evolvent.serve.toolcalls import HasTools
from evolvent.serve.wire import decode_json, encode_error, encode_json, http_status
from evolvent.trajectory import Json
from evolvent.web import is_too_deep
from evolvent.worlds.base import SPLITS

__all__ = [
    "MAX_MESSAGE_CHARS",
    "MAX_MESSAGE_DEPTH",
    "PARSE_ERROR",
    "SERVER_ERROR",
    "OpenEnvDialect",
    "OpenEnvSockets",
    "RpcHandler",
    "error_response",
]


PARSE_ERROR = -32700
SERVER_ERROR = -32000
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
_KEYS = {"jsonrpc", "method", "params", "id"}


class _RpcError(Exception):
    """Signals a request that is answered by an error."""

    def __init__(self, code: int, message: str, data: Json = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(message)


def error_response(code: int, message: str, *, request: Json = None, data: Json = None) -> dict[str, Json]:
    """Returns an error response."""
    return {"jsonrpc": "2.0", "id": request, "error": {"code": code, "message": message, "data": data}}


@dataclass(frozen=True, slots=True)
class _RpcRequest:
    method: str
    params: Mapping[str, Any]
    id: Json


def _parse_request(value: Json) -> _RpcRequest:
    """Parses the request in a JSON value; raises _RpcError if it is invalid."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0" or not isinstance(value.get("method"), str):
        raise _RpcError(INVALID_REQUEST, "Invalid request: expected jsonrpc '2.0' and a method")
    identity = value.get("id")
    if set(value) - _KEYS or isinstance(identity, bool) or not isinstance(identity, (str, int, type(None))):
        raise _RpcError(INVALID_REQUEST, "Invalid request: unknown keys, or an id that is no text or integer")
    params = value.get("params", {})
    if not isinstance(params, dict):
        raise _RpcError(INVALID_PARAMS, "Params must be an object")
    return _RpcRequest(str(value["method"]), params, identity)


class RpcHandler:
    """Answers the requests of one world.

    Args:
        sessions: client sessions opened by `openenv/session/create`, by session id.
    """

    def __init__(self, sessions: ClientSessions) -> None:
        self._seats = sessions

    async def answer(self, value: Json, client_session: ClientSession | None = None) -> dict[str, Json]:
        """Returns the response to a request; never raises.

        Args:
            client_session: session of the WebSocket that the request came on.
        """
        identity = value.get("id") if isinstance(value, dict) else None
        if isinstance(identity, bool) or not isinstance(identity, (str, int)):
            identity = None
        try:
            request = _parse_request(value)
            result = await self._run_request(request, client_session)
        except _RpcError as fault:
            return error_response(fault.code, fault.message, request=identity, data=fault.data)
        except RefusedMessage as refused:
            return error_response(INVALID_PARAMS, refused.message, request=identity, data=refused.errors)
        except (InvalidAction, ConfigError) as error:
            return error_response(INVALID_PARAMS, str(error), request=identity, data=encode_error(error))
        except EvolventError as error:
            return error_response(SERVER_ERROR, str(error), request=identity, data=self._error_data(error))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    def _error_data(self, error: EvolventError) -> Json:
        row: dict[str, Json] = dict(encode_error(error))
        if isinstance(error, AtCapacity):
            status = self._seats.host.status()
            row |= {"active_sessions": sum(status.sessions.values()), "max_sessions": status.capacity}
        return row

    async def _run_request(self, request: _RpcRequest, client_session: ClientSession | None) -> Json:
        if request.method == "openenv/session/create":
            return await self._create_session(request.params, client_session)
        if request.method == "openenv/session/close":
            return await self._close_session(request.params, client_session)
        if request.method == "tools/list":
            return {
                "tools": tool_rows(
                    await self._find_session(request.params, client_session).tools(), "inputSchema", "input_schema"
                )
            }
        if request.method == "tools/call":
            return await self._call_tool(request.params, client_session)
        raise _RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")

    async def _create_session(self, params: Mapping[str, Any], client_session: ClientSession | None) -> Json:
        if client_session is not None:
            return {"session_id": client_session.session}
        choice = validate(Reset, params).choice
        client_session = self._seats.create()
        try:
            reset_result = await client_session.begin(choice)
        except EvolventError:
            await client_session.close()
            raise
        await self._seats.keep(str(client_session.session), client_session)
        task = None if client_session.task is None else client_session.task.id
        return {"session_id": client_session.session, "observation": reset_result.observation, "task": task}

    async def _close_session(self, params: Mapping[str, Any], client_session: ClientSession | None) -> Json:
        session = params.get("session_id")
        if not isinstance(session, str) or not session:
            raise _RpcError(INVALID_PARAMS, "Invalid params - 'session_id' is required")
        if client_session is not None and session == client_session.session:
            raise _RpcError(INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method")
        if not await self._seats.drop(session):
            raise _RpcError(INVALID_PARAMS, f"Unknown session_id: {session[:100]}")
        return {"session_id": session, "closed": True}

    def _find_session(self, params: Mapping[str, Any], client_session: ClientSession | None) -> ClientSession:
        """Returns the client session of a call; if no session is named, a new one, to be closed."""
        session = params.get("session_id")
        if client_session is not None:
            return client_session
        if session is None:
            return self._seats.create()
        named_session = self._seats.get(str(session))
        if named_session is None:
            raise _RpcError(INVALID_PARAMS, f"Unknown session_id: {str(session)[:100]}")
        return named_session

    async def _call_tool(self, params: Mapping[str, Any], client_session: ClientSession | None) -> Json:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not name:
            raise _RpcError(INVALID_PARAMS, "Missing 'name' in params")
        if not isinstance(arguments, dict):
            raise _RpcError(INVALID_PARAMS, "'arguments' must be an object")
        used_session = self._find_session(params, client_session)
        is_temporary = client_session is None and params.get("session_id") is None
        try:
            if used_session.fresh:  # a socket that was not reset, or an environment for this call alone
                await used_session.begin(TaskChoice(index=0) if is_temporary else TaskChoice())
            return call_result(await used_session.call(Call(name, arguments)))
        finally:
            if is_temporary:
                await used_session.close()


MAX_MESSAGE_CHARS = 1 << 20  # characters of one message
MAX_MESSAGE_DEPTH = 64  # how deeply it may be nested


class _SocketSession:
    """The state of one connection of `/ws`: its client session, and the name of its episode."""

    def __init__(self, client_session: ClientSession) -> None:
        self.seat, self.episode = client_session, secrets.token_hex(16)

    @property
    def task(self) -> str:
        return self.seat.task.id if self.seat.task else ""

    async def reset(self, message: Envelope) -> Json:
        parameters = validate(Reset, message.data)
        reset_result = await self.seat.begin(parameters.choice)
        self.episode = parameters.episode_id or secrets.token_hex(16)
        return reset_data(reset_result, self.task)

    async def step(self, message: Envelope) -> Json:
        action = parse_action(message.data)
        if action is None:
            return tools_data(await self.seat.tools())
        task = self.task
        if not isinstance(action, Call):
            return step_data(await self.seat.step(action.message), task)
        try:
            return call_data(action.name, await self.seat.call(action), task)
        except InvalidAction as error:
            return call_data(action.name, str(error), task)

    def state(self) -> Json:
        client_session = self.seat
        return {
            "episode_id": None if client_session.fresh else self.episode,
            "step_count": client_session.steps,
            "world": client_session.name,
            "task": self.task or None,
        }


class OpenEnvSockets:
    """The two WebSocket endpoints of one world."""

    def __init__(self, host: SessionHost, task_index: TaskIndex, *, name: str, rpc: RpcHandler) -> None:
        self._host, self._catalogue, self._name, self._rpc = host, task_index, name, rpc

    async def serve_messages(self, socket: WebSocket) -> None:
        """Serves `/ws` until the client closes it or leaves."""
        await socket.accept()
        client_session = ClientSession(self._host, self._catalogue, self._name)
        try:
            await client_session.open()
        except EvolventError as error:
            await _send_json(socket, {"type": "error", "data": self._closing_data(error)})
            await _close_socket(socket)
            return
        try:
            await self._serve_session(socket, _SocketSession(client_session))
        finally:
            await client_session.close()
            await _close_socket(socket)

    async def _serve_session(self, socket: WebSocket, socket_session: _SocketSession) -> None:
        async with aclosing(_receive_texts(socket)) as texts:
            async for text in texts:
                answer = await self._answer_message(text, socket_session)
                if answer is None or not await _send_json(socket, answer):
                    return

    async def _answer_message(self, text: str, socket_session: _SocketSession) -> dict[str, Json] | None:
        """Returns the answer to a message; None: the client closes."""
        echoed: dict[str, Json] = {}
        try:
            value = _parse_text(text)
            if isinstance(value, dict) and value.get("request_id") is not None:
                echoed = {"request_id": value["request_id"]}
            message = parse_envelope(value)
            if message.type == "close":
                return None
            return {**await self._run_message(message, socket_session), **echoed}
        except RefusedMessage as refused:
            return {"type": "error", "data": refused.data, **echoed}
        except InvalidAction as error:
            problem: Json = {"type": "value_error", "loc": ["message"], "msg": str(error)}
            refusal = RefusedMessage("VALIDATION_ERROR", "Invalid message", [problem])
            return {"type": "error", "data": refusal.data, **echoed}
        except EvolventError as error:
            row = {"message": str(error), "code": "EXECUTION_ERROR", "kind": encode_error(error)["kind"]}
            return {"type": "error", "data": row, **echoed}

    async def _run_message(self, message: Envelope, socket_session: _SocketSession) -> dict[str, Json]:
        if message.type == "reset":
            return {"type": "observation", "data": await socket_session.reset(message)}
        if message.type == "step":
            return {"type": "observation", "data": await socket_session.step(message)}
        if message.type == "state":
            return {"type": "state", "data": socket_session.state()}
        return {"type": "mcp", "data": await self._rpc.answer(dict(message.data), socket_session.seat)}

    async def serve_requests(self, socket: WebSocket) -> None:
        """Serves `/mcp`: JSON-RPC without an envelope."""
        await socket.accept()
        client_session = ClientSession(self._host, self._catalogue, self._name)
        try:
            await client_session.open()
        except EvolventError as error:
            error_data = self._closing_data(error)
            await _send_json(socket, error_response(SERVER_ERROR, str(error_data.pop("message")), data=error_data))
            await _close_socket(socket)
            return
        try:
            async with aclosing(_receive_texts(socket)) as texts:
                async for text in texts:
                    if not await _send_json(socket, await self._answer_request(text, client_session)):
                        return
        finally:
            await client_session.close()
            await _close_socket(socket)

    async def _answer_request(self, text: str, client_session: ClientSession) -> dict[str, Json]:
        try:
            value = _parse_text(text)
        except RefusedMessage as refused:
            return error_response(PARSE_ERROR, refused.message)
        return await self._rpc.answer(value, client_session)

    def _closing_data(self, error: EvolventError) -> dict[str, Json]:
        """Returns the data of the error that closes a connection without a session."""
        error_data: dict[str, Json] = {"message": str(error)}
        if isinstance(error, AtCapacity):
            status = self._host.status()
            return {
                **error_data,
                "code": "CAPACITY_REACHED",
                "active_sessions": sum(status.sessions.values()),
                "max_sessions": status.capacity,
            }
        return {**error_data, "code": "FACTORY_ERROR", "factory_name": self._name}


def _parse_text(text: str) -> Json:
    if len(text) > MAX_MESSAGE_CHARS:
        raise RefusedMessage("INVALID_JSON", f"Invalid JSON: {len(text)} characters, at most {MAX_MESSAGE_CHARS}")
    if is_too_deep(text.encode("utf-8", "replace"), MAX_MESSAGE_DEPTH):
        raise RefusedMessage("INVALID_JSON", f"Invalid JSON: nested more than {MAX_MESSAGE_DEPTH} deep")
    try:
        return decode_json(text)
    except SampleInvalid as error:
        raise RefusedMessage("INVALID_JSON", f"Invalid JSON: {error.what}") from error


async def _receive_texts(socket: WebSocket) -> AsyncGenerator[str, None]:
    """Yields the messages of a client until it leaves; bytes are decoded as UTF-8."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        yield text if text is not None else (message.get("bytes") or b"").decode("utf-8", "replace")


async def _send_json(socket: WebSocket, value: dict[str, Json]) -> bool:
    """Sends a value and returns whether the client was still there."""
    try:
        await socket.send_text(encode_json(value).decode("ascii"))
    except (WebSocketDisconnect, OSError):
        return False
    return True


async def _close_socket(socket: WebSocket) -> None:
    """Closes the socket, unless the client did."""
    if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
        try:
            await socket.close()
        except (WebSocketDisconnect, OSError, RuntimeError):
            return


Handler = Callable[[Request], Awaitable[Response]]
_METHOD_BY_PATH = {
    "/reset": "post",
    "/step": "post",
    "/state": "get",
    "/metadata": "get",
    "/health": "get",
    "/schema": "get",
    "/mcp": "post",
}


class OpenEnvDialect:
    """Serves worlds to OpenEnv clients.

    Args:
        worlds: names of the served worlds; None: all of the host.
    """

    name = "openenv"

    def __init__(self, worlds: Sequence[str] | None = None) -> None:
        self._worlds = worlds

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns one mount a world."""
        names = host.worlds if self._worlds is None else self._worlds
        return [Mount(f"/openenv/{name}", routes=_OpenEnvMount(host, task_index, name).routes()) for name in names]


class _OpenEnvMount:
    """The endpoints of one world."""

    def __init__(self, host: SessionHost, task_index: TaskIndex, name: str) -> None:
        self._host, self._catalogue, self._name, self._world = host, task_index, name, host.worlds[name]
        self._rpc = RpcHandler(ClientSessions(host, task_index, name))
        self._socket = OpenEnvSockets(host, task_index, name=name, rpc=self._rpc)

    def routes(self) -> list[BaseRoute]:
        posts: dict[str, Handler] = {"/reset": self._post_reset, "/step": self._post_step, "/mcp": self._post_mcp}
        gets: dict[str, Handler] = {
            "/metadata": self._get_metadata,
            "/health": self._get_health,
            "/schema": self._get_schema,
            "/state": self._get_state,
            "/openapi.json": self._get_openapi,
        }
        return [
            *(Route(path, _with_error_answers(handler), methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, _with_error_answers(handler), methods=["GET"]) for path, handler in gets.items()),
            WebSocketRoute("/ws", self._socket.serve_messages),
            WebSocketRoute("/mcp", self._socket.serve_requests),
        ]

    def _create_session(self) -> ClientSession:
        return ClientSession(self._host, self._catalogue, self._name)

    async def _post_reset(self, request: Request) -> Response:
        choice = validate(Reset, await _read_body(request)).choice
        client_session = self._create_session()
        try:
            reset_result = await client_session.begin(choice)
            return _json_response(reset_data(reset_result, client_session.task.id if client_session.task else ""))
        finally:
            await client_session.close()

    async def _post_step(self, request: Request) -> Response:
        body = validate(StepBody, await _read_body(request))
        action = parse_action(body.action)
        client_session = self._create_session()
        try:
            if action is None:
                return _json_response(tools_data(await client_session.tools()))
            await client_session.begin(body.choice)
            task = client_session.task.id if client_session.task else ""
            if isinstance(action, Call):
                return _json_response(await _call_tool(client_session, action, task))
            return _json_response(step_data(await client_session.step(action.message), task))
        finally:
            await client_session.close()

    async def _post_mcp(self, request: Request) -> Response:
        try:
            value = decode_json(await request.body())
        except SampleInvalid as error:
            return _json_response(error_response(PARSE_ERROR, f"Parse error: {error.what}"))
        return _json_response(await self._rpc.answer(value))

    async def _get_metadata(self, request: Request) -> Response:
        world = self._world
        counts: dict[str, Json] = {}
        for split in SPLITS:
            panels = {tier: await self._catalogue.get_panel(self._name, split, tier) for tier in world.tiers}
            counts[split] = {tier: len(panel) for tier, panel in panels.items()}
        ours: dict[str, Json] = {
            "protocol": 1,
            "horizon": world.horizon,
            "reward_range": list(world.reward_range),
            "tasks": counts,
            "tools": isinstance(world, HasTools),
        }
        return _json_response(
            {
                "name": self._name,
                "description": world.instructions,
                "readme_content": None,
                "version": world.version,
                "author": None,
                "documentation_url": None,
                FEATURE_KEY: ours,
            }
        )

    async def _get_health(self, request: Request) -> Response:
        return _json_response({"status": "healthy"})

    async def _get_state(self, request: Request) -> Response:
        """Returns the state of a new environment: nothing was played in it."""
        return _json_response({"episode_id": None, "step_count": 0, "world": self._name, "task": None})

    async def _get_schema(self, request: Request) -> Response:
        return _json_response(self._build_schemas())

    def _build_schemas(self) -> dict[str, Json]:
        action: Json = Say.model_json_schema()
        if isinstance(self._world, HasTools):
            action = {"anyOf": [action, CallTool.model_json_schema()]}
        return {"action": action, "observation": Observation.model_json_schema(), "state": State.model_json_schema()}

    async def _get_openapi(self, request: Request) -> Response:
        """Returns the part of OpenAPI that OpenEnv's validator needs: the version and the paths of the server."""
        paths: dict[str, Json] = {
            path: {method: {"responses": {"200": {"description": "as OpenEnv says"}}}}
            for path, method in _METHOD_BY_PATH.items()
        }
        info: Json = {"title": f"{self._name} (OpenEnv)", "version": "1.0.0"}
        return _json_response(
            {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": self._build_schemas()}}
        )


async def _call_tool(client_session: ClientSession, call: Call, task: str) -> dict[str, Json]:
    try:
        return call_data(call.name, await client_session.call(call), task)
    except InvalidAction as error:
        return call_data(call.name, str(error), task)


async def _read_body(request: Request) -> Json:
    """Reads the JSON of a request; `{}` if it has no body."""
    data = await request.body()
    return decode_json(data) if data.strip() else {}


def _json_response(value: dict[str, Json], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, headers, "application/json")


def _with_error_answers(handler: Handler) -> Handler:
    """Returns the handler with errors in OpenEnv's form: `{detail}`, or 422 with a list of problems."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedMessage as refused:
            return JSONResponse({"detail": refused.errors}, 422)
        except SampleInvalid as error:
            return _json_response({"detail": [{"type": "json_invalid", "loc": ["body"], "msg": error.what}]}, 422)
        except EvolventError as error:
            row: dict[str, Any] = {"detail": str(error), **encode_error(error)}
            return _json_response(row, http_status(error), _retry_header(error))

    return answer


def _retry_header(error: EvolventError) -> dict[str, str] | None:
    """Returns the retry header, in whole seconds, if the server is full."""
    return {"retry-after": str(max(1, round(error.retry_after_s)))} if isinstance(error, AtCapacity) else None

"""OpenEnv's server: each world at `/openenv/<world>`, over WebSocket (sessions) and HTTP (one environment a
request).

`openenv-core` clients connect unchanged: `EnvClient(base_url=".../openenv/crafting")`. A text world takes the action
`{message}` and answers `{text, admissible?, metadata}`; the tools of a tool world are called by `{type: "call_tool",
tool_name, arguments}`, or by JSON-RPC (`rpc.py`). A reset takes `task` or `index` for a certain task; `seed` picks one
of train, `seed % n`; without any of them it is another one each time.

    GET  /metadata /health /schema /state /openapi.json
    POST /reset {seed?, episode_id?, task?, index?}          a first observation, of an episode that is then closed
    POST /step  {action, seed?, task?, index?, ...}          the first step of an episode (of the first task)
    POST /mcp, WebSocket /mcp                                JSON-RPC
    WebSocket /ws                                            one environment a connection
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from evolvent.errors import AtCapacity, EvolventError, InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.openenv.rpc import PARSE_ERROR, RpcHandler, error_response
from evolvent.serve.openenv.socket import OpenEnvSockets
from evolvent.serve.openenv.wire import (
    FEATURE_KEY,
    CallTool,
    Observation,
    RefusedMessage,
    Reset,
    Say,
    State,
    StepBody,
    call_data,
    parse_action,
    reset_data,
    step_data,
    tools_data,
    validate,
)
from evolvent.serve.seats import ClientSession, ClientSessions
from evolvent.serve.toolcalls import HasTools
from evolvent.serve.wire import decode_json, encode_error, encode_json, http_status
from evolvent.trajectory import Json
from evolvent.worlds.base import SPLITS

__all__ = ["OpenEnvDialect"]

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

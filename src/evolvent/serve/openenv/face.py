"""OpenEnv's server: each world at `/openenv/<world>`, over WebSocket (sessions) and HTTP (one environment a request).

`openenv-core` clients connect unchanged: `EnvClient(base_url=".../openenv/crafting")`. A text world takes the action
`{message}` and answers `{text, admissible?, metadata}`; the tools of a tool world are called by `{type: "call_tool",
tool_name, arguments}`, or by JSON-RPC (`openenv_rpc.py`). A reset takes `task` or `index` for a certain task; `seed`
picks one of train, `seed % n`; without any of them it is another one each time.

    GET  /metadata /health /schema /state /openapi.json
    POST /reset {seed?, episode_id?, task?, index?}          a first observation, of an episode that is then given back
    POST /step  {action, seed?, task?, index?, ...}          the first step of such an episode (of the first task)
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
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.openenv.rpc import PARSE_ERROR, Rpc, failure
from evolvent.serve.openenv.socket import Socket
from evolvent.serve.openenv.wire import (
    FEATURE,
    CallTool,
    Observation,
    Refused,
    Reset,
    Say,
    State,
    StepBody,
    acted,
    called_data,
    checked,
    listed_data,
    seen_data,
    stepped_data,
)
from evolvent.serve.seats import Seat, Seats
from evolvent.serve.toolcalls import HasTools
from evolvent.serve.wire import decoded, encoded, error_row, status_of
from evolvent.trajectory import Json
from evolvent.worlds.base import SPLITS

__all__ = ["OpenEnvFace"]

Handler = Callable[[Request], Awaitable[Response]]
_PATHS = {
    "/reset": "post",
    "/step": "post",
    "/state": "get",
    "/metadata": "get",
    "/health": "get",
    "/schema": "get",
    "/mcp": "post",
}


class OpenEnvFace:
    """Serves worlds to OpenEnv clients.

    Args:
        worlds: names of those served; None: all of the host.
    """

    name = "openenv"

    def __init__(self, worlds: Sequence[str] | None = None) -> None:
        self._worlds = worlds

    def routes(self, host: Host, catalogue: Catalogue) -> Sequence[BaseRoute]:
        """One mount a world."""
        names = host.worlds if self._worlds is None else self._worlds
        return [Mount(f"/openenv/{name}", routes=_Mounted(host, catalogue, name).routes()) for name in names]


class _Mounted:
    """The endpoints of one world."""

    def __init__(self, host: Host, catalogue: Catalogue, name: str) -> None:
        self._host, self._catalogue, self._name, self._world = host, catalogue, name, host.worlds[name]
        self._rpc = Rpc(Seats(host, catalogue, name))
        self._socket = Socket(host, catalogue, name=name, rpc=self._rpc)

    def routes(self) -> list[BaseRoute]:
        posts: dict[str, Handler] = {"/reset": self._reset, "/step": self._step, "/mcp": self._mcp}
        gets: dict[str, Handler] = {
            "/metadata": self._metadata,
            "/health": self._health,
            "/schema": self._schema,
            "/state": self._state,
            "/openapi.json": self._openapi,
        }
        return [
            *(Route(path, _answered(handler), methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, _answered(handler), methods=["GET"]) for path, handler in gets.items()),
            WebSocketRoute("/ws", self._socket.messages),
            WebSocketRoute("/mcp", self._socket.requests),
        ]

    def _seat(self) -> Seat:
        return Seat(self._host, self._catalogue, self._name)

    async def _reset(self, request: Request) -> Response:
        choice = checked(Reset, await _body(request)).choice
        seat = self._seat()
        try:
            seen = await seat.begin(choice)
            return _json(seen_data(seen, seat.task.id if seat.task else ""))
        finally:
            await seat.close()

    async def _step(self, request: Request) -> Response:
        body = checked(StepBody, await _body(request))
        action = acted(body.action)
        seat = self._seat()
        try:
            if action is None:
                return _json(listed_data(await seat.tools()))
            await seat.begin(body.choice)
            task = seat.task.id if seat.task else ""
            if isinstance(action, Call):
                return _json(await _called(seat, action, task))
            return _json(stepped_data(await seat.step(action.message), task))
        finally:
            await seat.close()

    async def _mcp(self, request: Request) -> Response:
        try:
            value = decoded(await request.body())
        except SampleInvalid as error:
            return _json(failure(PARSE_ERROR, f"Parse error: {error.what}"))
        return _json(await self._rpc.answer(value))

    async def _metadata(self, request: Request) -> Response:
        world = self._world
        counts: dict[str, Json] = {}
        for split in SPLITS:
            panels = {tier: await self._catalogue.panel(self._name, split, tier) for tier in world.tiers}
            counts[split] = {tier: len(panel) for tier, panel in panels.items()}
        ours: dict[str, Json] = {
            "protocol": 1,
            "horizon": world.horizon,
            "reward_range": list(world.reward_range),
            "tasks": counts,
            "tools": isinstance(world, HasTools),
        }
        return _json(
            {
                "name": self._name,
                "description": world.instructions,
                "readme_content": None,
                "version": world.version,
                "author": None,
                "documentation_url": None,
                FEATURE: ours,
            }
        )

    async def _health(self, request: Request) -> Response:
        return _json({"status": "healthy"})

    async def _state(self, request: Request) -> Response:
        """Of a new environment: nothing was played in it."""
        return _json({"episode_id": None, "step_count": 0, "world": self._name, "task": None})

    async def _schema(self, request: Request) -> Response:
        return _json(self._schemas())

    def _schemas(self) -> dict[str, Json]:
        action: Json = Say.model_json_schema()
        if isinstance(self._world, HasTools):
            action = {"anyOf": [action, CallTool.model_json_schema()]}
        return {"action": action, "observation": Observation.model_json_schema(), "state": State.model_json_schema()}

    async def _openapi(self, request: Request) -> Response:
        """Enough for OpenEnv's validator, which asks each server for its version and its paths."""
        paths: dict[str, Json] = {
            path: {method: {"responses": {"200": {"description": "as OpenEnv says"}}}}
            for path, method in _PATHS.items()
        }
        info: Json = {"title": f"{self._name} (OpenEnv)", "version": "1.0.0"}
        return _json({"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": self._schemas()}})


async def _called(seat: Seat, call: Call, task: str) -> dict[str, Json]:
    try:
        return called_data(call.name, await seat.call(call), task)
    except InvalidAction as error:
        return called_data(call.name, str(error), task)


async def _body(request: Request) -> Json:
    """The JSON of a request; `{}` where it has no body."""
    data = await request.body()
    return decoded(data) if data.strip() else {}


def _json(value: dict[str, Json], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(value), status, headers, "application/json")


def _answered(handler: Handler) -> Handler:
    """The handler, with errors as OpenEnv's clients know them: `{detail}`, 422 with a list of what is wrong."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as refused:
            return JSONResponse({"detail": refused.errors}, 422)
        except SampleInvalid as error:
            return _json({"detail": [{"type": "json_invalid", "loc": ["body"], "msg": error.what}]}, 422)
        except EvolventError as error:
            row: dict[str, Any] = {"detail": str(error), **error_row(error)}
            return _json(row, status_of(error), _wait(error))

    return answer


def _wait(error: EvolventError) -> dict[str, str] | None:
    """When to come back, in whole seconds, where the server is full."""
    return {"retry-after": str(max(1, round(error.retry_after_s)))} if isinstance(error, AtCapacity) else None

"""JSON-RPC 2.0 inside OpenEnv (`POST /mcp`, the WebSocket `/mcp`, and `{type: mcp}`): tools of an episode, called.

`tools/list` and `tools/call` as in MCP, without its handshake. Over HTTP `openenv/session/create` opens a session (its
`params` may choose the task as a reset does), which every call names by `session_id`; a call without one has an
environment of its own that ends with it. A call is a step: its reward is in `structuredContent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.errors import AtCapacity, ConfigError, EvolventError, InvalidAction
from evolvent.messages import Call
from evolvent.serve.openenv.wire import Refused, Reset, call_result, checked, tool_rows
from evolvent.serve.seats import Choice, Seat, Seats
from evolvent.serve.wire import error_row
from evolvent.trajectory import Json

__all__ = ["PARSE_ERROR", "SERVER", "Rpc", "failure"]

PARSE_ERROR = -32700
SERVER = -32000
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
_KEYS = {"jsonrpc", "method", "params", "id"}


class _Fault(Exception):
    """A request that is answered by an error."""

    def __init__(self, code: int, message: str, data: Json = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(message)


def failure(code: int, message: str, *, request: Json = None, data: Json = None) -> dict[str, Json]:
    """An error response."""
    return {"jsonrpc": "2.0", "id": request, "error": {"code": code, "message": message, "data": data}}


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    params: Mapping[str, Any]
    id: Json


def _request(value: Json) -> _Request:
    """The request that a JSON value is; _Fault where it is none."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0" or not isinstance(value.get("method"), str):
        raise _Fault(INVALID_REQUEST, "Invalid request: expected jsonrpc '2.0' and a method")
    identity = value.get("id")
    if set(value) - _KEYS or isinstance(identity, bool) or not isinstance(identity, (str, int, type(None))):
        raise _Fault(INVALID_REQUEST, "Invalid request: unknown keys, or an id that is no text or integer")
    params = value.get("params", {})
    if not isinstance(params, dict):
        raise _Fault(INVALID_PARAMS, "Params must be an object")
    return _Request(str(value["method"]), params, identity)


class Rpc:
    """Answers the requests of one world.

    Args:
        seats: those opened by `openenv/session/create`, by session id.
    """

    def __init__(self, seats: Seats) -> None:
        self._seats = seats

    async def answer(self, value: Json, seat: Seat | None = None) -> dict[str, Json]:
        """The response to a request; never raises.

        Args:
            seat: that of the WebSocket that the request came on.
        """
        identity = value.get("id") if isinstance(value, dict) else None
        if isinstance(identity, bool) or not isinstance(identity, (str, int)):
            identity = None
        try:
            request = _request(value)
            result = await self._result(request, seat)
        except _Fault as fault:
            return failure(fault.code, fault.message, request=identity, data=fault.data)
        except Refused as refused:
            return failure(INVALID_PARAMS, refused.message, request=identity, data=refused.errors)
        except (InvalidAction, ConfigError) as error:
            return failure(INVALID_PARAMS, str(error), request=identity, data=error_row(error))
        except EvolventError as error:
            return failure(SERVER, str(error), request=identity, data=self._data(error))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    def _data(self, error: EvolventError) -> Json:
        row: dict[str, Json] = dict(error_row(error))
        if isinstance(error, AtCapacity):
            status = self._seats.host.status()
            row |= {"active_sessions": sum(status.sessions.values()), "max_sessions": status.capacity}
        return row

    async def _result(self, request: _Request, seat: Seat | None) -> Json:
        if request.method == "openenv/session/create":
            return await self._create(request.params, seat)
        if request.method == "openenv/session/close":
            return await self._close(request.params, seat)
        if request.method == "tools/list":
            return {"tools": tool_rows(await self._held(request.params, seat).tools(), "inputSchema", "input_schema")}
        if request.method == "tools/call":
            return await self._call(request.params, seat)
        raise _Fault(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")

    async def _create(self, params: Mapping[str, Any], seat: Seat | None) -> Json:
        if seat is not None:
            return {"session_id": seat.session}
        choice = checked(Reset, params).choice
        seat = self._seats.new()
        try:
            seen = await seat.begin(choice)
        except EvolventError:
            await seat.close()
            raise
        await self._seats.keep(str(seat.session), seat)
        task = None if seat.task is None else seat.task.id
        return {"session_id": seat.session, "observation": seen.observation, "task": task}

    async def _close(self, params: Mapping[str, Any], seat: Seat | None) -> Json:
        session = params.get("session_id")
        if not isinstance(session, str) or not session:
            raise _Fault(INVALID_PARAMS, "Invalid params - 'session_id' is required")
        if seat is not None and session == seat.session:
            raise _Fault(INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method")
        if not await self._seats.drop(session):
            raise _Fault(INVALID_PARAMS, f"Unknown session_id: {session[:100]}")
        return {"session_id": session, "closed": True}

    def _held(self, params: Mapping[str, Any], seat: Seat | None) -> Seat:
        """The seat that a call is about; a fresh one, to be closed, where no session is named."""
        session = params.get("session_id")
        if seat is not None:
            return seat
        if session is None:
            return self._seats.new()
        found = self._seats.get(str(session))
        if found is None:
            raise _Fault(INVALID_PARAMS, f"Unknown session_id: {str(session)[:100]}")
        return found

    async def _call(self, params: Mapping[str, Any], seat: Seat | None) -> Json:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not name:
            raise _Fault(INVALID_PARAMS, "Missing 'name' in params")
        if not isinstance(arguments, dict):
            raise _Fault(INVALID_PARAMS, "'arguments' must be an object")
        held = self._held(params, seat)
        passing = seat is None and params.get("session_id") is None
        try:
            if held.fresh:  # a socket that was not reset, or an environment for this call alone
                await held.begin(Choice(index=0) if passing else Choice())
            return call_result(await held.call(Call(name, arguments)))
        finally:
            if passing:
                await held.close()

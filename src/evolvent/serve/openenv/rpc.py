"""JSON-RPC 2.0 inside OpenEnv (`POST /mcp`, the WebSocket `/mcp`, and `{type: mcp}`): calls of an episode's tools.

`tools/list` and `tools/call` as in MCP, without its handshake. Over HTTP `openenv/session/create` opens a session (its
`params` may choose the task as a reset does), which every call names by `session_id`; a call without one has its own
environment that ends with it. A call is a step: its reward is in `structuredContent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.errors import AtCapacity, ConfigError, EvolventError, InvalidAction
from evolvent.messages import Call
from evolvent.serve.openenv.wire import RefusedMessage, Reset, call_result, tool_rows, validate
from evolvent.serve.seats import ClientSession, ClientSessions, TaskChoice
from evolvent.serve.wire import encode_error
from evolvent.trajectory import Json

__all__ = ["PARSE_ERROR", "SERVER_ERROR", "RpcHandler", "error_response"]

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

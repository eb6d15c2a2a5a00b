"""OpenEnv's WebSockets: `/ws` (reset, step, state, close, mcp) and `/mcp` (bare JSON-RPC). One session a connection.

Messages of a connection are answered one after another, in their order. Problems of a message, an action or an episode
are answered by an error that keeps the socket open; a connection that gets no session is told the reason and closed.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from evolvent.errors import AtCapacity, EvolventError, InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.openenv.rpc import PARSE_ERROR, SERVER_ERROR, RpcHandler, error_response
from evolvent.serve.openenv.wire import (
    Envelope,
    RefusedMessage,
    Reset,
    call_data,
    parse_action,
    parse_envelope,
    reset_data,
    step_data,
    tools_data,
    validate,
)
from evolvent.serve.seats import ClientSession
from evolvent.serve.wire import decode_json, encode_error, encode_json
from evolvent.trajectory import Json
from evolvent.web import is_too_deep

__all__ = ["MAX_MESSAGE_CHARS", "MAX_MESSAGE_DEPTH", "OpenEnvSockets"]

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

"""OpenEnv's WebSockets: `/ws` (reset, step, state, close, mcp) and `/mcp` (bare JSON-RPC). One connection, one seat.

Messages of a connection are answered one after another, in their order. What is wrong with a message, an action or an
episode is answered by an error that keeps the socket open; a connection that gets no session is told why and closed.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from evolvent.errors import AtCapacity, EvolventError, InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.openenv.rpc import PARSE_ERROR, SERVER, Rpc, failure
from evolvent.serve.openenv.wire import (
    Envelope,
    Refused,
    Reset,
    acted,
    called_data,
    checked,
    envelope,
    listed_data,
    seen_data,
    stepped_data,
)
from evolvent.serve.seats import Seat
from evolvent.serve.wire import decoded, encoded, error_row
from evolvent.trajectory import Json
from evolvent.web import too_deep

__all__ = ["MESSAGE_DEPTH", "MESSAGE_LIMIT", "Socket"]

MESSAGE_LIMIT = 1 << 20  # characters of one message
MESSAGE_DEPTH = 64  # how deeply it may be nested


class _Play:
    """What one connection of `/ws` holds: its seat, and the name of its episode."""

    def __init__(self, seat: Seat) -> None:
        self.seat, self.episode = seat, secrets.token_hex(16)

    @property
    def task(self) -> str:
        return self.seat.task.id if self.seat.task else ""

    async def reset(self, message: Envelope) -> Json:
        wanted = checked(Reset, message.data)
        seen = await self.seat.begin(wanted.choice)
        self.episode = wanted.episode_id or secrets.token_hex(16)
        return seen_data(seen, self.task)

    async def step(self, message: Envelope) -> Json:
        action = acted(message.data)
        if action is None:
            return listed_data(await self.seat.tools())
        task = self.task
        if not isinstance(action, Call):
            return stepped_data(await self.seat.step(action.message), task)
        try:
            return called_data(action.name, await self.seat.call(action), task)
        except InvalidAction as error:
            return called_data(action.name, str(error), task)

    def state(self) -> Json:
        seat = self.seat
        return {
            "episode_id": None if seat.fresh else self.episode,
            "step_count": seat.steps,
            "world": seat.name,
            "task": self.task or None,
        }


class Socket:
    """The two WebSocket endpoints of one world."""

    def __init__(self, host: Host, catalogue: Catalogue, *, name: str, rpc: Rpc) -> None:
        self._host, self._catalogue, self._name, self._rpc = host, catalogue, name, rpc

    async def messages(self, socket: WebSocket) -> None:
        """`/ws`: until the client says close, or goes."""
        await socket.accept()
        seat = Seat(self._host, self._catalogue, self._name)
        try:
            await seat.open()
        except EvolventError as error:
            await _send(socket, {"type": "error", "data": self._closing(error)})
            await _end(socket)
            return
        try:
            await self._serve(socket, _Play(seat))
        finally:
            await seat.close()
            await _end(socket)

    async def _serve(self, socket: WebSocket, play: _Play) -> None:
        async with aclosing(_texts(socket)) as texts:
            async for text in texts:
                answer = await self._answer(text, play)
                if answer is None or not await _send(socket, answer):
                    return

    async def _answer(self, text: str, play: _Play) -> dict[str, Json] | None:
        """The answer to a message; None: the client closes."""
        asked: dict[str, Json] = {}
        try:
            value = _read(text)
            if isinstance(value, dict) and value.get("request_id") is not None:
                asked = {"request_id": value["request_id"]}
            message = envelope(value)
            if message.type == "close":
                return None
            return {**await self._reply(message, play), **asked}
        except Refused as refused:
            return {"type": "error", "data": refused.data, **asked}
        except InvalidAction as error:
            wrong: Json = {"type": "value_error", "loc": ["message"], "msg": str(error)}
            told = Refused("VALIDATION_ERROR", "Invalid message", [wrong])
            return {"type": "error", "data": told.data, **asked}
        except EvolventError as error:
            row = {"message": str(error), "code": "EXECUTION_ERROR", "kind": error_row(error)["kind"]}
            return {"type": "error", "data": row, **asked}

    async def _reply(self, message: Envelope, play: _Play) -> dict[str, Json]:
        if message.type == "reset":
            return {"type": "observation", "data": await play.reset(message)}
        if message.type == "step":
            return {"type": "observation", "data": await play.step(message)}
        if message.type == "state":
            return {"type": "state", "data": play.state()}
        return {"type": "mcp", "data": await self._rpc.answer(dict(message.data), play.seat)}

    async def requests(self, socket: WebSocket) -> None:
        """`/mcp`: JSON-RPC without an envelope."""
        await socket.accept()
        seat = Seat(self._host, self._catalogue, self._name)
        try:
            await seat.open()
        except EvolventError as error:
            told = self._closing(error)
            await _send(socket, failure(SERVER, str(told.pop("message")), data=told))
            await _end(socket)
            return
        try:
            async with aclosing(_texts(socket)) as texts:
                async for text in texts:
                    if not await _send(socket, await self._respond(text, seat)):
                        return
        finally:
            await seat.close()
            await _end(socket)

    async def _respond(self, text: str, seat: Seat) -> dict[str, Json]:
        try:
            value = _read(text)
        except Refused as refused:
            return failure(PARSE_ERROR, refused.message)
        return await self._rpc.answer(value, seat)

    def _closing(self, error: EvolventError) -> dict[str, Json]:
        """The data of the error that closes a connection which gets no session."""
        told: dict[str, Json] = {"message": str(error)}
        if isinstance(error, AtCapacity):
            status = self._host.status()
            return {
                **told,
                "code": "CAPACITY_REACHED",
                "active_sessions": sum(status.sessions.values()),
                "max_sessions": status.capacity,
            }
        return {**told, "code": "FACTORY_ERROR", "factory_name": self._name}


def _read(text: str) -> Json:
    if len(text) > MESSAGE_LIMIT:
        raise Refused("INVALID_JSON", f"Invalid JSON: {len(text)} characters, at most {MESSAGE_LIMIT}")
    if too_deep(text.encode("utf-8", "replace"), MESSAGE_DEPTH):
        raise Refused("INVALID_JSON", f"Invalid JSON: nested more than {MESSAGE_DEPTH} deep")
    try:
        return decoded(text)
    except SampleInvalid as error:
        raise Refused("INVALID_JSON", f"Invalid JSON: {error.what}") from error


async def _texts(socket: WebSocket) -> AsyncGenerator[str, None]:
    """The messages of a client until it goes; bytes are read as the UTF-8 that they should be."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        yield text if text is not None else (message.get("bytes") or b"").decode("utf-8", "replace")


async def _send(socket: WebSocket, value: dict[str, Json]) -> bool:
    """Whether the client was still there."""
    try:
        await socket.send_text(encoded(value).decode("ascii"))
    except (WebSocketDisconnect, OSError):
        return False
    return True


async def _end(socket: WebSocket) -> None:
    """Close the socket, unless the client did."""
    if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
        try:
            await socket.close()
        except (WebSocketDisconnect, OSError, RuntimeError):
            return

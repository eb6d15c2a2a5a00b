"""An OpenEnv server written from the specification alone, with every bad manner that a client may meet."""

from __future__ import annotations

import asyncio
import json

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from tests.serve.small_host import serving

KEYS = {"reset": {"type", "data"}, "step": {"type", "data"}, "state": {"type"}, "close": {"type"}}


class RawOpenEnv:
    """Numbers its steps; the action's `message` says how it misbehaves.

    Attributes:
        heard: every message as it came.
        opened, closed: connections.
    """

    def __init__(self, capacity=8, metadata=None):
        self.heard, self.opened, self.closed, self.capacity = [], 0, 0, capacity
        self.metadata = {"name": "raw", "description": "Be good.", "version": "7"} if metadata is None else metadata
        self.pause = 0.6

    def app(self):
        return Starlette(routes=[Route("/metadata", self.told), WebSocketRoute("/ws", self.socket)])

    async def told(self, request):
        if isinstance(self.metadata, (bytes, int)):
            whole = isinstance(self.metadata, bytes)
            return Response(self.metadata if whole else b"", 200 if whole else self.metadata)
        return JSONResponse(self.metadata)

    async def socket(self, socket):
        await socket.accept()
        self.opened += 1
        try:
            if self.opened - self.closed > self.capacity:
                data = {"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 1}
                await socket.send_text(json.dumps({"type": "error", "data": data}))
                await socket.close()
            else:
                await self.play(socket)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.closed += 1

    async def play(self, socket):
        steps = 0
        while True:
            message = json.loads(await socket.receive_text())
            self.heard.append(message)
            kind, data = message["type"], message.get("data", {})
            foreign = set(message) - KEYS[kind]
            if kind == "close":
                return
            if foreign or "bad" in data:
                errors = [{"type": "extra_forbidden", "loc": ["bad"], "msg": "Extra inputs are not permitted"}]
                await self.error(socket, "VALIDATION_ERROR", "Invalid message", errors=errors)
                continue
            steps = 0 if kind == "reset" else steps + 1
            if not await self.misbehave(socket, data.get("message", ""), steps):
                seen = {"text": f"{kind} {steps}", "board": [[1, 2], [3, 4]], "echo": data, "metadata": {"k": 1}}
                reward = {"none": None, "half": 0.5}.get(data.get("message"), 0.0)
                await self.send(socket, {"observation": seen, "reward": reward, "done": data.get("message") == "end"})

    async def misbehave(self, socket, how, steps):
        """Whether the message has been answered by something unusual."""
        raw = {
            "junk": "{",
            "list": "[]",
            "bare": '{"type": "observation"}',
            "dance": '{"type": "dance", "data": {}}',
            "bytes": '{"type": "observation", "data": 3}',
            "big": json.dumps({"type": "x", "data": {"x": "y" * 300_000}}),
            "nan": '{"type": "observation", "data": {"observation": {"text": ""}, "reward": NaN, "done": false}}',
            "word": '{"type": "observation", "data": {"observation": {"text": ""}, "reward": "1", "done": false}}',
            "vast": '{"type": "observation", "data": {"observation": {"text": ""}, "reward": 1%s, "done": false}}'
            % ("0" * 400),
            "undone": '{"type": "observation", "data": {"observation": {"text": ""}, "reward": 1}}',
            "mute": '{"type": "observation", "data": {"observation": {"words": ""}, "reward": 1, "done": false}}',
            "blind": '{"type": "observation", "data": {"reward": 1, "done": false}}',
        }
        if how in raw:
            await socket.send_text(raw[how])
        elif how == "slow":
            await asyncio.sleep(self.pause)
            late = {"observation": {"text": "LATE"}, "reward": 1.0, "done": False}
            await self.send(socket, late)
        elif how == "crash":
            await self.error(socket, "EXECUTION_ERROR", "boom")
        elif how == "session":
            await self.error(socket, "SESSION_ERROR", "gone")
            await socket.close()
        elif how == "leave":
            await socket.close()
        else:
            return False
        return True

    async def send(self, socket, data):
        await socket.send_text(json.dumps({"type": "observation", "data": data}))

    async def error(self, socket, code, message, **more):
        await socket.send_text(json.dumps({"type": "error", "data": {"message": message, "code": code, **more}}))

    def serving(self):
        return serving(self.app())

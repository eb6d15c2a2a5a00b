"""A late answer is never read as the answer to the next message (defect 11 of the OpenEnv reference client).

The reference client waits for the next message on the socket whatever it answers: after a timeout every answer is that
of the step before. Here the connection on which an answer was not awaited is dropped; and where the server echoes
`request_id`, an answer has to bear the one of its message.
"""

from __future__ import annotations

import json
import time

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from evolvent.errors import SessionGone, StepTimeout, WorldError
from evolvent.serve.given import ClientTimeouts
from evolvent.serve.openenv.client import OpenEnvWorld
from evolvent.serve.openenv.face import OpenEnvDialect
from tests.serve.raw_openenv import RawOpenEnv
from tests.serve.small_host import faces, serving

TASKS = {"train": [{"seed": 0}]}


def make(base, **limits):
    world = OpenEnvWorld(base, tasks=TASKS, timeouts=ClientTimeouts(**limits))
    return world, world.make(world.tasks("train", "seen")[0])


def test_the_socket_is_dropped_at_a_foreign_server():
    server = RawOpenEnv()
    with server.serving() as address:
        world, env = make(f"http://{address}", step_s=0.2)
        env.reset()
        with pytest.raises(StepTimeout):
            env.step("slow")
        with pytest.raises(SessionGone, match=r"reset\(\) first"):
            env.step("fast")
        assert env.reset()[0] == "reset 0", "not the late answer"
        time.sleep(server.pause)  # by now the late answer would have come
        assert [env.step("fast")[0] for _ in range(3)] == ["step 1", "step 2", "step 3"]
        assert server.opened == 2
        assert [message for message in server.heard if set(message) - {"type", "data"}] == []
        world.close()


def test_a_reset_that_takes_too_long_is_dropped_as_well():
    server = RawOpenEnv()
    with server.serving() as address:
        world = OpenEnvWorld(
            f"http://{address}", tasks={"train": [{"message": "slow"}, {}]}, timeouts=ClientTimeouts(reset_s=0.2)
        )
        slow, other = (world.make(task) for task in world.tasks("train", "seen"))
        with pytest.raises(StepTimeout):
            slow.reset()
        assert other.reset()[0] == "reset 0"
        world.close()


def test_at_our_server_too():
    with faces(OpenEnvDialect(), step_s=5.0) as (address, _):
        world = OpenEnvWorld(
            f"http://{address}/openenv/slow", tasks={"train": [{"index": 29}]}, timeouts=ClientTimeouts(step_s=0.2)
        )
        env = world.make(world.tasks("train", "seen")[0])
        env.reset()
        with pytest.raises(StepTimeout):
            env.step("slow")
        assert env.reset()[0].startswith("count to")
        assert env.step("up")[0] == "at 1"
        world.close()


class Confused:
    """Knows `request_id`, and answers the second message with the number of the first."""

    async def socket(self, socket):
        await socket.accept()
        first = None
        try:
            while True:
                message = json.loads(await socket.receive_text())
                first = first or message["request_id"]
                data = {"observation": {"text": "seen"}, "reward": None, "done": False}
                await socket.send_text(json.dumps({"type": "observation", "data": data, "request_id": first}))
        except WebSocketDisconnect:
            pass

    def app(self):
        told = JSONResponse({"name": "confused", "version": "1", "evolvent": {"protocol": 1}})
        return Starlette(routes=[Route("/metadata", lambda request: told), WebSocketRoute("/ws", self.socket)])


def test_an_answer_bears_the_number_of_its_message():
    with serving(Confused().app()) as address:
        world, env = make(f"http://{address}")
        env.reset()
        with pytest.raises(WorldError, match="not the answer to message 2"):
            env.step("x")
        assert env.reset()[0] == "seen", "on another connection"
        world.close()

"""Fault 4: the server has taken the step, its response is lost once. The step is sent again and answered from the
server's record: the world advanced once, and the agent sees what it would have seen."""

from __future__ import annotations

import pytest

from evolvent.agents.plain import Random
from evolvent.rollout.episode import collect
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.remote.world import RemoteWorld
from evolvent.trajectory import Start
from evolvent.web import Access
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import serving

SMALL = Sizes(train=4, dev=4, test=2)
WORLDS = {"maze": Maze(sizes=SMALL), "crafting": Crafting(sizes=SMALL)}


class Lossy:
    """Runs the app and loses every n-th response: over HTTP its body, over a WebSocket the message and all after it."""

    def __init__(self, app, every):
        self.app, self.every, self.count, self.lost = app, every, 0, 0

    async def __call__(self, scope, receive, send):
        # The greeting is not part of the fault: it is what the client learns of the world.
        if scope["type"] == "lifespan" or scope["path"].startswith("/v1/worlds") or scope["path"] == "/v1":
            await self.app(scope, receive, send)
            return
        gone = False

        async def lossy(message):
            nonlocal gone
            if gone:
                return
            if message["type"] in ("http.response.start", "websocket.send"):
                self.count += 1
                gone = self.count % self.every == 0
            if not gone:
                await send(message)
                return
            self.lost += 1
            if message["type"] == "websocket.send":
                await send({"type": "websocket.close", "code": 1011})
            else:
                await send({**message, "headers": [(b"content-length", b"10000")]})

        await self.app(scope, receive, lossy)


@pytest.mark.parametrize("transport", ["ws", "http"])
@pytest.mark.parametrize("name", WORLDS)
def test_lost_responses_change_nothing(name, transport):
    starts = [
        Start(task, n) for tier in WORLDS[name].tiers for task in WORLDS[name].tasks("dev", tier)[:3] for n in range(2)
    ]
    wanted = {done.id: done for done in collect(WORLDS, starts, Random(), engine=None)}
    host = LocalHost(WORLDS)
    lossy = Lossy(build_app(host, TaskIndex(WORLDS), access=Access(), dialects=[NativeDialect()]), every=7)
    with serving(lossy, "on") as url, RemoteWorld(url, world=name, transport=transport) as world:
        done = {done.id: done for done in collect({name: world}, starts, Random(), engine=None, slots=8)}
        assert done == wanted
        assert lossy.lost > 3
        assert host.status().steps == sum(len(trajectory.steps) for trajectory in done.values()), "none taken twice"

"""Fault 12: the two sides speak different versions, or an error comes in a response that says all is well.

The handshake refuses and names both versions, whichever side notices; an error body becomes a typed error.
"""

from __future__ import annotations

import json

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from evolvent.errors import AtCapacity, VersionMismatch, WorldError, WrongStep
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.remote.world import RemoteWorld
from evolvent.trajectory import Task
from evolvent.web import Access
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer, serving

MAZE = Maze(sizes=Sizes(train=4, dev=4, test=2))
TASK = MAZE.tasks("dev", "seen")[0]


@pytest.fixture(params=["ws", "http"])
def transport(request):
    return request.param


@pytest.mark.parametrize("theirs", [0, 2, 99])
def test_the_client_refuses_a_server_of_another_version(theirs, transport):
    with serving(NativePeer(MAZE, protocol=theirs)) as url:
        with pytest.raises(VersionMismatch, match=f"uses another protocol version: got {theirs}, expected 1") as caught:
            RemoteWorld(url, transport=transport)
        assert caught.value.value == theirs and caught.value.expected == 1


@pytest.mark.parametrize("protocol", [None, "1", True, 1.0, [1]])
def test_a_version_that_is_none(protocol):
    with serving(NativePeer(MAZE, protocol=protocol)) as url:
        with pytest.raises(WorldError, match="the server does not speak the native dialect"):
            RemoteWorld(url)


def test_the_server_refuses_a_client_of_another_version():
    """Asked by raw clients: one that names another version is told both, one that names none is served."""
    worlds = {"maze": MAZE}
    app = build_app(LocalHost(worlds), TaskIndex(worlds), access=Access(), dialects=[NativeDialect()])
    header = {"evolvent-protocol": "7"}
    with serving(app, "on") as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as client:
        for method, path, body in (("GET", "/v1", None), ("POST", "/v1/sessions", {"world": "maze", "task": TASK.id})):
            told = client.request(method, path, json=body, headers=header)
            assert told.status_code == 400 and told.json()["kind"] == "VersionMismatch"
            assert "7" in told.json()["message"] and told.json()["expected"] == 1
        assert client.get("/v1").json()["protocol"] == 1
        socket = url.replace("http", "ws") + "/v1/ws"
        with pytest.raises(InvalidStatus) as caught, connect(socket, additional_headers=header, proxy=None):
            pass
        assert caught.value.response.status_code == 400
        assert json.loads(caught.value.response.body)["kind"] == "VersionMismatch"


def test_a_task_of_another_version_of_the_world_is_sent_nowhere(transport):
    peer = NativePeer(MAZE)
    with serving(peer) as url, RemoteWorld(url, transport=transport) as world:
        with pytest.raises(VersionMismatch, match=f"another version of 'maze': got 0.9, expected {MAZE.version}"):
            world.make(Task("maze", "0.9", dict(TASK.spec)))
        assert peer.ops("create") == 0


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("Environment not initialised", WorldError, "Environment not initialised"),
        (
            {"kind": "WrongStep", "message": "number 4 is next", "expected": 4},
            WrongStep,
            "number 4 is next: expected 4",
        ),
        ({"kind": "AtCapacity", "message": "no room", "retry_after_s": 60}, AtCapacity, "stayed full"),
        ({"kind": "ValueError", "message": "a bug"}, WorldError, "ValueError: a bug"),
        ({"detail": "oops"}, WorldError, "oops"),
        (["a", "list"], WorldError, "list"),
        (17, WorldError, "17"),
    ],
    ids=str,
)
def test_an_error_in_a_good_response_is_an_error(error, kind, said):
    peer = NativePeer(MAZE)
    body = json.dumps({"error": error}).encode()
    with serving(peer) as url, RemoteWorld(url, transport="http", timeout_s=5) as world:
        env = world.make(TASK)
        env.reset()
        peer.fault = lambda op, _: body if op in ("create", "expert", "tasks", "score") else None
        calls = [
            lambda: world.make(TASK).reset(),
            lambda: world.tasks("test", "seen"),
            lambda: world.expert(TASK),
            lambda: world.score((0.5,), {}),
        ]
        for call in calls:
            with pytest.raises(kind, match=said):
                call()
        peer.fault = lambda op, _: body if op == "step" else None
        with pytest.raises(kind if kind is not AtCapacity else AtCapacity):
            env.step("move up")


@pytest.mark.parametrize("page", ["/v1", "/v1/worlds"])
def test_a_greeting_that_is_an_error(page):
    peer = NativePeer(MAZE)
    with serving(peer) as url:
        for body in (
            b'{"error": "down for repair"}',
            b'{"error": {"kind": "WorldError", "message": "down for repair"}}',
        ):
            peer.pages[page] = (200, (), body)
            with pytest.raises(WorldError, match="down for repair"):
                RemoteWorld(url)

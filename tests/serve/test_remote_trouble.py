"""A remote world meets servers and networks that fail: what is safe is repeated, everything else has a typed error."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from evolvent.agents.plain import Random
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    StepTimeout,
    VersionMismatch,
    WorldError,
)
from evolvent.rollout.episode import collect
from evolvent.serve.remote.world import RemoteWorld
from evolvent.trajectory import Start
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer, Proxy, Stage, compact, serving

MAZE = Maze(sizes=Sizes(train=4, dev=6, test=2))
TASK = MAZE.tasks("dev", "seen")[0]
TOKEN = "sesame-4711"
TRANSPORTS = ("ws", "http")


@pytest.fixture(scope="module")
def stage():
    """One server for all tests of this file; every test puts an app of its own on it."""
    stage = Stage()
    with serving(stage) as stage.url:
        yield stage


@pytest.fixture
def peer(stage):
    stage.app = NativePeer(MAZE)
    return stage.app


@pytest.fixture
def url(stage, peer):
    return stage.url


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


def begun(world, task=TASK):
    env = world.make(task)
    env.reset()
    return env


def only_once(answer):
    """A fault that happens to the first step."""
    left = [answer]
    return lambda op, body: left.pop() if op in ("step", "steps") and left else None


# full servers


def test_a_full_server_is_asked_again_until_there_is_room(peer, url, transport):
    peer.capacity = 2
    with RemoteWorld(url, transport=transport) as world:

        def play(sample):
            env = begun(world)
            env.step("move up")
            env.close()
            return sample

        with ThreadPoolExecutor(6) as pool:
            assert sorted(pool.map(play, range(12))) == list(range(12))
    assert peer.count == 12 and peer.sessions == {} and peer.ops("step", "steps") <= 12


def test_a_server_that_stays_full_is_a_typed_error_within_the_deadline(peer, url, transport):
    peer.capacity = 0
    with RemoteWorld(url, transport=transport, timeout_s=0.4) as world:
        with pytest.raises(AtCapacity, match=r"stayed full for 0\.4 s"):
            begun(world)
    assert peer.count == 0


def test_nobody_waits_for_a_moment_after_the_deadline(peer, url):
    peer.pages["/v1/sessions"] = (503, [(b"retry-after", b"3600")], b"busy")
    with RemoteWorld(url, transport="http") as world:
        with pytest.raises(AtCapacity) as caught:
            begun(world)
    assert caught.value.retry_after_s == 3600


# answers that are lost, late, doubled


def test_a_lost_answer_to_a_step_is_asked_for_again_and_the_step_taken_once(peer, url, transport):
    wanted = MAZE.make(TASK)
    wanted.reset()
    peer.fault = only_once("drop")
    with RemoteWorld(url, transport=transport) as world:
        env = begun(world)
        for action in ("move up", "move right", "move down"):
            assert env.step(action)[:4] == wanted.step(action)[:4]
        env.close()
    assert peer.taken == [("s1", 0), ("s1", 1), ("s1", 2)]


def test_a_lost_answer_to_an_opening_opens_another_session(peer, url, transport):
    left = ["drop", "drop"]
    peer.fault = lambda op, body: left.pop() if op == "create" and left else None
    with RemoteWorld(url, transport=transport) as world:
        begun(world).close()
    assert peer.count == 3 and len(peer.sessions) == 2, "two are left to the server's reaper"


def test_a_late_answer_is_not_taken_for_the_answer_to_something_else(peer, url):
    peer.fault = only_once(1.6)
    with RemoteWorld(url, timeout_s=1) as world:
        late, other = begun(world), begun(world, MAZE.tasks("dev", "seen")[1])
        with pytest.raises(StepTimeout, match=r"step 0 at http://127.*: no answer before the deadline of 1 s"):
            late.step("move up")
        near = MAZE.make(MAZE.tasks("dev", "seen")[1])
        near.reset()
        for action in ["move up", "move down", "move left", "move right"] * 50:
            assert other.step(action)[:4] == near.step(action)[:4]
            if len(peer.later) == 0:
                break
            threading.Event().wait(0.02)
        assert not peer.later, "the late answer came between these steps"
        with pytest.raises(EnvLost, match="the environment is lost"):
            late.step("move up")


def test_an_answer_that_comes_twice_is_taken_once(peer, url):
    peer.fault = lambda op, body: "twice"
    near = MAZE.make(TASK)
    near.reset()
    with RemoteWorld(url) as world:
        env = begun(world)
        for action in ("move up", "move right", "move down", "move left"):
            assert env.step(action)[:4] == near.step(action)[:4]


def test_a_connection_that_breaks_again_and_again_ends_the_episode(peer, url, transport):
    peer.fault = lambda op, body: "drop" if op == "step" else None
    with RemoteWorld(url, transport=transport) as world:
        env = begun(world)
        with pytest.raises(EnvLost, match="lost 4 times in one step"):
            env.step("move up")
        with pytest.raises(EnvLost, match="the environment is lost"):
            env.step("move up")
    assert peer.taken == [("s1", 0)], "taken once, though it was sent four times"


def test_a_session_that_the_server_has_lost(peer, url, transport):
    with RemoteWorld(url, transport=transport) as world:
        env = begun(world)
        peer.sessions.clear()
        with pytest.raises(EnvLost, match="has lost the session: unknown session"):
            env.step("move up")


def test_episodes_survive_cuts_of_the_network(peer, url, transport):
    """The connection is cut again and again while 6 episodes run: the same trajectories, and no step taken twice."""
    starts = [Start(task, n) for task in MAZE.tasks("dev", "seen")[:3] for n in range(2)]
    wanted = {done.id: done for done in collect({"maze": MAZE}, starts, Random(), engine=None)}
    over = threading.Event()
    with Proxy(url) as proxy, RemoteWorld(proxy.url, transport=transport, heartbeat_s=2) as world:
        proxy.pace = 0.005

        def shear():
            while not over.wait(0.15):
                proxy.cut()

        cutter = threading.Thread(target=shear)
        cutter.start()
        try:
            done = {done.id: done for done in collect({"maze": world}, starts, Random(), engine=None)}
        finally:
            over.set()
            cutter.join()
        assert done == wanted
        assert len(peer.taken) == len(set(peer.taken)) == sum(len(trajectory.steps) for trajectory in done.values())
        assert proxy.connections > 2


# answers that are none

GARBAGE = {
    "no JSON": b"<html>Bad Gateway</html>",
    "no object": b'["a", "list"]',
    "nothing": b"{}",
    "an error in words": b'{"error": "Environment not initialised"}',
    "NaN": b'{"observation": "x", "reward": NaN, "terminated": false, "truncated": false, "info": {}, "step": 0}',
    "huge": b'{"observation": "x", "reward": 1e400, "terminated": false, "truncated": false, "info": {}, "step": 0}',
    "text for a number": b'{"observation": "x", "reward": "1", "terminated": false, "truncated": false, "step": 0}',
    "another step": b'{"observation": "x", "reward": 0, "terminated": false, "truncated": false, "step": 7}',
    "deep": b"[" * 20_000,
    "no UTF-8": b'{"observation": "\xff\xfe"}',
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=list(GARBAGE))
def test_an_answer_over_http_that_is_none(peer, url, body):
    peer.fault = lambda op, _: body if op in ("step", "score", "create") else None
    with RemoteWorld(url, transport="http") as world:
        with pytest.raises(WorldError, match=r"http://127\.0\.0\.1") as caught:
            begun(world)
        assert type(caught.value) is WorldError
        peer.fault = lambda op, _: body if op in ("step", "score") else None
        env = begun(world)
        for call in (lambda: env.step("move up"), lambda: world.score((0.0,), {})):
            with pytest.raises(WorldError, match=r"http://127\.0\.0\.1") as caught:
                call()
            assert type(caught.value) is WorldError
            assert "got" in str(caught.value), "the head of the answer is shown"


@pytest.mark.parametrize("body", GARBAGE.values(), ids=list(GARBAGE))
def test_a_message_of_a_socket_that_is_none(peer, url, body):
    peer.fault = lambda op, _: body if op == "step" else None
    with RemoteWorld(url) as world:
        env = begun(world)
        with pytest.raises(WorldError, match=r"127\.0\.0\.1") as caught:
            env.step("move up")
        assert type(caught.value) is WorldError
        peer.fault = lambda op, _: None
        assert begun(world).step("move up"), "a new connection was opened"


@pytest.mark.parametrize("body", [b'{"tasks": {}}', b'{"tasks": [1]}', b'{"rows": []}', b'{"tasks": [{"id": "x"}]}'])
def test_a_panel_that_is_none(peer, url, body):
    peer.pages["/v1/worlds/maze/tasks"] = (200, (), body)
    with RemoteWorld(url) as world:
        with pytest.raises(WorldError, match=r"http://127\.0\.0\.1"):
            world.tasks("dev", "seen")


@pytest.mark.parametrize("status", [400, 404, 418, 500])
def test_a_status_without_a_typed_error(peer, url, status):
    peer.pages["/v1/sessions"] = (status, (), b'{"detail": "Not Found \x1b[31m"}')
    with RemoteWorld(url, transport="http") as world:
        with pytest.raises(WorldError, match=rf"POST http://.*/v1/sessions: status {status}.*Not Found") as caught:
            begun(world)
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_that_reaches_nobody_is_a_lost_connection(peer, url, status):
    left = [1, 2]
    pages = peer.pages
    pages["/v1/sessions"] = (status, (), b"Bad Gateway")
    with RemoteWorld(url, transport="http", timeout_s=1.5) as world:
        with pytest.raises(EnvLost, match="Bad Gateway"):
            begun(world)
        del pages["/v1/sessions"]
        assert left and begun(world).step("move up")


# who is there


def test_nobody_is_there():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(EnvLost, match=r"no server at http://127\.0\.0\.1:\d+ after"):
            RemoteWorld(f"http://127.0.0.1:{bound.getsockname()[1]}", timeout_s=0.3)


def test_somebody_else_is_there(peer, url):
    for page in ((200, (), b'{"status": "healthy"}'), (404, (), b'{"detail": "Not Found"}'), (200, (), b"hello")):
        peer.pages["/v1"] = page
        with pytest.raises(WorldError, match=r"http://127\.0\.0\.1.*expected an answer of the native dialect"):
            RemoteWorld(url)


def test_a_server_that_came_back_with_another_version(peer, url, transport):
    other = Maze(sizes=Sizes(train=4, dev=6, test=2))
    other.version = "99"
    with Proxy(url) as proxy, RemoteWorld(proxy.url, transport=transport, timeout_s=5) as world:
        env = begun(world)
        peer.worlds["maze"] = other
        proxy.cut()
        if transport == "http":  # without a lasting connection its loss is seen when one is used
            peer.fault = only_once("drop")
            env.step("move up")
        with pytest.raises(VersionMismatch, match=f"got 99, expected {MAZE.version}"):
            begun(world)
        del peer.worlds["maze"]
        proxy.cut()
        with pytest.raises((EnvLost, ConfigError)):
            begun(world)


def test_redirects_are_not_followed(peer, url, transport):
    trap = NativePeer(MAZE)
    with serving(trap) as elsewhere:
        away = (307, [(b"location", f"{elsewhere}/v1/ws".encode())], b"")
        peer.pages["/v1"] = away
        with pytest.raises(WorldError, match=r"refused a redirect: got .*/v1/ws"):
            RemoteWorld(url, transport=transport, token=TOKEN)
        del peer.pages["/v1"]
        peer.denial = away
        if transport == "ws":
            with RemoteWorld(url, token=TOKEN) as world:
                with pytest.raises(WorldError, match="status 307"):
                    begun(world)
    assert trap.headers == []


def test_proxies_of_the_environment_are_not_used(peer, url, transport, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "WS_PROXY", "ws_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RemoteWorld(url, transport=transport) as world:
        begun(world).close()


# the token


def test_the_token_opens_the_door(peer, url, transport):
    peer.token = TOKEN
    with RemoteWorld(url, token=TOKEN, transport=transport) as world:
        begun(world).step("move up")
    assert all(headers["evolvent-protocol"] == "1" for headers in peer.headers)
    for wrong in (None, "sesame"):
        with pytest.raises(AccessDenied):
            RemoteWorld(url, token=wrong, transport=transport)


def test_a_door_that_closes_later(peer, url, transport):
    peer.token = TOKEN
    with RemoteWorld(url, token=TOKEN, transport=transport) as world:
        peer.token = "another"
        with pytest.raises(AccessDenied):
            begun(world)


def test_the_token_is_in_no_text(peer, url, transport, caplog):
    """A server that throws the token back at us in every way, and logs of everything."""
    caplog.set_level(logging.DEBUG)
    peer.token = TOKEN
    said = []
    echo = compact({"error": {"kind": "WorldError", "message": f"no {TOKEN}", "expected": TOKEN, "status": 500}})
    for answer in (echo, TOKEN.encode(), compact({"detail": TOKEN})):
        with RemoteWorld(url, transport=transport, token=TOKEN) as world:
            said.append(repr(world) + repr(vars(world)))
            env = begun(world)
            peer.fault = lambda op, body, answer=answer: answer if op in ("step", "score") else None
            for call in (lambda env=env: env.step("move up"), lambda world=world: world.score((1.0,), {})):
                with pytest.raises(EvolventError) as caught:
                    call()
                said.append(f"{caught.value!r} {caught.value} {vars(caught.value)}")
            peer.fault = lambda op, body: None
    assert len(said) == 9 and "***" in "".join(said)
    assert all(TOKEN not in text for text in [*said, caplog.text])
    assert "HTTP Request" in caplog.text, "the logs were on"


def test_a_token_that_no_header_can_carry_is_refused_and_not_shown():
    for token in ("", "two\nlines", "ünicode", " "):
        with pytest.raises(ConfigError, match="token") as caught:
            RemoteWorld("http://127.0.0.1:1", token=token)
        assert token.strip() == "" or token not in str(caught.value)

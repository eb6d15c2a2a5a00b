"""Fault 1: the server is killed, or the network swallows everything, with 8 episodes open.

Those episodes end with EnvLost and no reward, known by signs of life and not by the long deadline of a step; the others
go on; the same world plays new episodes as soon as a server is there again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evolvent.agents.plain import Random
from evolvent.errors import EnvLost
from evolvent.rollout.episode import collect
from evolvent.rollout.evaluate import summarize_outcomes
from evolvent.serve.remote.world import RemoteWorld
from evolvent.trajectory import Score, Start
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer, Proxy, serving

ROOT = Path(__file__).parents[2]
SERVER = """
import socket, sys, uvicorn
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.native.http import NativeDialect
from evolvent.web import Access
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
worlds = {"maze": Maze(sizes=Sizes(train=4, dev=10, test=2))}
app = build_app(LocalHost(worlds), TaskIndex(worlds), access=Access(), dialects=[NativeDialect()])
bound = socket.socket(fileno=int(sys.argv[1]))
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([bound])
"""
MAZE = Maze(sizes=Sizes(train=4, dev=10, test=2))
OTHER = Crafting(sizes=Sizes(train=4, dev=4, test=4))
TASKS = MAZE.tasks("dev", "seen")
LONG_S = 300.0  # the deadline of a step: nothing here may wait for it


@contextlib.contextmanager
def process(port=0):
    """A server in a process of its own; yields it and its address."""
    with socket.create_server(("127.0.0.1", port)) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(bound.fileno())], pass_fds=[bound.fileno()], env=env
        )
    try:
        with contextlib.suppress(urllib.error.HTTPError):  # any answer: it is there
            urllib.request.urlopen(url, timeout=60).close()
        yield server, url
    finally:
        server.kill()
        server.wait()


def opened(world, count):
    envs = [world.make(task) for task in TASKS[:count]]
    for env in envs:
        env.reset()
        env.step("move up")
    return envs


def lost(env):
    with pytest.raises(EnvLost) as caught:
        env.step("move up")
    return str(caught.value)


@pytest.mark.parametrize("transport", ["ws", "http"])
def test_a_killed_server_is_known_and_a_new_one_is_found(transport):
    with process() as (server, url):
        world = RemoteWorld(url, transport=transport, timeout_s=LONG_S, heartbeat_s=0.5)
        with world:
            envs = opened(world, 8)
            server.send_signal(signal.SIGKILL)
            server.wait()
            with ThreadPoolExecutor(8) as pool:
                errors = list(pool.map(lost, envs))
            assert all("is lost" in error for error in errors)
            for env in envs:
                env.close()
            with process(port=int(url.rpartition(":")[2])):
                fresh = opened(world, 8)
                near = MAZE.make(TASKS[0])
                near.reset()
                near.step("move up")
                assert fresh[0].step("move right")[:4] == near.step("move right")[:4]


class Assassin:
    """Plays at random; kills the server when 8 episodes of the maze have taken a step."""

    def __init__(self, kill):
        self.kill, self.seen, self.random = kill, set(), Random()

    def begin(self, world, task, *, seed):
        mind, agent = self.random.begin(world, task, seed=seed), self

        class Mind:
            def act(self, observation, info):
                if world.name == "maze":
                    agent.seen.add((task.id, seed))
                    if len(agent.seen) == 8:
                        agent.kill()
                return (yield from mind.act(observation, info))

        return Mind()


def test_a_collection_goes_on_without_the_lost_episodes():
    starts = [Start(task) for task in TASKS[:8]]
    others = [Start(task, n) for tier in OTHER.tiers for task in OTHER.tasks("dev", tier) for n in range(2)]
    wanted = {done.id: done for done in collect({"crafting": OTHER}, others, Random(), engine=None)}
    with process() as (server, url), RemoteWorld(url, timeout_s=LONG_S, heartbeat_s=0.5) as world:
        worlds = {"maze": world, "crafting": OTHER}
        done = list(collect(worlds, [*starts, *others], Assassin(server.kill), engine=None))
    lost = [trajectory for trajectory in done if trajectory.task.world == "maze"]
    assert len(lost) == 8 and len(done) == 8 + len(others)
    assert all(trajectory.ended_by == "error" and trajectory.error.kind == "EnvLost" for trajectory in lost)
    assert all(trajectory.score == Score(None, None, None) for trajectory in lost)
    assert {one.id: one for one in done if one.task.world == "crafting"} == wanted
    rows = {row.world: row for row in summarize_outcomes(done)}
    assert rows["maze"].mean is None and rows["maze"].errors == 8, "no mean over what could not be scored"
    assert rows["crafting"].errors == 0


def test_a_network_that_swallows_everything_is_known_by_the_missing_signs_of_life():
    with serving(NativePeer(MAZE)) as url, Proxy(url) as proxy:
        with RemoteWorld(proxy.url, timeout_s=LONG_S, heartbeat_s=0.25) as world:
            envs = opened(world, 8)
            proxy.silent = True
            with ThreadPoolExecutor(8) as pool:
                errors = list(pool.map(lost, envs))
            assert all("no sign of life for 0.5 s" in error for error in errors)
            for env in envs:
                env.close()
            proxy.silent = False
            begun = opened(world, 2)
            assert begun[1].step("move left")


def test_a_quiet_world_is_no_lost_world():
    """A step that takes many heartbeats while the server lives is waited for."""
    peer = NativePeer(MAZE)
    peer.fault = lambda op, body: 0.9 if op == "step" else None
    with serving(peer) as url, RemoteWorld(url, timeout_s=LONG_S, heartbeat_s=0.25) as world:
        env = world.make(TASKS[0])
        env.reset()
        assert env.step("move up")[0]
        threading.Event().wait(0.3)
        assert env.step("move up")[0], "nor is one that nobody asks"
        assert peer.ops("step") == 2

"""Fault 10: a world that says ten megabytes, and a raw server whose response never ends.

What is too long is an error that says so; it is counted while it comes in and never held whole.
"""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

import evolvent as ev
from evolvent.errors import LimitExceeded
from evolvent.serve.remote.http import MAX_PANEL_BYTES, MAX_REPLY_BYTES
from evolvent.serve.remote.link import MAX_TEXT_CHARS
from evolvent.serve.remote.socket import MAX_MESSAGE_BYTES
from evolvent.serve.remote.world import RemoteWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer, compact, serving

MAZE = Maze(sizes=Sizes(train=4, dev=4, test=2))
TASK = MAZE.tasks("dev", "seen")[0]
CHUNK = b"x" * 65536


class Talkative(ev.TextWorld):
    """Answers with as many characters as it is told."""

    name, horizon, instructions, run_in_thread = "talkative", 9, "give a number", False

    def specs(self):
        return [{"n": n} for n in range(30)]

    def play(self, spec):
        said = yield "how many?"
        while True:
            said = yield "y" * int(said)


@pytest.fixture(params=["ws", "http"])
def transport(request):
    return request.param


def test_a_long_observation_ends_its_own_episode_only(transport):
    world = Talkative()
    with serving(NativePeer(world)) as url, RemoteWorld(url, transport=transport) as far:
        envs = [far.make(task) for task in world.tasks("train", "seen")[:4]]
        for env in envs:
            env.reset()
        assert len(envs[0].step(str(MAX_TEXT_CHARS))[0]) == MAX_TEXT_CHARS
        wrong, right = [], []
        # Two that say too much (one of them more than a message may hold) beside two that do not, at one moment.
        asked = [str(MAX_TEXT_CHARS + 1), str(MAX_MESSAGE_BYTES + 1), "5", "7"]

        def play(env, said):
            try:
                right.append(len(env.step(said)[0]))
            except LimitExceeded as error:
                wrong.append(str(error))

        threads = [threading.Thread(target=play, args=pair) for pair in zip(envs, asked, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(right) == [5, 7]
        assert len(wrong) == 2 and all("at most" in text and len(text) < 1000 for text in wrong)
        assert len(envs[2].step("3")[0]) == 3, "the others go on"


@contextlib.contextmanager
def endless_http(head):
    """A server that answers the first path with `head` and then never stops. Counts what it could send."""
    sent, over = [0], threading.Event()

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head)
            while not over.is_set():
                sent[0] += connection.send(CHUNK)

    def accept(server):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", sent
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n",
    ],
    ids=["to the end", "a length", "packed"],
)
def test_a_response_without_end_is_given_up_at_the_limit(head):
    with endless_http(head) as (url, sent):
        with pytest.raises(LimitExceeded, match=f"GET {url}/v1: .*at most {MAX_REPLY_BYTES}"):
            RemoteWorld(url)
        assert sent[0] < 4 * MAX_REPLY_BYTES, "no more was read than the limit and what was under way"


class Endless(NativePeer):
    """Sends one message of a WebSocket without end, in pieces."""

    async def socket(self, receive, send, allowed):
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.send", "text": "x" * (MAX_MESSAGE_BYTES + 1)})
        await receive()


def test_a_message_that_is_too_large_is_given_up():
    with serving(Endless(MAZE)) as url, RemoteWorld(url) as world:
        with pytest.raises(LimitExceeded, match="the connection was lost: got close code 1009"):
            world.make(TASK).reset()


def test_a_panel_that_is_too_large():
    peer = NativePeer(MAZE)

    def parts():
        yield b'{"tasks": ['
        yield from [b" " * (1 << 20)] * ((MAX_PANEL_BYTES >> 20) + 8)

    peer.pages["/v1/worlds/maze/tasks"] = (200, (), parts())
    with serving(peer) as url, RemoteWorld(url) as world:
        with pytest.raises(LimitExceeded, match="too large"):
            world.tasks("dev", "seen")


def test_a_first_observation_is_measured_too(transport):
    peer = NativePeer(MAZE)
    long = {"session": "s1", "observation": "z" * (MAX_TEXT_CHARS + 1), "info": {}}
    with serving(peer) as url, RemoteWorld(url, transport=transport) as world:
        if transport == "http":
            peer.pages["/v1/sessions"] = (200, (), compact(long))
        else:
            peer.create = lambda body: long
        with pytest.raises(LimitExceeded, match="the observation is too long"):
            world.make(TASK).reset()

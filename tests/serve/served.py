"""Real servers for tests: uvicorn on a thread over a real socket, with small worlds, always stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

import evolvent as ev
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.connections import ConnectionTable
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.protocol import LimitedServer, make_server_config
from evolvent.web import build_access
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.panel import Sizes

SIZES = Sizes(train=30, dev=20, test=20)


class Echo(ev.TextWorld):
    """Says every action again, with a number; `quit` ends it. Some actions misbehave on purpose."""

    name, horizon, instructions, run_in_thread = "echo", 50, "say something", False

    def specs(self):
        return [{"number": n} for n in range(40)]

    def play(self, spec):
        said = yield f"task {spec['number']}"
        count = 0
        while said != "quit":
            count += 1
            if said == "fail":
                raise ZeroDivisionError("a bug in the world")
            said = yield f"{count}: {said}", 0.0
        return 1.0


class Sleepy(Echo):
    """Echo on threads: `sleep` hangs until it is released; `wait` takes a moment."""

    name, run_in_thread = "sleepy", True

    def __init__(self):
        self.release, self.closed, self.running = threading.Event(), 0, 0
        self.most = 0

    def play(self, spec):
        try:
            said = yield f"task {spec['number']}"
            count = 0
            while said != "quit":
                self.running += 1
                self.most = max(self.most, self.running)
                if said == "sleep":
                    self.release.wait(60)
                if said == "wait":
                    time.sleep(0.05)
                self.running -= 1
                count += 1
                said = yield f"{count}: {said}", 0.0
            return 1.0
        finally:
            self.closed += 1


def small_worlds(names: Any = None) -> dict[str, Any]:
    """The worlds of the tests, also as the factory of worker processes."""
    made = {"echo": Echo(), "sleepy": Sleepy(), "crafting": Crafting(sizes=SIZES)}
    return {name: made[name] for name in names or made}


@dataclass
class Served:
    """A server that runs."""

    url: str
    host: Any
    server: uvicorn.Server

    def client(self, **more: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, trust_env=False, verify=False, timeout=30, **more)

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/ws"


@contextmanager
def serving(
    worlds=None, *, host=None, access=None, faces=None, specs=False, connections=None, **local
) -> Iterator[Served]:
    """Serve on a thread. `local`: arguments of the `LocalHost` that is used where no host is given."""
    worlds = worlds if worlds is not None else small_worlds()
    host = host or LocalHost(worlds, **local)
    connections = connections or ConnectionTable()
    made = build_app(
        host,
        TaskIndex(host.worlds, specs=specs),
        access=access or build_access("127.0.0.1"),
        dialects=[NativeDialect()] if faces is None else faces,
        connections=connections,
    )
    config = make_server_config(
        made,
        connections,
        log_level="critical",
        lifespan="on",
        ws_per_message_deflate=False,
        ws_max_size=2**20,
        timeout_graceful_shutdown=5,
    )
    server = LimitedServer(config)
    with listen("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive(), 60)
            assert server.started, "the server did not start"
            yield Served(listening_url(bound), host, server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def until(true: Any, seconds: float = 60.0) -> None:
    """Wait for something that happens in another thread or process; never a measurement."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def begin(client: httpx2.Client, world: str = "echo", index: int = 0) -> str:
    """A session that runs; returns its id."""
    panel = client.get(f"/v1/worlds/{world}/tasks", params={"split": "train", "tier": "seen"}).json()["tasks"]
    answer = client.post("/v1/sessions", json={"world": world, "task": panel[index]["id"]})
    assert answer.status_code == 201, answer.text
    return answer.json()["session"]


QUICK = WorldDeadlines(reset_s=5.0, step_s=0.3)

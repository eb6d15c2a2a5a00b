"""Small text and tool worlds, and servers of OpenEnv and MCP faces over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from evolvent.messages import Tool
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.serve.protocol import LimitedServer, make_server_config
from evolvent.web import Access
from evolvent.worlds.base import TextWorld


class Count(TextWorld):
    """Say `up` until the number is reached; `stop` ends it, `slow` takes its time, anything else is told off."""

    name, version, instructions, horizon = "count", "1", "Say up until the number is reached.", 9

    def __init__(self, name="count", *, blocking=False):
        self.name, self.run_in_thread = name, blocking

    def specs(self):
        return ({"to": number} for number in range(1, 31))

    def play(self, spec):
        heard = yield f"count to {spec['to']}"
        at = 0
        while heard != "stop":
            if heard == "slow":
                time.sleep(0.8)
            at += heard == "up"
            if at == spec["to"]:
                return 1.0
            heard = yield (f"at {at}", 0.25) if heard == "up" else f"cannot {heard}"
        return 0.0


class _Env:
    """An Env around another that marks refusals, tells what is legal, and cuts the episode off after four steps."""

    def __init__(self, inner):
        self.inner, self.steps = inner, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.inner.reset(seed=seed)[0], {"admissible": ["up", "stop"], "seed": seed, "deep": {"a": (1, 2.5)}}

    def step(self, action):
        self.steps += 1
        observation, reward, terminated, _, _ = self.inner.step(action)
        info = {"steps": self.steps, **({"invalid": True} if observation.startswith("cannot") else {})}
        return observation, None if action == "none" else reward, terminated, self.steps == 4 and not terminated, info

    def close(self):
        self.inner.close()


class Told(Count):
    """The same with infos, rewards that are not scored, and a horizon of its own."""

    def __init__(self):
        super().__init__("told")

    def make(self, task):
        return _Env(super().make(task))


class Box:
    def __init__(self, *tools):
        self.tools = tools


class Till(TextWorld):
    """Calls of tools: add numbers until the sum is reached, then finish."""

    name, version, instructions, run_in_thread = "till", "1", "Add until the sum is reached, then finish.", False

    def specs(self):
        return ({"to": number} for number in range(1, 31))

    def toolbox(self, task):
        number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return Box(Tool("add", "Add a number.", number), Tool("finish", "End.", {"type": "object"}))

    def render(self, call):
        return f"{call.name} {call.arguments.get('n', '')}".strip()

    def play(self, spec):
        heard = yield f"reach {spec['to']}"
        at = 0
        while heard != "finish":
            name, _, number = heard.partition(" ")
            right = name == "add" and number.isdigit()
            at += int(number) if right else 0
            heard = yield f"the sum is {at}" if right else "add needs n"
        return 1.0 if at == spec["to"] else 0.0


@contextmanager
def serving(app, connections=None, **settings) -> Iterator[str]:
    """The address (host:port) of an ASGI app on a real socket; stopped at the end."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else no TCP_NODELAY: answers in two parts wait 40 ms
    listener.bind(("127.0.0.1", 0))
    server = LimitedServer(make_server_config(app, connections, log_level="error", **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def faces(*built, worlds=(), capacity=16, access=None, step_s=0.3):
    """Serve faces; yields (address, host)."""
    every = {world.name: world for world in worlds or (Count(), Told(), Till(), Count("slow", blocking=True))}
    host, catalogue = LocalHost(every, capacity=capacity, limits=WorldDeadlines(step_s=step_s)), TaskIndex(every)
    with serving(build_app(host, catalogue, access=access or Access(), dialects=built)) as address:
        yield address, host


def emptied(host, within_s=60.0):
    """Whether all sessions of a host are given back, now or soon."""
    end = time.monotonic() + within_s
    while sum(host.status().sessions.values()) and time.monotonic() < end:
        time.sleep(0.01)
    return not sum(host.status().sessions.values())

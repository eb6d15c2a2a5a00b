"""A real server with AgentGym mounts, and small worlds for the dialects that no embedded world speaks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import uvicorn

from evolvent.serve.agentgym.face import AgentGymDialect
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.web import Access
from evolvent.worlds.base import TextWorld, World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from evolvent.worlds.wordle import Wordle

SIZES = Sizes(train=30, dev=20, test=20)
WORDS = ("crane", "slate", "adieu", "stare", "eerie", "house", "mouse", "pound", "light", "night", "might", "sight")


class Echo(TextWorld):
    """Says what it heard: `say TEXT` is answered, `give NUMBER` earns, `end NUMBER` ends; `sleep S`, `break` fail."""

    horizon = 6

    def __init__(self, name: str = "echo", *, tasks: int = 12, blocking: bool = False) -> None:
        self.name, self._tasks, self.run_in_thread = name, tasks, blocking

    def specs(self):
        return [{"number": number} for number in range(self._tasks)]

    def play(self, spec):
        heard = yield f"task {spec['number']}"
        while True:
            word, _, rest = heard.partition(" ")
            if word == "end":
                return float(rest)
            if word == "sleep":
                time.sleep(float(rest))
            if word == "break":
                raise RuntimeError("the world broke")
            heard = yield (f"heard {heard} of {spec['number']}", float(rest) if word == "give" else 0.0)


class Shop(TextWorld):
    """Two pages; clicking the wanted thing pays by how well it fits."""

    name = "webshop"
    run_in_thread = False

    def specs(self):
        return [{"want": want} for want in ("tea", "cup", "mat", "pot")]

    def play(self, spec):
        page = f"WebShop [SEP] Instruction: [SEP] Find me {spec['want']} [SEP] Search"
        heard = yield page
        while True:
            if heard == f"click[buy {spec['want']}]":
                return 1.0
            if heard == "click[buy thing]":
                return 0.5
            heard = yield f"Results [SEP] buy {spec['want']}" if heard.startswith("search[") else page


class Calls(TextWorld):
    """A world of tools by text: `add {"by": 0.5}` earns, `finish {...}` ends."""

    run_in_thread = False

    def __init__(self, name: str) -> None:
        self.name = name

    def specs(self):
        return [{"goal": f"reach {goal}"} for goal in range(8)]

    def play(self, spec):
        heard = yield spec["goal"]
        while True:
            if heard.startswith("finish"):
                return 0.5
            heard = yield (f"did {heard}", 0.5 if heard.startswith("add") else 0.0)


def worlds() -> dict[str, World]:
    made: Sequence[World] = (
        Crafting(sizes=SIZES),
        Maze("double_t"),
        Maze(sizes=SIZES),
        Wordle(WORDS, sizes=SIZES),
        GridWorld("babyai", text="babyai", sizes=SIZES),
        Shop(),
        Echo(),
        Echo("sql"),
        Echo("searchqa"),
        *(Calls(name) for name in ("weather", "movie", "academia", "todo", "sheet")),
    )
    return {world.name: world for world in made}


MOUNTS = {
    "textcraft": ("crafting", "textcraft"),
    "babyai": ("babyai", "babyai"),
    "sciworld": ("echo", "sciworld"),
    "alfworld": ("crafting", "alfworld"),
    "maze": ("double_t", "maze"),
    "wordle": ("wordle", "wordle"),
    "webshop": ("webshop", "webshop"),
    "sqlgym": ("sql", "sqlgym"),
    "searchqa": ("searchqa", "searchqa"),
    "webarena": ("echo", "webarena"),
    "mazes": ("maze", "maze"),
    "echo": ("echo", "textcraft"),
    **{name: (name, name) for name in ("weather", "movie", "academia", "todo", "sheet")},
}


@dataclass
class Served:
    """A running server: its address, its host."""

    url: str
    host: LocalHost

    def mount(self, name: str) -> str:
        return f"{self.url}/agentgym/{name}"


@contextlib.contextmanager
def running(app, *, lifespan: str = "on") -> Iterator[str]:
    """The address of an ASGI app that runs on a port of its own until the end of the block."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as free:  # named: else without NODELAY
        free.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan=lifespan, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.005)
            yield f"http://127.0.0.1:{free.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


@contextlib.contextmanager
def serving(
    made: Mapping[str, World] | None = None,
    mounts: Mapping[str, tuple[str, str]] | None = None,
    *,
    capacity: int = 256,
    idle_s: float = 600.0,
    step_s: float = 5.0,
    access: Access | None = None,
) -> Iterator[Served]:
    """A server with the mounts (default: all of `MOUNTS` over `worlds()`)."""
    made = worlds() if made is None else made
    host = LocalHost(made, capacity=capacity, idle_s=idle_s, limits=WorldDeadlines(step_s=step_s))
    face = AgentGymDialect(MOUNTS if mounts is None else mounts)
    with running(build_app(host, TaskIndex(made), access=access or Access(), dialects=[face])) as url:
        yield Served(url, host)

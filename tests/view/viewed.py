"""The viewer of a folder on a real socket, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from evolvent.cli.view import read_leaderboard
from evolvent.serve.connections import ConnectionTable
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.protocol import LimitedServer, make_server_config
from evolvent.view.app import viewer_app
from evolvent.web import build_access

TOKEN = "a-token-of-24-characters"


@dataclass(frozen=True)
class Viewed:
    """Where it listens, a client that bears the token, and the keys of its runs by name."""

    url: str
    client: httpx2.Client

    @property
    def door(self) -> str:
        return f"{self.url}/enter/{TOKEN}"

    def key(self, name: str) -> str:
        text = self.client.get("/").text
        before = text.split(f"><bdi>{name}</bdi>")[0]
        return before.rpartition("/run/")[2][:12]

    def get(self, path: str, **values: object) -> str:
        answer = self.client.get(path, params={name: str(value) for name, value in values.items()})
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:400])
        return answer.text


@contextmanager
def viewed(folder: Path, *, connections: ConnectionTable | None = None, **more: object) -> Iterator[Viewed]:
    """Serve it until the block ends."""
    app = viewer_app(folder, access=build_access("127.0.0.1"), token=TOKEN, boards=read_leaderboard, **more)
    bound = listen("127.0.0.1", 0)
    server = LimitedServer(make_server_config(app, connections, log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=listening_url(bound), headers=headers, trust_env=False, timeout=60) as client:
            yield Viewed(listening_url(bound), client)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()

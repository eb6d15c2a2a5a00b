"""The command `evolvent serve` in a process of its own, on a port that the system chooses."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from evolvent.serve.launch import launch_server
from tests.faults.launched import Launched
from tests.serve.served import until

PROGRAM = (sys.executable, "-m", "evolvent.cli.main", "serve")


def command(*words: object, token: str = "", **env: str):
    """Run it for as long as the block lasts; what serves a policy is forked from a process with torch in memory."""
    told, env = [*map(str, words), "--port", "0"], {"EVOLVENT_TOKEN": token, **env}
    return _forked(told, env) if "--policy" in told else launch_server([*PROGRAM, *told], env=env)


def expect_output(server, *texts: str) -> None:
    """Wait until a running server has written every text: its lines come after it listens, one by one."""
    for text in texts:
        with contextlib.suppress(AssertionError):
            until(lambda text=text: text in server.output)
        assert text in server.output


class Forked:
    """A forked server, as `launched` gives one.

    Attributes:
        process: the child; it has `kill`.
    """

    def __init__(self, server: Launched) -> None:
        self._server, self.process = server, server.processes[0]

    @property
    def output(self) -> str:
        return self._server.said()

    @property
    def url(self) -> str:
        """Where it answers: the first address that it writes; "" before it does."""
        found = re.search(r"http://[\w.]+:\d+", self.output)
        return found[0] if found else ""

    def answers(self) -> bool:
        host, _, port = self.url.removeprefix("http://").partition(":")
        with socket.socket() as stranger:
            return bool(port) and stranger.connect_ex((host, int(port))) == 0


@contextmanager
def _forked(words: list[str], env: dict[str, str]):
    with tempfile.TemporaryDirectory() as folder, Launched(1, ["serve", *words], cwd=Path(folder), env=env) as server:
        found, end = Forked(server), time.monotonic() + 60
        while not found.answers():
            assert found.process.is_alive() and time.monotonic() < end, found.output
            time.sleep(0.05)
        try:
            yield found
        finally:
            if found.process.is_alive():
                os.kill(found.process.pid or 0, signal.SIGTERM)
            server.wait(seconds=60)

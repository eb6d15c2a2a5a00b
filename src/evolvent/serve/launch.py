"""A server as a child process, for as long as a `with` block lasts: ours, or one of another platform.

with launched(["evolvent", "serve", "crafting", "--port", "0"]) as server:
    world = RemoteWorld(server.url)
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO
from urllib.parse import urlsplit

from evolvent.errors import ConfigError, EnvLost

__all__ = ["Launched", "launched"]

_URL = re.compile(r"https?://[^\s\"'<>]+")
_TAIL = 40  # lines of output that are kept
_STOP_S = 10.0
_POLL_S = 0.05


class Launched:
    """A server that runs.

    Attributes:
        url: where it answers.
        process: the child.
    """

    def __init__(self, process: subprocess.Popen[str], url: str | None) -> None:
        self.process, self._lines, self._url = process, deque[str](maxlen=_TAIL), url
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Where it answers; "" while that is not known."""
        return self._url or ""

    @property
    def output(self) -> str:
        """The last lines that it wrote, to standard output or error."""
        return "\n".join(self._lines)

    def _read(self) -> None:
        stream: IO[str] | None = self.process.stdout
        for line in stream or ():
            self._lines.append(line.rstrip())
            found = _URL.search(line) if self._url is None else None
            if found is not None:
                parts = urlsplit(found[0])
                self._url = f"{parts.scheme}://{parts.netloc}"

    def answers(self) -> bool:
        """Whether something listens at its address."""
        parts = urlsplit(self.url)
        if not parts.hostname or not parts.port:
            return False
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Terminate it, and kill it if that does not help; what it wrote is read to the end."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1.0)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()


@contextmanager
def launched(
    command: Sequence[str], *, url: str | None = None, ready_s: float = 60.0, env: Mapping[str, str] | None = None
) -> Iterator[Launched]:
    """Start a server, wait until it listens, stop it at the end of the block.

    Args:
        command: program and arguments; no shell reads them.
        url: where it will answer; None: the first address that it writes, as `evolvent serve` does.
        ready_s: how long it may take.
        env: of the process, beside this one's.

    Raises:
        ConfigError: the program cannot be started.
        EnvLost: it ended by itself, or did not listen in time; with the last lines of its output.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(env or {})},
        )
    except OSError as error:
        raise ConfigError(f"cannot start {command[0]!r}: {error.strerror or error}", value=" ".join(command)) from error
    server = Launched(process, url)
    try:
        _await(server, ready_s)
        yield server
    finally:
        server.stop()


def _await(server: Launched, ready_s: float) -> None:
    until = time.monotonic() + ready_s
    while not server.answers():
        code = server.process.poll()
        if code is not None or time.monotonic() > until:
            what = f"the server ended with exit code {code}" if code is not None else f"no answer in {ready_s:g} s"
            server.stop()
            raise EnvLost("the server did not start", value=what, hint=f"its last words:\n{server.output}")
        time.sleep(_POLL_S)

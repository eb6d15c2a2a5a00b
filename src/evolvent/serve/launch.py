"""A server as a child process, for the length of a `with` block: ours, or one of another platform.

with launch_server(["evolvent", "serve", "crafting", "--port", "0"]) as server:
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

__all__ = ["LaunchedServer", "launch_server"]

_URL = re.compile(r"https?://[^\s\"'<>]+")
_MAX_OUTPUT_LINES = 40  # lines of output that are kept
_STOP_S = 10.0
_POLL_S = 0.05


class LaunchedServer:
    """A running server.

    Attributes:
        url: address of the server.
        process: the child.
    """

    def __init__(self, process: subprocess.Popen[str], url: str | None) -> None:
        self.process, self._lines, self._url = process, deque[str](maxlen=_MAX_OUTPUT_LINES), url
        self._reader = threading.Thread(target=self._read_output, name="server-output", daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Returns the address of the server; "" while it is unknown."""
        return self._url or ""

    @property
    def output(self) -> str:
        """Returns the last lines of its standard output and error."""
        return "\n".join(self._lines)

    def _read_output(self) -> None:
        stream: IO[str] | None = self.process.stdout
        for line in stream or ():
            self._lines.append(line.rstrip())
            match = _URL.search(line) if self._url is None else None
            if match is not None:
                parts = urlsplit(match[0])
                self._url = f"{parts.scheme}://{parts.netloc}"

    def is_listening(self) -> bool:
        """Returns whether the server listens at its address."""
        parts = urlsplit(self.url)
        if not parts.hostname or not parts.port:
            return False
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Stops the server, and kills it if it does not terminate; its output is read to the end."""
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
def launch_server(
    command: Sequence[str], *, url: str | None = None, ready_s: float = 60.0, env: Mapping[str, str] | None = None
) -> Iterator[LaunchedServer]:
    """Starts a server, waits until it listens, and stops it at the end of the block.

    Args:
        command: program and arguments; no shell is involved.
        url: address of the server; None: the first address in its output, as `evolvent serve` prints it.
        ready_s: seconds until it must listen.
        env: environment variables beside those of this process.

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
    server = LaunchedServer(process, url)
    try:
        _wait_until_listening(server, ready_s)
        yield server
    finally:
        server.stop()


def _wait_until_listening(server: LaunchedServer, ready_s: float) -> None:
    until = time.monotonic() + ready_s
    while not server.is_listening():
        code = server.process.poll()
        if code is not None or time.monotonic() > until:
            problem = f"the server ended with exit code {code}" if code is not None else f"no answer in {ready_s:g} s"
            server.stop()
            raise EnvLost(
                "the server did not start", value=problem, hint=f"the last output of the server:\n{server.output}"
            )
        time.sleep(_POLL_S)

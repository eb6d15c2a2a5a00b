"""Players as processes of this machine (`--backend here?players=N`): what Ray's actors are, without Ray.

    this process                                     a player (`ray_player.Player`) each
    one thread a player: call, wait for its answer   <-- pipes -->  hello, play, more, stop
    weights: files that are named once               -- paths -->   read when a slice needs them

Nothing is pickled: a call is a JSON header and bytes. A player ends with its caller, even where that is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from evolvent.deadline import Deadline
from evolvent.errors import EngineError, EvolventError, boundary
from evolvent.files import write_atomic
from evolvent.scale.ray_player import Player
from evolvent.workers import CallerPipe, PipedProcess, pack_message

__all__ = ["ProcessHost", "open_processes", "serve_player"]

_PROGRAM = "from evolvent.scale.player_processes import serve_player; serve_player()"
_MAX_ANSWER_BYTES = 2**32 - 1  # as many as the length of a message can say


class _StoredContent:
    """A file of weights; it is deleted when nobody holds it any longer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


class _PlayerProcess:
    """A player and the thread that calls it, one call after another.

    Calls to a process that has ended answer None.
    """

    def __init__(self, setup: bytes) -> None:
        self._process = PipedProcess(
            _PROGRAM,
            [],
            name="a player",
            lost_error=EngineError,
            timeout_error=EngineError,
            max_answer_bytes=_MAX_ANSWER_BYTES,
        )
        self._calls: SimpleQueue[tuple[Future[bytes | None], str, tuple[object, ...]] | None] = SimpleQueue()
        self.call("start", setup)
        self._thread = Thread(target=self._answer_calls, daemon=True, name="player")
        self._thread.start()

    def call(self, name: str, *arguments: object) -> Future[bytes | None]:
        """Queues a call; returns its future answer."""
        future: Future[bytes | None] = Future()
        self._calls.put((future, name, arguments))
        return future

    def end(self) -> None:
        """Kills the process. The thread closes its pipes when it has left them."""
        self._calls.put(None)
        self._process.signal_end()

    def join(self) -> None:
        """Waits until the process is gone."""
        self._thread.join()

    def _answer_calls(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                future, name, arguments = call
                try:
                    future.set_result(self._make_call(name, arguments))
                except EvolventError as error:
                    future.set_exception(error)
        finally:
            self._process.kill()

    def _make_call(self, name: str, arguments: Sequence[object]) -> bytes | None:
        body = b"".join(argument for argument in arguments if isinstance(argument, bytes))
        header = {
            "call": name,
            "files": [str(argument.path) for argument in arguments if isinstance(argument, _StoredContent)],
            "numbers": [argument for argument in arguments if isinstance(argument, (int, float))],
        }
        with boundary(EngineError, "a call to a player cannot be sent"):
            message = pack_message(header, body)
        try:
            self._process.send(message, Deadline(inf))
            answer, content = self._process.read_answer(Deadline(inf))
        except EvolventError:  # it ended, or was killed because it was silent for too long
            return None
        if failure := answer.get("failed"):
            raise EngineError("a player failed", value=failure)
        return content


class ProcessHost:
    """Starts players as processes of this machine. `open_processes` creates it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._players: list[_PlayerProcess] = []

    def start(self, setup: bytes) -> _PlayerProcess:
        """Starts a player."""
        player = _PlayerProcess(setup)
        self._players.append(player)
        return player

    def call(self, player: _PlayerProcess, name: str, *arguments: object) -> Future[bytes | None]:
        """Calls a method of a player; returns its future answer."""
        return player.call(name, *arguments)

    def wait(self, calls: Sequence[Future[bytes | None]], *, timeout_s: float) -> Sequence[Future[bytes | None]]:
        """Waits until one of the calls is answered; returns the answered ones, none after `timeout_s` seconds."""
        return list(wait(calls, timeout_s, FIRST_COMPLETED).done)

    def take_answer(self, call: Future[bytes | None]) -> bytes | None:
        """Returns the answer to a call; None where the player is lost.

        Raises:
            EngineError: the player failed; the message says how.
        """
        return call.result()

    def end(self, player: _PlayerProcess) -> None:
        """Ends a player."""
        if player in self._players:
            self._players.remove(player)
            player.end()
            player.join()

    def store(self, content: NDArray[np.uint8]) -> _StoredContent:
        """Stores the content of a file where all players can read it, as long as what is returned is held."""
        path = self._folder / str(next(self._numbers))
        write_atomic(path, content.tobytes())
        return _StoredContent(path)

    def close(self) -> None:
        """Ends all players."""
        for player in list(self._players):
            self.end(player)


@contextmanager
def open_processes() -> Iterator[ProcessHost]:
    """Yields a host of players on this machine, and ends its players after the block."""
    with ExitStack() as stack:
        host = ProcessHost(Path(stack.enter_context(TemporaryDirectory(prefix="evolvent-players-"))))
        stack.callback(host.close)
        yield host


def serve_player() -> None:
    """Serves the calls of the process that started this one until it is gone."""
    watched = os.dup(0)
    Thread(target=_end_with_caller, args=(watched,), daemon=True).start()
    pipe, player, failure = CallerPipe(), None, ""
    while (message := pipe.read_message()) is not None:
        request, body = json.loads(message[0]), message[1]
        content = b""
        try:  # an error of an episode is part of an answer; what is caught here is one of the player itself
            with boundary(EngineError, f"{request['call']} failed"):
                if player is None and not failure:
                    player = Player(body)
                elif player is not None:
                    files = [np.fromfile(path, np.uint8) for path in request["files"]]
                    arguments = [*([body] if body else []), *files, *request["numbers"]]
                    content = getattr(player, request["call"])(*arguments) or b""
        except EvolventError as error:
            failure = str(error)[-400:]
        pipe.write({"failed": failure} if failure else {}, content)


def _end_with_caller(handle: int) -> None:
    """Ends this process when the other end of a pipe is closed, also in the middle of an episode."""
    poller = select.poll()
    poller.register(handle, 0)  # a hang-up is always reported
    poller.poll()
    os._exit(1)

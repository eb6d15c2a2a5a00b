"""Players as processes of this machine (`--backend here?players=N`): what Ray's actors are, without Ray.

    this process                                     a player (`ray_player.Player`) each
    one thread a player: call, wait for its answer   <-- pipes -->  hello, play, more, stop
    weights: files that are named once               -- paths -->   read when a slice needs them

Nothing is pickled: a call is a JSON header and bytes. While a player works on a call it sends heartbeats from
another thread. A process that sends none for `SILENT_S` seconds, as one that is stopped, is killed and
counts as lost. A player ends with its caller, even where that is killed, and then deletes the files of weights.
Those of a caller that was killed together with its players are deleted where the next one begins.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import stat
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory, gettempdir
from threading import Event, Lock, Thread

import numpy as np
from numpy.typing import NDArray

from evolvent.deadline import Deadline
from evolvent.errors import EngineError, EvolventError, boundary
from evolvent.files import write_atomic
from evolvent.scale.ray_player import Player
from evolvent.store.lock import WriterLock, is_free
from evolvent.workers import CallerPipe, PipedProcess, pack_message

__all__ = ["ProcessHost", "open_processes", "serve_player"]

_PROGRAM = "import sys; from evolvent.scale.player_processes import serve_player; serve_player(*sys.argv[1:])"
SILENT_S = 120.0
"""Seconds without a heartbeat after which a player that works on a call is lost."""
_START_S = 300.0  # how long a process may take to import evolvent, before it can send heartbeats
_FOLDER_PREFIX, _LOCK_NAME = "evolvent-players-", "caller.lock"
_NEW_FOLDER_S = 60.0
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

    def __init__(self, setup: bytes, *, folder: Path, silent_s: float) -> None:
        self._silent_s = silent_s
        self._process = PipedProcess(
            _PROGRAM,
            [str(folder), repr(silent_s / 10)],
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
        limit_s = self._silent_s if name != "start" else max(self._silent_s, _START_S)
        try:
            self._process.send(message, Deadline(limit_s))
            answer, content = self._process.read_answer(Deadline(limit_s))
            while "beat" in answer:
                answer, content = self._process.read_answer(Deadline(self._silent_s))
        except EvolventError:  # it ended, or was silent for too long
            self._process.signal_end()
            return None
        if failure := answer.get("failed"):
            raise EngineError("a player failed", value=failure)
        return content


class ProcessHost:
    """Starts players as processes of this machine. `open_processes` creates it."""

    def __init__(self, folder: Path, *, silent_s: float) -> None:
        self._folder, self._silent_s, self._numbers = folder, silent_s, itertools.count()
        self._players: list[_PlayerProcess] = []

    def start(self, setup: bytes) -> _PlayerProcess:
        """Starts a player."""
        player = _PlayerProcess(setup, folder=self._folder, silent_s=self._silent_s)
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


def _sweep_stale_folders(parent: Path) -> None:
    """Deletes the weights of this user's callers that were killed together with all of their players.

    A caller holds a lock in its folder for as long as it lives. A new folder is left alone: it may not be locked yet.
    """
    for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError, EvolventError):  # another process sweeps, too
            status = folder.lstat()
            is_old = time.time() - status.st_mtime > _NEW_FOLDER_S
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and is_old and (folder / _LOCK_NAME).is_file() and is_free(folder / _LOCK_NAME):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_processes(*, silent_s: float = SILENT_S) -> Iterator[ProcessHost]:
    """Yields a host of players on this machine, and ends its players after the block.

    Args:
        silent_s: Seconds without a heartbeat after which a player that works on a call is lost.
    """
    with ExitStack() as stack:
        _sweep_stale_folders(Path(gettempdir()))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=_FOLDER_PREFIX)))
        stack.callback(WriterLock(folder / _LOCK_NAME).release)
        host = ProcessHost(folder, silent_s=silent_s)
        stack.callback(host.close)
        yield host


class _Heartbeat:
    """Sends heartbeats to the caller while a call is worked on, and none that follow its answer."""

    def __init__(self, pipe: CallerPipe, *, interval_s: float) -> None:
        self._pipe, self._interval_s, self._lock, self._is_working = pipe, interval_s, Lock(), Event()
        Thread(target=self._send, daemon=True).start()

    def begin(self) -> None:
        """Starts to send heartbeats."""
        self._is_working.set()

    def answer(self, header: Mapping[str, object], content: bytes) -> None:
        """Sends the answer to the call; it ends the heartbeats."""
        with self._lock:
            self._is_working.clear()
            self._pipe.write(header, content)

    def _send(self) -> None:
        with suppress(OSError):  # the caller is gone
            while self._is_working.wait():
                with self._lock:
                    if self._is_working.is_set():
                        self._pipe.write({"beat": True})
                time.sleep(self._interval_s)


def serve_player(folder: str, interval_s: str) -> None:
    """Serves the calls of the process that started this one until it is gone.

    Args:
        folder: Folder of the caller's files of weights, which is deleted where the caller is gone.
        interval_s: Seconds between two heartbeats.
    """
    watched = os.dup(0)
    Thread(target=_end_with_caller, args=(watched, folder), daemon=True).start()
    with suppress(BrokenPipeError):  # the caller was killed before it read an answer
        _serve_calls(CallerPipe(), interval_s=float(interval_s))
    with _DELETION:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_calls(pipe: CallerPipe, *, interval_s: float) -> None:
    player, failure = None, ""
    heartbeat = _Heartbeat(pipe, interval_s=interval_s)
    while (message := pipe.read_message()) is not None:
        heartbeat.begin()
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
        heartbeat.answer({"failed": failure} if failure else {}, content)


_DELETION = Lock()  # of one thread at a time: neither ends the process while the other is in the middle of it


def _end_with_caller(handle: int, folder: str) -> None:
    """Ends this process when the other end of a pipe is closed, also in the middle of an episode.

    A caller that ends in order kills its players and deletes the folder itself; one that was killed leaves it to them.
    """
    poller = select.poll()
    poller.register(handle, 0)  # a hang-up is always reported
    poller.poll()
    with _DELETION:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

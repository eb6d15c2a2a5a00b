"""Worker processes that can be killed: for trusted functions that may hang or eat memory on what they are given.

A grader that reads model text (a parser of LaTeX, a simplifier of expressions) can take forever or all memory on a text
made for that. It runs in a process of its own, one call at a time, under a limit of seconds and of memory; a call that
breaks a limit ends the process, and the next call gets a new one. Arguments and results are JSON. This guards against
bad input, not against bad code: code of a model belongs into `evolvent.sandbox`.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, EvolventError, GraderTimeout, Problem, ScoringError, boundary

__all__ = ["Workers", "serve"]

_BOOT = "import sys; from evolvent.workers import serve; serve(sys.argv[1:])"
_START_S = 60.0  # how long the function's module may take to be imported
_HEAD, _MOST = 4, 2**26
_MIB = 2**20


class Workers:
    """Calls of one function in processes that can be killed; any number of threads may call at once.

    Args:
        function: at the top level of a module, from JSON values to a JSON value.
        wall_s: seconds of each call.
        memory_mb: address space of each process above what it has after its imports, MiB.
        most: how many processes; further callers wait for one, and that is not their call's time.

    Raises:
        ConfigError: a function that no other process finds, limits that make no sense; all at once.
    """

    def __init__(
        self, function: Callable[..., Any], *, wall_s: float = 5.0, memory_mb: int = 512, most: int = 2
    ) -> None:
        numbers = (("wall_s", wall_s), ("memory_mb", memory_mb), ("most", most))
        wrong = [Problem(f"workers.{name}", f"got {value}", "expected more than 0")
                 for name, value in numbers if not 0 < value < float("inf")]  # fmt: skip
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
            wrong.append(Problem("workers.function", f"got {module}:{name}", "expected one at the top of a module"))
        if wrong:
            raise ConfigError(wrong)
        self._words = [module, name, str(memory_mb), repr(wall_s)]
        self.wall_s = wall_s
        self._free: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(most):
            self._free.put(None)
        self._most = most

    def call(self, *args: Any) -> Any:
        """What the function returns.

        Raises:
            GraderTimeout: no result within `wall_s` seconds; the process is gone.
            ScoringError: the function raised, or its process ended, whatever its exit code; also for results that are
                no JSON.
            ConfigError: arguments that are no JSON.
        """
        try:
            body = json.dumps(args).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError("arguments of a worker", value=str(error), expected="JSON values") from error
        worker, kept = self._free.get(), None
        try:
            if worker is not None and not worker.alive:
                worker.kill()
                worker = None
            if worker is None:
                worker = _Worker(self._words)
                worker.wait()
            answer = worker.ask(body, self.wall_s)
            kept = worker
        finally:
            if worker is not None and kept is None:
                worker.kill()
            self._free.put(kept)
        if "value" in answer:
            return answer["value"]
        raise ScoringError("a grader failed", value=answer.get("failed"))

    def close(self) -> None:
        """End the processes, after the calls that run."""
        for _ in range(self._most):
            worker = self._free.get()
            if worker is not None:
                worker.kill()
            self._free.put(None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """One process, seen from the caller's side."""

    def __init__(self, words: list[str]) -> None:
        path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, bufsize=0, start_new_session=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the function is imported."""
        answer = self._read(Deadline(_START_S))
        if answer != {"ready": True}:
            raise ScoringError("a grader's process does not start", value=answer.get("failed"))

    def ask(self, body: bytes, wall_s: float) -> dict[str, Any]:
        deadline = Deadline(wall_s)
        unsent = len(body).to_bytes(_HEAD, "little") + body
        with boundary(ScoringError, "a grader's process ended"):
            asked = self._process.stdin
            while asked is not None and unsent:
                if not select.select([], [asked], [], deadline.left())[1]:
                    raise GraderTimeout("a grader", value=f"{wall_s:g} s", expected="to read its input")
                unsent = unsent[os.write(asked.fileno(), unsent[: select.PIPE_BUF]) :]
        return self._read(deadline)

    def _read(self, deadline: Deadline) -> dict[str, Any]:
        size = int.from_bytes(self._exactly(_HEAD, deadline), "little")
        if size > _MOST:
            raise ScoringError("a grader's answer", value=f"{size} bytes", expected=f"at most {_MOST}")
        row: dict[str, Any] = json.loads(self._exactly(size, deadline))
        return row

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            out = self._process.stdout
            if out is None or not select.select([out], [], [], deadline.left())[0]:
                raise GraderTimeout("a grader", value=f"{deadline.total_s:g} s", expected="an answer before that")
            part = os.read(out.fileno(), size - len(data))
            if not part:
                raise ScoringError("a grader's process ended", value=f"exit code {self._code()}", expected="an answer")
            data += part
        return bytes(data)

    def _code(self) -> int | str:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return "unknown"

    def kill(self) -> None:
        """End it with its process group, and wait for that."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def serve(words: Sequence[str]) -> None:
    """The program of a worker: import the function, then answer calls on standard input until it ends.

    An alarm ends a call of too many seconds in this process as well, for the case that the caller is gone.

    Args:
        words: module, function, MiB of memory, seconds of each call.
    """
    module, name, memory_mb, wall_s = words
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    function: Callable[..., Any] | None = None
    try:
        with boundary(ScoringError, "the function cannot be imported", name=f"{module}:{name}"):
            function = getattr(import_module(module), name)
    except EvolventError as error:
        _write(outgoing, {"failed": str(error)})
        return
    _limit(int(memory_mb) * _MIB)
    _write(outgoing, {"ready": True})
    while (head := _take(incoming, _HEAD)) is not None:
        body = _take(incoming, int.from_bytes(head, "little"))
        if body is None:
            return
        signal.setitimer(signal.ITIMER_REAL, float(wall_s) + 1.0)
        try:
            with boundary(ScoringError, "it raised"):
                answer = {"value": function(*json.loads(body))}
                json.dumps(answer)
        except EvolventError as error:
            answer = {"failed": str(error)[:2000]}
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _write(outgoing, answer)


def _limit(above: int) -> None:
    """Limit the address space to what is used now and so many bytes more, where the system tells it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + above, used + above))


def _take(incoming: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(incoming, size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _write(outgoing: int, row: dict[str, Any]) -> None:
    body = json.dumps(row).encode("ascii")
    data = memoryview(len(body).to_bytes(_HEAD, "little") + body)
    while data:
        data = data[os.write(outgoing, data) :]

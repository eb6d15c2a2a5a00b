"""Worker processes that can be killed: for trusted functions that may hang or eat memory on what they are given.

A grader that reads model text (a parser of LaTeX, a simplifier of expressions) can take forever or all memory on a text
made for that. It runs in a process of its own, one call at a time, under a limit of seconds and of memory; a call that
breaks a limit ends the process, and the next call gets a new one. Arguments and results are JSON. This guards against
bad input, not against bad code: code of a model belongs into `evolvent.sandbox`.

`Piped` and `Caller` are the two ends of such a process, here and for team environments (`rollout.team_workers`).
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, EvolventError, GraderTimeout, Problem, ScoringError, boundary

__all__ = ["Caller", "Piped", "Workers", "packed", "serve"]

_BOOT = "import sys; from evolvent.workers import serve; serve(sys.argv[1:])"
_START_S = 60.0  # how long the function's module, and its first call, may take
_HEAD, _MOST = 4, 2**26
_LOOK_S = 3600.0  # of one look at a pipe: `poll` takes no more than 24 days
_MIB = 2**20


def packed(header: Any, body: bytes = b"") -> bytes:
    """A message: the lengths of its two parts (4 bytes each), the header as JSON, the body as it is.

    Raises TypeError, ValueError or RecursionError for a header that is no JSON.
    """
    text = json.dumps(header).encode("ascii")
    return len(text).to_bytes(_HEAD, "little") + len(body).to_bytes(_HEAD, "little") + text + body


class Piped:
    """A process that answers messages on its standard streams, seen from the caller's side.

    Args:
        program: the Python that it runs. words: its arguments.
        name: of what it does, as errors say it ("a grader").
        lost: raised where it ended or what it says is no message. late: where it does not read or answer in time.
        most: bytes of an answer.
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        *,
        name: str,
        lost: type[EvolventError],
        late: type[EvolventError],
        most: int,
    ) -> None:
        self._name, self._lost, self._late, self._most = name, lost, late, most
        path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
            bufsize=0,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, message: bytes, deadline: Deadline) -> None:
        """One message of `packed`. Raises `late`, `lost`."""
        unsent = memoryview(message)
        with boundary(self._lost, f"{self._name}'s process ended"):
            asked = self._process.stdin
            while asked is not None and unsent:
                if not _ready(asked.fileno(), select.POLLOUT, deadline):
                    raise self._late(self._name, value=f"{deadline.total_s:g} s", expected="to read its input")
                unsent = unsent[os.write(asked.fileno(), unsent[: select.PIPE_BUF]) :]

    def read(self, deadline: Deadline) -> tuple[dict[str, Any], bytes]:
        """Header and body of an answer. Raises `late`, `lost`."""
        sizes = [int.from_bytes(self._exactly(_HEAD, deadline), "little") for _ in range(2)]
        if sum(sizes) > self._most:
            raise self._lost(f"{self._name}'s answer", value=f"{sum(sizes)} bytes", expected=f"at most {self._most}")
        text = self._exactly(sizes[0], deadline)
        with boundary(self._lost, f"{self._name}'s process answered no message"):
            header: dict[str, Any] = json.loads(text)
        return header, self._exactly(sizes[1], deadline)

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            out = self._process.stdout
            if out is None or not _ready(out.fileno(), select.POLLIN, deadline):
                raise self._late(self._name, value=f"{deadline.total_s:g} s", expected="an answer before that")
            part = os.read(out.fileno(), size - len(data))
            if not part:
                raise self._lost(
                    f"{self._name}'s process ended", value=f"exit code {self._code()}", expected="an answer"
                )
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


def _ready(handle: int, event: int, deadline: Deadline) -> bool:
    """Whether a pipe can be written or read, or is closed at its other end, before the deadline.

    `poll`, because `select` refuses handles from 1024 on, which a server with many connections has.
    """
    asked = select.poll()
    asked.register(handle, event)
    while True:
        if asked.poll(ceil(1000 * min(deadline.left(), _LOOK_S))):
            return True
        if deadline.expired:
            return False


class Caller:
    """The caller, seen from a process that it made. What others print or read here no longer reaches it."""

    def __init__(self) -> None:
        self._incoming, self._outgoing = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)

    def read(self) -> tuple[bytes, bytes] | None:
        """Header and body of its next message; None where it is gone."""
        sizes = self._take(2 * _HEAD)
        if sizes is None:
            return None
        header = self._take(int.from_bytes(sizes[:_HEAD], "little"))
        body = self._take(int.from_bytes(sizes[_HEAD:], "little"))
        return None if header is None or body is None else (header, body)

    def write(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """An answer."""
        left = memoryview(packed(header, body))
        while left:
            left = left[os.write(self._outgoing, left) :]

    def _take(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._incoming, size - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


class Workers:
    """Calls of one function in processes that can be killed; any number of threads may call at once.

    Args:
        function: at the top level of a module, from JSON values to a JSON value.
        wall_s: seconds of each call.
        first: arguments of a call that each process makes before it is ready. What a library does once, at its first
            call, is then nobody's time, as imports are.
        memory_mb: address space of each process above what it has after its imports, MiB.
        most: how many processes; further callers wait for one, and that is not their call's time.

    Raises:
        ConfigError: a function that no other process finds, limits that make no sense; all at once.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        wall_s: float = 5.0,
        memory_mb: int = 512,
        most: int = 2,
        first: Sequence[Any] | None = None,
    ) -> None:
        numbers = (("wall_s", wall_s), ("memory_mb", memory_mb), ("most", most))
        wrong = [
            Problem(f"workers.{name}", f"got {value}", "expected more than 0")
            for name, value in numbers
            if not 0 < value < float("inf")
        ]
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
            wrong.append(Problem("workers.function", f"got {module}:{name}", "expected one at the top of a module"))
        if wrong:
            raise ConfigError(wrong)
        self._words = [module, name, str(memory_mb), repr(wall_s), json.dumps(first)]
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
            message = packed(args)
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
            answer = worker.ask(message, self.wall_s)
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


class _Worker(Piped):
    """One process of `Workers`."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(_BOOT, words, name="a grader", lost=ScoringError, late=GraderTimeout, most=_MOST)

    def wait(self) -> None:
        """Wait until the function is imported and ready."""
        answer, _ = self.read(Deadline(_START_S))
        if answer != {"ready": True}:
            raise ScoringError("a grader's process does not start", value=answer.get("failed"))

    def ask(self, message: bytes, wall_s: float) -> dict[str, Any]:
        """One call, sent and answered within `wall_s` seconds."""
        deadline = Deadline(wall_s)
        self.send(message, deadline)
        return self.read(deadline)[0]


def serve(words: Sequence[str]) -> None:
    """The program of a worker: import the function, then answer calls on standard input until it ends.

    An alarm ends a call of too many seconds in this process as well, for the case that the caller is gone.

    Args:
        words: module, function, MiB of memory, seconds of each call, the arguments of a first call as JSON or null.
    """
    module, name, memory_mb, wall_s, first = words
    caller = Caller()
    function: Callable[..., Any] | None = None
    try:
        with boundary(ScoringError, "the function cannot be imported", name=f"{module}:{name}"):
            function = getattr(import_module(module), name)
        with boundary(ScoringError, "the function's first call raised", name=f"{module}:{name}"):
            if (given := json.loads(first)) is not None:
                function(*given)
    except EvolventError as error:
        caller.write({"failed": str(error)})
        return
    _limit(int(memory_mb) * _MIB)
    caller.write({"ready": True})
    while (asked := caller.read()) is not None:
        signal.setitimer(signal.ITIMER_REAL, float(wall_s) + 1.0)
        try:
            with boundary(ScoringError, "it raised"):
                answer = {"value": function(*json.loads(asked[0]))}
                json.dumps(answer)
        except EvolventError as error:
            answer = {"failed": str(error)[:2000]}
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        caller.write(answer)


def _limit(above: int) -> None:
    """Limit the address space to what is used now and so many bytes more, where the system tells it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + above, used + above))

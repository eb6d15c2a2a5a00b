"""Worker processes that can be killed: for trusted functions that may hang or exhaust memory on some inputs.

A grader that reads model text (a parser of LaTeX, a simplifier of expressions) can take forever or all memory
on an adversarial text. It runs in its own process, one call at a time, under limits of seconds and of memory. A
call that exceeds a limit ends the process, and the next call starts a new one. Arguments and results are JSON.
This guards against bad input, not against bad code: code of a model belongs in `evolvent.sandbox`.

`PipedProcess` and `CallerPipe` are the two ends of such a process, also for team environments
(`rollout.team_workers`).
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
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from math import ceil
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, EvolventError, GraderTimeout, Problem, ScoringError, boundary
from evolvent.trajectory import Json, JsonObject

__all__ = ["CallerPipe", "PipedProcess", "SharedWorker", "Workers", "pack_message", "serve"]

_PROGRAM = "import sys; from evolvent.workers import serve; serve(sys.argv[1:])"
_START_S = 60.0  # how long the function's module, and its first call, may take
_LENGTH_BYTES, _MAX_ANSWER_BYTES = 4, 2**26
_MAX_POLL_S = 3600.0  # of one look at a pipe: `poll` takes no more than 24 days
_MIB = 2**20
_RAISED = "it raised"  # how the reason of a function that raised begins


def pack_message(header: object, body: bytes = b"") -> bytes:
    """Packs a message: the lengths of its two parts (4 bytes each), the header as JSON, the body unchanged.

    Raises:
        TypeError, ValueError, RecursionError: the header is not JSON.
    """
    text = json.dumps(header).encode("ascii")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + len(body).to_bytes(_LENGTH_BYTES, "little") + text + body


class PipedProcess:
    """A process that answers messages on its standard streams, seen from the caller's side.

    Args:
        program: the Python program that it runs.
        argv: its arguments.
        name: its purpose, as errors name it ("a grader").
        lost_error: raised where it ended or its answer is not a message.
        timeout_error: raised where it does not read or answer in time.
        max_answer_bytes: size limit of an answer.
    """

    def __init__(
        self,
        program: str,
        argv: Sequence[str],
        *,
        name: str,
        lost_error: type[EvolventError],
        timeout_error: type[EvolventError],
        max_answer_bytes: int,
    ) -> None:
        self._name, self._lost, self._late, self._most = name, lost_error, timeout_error, max_answer_bytes
        path = os.pathsep.join(filter(None, (*sys.path, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
            bufsize=0,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Returns whether the process runs."""
        return self._process.poll() is None

    def send(self, message: bytes, deadline: Deadline) -> None:
        """Sends one message of `pack_message`; raises `timeout_error` or `lost_error`."""
        unsent = memoryview(message)
        with boundary(self._lost, f"{self._name}'s process ended"):
            stdin = self._process.stdin
            while stdin is not None and unsent:
                if not _wait_ready(stdin.fileno(), select.POLLOUT, deadline):
                    raise self._late(self._name, value=f"{deadline.total_s:g} s", expected="to read its input")
                unsent = unsent[os.write(stdin.fileno(), unsent[: select.PIPE_BUF]) :]

    def read_answer(self, deadline: Deadline) -> tuple[JsonObject, bytes]:
        """Reads header and body of an answer; raises `timeout_error` or `lost_error`."""
        sizes = [int.from_bytes(self._read_exactly(_LENGTH_BYTES, deadline), "little") for _ in range(2)]
        if sum(sizes) > self._most:
            raise self._lost(f"{self._name}'s answer", value=f"{sum(sizes)} bytes", expected=f"at most {self._most}")
        text = self._read_exactly(sizes[0], deadline)
        with boundary(self._lost, f"{self._name}'s process answered no message"):
            header: dict[str, Any] = json.loads(text)
        return header, self._read_exactly(sizes[1], deadline)

    def _read_exactly(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            stdout = self._process.stdout
            if stdout is None or not _wait_ready(stdout.fileno(), select.POLLIN, deadline):
                raise self._late(self._name, value=f"{deadline.total_s:g} s", expected="an answer before that")
            part = os.read(stdout.fileno(), size - len(data))
            if not part:
                raise self._lost(
                    f"{self._name}'s process ended", value=f"exit code {self._exit_code()}", expected="an answer"
                )
            data += part
        return bytes(data)

    def _exit_code(self) -> int | str:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return "unknown"

    def signal_end(self) -> None:
        """Kills the process with its process group; another thread may still read its streams."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kills the process with its process group, and waits for its end."""
        self.signal_end()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _wait_ready(handle: int, event: int, deadline: Deadline) -> bool:
    """Waits until a pipe can be written or read, or is closed at its other end; returns False at the deadline.

    It uses `poll`, because `select` refuses handles from 1024 on, which a server with many connections has.
    """
    poller = select.poll()
    poller.register(handle, event)
    while True:
        if poller.poll(ceil(1000 * min(deadline.left(), _MAX_POLL_S))):
            return True
        if deadline.expired:
            return False


class CallerPipe:
    """The calling process, seen from a worker process; what other code prints or reads there no longer reaches it."""

    def __init__(self) -> None:
        self._incoming, self._outgoing = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)

    def read_message(self) -> tuple[bytes, bytes] | None:
        """Reads header and body of the next message; None where the caller is gone."""
        sizes = self._read_exactly(2 * _LENGTH_BYTES)
        if sizes is None:
            return None
        header = self._read_exactly(int.from_bytes(sizes[:_LENGTH_BYTES], "little"))
        body = self._read_exactly(int.from_bytes(sizes[_LENGTH_BYTES:], "little"))
        return None if header is None or body is None else (header, body)

    def write(self, header: Mapping[str, object], body: bytes = b"") -> None:
        """Writes an answer."""
        left = memoryview(pack_message(header, body))
        while left:
            left = left[os.write(self._outgoing, left) :]

    def _read_exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._incoming, size - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


class Workers:
    """Calls one function in processes that can be killed; any number of threads may call at once.

    Args:
        function: defined at the top level of a module, from JSON values to a JSON value.
        wall_s: time limit of each call, seconds.
        warmup_args: arguments of a call that each process makes before it is ready. One-time work of a library at
            its first call then counts for no caller, as imports do not.
        memory_mb: address space of each process above its size after imports, MiB.
        max_processes: number of processes; further callers wait for one, and the wait is not part of their call's
            time.

    Raises:
        ConfigError: another process cannot find the function, or limits are not positive; all problems at once.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        wall_s: float = 5.0,
        memory_mb: int = 512,
        max_processes: int = 2,
        warmup_args: Sequence[object] | None = None,
    ) -> None:
        numbers = (("wall_s", wall_s), ("memory_mb", memory_mb), ("most", max_processes))
        problems = [
            Problem(f"workers.{name}", f"got {value}, expected more than 0")
            for name, value in numbers
            if not 0 < value < float("inf")
        ]
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
            problems.append(
                Problem("workers.function", f"got {module}:{name}, expected a function at the top level of a module")
            )
        if problems:
            raise ConfigError(problems)
        self._words = [module, name, str(memory_mb), repr(wall_s), json.dumps(warmup_args)]
        self.wall_s = wall_s
        self._free: queue.SimpleQueue[_FunctionProcess | None] = queue.SimpleQueue()
        for _ in range(max_processes):
            self._free.put(None)
        self._most = max_processes

    def call(self, *args: object) -> Json:
        """Returns the result of the function.

        Raises:
            GraderTimeout: there was no result within `wall_s` seconds; the process is gone.
            ScoringError: the function raised, its process ended with any exit code, or its result is not JSON.
            ConfigError: the arguments are not JSON.
        """
        try:
            message = pack_message(args)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                "the arguments of the worker are not JSON", value=str(error), expected="JSON values"
            ) from error
        worker, reusable_worker = self._free.get(), None
        try:
            if worker is not None and not worker.alive:
                worker.kill()
                worker = None
            if worker is None:
                worker = _FunctionProcess(self._words)
            if not worker.ready:
                worker.wait_until_ready()
            answer = worker.call(message, self.wall_s)
            reusable_worker = worker
        finally:
            if worker is not None and reusable_worker is None:
                worker.kill()
            self._free.put(reusable_worker)
        if "value" in answer:
            value: Json = answer["value"]
            return value
        raise ScoringError("a grader failed", value=answer.get("failed"))

    def start(self) -> None:
        """Starts a process where one is free and none has been started, without waiting until it is ready."""
        with suppress(queue.Empty):
            worker = self._free.get_nowait()
            try:
                worker = worker or _FunctionProcess(self._words)
            finally:
                self._free.put(worker)

    def close(self) -> None:
        """Ends the processes, after the running calls."""
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


class SharedWorker:
    """A function that reads foreign input, in one process that is started when it is first needed and then kept.

    Every calling process has its own: a fork does not use its parent's. It ends with the caller.

    Args:
        function, wall_s, memory_mb, warmup_args: as of `Workers`.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        wall_s: float,
        memory_mb: int,
        warmup_args: Sequence[object] | None = None,
    ) -> None:
        self.wall_s, self.memory_mb = wall_s, memory_mb
        self._function, self._warmup_args = function, warmup_args
        self._workers: Workers | None = None
        self._ending: weakref.finalize[[], SharedWorker] | None = None
        self._lock = Lock()
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Starts the process in the background, so that the first call finds it ready."""
        self._get_workers().start()

    def call(self, *args: object) -> tuple[Json, str]:
        """Returns the result of the function and "", or None and the reason why there is none.

        Raises:
            ConfigError: the arguments are not JSON.
        """
        try:
            return self._get_workers().call(*args), ""
        except OSError as error:
            return None, f"its process cannot be started ({error.strerror})"
        except GraderTimeout:
            return None, f"it took more than {self.wall_s:g} s"
        except ScoringError as error:
            failure = str(error.value or "")
            if failure.startswith(_RAISED):
                return None, failure.removeprefix(_RAISED).lstrip(": ")
            return None, f"it used more than {self.memory_mb} MiB of memory, or ended its process"

    def close(self) -> None:
        """Ends the process; the next call starts another one."""
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _get_workers(self) -> Workers:
        with self._lock:
            if self._workers is None:
                self._workers = Workers(
                    self._function,
                    wall_s=self.wall_s,
                    memory_mb=self.memory_mb,
                    max_processes=1,
                    warmup_args=self._warmup_args,
                )
                self._ending = weakref.finalize(self, self._workers.close)
            return self._workers

    def _forget(self) -> None:
        """Leaves the process to the parent of a fork, which goes on using it."""
        if self._ending is not None:
            self._ending.detach()
        self._workers, self._ending, self._lock = None, None, Lock()


class _FunctionProcess(PipedProcess):
    """One process of `Workers`."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(
            _PROGRAM,
            argv,
            name="a grader",
            lost_error=ScoringError,
            timeout_error=GraderTimeout,
            max_answer_bytes=_MAX_ANSWER_BYTES,
        )
        self.ready = False

    def wait_until_ready(self) -> None:
        """Waits until the function is imported and ready."""
        answer, _ = self.read_answer(Deadline(_START_S))
        if answer != {"ready": True}:
            raise ScoringError("a grader process did not start", value=answer.get("failed"))
        self.ready = True

    def call(self, message: bytes, wall_s: float) -> JsonObject:
        """Sends one call and returns its answer within `wall_s` seconds."""
        deadline = Deadline(wall_s)
        self.send(message, deadline)
        return self.read_answer(deadline)[0]


def serve(argv: Sequence[str]) -> None:
    """Runs a worker: imports the function, then answers calls on standard input until it ends.

    An alarm ends a call that takes too long in this process as well, in case the caller is gone.

    Args:
        argv: module, function, MiB of memory, seconds per call, arguments of a warm-up call as JSON or null.
    """
    module, name, memory_mb, wall_s, first = argv
    caller = CallerPipe()
    function: Callable[..., Any] | None = None
    try:
        with boundary(ScoringError, "the function cannot be imported", name=f"{module}:{name}"):
            function = getattr(import_module(module), name)
        with boundary(ScoringError, "the function's first call raised", name=f"{module}:{name}"):
            if (first_args := json.loads(first)) is not None:
                function(*first_args)
    except EvolventError as error:
        caller.write({"failed": str(error)})
        return
    _limit_memory(int(memory_mb) * _MIB)
    caller.write({"ready": True})
    while (message := caller.read_message()) is not None:
        signal.setitimer(signal.ITIMER_REAL, float(wall_s) + 1.0)
        try:
            with boundary(ScoringError, _RAISED):
                answer = {"value": function(*json.loads(message[0]))}
                json.dumps(answer)
        except EvolventError as error:
            answer = {"failed": str(error)[:2000]}
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        caller.write(answer)


def _limit_memory(extra_bytes: int) -> None:
    """Limits the address space to its present size plus `extra_bytes`, where the system reports it.

    A lower limit that the process already has (`ulimit -v`) stays: only a privileged process could raise it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = used + extra_bytes if ceiling == resource.RLIM_INFINITY else min(used + extra_bytes, ceiling)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

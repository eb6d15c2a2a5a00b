"""A sandbox: a process that runs one source, seen from outside. One thread uses it, once.

Everything that comes out is hostile. Frames are capped before they are read, every wait has a deadline, exactly one
answer is taken for each request, and an answer that comes before its request, or after the last request, makes the
whole job malformed. The next request is sent after the last answer, so no code sees inputs ahead of their time.
While a request runs, the sandbox is watched: `evolvent.sandbox.watch`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, IsolationUnavailable
from evolvent.sandbox import filters, watch
from evolvent.sandbox.bubblewrap import ENVIRONMENT, Isolation, sandbox_argv
from evolvent.sandbox.limits import Outcome, SandboxLimits, Status
from evolvent.sandbox.values import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Malformed,
    Value,
    decode,
    encode,
    escape_unprintable,
)

__all__ = ["Group", "HostFunction", "Sandbox", "create_group", "encode_frame", "find_parent_group", "parse_frame"]


_MAX_AGE_NS = 60 * 10**9


@cache
def find_parent_group() -> Path | None:
    """Returns the folder in which groups can be created; None if there is none, or it is not writable."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own_group = next((line.split(":", 2)[2] for line in lines if "pids" in line.split(":")[1].split(",")), None)
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, kind, options, *_ = line.split()
            if own_group is not None and kind == "cgroup" and "pids" in options.split(","):
                path = Path(mounted, own_group.lstrip("/"))
                return path if os.access(path, os.W_OK) else None
    return None


def create_group() -> Group | None:
    """Creates a new group for one sandbox; returns None where groups are not supported."""
    parent = find_parent_group()
    with suppress(OSError):
        if parent is not None:
            _remove_old_groups(parent)
            return Group(parent)
    return None


def _remove_old_groups(parent: Path) -> None:
    """Removes old groups: of a killed process, or with members that took long to end. Groups in use stay."""
    for path in parent.glob("evolvent-*-*"):
        _, pid, created_ns = path.name.split("-", 2)
        if not Path("/proc", pid).exists() or time.monotonic_ns() - int(created_ns) > _MAX_AGE_NS:
            with suppress(OSError):
                path.rmdir()


class Group:
    """A group for one sandbox.

    Moving another process into a group takes some 10 ms, most of them waiting for all processors. A thread that moves
    itself needs no such wait, and the processes that it starts are members from the beginning.

    Args:
        parent: folder in which the group is created.

    Raises:
        OSError: the group cannot be created.
    """

    def __init__(self, parent: Path) -> None:
        self._parent, self._path = parent, parent / f"evolvent-{os.getpid()}-{time.monotonic_ns()}"
        self._path.mkdir()

    @contextmanager
    def membership(self) -> Iterator[None]:
        """Makes this thread alone a member of the group while a process is started.

        Raises:
            OSError: the thread cannot be moved.
        """
        (self._path / "tasks").write_text("0", encoding="ascii")
        try:
            yield
        finally:
            (self._parent / "tasks").write_text("0", encoding="ascii")

    def set_limit(self, max_processes: int) -> None:
        """Limits the processes and threads of the group, not counting bubblewrap's two.

        Raises:
            OSError: the limit cannot be set.
        """
        (self._path / "pids.max").write_text(str(max_processes + 2), encoding="ascii")

    def remove(self) -> None:
        """Removes the group after its processes have ended."""
        with suppress(OSError):
            self._path.rmdir()


def encode_frame(row: dict[str, object], size: int = MAX_FRAME_BYTES) -> bytes:
    """Encodes a row as a frame: uint32 length (little-endian), then JSON in ASCII.

    Raises:
        Malformed: more than `size` bytes.
    """
    body = json.dumps(row, separators=(",", ":")).encode("ascii")
    if len(body) > size:
        raise Malformed(f"a frame of {len(body)} bytes, at most {size}")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def parse_frame(body: bytes) -> dict[str, object]:
    """Parses the row of a frame's body.

    Raises:
        Malformed: no JSON object, nested too deeply, or a number too long.
    """
    try:
        row = json.loads(body.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {type(error).__name__}") from None
    if not isinstance(row, dict):
        raise Malformed(f"a {type(row).__name__}, not an object")
    return row


HostFunction = Callable[[tuple[Value, ...], Mapping[str, Value]], Outcome]
_POLL_INTERVAL_S = 0.02  # between two looks at what a box uses
_KILL_TIMEOUT_S = 10.0  # how long the kernel may take to end a box
_MAX_REQUEST_BYTES = 2 * MAX_FRAME_BYTES  # bytes of a request
_MAX_ERROR_CHARS = 1000  # characters of an outcome's error
_CHUNK = 65536
_CPU_LIMIT_EXIT_CODE = 128 + signal.SIGXCPU  # how bubblewrap tells of a process that a signal ended


class _SandboxEnded(Exception):
    """Signals that the sandbox has ended, with its status and the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def _open_filter(host: Isolation | None) -> int:
    """Returns a descriptor from which bubblewrap reads its filter; without isolation the pipe stays empty."""
    read_end, write_end = os.pipe()
    if host is not None:
        os.write(write_end, filters.program(host.machine))
    os.close(write_end)
    return read_end


def _wait_for_exit(pid: int, *, kill: bool = False) -> None:
    """Waits until a process has ended, where the system supports it; kills it first if `kill` is set."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        if kill:
            os.kill(pid, signal.SIGKILL)
        if pidfd >= 0:
            select.select([pidfd], [], [], _KILL_TIMEOUT_S)
            os.close(pidfd)


class Sandbox:
    """A started sandbox, which waits for its source.

    Args:
        host: isolation of this host; None: no isolation.
        tmp_mb: size of the working folder, MiB.
        folders: folders on the module path.
        packages: packages to import ahead.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, host: Isolation | None, *, tmp_mb: int, folders: Sequence[str], packages: Sequence[str]) -> None:
        self.tmp_mb, self.unsafe = tmp_mb, host is None
        self._limits, self._deadline, self._loaded = SandboxLimits(), Deadline(0), False
        self._outside: Mapping[str, HostFunction] = {}
        self._over: _SandboxEnded | None = None
        self._closed = False
        self._below: set[int] = set()
        self._raised = ""
        self._in, self._printed, self._unsent = bytearray(), bytearray(), b""
        self._total_printed = 0
        self._pid, self._first = 0, -1
        self._folder = TemporaryDirectory(prefix="evolvent-", ignore_cleanup_errors=True) if host is None else None
        self._counted = host is not None and host.counted
        self._group = create_group() if host is not None and host.root else None
        self._answers = self._info = self._asked = self._out = self._err = -1
        child_descriptors: dict[str, int] = {}
        child_streams: dict[str, int] = {}  # not made by Popen: that of Python 3.11.2 leaves some open where one fails
        try:
            self._answers, child_descriptors["answers"] = os.pipe()
            self._info, child_descriptors["info-fd"] = os.pipe()
            child_descriptors["seccomp"] = _open_filter(host)
            child_streams["stdin"], self._asked = os.pipe()
            self._out, child_streams["stdout"] = os.pipe()
            self._err, child_streams["stderr"] = os.pipe()
            command = sandbox_argv(
                host, tmp_mb=tmp_mb, descriptors=child_descriptors, folders=folders, packages=packages
            )
            with self._group.membership() if self._group is not None else nullcontext():
                self._process = subprocess.Popen(
                    command,
                    stdin=child_streams["stdin"],
                    stdout=child_streams["stdout"],
                    stderr=child_streams["stderr"],
                    cwd=self._folder.name if self._folder is not None else "/",
                    pass_fds=list(child_descriptors.values()),
                    env=dict(ENVIRONMENT) if host is None else {},
                    start_new_session=True,
                )
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in (*child_descriptors.values(), *child_streams.values()):
                os.close(descriptor)
        for descriptor in (self._asked, self._out, self._err, self._answers):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self._poll.register(self._out, select.POLLIN)

    def wait(self, start_s: float) -> None:
        """Waits until the sandbox is ready for its source.

        Raises:
            IsolationUnavailable: the sandbox ended, or was not ready in time.
        """
        self._deadline = Deadline(start_s)
        try:
            self._find_first_process(self._deadline)
            if self._read_frame() != {"ready": True}:
                raise _SandboxEnded("malformed", "another first word")
        except (_SandboxEnded, OSError, ValueError) as error:
            message = self._read_last_error() or str(error)
            self.kill()
            raise IsolationUnavailable(
                "the sandbox did not start", value=message, hint="see docs/sandbox.md"
            ) from error

    def _find_first_process(self, deadline: Deadline) -> None:
        """Finds the first process in the sandbox, by its pid on the host.

        Raises:
            OSError, ValueError: there is no such process.
        """
        if self.unsafe:
            self._pid = self._process.pid
        if self._pid:
            return
        info = b""
        while not info.endswith(b"}\n"):
            if not select.select([self._info], [], [], deadline.left())[0]:
                raise ValueError("bubblewrap did not report its process")
            chunk = os.read(self._info, _CHUNK)
            if not chunk:
                raise ValueError("bubblewrap ended")
            info += chunk
        self._pid = int(json.loads(info)["child-pid"])
        self._first = os.pidfd_open(self._pid)

    def _read_last_error(self) -> str:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(1.0)
            output = os.read(self._err, _CHUNK).decode("utf-8", "replace").strip()
            return output.splitlines()[-1] if output else ""
        return ""

    def load(self, source: str, limits: SandboxLimits, host_functions: Mapping[str, HostFunction]) -> None:
        """Sends the source in and starts the wall-clock limit; every later request returns the error that the source
        raised.

        Args:
            host_functions: functions that the source may call by these names and that are answered here.

        Raises:
            ConfigError: the source has more than 2 MiB.
        """
        self._limits, self._deadline, self._outside = limits, Deadline(limits.wall_s), host_functions
        self._loaded = True
        if self._group is not None:
            with suppress(OSError):
                self._group.set_limit(limits.processes)
        # a limit of processes that counts all of the user's would leave none for the box; then watching does it
        sent_limits = asdict(limits) | ({} if self._counted else {"processes": 0})
        row = {"source": source, "limits": sent_limits, "outside": list(host_functions)}
        try:
            self._send(row)
            answer = self._receive_answer()
            if answer.keys() == {"raised"}:
                self._raised = str(answer["raised"])
            elif answer != {"loaded": True}:
                raise _SandboxEnded("malformed", "no answer to the source")
        except _SandboxEnded as error:
            self._record_end(error)

    def ask(self, entry: str, args: tuple[Value, ...] = (), kwargs: Mapping[str, Value] | None = None) -> Outcome:
        """Calls one function of the source; with an empty `entry` calls nothing and returns None as the value.

        Raises:
            ConfigError: the arguments are too large or too deep to be sent.
        """
        if self._over is None and not self._raised:
            try:
                self._send(
                    {
                        "entry": entry,
                        "args": encode(args, strict=False),
                        "kwargs": encode(dict(kwargs or {}), strict=False),
                    }
                )
                return self._parse_outcome(self._receive_answer())
            except Malformed as error:
                raise ConfigError(
                    "the arguments of the request are too large", value=str(error), expected="smaller ones"
                ) from error
            except _SandboxEnded as error:
                self._record_end(error)
        if self._over is None:
            return self._make_outcome("raised", error=self._raised)
        return self._make_outcome(self._over.status, error=self._over.reason)

    def end(self) -> bool:
        """Ends the sandbox and returns whether it ended cleanly, without surplus answers."""
        try:
            if self._over is None:
                self._below.update(watch.descendants(self._pid) if self.unsafe else ())
                self._send({"end": True})
                if self._read_frame() != {"end": True}:
                    raise _SandboxEnded("malformed", "one more answer than requests")
                self._check_no_surplus()
        except _SandboxEnded as error:
            self._over = error
        self.kill()
        return self._over is None or self._over.status != "malformed"

    def kill(self) -> None:
        """Kills everything in the sandbox and waits until the kernel reports that it has ended."""
        if self._asked < 0:
            return
        if self.unsafe:
            self._below.update(watch.descendants(self._process.pid))
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pid in self._below:
                _wait_for_exit(pid, kill=True)
        else:
            with suppress(OSError, ValueError):
                self._find_first_process(Deadline(_KILL_TIMEOUT_S))
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
                select.select([self._first], [], [], _KILL_TIMEOUT_S)
                _wait_for_exit(self._process.pid)  # it ends by itself, after it has seen to its own child
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._group is not None:
            self._group.remove()
        if self._folder is not None:
            self._folder.cleanup()
        for descriptor in (self._answers, self._info, self._first, self._asked, self._out, self._err):
            if descriptor >= 0:
                os.close(descriptor)
        self._answers = self._info = self._first = self._asked = self._out = self._err = -1

    def _record_end(self, error: _SandboxEnded) -> None:
        self._over = error
        self.kill()

    def _parse_outcome(self, row: dict[str, Any]) -> Outcome:
        if row.keys() == {"value"}:
            try:
                return self._make_outcome("value", value=decode(row["value"]))
            except Malformed as error:
                raise _SandboxEnded("malformed", str(error)) from error
        for status in ("raised", "malformed"):
            if row.keys() == {status} and isinstance(row[status], str):
                return self._make_outcome(status, error=row[status])
        raise _SandboxEnded("malformed", "an answer in no known form")

    def _make_outcome(self, status: Status, *, value: Value = None, error: str = "") -> Outcome:
        printed = self._printed.decode("utf-8", "replace")
        self._printed.clear()
        return Outcome(status, value, escape_unprintable(error, _MAX_ERROR_CHARS), printed, self.unsafe)

    def _receive_answer(self) -> dict[str, Any]:
        """Returns the answer to the last request; calls of host functions are answered on the way."""
        while True:
            row = self._read_frame()
            name = row.get("call")
            if not isinstance(name, str) or name not in self._outside:
                return row
            try:
                args, kwargs = decode(row.get("args")), decode(row.get("kwargs"))
            except Malformed as error:
                raise _SandboxEnded("malformed", str(error)) from error
            if type(args) is not tuple or type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
                raise _SandboxEnded("malformed", "a call without arguments")
            outcome = self._outside[name](args, kwargs)
            try:
                self._send(
                    {"value": encode(outcome.value, strict=False)}
                    if outcome.ok
                    else {"failed": f"{outcome.status}: {outcome.error}"}
                )
            except (Malformed, ConfigError) as error:  # another box may say what is too large when it is said again
                self._send({"failed": f"malformed: {error}"})

    def _send(self, row: dict[str, Any]) -> None:
        self._check_no_surplus()
        try:
            self._unsent = encode_frame(row, _MAX_REQUEST_BYTES)
        except Malformed as error:
            raise ConfigError("the source is too large for the sandbox", value=str(error)) from error
        self._poll.register(self._asked, select.POLLOUT)

    def _check_no_surplus(self) -> None:
        self._receive()
        if self._in:
            raise _SandboxEnded("malformed", "an answer without a request")

    def _read_frame(self) -> dict[str, Any]:
        """Reads the next frame of the sandbox, and everything printed before it."""
        last_check = time.monotonic()
        while True:
            size = int.from_bytes(self._in[:HEADER_BYTES], "little")
            if len(self._in) >= HEADER_BYTES and size > MAX_FRAME_BYTES:
                raise _SandboxEnded("malformed", f"a frame of {size} bytes, at most {MAX_FRAME_BYTES}")
            if len(self._in) >= HEADER_BYTES and len(self._in) >= HEADER_BYTES + size:
                body = bytes(self._in[HEADER_BYTES : HEADER_BYTES + size])
                del self._in[: HEADER_BYTES + size]
                break
            if self._closed:
                raise self._describe_exit()
            if self._deadline.expired:
                raise _SandboxEnded("timeout", f"no answer within {self._deadline.total_s:g} s")
            self._poll_once()
            if self._loaded and time.monotonic() - last_check >= _POLL_INTERVAL_S:
                if reason := watch.exceeded_limit(self._pid, self._limits, unsafe=self.unsafe):
                    raise _SandboxEnded("limit", reason)
                last_check = time.monotonic()
        self._read_stdout()
        try:
            return parse_frame(body)
        except Malformed as error:
            raise _SandboxEnded("malformed", str(error)) from error

    def _poll_once(self) -> None:
        """Waits for a moment and transfers the bytes that are ready."""
        ready = dict(self._poll.poll(1000 * min(_POLL_INTERVAL_S, self._deadline.left())))
        if self._out in ready:
            self._read_stdout()
        if self._asked in ready:
            self._write()
        if self._answers in ready:
            self._receive()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._asked, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = b""
        if not self._unsent:
            self._poll.unregister(self._asked)

    def _receive(self) -> None:
        """Receives the available bytes of answers, up to slightly more than the largest frame, and notices their
        end.
        """
        while not self._closed and len(self._in) <= MAX_FRAME_BYTES + HEADER_BYTES:
            try:
                chunk = os.read(self._answers, _CHUNK)
            except BlockingIOError:
                return
            self._closed = not chunk
            self._in += chunk

    def _read_stdout(self) -> None:
        while True:
            try:
                chunk = os.read(self._out, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                with suppress(KeyError):
                    self._poll.unregister(self._out)
                return
            max_bytes = self._limits.output_kb * 1024
            self._printed += chunk[: max(0, max_bytes - self._total_printed)]
            self._total_printed += len(chunk)
            if self._total_printed > max_bytes:
                raise _SandboxEnded("limit", f"more than {self._limits.output_kb} KiB printed")

    def _describe_exit(self) -> _SandboxEnded:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            if code in (_CPU_LIMIT_EXIT_CODE, -signal.SIGXCPU):
                return _SandboxEnded("limit", f"more than {self._limits.cpu_s} CPU seconds")
            return _SandboxEnded("killed", f"the process ended without an answer (exit code {code})")
        return _SandboxEnded("killed", "the process closed its line")

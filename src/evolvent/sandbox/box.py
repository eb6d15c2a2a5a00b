"""One box: a process that runs one source, seen from outside. One thread uses it, once.

Everything that comes out is hostile. Frames are capped before they are read, every wait has a deadline, exactly one
answer is taken for each request, and an answer that comes before its request, or after the last one, makes the whole
job malformed. The next request is sent when the last one is answered, so no code sees inputs ahead of their time.
While a request runs the box is watched: `evolvent.sandbox.watch`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, IsolationUnavailable
from evolvent.sandbox import filters, groups, watch
from evolvent.sandbox.bubblewrap import ENVIRONMENT, Isolation, arguments
from evolvent.sandbox.frames import frame, parse
from evolvent.sandbox.limits import Limits, Outcome, Status
from evolvent.sandbox.values import HEAD, SIZE, Malformed, Value, decode, encode

__all__ = ["Box", "Outside"]

Outside = Callable[[tuple[Value, ...], Mapping[str, Value]], Outcome]
_TICK_S = 0.02  # between two looks at what a box uses
_GONE_S = 10.0  # how long the kernel may take to end a box
_MOST_ASKED = 2 * SIZE  # bytes of a request
_CHUNK = 65536
_CPU_SIGNAL = 128 + signal.SIGXCPU  # how bubblewrap tells of a process that a signal ended


class _Ended(Exception):
    """The box is finished, and why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def _filter(host: Isolation | None) -> int:
    """A descriptor from which bubblewrap reads its filter; without isolation nobody reads it."""
    reading, writing = os.pipe()
    if host is not None:
        os.write(writing, filters.program(host.machine))
    os.close(writing)
    return reading


def _wait(pid: int, *, kill: bool = False) -> None:
    """Wait until a process has ended, where the system can; end it first, where that is asked for."""
    with suppress(OSError):
        watched = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        if kill:
            os.kill(pid, signal.SIGKILL)
        if watched >= 0:
            select.select([watched], [], [], _GONE_S)
            os.close(watched)


class Box:
    """A started box, which waits for its source.

    Args:
        host: how it is isolated; None: not at all.
        tmp_mb: size of its working folder, MiB.
        folders, packages: on its path of modules; imported ahead.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, host: Isolation | None, *, tmp_mb: int, folders: Sequence[str], packages: Sequence[str]) -> None:
        self.tmp_mb, self.unsafe = tmp_mb, host is None
        self._limits, self._deadline, self._loaded = Limits(), Deadline(0), False
        self._outside: Mapping[str, Outside] = {}
        self._over: _Ended | None = None
        self._closed = False
        self._below: set[int] = set()
        self._raised = ""
        self._in, self._printed, self._unsent = bytearray(), bytearray(), b""
        self._total_printed = 0
        self._pid, self._first = 0, -1
        self._folder = TemporaryDirectory(prefix="evolvent-", ignore_cleanup_errors=True) if host is None else None
        self._counted = host is not None and host.counted
        self._group = groups.made() if host is not None and host.root else None
        self._answers = self._info = -1
        given: dict[str, int] = {}
        try:
            self._answers, given["answers"] = os.pipe()
            self._info, given["info-fd"] = os.pipe()
            given["seccomp"] = _filter(host)
            command = arguments(host, tmp_mb=tmp_mb, descriptors=given, folders=folders, packages=packages)
            with self._group.joined() if self._group is not None else nullcontext():
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    cwd=self._folder.name if self._folder is not None else "/",
                    pass_fds=list(given.values()),
                    env=dict(ENVIRONMENT) if host is None else {},
                    start_new_session=True,
                )
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in given.values():
                os.close(descriptor)
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._asked, self._out, self._err = (stream.fileno() for stream in streams if stream)
        for descriptor in (self._asked, self._out, self._err, self._answers):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self._poll.register(self._out, select.POLLIN)

    def wait(self, start_s: float) -> None:
        """Wait until it is ready for its source.

        Raises:
            IsolationUnavailable: it ended, or was not ready in time.
        """
        self._deadline = Deadline(start_s)
        try:
            self._hold(self._deadline)
            if self._frame() != {"ready": True}:
                raise _Ended("malformed", "another first word")
        except (_Ended, OSError, ValueError) as error:
            said = self._said_of_itself() or str(error)
            self.kill()
            raise IsolationUnavailable("a box does not start", value=said, hint="see docs/sandbox.md") from error

    def _hold(self, deadline: Deadline) -> None:
        """Get hold of the first process in the box, as the host counts.

        Raises:
            OSError, ValueError: there is none.
        """
        if self.unsafe:
            self._pid = self._process.pid
        if self._pid:
            return
        told = b""
        while not told.endswith(b"}\n"):
            if not select.select([self._info], [], [], deadline.left())[0]:
                raise ValueError("bubblewrap did not tell its process")
            part = os.read(self._info, _CHUNK)
            if not part:
                raise ValueError("bubblewrap ended")
            told += part
        self._pid = int(json.loads(told)["child-pid"])
        self._first = os.pidfd_open(self._pid)

    def _said_of_itself(self) -> str:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(1.0)
            said = os.read(self._err, _CHUNK).decode("utf-8", "replace").strip()
            return said.splitlines()[-1] if said else ""
        return ""

    def load(self, source: str, limits: Limits, outside: Mapping[str, Outside]) -> None:
        """Hand the source in; the wall limit begins. What it raises is what every request then answers.

        Args:
            outside: functions which the source may call by these names and which are answered here.

        Raises:
            ConfigError: a source of more than 2 MiB.
        """
        self._limits, self._deadline, self._outside = limits, Deadline(limits.wall_s), outside
        self._loaded = True
        if self._group is not None:
            with suppress(OSError):
                self._group.limit(limits.processes)
        # a limit of processes that counts all of the user's would leave none for the box; then watching does it
        sent = asdict(limits) | ({} if self._counted else {"processes": 0})
        row = {"source": source, "limits": sent, "outside": list(outside)}
        try:
            self._send(row)
            answer = self._answer()
            if answer.keys() == {"raised"}:
                self._raised = str(answer["raised"])
            elif answer != {"loaded": True}:
                raise _Ended("malformed", "no answer to the source")
        except _Ended as error:
            self._end(error)

    def ask(self, entry: str, args: tuple[Value, ...] = (), kwargs: Mapping[str, Value] | None = None) -> Outcome:
        """Call one function of the source, or, where `entry` is "", none: then the value is None.

        Raises:
            ConfigError: arguments that are too large or too deep to be sent.
        """
        if self._over is None and not self._raised:
            try:
                self._send({"entry": entry, "args": encode(args), "kwargs": encode(dict(kwargs or {}))})
                return self._outcome(self._answer())
            except Malformed as error:
                raise ConfigError("the arguments of a request", value=str(error), expected="smaller ones") from error
            except _Ended as error:
                self._end(error)
        if self._over is None:
            return self._result("raised", error=self._raised)
        return self._result(self._over.status, error=self._over.reason)

    def end(self) -> bool:
        """Whether the box ends as it should, with nothing more to say; it is gone afterwards."""
        try:
            if self._over is None:
                self._below.update(watch.descendants(self._pid) if self.unsafe else ())
                self._send({"end": True})
                if self._frame() != {"end": True}:
                    raise _Ended("malformed", "one more answer than requests")
                self._no_surplus()
        except _Ended as error:
            self._over = error
        self.kill()
        return self._over is None or self._over.status != "malformed"

    def kill(self) -> None:
        """End everything in the box at once, and wait until the kernel says that it is gone."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        if self.unsafe:
            self._below.update(watch.descendants(self._process.pid))
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pid in self._below:
                _wait(pid, kill=True)
        else:
            with suppress(OSError, ValueError):
                self._hold(Deadline(_GONE_S))
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
                select.select([self._first], [], [], _GONE_S)
                _wait(self._process.pid)  # it ends by itself, after it has seen to its own child
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._close()

    def _close(self) -> None:
        if self._group is not None:
            self._group.remove()
        if self._folder is not None:
            self._folder.cleanup()
        for descriptor in (self._answers, self._info, self._first):
            if descriptor >= 0:
                os.close(descriptor)

    def _end(self, error: _Ended) -> None:
        self._over = error
        self.kill()

    def _outcome(self, row: dict[str, Any]) -> Outcome:
        if row.keys() == {"value"}:
            try:
                return self._result("value", value=decode(row["value"]))
            except Malformed as error:
                raise _Ended("malformed", str(error)) from error
        for status in ("raised", "malformed"):
            if row.keys() == {status} and isinstance(row[status], str):
                return self._result(status, error=row[status])
        raise _Ended("malformed", "an answer in no known form")

    def _result(self, status: Status, *, value: Value = None, error: str = "") -> Outcome:
        printed = self._printed.decode("utf-8", "replace")
        self._printed.clear()
        return Outcome(status, value, error[:1000], printed, self.unsafe)

    def _answer(self) -> dict[str, Any]:
        """The answer to what was sent; calls of outside functions are answered on the way."""
        while True:
            row = self._frame()
            name = row.get("call")
            if not isinstance(name, str) or name not in self._outside:
                return row
            try:
                args, kwargs = decode(row.get("args")), decode(row.get("kwargs"))
            except Malformed as error:
                raise _Ended("malformed", str(error)) from error
            if type(args) is not tuple or type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
                raise _Ended("malformed", "a call without arguments")
            found = self._outside[name](args, kwargs)
            try:
                self._send({"value": encode(found.value)} if found.ok else {"failed": f"{found.status}: {found.error}"})
            except (Malformed, ConfigError) as error:  # another box may say what is too large when it is said again
                self._send({"failed": f"malformed: {error}"})

    def _send(self, row: dict[str, Any]) -> None:
        self._no_surplus()
        try:
            self._unsent = frame(row, _MOST_ASKED)
        except Malformed as error:
            raise ConfigError("too large to be sent into a box", value=str(error)) from error
        self._poll.register(self._asked, select.POLLOUT)

    def _no_surplus(self) -> None:
        self._receive()
        if self._in:
            raise _Ended("malformed", "an answer that nobody asked for")

    def _frame(self) -> dict[str, Any]:
        """The next frame of the box, and all that was printed before it."""
        looked = time.monotonic()
        while True:
            size = int.from_bytes(self._in[:HEAD], "little")
            if len(self._in) >= HEAD and size > SIZE:
                raise _Ended("malformed", f"a frame of {size} bytes, at most {SIZE}")
            if len(self._in) >= HEAD and len(self._in) >= HEAD + size:
                body = bytes(self._in[HEAD : HEAD + size])
                del self._in[: HEAD + size]
                break
            if self._closed:
                raise self._why_gone()
            if self._deadline.expired:
                raise _Ended("timeout", f"no answer within {self._deadline.total_s:g} s")
            self._step()
            if self._loaded and time.monotonic() - looked >= _TICK_S:
                if reason := watch.exceeded(self._pid, self._limits, unsafe=self.unsafe):
                    raise _Ended("limit", reason)
                looked = time.monotonic()
        self._read_printed()
        try:
            return parse(body)
        except Malformed as error:
            raise _Ended("malformed", str(error)) from error

    def _step(self) -> None:
        """Wait for a moment, and move what can be moved."""
        ready = dict(self._poll.poll(1000 * min(_TICK_S, self._deadline.left())))
        if self._out in ready:
            self._read_printed()
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
        """Take what is there of answers, little more than the largest may be, and notice their end."""
        while not self._closed and len(self._in) <= SIZE + HEAD:
            try:
                part = os.read(self._answers, _CHUNK)
            except BlockingIOError:
                return
            self._closed = not part
            self._in += part

    def _read_printed(self) -> None:
        while True:
            try:
                part = os.read(self._out, _CHUNK)
            except BlockingIOError:
                return
            if not part:
                with suppress(KeyError):
                    self._poll.unregister(self._out)
                return
            most = self._limits.output_kb * 1024
            self._printed += part[: max(0, most - self._total_printed)]
            self._total_printed += len(part)
            if self._total_printed > most:
                raise _Ended("limit", f"more than {self._limits.output_kb} KiB printed")

    def _why_gone(self) -> _Ended:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            if code in (_CPU_SIGNAL, -signal.SIGXCPU):
                return _Ended("limit", f"more than {self._limits.cpu_s} CPU seconds")
            return _Ended("killed", f"the process ended without an answer (exit code {code})")
        return _Ended("killed", "the process closed its line")

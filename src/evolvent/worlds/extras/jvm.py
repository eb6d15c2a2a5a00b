"""Java virtual machines that each run one simulator, and a pool of them: starting one takes seconds, reusing one not.

Every call has a deadline. A machine that misses one, that dies or whose simulator fails is killed and never used again.
Py4J's own client is not used for calls: it sends a call again after some failures, and a step must not be played twice.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import AtCapacity, ConfigError, EnvLost, Problem, boundary
from evolvent.worlds.extras.wrapped import Extra

__all__ = ["Jvm", "JvmLimits", "JvmPool", "java"]

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class JvmLimits:
    """What the machines of a pool may take.

    Args:
        most: machines at the same time; each holds 100 to 600 MB.
        heap_mb: the largest heap of one.
        wait_s: how long to wait for a free one.
        call_s: how long a call may take.
        plan_s: how long the making of an expert's plan may take.

    Raises:
        ConfigError: with all numbers that are none.
    """

    most: int = 16
    heap_mb: int = 512
    wait_s: float = 30.0
    call_s: float = 60.0
    plan_s: float = 300.0

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{value!r} is too little", f"give at least {least}")
            for name, value, least in (
                ("most", self.most, 1),
                ("heap_mb", self.heap_mb, 128),
                ("wait_s", self.wait_s, 0),
                ("call_s", self.call_s, 0.001),
                ("plan_s", self.plan_s, 0.001),
            )
            if not value >= least
        ]
        if problems:
            raise ConfigError(problems)


def java() -> str:
    """The program `java`: that of JAVA_HOME, else the first on the path; ConfigError where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ConfigError(
            "no Java runtime was found",
            expected="java on the PATH or in JAVA_HOME, version 8 or newer",
            hint="run: apt-get install default-jre-headless",
        )
    return found


class Jvm:
    """A machine with one object of a Java class.

    Args:
        extra: the package it belongs to.
        jar: what holds the class.
        made: the class, with a constructor that takes nothing.
        limits: see `JvmLimits`.

    Raises:
        ConfigError: there is no Java. MissingExtra: py4j is not installed.
        EnvLost: the machine did not start.
    """

    def __init__(self, extra: Extra, jar: Path, made: str, *, limits: JvmLimits) -> None:
        gateway, protocol = extra.module("py4j.java_gateway"), extra.module("py4j.protocol")
        self._lock = threading.Lock()
        self._name, self._limits = made.rpartition(".")[2], limits
        # The serial collector and the quick compiler: many small machines on few cores, most of them short-lived.
        options = [f"-Xmx{limits.heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with boundary(EnvLost, "the Java machine did not start", options=" ".join(options)):
            port, token, self._process = gateway.launch_gateway(
                classpath=str(jar),
                cwd=str(jar.parent),
                javaopts=options,
                java_path=java(),
                die_on_exit=True,
                return_proc=True,
                enable_auth=True,
                create_new_process_group=True,
            )
        self._client = _client(gateway, port, token)
        self.pid: int = self._process.pid
        new = f"{protocol.CONSTRUCTOR_COMMAND_NAME}{made}\n{protocol.END_COMMAND_PART}"
        self._object = self._guarded(
            "start", lambda: protocol.get_return_value(self._client.send_command(new), self._client), limits.call_s
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def busy(self) -> bool:
        """Whether a call is going on."""
        return self._lock.locked()

    def call(self, method: str, *arguments: str | int | bool, timeout_s: float | None = None) -> Any:
        """Call a method of the object: text, a number, a truth value, or for lists and arrays a list of text.

        Raises:
            EnvLost: the machine is dead, did not answer in time, or the method failed; it is killed then.
        """
        return self._guarded(
            method, lambda: _plain(getattr(self._object, method)(*arguments)), timeout_s or self._limits.call_s
        )

    def _guarded(self, what: str, call: Callable[[], Any], timeout_s: float) -> Any:
        if not self._lock.acquire(blocking=False):
            raise EnvLost(f"{self._name}.{what}: another call to this Java machine is going on", value=self.pid)
        done = False
        try:
            if not self.alive:
                raise EnvLost("the Java machine is gone", value=f"exit code {self._process.poll()}")
            self._client.timeout_s = timeout_s
            with boundary(EnvLost, f"{self._name}.{what} failed", within=f"{timeout_s:g} s"):
                answer = call()
            done = True
            return answer
        finally:
            self._lock.release()
            if not done:
                self.kill()

    def kill(self) -> None:
        """End the process at once; it keeps nothing. Calling it twice is harmless."""
        self._process.kill()
        self._process.wait()
        self._client.close()
        if self._process.stdin is not None:
            with boundary(EnvLost, "the pipe to a dead Java machine"):
                self._process.stdin.close()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else [str(item) for item in value]


def _client(gateway: Any, port: int, token: str) -> Any:
    """A client of Py4J that sends every call once and gives it the time that it may take."""

    class Client(gateway.GatewayClient):  # type: ignore[misc]
        timeout_s = 60.0
        converters = None  # what a JavaGateway would set: arguments are plain values

        def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
            connection = self._get_connection()
            connection.socket.settimeout(self.timeout_s)
            answer = connection.send_command(command)
            self._give_back_connection(connection)
            return answer

    parameters = gateway.GatewayParameters(port=port, auth_token=token, enable_memory_management=False)
    shared = gateway.GatewayProperty(auto_field=False, pool=None, enable_memory_management=False)
    return Client(gateway_parameters=parameters, gateway_property=shared)


class JvmPool:
    """Machines that are taken and given back.

    Args:
        start: starts one.
        limits: how many, and how long to wait for one.
    """

    def __init__(self, start: Callable[[], Jvm], limits: JvmLimits) -> None:
        self._start, self._limits = start, limits
        self._changed = threading.Condition()
        self._free: list[Jvm] = []
        self._count = 0
        self._closed = False

    @property
    def free(self) -> Sequence[int]:
        """The process ids of the machines that nobody uses."""
        with self._changed:
            return [jvm.pid for jvm in self._free]

    @property
    def count(self) -> int:
        """How many machines there are, used ones and free ones."""
        return self._count

    def take(self) -> Jvm:
        """A free machine, else a new one, else the next that is given back.

        Raises:
            AtCapacity: none was given back in time. EnvLost, ConfigError: none could be started, or the pool is closed.
        """
        deadline = Deadline(self._limits.wait_s)
        with self._changed:
            while True:
                if self._closed:
                    raise EnvLost("the pool of Java machines was closed")
                while self._free:
                    jvm = self._free.pop()
                    if jvm.alive:
                        return jvm
                    self._lose(jvm)
                if self._count < self._limits.most:
                    self._count += 1
                    break
                if deadline.expired:
                    raise AtCapacity("no free Java machine", value=self._count, retry_after_s=_RETRY_S)
                self._changed.wait(deadline.left())
        started: Jvm | None = None
        try:
            started = self._start()
            return started
        finally:
            if started is None:
                with self._changed:
                    self._count -= 1
                    self._changed.notify()

    def give(self, jvm: Jvm) -> None:
        """Give a machine back; one that is dead, or hangs in a call, is put away."""
        with self._changed:
            if jvm.alive and not jvm.busy and not self._closed:
                self._free.append(jvm)
            else:
                self._lose(jvm)
            self._changed.notify()

    def _lose(self, jvm: Jvm) -> None:
        self._count -= 1
        jvm.kill()

    def close(self) -> None:
        """Kill the free machines, and the used ones when they are given back. Nothing can be taken any more."""
        with self._changed:
            self._closed = True
            while self._free:
                self._lose(self._free.pop())
            self._changed.notify_all()

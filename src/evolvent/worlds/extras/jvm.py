"""Java virtual machines that each run one simulator, and a pool that reuses them, because starting one takes
seconds.

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
from typing import Any, TypeAlias

from evolvent.deadline import Deadline
from evolvent.errors import AtCapacity, ConfigError, EnvLost, Problem, boundary
from evolvent.worlds.extras.wrapped import Extra

__all__ = ["JavaValue", "Jvm", "JvmLimits", "JvmPool", "find_java"]

JavaValue: TypeAlias = Any
"""A text, a number, a boolean, a list of texts or None, as the called method has it."""

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class JvmLimits:
    """Limits of the machines of a pool.

    Args:
        max_machines: maximum number of machines at the same time; each holds 100 to 600 MB.
        heap_mb: maximum heap of a machine.
        wait_s: maximum time to wait for a free machine.
        call_s: maximum time of a call.
        plan_s: maximum time to make an expert's plan.

    Raises:
        ConfigError: lists all invalid numbers.
    """

    max_machines: int = 16
    heap_mb: int = 512
    wait_s: float = 30.0
    call_s: float = 60.0
    plan_s: float = 300.0

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{value!r} is too little", f"give at least {minimum}")
            for name, value, minimum in (
                ("most", self.max_machines, 1),
                ("heap_mb", self.heap_mb, 128),
                ("wait_s", self.wait_s, 0),
                ("call_s", self.call_s, 0.001),
                ("plan_s", self.plan_s, 0.001),
            )
            if not value >= minimum
        ]
        if problems:
            raise ConfigError(problems)


def find_java() -> str:
    """Finds the program `java`: in JAVA_HOME, else on the PATH; raises ConfigError if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise ConfigError(
            "no Java runtime was found",
            expected="java on the PATH or in JAVA_HOME, version 8 or newer",
            hint="run: apt-get install default-jre-headless",
        )
    return program


class Jvm:
    """A machine with one object of a Java class.

    Args:
        extra: the package that the machine belongs to.
        jar: the archive that holds the class.
        class_name: name of the class, which has a constructor without arguments.
        limits: see `JvmLimits`.

    Raises:
        ConfigError: Java was not found. MissingExtra: py4j is not installed.
        EnvLost: the machine did not start.
    """

    def __init__(self, extra: Extra, jar: Path, class_name: str, *, limits: JvmLimits) -> None:
        gateway, protocol = extra.load_module("py4j.java_gateway"), extra.load_module("py4j.protocol")
        self._lock = threading.Lock()
        self._name, self._limits = class_name.rpartition(".")[2], limits
        # The serial collector and the quick compiler: many small machines on few cores, most of them short-lived.
        options = [f"-Xmx{limits.heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with boundary(EnvLost, "the Java machine did not start", options=" ".join(options)):
            port, token, self._process = gateway.launch_gateway(
                classpath=str(jar),
                cwd=str(jar.parent),
                javaopts=options,
                java_path=find_java(),
                die_on_exit=True,
                return_proc=True,
                enable_auth=True,
                create_new_process_group=True,
            )
        self._client = _make_client(gateway, port, token)
        self.pid: int = self._process.pid
        command = f"{protocol.CONSTRUCTOR_COMMAND_NAME}{class_name}\n{protocol.END_COMMAND_PART}"
        self._object = self._run_call(
            "start", lambda: protocol.get_return_value(self._client.send_command(command), self._client), limits.call_s
        )

    @property
    def is_alive(self) -> bool:
        """Returns whether the process runs."""
        return self._process.poll() is None

    @property
    def is_busy(self) -> bool:
        """Returns whether a call is running."""
        return self._lock.locked()

    def call(self, method: str, *arguments: str | int | bool, timeout_s: float | None = None) -> JavaValue:
        """Calls a method of the object; returns a text, number or boolean, or a list of texts for lists and arrays.

        Raises:
            EnvLost: the machine is dead, did not answer in time, or the method failed; it is killed then.
        """
        return self._run_call(
            method, lambda: _to_python(getattr(self._object, method)(*arguments)), timeout_s or self._limits.call_s
        )

    def _run_call(self, method: str, call: Callable[[], Any], timeout_s: float) -> Any:
        """Runs a call with a deadline; kills the machine if the call fails or a second call is running."""
        if not self._lock.acquire(blocking=False):
            raise EnvLost(f"{self._name}.{method}: another call to this Java machine is going on", value=self.pid)
        is_finished = False
        try:
            if not self.is_alive:
                raise EnvLost("the Java machine is gone", value=f"exit code {self._process.poll()}")
            self._client.timeout_s = timeout_s
            with boundary(EnvLost, f"{self._name}.{method} failed", within=f"{timeout_s:g} s"):
                answer = call()
            is_finished = True
            return answer
        finally:
            self._lock.release()
            if not is_finished:
                self.kill()

    def kill(self) -> None:
        """Kills the process, which keeps no state; a second call is harmless."""
        self._process.kill()
        self._process.wait()
        self._client.close()
        if self._process.stdin is not None:
            with boundary(EnvLost, "the pipe to a dead Java machine"):
                self._process.stdin.close()


def _to_python(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else [str(item) for item in value]


def _make_client(gateway: Any, port: int, token: str) -> Any:
    """Builds a Py4J client that sends every call once and waits for it as long as the deadline allows."""

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
    """Pool of machines that are taken and given back.

    Args:
        start: starts a machine.
        limits: number of machines and waiting time.
    """

    def __init__(self, start: Callable[[], Jvm], limits: JvmLimits) -> None:
        self._start, self._limits = start, limits
        self._changed = threading.Condition()
        self._free: list[Jvm] = []
        self._count = 0
        self._closed = False

    @property
    def free_pids(self) -> Sequence[int]:
        """Returns the process ids of the unused machines."""
        with self._changed:
            return [jvm.pid for jvm in self._free]

    @property
    def count(self) -> int:
        """Returns the number of machines, used and free."""
        return self._count

    def take(self) -> Jvm:
        """Takes a free machine, else starts a new one, else waits for the next that is given back.

        Raises:
            AtCapacity: no machine was given back in time.
            EnvLost, ConfigError: no machine could be started, or the pool is closed.
        """
        deadline = Deadline(self._limits.wait_s)
        with self._changed:
            while True:
                if self._closed:
                    raise EnvLost("the pool of Java machines was closed")
                while self._free:
                    jvm = self._free.pop()
                    if jvm.is_alive:
                        return jvm
                    self._remove(jvm)
                if self._count < self._limits.max_machines:
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

    def give_back(self, jvm: Jvm) -> None:
        """Puts a machine back into the pool; a machine that is dead or hangs in a call is removed."""
        with self._changed:
            if jvm.is_alive and not jvm.is_busy and not self._closed:
                self._free.append(jvm)
            else:
                self._remove(jvm)
            self._changed.notify()

    def _remove(self, jvm: Jvm) -> None:
        self._count -= 1
        jvm.kill()

    def close(self) -> None:
        """Kills the free machines now and the used ones when they are given back; nothing can be taken afterwards."""
        with self._changed:
            self._closed = True
            while self._free:
                self._remove(self._free.pop())
            self._changed.notify_all()

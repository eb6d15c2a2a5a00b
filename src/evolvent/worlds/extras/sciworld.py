"""ScienceWorld (Wang et al. 2022): experiments in a simulated school, thirty tasks with up to 1,386 variations
each.

The simulator is the package's own Java program. A step consists of three short calls: the action, the score and
whether the episode is over; the package's own step also lists all possible actions, which takes a hundred times
longer. Java machines are pooled. Loading a task is enough to start it: `reset` after `load` only costs time.

Java virtual machines that each run one simulator, and a pool that reuses them, because starting one takes
seconds.

Every call has a deadline. A machine that misses one, that dies or whose simulator fails is killed and never used again.
Py4J's own client is not used for calls: it sends a call again after some failures, and a step must not be played twice.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evolvent.deadline import Deadline
from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    Problem,
    SessionGone,
    VersionMismatch,
    boundary,
    unknown_name_problem,
)
from evolvent.trajectory import Json, Score, Task, sample_seed
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.wrapped import Extra, WrappedWorld, clean_command, common_problems, read_number
from evolvent.worlds.panel import Sizes, check_names

__all__ = [
    "AGENTGYM_TASKS",
    "VARIATIONS",
    "JavaValue",
    "Jvm",
    "JvmLimits",
    "JvmPool",
    "SciWorld",
    "find_java",
    "official_split",
]

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
            Problem(name, f"got {value!r}, expected at least {minimum}")
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
            raise EnvLost(f"{self._name}.{method}: another call to this Java machine is running", value=self.pid)
        is_finished = False
        try:
            if not self.is_alive:
                raise EnvLost("the Java machine died", value=f"exit code {self._process.poll()}")
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


SCIENCEWORLD = Extra("sciworld", "scienceworld", "ScienceWorld")
_CLASS = "scienceworld.runtime.pythonapi.PythonInterface"
_MAX_ACTION_LENGTH = 300  # characters of an action
_UNKNOWN = "No known action matches that input."
_MAX_CACHED_PLANS = 512

VARIATIONS: Mapping[str, int] = {
    "boil": 30,
    "melt": 30,
    "freeze": 30,
    "change-the-state-of-matter-of": 30,
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "find-animal": 300,
    "grow-plant": 126,
    "grow-fruit": 126,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
}
"""The tasks in ScienceWorld's order (1-1 to 10-2), and how many variations each has."""

_EXCLUDED_PREFIXES = ("grow-", "inclined-plane-", "mendelian-")  # by AgentGym: 5-1, 5-2, 9-1 to 9-3, 10-1, 10-2
AGENTGYM_TASKS: tuple[str, ...] = tuple(name for name in VARIATIONS if not name.startswith(_EXCLUDED_PREFIXES))
"""The tasks that AgentGym's environment has, in its order."""


def official_split(task: str, variation: int) -> str:
    """Returns ScienceWorld's own split: the first half of a task's variations is train, a quarter dev, the rest
    test.
    """
    quarter = VARIATIONS[task] // 4
    return "train" if variation < 2 * quarter else "dev" if variation < 3 * quarter else "test"


@dataclass(frozen=True, slots=True)
class _Spec:
    task: str
    variation: int
    simplify: str


class SciWorld(WrappedWorld):
    """ScienceWorld. Rewards are changes of the score in percent; a forbidden action ends the episode at -100.

    Where the simulator's score is above 0 before the first action (`simplify="easy"` in the find-* tasks), the infos
    hold it as `start_score`: no action is paid for it, and it counts in the score of the episode.

    The splits are ScienceWorld's own, by variation, so that results compare with published ones.

    Args:
        tasks: "agentgym" (23 tasks) or "all" (30).
        simplify: "" or "easy": ScienceWorld's simplifications (doors and containers open, teleporting, ...).
        admissible: whether to list the possible actions in every info, which takes 0.1 to 1 s a step.
        horizon: maximum number of actions of an episode; AgentGym's 30 is too few for many of the expert's plans.
        sizes: the panel sizes, spread over the tasks and their variations.
        penalty: the reward of an invalid action.
        limits: limits of the Java machines.

    Raises:
        ConfigError: unknown options (lists all of them), or Java was not found.
        MissingExtra: scienceworld is not installed.
    """

    name = "sciworld"
    instructions = (
        "Do an experiment in a school of several rooms. Actions: open OBJ, close OBJ, activate OBJ, deactivate OBJ, "
        "connect OBJ to OBJ, disconnect OBJ, use OBJ [on OBJ], look around, look at OBJ, look in OBJ, read OBJ, "
        "move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, go to LOC, "
        "eat OBJ, flush OBJ, focus on OBJ, wait, wait1, task, inventory. Focus on an object only where the task asks "
        "for it: it signals what you have found, and the wrong one ends the episode. Where an action is ambiguous, "
        "answer with the number of the one you mean."
    )

    def __init__(
        self,
        tasks: Literal["agentgym", "all"] = "agentgym",
        *,
        simplify: str = "",
        admissible: bool = False,
        horizon: int = 30,
        sizes: Sizes | None = None,
        penalty: float = 0.0,
        limits: JvmLimits | None = None,
    ) -> None:
        problems = common_problems(horizon=horizon, penalty=penalty)
        if tasks not in ("agentgym", "all"):
            problems.append(unknown_name_problem("tasks", str(tasks), ("agentgym", "all")))
        if simplify not in ("", "easy"):
            problems.append(unknown_name_problem("simplify", str(simplify), ("", "easy")))
        if problems:
            raise ConfigError(problems)
        super().__init__(SCIENCEWORLD, sizes=sizes, penalty=penalty)
        find_java()
        self.kinds = AGENTGYM_TASKS if tasks == "agentgym" else tuple(VARIATIONS)
        self.simplify, self.admissible, self.horizon = simplify, admissible, horizon
        self.reward_range = (-100.0 + min(0.0, penalty), 100.0)
        self.limits = limits or JvmLimits()
        self.pool = JvmPool(self._start_machine, self.limits)
        self._sizes = sizes or Sizes()
        self._dealt: dict[str, tuple[Task, ...]] = {}
        self._plans: dict[str, tuple[str, ...] | None] = {}

    def _start_machine(self) -> Jvm:
        jar = Path(str(SCIENCEWORLD.load_module("scienceworld.constants").JAR_PATH))
        return Jvm(SCIENCEWORLD, jar, _CLASS, limits=self.limits)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split, cycling through the kinds; in dev and test at most `sizes.per_kind` of one
        kind.
        """
        check_names(split, tier, self.tiers)
        if split not in self._dealt:
            self._dealt[split] = self._deal(split)
        return self._dealt[split]

    def _deal(self, split: str) -> tuple[Task, ...]:
        limit = None if split == "train" else self._sizes.per_kind
        rows = []
        for kind in self.kinds:
            numbers = [number for number in range(VARIATIONS[kind]) if official_split(kind, number) == split]
            numbers.sort(key=lambda number: sample_seed("sciworld", kind, number))
            rows += [(rank, kind, number) for rank, number in enumerate(numbers[:limit])]
        rows.sort(key=lambda row: (row[0], self.kinds.index(row[1])))
        return tuple(self._build_task(kind, number) for _, kind, number in rows[: self._sizes.of(split)])

    def _build_task(self, kind: str, variation: int) -> Task:
        spec: dict[str, Json] = {"task": kind, "variation": variation}
        if self.simplify:
            spec["simplify"] = self.simplify
        return Task(self.name, self.version, spec, kind, self.tiers[0], official_split(kind, variation))

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an index of AgentGym's environment, which counts through tasks and their variations.

        Raises:
            ConfigError: the index is out of range.
        """
        end_indices = list(accumulate(VARIATIONS[kind] for kind in AGENTGYM_TASKS))
        if type(index) is not int or not 0 <= index < end_indices[-1]:
            raise ConfigError("AgentGym index out of range", value=index, expected=f"0 to {end_indices[-1] - 1}")
        kind_index = next(number for number, end in enumerate(end_indices) if index < end)
        return self._build_task(AGENTGYM_TASKS[kind_index], index - (end_indices[kind_index - 1] if kind_index else 0))

    def _parse_spec(self, task: Task) -> _Spec:
        check_task(self, task)
        names = ("task", "variation", "simplify") if "simplify" in task.spec else ("task", "variation")
        variation = read_number(task.spec, "variation", names=names)
        kind, simplify = task.spec["task"], task.spec.get("simplify", "")
        problems = [] if kind in VARIATIONS else [unknown_name_problem("task", str(kind), VARIATIONS)]
        if not problems and variation >= VARIATIONS[kind]:
            problems.append(Problem("variation", f"got {variation}, expected 0 to {VARIATIONS[kind] - 1} for {kind}"))
        if simplify not in ("", "easy"):
            problems.append(unknown_name_problem("simplify", str(simplify), ("easy",)))
        if problems:
            raise ConfigError(problems)
        return _Spec(kind, variation, simplify)

    def _open_session(self, task: Task) -> _LabSession:
        return _LabSession(self.pool, self._parse_spec(task), admissible=self.admissible)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the sum of the rewards and of the score at the start (the last score in percent,
        with penalties); success = a score of 100.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        raw = math.fsum(known_rewards) + float(info.get("start_score", 0))
        return Score(raw, min(1.0, max(0.0, raw) / 100), float(info.get("score", raw)) >= 100)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns ScienceWorld's gold path, which takes seconds to make; None if it is longer than the horizon.

        Raises:
            EnvLost: the path was not made within `limits.plan_s`.
        """
        spec = self._parse_spec(task)
        if task.id not in self._plans:
            jvm = self.pool.take()
            try:
                _load_task(jvm, spec, plan_s=self.limits.plan_s)
                gold_path = tuple(jvm.call("getGoldActionSequence"))
            finally:
                self.pool.give_back(jvm)
            while len(self._plans) >= _MAX_CACHED_PLANS:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[task.id] = gold_path
        plan = self._plans[task.id]
        return plan if plan is not None and len(plan) <= self.horizon else None

    def close(self) -> None:
        """Closes the Java machines: free ones now, used ones when their episodes end."""
        self.pool.close()


def _load_task(jvm: Jvm, spec: _Spec, *, plan_s: float | None = None) -> None:
    """Loads a task, with its gold path if `plan_s` is given."""
    num_variations = jvm.call("getTaskMaxVariations", spec.task)
    if num_variations != VARIATIONS[spec.task]:
        raise VersionMismatch(
            f"number of variations of {spec.task} differs in this version of scienceworld",
            value=num_variations,
            expected=VARIATIONS[spec.task],
        )
    jvm.call("load", spec.task, spec.variation, spec.simplify, plan_s is not None, timeout_s=plan_s)


class _LabSession:
    """An episode. It takes a machine at its start and gives it back at its end."""

    def __init__(self, pool: JvmPool, spec: _Spec, *, admissible: bool) -> None:
        self._pool, self._spec, self._admissible = pool, spec, admissible
        self._score = self._start_score = 0
        self._jvm: Jvm | None = None
        self._giving: weakref.finalize[[Jvm], _LabSession] | None = None

    def begin(self) -> tuple[str, Info]:
        if self._jvm is None or not self._jvm.is_alive:
            self.close()
            self._jvm = self._pool.take()
            self._giving = weakref.finalize(self, self._pool.give_back, self._jvm)
        _load_task(self._jvm, self._spec)
        task_text = self._jvm.call("getTaskDescription")
        room_text = self._jvm.call("step", "look around")
        # With the simplification "easy", the simulator's score of the four find-* tasks is 8 before any action
        # (scienceworld 1.2.3): it is in the score and in none of the rewards.
        self._score = self._start_score = round(100 * self._jvm.call("getScore"))
        return f"{task_text}\n{room_text}", self._info(self._jvm)

    def act(self, action: str) -> Reply:
        jvm = self._jvm
        if jvm is None:  # closed by another thread, as a driver does with an episode that took too long
            raise SessionGone("step was called after the episode was closed", value=action, expected="reset() first")
        line = clean_command(action, max_length=_MAX_ACTION_LENGTH)
        observation = _UNKNOWN if line is None else jvm.call("step", line)
        score_before, self._score = self._score, round(100 * jvm.call("getScore"))
        is_over = bool(jvm.call("getCompleted")) or self._score < 0
        info = self._info(jvm, with_actions=not is_over)
        if is_over:
            self.close()
        if observation.strip() == _UNKNOWN:
            info = {**info, "invalid": True}
        return observation, float(self._score - score_before), is_over, False, info

    def _info(self, jvm: Jvm, *, with_actions: bool = True) -> dict[str, object]:
        info: dict[str, object] = {"score": self._score}
        if self._start_score:
            info["start_score"] = self._start_score
        if self._admissible:
            info["admissible"] = tuple(sorted(jvm.call("getValidActionObjectCombinations"))) if with_actions else ()
        return info

    def close(self) -> None:
        self._jvm = None
        if self._giving is not None:
            self._giving()  # once, whoever comes first
            self._giving = None

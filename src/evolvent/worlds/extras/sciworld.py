"""ScienceWorld (Wang et al. 2022): experiments in a simulated school, thirty tasks with up to 1,386 variations each.

The simulator is the package's own, a program for Java. A step is lean: the action, the score and whether it is over,
three short calls; the package's own step also lists all actions that are possible, which takes a hundred times longer.
Java machines are pooled. Loading a task is enough to begin it: `reset` after `load` changes nothing but the time.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from evolvent.errors import ConfigError, Problem, SessionGone, VersionMismatch, unknown
from evolvent.trajectory import Json, Score, Task, sample_seed
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.jvm import Jvm, JvmLimits, JvmPool, java
from evolvent.worlds.extras.wrapped import Extra, Wrapped, common_problems, one_line, read_number
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["AGENTGYM_TASKS", "VARIATIONS", "SciWorld", "official_split"]

SCIENCEWORLD = Extra("sciworld", "scienceworld", "ScienceWorld")
_CLASS = "scienceworld.runtime.pythonapi.PythonInterface"
_LONGEST = 300  # characters of an action
_UNKNOWN = "No known action matches that input."
_PLANS_KEPT = 512

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

_LEFT_OUT = ("grow-", "inclined-plane-", "mendelian-")  # by AgentGym: 5-1, 5-2, 9-1 to 9-3, 10-1, 10-2
AGENTGYM_TASKS: tuple[str, ...] = tuple(name for name in VARIATIONS if not name.startswith(_LEFT_OUT))
"""The tasks that AgentGym's environment has, in its order."""


def official_split(task: str, variation: int) -> str:
    """ScienceWorld's own split: of a task's variations the first half is train, a quarter is dev, the rest is test."""
    quarter = VARIATIONS[task] // 4
    return "train" if variation < 2 * quarter else "dev" if variation < 3 * quarter else "test"


@dataclass(frozen=True, slots=True)
class _Spec:
    task: str
    variation: int
    simplify: str


class SciWorld(Wrapped):
    """ScienceWorld. Rewards are changes of the score, in percent; a forbidden action ends the episode at -100.

    Its splits are ScienceWorld's own, by variation, so that results compare with published ones.

    Args:
        tasks: "agentgym" (23 tasks) or "all" (30).
        simplify: "" or "easy": ScienceWorld's simplifications (doors and containers open, teleporting, ...).
        admissible: list the possible actions in every info, which takes 0.1 to 1 s a step.
        horizon: how many actions an episode may take; 30 is AgentGym's, too few for many of the expert's plans.
        sizes: how many tasks the panels hold, spread over the tasks and their variations.
        penalty: the reward of an action that is none.
        limits: of the Java machines.

    Raises:
        ConfigError: unknown options, all of them at once; or there is no Java.
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
            problems.append(unknown("tasks", str(tasks), ("agentgym", "all")))
        if simplify not in ("", "easy"):
            problems.append(unknown("simplify", str(simplify), ("", "easy")))
        if problems:
            raise ConfigError(problems)
        super().__init__(SCIENCEWORLD, sizes=sizes, penalty=penalty)
        java()
        self.kinds = AGENTGYM_TASKS if tasks == "agentgym" else tuple(VARIATIONS)
        self.simplify, self.admissible, self.horizon = simplify, admissible, horizon
        self.reward_range = (-100.0 + min(0.0, penalty), 100.0)
        self.limits = limits or JvmLimits()
        self.pool = JvmPool(self._start, self.limits)
        self._sizes = sizes or Sizes()
        self._dealt: dict[str, tuple[Task, ...]] = {}
        self._plans: dict[str, tuple[str, ...] | None] = {}

    def _start(self) -> Jvm:
        jar = Path(str(SCIENCEWORLD.module("scienceworld.constants").JAR_PATH))
        return Jvm(SCIENCEWORLD, jar, _CLASS, limits=self.limits)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split, one of each kind in turn; in dev and test at most `sizes.per_kind` of one kind."""
        check_names(split, tier, self.tiers)
        if split not in self._dealt:
            self._dealt[split] = self._deal(split)
        return self._dealt[split]

    def _deal(self, split: str) -> tuple[Task, ...]:
        most = None if split == "train" else self._sizes.per_kind
        drawn = []
        for kind in self.kinds:
            numbers = [number for number in range(VARIATIONS[kind]) if official_split(kind, number) == split]
            numbers.sort(key=lambda number: sample_seed("sciworld", kind, number))
            drawn += [(place, kind, number) for place, number in enumerate(numbers[:most])]
        drawn.sort(key=lambda each: (each[0], self.kinds.index(each[1])))
        return tuple(self._task(kind, number) for _, kind, number in drawn[: self._sizes.of(split)])

    def _task(self, kind: str, variation: int) -> Task:
        spec: dict[str, Json] = {"task": kind, "variation": variation}
        if self.simplify:
            spec["simplify"] = self.simplify
        return Task(self.name, self.version, spec, kind, self.tiers[0], official_split(kind, variation))

    def indexed(self, index: int) -> Task:
        """The task that stands at an index of AgentGym's environment: flat over its tasks and their variations.

        Raises:
            ConfigError: there is no such index.
        """
        ends = list(accumulate(VARIATIONS[kind] for kind in AGENTGYM_TASKS))
        if type(index) is not int or not 0 <= index < ends[-1]:
            raise ConfigError("no index of AgentGym's", value=index, expected=f"0 to {ends[-1] - 1}")
        at = next(number for number, end in enumerate(ends) if index < end)
        return self._task(AGENTGYM_TASKS[at], index - (ends[at - 1] if at else 0))

    def _read(self, task: Task) -> _Spec:
        check_task(self, task)
        names = ("task", "variation", "simplify") if "simplify" in task.spec else ("task", "variation")
        variation = read_number(task.spec, "variation", names=names)
        kind, simplify = task.spec["task"], task.spec.get("simplify", "")
        problems = [] if kind in VARIATIONS else [unknown("task", str(kind), VARIATIONS)]
        if not problems and variation >= VARIATIONS[kind]:
            problems.append(Problem("variation", f"{variation}", f"{kind} has {VARIATIONS[kind]}, counted from 0"))
        if simplify not in ("", "easy"):
            problems.append(unknown("simplify", str(simplify), ("easy",)))
        if problems:
            raise ConfigError(problems)
        return _Spec(kind, variation, simplify)

    def _open(self, task: Task) -> _Lab:
        return _Lab(self.pool, self._read(task), admissible=self.admissible)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """raw = the sum of the rewards: the last score in percent, with penalties; success = a score of 100."""
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        raw = math.fsum(known)
        return Score(raw, min(1.0, max(0.0, raw) / 100), float(info.get("score", raw)) >= 100)

    def expert(self, task: Task) -> Sequence[str] | None:
        """ScienceWorld's gold path, which takes seconds to make; None if it is longer than the horizon.

        Raises:
            EnvLost: it was not made within `limits.plan_s`.
        """
        spec = self._read(task)
        if task.id not in self._plans:
            jvm = self.pool.take()
            try:
                _load(jvm, spec, plan_s=self.limits.plan_s)
                found = tuple(jvm.call("getGoldActionSequence"))
            finally:
                self.pool.give(jvm)
            while len(self._plans) >= _PLANS_KEPT:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[task.id] = found
        plan = self._plans[task.id]
        return plan if plan is not None and len(plan) <= self.horizon else None

    def close(self) -> None:
        """End the Java machines: free ones now, used ones with their episodes."""
        self.pool.close()


def _load(jvm: Jvm, spec: _Spec, *, plan_s: float | None = None) -> None:
    """Load a task, with the gold path if there is time for it."""
    found = jvm.call("getTaskMaxVariations", spec.task)
    if found != VARIATIONS[spec.task]:
        raise VersionMismatch(
            f"this version of scienceworld has other variations of {spec.task}",
            value=found,
            expected=VARIATIONS[spec.task],
        )
    jvm.call("load", spec.task, spec.variation, spec.simplify, plan_s is not None, timeout_s=plan_s)


class _Lab:
    """An episode. It takes a machine when it begins and gives it back when it ends."""

    def __init__(self, pool: JvmPool, spec: _Spec, *, admissible: bool) -> None:
        self._pool, self._spec, self._admissible = pool, spec, admissible
        self._score = 0
        self._jvm: Jvm | None = None
        self._giving: weakref.finalize[[Jvm], _Lab] | None = None

    def begin(self) -> tuple[str, Info]:
        if self._jvm is None or not self._jvm.alive:
            self.close()
            self._jvm = self._pool.take()
            self._giving = weakref.finalize(self, self._pool.give, self._jvm)
        _load(self._jvm, self._spec)
        self._score = 0
        described = self._jvm.call("getTaskDescription")
        seen = self._jvm.call("step", "look around")
        return f"{described}\n{seen}", self._info(self._jvm)

    def act(self, action: str) -> Reply:
        jvm = self._jvm
        if jvm is None:  # closed by another thread, as a driver does with an episode that took too long
            raise SessionGone("a step of an episode that was closed", value=action, expected="reset() first")
        line = one_line(action, most=_LONGEST)
        seen = _UNKNOWN if line is None else jvm.call("step", line)
        before, self._score = self._score, round(100 * jvm.call("getScore"))
        over = bool(jvm.call("getCompleted")) or self._score < 0
        info = self._info(jvm, listed=not over)
        if over:
            self.close()
        if seen.strip() == _UNKNOWN:
            info = {**info, "invalid": True}
        return seen, float(self._score - before), over, False, info

    def _info(self, jvm: Jvm, *, listed: bool = True) -> dict[str, object]:
        info: dict[str, object] = {"score": self._score}
        if self._admissible:
            info["admissible"] = tuple(sorted(jvm.call("getValidActionObjectCombinations"))) if listed else ()
        return info

    def close(self) -> None:
        self._jvm = None
        if self._giving is not None:
            self._giving()  # once, whoever comes first
            self._giving = None

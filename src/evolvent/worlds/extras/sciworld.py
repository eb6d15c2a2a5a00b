"""ScienceWorld (Wang et al. 2022): experiments in a simulated school, thirty tasks with up to 1,386 variations
each.

The simulator is the package's own Java program. A step consists of three short calls: the action, the score and
whether the episode is over; the package's own step also lists all possible actions, which takes a hundred times
longer. Java machines are pooled. Loading a task is enough to start it: `reset` after `load` only costs time.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from evolvent.errors import ConfigError, Problem, SessionGone, VersionMismatch, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, sample_seed
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.jvm import Jvm, JvmLimits, JvmPool, find_java
from evolvent.worlds.extras.wrapped import Extra, WrappedWorld, clean_command, common_problems, read_number
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["AGENTGYM_TASKS", "VARIATIONS", "SciWorld", "official_split"]

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
            raise ConfigError("no index of AgentGym's", value=index, expected=f"0 to {end_indices[-1] - 1}")
        kind_index = next(number for number, end in enumerate(end_indices) if index < end)
        return self._build_task(AGENTGYM_TASKS[kind_index], index - (end_indices[kind_index - 1] if kind_index else 0))

    def _parse_spec(self, task: Task) -> _Spec:
        check_task(self, task)
        names = ("task", "variation", "simplify") if "simplify" in task.spec else ("task", "variation")
        variation = read_number(task.spec, "variation", names=names)
        kind, simplify = task.spec["task"], task.spec.get("simplify", "")
        problems = [] if kind in VARIATIONS else [unknown_name_problem("task", str(kind), VARIATIONS)]
        if not problems and variation >= VARIATIONS[kind]:
            problems.append(Problem("variation", f"{variation}", f"{kind} has {VARIATIONS[kind]}, counted from 0"))
        if simplify not in ("", "easy"):
            problems.append(unknown_name_problem("simplify", str(simplify), ("easy",)))
        if problems:
            raise ConfigError(problems)
        return _Spec(kind, variation, simplify)

    def _open_session(self, task: Task) -> _LabSession:
        return _LabSession(self.pool, self._parse_spec(task), admissible=self.admissible)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the sum of the rewards (the last score in percent, with penalties); success = a
        score of 100.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        raw = math.fsum(known_rewards)
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
            f"this version of scienceworld has other variations of {spec.task}",
            value=num_variations,
            expected=VARIATIONS[spec.task],
        )
    jvm.call("load", spec.task, spec.variation, spec.simplify, plan_s is not None, timeout_s=plan_s)


class _LabSession:
    """An episode. It takes a machine at its start and gives it back at its end."""

    def __init__(self, pool: JvmPool, spec: _Spec, *, admissible: bool) -> None:
        self._pool, self._spec, self._admissible = pool, spec, admissible
        self._score = 0
        self._jvm: Jvm | None = None
        self._giving: weakref.finalize[[Jvm], _LabSession] | None = None

    def begin(self) -> tuple[str, Info]:
        if self._jvm is None or not self._jvm.is_alive:
            self.close()
            self._jvm = self._pool.take()
            self._giving = weakref.finalize(self, self._pool.give_back, self._jvm)
        _load_task(self._jvm, self._spec)
        self._score = 0
        task_text = self._jvm.call("getTaskDescription")
        room_text = self._jvm.call("step", "look around")
        return f"{task_text}\n{room_text}", self._info(self._jvm)

    def act(self, action: str) -> Reply:
        jvm = self._jvm
        if jvm is None:  # closed by another thread, as a driver does with an episode that took too long
            raise SessionGone("a step of an episode that was closed", value=action, expected="reset() first")
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
        if self._admissible:
            info["admissible"] = tuple(sorted(jvm.call("getValidActionObjectCombinations"))) if with_actions else ()
        return info

    def close(self) -> None:
        self._jvm = None
        if self._giving is not None:
            self._giving()  # once, whoever comes first
            self._giving = None

"""A drawn task, its solution, and the expert, which observes exactly what an agent observes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.tools.engine import FINISH, State, Toolbox

__all__ = ["Notes", "Quest", "Solution", "ToolExpert", "ToolResult"]

Notes: TypeAlias = Any
"""What a question tells its own world's solver: each world has its own class."""
ToolResult: TypeAlias = Any
"""The JSON value that a tool returns, whose form its expert knows."""


@dataclass(frozen=True, slots=True)
class Quest:
    """One drawn task.

    Args:
        question: the first observation.
        start: the initial state of the tools.
        digest: computes `key`, which only panels need.
        notes: information on the question for the world's own solver.
    """

    question: str
    start: State
    digest: Callable[[], str]
    notes: Notes = None

    @property
    def key(self) -> str:
        """Returns the canonical form: equal for tasks that differ only in names."""
        return self.digest()


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution of a task.

    Args:
        plan: the expert's calls, `finish` last.
        subgoals: the results that count as intermediate steps.
        answer: the right answer for `finish`; None if it takes no answer.
        goal: the state to be reached.
    """

    plan: tuple[Call, ...]
    subgoals: tuple[Json, ...]
    answer: Json
    goal: State


class ToolExpert:
    """A working expert: it calls tools, records the calls, their results and the states around them, and makes no query
    twice.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self.state = toolbox.start
        self.states: list[State] = [toolbox.start]
        self.calls: list[Call] = []
        self.results: list[Json] = []
        self._known: dict[str, ToolResult] = {}

    def query(self, name: str, /, **arguments: object) -> ToolResult:
        """Returns the result of a call that changes nothing; a cached result is not queried again."""
        key = f"{name} {arguments}"
        if key not in self._known:
            self._known[key] = self.execute(name, **arguments)
        return self._known[key]

    def execute(self, name: str, /, **arguments: object) -> ToolResult:
        """Returns the result of a call; raises ConfigError if it fails: then the task has no solution."""
        call = Call(name, arguments)
        self.state, result = self.toolbox.call(self.state, call)
        if result.failed:
            raise ConfigError(f"the expert cannot solve the task: {result.value}", value=call)
        self.states.append(self.state)
        self.calls.append(call)
        self.results.append(result.value)
        return result.value

    def build_solution(self, answer: Json, *, takes_answer: bool = True) -> Solution:
        """Returns the solution after `finish`, which receives the answer if `takes_answer`."""
        finish = Call(FINISH, {"answer": answer} if takes_answer else {})
        return Solution((*self.calls, finish), tuple(self.results), answer, self.state)

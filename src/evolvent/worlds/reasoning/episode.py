"""The environment of one question: the first action is the whole response, and ends the episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evolvent.errors import ScoringError, SessionGone
from evolvent.grade.base import Grade
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, own_moment

__all__ = ["OUTCOMES", "QuestionEnv"]

OUTCOMES: tuple[str, ...] = ("right", "wrong", "no answer could be read")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot. A question never changes, so all that an episode carries is whether it runs."""

    task: str
    running: bool


class QuestionEnv:
    """One question.

    The info of the only step says `answered` (whether an answer could be read: what R3's partial credit asks),
    `answer` (as it was read, or None) and, without one, `invalid`.

    Args:
        task: whose question it is.
        text: the observation.
        grade: the verdict on a response.
    """

    def __init__(self, task: Task, text: str, grade: Callable[[str], Grade]) -> None:
        self._task, self._text, self._grade = task, text, grade
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        return self._text, {}

    def step(self, action: Value) -> Reply:
        """The verdict on a response; the episode is over.

        Raises:
            SessionGone: a step before `reset`, or after the end.
            ScoringError: nothing can be said about the response. SafetyError: the host cannot run a program safely.
        """
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        found = self._grade(str(action))
        if found.correct is None:
            raise ScoringError("the response could not be graded", value=found.why)
        self._running = False
        answered = found.extracted is not None
        info: dict[str, object] = {"answered": answered, "answer": found.extracted}
        if not answered:
            info["invalid"] = True
        told = OUTCOMES[0] if found.correct else OUTCOMES[1] if answered else OUTCOMES[2]
        return told, float(found.correct), True, False, info

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._running = own_moment(value, _Moment, self._task).running

    def close(self) -> None:
        self._running = False

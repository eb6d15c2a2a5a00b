"""The environment of one question: the first action is the complete response and ends the episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evolvent.errors import ScoringError, SessionGone
from evolvent.grade.base import Grade
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, check_snapshot

__all__ = ["OUTCOMES", "QuestionEnv"]

OUTCOMES: tuple[str, ...] = ("right", "wrong", "no answer could be read")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot of an episode. A question never changes, so the only state is whether the episode runs."""

    task: str
    running: bool


class QuestionEnv:
    """The environment of one question.

    The info of the only step contains `answered` (whether an answer could be read, as R3's partial credit needs),
    `answer` (the answer as it was read, or None) and, without an answer, `invalid`.

    Args:
        task: the task of the question.
        text: the observation.
        grade: grades a response.
    """

    def __init__(self, task: Task, text: str, grade: Callable[[str], Grade]) -> None:
        self._task, self._text, self._grade = task, text, grade
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        return self._text, {}

    def step(self, action: Value) -> Reply:
        """Returns the verdict on a response and ends the episode.

        Raises:
            SessionGone: a step before `reset`, or after the end.
            ScoringError: the response could not be graded. SafetyError: the host cannot run a program safely.
        """
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        verdict = self._grade(str(action))
        if verdict.correct is None:
            raise ScoringError("the response could not be graded", value=verdict.why)
        self._running = False
        answered = verdict.extracted is not None
        info: dict[str, object] = {"answered": answered, "answer": verdict.extracted}
        if not answered:
            info["invalid"] = True
        observation = OUTCOMES[0] if verdict.correct else OUTCOMES[1] if answered else OUTCOMES[2]
        return observation, float(verdict.correct), True, False, info

    def snapshot(self) -> object:
        return _Snapshot(self._task.id, self._running)

    def restore(self, snapshot: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        self._running = check_snapshot(snapshot, _Snapshot, self._task).running

    def close(self) -> None:
        self._running = False

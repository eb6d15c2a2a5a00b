"""The environment of one question: the first action is the complete response and ends the episode."""

from __future__ import annotations

from collections.abc import Callable

from evolvent.errors import ScoringError
from evolvent.grade.base import Grade
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, StateEnv

__all__ = ["OUTCOMES", "QuestionEnv"]

OUTCOMES: tuple[str, ...] = ("right", "wrong", "no answer could be read")


class QuestionEnv(StateEnv[None]):
    """The environment of one question. A question never changes, so the only state is whether the episode runs.

    The info of the only step contains `answered` (whether an answer could be read, as R3's partial credit needs),
    `answer` (the answer as it was read, or None) and, without an answer, `invalid`.

    Args:
        task: the task of the question.
        text: the observation.
        grade: grades a response.
    """

    def __init__(self, task: Task, text: str, grade: Callable[[str], Grade]) -> None:
        super().__init__(task, None)
        self._text, self._grade = text, grade

    def _observe_start(self) -> tuple[Value, Info]:
        return self._text, {}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        """Returns the verdict on a response and ends the episode.

        Raises:
            ScoringError: the response could not be graded. SafetyError: the host cannot run a program safely.
        """
        verdict = self._grade(str(action))
        if verdict.correct is None:
            raise ScoringError("the response could not be graded", value=verdict.why)
        answered = verdict.extracted is not None
        info: dict[str, object] = {"answered": answered, "answer": verdict.extracted}
        if not answered:
            info["invalid"] = True
        observation = OUTCOMES[0] if verdict.correct else OUTCOMES[1] if answered else OUTCOMES[2]
        return None, (observation, float(verdict.correct), True, False, info)

"""Questions from a user's files, graded by the user's grader: it turns a response and the gold answer into a
`Grade`.

Files are read as by `worlds.reasoning.maths`: rows with `problem` and `answer`, and a `solution` for a
demonstration. Test files stay test files.
"""

from __future__ import annotations

from pathlib import Path

from evolvent.errors import WorldError, user_boundary
from evolvent.grade.base import Grade, Grader
from evolvent.grade.maths import MathsGrader
from evolvent.trajectory import Task
from evolvent.worlds.reasoning.maths import Maths
from evolvent.worlds.reasoning.mathsfiles import split_sentences
from evolvent.worlds.reasoning.question import Question

__all__ = ["Graded"]


class Graded(Maths):
    """The questions of a file or a folder with another grader.

    Args:
        path: as in `Maths`. grader: `grader(response, gold) -> Grade`. called: name of the grader; part of task
            ids.
    Raises:
        ConfigError: as in `Maths`.
    """

    instructions = "Answer the question."

    def __init__(self, path: str | Path, grader: Grader, *, grader_name: str) -> None:
        self.name, self._judge = f"graded-{grader_name}", grader
        super().__init__(path, grader=MathsGrader())

    def question(self, task: Task) -> Question:
        """Returns the question of a row; its demonstration is the solution, or the answer alone."""
        row = self._find_row(task)
        return Question(
            row.problem, split_sentences(row.solution), row.answer, demonstration=row.solution or row.answer
        )

    def same(self, a: str, b: str) -> bool:
        """Returns whether one answer, given as a response, is right if the other is gold."""
        return a == b or bool(self._call_grader(a, b).correct)

    def grade(self, response: str, question: Question) -> Grade:
        """Returns the grader's verdict.

        Raises:
            WorldError: the grader raised, or did not return a `Grade`; the episode is not scored.
        """
        return self._call_grader(response, question.answer)

    def _call_grader(self, response: str, gold: str) -> Grade:
        with user_boundary(WorldError, f"the grader of {self.name} failed", gold=gold):
            verdict = self._judge(response, gold)
        if not isinstance(verdict, Grade):
            raise WorldError(f"the grader of {self.name} did not return a Grade", value=type(verdict).__name__)
        return verdict

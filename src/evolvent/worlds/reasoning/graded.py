"""Questions of your files, judged by a grader of your own: from a response and the gold answer to a `Grade`.

Files are read as those of `worlds.reasoning.maths`: rows with `problem` and `answer`, and a `solution` where one is
to be demonstrated. Test files stay test files.
"""

from __future__ import annotations

from pathlib import Path

from evolvent.errors import WorldError, boundary
from evolvent.grade.base import Grade, Grader
from evolvent.grade.maths import MathsGrader
from evolvent.trajectory import Task
from evolvent.worlds.reasoning.maths import Maths
from evolvent.worlds.reasoning.mathsfiles import sentences
from evolvent.worlds.reasoning.question import Question

__all__ = ["Graded"]


class Graded(Maths):
    r"""The questions of a file or a folder under another judge.

    Args:
        path: as `Maths` takes it. grader: `grader(response, gold) -> Grade`. called: its name, of which the tasks are.
    Raises:
        ConfigError: as `Maths` does.
    """

    instructions = "Answer the question."

    def __init__(self, path: str | Path, grader: Grader, *, called: str) -> None:
        self.name, self._judge = f"graded-{called}", grader
        super().__init__(path, grader=MathsGrader())

    def question(self, task: Task) -> Question:
        """The question of a row; its demonstration is the solution, or the answer alone."""
        row = self._row(task)
        return Question(row.problem, sentences(row.solution), row.answer, said=row.solution or row.answer)

    def same(self, a: str, b: str) -> bool:
        """Whether one answer, given as a response, is right where the other is gold."""
        return a == b or bool(self._verdict(a, b).correct)

    def grade(self, said: str, question: Question) -> Grade:
        """The grader's verdict.

        Raises:
            WorldError: the grader raised, or gave no `Grade`; the episode is not scored.
        """
        return self._verdict(said, question.answer)

    def _verdict(self, said: str, gold: str) -> Grade:
        with boundary(WorldError, f"the grader of {self.name} failed", gold=gold):
            found = self._judge(said, gold)
        if not isinstance(found, Grade):
            raise WorldError(f"the grader of {self.name} gave no Grade", value=type(found).__name__)
        return found

"""What all worlds of one question have in common: one step, one response, right or wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from evolvent.grade.base import Grade
from evolvent.grade.numbers import number_of
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, score_won
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.reasoning.episode import QuestionEnv
from evolvent.worlds.reasoning.question import Question, grade_question, response

__all__ = ["Questions"]


class Questions(ABC):
    """A world of questions: an episode is one response, worth 1 if its answer is right and 0 else.

    Attributes:
        chance: the share that guessing an answer wins (0 where answers are open); no audit can ask for less.
    """

    name: str
    version = "1"
    instructions: str
    grammar: Grammar = Plain()
    horizon = 1
    reward_range = (0.0, 1.0)
    tiers: tuple[str, ...] = ("seen",)
    blocking = False
    chance = 0.0

    @abstractmethod
    def question(self, task: Task) -> Question:
        """The question of a task.

        Raises:
            ConfigError: a task of another world, or a spec that names no question.
            VersionMismatch: a task of another version.
        """

    def make(self, task: Task) -> QuestionEnv:
        """An Env for one task; raises what `question` raises."""
        question = self.question(task)
        return QuestionEnv(task, question.text, lambda said: self.grade(said, question))

    def grade(self, said: str, question: Question) -> Grade:
        """The verdict on a response."""
        return grade_question(said, question)

    def same(self, a: str, b: str) -> bool:
        """Whether two answers are one, as votes count them: equal texts, or equal numbers."""
        number = number_of(a)
        return a == b or (number is not None and number == number_of(b))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the right answer; raw = the reward, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """One response, with its rationale and the right answer; None where nobody has shown one."""
        said = response(self.question(task))
        return None if said is None else [said]

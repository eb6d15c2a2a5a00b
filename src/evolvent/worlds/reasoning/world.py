"""The base class of worlds of one question: one step, one response, right or wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from evolvent.grade.base import Grade
from evolvent.grade.numbers import parse_number
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Grammar, Info, Plain, score_if_won
from evolvent.worlds.reasoning.episode import QuestionEnv
from evolvent.worlds.reasoning.question import Question, format_demonstration, grade_question

__all__ = ["Questions"]


class Questions(ABC):
    """A world of questions: an episode is one response, with reward 1 if its answer is right, else 0.

    Attributes:
        chance: the success rate of guessing (0 if answers are open); the lower bound that an audit allows.
    """

    name: str
    version = "1"
    instructions: str
    grammar: Grammar = Plain()
    horizon = 1
    reward_range = (0.0, 1.0)
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = False
    chance = 0.0

    @abstractmethod
    def question(self, task: Task) -> Question:
        """Returns the question of a task.

        Raises:
            ConfigError: a task of another world, or a spec that names no question.
            VersionMismatch: a task of another version.
        """

    def make(self, task: Task) -> QuestionEnv:
        """Creates an Env for one task; raises the errors of `question`."""
        question = self.question(task)
        return QuestionEnv(task, question.text, lambda response: self.grade(response, question))

    def grade(self, response: str, question: Question) -> Grade:
        """Returns the grade of a response."""
        return grade_question(response, question)

    def same(self, a: str, b: str) -> bool:
        """Returns whether two answers count as equal in a vote: equal texts, or equal numbers."""
        number = parse_number(a)
        return a == b or (number is not None and number == parse_number(b))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the right answer; raw = the reward, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns one response with a rationale and the right answer, or None without a demonstration."""
        demonstration = format_demonstration(self.question(task))
        return None if demonstration is None else [demonstration]

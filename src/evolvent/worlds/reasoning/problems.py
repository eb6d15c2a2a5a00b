"""Word problems about quantities, answered by a chain of thought or by a program.

    anna has 12 apples . boris has 5 more apples than anna . how many apples do anna and boris have together ?
        ->  anna has 12 ; boris has 12 + 5 = 17 ; 12 + 17 = 29 ### 29
        ->  anna = 12 ; boris = anna + 5 ; return anna + boris

The kind of a task is its chain of relations and the quantity asked for at the end. Half of the stories also
mention an unrelated person. In the form "program" (P-CoT of R3) the question ends with `def solution():`, and
the response is the body of that function.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Literal

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.grade.base import Grade
from evolvent.sandbox.limits import CodeRunner
from evolvent.trajectory import sample_seed
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.programs import Programs
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.stories import FIXED_WORDS, MAX_NUMBER, QUESTION_FORMS, RELATIONS, draw_story

__all__ = ["FORMS", "HEAD", "INSTRUCTIONS", "Form", "Problems"]

Form = Literal["cot", "program"]
FORMS: tuple[Form, ...] = ("cot", "program")
HEAD = "def solution():"
"""How a question ends that asks for a program."""
INSTRUCTIONS = {
    "cot": "Solve the word problem. Write the steps of your solution, divided by ';', then '###' and the number.",
    "program": (
        "Solve the word problem with a program in Python. Write the body of solution(), which returns the number. "
        "It ends at the first blank line."
    ),
}
_MAX_DRAWS = 20  # draws of the numbers of one story
_POOLS: Pools = {
    "person": PEOPLE,
    "thing": ("apples", "books", "coins", "eggs", "pens", "cards", "shells", "stamps", "nuts", "keys"),
    "gets": ("buys", "finds", "gets"),
    "loses": ("loses", "sells", "gives away"),
    "together": ("together", "in all", "altogether"),
}


class Problems(Generated):
    """The world of generated word problems.

    Args:
        form: "cot" (a chain of thought) or "program".
        relations: relations in the longest training story, 2 to 8; `longer` has one more.
        runner: runs programs that are not straight-line; None: sandboxes created when first needed.
        sizes: panel sizes.
    Raises:
        ConfigError: an unknown form, or relations out of range.
    """

    name = "problems"

    def __init__(
        self,
        *,
        form: Form = "cot",
        relations: int = 3,
        runner: CodeRunner | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        problems = []
        if form not in FORMS:
            problems.append(unknown_name_problem("form", form, FORMS))
        if not 2 <= relations <= 8:
            problems.append(Problem("relations", f"{relations} relations in a story", "give 2 to 8"))
        if problems:
            raise ConfigError(problems)
        self.form, self.instructions = form, INSTRUCTIONS[form]
        self.version = "1" if form == "cot" else "1-program"  # the same name: a story is in one split in both forms
        self.run_in_thread = form == "program"
        self.ending = f"\n{HEAD}" if form == "program" else ""
        self.vocabulary_source = f"{FIXED_WORDS} {' '.join(map(str, range(1, MAX_NUMBER + 1)))}"
        self._programs = Programs(runner)
        super().__init__(Chains(self.name, RELATIONS, relations + 1, ends=QUESTION_FORMS), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        rng = Random(sample_seed(self.name, seed, *chain))
        stories = (draw_story(chain[:-1], chain[-1], rng) for _ in range(_MAX_DRAWS))
        story = next((story for story in stories if story is not None), None)
        if story is None:
            return None
        text = " ".join((*story.sentences, story.question))
        if self.form == "program":
            return Question(text, (), str(story.answer), demonstration=story.program)
        return Question(text, story.rationale, str(story.answer))

    def grade(self, response: str, question: Question) -> Grade:
        """Returns the grade of a response: a number as the answer, or a program that returns a number."""
        if self.form == "program":
            return self._programs.grade(response, Fraction(question.answer))
        return super().grade(response, question)

"""Word problems about quantities, answered by a chain of thought or by a program.

    anna has 12 apples . boris has 5 more apples than anna . how many apples do anna and boris have together ?
        ->  anna has 12 ; boris has 12 + 5 = 17 ; 12 + 17 = 29 ### 29
        ->  anna = 12 ; boris = anna + 5 ; return anna + boris

The kind of a task is its chain of relations and the quantity asked for at the end. Half of the stories also
mention an unrelated person. In the form "program" (P-CoT of R3) the question ends with `def solution():`, and
the response is the body of that function.

Word problems as templates: people who own things, each introduced by the sentence before, and a final question.

    anna has 12 apples . boris has 5 more apples than anna . how many apples do anna and boris have together ?

A story is drawn from a chain of relations that ends with the form of the question. Names are roles (`naming`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

__all__ = [
    "FIXED_WORDS",
    "FORMS",
    "HEAD",
    "INSTRUCTIONS",
    "MAX_NUMBER",
    "QUESTION_FORMS",
    "RELATIONS",
    "Form",
    "Line",
    "Problems",
    "Story",
    "draw_story",
]


MAX_NUMBER = 99
"""The largest number in a story."""
RELATIONS: tuple[str, ...] = ("more", "buys", "times", "fewer", "loses", "share")
QUESTION_FORMS: tuple[str, ...] = ("own", "both", "gap")
FIXED_WORDS = (
    "has more than fewer times as many and . then how do does have together ? in all "
    "def solution ( ) : = + - * / return"
)
_MAX_START, _MAX_CHANGE = 60, 30  # the largest number to begin with; what is added or taken is below the second
_SYMBOLS = {"more": "+", "buys": "+", "times": "*", "fewer": "-", "loses": "-", "share": "/"}
_SENTENCES = {
    "more": "{new} has {n} more {thing} than {old} .",
    "fewer": "{new} has {n} fewer {thing} than {old} .",
    "times": "{new} has {n} times as many {thing} as {old} .",
    "share": "{old} has {n} times as many {thing} as {new} .",
    "buys": "then {old} {gets} {n} {thing} .",
    "loses": "then {old} {loses} {n} {thing} .",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One step of the solution: `person` has `left symbol operand = value`; the first line has a value only.

    Args:
        person: the role of the person.
        source: the person whose number is `left`.
    """

    person: str
    value: int
    source: str = ""
    left: int = 0
    symbol: str = ""
    operand: int = 0


@dataclass(frozen=True, slots=True)
class Story:
    """A problem: its sentences, the steps of its solution, the question, and the answer.

    Args:
        question_form: one of `QUESTION_FORMS`: the last person's number, the last two together, or the larger one's
            lead.
        pair: the two people compared by `both` and `gap`, the larger first for `gap`.
    """

    sentences: tuple[str, ...]
    lines: tuple[Line, ...]
    question_form: str
    pair: tuple[str, str]
    answer: int

    @property
    def question(self) -> str:
        """Returns the question sentence."""
        first, second = self.pair
        if self.question_form == "own":
            return f"how many {{thing0}} does {second} have ?"
        if self.question_form == "both":
            return f"how many {{thing0}} do {first} and {second} have {{together0}} ?"
        return f"how many more {{thing0}} does {first} have than {second} ?"

    @property
    def rationale(self) -> tuple[str, ...]:
        """Returns the solution as equations."""
        equations = [
            f"{line.person} has {line.left} {line.symbol} {line.operand} = {line.value}"
            if line.symbol
            else f"{line.person} has {line.value}"
            for line in self.lines
        ]
        if self.question_form != "own":
            first, second = self.holdings
            equations.append(f"{first} {'+' if self.question_form == 'both' else '-'} {second} = {self.answer}")
        return tuple(equations)

    @property
    def program(self) -> str:
        """Returns the solution as the body of a function, on one line; people are its variables."""
        statements = [
            f"{line.person} = {line.source} {line.symbol} {line.operand}"
            if line.symbol
            else f"{line.person} = {line.value}"
            for line in self.lines
        ]
        first, second = self.pair
        operation = {"own": "", "both": f"{first} + ", "gap": f"{first} - "}[self.question_form]
        return " ; ".join([*statements, f"return {operation}{second}"])

    @property
    def holdings(self) -> tuple[int, int]:
        """Returns the final numbers of the two people in the question."""
        final_values = {line.person: line.value for line in self.lines}
        return final_values[self.pair[0]], final_values[self.pair[1]]


def draw_story(relations: Sequence[str], question_form: str, rng: Random) -> Story | None:
    """Draws a story of these relations; None if a number leaves 1 to `MAX_NUMBER` or there is nobody to compare
    with.
    """
    lines = [Line("{person0}", rng.randint(2, _MAX_START))]
    sentences = [f"{{person0}} has {lines[0].value} {{thing0}} ."]
    for relation in relations:
        line = _draw_line(relation, lines, rng)
        if line is None:
            return None
        slots = {"new": line.person, "old": lines[-1].person, "n": line.operand, "thing": "{thing0}"}
        sentences.append(_SENTENCES[relation].format(**slots, gets="{gets0}", loses="{loses0}"))
        lines.append(line)
    people = list(dict.fromkeys(line.person for line in lines))
    if question_form != "own" and len(people) < 2:
        return None
    pair = (people[-2], people[-1]) if len(people) > 1 else (people[-1], people[-1])
    final_values = {line.person: line.value for line in lines}
    if question_form == "gap" and final_values[pair[0]] < final_values[pair[1]]:
        pair = (pair[1], pair[0])
    first, second = final_values[pair[0]], final_values[pair[1]]
    answer = {"own": final_values[people[-1]], "both": first + second, "gap": first - second}[question_form]
    if not 1 <= answer <= MAX_NUMBER:
        return None
    noise_position = rng.randint(1, len(sentences))
    sentences[noise_position:noise_position] = _draw_noise(len(people), rng)
    return Story(tuple(sentences), tuple(lines), question_form, pair, answer)


def _draw_line(relation: str, lines: Sequence[Line], rng: Random) -> Line | None:
    """Draws the next step, or returns None if no operand fits."""
    previous = lines[-1]
    symbol = _SYMBOLS[relation]
    operands = [
        operand
        for operand in range(2, 6 if symbol in "*/" else _MAX_CHANGE)
        if _apply_operation(previous.value, symbol, operand) is not None
    ]
    if not operands:
        return None
    operand = rng.choice(operands)
    people = len({line.person for line in lines})
    person = previous.person if relation in ("buys", "loses") else f"{{person{people}}}"
    return Line(
        person, _apply_operation(previous.value, symbol, operand) or 0, previous.person, previous.value, symbol, operand
    )


def _apply_operation(left: int, symbol: str, operand: int) -> int | None:
    if symbol == "/":
        return left // operand if left % operand == 0 else None
    result = left + operand if symbol == "+" else left - operand if symbol == "-" else left * operand
    return result if 1 <= result <= MAX_NUMBER else None


def _draw_noise(people: int, rng: Random) -> list[str]:
    """Returns, for half of the stories, a sentence about an unrelated person."""
    if rng.random() < 0.5:
        return []
    return [f"{{person{people}}} has {rng.randint(2, _MAX_START)} {{thing0}} ."]


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
            problems.append(Problem("relations", f"got {relations} relations in a story, expected 2 to 8"))
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

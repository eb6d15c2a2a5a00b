"""Grading of whole answers to countdown and the game of 24: one expression, or the lines of TS-LLM's Game24.

    (6 - 4) * (4 + 8) = 24                           13 - 9 = 4 (left: 4 4 10)
    The answer is (6 - 4) * (4 + 8) = 24.            ...
                                                     The answer is 4 * (10 - 4) = 24

The expression is read by a parser of its own, worked out in fractions, and has to use exactly the numbers given, each
once. General graders of mathematics are no help: they take the right side of "(6 - 4) * (4 + 8) = 24" for the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from evolvent.grade.base import Grade

__all__ = ["Expression", "check_lines", "grade_countdown", "grade_expression", "grade_lines", "read_expression"]

_LONGEST, _DEEPEST = 400, 60  # characters and brackets inside one another; what is beyond is no answer to six numbers
_SIGNS = {
    "×": "*",
    "·": "*",
    "⋅": "*",
    "∗": "*",
    "÷": "/",
    "−": "-",
    "–": "-",
    r"\times": "*",
    r"\cdot": "*",
    r"\div": "/",
    "[": "(",
    "]": ")",
    r"\left": "",
    r"\right": "",
    r"\(": "",
    r"\)": "",
    "$": "",
}
_SIGN = re.compile("|".join(re.escape(sign) for sign in sorted(_SIGNS, key=len, reverse=True)))
_TOKEN = re.compile(r"\s*(?:(\d{1,9})(?![\d.])|([-+*/()]))")
_ANSWERED = re.compile(r"\banswer\s*(?:is|:)\s*:?", re.IGNORECASE)
_GOLD = re.compile(r"make (\d{1,9}) from (\d{1,9}(?: \d{1,9}){0,19})")
_VALUE = r"(-?\d{1,9}(?:/\d{1,9})?)"
_LINE = re.compile(rf"{_VALUE} ([-+*/]) {_VALUE} = {_VALUE} \(left: ?([-0-9/ ]*)\)")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression, read: its exact value, and the numbers in it from left to right."""

    value: Fraction
    numbers: tuple[int, ...]


class _Wrong(Exception):
    """The text is no expression, or has no value."""


class _Reader:
    """One pass over the tokens: sums of products of numbers and brackets."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0
        self.numbers: list[int] = []

    def whole(self) -> Fraction:
        value = self._sum()
        if self._place < len(self._tokens):
            raise _Wrong(f"{self._tokens[self._place]!r} out of place")
        return value

    def _next(self, *wanted: str) -> str:
        """The next token, taken, if it is one of these; else ""."""
        if self._place < len(self._tokens) and self._tokens[self._place] in wanted:
            self._place += 1
            return self._tokens[self._place - 1]
        return ""

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._next("+", "-"):
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _product(self) -> Fraction:
        value = self._leaf()
        while sign := self._next("*", "/"):
            other = self._leaf()
            if sign == "/" and not other:
                raise _Wrong("a division by zero")
            value = value * other if sign == "*" else value / other
        return value

    def _leaf(self) -> Fraction:
        if self._next("("):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise _Wrong("brackets too deep")
            value = self._sum()
            self._depth -= 1
            if not self._next(")"):
                raise _Wrong("a bracket that is not closed")
            return value
        if self._place == len(self._tokens) or not self._tokens[self._place].isdecimal():
            raise _Wrong("a number is missing")
        self.numbers.append(int(self._tokens[self._place]))
        self._place += 1
        return Fraction(self.numbers[-1])


def read_expression(text: str) -> Expression | None:
    """The expression that a text is: whole numbers, + - * / and brackets; None where it is none or divides by zero.

    A number has no sign of its own: -4 is not one of the numbers given.
    """
    try:
        return _read(text)
    except _Wrong:
        return None


def _read(text: str) -> Expression:
    if len(text) > _LONGEST:
        raise _Wrong(f"over {_LONGEST} characters")
    text = _SIGN.sub(lambda found: _SIGNS[found[0]], text).strip()
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _Wrong(f"{text[place : place + 20].strip()!r} is no number and no operator")
        tokens.append(found[1] or found[2])
        place = found.end()
    reader = _Reader(tokens)
    value = reader.whole()
    return Expression(value, tuple(reader.numbers))


def _answer(response: str) -> str | None:
    """What a response gives as its answer: after the last "answer is", else its last line that is not empty."""
    said = [found.end() for found in _ANSWERED.finditer(response)]
    lines = [line.strip() for line in response[said[-1] if said else 0 :].splitlines() if line.strip()]
    if not lines:
        return None
    return (lines[0] if said else lines[-1]).rstrip(" .")


def grade_expression(response: str, numbers: Sequence[int], target: int) -> Grade:
    """Whether a response ends in an expression of exactly these numbers, each once, that is the target.

    It may go on with "= TARGET"; another number there is wrong, and so is a third side.

    Returns:
        correct: True or False; `extracted` None where no expression could be read.
    """
    answer = _answer(response)
    if answer is None:
        return Grade(correct=False, extracted=None, why="an empty answer")
    left, _, right = answer[: 2 * _LONGEST].partition("=")
    try:
        found = _read(left)
    except _Wrong as wrong:
        return Grade(correct=False, extracted=None, why=f"no expression: {wrong}")
    shown = left.strip()
    if Counter(found.numbers) != Counter(numbers):
        return Grade(correct=False, extracted=shown, why=f"it uses {' '.join(map(str, found.numbers))}")
    if right and right.strip(" $") != str(target):
        return Grade(correct=False, extracted=shown, why=f"it says {right.strip()[:20]}")
    why = "" if found.value == target else f"it is {found.value}"
    return Grade(correct=not why, extracted=shown, why=why)


def check_lines(lines: Sequence[str], numbers: Sequence[int]) -> tuple[bool, ...]:
    """The truth of each line `a op b = c (left: ...)`, played from these numbers.

    A line is right if a and b are left at that moment, c is what they come to, and what is left is listed whole, in any
    order. Fractions are written 8/3. After the first wrong line nothing is known to be left: all later ones are wrong.
    """
    left: Counter[Fraction] | None = Counter(map(Fraction, numbers))
    verdicts = []
    for line in lines:
        left = _played(line, left) if left is not None else None
        verdicts.append(left is not None)
    return tuple(verdicts)


def _played(line: str, left: Counter[Fraction]) -> Counter[Fraction] | None:
    """What is left after a line; None for a wrong one."""
    found = _LINE.fullmatch(" ".join(line.split()))
    if found is None:
        return None
    try:
        a, b, result = (Fraction(found[group]) for group in (1, 3, 4))
        listed = Counter(map(Fraction, found[5].split()))
        made = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if found[2] == "/" else a}[found[2]]
    except (ValueError, ZeroDivisionError):
        return None
    taken = Counter((a, b))
    then = left - taken
    then[result] += 1
    return then if taken <= left and made == result and then == listed else None


def grade_lines(response: str, numbers: Sequence[int], target: int) -> Grade:
    """Whether a response is a whole game: one right line for each move, then `The answer is EXPRESSION = TARGET`.

    The moves must end at the target, and the expression must be right by itself (`grade_expression`).
    """
    lines = [line.strip() for line in response.strip().splitlines() if line.strip()]
    moves = lines[:-1]
    found = grade_expression(response, numbers, target)
    if not found.correct:
        return found
    if len(moves) != len(numbers) - 1 or not _ANSWERED.search(lines[-1]):
        why = f"{len(moves)} lines before the answer, not {len(numbers) - 1}"
        return Grade(correct=False, extracted=found.extracted, why=why)
    verdicts = check_lines(moves, numbers)
    if not all(verdicts):
        place = verdicts.index(False)
        return Grade(correct=False, extracted=found.extracted, why=f"line {place + 1}: {moves[place][:60]}")
    ends = moves and not re.search(rf"\(left: ?{target}\)$", moves[-1])
    return Grade(correct=not ends, extracted=found.extracted, why="the moves end elsewhere" if ends else "")


def grade_countdown(response: str, gold: str) -> Grade:
    """Whether a response solves "make 24 from 4 9 10 13", as a `Grader`: lines where it has such, else an expression.

    Returns:
        correct: None where `gold` is no such task.
    """
    found = _GOLD.fullmatch(" ".join(gold.split()))
    if found is None:
        return Grade(correct=None, extracted=None, why="the gold answer is no task of countdown")
    numbers, target = [int(number) for number in found[2].split()], int(found[1])
    grade = grade_lines if "(left:" in response else grade_expression
    return grade(response, numbers, target)

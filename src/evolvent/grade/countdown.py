"""Grading of complete answers to countdown and the game of 24: one expression, or the lines of TS-LLM's
Game24.

    (6 - 4) * (4 + 8) = 24                           13 - 9 = 4 (left: 4 4 10)
    The answer is (6 - 4) * (4 + 8) = 24.            ...
                                                     The answer is 4 * (10 - 4) = 24

A parser of this module reads the expression and computes it in fractions; it must use exactly the given
numbers, each once. General graders of mathematics do not work here: they take the right side of "(6 - 4) * (4 +
8) = 24" as answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from evolvent.grade.base import Grade
from evolvent.grade.markdown import strip_markdown
from evolvent.grade.thoughts import split_thoughts

__all__ = ["Expression", "check_lines", "grade_countdown", "grade_expression", "grade_lines", "parse_expression"]

_MAX_CHARS, _MAX_DEPTH = (
    400,
    60,
)  # characters and brackets inside one another; what is beyond is no answer to six numbers
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
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_GOLD = re.compile(r"make (\d{1,9}) from (\d{1,9}(?: \d{1,9}){0,19})")
_VALUE = r"(-?\d{1,9}(?:/\d{1,9})?)"
_LINE = re.compile(rf"{_VALUE} ([-+*/]) {_VALUE} = {_VALUE} \(left: ?([-0-9/ ]*)\)")


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its exact value, and its numbers from left to right."""

    value: Fraction
    numbers: tuple[int, ...]


class _InvalidExpression(Exception):
    """Raised for a text that is not an expression, or has no value."""


class _ExpressionParser:
    """A recursive-descent parser of sums of products of numbers and parentheses."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0
        self.numbers: list[int] = []

    def parse(self) -> Fraction:
        value = self._parse_sum()
        if self._place < len(self._tokens):
            raise _InvalidExpression(f"{self._tokens[self._place]!r} out of place")
        return value

    def _accept(self, *expected: str) -> str:
        """Takes the next token and returns it if it is one of these; otherwise returns ""."""
        if self._place < len(self._tokens) and self._tokens[self._place] in expected:
            self._place += 1
            return self._tokens[self._place - 1]
        return ""

    def _parse_sum(self) -> Fraction:
        value = self._parse_product()
        while sign := self._accept("+", "-"):
            operand = self._parse_product()
            value = value + operand if sign == "+" else value - operand
        return value

    def _parse_product(self) -> Fraction:
        value = self._parse_leaf()
        while sign := self._accept("*", "/"):
            operand = self._parse_leaf()
            if sign == "/" and not operand:
                raise _InvalidExpression("a division by zero")
            value = value * operand if sign == "*" else value / operand
        return value

    def _parse_leaf(self) -> Fraction:
        if self._accept("("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise _InvalidExpression("brackets too deep")
            value = self._parse_sum()
            self._depth -= 1
            if not self._accept(")"):
                raise _InvalidExpression("a bracket that is not closed")
            return value
        if self._place == len(self._tokens) or not self._tokens[self._place].isdecimal():
            raise _InvalidExpression("a number is missing")
        self.numbers.append(int(self._tokens[self._place]))
        self._place += 1
        return Fraction(self.numbers[-1])


def parse_expression(text: str) -> Expression | None:
    """Parses an expression of integers, + - * / and parentheses; None where it is invalid or divides by zero.

    A number has no sign of its own: -4 is not one of the numbers given.
    """
    try:
        return _parse_strict(text)
    except _InvalidExpression:
        return None


def _parse_strict(text: str) -> Expression:
    if len(text) > _MAX_CHARS:
        raise _InvalidExpression(f"over {_MAX_CHARS} characters")
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text).strip()
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _InvalidExpression(f"{text[position : position + 20].strip()!r} is no number and no operator")
        tokens.append(match[1] or match[2])
        position = match.end()
    reader = _ExpressionParser(tokens)
    value = reader.parse()
    return Expression(value, tuple(reader.numbers))


def _extract_answer(response: str) -> str | None:
    """Extracts the answer of a response without markdown.

    It is the last box or `<answer>`, else what follows the last "answer is", else the last line that is not empty.
    """
    response = split_thoughts(response, leading=False)[0]
    marked = _TAGGED.findall(response) or _BOXED.findall(response)
    if marked:
        return strip_markdown(marked[-1]).rstrip(" .") or None
    answer_ends = [match.end() for match in _ANSWERED.finditer(response)]
    lines = [line.strip() for line in response[answer_ends[-1] if answer_ends else 0 :].splitlines()]
    lines = [line for line in lines if line.strip("`~*_ ")]
    if not lines:
        return None
    return strip_markdown((lines[0] if answer_ends else lines[-1]).rstrip(" .")).rstrip(" .")


def grade_expression(response: str, numbers: Sequence[int], target: int) -> Grade:
    """Returns whether a response ends in an expression that equals the target and uses exactly these numbers, each
    once.

    It may go on with "= TARGET"; another number there is wrong, and so is a third side.

    Returns:
        correct: True or False; `extracted` None where no expression could be read.
    """
    answer = _extract_answer(response)
    if answer is None:
        return Grade(correct=False, extracted=None, why="an empty answer")
    left, _, right = answer[: 2 * _MAX_CHARS].partition("=")
    if left.strip(" $") == str(target) and re.search(r"\d\D+\d", right):
        left, right = right, left  # the target stands first
    try:
        expression = _parse_strict(left)
    except _InvalidExpression as error:
        return Grade(correct=False, extracted=None, why=f"no expression: {error}")
    extracted = left.strip()
    if Counter(expression.numbers) != Counter(numbers):
        return Grade(correct=False, extracted=extracted, why=f"it uses {' '.join(map(str, expression.numbers))}")
    if right and right.strip(" $") != str(target):
        return Grade(correct=False, extracted=extracted, why=f"it says {right.strip()[:20]}")
    reason = "" if expression.value == target else f"it is {expression.value}"
    return Grade(correct=not reason, extracted=extracted, why=reason)


def check_lines(lines: Sequence[str], numbers: Sequence[int]) -> tuple[bool, ...]:
    """Checks each line `a op b = c (left: ...)` of a game that starts with these numbers.

    A line is right if a and b are left at that moment, c is what they come to, and what is left is listed whole, in any
    order. Fractions are written 8/3. After the first wrong line nothing is known to be left: all later ones are wrong.
    """
    remaining: Counter[Fraction] | None = Counter(map(Fraction, numbers))
    verdicts = []
    for line in lines:
        remaining = _apply_move(line, remaining) if remaining is not None else None
        verdicts.append(remaining is not None)
    return tuple(verdicts)


def _apply_move(line: str, remaining: Counter[Fraction]) -> Counter[Fraction] | None:
    """Returns the remaining numbers after a line; None for a wrong line."""
    match = _LINE.fullmatch(" ".join(line.split()))
    if match is None:
        return None
    try:
        a, b, result = (Fraction(match[group]) for group in (1, 3, 4))
        stated_remaining = Counter(map(Fraction, match[5].split()))
        expected_result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if match[2] == "/" else a}[match[2]]
    except (ValueError, ZeroDivisionError):
        return None
    operands = Counter((a, b))
    remaining_after = remaining - operands
    remaining_after[result] += 1
    return (
        remaining_after
        if operands <= remaining and expected_result == result and remaining_after == stated_remaining
        else None
    )


def grade_lines(response: str, numbers: Sequence[int], target: int) -> Grade:
    """Returns whether a response is a complete game: one correct line per move, then `The answer is EXPRESSION =
    TARGET`.

    The moves must end at the target, and the expression must be right by itself (`grade_expression`).
    """
    lines = [line.strip() for line in response.strip().splitlines() if line.strip()]
    moves = lines[:-1]
    expression_grade = grade_expression(response, numbers, target)
    if not expression_grade.correct:
        return expression_grade
    if len(moves) != len(numbers) - 1 or not _ANSWERED.search(lines[-1]):
        reason = f"{len(moves)} lines before the answer, not {len(numbers) - 1}"
        return Grade(correct=False, extracted=expression_grade.extracted, why=reason)
    verdicts = check_lines(moves, numbers)
    if not all(verdicts):
        index = verdicts.index(False)
        return Grade(correct=False, extracted=expression_grade.extracted, why=f"line {index + 1}: {moves[index][:60]}")
    ends_elsewhere = moves and not re.search(rf"\(left: ?{target}\)$", moves[-1])
    return Grade(
        correct=not ends_elsewhere,
        extracted=expression_grade.extracted,
        why="the moves end elsewhere" if ends_elsewhere else "",
    )


def grade_countdown(response: str, gold: str) -> Grade:
    """Returns whether a response solves "make 24 from 4 9 10 13", as a `Grader`.

    A response with lines of moves is graded by `grade_lines`, any other by `grade_expression`.

    Returns:
        The grade; `correct` is None where `gold` is not such a task.
    """
    match = _GOLD.fullmatch(" ".join(gold.split()))
    if match is None:
        return Grade(correct=None, extracted=None, why="the gold answer is no task of countdown")
    numbers, target = [int(number) for number in match[2].split()], int(match[1])
    grade_response = grade_lines if "(left:" in response else grade_expression
    return grade_response(response, numbers, target)

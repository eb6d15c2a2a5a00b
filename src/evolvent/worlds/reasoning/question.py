"""A question of one step: its text, the rationale that leads to the answer, and the grading of a response.

A response is a rationale, `###` and the answer: "47 + 7 = 54 ; 54 * 3 = 162 ### 162". The spans of a rationale
are separated by `;`, which a tokenizer of whole words keeps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evolvent.grade.base import Grade
from evolvent.grade.numbers import grade_number, text_after_mark

__all__ = ["MARK", "SEPARATOR", "Question", "format_demonstration", "grade_choice", "grade_question", "split_rationale"]

MARK = "###"
SEPARATOR = ";"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its right answer.

    Args:
        text: the question, with the form of the answer.
        rationale: the spans that lead to the answer, in order.
        answer: the right answer.
        choices: all possible answers, each a word or a phrase; empty: the answer is a number.
        demonstration: a complete right response; None: the spans joined, the mark and the answer.
    """

    text: str
    rationale: tuple[str, ...]
    answer: str
    choices: tuple[str, ...] = ()
    demonstration: str | None = None


def format_demonstration(question: Question) -> str | None:
    """Returns the demonstration (rationale, mark, answer), or None for a question without a rationale."""
    if question.demonstration is not None or not question.rationale:
        return question.demonstration
    return f"{f' {SEPARATOR} '.join(question.rationale)} {MARK} {question.answer}".strip()


def split_rationale(text: str) -> tuple[str, ...]:
    """Splits the rationale of a response: the text before the last mark, divided, with single spaces."""
    parts = re.split(r"#(?:\s*#){2,}", text)
    rationale = parts[0] if len(parts) == 1 else MARK.join(parts[:-1])
    pieces = (" ".join(span.split()) for span in re.split(rf"[{SEPARATOR}\n]", rationale))
    return tuple(span for span in pieces if span)


def grade_choice(response: str, gold: str, choices: Sequence[str]) -> Grade:
    """Returns the grade of a response with fixed choices: the text after its mark must be the right choice and nothing
    else.

    Letter case and surrounding punctuation do not matter. For options (A, B, ...) the letter may be followed by ")"
    or "." and the option's words. A response without a mark, or with other text after it, counts as no answer.
    """
    answer_text = text_after_mark(response)
    if answer_text is None:
        return Grade(correct=False, extracted=None, why=f"no {MARK} in the response")
    line = " ".join(answer_text.split("\n", 1)[0].split())
    for choice in choices:
        tail = r"(?:\W*|\s*[).:].*)" if len(choice) == 1 else r"\W*"
        if re.fullmatch(rf"\W*{re.escape(choice)}{tail}", line, re.IGNORECASE):
            is_correct = choice == gold
            return Grade(correct=is_correct, extracted=choice, why="" if is_correct else "another answer")
    return Grade(correct=False, extracted=None, why="none of the answers")


def grade_question(response: str, question: Question) -> Grade:
    """Returns the grade of a response; `extracted` is None if no answer could be read."""
    if question.choices:
        return grade_choice(response, question.answer, question.choices)
    return grade_number(response, question.answer)

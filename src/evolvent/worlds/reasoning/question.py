"""A question of one step: what is asked, the rationale that leads to the answer, and what a response says.

A response is a rationale, `###` and the answer: "47 + 7 = 54 ; 54 * 3 = 162 ### 162". The spans of a rationale are
divided by `;`, which a tokenizer of whole words keeps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evolvent.grade.base import Grade
from evolvent.grade.numbers import after_mark, grade_number

__all__ = ["MARK", "SEPARATOR", "Question", "grade_choice", "grade_question", "response", "spans"]

MARK = "###"
SEPARATOR = ";"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its right answer.

    Args:
        text: what is asked, with the form of the answer.
        rationale: the spans that lead to the answer, in order.
        answer: the right answer.
        choices: all answers there are, each a word or a phrase; empty: the answer is a number.
        said: the demonstration; None: the spans joined, the mark and the answer.
    """

    text: str
    rationale: tuple[str, ...]
    answer: str
    choices: tuple[str, ...] = ()
    said: str | None = None


def response(question: Question) -> str | None:
    """The demonstration: rationale, mark, answer; None for a question without a rationale."""
    if question.said is not None or not question.rationale:
        return question.said
    return f"{f' {SEPARATOR} '.join(question.rationale)} {MARK} {question.answer}".strip()


def spans(text: str) -> tuple[str, ...]:
    """The spans of the rationale in a response: what stands before the last mark, divided, with single spaces."""
    before = re.split(r"#(?:\s*#){2,}", text)
    rationale = before[0] if len(before) == 1 else MARK.join(before[:-1])
    divided = (" ".join(span.split()) for span in re.split(rf"[{SEPARATOR}\n]", rationale))
    return tuple(span for span in divided if span)


def grade_choice(said: str, gold: str, choices: Sequence[str]) -> Grade:
    """Whether a response chooses the right answer: what follows its mark is one of the choices and nothing else.

    Letter case and punctuation around do not matter. Of options (A, B, ...) the letter may be followed by ")" or "."
    and the option's words. A response without a mark, or with something else after it, is read as no answer.
    """
    marked = after_mark(said)
    if marked is None:
        return Grade(correct=False, extracted=None, why=f"no {MARK} in the response")
    line = " ".join(marked.split("\n", 1)[0].split())
    for choice in choices:
        tail = r"(?:\W*|\s*[).:].*)" if len(choice) == 1 else r"\W*"
        if re.fullmatch(rf"\W*{re.escape(choice)}{tail}", line, re.IGNORECASE):
            right = choice == gold
            return Grade(correct=right, extracted=choice, why="" if right else "another answer")
    return Grade(correct=False, extracted=None, why="none of the answers")


def grade_question(said: str, question: Question) -> Grade:
    """Whether a response gives the right answer; `extracted` None where no answer could be read."""
    if question.choices:
        return grade_choice(said, question.answer, question.choices)
    return grade_number(said, question.answer)

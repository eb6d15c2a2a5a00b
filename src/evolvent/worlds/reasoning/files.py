r"""Reads questions from a user's files: GSM8K (JSON lines), SVAMP (JSON) and R3's (JSON arrays).

    GSM8K   {"question": ..., "answer": "... <<48/2=24>>24 ...\n#### 72"}
    SVAMP   {"ID": ..., "Body": ..., "Question": ..., "Equation": ..., "Answer": 145.0, "Type": ...}
    R3      {"instruction": ..., "input": ..., "output": "rationale ### answer"}, or a program as the output

The fields of a row decide its form. An unusable row raises `SampleInvalid`, and the others are read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evolvent.data.jsonl import read_rows, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.grade.numbers import parse_number, text_after_mark
from evolvent.grade.programs import assemble_solution, evaluate_straight
from evolvent.trajectory import canonical_json
from evolvent.worlds.reasoning.question import MARK, Question

__all__ = ["Row", "parse_row", "read_questions"]

_CALCULATED = re.compile(r"<<[^<>]*>>")
_PREFIX = "### Response:"


@dataclass(frozen=True, slots=True)
class Row:
    """A question of a file.

    Args:
        file, index: the file's name, and the index of the row in it, from 0.
        question: the question of the row.
        kind: the number of steps of its rationale, or the kind that the file states.
    """

    file: str
    index: int
    question: Question
    kind: str

    @property
    def key(self) -> str:
        """Returns the question in lower case with single spaces: copies have the same key."""
        return " ".join(self.question.text.lower().split())

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of a hash over the row's content."""
        content = [self.question.text, self.question.answer, list(self.question.rationale), self.question.demonstration]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def read_questions(path: Path, answers: Sequence[str]) -> tuple[tuple[Row, ...], tuple[Problem, ...]]:
    """Reads all rows of a file, or of the `.json` and `.jsonl` files of a folder in the order of their names.

    Args:
        answers: the allowed answers; empty if answers are numbers.
    Returns:
        The usable rows, and the problems of the others.
    Raises:
        ConfigError: a missing file or folder, a file that is not JSON, or no usable row.
    """
    files = row_files(path)
    if not files:
        raise ConfigError("no questions here", value=str(path), expected="a .json or .jsonl file, or a folder of such")
    return read_rows(files, partial(parse_row, answers=answers))


def parse_row(entry: object, file: str, index: int, *, answers: Sequence[str]) -> Row:
    """Parses one row as a question.

    Raises:
        SampleInvalid: the row has the fields of no known form, or its answer is not allowed (or not a number).
    """
    if not isinstance(entry, Mapping):
        raise SampleInvalid("a row that is no object", value=str(entry)[:80], expected="a JSON object")
    if "output" in entry:
        question, kind = _parse_r3(entry), Path(file).stem
    elif "Body" in entry:
        question, kind = _parse_svamp(entry), str(entry.get("Type") or Path(file).stem)
    else:
        question, kind = _parse_gsm8k(entry), ""
    if answers:
        answers_by_lower = {answer.lower(): answer for answer in answers}
        matched_answer = answers_by_lower.get(question.answer.lower().strip(" ."))
        if matched_answer is None:
            raise SampleInvalid("an answer that is none of this world's", value=question.answer, expected=list(answers))
        question = Question(question.text, question.rationale, matched_answer, tuple(answers), question.demonstration)
    elif parse_number(question.answer) is None:
        raise SampleInvalid("an answer that is no number", value=question.answer, expected="a number")
    return Row(file, index, question, kind or f"{len(question.rationale)} steps")


def _require_texts(entry: Mapping[str, Any], *names: str) -> list[str]:
    """Returns the named fields, stripped; raises SampleInvalid if one is missing or not a text."""
    missing = [name for name in names if not isinstance(entry.get(name), str) or not entry[name].strip()]
    if missing:
        raise SampleInvalid(f"a row without {', '.join(missing)}", value=sorted(map(str, entry)), expected=list(names))
    return [entry[name].strip() for name in names]


def _parse_gsm8k(entry: Mapping[str, Any]) -> Question:
    text, solution = _require_texts(entry, "question", "answer")
    answer = text_after_mark(solution)
    if answer is None:
        raise SampleInvalid("a solution without '####'", value=solution[-80:], expected="#### and a number at its end")
    lines = _CALCULATED.sub("", re.split(r"#{3,}", solution)[0]).strip().split("\n")
    return _build_question(text, lines, answer)


def _parse_svamp(entry: Mapping[str, Any]) -> Question:
    body, question_text = _require_texts(entry, "Body", "Question")
    answer, equation = entry.get("Answer"), entry.get("Equation")
    if type(answer) not in (int, float, str):
        raise SampleInvalid("a row without Answer", value=answer, expected="a number")
    answer_text = re.sub(r"\.0\b", "", str(answer))
    lines = (
        [f"{re.sub(r'[.]0(?![0-9])', '', equation)} = {answer_text}"] if isinstance(equation, str) and equation else []
    )
    return _build_question(
        f"{body}{'' if body.endswith(('.', '?', '!')) else ' .'} {question_text}", lines, answer_text
    )


def _parse_r3(entry: Mapping[str, Any]) -> Question:
    """Parses a row of R3. In a mixed file the beginning of the demonstration follows `### Response:` in the
    instruction.
    """
    instruction, output = _require_texts(entry, "instruction", "output")
    task_text, _, prefix = instruction.partition(_PREFIX)
    extra_input = entry.get("input")
    text = "\n".join(
        part for part in (task_text.strip(), extra_input.strip() if isinstance(extra_input, str) else "") if part
    )
    demonstration = f"{prefix.strip()} {output}".strip()
    answer = text_after_mark(demonstration)
    if answer is not None:
        return _build_question(text, re.split(r"\s*#{3,}", demonstration)[0].strip().split("\n"), answer)
    program_result = evaluate_straight(assemble_solution(demonstration))
    if program_result is None or program_result.value is None:
        raise SampleInvalid(f"an output without {MARK} that is no program either", value=output[-80:])
    return Question(text, (), str(program_result.value), demonstration=demonstration)


def _build_question(text: str, lines: Sequence[str], answer: str) -> Question:
    """Builds a question with its rationale in lines; without a rationale there is no demonstration."""
    rationale = tuple(line.strip() for line in lines if line.strip())
    demonstration = "\n".join([*rationale, f"{MARK} {answer}"]) if rationale else None
    return Question(text, rationale, answer, demonstration=demonstration)

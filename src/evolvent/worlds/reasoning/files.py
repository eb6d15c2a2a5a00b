"""Reading questions from a user's files: GSM8K (JSON lines), SVAMP (JSON) and R3's (JSON arrays).

    GSM8K   {"question": ..., "answer": "... <<48/2=24>>24 ...\\n#### 72"}
    SVAMP   {"ID": ..., "Body": ..., "Question": ..., "Equation": ..., "Answer": 145.0, "Type": ...}
    R3      {"instruction": ..., "input": ..., "output": "rationale ### answer"}, or a program as the output

What a row is, its fields say. A row that cannot be used is `SampleInvalid`, and the others go on.
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
from evolvent.grade.numbers import after_mark, number_of
from evolvent.grade.programs import assemble, run_straight
from evolvent.trajectory import canonical_json
from evolvent.worlds.reasoning.question import MARK, Question

__all__ = ["Row", "read_questions", "read_row"]

_CALCULATED = re.compile(r"<<[^<>]*>>")
_PREFIX = "### Response:"


@dataclass(frozen=True, slots=True)
class Row:
    """A question of a file.

    Args:
        file, place: the file's name, and the row's place in it, from 0.
        question: what the row says.
        kind: the steps of its rationale, or what the file calls its kind.
    """

    file: str
    place: int
    question: Question
    kind: str

    @property
    def key(self) -> str:
        """The question with single spaces and small letters: copies have the same."""
        return " ".join(self.question.text.lower().split())

    @property
    def digest(self) -> str:
        """16 hex digits over all that the row says."""
        said = [self.question.text, self.question.answer, list(self.question.rationale), self.question.said]
        return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]


def read_questions(path: Path, answers: Sequence[str]) -> tuple[tuple[Row, ...], tuple[Problem, ...]]:
    """All rows of a file, or of the `.json` and `.jsonl` files of a folder in the order of their names.

    Args:
        answers: the answers that questions must have; none: numbers.
    Returns:
        The rows that can be used, and what is wrong with the others.
    Raises:
        ConfigError: no such file or folder, a file that is no JSON, or not one row that can be used.
    """
    files = row_files(path)
    if not files:
        raise ConfigError("no questions here", value=str(path), expected="a .json or .jsonl file, or a folder of such")
    return read_rows(files, partial(read_row, answers=answers))


def read_row(entry: object, file: str, place: int, *, answers: Sequence[str]) -> Row:
    """One row as a question.

    Raises:
        SampleInvalid: it has not the fields of any known form, or its answer is none of `answers` (none: no number).
    """
    if not isinstance(entry, Mapping):
        raise SampleInvalid("a row that is no object", value=str(entry)[:80], expected="a JSON object")
    if "output" in entry:
        question, kind = _r3(entry), Path(file).stem
    elif "Body" in entry:
        question, kind = _svamp(entry), str(entry.get("Type") or Path(file).stem)
    else:
        question, kind = _gsm8k(entry), ""
    if answers:
        known = {answer.lower(): answer for answer in answers}
        found = known.get(question.answer.lower().strip(" ."))
        if found is None:
            raise SampleInvalid("an answer that is none of this world's", value=question.answer, expected=list(answers))
        question = Question(question.text, question.rationale, found, tuple(answers), question.said)
    elif number_of(question.answer) is None:
        raise SampleInvalid("an answer that is no number", value=question.answer, expected="a number")
    return Row(file, place, question, kind or f"{len(question.rationale)} steps")


def _text(entry: Mapping[str, Any], *names: str) -> list[str]:
    """Fields that must be texts."""
    wrong = [name for name in names if not isinstance(entry.get(name), str) or not entry[name].strip()]
    if wrong:
        raise SampleInvalid(f"a row without {', '.join(wrong)}", value=sorted(map(str, entry)), expected=list(names))
    return [entry[name].strip() for name in names]


def _gsm8k(entry: Mapping[str, Any]) -> Question:
    text, solution = _text(entry, "question", "answer")
    answer = after_mark(solution)
    if answer is None:
        raise SampleInvalid("a solution without '####'", value=solution[-80:], expected="#### and a number at its end")
    lines = _CALCULATED.sub("", re.split(r"#{3,}", solution)[0]).strip().split("\n")
    return _shown(text, lines, answer)


def _svamp(entry: Mapping[str, Any]) -> Question:
    body, asked = _text(entry, "Body", "Question")
    answer, equation = entry.get("Answer"), entry.get("Equation")
    if type(answer) not in (int, float, str):
        raise SampleInvalid("a row without Answer", value=answer, expected="a number")
    plain = re.sub(r"\.0\b", "", str(answer))
    lines = [f"{re.sub(r'[.]0(?![0-9])', '', equation)} = {plain}"] if isinstance(equation, str) and equation else []
    return _shown(f"{body}{'' if body.endswith(('.', '?', '!')) else ' .'} {asked}", lines, plain)


def _r3(entry: Mapping[str, Any]) -> Question:
    """R3's row. In a mixed file the beginning of the demonstration stands after `### Response:` in the instruction."""
    instruction, output = _text(entry, "instruction", "output")
    told, _, prefix = instruction.partition(_PREFIX)
    more = entry.get("input")
    text = "\n".join(part for part in (told.strip(), more.strip() if isinstance(more, str) else "") if part)
    whole = f"{prefix.strip()} {output}".strip()
    answer = after_mark(whole)
    if answer is not None:
        return _shown(text, re.split(r"\s*#{3,}", whole)[0].strip().split("\n"), answer)
    ran = run_straight(assemble(whole))
    if ran is None or ran.value is None:
        raise SampleInvalid(f"an output without {MARK} that is no program either", value=output[-80:])
    return Question(text, (), str(ran.value), said=whole)


def _shown(text: str, lines: Sequence[str], answer: str) -> Question:
    """A question with its rationale in lines; without one there is no demonstration."""
    rationale = tuple(line.strip() for line in lines if line.strip())
    said = "\n".join([*rationale, f"{MARK} {answer}"]) if rationale else None
    return Question(text, rationale, answer, said=said)

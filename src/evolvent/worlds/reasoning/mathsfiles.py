r"""Reads problems in the layout of MATH and MATH-500: JSON lines, a JSON array, or one object per file.

    {"problem": ..., "solution": "... \\boxed{4}.", "answer": "4", "subject": "Algebra", "level": 3, "unique_id": ...}

MATH itself has no `answer` (it is the last box of the solution), calls the subject `type`, and writes "Level
3".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.data.jsonl import read_rows, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.grade.latex import extract_boxed
from evolvent.trajectory import canonical_json

__all__ = ["MathsRow", "parse_maths_row", "read_maths", "split_sentences"]

_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_FORMULA_MARKS = (
    "\\\\",
    r"\[",
    r"\]",
    r"\begin{",
    r"\end{",
    r"\$",
    "$$",
    "$",
)  # of two that fit, the longer comes first
_HELD_OUT = re.compile(r"^test/", re.IGNORECASE)
_LEVEL = re.compile(r"(?:level\s*)?([1-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MathsRow:
    """A problem of a file.

    Args:
        file, index: the file's path inside its folder, and the index of the row in it, from 0.
        problem, solution, answer: as written; the solution may be "".
        subject: "" if the row names none.
        level: 1 to 5 in MATH; None if the row names none.
        held_out: whether the row states that it belongs to MATH's test set (`unique_id` "test/...").
    """

    file: str
    index: int
    problem: str
    solution: str
    answer: str
    subject: str
    level: int | None
    held_out: bool

    @property
    def key(self) -> str:
        """Returns the problem in lower case with single spaces: copies have the same key."""
        return " ".join(self.problem.lower().split())

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of a hash over the row's content."""
        content = [self.problem, self.solution, self.answer, self.subject, self.level]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]

    @property
    def where(self) -> str:
        """Returns the position of the row, for messages."""
        return f"{self.file}, row {self.index}"


def read_maths(path: Path) -> tuple[tuple[MathsRow, ...], tuple[Problem, ...]]:
    """Reads all problems of a file, or of the `.json` and `.jsonl` files below a folder in the order of their paths.

    Returns:
        The usable rows, and the problems of the others.
    Raises:
        ConfigError: a missing file or folder, a file that is not JSON, or no usable row.
    """
    files = row_files(path, "**/*")
    if not files:
        raise ConfigError(
            "no problems found", value=str(path), expected="a .json or .jsonl file, or a folder of such files"
        )
    return read_rows(files, parse_maths_row, single=True)


def parse_maths_row(entry: object, file: str, index: int) -> MathsRow:
    """Parses one row in the layout of MATH.

    Raises:
        SampleInvalid: not an object, no problem, or neither an answer nor a solution with a box.
    """
    if not isinstance(entry, Mapping):
        raise SampleInvalid("the row is not an object", value=str(entry)[:80], expected="a JSON object")
    problem, solution, answer = (_text_field(entry, name) for name in ("problem", "solution", "answer"))
    if not problem:
        raise SampleInvalid(
            "the row has no problem", value=sorted(map(str, entry)), expected="problem, solution, answer"
        )
    answer = answer or extract_boxed(solution) or ""
    if not answer:
        raise SampleInvalid("the row has no answer", value=solution[-80:], expected="answer, or a box in the solution")
    level = _LEVEL.fullmatch(str(entry.get("level", "")).strip())
    return MathsRow(
        file,
        index,
        problem,
        solution,
        answer,
        _text_field(entry, "subject") or _text_field(entry, "type"),
        int(level[1]) if level else None,
        bool(_HELD_OUT.match(_text_field(entry, "unique_id"))),
    )


def _text_field(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if type(value) in (int, float):
        value = str(value)
    return value.strip() if isinstance(value, str) else ""


def split_sentences(solution: str) -> tuple[str, ...]:
    r"""Splits a solution into spans: its lines, cut at the ends of sentences outside formulas; drawings are left out.

    A formula (`$...$`, `$$...$$`, `\[...\]`, `\begin...\end`) stays in one span, even over several lines. Only
    white space separates spans, so nothing is lost.
    """
    text, pieces = _DRAWING.sub("", solution), []
    start = depth = position = 0
    in_formula = False
    while position < len(text):
        token = next((mark for mark in _FORMULA_MARKS if text.startswith(mark, position)), "")
        if token in ("$", "$$"):
            in_formula = not in_formula
        elif token in (r"\[", r"\begin{"):
            depth += 1
        elif token in (r"\]", r"\end{"):
            depth = max(0, depth - 1)
        is_end = token in ("", "$", "$$", r"\]") and not in_formula and not depth and _is_end(text, position, token)
        position += len(token) or 1
        if is_end:
            pieces.append(text[start:position])
            start = position
    spans = (" ".join(span.split()) for span in (*pieces, text[start:]))
    return tuple(span for span in spans if span)


def _is_end(text: str, position: int, token: str) -> bool:
    r"""Returns whether a line or sentence ends at this token: a stop, then a space and a capital, formula or command.

    MATH sets the stop inside of the formula: "$x = 2.$ Then", "\[x = 2.\]Then".
    """
    if text[position] == "\n":
        return True
    stop = text[:position].rstrip()[-1:] if token else text[position]
    pattern = r"\s*[A-Z]" if token == r"\]" else r"\s+[A-Z$\\(]"
    return stop in (".", "?", "!") and re.match(pattern, text[position + (len(token) or 1) :][:8]) is not None

r"""Reading problems in the layout of MATH and MATH-500: JSON lines, a JSON array, or one object a file.

    {"problem": ..., "solution": "... \\boxed{4}.", "answer": "4", "subject": "Algebra", "level": 3, "unique_id": ...}

MATH itself has no `answer` (the solution's last box is it), calls the subject `type`, and writes "Level 3".
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
from evolvent.grade.latex import boxed
from evolvent.trajectory import canonical_json

__all__ = ["MathsRow", "read_maths", "read_maths_row", "sentences"]

_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_MARKS = ("\\\\", r"\[", r"\]", r"\begin{", r"\end{", r"\$", "$$", "$")  # of two that fit, the longer comes first
_HELD_OUT = re.compile(r"^test/", re.IGNORECASE)
_LEVEL = re.compile(r"(?:level\s*)?([1-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MathsRow:
    """A problem of a file.

    Args:
        file, place: the file's path inside its folder, and the row's place in it, from 0.
        problem, solution, answer: as they are written; the solution may be "".
        subject: "" where the row names none.
        level: 1 to 5 in MATH; None where the row names none.
        held_out: the row itself says that it is of MATH's test set (`unique_id` "test/...").
    """

    file: str
    place: int
    problem: str
    solution: str
    answer: str
    subject: str
    level: int | None
    held_out: bool

    @property
    def key(self) -> str:
        """The problem with single spaces and small letters: copies have the same."""
        return " ".join(self.problem.lower().split())

    @property
    def digest(self) -> str:
        """16 hex digits over all that the row says."""
        said = [self.problem, self.solution, self.answer, self.subject, self.level]
        return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]

    @property
    def where(self) -> str:
        """The row for a message."""
        return f"{self.file}, row {self.place}"


def read_maths(path: Path) -> tuple[tuple[MathsRow, ...], tuple[Problem, ...]]:
    """All problems of a file, or of the `.json` and `.jsonl` files below a folder in the order of their paths.

    Returns:
        The rows that can be used, and what is wrong with the others.
    Raises:
        ConfigError: no such file or folder, a file that is no JSON, or not one row that can be used.
    """
    files = row_files(path, "**/*")
    if not files:
        raise ConfigError("no problems here", value=str(path), expected="a .json or .jsonl file, or a folder of such")
    return read_rows(files, read_maths_row, single=True)


def read_maths_row(entry: object, file: str, place: int) -> MathsRow:
    """One row of MATH's layout.

    Raises:
        SampleInvalid: no object, no problem, or neither an answer nor a solution with a box.
    """
    if not isinstance(entry, Mapping):
        raise SampleInvalid("a row that is no object", value=str(entry)[:80], expected="a JSON object")
    problem, solution, answer = (_text(entry, name) for name in ("problem", "solution", "answer"))
    if not problem:
        raise SampleInvalid(
            "a row without problem", value=sorted(map(str, entry)), expected="problem, solution, answer"
        )
    answer = answer or boxed(solution) or ""
    if not answer:
        raise SampleInvalid("a row without answer", value=solution[-80:], expected="answer, or a box in the solution")
    level = _LEVEL.fullmatch(str(entry.get("level", "")).strip())
    return MathsRow(
        file,
        place,
        problem,
        solution,
        answer,
        _text(entry, "subject") or _text(entry, "type"),
        int(level[1]) if level else None,
        bool(_HELD_OUT.match(_text(entry, "unique_id"))),
    )


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if type(value) in (int, float):
        value = str(value)
    return value.strip() if isinstance(value, str) else ""


def sentences(solution: str) -> tuple[str, ...]:
    r"""The spans of a solution: its lines, cut at the ends of sentences outside of formulas; drawings are left out.

    A formula (`$...$`, `$$...$$`, `\[...\]`, `\begin...\end`) stays in one span, even over several lines; what is
    between spans is white space, so that nothing is lost.
    """
    text, found = _DRAWING.sub("", solution), []
    start = depth = place = 0
    inline = False
    while place < len(text):
        step = next((mark for mark in _MARKS if text.startswith(mark, place)), "")
        if step in ("$", "$$"):
            inline = not inline
        elif step in (r"\[", r"\begin{"):
            depth += 1
        elif step in (r"\]", r"\end{"):
            depth = max(0, depth - 1)
        ends = step in ("", "$", "$$", r"\]") and not inline and not depth and _is_end(text, place, step)
        place += len(step) or 1
        if ends:
            found.append(text[start:place])
            start = place
    spans = (" ".join(span.split()) for span in (*found, text[start:]))
    return tuple(span for span in spans if span)


def _is_end(text: str, place: int, step: str) -> bool:
    """Whether a line or a sentence ends with this sign or mark: a stop, then a space and a capital, formula or command.

    MATH sets the stop inside of the formula: "$x = 2.$ Then", "\\[x = 2.\\]Then".
    """
    if text[place] == "\n":
        return True
    stop = text[:place].rstrip()[-1:] if step else text[place]
    pattern = r"\s*[A-Z]" if step == r"\]" else r"\s+[A-Z$\\(]"
    return stop in (".", "?", "!") and re.match(pattern, text[place + (len(step) or 1) :][:8]) is not None

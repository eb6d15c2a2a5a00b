r"""Worlds over a user's files: word problems, entailment, reading and rules in the formats of their data sets.

A file belongs to the split that its name contains: train, dev (or val) or test. Without a dev file, about a
tenth of the training rows becomes dev. Rows of other files are dealt by the hash of the question. A question is
in one split only: questions of test or dev are left out of train. There is one tier, `seen`; the vocabulary is
open.

A file holds GSM8K (JSON lines), SVAMP (JSON) or R3's questions (JSON arrays):

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
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evolvent.data.jsonl import read_rows, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch, unknown_name_problem
from evolvent.grade.base import Grade
from evolvent.grade.numbers import parse_number, text_after_mark
from evolvent.grade.programs import assemble_solution, evaluate_straight
from evolvent.sandbox.limits import CodeRunner
from evolvent.trajectory import Task, canonical_json, sample_seed
from evolvent.worlds.base import SPLITS, check_task, split_of
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning import entailment, reading, rules
from evolvent.worlds.reasoning.problems import FORMS, HEAD, INSTRUCTIONS, Form
from evolvent.worlds.reasoning.programs import Programs
from evolvent.worlds.reasoning.question import MARK, Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["SUBJECTS", "Library", "Row", "parse_row", "read_questions"]


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
        raise ConfigError(
            "no questions found", value=str(path), expected="a .json or .jsonl file, or a folder of such files"
        )
    return read_rows(files, partial(parse_row, answers=answers))


def parse_row(entry: object, file: str, index: int, *, answers: Sequence[str]) -> Row:
    """Parses one row as a question.

    Raises:
        SampleInvalid: the row has the fields of no known form, or its answer is not allowed (or not a number).
    """
    if not isinstance(entry, Mapping):
        raise SampleInvalid("the row is not an object", value=str(entry)[:80], expected="a JSON object")
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
            raise SampleInvalid("unknown answer", value=question.answer, expected=list(answers))
        question = Question(question.text, question.rationale, matched_answer, tuple(answers), question.demonstration)
    elif parse_number(question.answer) is None:
        raise SampleInvalid("the answer is not a number", value=question.answer, expected="a number")
    return Row(file, index, question, kind or f"{len(question.rationale)} steps")


def _require_texts(entry: Mapping[str, Any], *names: str) -> list[str]:
    """Returns the named fields, stripped; raises SampleInvalid if one is missing or not a text."""
    missing = [name for name in names if not isinstance(entry.get(name), str) or not entry[name].strip()]
    if missing:
        raise SampleInvalid(f"the row lacks {', '.join(missing)}", value=sorted(map(str, entry)), expected=list(names))
    return [entry[name].strip() for name in names]


def _parse_gsm8k(entry: Mapping[str, Any]) -> Question:
    text, solution = _require_texts(entry, "question", "answer")
    answer = text_after_mark(solution)
    if answer is None:
        raise SampleInvalid("the solution has no '####'", value=solution[-80:], expected="#### and a number at its end")
    lines = _CALCULATED.sub("", re.split(r"#{3,}", solution)[0]).strip().split("\n")
    return _build_question(text, lines, answer)


def _parse_svamp(entry: Mapping[str, Any]) -> Question:
    body, question_text = _require_texts(entry, "Body", "Question")
    answer, equation = entry.get("Answer"), entry.get("Equation")
    if type(answer) not in (int, float, str):
        raise SampleInvalid("the row has no Answer", value=answer, expected="a number")
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
        raise SampleInvalid(f"the output has no {MARK} and is not a program", value=output[-80:])
    return Question(text, (), str(program_result.value), demonstration=demonstration)


def _build_question(text: str, lines: Sequence[str], answer: str) -> Question:
    """Builds a question with its rationale in lines; without a rationale there is no demonstration."""
    rationale = tuple(line.strip() for line in lines if line.strip())
    demonstration = "\n".join([*rationale, f"{MARK} {answer}"]) if rationale else None
    return Question(text, rationale, answer, demonstration=demonstration)


SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "problems": (),
    "entailment": entailment.ANSWERS,
    "reading": reading.LETTERS,
    "rules": rules.ANSWERS,
}
"""What files can be about, and the answers there are; none: numbers."""
_SPLIT_PRIORITY = ("test", "dev", "train")  # who keeps a question that several files have


class Library(Questions):
    """The questions of a file or a folder.

    Args:
        path: a `.json` or `.jsonl` file, or a folder of such files (see `files`).
        subject: one of `SUBJECTS`.
        form: for problems, "cot" or "program"; with "program" a demonstration is a program, or there is none.
        runner: runs programs that are not straight-line; None: sandboxes created when first needed.
    Attributes:
        problems: the rows that are left out, with the reasons.
    Raises:
        ConfigError: an unknown subject or form, or no usable row.
    """

    def __init__(
        self, path: str | Path, subject: str = "problems", *, form: Form = "cot", runner: CodeRunner | None = None
    ) -> None:
        invalid = [] if subject in SUBJECTS else [unknown_name_problem("subject", subject, SUBJECTS)]
        if form not in FORMS or (form == "program" and subject != "problems"):
            invalid.append(Problem("form", f"got {form!r} for {subject}", f"problems have {' and '.join(FORMS)}"))
        if invalid:
            raise ConfigError(invalid)
        self.name, self.form = f"{subject}-files", form
        self.version = "1" if form == "cot" else "1-program"
        self.run_in_thread = form == "program"
        answers = SUBJECTS[subject]
        self.chance = 1 / len(answers) if answers else 0.0
        choice_instructions = (
            f"Answer the question. Write the steps that lead there, then '###' and one of: {', '.join(answers)}."
        )
        self.instructions = choice_instructions if answers else INSTRUCTIONS[form]
        self._programs = Programs(runner)
        rows, self.problems = read_questions(Path(path), answers)
        self._rows = {(row.file, row.index): row for row in rows}

    @cached_property
    def _panels(self) -> Mapping[str, tuple[Task, ...]]:
        has_dev = any(_split_in_name(row.file) == "dev" for row in self._rows.values())
        splits = {row_key: _choose_split(row, has_dev=has_dev) for row_key, row in self._rows.items()}
        owner: dict[str, tuple[str, int]] = {}
        for split in _SPLIT_PRIORITY:
            for row_key, row in self._rows.items():
                if splits[row_key] == split:
                    owner.setdefault(row.key, row_key)
        copies = [row_key for row_key, row in self._rows.items() if owner[row.key] != row_key]
        copy_problems = [
            Problem(f"{row_key[0]}, row {row_key[1]}", "repeats the question of another row", "the row is skipped")
            for row_key in copies
        ]
        self.problems += tuple(copy_problems)
        panels: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for row_key in owner.values():
            panels[splits[row_key]].append(self._build_task(self._rows[row_key], splits[row_key]))
        return {split: tuple(tasks) for split, tasks in panels.items()}

    def _build_task(self, row: Row, split: str) -> Task:
        spec = {"file": row.file, "row": row.index, "digest": row.digest}
        return Task(self.name, self.version, spec, row.kind, self.tiers[0], split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier, in the order of files and rows."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def _find_row(self, task: Task) -> Row:
        check_task(self, task)
        row = self._rows.get((task.spec.get("file", ""), task.spec.get("row", -1)))
        if row is None:
            raise ConfigError("row not found", value=dict(task.spec), expected="a file name and a row number of it")
        if task.spec.get("digest") != row.digest:
            row_name = f"{row.file}, row {row.index}"
            raise VersionMismatch(
                f"the content of {row_name} has changed", value=task.spec.get("digest"), expected=row.digest
            )
        return row

    def question(self, task: Task) -> Question:
        """Returns the question of a row.

        Raises:
            ConfigError: a task of another world, or of a missing row. VersionMismatch: of a row whose content has
                changed.
        """
        question = self._find_row(task).question
        if self.form == "cot":
            return question
        demonstration = question.demonstration if not question.rationale else None
        return Question(f"{question.text}\n{HEAD}", (), question.answer, demonstration=demonstration)

    def grade(self, response: str, question: Question) -> Grade:
        """Returns the grade of a response."""
        if self.form == "program":
            return self._programs.grade(response, parse_number(question.answer) or Fraction(0))
        return super().grade(response, question)

    def key(self, task: Task) -> str:
        """Returns the words of the question: rows with the same question are copies."""
        return self._find_row(task).key

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None


def _split_in_name(file: str) -> str | None:
    """Returns the split that a file's name contains, or None."""
    stem = Path(file).stem.lower()
    split_of_word = {"train": "train", "dev": "dev", "val": "dev", "test": "test"}
    return next((split for word, split in split_of_word.items() if word in stem), None)


def _choose_split(row: Row, *, has_dev: bool) -> str:
    split = _split_in_name(row.file)
    if split is None:
        return split_of({"key": row.key}, salt="questions")
    if split == "train" and not has_dev and sample_seed("questions", "dev", row.key) % 10 == 0:
        return "dev"
    return split

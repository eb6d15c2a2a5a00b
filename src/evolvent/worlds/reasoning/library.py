"""Worlds over a user's files: word problems, entailment, reading and rules as their data sets have them.

A file whose name says train, dev (or val) or test is that split; without a dev file about a tenth of the training rows
are dev. Rows of other files are dealt by the hash of the question. A question is in one split only: what is in test or
dev is left out of train. There is one tier, `seen`; the vocabulary is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from evolvent.errors import ConfigError, Problem, VersionMismatch, unknown
from evolvent.grade.base import Grade
from evolvent.grade.numbers import number_of
from evolvent.sandbox.limits import CodeRunner
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import SPLITS, check_task, split_of
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning import entailment, reading, rules
from evolvent.worlds.reasoning.files import Row, read_questions
from evolvent.worlds.reasoning.problems import FORMS, HEAD, INSTRUCTIONS, Form
from evolvent.worlds.reasoning.programs import Programs
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["SUBJECTS", "Library"]

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "problems": (),
    "entailment": entailment.ANSWERS,
    "reading": reading.LETTERS,
    "rules": rules.ANSWERS,
}
"""What files can be about, and the answers there are; none: numbers."""
_ORDER = ("test", "dev", "train")  # who keeps a question that several files have


class Library(Questions):
    """The questions of a file or a folder.

    Args:
        path: a `.json` or `.jsonl` file, or a folder of such (`files` says what is read).
        subject: one of `SUBJECTS`.
        form: for problems, "cot" or "program"; then a demonstration is a program or there is none.
        runner: what runs programs that are not straight-line; None: boxes of our own.
    Attributes:
        problems: the rows that are left out, and why.
    Raises:
        ConfigError: an unknown subject or form, or nothing that can be used.
    """

    def __init__(
        self, path: str | Path, subject: str = "problems", *, form: Form = "cot", runner: CodeRunner | None = None
    ) -> None:
        wrong = [] if subject in SUBJECTS else [unknown("subject", subject, SUBJECTS)]
        if form not in FORMS or (form == "program" and subject != "problems"):
            wrong.append(Problem("form", f"{form!r} for {subject}", f"problems have {' and '.join(FORMS)}"))
        if wrong:
            raise ConfigError(wrong)
        self.name, self.form = f"{subject}-files", form
        self.version = "1" if form == "cot" else "1-program"
        self.blocking = form == "program"
        answers = SUBJECTS[subject]
        self.chance = 1 / len(answers) if answers else 0.0
        choose = f"Answer the question. Write the steps that lead there, then '###' and one of: {', '.join(answers)}."
        self.instructions = choose if answers else INSTRUCTIONS[form]
        self._programs = Programs(runner)
        found, self.problems = read_questions(Path(path), answers)
        self._rows = {(row.file, row.place): row for row in found}

    @cached_property
    def _panels(self) -> Mapping[str, tuple[Task, ...]]:
        has_dev = any(_named(row.file) == "dev" for row in self._rows.values())
        places = {at: _split(row, has_dev=has_dev) for at, row in self._rows.items()}
        owner: dict[str, tuple[str, int]] = {}
        for split in _ORDER:
            for at, row in self._rows.items():
                if places[at] == split:
                    owner.setdefault(row.key, at)
        copies = [at for at, row in self._rows.items() if owner[row.key] != at]
        told = [Problem(f"{at[0]}, row {at[1]}", "asks what another row asks", "the row is left out") for at in copies]
        self.problems += tuple(told)
        panels: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for at in owner.values():
            panels[places[at]].append(self._task(self._rows[at], places[at]))
        return {split: tuple(tasks) for split, tasks in panels.items()}

    def _task(self, row: Row, split: str) -> Task:
        spec = {"file": row.file, "row": row.place, "digest": row.digest}
        return Task(self.name, self.version, spec, row.kind, self.tiers[0], split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier, in the order of files and rows."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def _row(self, task: Task) -> Row:
        check_task(self, task)
        row = self._rows.get((task.spec.get("file", ""), task.spec.get("row", -1)))
        if row is None:
            raise ConfigError("no such row that can be used", value=dict(task.spec), expected="a file and a row of it")
        if task.spec.get("digest") != row.digest:
            where = f"{row.file}, row {row.place}"
            raise VersionMismatch(f"{where} says something else", value=task.spec.get("digest"), expected=row.digest)
        return row

    def question(self, task: Task) -> Question:
        """The question of a row.

        Raises:
            ConfigError: a task of another world, or of a row that is not there. VersionMismatch: of a row that says
                something else now.
        """
        question = self._row(task).question
        if self.form == "cot":
            return question
        said = question.said if not question.rationale else None
        return Question(f"{question.text}\n{HEAD}", (), question.answer, said=said)

    def grade(self, said: str, question: Question) -> Grade:
        """The verdict on a response."""
        if self.form == "program":
            return self._programs.grade(said, number_of(question.answer) or Fraction(0))
        return super().grade(said, question)

    def key(self, task: Task) -> str:
        """The question's own words: rows that ask the same are copies."""
        return self._row(task).key

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None


def _named(file: str) -> str | None:
    """The split that a file's name says."""
    stem = Path(file).stem.lower()
    marks = {"train": "train", "dev": "dev", "val": "dev", "test": "test"}
    return next((split for mark, split in marks.items() if mark in stem), None)


def _split(row: Row, *, has_dev: bool) -> str:
    split = _named(row.file)
    if split is None:
        return split_of({"key": row.key}, salt="questions")
    if split == "train" and not has_dev and sample_seed("questions", "dev", row.key) % 10 == 0:
        return "dev"
    return split

"""The world of small programs: an episode is one response, judged by what its function returns in a box.

A file is a test set unless its path says train, dev or val. A problem whose tests cannot be run ("weak") gives no task.
The box sees the response and the arguments, never what is expected (`evolvent.grade.code`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from evolvent.data.jsonl import row_named, split_said
from evolvent.errors import ConfigError, Problem
from evolvent.grade.base import Grade
from evolvent.grade.code import Open, judge
from evolvent.grade.exchanges import Exchanges, judge_exchanges
from evolvent.sandbox.limits import Limits
from evolvent.sandbox.pool import Boxes
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS, check_task
from evolvent.worlds.code.answers import program_of, source_in
from evolvent.worlds.code.rows import CodeRow, read_code
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["LIMITS", "Code"]

LIMITS = Limits(cpu_s=10, wall_s=10.0)
"""What the tests of one response may use."""
_LONGEST = 50_000  # characters of a response
_PROGRAMS = "Write the Python program that is asked for. Answer with its whole code in one block."


class Code(Questions):
    """The problems of a file or a folder in the layouts of HumanEval, MBPP and APPS.

    Args:
        path: a `.jsonl`, `.json` or `.gz` file, or a folder of such, subfolders included.
        open_box: opens boxes (None: boxes of its own, started with the first response and given back by `close`).
        limits: of one response; of APPS, where every exchange has a box of its own, of one exchange.
    Attributes:
        problems: the rows that are left out, and why. count: all rows that were read.
    Raises:
        ConfigError: nothing that can be used. IsolationUnavailable: this host cannot isolate (with the first response).
    """

    name = "code"
    blocking = True
    instructions = "Write the Python function that is asked for. Answer with its whole code in one block."

    def __init__(self, path: str | Path, *, open_box: Open | None = None, limits: Limits = LIMITS) -> None:
        self._root = Path(path)
        rows, problems = read_code(self._root)
        weak = [Problem(row.where, "its tests cannot be run", "it is no task") for row in rows if row.form == "weak"]
        self.problems = (*problems, *weak)
        self.count = len(rows) + len(problems)
        self._rows = {(row.file, row.place): row for row in rows if row.form != "weak"}
        if not self._rows:
            raise ConfigError(list(self.problems))
        self._given, self._own, self._lock, self._limits = open_box, None, Lock(), limits
        self.tiers = ("all",)
        if all(row.layout == "apps" for row in self._rows.values()):
            self.instructions = _PROGRAMS
        self._panels = self._dealt()

    _own: Boxes | None

    def _dealt(self) -> Mapping[str, tuple[Task, ...]]:
        """Split -> tasks, in the order of files and rows; a text that stands in two splits is refused."""
        panels: dict[str, list[Task]] = {split: [] for split in SPLITS}
        seen: dict[str, str] = {}
        for row in self._rows.values():
            split = split_said(row.file, self._root)
            if seen.setdefault(row.digest, split) != split:
                raise ConfigError("a problem of two splits", value=row.where, expected="it in one of them")
            panels[split].append(self._task(row, split))
        return {split: tuple(tasks) for split, tasks in panels.items()}

    def _task(self, row: CodeRow, split: str) -> Task:
        spec = {"file": row.file, "row": row.place, "name": row.name, "digest": row.digest}
        return Task(self.name, self.version, spec, _kind(row), "all", split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def row(self, task: Task) -> CodeRow:
        """The row of a task.

        Raises:
            ConfigError: a task of another world, or of a row that is not there. VersionMismatch: of a row that says
                something else now.
        """
        check_task(self, task)
        return row_named(self._rows, task)

    def question(self, task: Task) -> Question:
        """What is asked; the demonstration is the solution of the file. Raises what `row` raises."""
        row = self.row(task)
        return Question(row.text, (), row.digest, said=row.solution or None)

    def judge(self, said: str, row: CodeRow) -> Grade:
        """The verdict on a response. Any number of threads may ask at once.

        Raises:
            IsolationUnavailable: see the class.
        """
        if len(said) > _LONGEST:
            return Grade(False, why=f"a response of more than {_LONGEST} characters")
        if isinstance(row.tests, Exchanges):
            program = source_in(said)
            found = judge_exchanges(program, row.tests, self._opener())
        else:
            program = program_of(said, row.tests.entry, prompt=row.prompt)
            found = judge(program, row.tests, self._opener())
        return Grade(found.correct, program, found.why)

    def grade(self, said: str, question: Question) -> Grade:
        """The verdict on a response to a question of this world; ConfigError for any other."""
        row = next((one for one in self._rows.values() if one.digest == question.answer), None)
        if row is None:
            raise ConfigError("a question of another world", value=question.text[:80], expected="one of this world")
        return self.judge(said, row)

    def _opener(self) -> Open:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = Boxes()
            return self._own.opener(self._limits)

    def key(self, task: Task) -> str:
        """The digest of text and tests."""
        return self.row(task).digest

    def vocabulary(self) -> None:
        """Programs hold any words."""

    def close(self) -> None:
        """Give back the boxes that the world opened; calling it twice is harmless."""
        with self._lock:
            if self._own is not None:
                self._own.close()
            self._own = None


def _kind(row: CodeRow) -> str:
    """What a task is like: its layout and how it is judged; of APPS, how difficult it is."""
    if isinstance(row.tests, Exchanges):
        how = "function" if row.tests.function else "program"
        return ", ".join(filter(None, (row.layout, row.about, how)))
    return f"{row.layout}, {row.form}"

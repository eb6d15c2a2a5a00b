"""The world of small programs: an episode is one response, judged by the results of its function in a sandbox.

A file is a test set unless its path says train, dev or val. A problem whose tests cannot be run ("weak") gives no task.
The box sees the response and the arguments, never what is expected (`evolvent.grade.code`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from evolvent.data.jsonl import get_row, split_of_path
from evolvent.errors import ConfigError, Problem
from evolvent.grade.base import Grade
from evolvent.grade.code import OpenSandbox, grade_code
from evolvent.grade.exchanges import Exchanges, grade_exchanges
from evolvent.sandbox.limits import SandboxLimits
from evolvent.sandbox.pool import SandboxPool
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS, check_task
from evolvent.worlds.code.answers import extract_program, extract_source
from evolvent.worlds.code.rows import CodeRow, read_code
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["LIMITS", "Code"]

LIMITS = SandboxLimits(cpu_s=10, wall_s=10.0)
"""What the tests of one response may use."""
_LONGEST = 50_000  # characters of a response
_PROGRAMS = "Write the Python program that is asked for. Answer with its whole code in one block."


class Code(Questions):
    """The problems of a file or a folder in the layouts of HumanEval, MBPP and APPS.

    Args:
        path: a `.jsonl`, `.json` or `.gz` file, or a folder of such files, subfolders included.
        open_box: opens sandboxes (None: the world's own sandboxes, started with the first response, released by
            `close`).
        limits: of one response; in APPS, where every exchange has its own sandbox, of one exchange.
    Attributes:
        problems: the rows that are left out, and why.
        count: number of all rows that were read.
    Raises:
        ConfigError: no usable row. IsolationUnavailable: this host cannot isolate (with the first response).
    """

    name = "code"
    run_in_thread = True
    instructions = "Write the Python function that is asked for. Answer with its whole code in one block."

    def __init__(
        self, path: str | Path, *, open_box: OpenSandbox | None = None, limits: SandboxLimits = LIMITS
    ) -> None:
        self._root = Path(path)
        rows, problems = read_code(self._root)
        weak = [
            Problem(row.where, "its tests cannot be run", "the row is skipped") for row in rows if row.form == "weak"
        ]
        self.problems = (*problems, *weak)
        self.count = len(rows) + len(problems)
        self._rows = {(row.file, row.index): row for row in rows if row.form != "weak"}
        if not self._rows:
            raise ConfigError(list(self.problems))
        self._given, self._own, self._lock, self._limits = open_box, None, Lock(), limits
        self.tiers = ("all",)
        if all(row.layout == "apps" for row in self._rows.values()):
            self.instructions = _PROGRAMS
        self._panels = self._deal()

    _own: SandboxPool | None

    @property
    def needs_isolation(self) -> bool:
        """Returns whether responses are run in sandboxes of this host."""
        return self._given is None

    def _deal(self) -> Mapping[str, tuple[Task, ...]]:
        """Returns split -> tasks, in the order of files and rows; a text in two splits is refused."""
        panels: dict[str, list[Task]] = {split: [] for split in SPLITS}
        split_of_digest: dict[str, str] = {}
        for row in self._rows.values():
            split = split_of_path(row.file, self._root)
            if split_of_digest.setdefault(row.digest, split) != split:
                raise ConfigError("the problem belongs to two splits", value=row.where, expected="a single split")
            panels[split].append(self._build_task(row, split))
        return {split: tuple(tasks) for split, tasks in panels.items()}

    def _build_task(self, row: CodeRow, split: str) -> Task:
        spec = {"file": row.file, "row": row.index, "name": row.name, "digest": row.digest}
        return Task(self.name, self.version, spec, _describe_kind(row), "all", split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def row(self, task: Task) -> CodeRow:
        """Returns the row of a task.

        Raises:
            ConfigError: a task of another world, or of a row that is not there. VersionMismatch: of a row that says
                something else now.
        """
        check_task(self, task)
        return get_row(self._rows, task)

    def question(self, task: Task) -> Question:
        """Returns the question; the demonstration is the solution of the file. Raises as `row` does."""
        row = self.row(task)
        return Question(row.text, (), row.digest, demonstration=row.solution or None)

    def judge(self, response: str, row: CodeRow) -> Grade:
        """Scores a response. Any number of threads may call it at once.

        Raises:
            IsolationUnavailable: see the class.
        """
        if len(response) > _LONGEST:
            return Grade(False, why=f"a response of more than {_LONGEST} characters")
        if isinstance(row.tests, Exchanges):
            program = extract_source(response)
            grade = grade_exchanges(program, row.tests, self._opener())
        else:
            program = extract_program(response, row.tests.entry, prompt=row.prompt)
            grade = grade_code(program, row.tests, self._opener())
        return Grade(grade.correct, program, grade.why)

    def grade(self, response: str, question: Question) -> Grade:
        """Scores a response to a question of this world; raises ConfigError for any other question."""
        row = next((candidate for candidate in self._rows.values() if candidate.digest == question.answer), None)
        if row is None:
            raise ConfigError(
                "the question belongs to another world", value=question.text[:80], expected="a question of this world"
            )
        return self.judge(response, row)

    def _opener(self) -> OpenSandbox:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = SandboxPool()
            return self._own.opener(self._limits)

    def key(self, task: Task) -> str:
        """Returns the digest of text and tests."""
        return self.row(task).digest

    def vocabulary(self) -> None:
        """Returns None: programs hold any words."""

    def close(self) -> None:
        """Releases the sandboxes that the world opened; a second call is harmless."""
        with self._lock:
            if self._own is not None:
                self._own.close()
            self._own = None


def _describe_kind(row: CodeRow) -> str:
    """Describes a task's kind: its layout and its tests; for APPS, its difficulty."""
    if isinstance(row.tests, Exchanges):
        test_kind = "function" if row.tests.function else "program"
        return ", ".join(filter(None, (row.layout, row.about, test_kind)))
    return f"{row.layout}, {row.form}"

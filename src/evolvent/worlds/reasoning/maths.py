r"""The world of competition mathematics over your files in the layout of MATH (Hendrycks et al. 2021, 2103.03874).

A file is a test set unless its path says train, dev or val: MATH-500 gives test tasks and nothing else. A problem that
is in a training and in a test file is refused, and so is a training file whose rows say that they are of MATH's test
set: whoever trains on them measures nothing.

A response is steps of one line each with the answer in the last \boxed{}; a demonstration is the solution of the file,
cut into its sentences. The verdict is that of `evolvent.grade.maths`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evolvent.data.jsonl import row_named, split_said
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.grade.base import Grade
from evolvent.grade.maths import MathsGrader
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import SPLITS, check_task
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning.mathsfiles import MathsRow, read_maths, sentences
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["TIERINGS", "Maths"]

TIERINGS: tuple[str, ...] = ("all", "levels")
"""One tier `all`, or a tier for each level: `level1` to `level5`, and `unknown` for rows that name none."""


class Maths(Questions):
    """The problems of a file or a folder.

    Args:
        path: a `.json` or `.jsonl` file, or a folder of such, subfolders included.
        tiering: one of `TIERINGS`.
        grader: the judge of responses; None: one of our own, with math-verify where that is installed.
    Attributes:
        problems: the rows that are left out, and why.
    Raises:
        ConfigError: an unknown tiering, nothing that can be used, or problems of a test set in a training file.
    """

    name = "maths"
    blocking = True
    instructions = r"Solve the problem. Write your solution step by step, and put the answer into \boxed{} at its end."

    def __init__(self, path: str | Path, *, tiering: str = "all", grader: MathsGrader | None = None) -> None:
        if tiering not in TIERINGS:
            raise ConfigError([unknown("tiering", tiering, TIERINGS)])
        self._root = Path(path)
        found, self.problems = read_maths(self._root)
        self._rows = {(row.file, row.place): row for row in found}
        self.tiering, self._grader = tiering, grader or MathsGrader()
        tiers = sorted({self._tier(row) for row in found})
        self.tiers = tuple(tiers)
        self._panels = self._dealt(found)

    def _dealt(self, rows: Sequence[MathsRow]) -> Mapping[tuple[str, str], tuple[Task, ...]]:
        """(split, tier) -> tasks, in the order of files and rows; copies within a split are left out."""
        has_dev = any(split_said(row.file, self._root) == "dev" for row in rows)
        places = [_split(row, split_said(row.file, self._root), has_dev=has_dev) for row in rows]
        _refuse_overlap(rows, places)
        panels: dict[tuple[str, str], list[Task]] = {(split, tier): [] for split in SPLITS for tier in self.tiers}
        seen: set[str] = set()
        copies = []
        for row, split in zip(rows, places, strict=True):
            if row.key in seen:
                copies.append(Problem(row.where, "asks what another row asks", "the row is left out"))
                continue
            seen.add(row.key)
            panels[split, self._tier(row)].append(self._task(row, split))
        self.problems += tuple(copies)
        return {at: tuple(tasks) for at, tasks in panels.items()}

    def _tier(self, row: MathsRow) -> str:
        return "all" if self.tiering == "all" else "unknown" if row.level is None else f"level{row.level}"

    def _task(self, row: MathsRow, split: str) -> Task:
        spec = {"file": row.file, "row": row.place, "digest": row.digest}
        named = (row.subject, "" if row.level is None else f"level {row.level}")
        kind = ", ".join(part for part in named if part) or "problem"
        return Task(self.name, self.version, spec, kind, self._tier(row), split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; without a training file nothing may be trained on."""
        check_names(split, tier, self.tiers)
        return self._panels[split, tier]

    def _row(self, task: Task) -> MathsRow:
        check_task(self, task)
        return row_named(self._rows, task)

    def question(self, task: Task) -> Question:
        """The question of a row, with the spans of its solution.

        Raises:
            ConfigError: a task of another world, or of a row that is not there. VersionMismatch: of a row that says
                something else now.
        """
        row = self._row(task)
        spans = sentences(row.solution)
        said = "\n".join(spans)
        if spans and "\\boxed" not in said and "\\fbox" not in said:
            said = f"{said}\n\\boxed{{{row.answer}}}"
        return Question(row.problem, spans, row.answer, said=said or None)

    def same(self, a: str, b: str) -> bool:
        """Whether two answers are one to the grader."""
        return a == b or bool(self._grader.compare(a, b).correct)

    def grade(self, said: str, question: Question) -> Grade:
        """The verdict on a response: `correct` is None where nothing can be said, and the episode is not scored."""
        return self._grader(said, question.answer)

    def key(self, task: Task) -> str:
        """The problem's own words: rows that ask the same are copies."""
        return self._row(task).key

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None

    def close(self) -> None:
        """End the grader's processes; calling it twice is harmless."""
        self._grader.close()


def _refuse_overlap(rows: Sequence[MathsRow], places: Sequence[str]) -> None:
    """Raise ConfigError where a test problem is to be trained on; the message names up to five of them."""
    tested = {row.key: row for row, split in zip(rows, places, strict=True) if split == "test"}
    wrong = []
    for row, split in zip(rows, places, strict=True):
        if split == "test":
            continue
        if row.held_out:
            wrong.append(Problem(row.where, "is of MATH's test set", f"it cannot be a {split} task"))
        elif row.key in tested:
            wrong.append(
                Problem(row.where, f"is also a test problem ({tested[row.key].where})", "take one of them out")
            )
    if wrong:
        more = [Problem("and", f"{len(wrong) - 5} more rows", "the same is wrong with them")] if len(wrong) > 5 else []
        raise ConfigError([*wrong[:5], *more])


def _split(row: MathsRow, split: str, *, has_dev: bool) -> str:
    """Without a dev file about a tenth of the training rows are dev."""
    if split == "train" and not has_dev and sample_seed("maths", "dev", row.key) % 10 == 0:
        return "dev"
    return split

r"""The world of competition mathematics, over a user's files in the layout of MATH (Hendrycks et al. 2021,
2103.03874).

A file is a test set unless its path contains train, dev or val: MATH-500 gives test tasks only. A problem that
is in a training file and in a test file is refused. So is a training file with rows that belong to MATH's test
set: training on them would invalidate the measurement.

A response is a list of steps, one per line, with the answer in the last \boxed{}. A demonstration is the
solution of the file, cut into its sentences. Responses are graded by `evolvent.grade.maths`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evolvent.data.jsonl import get_row, split_of_path
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.grade.base import Grade
from evolvent.grade.maths import MathsGrader
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import SPLITS, check_task
from evolvent.worlds.panel import check_names
from evolvent.worlds.reasoning.mathsfiles import MathsRow, read_maths, split_sentences
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["TIERINGS", "Maths"]

TIERINGS: tuple[str, ...] = ("all", "levels")
"""One tier `all`, or a tier for each level: `level1` to `level5`, and `unknown` for rows that name none."""


class Maths(Questions):
    """The problems of a file or a folder.

    Args:
        path: a `.json` or `.jsonl` file, or a folder of such files, subfolders included.
        tiering: one of `TIERINGS`.
        grader: grades responses; None: a new `MathsGrader`, with math-verify if that is installed.
    Attributes:
        problems: the rows that are left out, with the reasons.
    Raises:
        ConfigError: an unknown tiering, no usable row, or problems of a test set in a training file.
    """

    name = "maths"
    run_in_thread = True
    instructions = r"Solve the problem. Write your solution step by step, and put the answer into \boxed{} at its end."

    def __init__(self, path: str | Path, *, tiering: str = "all", grader: MathsGrader | None = None) -> None:
        if tiering not in TIERINGS:
            raise ConfigError([unknown_name_problem("tiering", tiering, TIERINGS)])
        self._root = Path(path)
        rows, self.problems = read_maths(self._root)
        self._rows = {(row.file, row.index): row for row in rows}
        self.tiering, self._grader = tiering, grader or MathsGrader()
        tiers = sorted({self._tier_of(row) for row in rows})
        self.tiers = tuple(tiers)
        self._panels = self._deal_panels(rows)

    def _deal_panels(self, rows: Sequence[MathsRow]) -> Mapping[tuple[str, str], tuple[Task, ...]]:
        """Returns (split, tier) -> tasks, in the order of files and rows; copies within a split are left out."""
        has_dev = any(split_of_path(row.file, self._root) == "dev" for row in rows)
        splits = [_choose_split(row, split_of_path(row.file, self._root), has_dev=has_dev) for row in rows]
        _refuse_overlap(rows, splits)
        panels: dict[tuple[str, str], list[Task]] = {(split, tier): [] for split in SPLITS for tier in self.tiers}
        seen_keys: set[str] = set()
        copies = []
        for row, split in zip(rows, splits, strict=True):
            if row.key in seen_keys:
                copies.append(Problem(row.where, "repeats the question of another row", "the row is skipped"))
                continue
            seen_keys.add(row.key)
            panels[split, self._tier_of(row)].append(self._build_task(row, split))
        self.problems += tuple(copies)
        return {panel_key: tuple(tasks) for panel_key, tasks in panels.items()}

    def _tier_of(self, row: MathsRow) -> str:
        return "all" if self.tiering == "all" else "unknown" if row.level is None else f"level{row.level}"

    def _build_task(self, row: MathsRow, split: str) -> Task:
        spec = {"file": row.file, "row": row.index, "digest": row.digest}
        descriptors = (row.subject, "" if row.level is None else f"level {row.level}")
        kind = ", ".join(part for part in descriptors if part) or "problem"
        return Task(self.name, self.version, spec, kind, self._tier_of(row), split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; without a training file the train panel is empty."""
        check_names(split, tier, self.tiers)
        return self._panels[split, tier]

    def _find_row(self, task: Task) -> MathsRow:
        check_task(self, task)
        return get_row(self._rows, task)

    def question(self, task: Task) -> Question:
        """Returns the question of a row, with the spans of its solution.

        Raises:
            ConfigError: a task of another world, or of a missing row. VersionMismatch: of a row whose content has
                changed.
        """
        row = self._find_row(task)
        spans = split_sentences(row.solution)
        demonstration = "\n".join(spans)
        if spans and "\\boxed" not in demonstration and "\\fbox" not in demonstration:
            demonstration = f"{demonstration}\n\\boxed{{{row.answer}}}"
        return Question(row.problem, spans, row.answer, demonstration=demonstration or None)

    def same(self, a: str, b: str) -> bool:
        """Returns whether two answers are equal to the grader."""
        return a == b or bool(self._grader.compare(a, b).correct)

    def grade(self, response: str, question: Question) -> Grade:
        """Returns the grade of a response; `correct` is None if no verdict is possible, and the episode is then not
        scored.
        """
        return self._grader(response, question.answer)

    def key(self, task: Task) -> str:
        """Returns the words of the problem: rows with the same problem are copies."""
        return self._find_row(task).key

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None

    def close(self) -> None:
        """Ends the grader's processes; a second call is harmless."""
        self._grader.close()


def _refuse_overlap(rows: Sequence[MathsRow], splits: Sequence[str]) -> None:
    """Raises ConfigError if a test problem would be trained on; the message names up to five of them."""
    test_rows = {row.key: row for row, split in zip(rows, splits, strict=True) if split == "test"}
    overlaps = []
    for row, split in zip(rows, splits, strict=True):
        if split == "test":
            continue
        if row.held_out:
            overlaps.append(
                Problem(row.where, "belongs to MATH's test set", f"use it only as a test task, not as a {split} task")
            )
        elif row.key in test_rows:
            overlaps.append(
                Problem(row.where, f"is also a test problem ({test_rows[row.key].where})", "remove one of them")
            )
    if overlaps:
        summary = (
            [Problem("and", f"{len(overlaps) - 5} more rows", "these rows have the same problem")]
            if len(overlaps) > 5
            else []
        )
        raise ConfigError([*overlaps[:5], *summary])


def _choose_split(row: MathsRow, split: str, *, has_dev: bool) -> str:
    """Returns the split of a row; without a dev file about a tenth of the training rows becomes dev."""
    if split == "train" and not has_dev and sample_seed("maths", "dev", row.key) % 10 == 0:
        return "dev"
    return split

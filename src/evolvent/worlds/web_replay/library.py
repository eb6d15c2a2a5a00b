"""Sources of recorded tasks: a folder of Mind2Web's files, or the generator; dealt to splits and tiers.

In a folder the names determine the split: `train` is the training split; `test_task`, `test_website` and
`test_domain` are the three official tests, as tiers `seen`, `website` and `domain`. Pages are large: only the
position of each task is retained, and one file at a time is in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evolvent.data.jsonl import get_row, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch
from evolvent.trajectory import Json, Task, canonical_json
from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes, check_names
from evolvent.worlds.web_replay import generated
from evolvent.worlds.web_replay.records import Ranks, WebTask, parse_task, read_ranks, read_rows

__all__ = ["Folder", "Generated", "Library"]

_TIERS: Mapping[str, str] = {"test_task": "seen", "test_website": "website", "test_domain": "domain"}
_MAX_LISTED_PROBLEMS = 5  # problems that a message names


class Library(Protocol):
    """Recorded tasks.

    Attributes:
        name, version: of their world.
        tiers: the tiers of the tasks.
        max_steps: steps of the longest task.
        ranks: of the candidates; None: a step without its own ranks shows all of them.
        invalid: the unusable rows, with the reasons.
    """

    name: str
    version: str
    tiers: tuple[str, ...]
    max_steps: int
    ranks: Ranks | None
    invalid: tuple[Problem, ...]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split and tier; raises ConfigError for an unknown name."""
        ...

    def get_record(self, task: Task) -> WebTask:
        """Returns the record of a task; raises ConfigError or VersionMismatch for a spec without a record."""
        ...

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns texts that contain every word of pages, tasks and thoughts, or None if they are unknown."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """The position and properties of a task, without its pages."""

    file: str
    row: int
    digest: str
    website: str
    split: str
    tier: str
    steps: int

    @property
    def where(self) -> str:
        """Returns the position of the row, for messages."""
        return f"{self.file}, row {self.row}"


class Folder:
    """The tasks of a folder of official files, or of one file.

    Args:
        path: contains `.json` files at any depth; files whose names begin with `ranks` or `scores` are not tasks.
        ranks: a file of ranks (see `read_ranks`); None: none, or those in the rows.
        first: maximum number of candidates on a page.
        sizes: maximum number of tasks of each split in a tier (None: all).
    Raises:
        ConfigError: no file, a file that is not a JSON array, or no usable task. UnsafeFile: pickled ranks.
    """

    name, version = "mind2web", "1"

    def __init__(
        self, path: str | Path, ranks: str | Path | None = None, *, max_candidates: int, sizes: Sizes | None = None
    ) -> None:
        self.path, self._sizes = Path(path), sizes
        files = [
            (file, name)
            for file, name in row_files(self.path, "**/*")
            if name.endswith(".json") and not file.name.startswith(("ranks", "scores"))
        ]
        if not files:
            raise ConfigError("no recorded tasks here", value=str(path), expected="a folder of Mind2Web's .json files")
        self._files = {name: file for file, name in files}
        self._last: tuple[str, list[object]] = ("", [])
        entries, problems = self._build_index()
        if not entries:
            raise ConfigError(problems[:_MAX_LISTED_PROBLEMS] or f"no tasks in {path}")
        self.invalid: tuple[Problem, ...] = tuple(problems)
        self.max_steps = max(entry.steps for entry in entries)
        self._entries = {(entry.file, entry.row): entry for entry in entries}
        tier_names = {entry.tier for entry in entries}
        self.tiers: tuple[str, ...] = tuple(
            tier for tier in ("seen", "website", "domain") if tier == "seen" or tier in tier_names
        )
        self.ranks: Ranks | None = None if ranks is None else read_ranks(ranks, max_rank=max_candidates)

    def _build_index(self) -> tuple[list[_Entry], list[Problem]]:
        entries, problems, ids = [], [], set()
        for name in self._files:
            split, tier = _split_and_tier(f"{self.path.name}/{name}")
            for row_index, row in enumerate(self._load_rows(name)):
                try:
                    task = parse_task(row)
                except SampleInvalid as error:
                    problems.append(Problem(f"{name}, row {row_index}", str(error), "the row is left out"))
                    continue
                if task.id in ids:
                    problems.append(Problem(f"{name}, row {row_index}", f"{task.id} is there before", "it is left out"))
                    continue
                ids.add(task.id)
                entries.append(_Entry(name, row_index, task.digest, task.website, split, tier, len(task.steps)))
        self._last = ("", [])
        return entries, problems

    def _load_rows(self, name: str) -> list[object]:
        if self._last[0] != name:
            self._last = (name, read_rows(self._files[name]))
        return self._last[1]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split and tier, in the order of the files."""
        check_names(split, tier, self.tiers)
        entries = [entry for entry in self._entries.values() if (entry.split, entry.tier) == (split, tier)]
        limit = None if self._sizes is None else self._sizes.of(split)
        return tuple(map(self._build_task, entries[:limit]))

    def _build_task(self, entry: _Entry) -> Task:
        spec: dict[str, Json] = {"file": entry.file, "row": entry.row, "digest": entry.digest}
        if self.ranks is not None:
            spec["ranks"] = self.ranks.digest
        return Task(self.name, self.version, spec, entry.website, entry.tier, entry.split)

    def get_record(self, task: Task) -> WebTask:
        """Returns the task, read from its file again.

        Raises:
            ConfigError: a missing row. VersionMismatch: the content of the row, or of the file of ranks, has changed.
        """
        entry = get_row(self._entries, task)
        ranks_digest = None if self.ranks is None else self.ranks.digest
        if task.spec.get("ranks") != ranks_digest:
            raise VersionMismatch("a task with other ranks", value=task.spec.get("ranks"), expected=ranks_digest)
        rows = self._load_rows(entry.file)
        record = parse_task(rows[entry.row]) if entry.row < len(rows) else None
        if record is None or record.digest != entry.digest:
            raise VersionMismatch(f"{entry.where} was changed", value=record and record.digest, expected=entry.digest)
        return record

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns None: the vocabulary of the web is open."""
        return None


def _split_and_tier(name: str) -> tuple[str, str]:
    """Returns split and tier by a path: the last part that names one; without any, the official test of known sites."""
    for part in reversed(Path(name).parts):
        for prefix, tier in _TIERS.items():
            if part.startswith(prefix):
                return "test", tier
        if part.startswith(("train", "dev")):
            return ("train", "seen") if part.startswith("train") else ("dev", "seen")
    return "test", "seen"


class Generated:
    """Generated tasks; of every five, one is dev and one is test.

    Args:
        pages: number of pages of all tasks together.
        seed: determines the tasks.
        sizes: maximum number of tasks of each split (None: all).
    """

    name, version = "web_replay", "1"
    tiers: tuple[str, ...] = ("seen",)
    invalid: tuple[Problem, ...] = ()

    def __init__(self, pages: int, seed: int, *, sizes: Sizes | None = None) -> None:
        self.pages, self.seed = pages, seed
        rows, ranks = generated.generate_rows(pages, seed)
        digest = hashlib.sha256(canonical_json(ranks).encode()).hexdigest()
        self.ranks: Ranks | None = Ranks(ranks, "generated", digest)
        self._recorded = [parse_task(row) for row in rows]
        self.max_steps = max(len(task.steps) for task in self._recorded)
        tasks_by_split = {split: [*self._deal_tasks(split)] for split in SPLITS}
        self._panels = {
            split: tuple(split_tasks[: None if sizes is None else sizes.of(split)])
            for split, split_tasks in tasks_by_split.items()
        }

    def _deal_tasks(self, split: str) -> Iterator[Task]:
        for number, record in enumerate(self._recorded):
            if {3: "dev", 4: "test"}.get((number + number // 5) % 5, "train") == split:
                spec: dict[str, Json] = {"seed": self.seed, "number": number, "steps": len(record.steps)}
                yield Task(self.name, self.version, spec, record.subdomain, "seen", split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def get_record(self, task: Task) -> WebTask:
        """Returns the record of a generated task; raises ConfigError for a task that this library does not have."""
        number = task.spec.get("number")
        record = self._recorded[number] if type(number) is int and 0 <= number < len(self._recorded) else None
        if record is None or dict(task.spec) != {"seed": self.seed, "number": number, "steps": len(record.steps)}:
            raise ConfigError(
                "no generated task of this seed and number",
                value=dict(task.spec),
                expected=f"seed {self.seed}, a number below {len(self._recorded)}",
            )
        return record

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns every word of the pages as written, of tasks and of thoughts."""
        texts = [text for row in self._recorded for text in (row.instruction, *(step.thought for step in row.steps))]
        pages = [word for row in self._recorded for step in row.steps for word in words_of(step.html)]
        return sorted({*pages, *(word for text in texts for word in words_of(text))})

"""Where recorded tasks come from: a folder of Mind2Web's files, or the generator. Dealt to splits and tiers.

In a folder the names say the split: `train` is trained on; `test_task`, `test_website` and `test_domain` are the three
official tests, as tiers `seen`, `website` and `domain`. Pages are large: what is kept is where a task lies, and one
file at a time is in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evolvent.data.jsonl import row_files, row_named
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch
from evolvent.trajectory import Json, Task, canonical_json
from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes, check_names
from evolvent.worlds.web_replay import generated
from evolvent.worlds.web_replay.records import Ranks, WebTask, read_ranks, read_task, rows_of

__all__ = ["Folder", "Generated", "Library"]

_TIERS: Mapping[str, str] = {"test_task": "seen", "test_website": "website", "test_domain": "domain"}
_TOLD = 5  # problems that a message names


class Library(Protocol):
    """Recorded tasks.

    Attributes:
        name, version: of their world.
        tiers: that they come in.
        longest: steps of the longest task.
        ranks: of the candidates; None: a step without ranks of its own shows all of them.
        invalid: what could not be used, and why.
    """

    name: str
    version: str
    tiers: tuple[str, ...]
    longest: int
    ranks: Ranks | None
    invalid: tuple[Problem, ...]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split and tier; raises ConfigError for a name that does not exist."""
        ...

    def recorded(self, task: Task) -> WebTask:
        """What a task was recorded as; raises ConfigError or VersionMismatch for a spec that is none of these."""
        ...

    def words(self) -> Sequence[str] | None:
        """Texts that hold every word of pages, tasks and thoughts; None where nobody knows them."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a task lies, without its pages."""

    file: str
    row: int
    digest: str
    website: str
    split: str
    tier: str
    steps: int

    @property
    def where(self) -> str:
        """The row for a message."""
        return f"{self.file}, row {self.row}"


class Folder:
    """The tasks of a folder of official files, or of one file.

    Args:
        path: holds `.json` files at any depth; those whose names begin with `ranks` or `scores` are no tasks.
        ranks: a file of ranks (see `read_ranks`); None: none, or those that the rows bring themselves.
        first: how many candidates a page shows at most.
        sizes: at most so many tasks of each split in a tier (None: all).
    Raises:
        ConfigError: no file, a file that is no JSON array, or not one task that can be used. UnsafeFile: pickled ranks.
    """

    name, version = "mind2web", "1"

    def __init__(
        self, path: str | Path, ranks: str | Path | None = None, *, first: int, sizes: Sizes | None = None
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
        found, problems = self._index()
        if not found:
            raise ConfigError(problems[:_TOLD] or f"no tasks in {path}")
        self.invalid: tuple[Problem, ...] = tuple(problems)
        self.longest = max(entry.steps for entry in found)
        self._entries = {(entry.file, entry.row): entry for entry in found}
        named = {entry.tier for entry in found}
        self.tiers: tuple[str, ...] = tuple(
            tier for tier in ("seen", "website", "domain") if tier == "seen" or tier in named
        )
        self.ranks: Ranks | None = None if ranks is None else read_ranks(ranks, first=first)

    def _index(self) -> tuple[list[_Entry], list[Problem]]:
        found, problems, ids = [], [], set()
        for name in self._files:
            split, tier = _place(f"{self.path.name}/{name}")
            for place, row in enumerate(self._rows(name)):
                try:
                    task = read_task(row)
                except SampleInvalid as error:
                    problems.append(Problem(f"{name}, row {place}", str(error), "the row is left out"))
                    continue
                if task.id in ids:
                    problems.append(Problem(f"{name}, row {place}", f"{task.id} is there before", "it is left out"))
                    continue
                ids.add(task.id)
                found.append(_Entry(name, place, task.digest, task.website, split, tier, len(task.steps)))
        self._last = ("", [])
        return found, problems

    def _rows(self, name: str) -> list[object]:
        if self._last[0] != name:
            self._last = (name, rows_of(self._files[name]))
        return self._last[1]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split and tier, in the order of the files."""
        check_names(split, tier, self.tiers)
        chosen = [one for one in self._entries.values() if (one.split, one.tier) == (split, tier)]
        limit = None if self._sizes is None else self._sizes.of(split)
        return tuple(map(self._task, chosen[:limit]))

    def _task(self, entry: _Entry) -> Task:
        spec: dict[str, Json] = {"file": entry.file, "row": entry.row, "digest": entry.digest}
        if self.ranks is not None:
            spec["ranks"] = self.ranks.digest
        return Task(self.name, self.version, spec, entry.website, entry.tier, entry.split)

    def recorded(self, task: Task) -> WebTask:
        """The task in its file, read again.

        Raises:
            ConfigError: no such row. VersionMismatch: it, or the file of ranks, says something else now.
        """
        entry = row_named(self._entries, task)
        wanted = None if self.ranks is None else self.ranks.digest
        if task.spec.get("ranks") != wanted:
            raise VersionMismatch("a task with other ranks", value=task.spec.get("ranks"), expected=wanted)
        rows = self._rows(entry.file)
        found = read_task(rows[entry.row]) if entry.row < len(rows) else None
        if found is None or found.digest != entry.digest:
            raise VersionMismatch(f"{entry.where} was changed", value=found and found.digest, expected=entry.digest)
        return found

    def words(self) -> Sequence[str] | None:
        """None: the web has no end of words."""
        return None


def _place(name: str) -> tuple[str, str]:
    """Split and tier by a path: the last part that names one; without any, the official test of known sites."""
    for part in reversed(Path(name).parts):
        for mark, tier in _TIERS.items():
            if part.startswith(mark):
                return "test", tier
        if part.startswith(("train", "dev")):
            return ("train", "seen") if part.startswith("train") else ("dev", "seen")
    return "test", "seen"


class Generated:
    """Tasks of our own making; of every five one is dev and one is test.

    Args:
        pages: how many pages there are in all tasks together.
        seed: which tasks.
        sizes: at most so many tasks of each split (None: all).
    """

    name, version = "web_replay", "1"
    tiers: tuple[str, ...] = ("seen",)
    invalid: tuple[Problem, ...] = ()

    def __init__(self, pages: int, seed: int, *, sizes: Sizes | None = None) -> None:
        self.pages, self.seed = pages, seed
        rows, ranks = generated.generate_rows(pages, seed)
        digest = hashlib.sha256(canonical_json(ranks).encode()).hexdigest()
        self.ranks: Ranks | None = Ranks(ranks, "generated", digest)
        self._recorded = [read_task(row) for row in rows]
        self.longest = max(len(task.steps) for task in self._recorded)
        dealt = {split: [*self._dealt(split)] for split in SPLITS}
        self._panels = {split: tuple(of[: None if sizes is None else sizes.of(split)]) for split, of in dealt.items()}

    def _dealt(self, split: str) -> Iterator[Task]:
        for number, found in enumerate(self._recorded):
            if {3: "dev", 4: "test"}.get((number + number // 5) % 5, "train") == split:
                spec: dict[str, Json] = {"seed": self.seed, "number": number, "steps": len(found.steps)}
                yield Task(self.name, self.version, spec, found.subdomain, "seen", split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def recorded(self, task: Task) -> WebTask:
        """The task made again; raises ConfigError for one that this library does not have."""
        number = task.spec.get("number")
        found = self._recorded[number] if type(number) is int and 0 <= number < len(self._recorded) else None
        if found is None or dict(task.spec) != {"seed": self.seed, "number": number, "steps": len(found.steps)}:
            raise ConfigError(
                "no generated task of this seed and number",
                value=dict(task.spec),
                expected=f"seed {self.seed}, a number below {len(self._recorded)}",
            )
        return found

    def words(self) -> Sequence[str] | None:
        """Every word of the pages as they are written, of tasks and of thoughts."""
        texts = [text for row in self._recorded for text in (row.told, *(step.thought for step in row.steps))]
        pages = [word for row in self._recorded for step in row.steps for word in words_of(step.html)]
        return sorted({*pages, *(word for text in texts for word in words_of(text))})

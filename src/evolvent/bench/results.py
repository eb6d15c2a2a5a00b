"""What the arms of a study left: their outcomes task by task, what they cost, or why they failed; and the files of it.

    FOLDER/panels.json               the tasks (id, kind) of every panel, once for the whole study
    FOLDER/results/ARM/SEED.json     outcomes as strings of 0 and 1 in the order of the panel, tokens, notes

Every file names the digest of its study; one of another study is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, Locked, Problem, ScoringError, UnknownSchema
from evolvent.files import disk_errors, plain_json, safe_join, write_atomic
from evolvent.run import Evaluation
from evolvent.store.lock import WriterLock
from evolvent.trajectory import Json

__all__ = [
    "FORMAT",
    "Failed",
    "Key",
    "Outcome",
    "Played",
    "Result",
    "Results",
    "claimed",
    "outcomes",
    "panel_place",
    "read_json",
    "spent",
]

FORMAT = 1
Outcome = tuple[str, str, bool]  # task id, kind, success
Key = tuple[str, int]  # arm, seed
_PATIENCE_S = 30.0  # for a lock that is held while a small file is written
_TIERS = ("seen", "evo", "combo", "longer")
_TOKENS = ("generated", "computed", "trained", "fed")


@dataclass(frozen=True)
class Played:
    """What an arm did with one seed.

    Args:
        outcomes: panel ("world/tier") -> (task id, kind, success) of every task.
        tokens: what it cost, by name: generated, computed (the one that a budget is about), trained, fed.
        cpu_s: CPU seconds.
        notes: figures of this arm that the verdict does not need, such as its curve on dev.
    Raises:
        ScoringError: an episode without a success: it is neither won nor lost, so the seed has no result.
        ConfigError: everything else that is no result, all at once.
    """

    outcomes: Mapping[str, Sequence[Outcome]]
    tokens: Mapping[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    notes: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unscored = {
            panel: lost for panel, tasks in self.outcomes.items() if (lost := sum(one[2] is None for one in tasks))
        }
        if unscored:
            said = ", ".join(f"{lost} of {len(self.outcomes[panel])} in {panel}" for panel, lost in unscored.items())
            raise ScoringError(f"episodes that could not be scored: {said}", hint="their errors are in the run's store")
        problems = [*_panel_problems(self.outcomes), *_cost_problems(self.tokens, self.cpu_s)]
        try:
            json.loads(plain_json(self.notes))
        except (TypeError, RecursionError) as error:
            problems.append(Problem("notes", f"are no JSON values: {error}", "keep numbers, text, lists and tables"))
        if problems:
            raise ConfigError(problems)
        fixed = {
            panel: tuple((str(task), str(kind), bool(success)) for task, kind, success in tasks)
            for panel, tasks in self.outcomes.items()
        }
        object.__setattr__(self, "outcomes", fixed)


def _panel_problems(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[Problem]:
    if not outcomes:
        yield Problem("outcomes", "hold no panel", 'give {"world/tier": [(task id, kind, success), ...]}')
    for panel, tasks in outcomes.items():
        world, _, tier = panel.rpartition("/")
        if not world or not tier:
            yield Problem("outcomes", f"{panel!r} is no panel", 'expected "world/tier"')
        if len({task for task, _, _ in tasks}) != len(tasks) or not tasks:
            yield Problem("outcomes", f"{panel} has no task, or one twice", "one outcome a task")
        if any(success not in (True, False) for _, _, success in tasks):
            yield Problem("outcomes", f"{panel} has a success that is neither true nor false", "successes are bools")


def _cost_problems(tokens: Mapping[str, int], cpu_s: float) -> Iterator[Problem]:
    for name, count in tokens.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            yield Problem(f"tokens.{name}", f"got {count!r}", "expected a whole number of 0 or more")
    if not isfinite(cpu_s) or cpu_s < 0:
        yield Problem("cpu_s", f"got {cpu_s!r}", "expected seconds of 0 or more")


@dataclass(frozen=True)
class Failed:
    """An arm that did not get through with one seed: the class of the error and its sentence."""

    kind: str
    message: str


Result = Played | Failed


def panel_place(panel: str) -> tuple[str, int, str]:
    """Where a panel is shown: by world, then by tier, nearest to the demonstrations first."""
    world, _, tier = panel.rpartition("/")
    return world, _TIERS.index(tier) if tier in _TIERS else len(_TIERS), tier


def outcomes(rows: Iterable[Evaluation]) -> dict[str, tuple[Outcome, ...]]:
    """The outcomes of `Played`, from what `Run.evaluate` returns.

    Raises:
        ConfigError: two evaluations of one panel. ScoringError: an episode that could not be scored.
    """
    found: dict[str, tuple[Outcome, ...]] = {}
    for row in rows:
        panel = f"{row.world}/{row.tier}"
        if panel in found:
            raise ConfigError(f"two evaluations of {panel}", value=row.split, expected="one split and one round")
        if row.errors or any(success is None for _, _, success in row.outcomes):
            raise ScoringError(
                f"{row.errors} of {row.n} episodes of {panel} could not be scored",
                hint="their errors are in the run's store",
            )
        found[panel] = tuple((task, kind, bool(success)) for task, kind, success in row.outcomes)
    return found


def spent(run: Path, *, verbs: Sequence[str] = ("collect", "fit")) -> tuple[dict[str, int], float]:
    """What a run's ledger says that its finished stages cost, whenever they were done: (tokens, CPU seconds).

    Args:
        run: the folder of a run; one without a ledger has cost nothing.
        verbs: the stages that count. Measuring is left out by default: every arm is measured alike.
    Raises:
        CorruptRecord: a line that cannot be read.
    """
    tokens, cpu_s, path = dict.fromkeys(_TOKENS, 0), 0.0, run / "stages.jsonl"
    with disk_errors(path):
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    offset = 0
    for line in lines:
        try:
            row = json.loads(line)
            if row["verb"] in verbs:
                tokens = {name: count + int(row["counts"].get(name, 0)) for name, count in tokens.items()}
                cpu_s += float(row["cpu_s"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRecord(f"{path} has a broken line", offset=offset, value=line[:80]) from error
        offset += len(line) + 1
    return tokens, cpu_s


@contextmanager
def claimed(path: Path, *, wait_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold a lock file as the only process; the kernel gives it back when the process dies.

    Raises:
        Locked: another process holds it, after waiting `wait_s` seconds.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = _taken(path, time.monotonic() + wait_s)
    try:
        yield
    finally:
        lock.release()


def _taken(path: Path, until: float) -> WriterLock:
    while True:
        try:
            return WriterLock(path)
        except Locked:
            if time.monotonic() >= until:
                raise
        time.sleep(0.02)


def read_json(path: Path) -> Any:
    """The JSON value of a file, None where there is no such file.

    Raises:
        CorruptRecord: the file is no JSON. UnknownSchema: a newer version wrote it. StoreUnavailable, NoSpace
    """
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else None
    if raw is None:
        return None
    try:
        row = json.loads(raw)
        version = int(row.get("format", 0))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptRecord(f"{path} cannot be read", offset=0, hint="move it away: it is made again") from error
    if version > FORMAT:
        raise UnknownSchema(f"{path} was written by a newer version", value=version, expected=f"{FORMAT} or less")
    return row


class Results:
    """The results of one study in its folder.

    Args:
        folder: of the study.
        digest: of the study; a file of another one is refused (`ConfigError`, with both digests).
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder, digest
        self._panels: dict[str, tuple[tuple[str, str], ...]] = {}

    def path(self, arm: str, seed: int) -> Path:
        """Where the result of an arm and seed lies."""
        return safe_join(self._folder, f"results/{arm}/{seed}.json")

    def get(self, arm: str, seed: int) -> Result | None:
        """The result of an arm and seed; None where there is none yet.

        Raises:
            ConfigError: it is of another study. CorruptRecord: it cannot be read.
        """
        path = self.path(arm, seed)
        row = self._own(path)
        if row is None:
            return None
        if not self._panels:
            self._read_panels()
        try:
            if "failed" in row:
                return Failed(str(row["failed"]["kind"]), str(row["failed"]["message"]))
            found = {panel: self._unpacked(panel, word) for panel, word in row["outcomes"].items()}
            return Played(found, row["tokens"], float(row["cpu_s"]), row["notes"])
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise CorruptRecord(
                f"{path} is no result: {error}", offset=0, hint="move it away: the arm is played again"
            ) from error

    def put(self, arm: str, seed: int, *, result: Result) -> None:
        """Keep a result, whole or not at all. What was played must have been `accept`ed."""
        row: dict[str, Any] = {"format": FORMAT, "study": self._digest, "arm": arm, "seed": seed}
        if isinstance(result, Failed):
            row["failed"] = {"kind": result.kind, "message": result.message}
        else:
            row["outcomes"] = {panel: self._packed(panel, tasks) for panel, tasks in result.outcomes.items()}
            row |= {"tokens": dict(result.tokens), "cpu_s": result.cpu_s, "notes": dict(result.notes)}
        write_atomic(self.path(arm, seed), plain_json(row).encode("utf-8", "backslashreplace") + b"\n")

    def accept(self, played: Played) -> Played:
        """Check that the arm played the tasks of the study: those of a panel are what the first arm to play it had.

        Raises:
            ConfigError: a panel with other tasks or kinds.
        """
        tasks = {
            panel: tuple(sorted((task, kind) for task, kind, _ in rows)) for panel, rows in played.outcomes.items()
        }
        with claimed(self._folder / "locks" / ".panels"):
            known = self._read_panels()
            problems = [
                Problem(
                    panel,
                    f"was played with other tasks than before: {_apart(known[panel], mine)}",
                    "all arms and seeds of a study play the same panels",
                )
                for panel, mine in tasks.items()
                if panel in known and known[panel] != mine
            ]
            if problems:
                raise ConfigError(problems)
            if tasks.keys() - known.keys():
                self._panels = {**known, **tasks}
                rows = {panel: [list(task) for task in own] for panel, own in sorted(self._panels.items())}
                text = plain_json({"format": FORMAT, "study": self._digest, "panels": rows})
                write_atomic(self._folder / "panels.json", text + "\n")
        return played

    def _own(self, path: Path) -> Any:
        row = read_json(path)
        if row is not None and row.get("study") != self._digest:
            raise ConfigError(
                f"{path} belongs to the study {row.get('study')}, not to {self._digest}",
                hint="a change is a new study: give it another folder",
            )
        return row

    def _read_panels(self) -> dict[str, tuple[tuple[str, str], ...]]:
        path = self._folder / "panels.json"
        row = self._own(path) or {"panels": {}}
        try:
            self._panels = {
                panel: tuple((str(task), str(kind)) for task, kind in own) for panel, own in row["panels"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptRecord(
                f"{path} holds no panels", offset=0, hint="restore it, or run again elsewhere"
            ) from error
        return self._panels

    def _tasks(self, panel: str) -> tuple[tuple[str, str], ...]:
        known = self._panels if panel in self._panels else self._read_panels()
        if panel not in known:
            raise ValueError(f"panels.json does not know {panel}")
        return known[panel]

    def _packed(self, panel: str, tasks: Sequence[Outcome]) -> str:
        won = {task: success for task, _, success in tasks}
        return "".join("01"[won[task]] for task, _ in self._tasks(panel))

    def _unpacked(self, panel: str, word: str) -> list[Outcome]:
        tasks = self._tasks(panel)
        if len(word) != len(tasks) or set(word) - {"0", "1"}:
            raise ValueError(f"{panel} has {len(tasks)} tasks, but not as many outcomes of 0 or 1")
        return [(task, kind, mark == "1") for (task, kind), mark in zip(tasks, word, strict=True)]


def _apart(known: Sequence[tuple[str, str]], mine: Sequence[tuple[str, str]]) -> str:
    missing, strange = len(set(known) - set(mine)), len(set(mine) - set(known))
    return f"{missing} of its {len(known)} are missing, {strange} are others"

"""Results of the arms of a study: outcomes task by task, costs, or failures; and the files that hold them.

    FOLDER/panels.json               the tasks (id, kind) of every panel, once for the whole study
    FOLDER/results/ARM/SEED.json     outcomes as strings of 0 and 1 in the order of the panel, tokens, notes

Every file names the digest of its study; a file of another study is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, Locked, Problem, ScoringError, UnknownSchema
from evolvent.files import disk_errors, plain_json, safe_join, write_atomic
from evolvent.run import Evaluation
from evolvent.store.lock import WriterLock
from evolvent.store.log import parse_rows
from evolvent.trajectory import Json, JsonObject

__all__ = [
    "FORMAT",
    "ArmFailure",
    "ArmResult",
    "Key",
    "Outcome",
    "Result",
    "StudyResults",
    "collect_outcomes",
    "hold_lock",
    "panel_sort_key",
    "read_costs",
    "read_json",
]

FORMAT = 1
Outcome = tuple[str, str, bool]  # task id, kind, success
Key = tuple[str, int]  # arm, seed
_LOCK_TIMEOUT_S = 30.0  # for a lock that is held while a small file is written
_TIERS = ("seen", "evo", "combo", "longer")
_TOKENS = ("generated", "computed", "trained", "fed")


@dataclass(frozen=True)
class ArmResult:
    """The result of an arm with one seed.

    Args:
        outcomes: Panel ("world/tier") -> (task id, kind, success) of every task.
        tokens: Costs by name: generated, computed (the one that a budget limits), trained, fed.
        cpu_s: CPU seconds.
        notes: Figures of this arm that the verdict does not need, such as its curve on dev.
    Raises:
        ScoringError: an episode without a success: it is neither won nor lost, so the seed has no result.
        ConfigError: all other problems of the result, together.
    """

    outcomes: Mapping[str, Sequence[Outcome]]
    tokens: Mapping[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    notes: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unscored = {
            panel: num_unscored
            for panel, tasks in self.outcomes.items()
            if (num_unscored := sum(outcome[2] is None for outcome in tasks))
        }
        if unscored:
            counts_text = ", ".join(
                f"{num_unscored} of {len(self.outcomes[panel])} in {panel}" for panel, num_unscored in unscored.items()
            )
            raise ScoringError(
                f"episodes that could not be scored: {counts_text}", hint="read the errors in the run's store"
            )
        problems = [*_panel_problems(self.outcomes), *_cost_problems(self.tokens, self.cpu_s)]
        try:
            json.loads(plain_json(self.notes))
        except (TypeError, RecursionError) as error:
            problems.append(Problem("notes", f"are not JSON values: {error}", "use numbers, text, lists and tables"))
        if problems:
            raise ConfigError(problems)
        normalized = {
            panel: tuple((str(task), str(kind), bool(success)) for task, kind, success in tasks)
            for panel, tasks in self.outcomes.items()
        }
        object.__setattr__(self, "outcomes", normalized)


def _panel_problems(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[Problem]:
    if not outcomes:
        yield Problem("outcomes", "are empty", 'use {"world/tier": [(task id, kind, success), ...]}')
    for panel, tasks in outcomes.items():
        world, _, tier = panel.rpartition("/")
        if not world or not tier:
            yield Problem("outcomes", f"invalid panel {panel!r}", 'expected "world/tier"')
        if len({task for task, _, _ in tasks}) != len(tasks) or not tasks:
            yield Problem("outcomes", f"{panel} has no task, or has a task twice", "give one outcome per task")
        if any(success not in (True, False) for _, _, success in tasks):
            yield Problem("outcomes", f"{panel} has a success that is not a bool", "use true or false")


def _cost_problems(tokens: Mapping[str, int], cpu_s: float) -> Iterator[Problem]:
    for name, count in tokens.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            yield Problem(f"tokens.{name}", f"got {count!r}", "expected a whole number of 0 or more")
    if not isfinite(cpu_s) or cpu_s < 0:
        yield Problem("cpu_s", f"got {cpu_s!r}", "expected 0 or more seconds")


@dataclass(frozen=True)
class ArmFailure:
    """A failure of an arm with one seed: the class of the error and its message."""

    kind: str
    message: str


Result = ArmResult | ArmFailure


def panel_sort_key(panel: str) -> tuple[str, int, str]:
    """Returns the sort key of a panel: by world, then by tier, nearest to the demonstrations first."""
    world, _, tier = panel.rpartition("/")
    return world, _TIERS.index(tier) if tier in _TIERS else len(_TIERS), tier


def collect_outcomes(rows: Iterable[Evaluation]) -> dict[str, tuple[Outcome, ...]]:
    """Converts the evaluations that `Run.evaluate` returns to the outcomes of `Played`.

    Raises:
        ConfigError: two evaluations of one panel. ScoringError: an episode that could not be scored.
    """
    outcomes_by_panel: dict[str, tuple[Outcome, ...]] = {}
    for row in rows:
        panel = f"{row.world}/{row.tier}"
        if panel in outcomes_by_panel:
            raise ConfigError(
                f"two evaluations of {panel}", value=row.split, expected="one split and one round for each panel"
            )
        if row.errors or any(success is None for _, _, success in row.outcomes):
            raise ScoringError(
                f"{row.errors} of {row.n} episodes of {panel} could not be scored",
                hint="read the errors in the run's store",
            )
        outcomes_by_panel[panel] = tuple((task, kind, bool(success)) for task, kind, success in row.outcomes)
    return outcomes_by_panel


def read_costs(run: Path, *, verbs: Sequence[str] = ("collect", "fit")) -> tuple[dict[str, int], float]:
    """Reads the costs of a run's finished stages from its ledger: (tokens, CPU seconds).

    Args:
        run: Folder of a run; a run without a ledger has no costs.
        verbs: Stages that count. Evaluation is left out by default, since every arm is evaluated alike.
    Raises:
        CorruptRecord: a line that cannot be read.
    """
    tokens, cpu_s = dict.fromkeys(_TOKENS, 0), 0.0
    for stage_tokens, stage_cpu_s in parse_rows(run / "stages.jsonl", partial(_parse_cost, verbs=verbs)):
        tokens = {name: count + stage_tokens[name] for name, count in tokens.items()}
        cpu_s += stage_cpu_s
    return tokens, cpu_s


def _parse_cost(row: Mapping[str, Any], *, verbs: Sequence[str]) -> tuple[dict[str, int], float]:
    """Returns the tokens and CPU seconds of a stage; zeros where its verb does not count."""
    if row["verb"] not in verbs:
        return dict.fromkeys(_TOKENS, 0), 0.0
    return {name: int(row["counts"].get(name, 0)) for name in _TOKENS}, float(row["cpu_s"])


@contextmanager
def hold_lock(path: Path, *, wait_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds a lock file as the only process; the kernel releases it when the process dies.

    Raises:
        Locked: another process holds it, after waiting `wait_s` seconds.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = _acquire_lock(path, time.monotonic() + wait_s)
    try:
        yield
    finally:
        lock.release()


def _acquire_lock(path: Path, deadline: float) -> WriterLock:
    while True:
        try:
            return WriterLock(path)
        except Locked:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def read_json(path: Path) -> JsonObject | None:
    """Returns the JSON value of a file, None where there is no such file.

    Raises:
        CorruptRecord: the file is no JSON. UnknownSchema: a newer version wrote it. StoreUnavailable, NoSpace
    """
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else None
    if raw is None:
        return None
    try:
        row: JsonObject = json.loads(raw)
        version = int(row.get("format", 0))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptRecord(
            f"{path} cannot be read", offset=0, hint="remove the file; evolvent computes it again"
        ) from error
    if version > FORMAT:
        raise UnknownSchema(f"{path} was written by a newer version", value=version, expected=f"{FORMAT} or less")
    return row


class StudyResults:
    """The results of one study in its folder.

    Args:
        folder: Folder of the study.
        digest: Digest of the study; a file of another study is refused (`ConfigError`, with both digests).
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder, digest
        self._panels: dict[str, tuple[tuple[str, str], ...]] = {}

    def path(self, arm: str, seed: int) -> Path:
        """Returns the path of the result of an arm and seed."""
        return safe_join(self._folder, f"results/{arm}/{seed}.json")

    def get(self, arm: str, seed: int) -> Result | None:
        """Returns the result of an arm and seed; None where there is none yet.

        Raises:
            ConfigError: it is of another study. CorruptRecord: it cannot be read.
        """
        path = self.path(arm, seed)
        row = self._read_checked(path)
        if row is None:
            return None
        if not self._panels:
            self._read_panels()
        try:
            if "failed" in row:
                return ArmFailure(str(row["failed"]["kind"]), str(row["failed"]["message"]))
            outcomes_by_panel = {
                panel: self._unpack_outcomes(panel, packed) for panel, packed in row["outcomes"].items()
            }
            return ArmResult(outcomes_by_panel, row["tokens"], float(row["cpu_s"]), row["notes"])
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise CorruptRecord(
                f"{path} is not a result: {error}", offset=0, hint="remove the file; evolvent evaluates the arm again"
            ) from error

    def write(self, arm: str, seed: int, *, result: Result) -> None:
        """Writes a result atomically. `accept` must have checked an arm's result before."""
        row: dict[str, Any] = {"format": FORMAT, "study": self._digest, "arm": arm, "seed": seed}
        if isinstance(result, ArmFailure):
            row["failed"] = {"kind": result.kind, "message": result.message}
        else:
            row["outcomes"] = {panel: self._pack_outcomes(panel, tasks) for panel, tasks in result.outcomes.items()}
            row |= {"tokens": dict(result.tokens), "cpu_s": result.cpu_s, "notes": dict(result.notes)}
        write_atomic(self.path(arm, seed), plain_json(row).encode("utf-8", "backslashreplace") + b"\n")

    def accept(self, result: ArmResult) -> ArmResult:
        """Checks that the arm played the tasks of the study: those of a panel must equal the tasks of its first
        result.

        Raises:
            ConfigError: a panel with other tasks or kinds.
        """
        tasks = {
            panel: tuple(sorted((task, kind) for task, kind, _ in rows)) for panel, rows in result.outcomes.items()
        }
        with hold_lock(self._folder / "locks" / ".panels"):
            known_panels = self._read_panels()
            problems = [
                Problem(
                    panel,
                    "was evaluated on different tasks before: "
                    + _describe_difference(known_panels[panel], panel_tasks),
                    "use the same panels for all arms and seeds",
                )
                for panel, panel_tasks in tasks.items()
                if panel in known_panels and known_panels[panel] != panel_tasks
            ]
            if problems:
                raise ConfigError(problems)
            if tasks.keys() - known_panels.keys():
                self._panels = {**known_panels, **tasks}
                rows = {
                    panel: [list(task) for task in stored_tasks] for panel, stored_tasks in sorted(self._panels.items())
                }
                text = plain_json({"format": FORMAT, "study": self._digest, "panels": rows})
                write_atomic(self._folder / "panels.json", text + "\n")
        return result

    def _read_checked(self, path: Path) -> Any:
        row = read_json(path)
        if row is not None and row.get("study") != self._digest:
            raise ConfigError(
                f"{path} belongs to the study {row.get('study')}, not to {self._digest}",
                hint="use another folder for the changed study",
            )
        return row

    def _read_panels(self) -> dict[str, tuple[tuple[str, str], ...]]:
        path = self._folder / "panels.json"
        row = self._read_checked(path) or {"panels": {}}
        try:
            self._panels = {
                panel: tuple((str(task), str(kind)) for task, kind in stored_tasks)
                for panel, stored_tasks in row["panels"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptRecord(
                f"{path} does not hold panels", offset=0, hint="restore the file, or run the study in another folder"
            ) from error
        return self._panels

    def _panel_tasks(self, panel: str) -> tuple[tuple[str, str], ...]:
        known_panels = self._panels if panel in self._panels else self._read_panels()
        if panel not in known_panels:
            raise ValueError(f"panels.json does not know {panel}")
        return known_panels[panel]

    def _pack_outcomes(self, panel: str, tasks: Sequence[Outcome]) -> str:
        successes = {task: success for task, _, success in tasks}
        return "".join("01"[successes[task]] for task, _ in self._panel_tasks(panel))

    def _unpack_outcomes(self, panel: str, packed: str) -> list[Outcome]:
        tasks = self._panel_tasks(panel)
        if len(packed) != len(tasks) or set(packed) - {"0", "1"}:
            raise ValueError(f"{panel} has {len(tasks)} tasks, but not as many outcomes of 0 or 1")
        return [(task, kind, digit == "1") for (task, kind), digit in zip(tasks, packed, strict=True)]


def _describe_difference(known_tasks: Sequence[tuple[str, str]], panel_tasks: Sequence[tuple[str, str]]) -> str:
    num_missing, num_unknown = len(set(known_tasks) - set(panel_tasks)), len(set(panel_tasks) - set(known_tasks))
    return f"{num_missing} of its {len(known_tasks)} are missing, {num_unknown} are others"

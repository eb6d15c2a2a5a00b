"""The runs below a folder: found, told apart by short keys, and read again only when their files have changed.

A key is a digest of the place of a run below the folder. Pages name runs by keys alone, so nothing that a browser sends
is ever part of a path.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from evolvent.errors import ConfigError
from evolvent.view.data import ReportData, read_run
from evolvent.view.queries import TrajectoryIndex
from evolvent.view.values import as_list, as_mapping, as_number, as_text

__all__ = ["Library", "RunPlace", "Tail"]

_FILES = (
    "run.json",
    "metrics.jsonl",
    "results.jsonl",
    "stages.jsonl",
    "evaluations.jsonl",
    "searches.jsonl",
    "credit.json",
    "examples.json",
    "floors.json",
    "agent-eval.json",
)
_MARKS = ("run.json", "stages.jsonl", "metrics.jsonl", "trajectories")
_SKIPPED = frozenset({"stages", "trajectories", "snapshots", "checkpoints", "model", "policy", "trees", "beliefs"})
_DEEPEST, _MOST = 4, 2000  # folders below the one that is shown, and runs
_AGAIN_S = 2.0  # the folder is looked through again after so long
_KEPT = 6  # reports and indexes that are remembered
_TAIL = 1 << 16  # bytes at the end of a file that say how a run stands
_QUIET_S = 120.0  # a run that says "running" and has written nothing for so long is not called live
_LARGEST = 8 << 20  # bytes of a run.json


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run: its key in addresses, its place below the folder, and what `run.json` says of it.

    Attributes:
        changed: when any of its files last did (seconds since the epoch). live: it says that it runs, and wrote lately.
        stamp: changes whenever its files do.
    """

    key: str
    name: str
    folder: Path
    method: str
    state: str
    created: str
    seed: str
    arms: tuple[str, ...]
    changed: float
    live: bool
    stamp: str

    @property
    def store(self) -> Path:
        """The folder of its trajectories."""
        return self.folder / "trajectories"


@dataclass(frozen=True, slots=True)
class Tail:
    """How a run stands, by the last lines of its files; None where they do not say.

    Attributes:
        step: newest update or iteration. loss: there. success: mean over the panels of the newest evaluation.
    """

    step: float | None
    loss: float | None
    success: float | None


class Library:
    """See the module; several threads may ask."""

    def __init__(self, folder: Path) -> None:
        """The runs of a folder, which may itself be one.

        Raises:
            ConfigError: there is no such folder.
        """
        if not folder.is_dir():
            raise ConfigError("there is nothing to view", value=str(folder), expected="a run, or a folder of runs")
        self.folder = folder
        self._lock = Lock()
        self._places: dict[str, Path] = {}
        self._looked = float("-inf")
        self._reports: OrderedDict[str, tuple[str, ReportData]] = OrderedDict()
        self._indexes: OrderedDict[str, TrajectoryIndex] = OrderedDict()
        self._tails: dict[str, tuple[str, Tail]] = {}  # of the runs that there are

    def runs(self) -> list[RunPlace]:
        """All of them, what changed last first."""
        with self._lock:
            if time.monotonic() - self._looked > _AGAIN_S:
                found = _found(self.folder)
                self._places = {_key(self.folder, path): path for path in found}
                self._tails = {key: tail for key, tail in self._tails.items() if key in self._places}
                self._looked = time.monotonic()
            places = list(self._places.items())
        return sorted(
            (_place(self.folder, key, path) for key, path in places), key=lambda run: (-run.changed, run.name)
        )

    def run(self, key: str) -> RunPlace | None:
        """The run of a key; None: there is none (any more)."""
        with self._lock:
            path = self._places.get(key)
        if path is None:
            return next((run for run in self.runs() if run.key == key), None)
        return _place(self.folder, key, path) if path.is_dir() else None

    def report(self, run: RunPlace) -> ReportData:
        """What its report shows, read again where a file has changed.

        Raises:
            ConfigError, StoreUnavailable: it is gone, or cannot be read.
        """
        with self._lock:
            known = self._reports.get(run.key)
        if known is not None and known[0] == run.stamp:
            return known[1]
        data = read_run(run.folder)
        with self._lock:
            self._reports[run.key] = run.stamp, data
            self._reports.move_to_end(run.key)
            while len(self._reports) > _KEPT:
                self._reports.popitem(last=False)
        return data

    def index(self, run: RunPlace) -> TrajectoryIndex:
        """The index of its trajectories, which remembers what it has read."""
        with self._lock:
            found = self._indexes.setdefault(run.key, TrajectoryIndex(run.store))
            self._indexes.move_to_end(run.key)
            while len(self._indexes) > _KEPT:
                self._indexes.popitem(last=False)
            return found

    def tail(self, run: RunPlace) -> Tail:
        """How it stands, from a few kilobytes, read again where a file has changed."""
        with self._lock:
            known = self._tails.get(run.key)
        if known is None or known[0] != run.stamp:
            known = run.stamp, _tail(run)
            with self._lock:
                self._tails[run.key] = known
        return known[1]


# ---------------------------------------------------------------------- finding


def _found(folder: Path) -> list[Path]:
    """Folders of runs, no deeper than is useful; links are not followed, and a run holds no further runs."""
    found: list[Path] = []
    waiting = [(folder, 0)]
    while waiting and len(found) < _MOST:
        path, depth = waiting.pop()
        try:
            inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(path)}
        except OSError:
            continue  # a folder that may not be read, or is gone
        if any(mark in inside for mark in _MARKS):
            found.append(path)
        elif depth < _DEEPEST:
            below = sorted(name for name, is_folder in inside.items() if is_folder and name not in _SKIPPED)
            waiting += [(path / name, depth + 1) for name in reversed(below) if not name.startswith(".")]
    return found


def _key(folder: Path, path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.relative_to(folder))).hexdigest()[:12]


def _place(folder: Path, key: str, path: Path) -> RunPlace:
    info, changes = _info(path / "run.json"), list(_changes(path))
    name = str(path.relative_to(folder)) if path != folder else folder.resolve().name
    changed, state = max((when for _, when, _ in changes), default=0.0), as_text(info.get("state"))
    return RunPlace(
        key=key,
        name=name,
        folder=path,
        method=as_text(info.get("method")),
        state=state,
        created=as_text(info.get("created")),
        seed=as_text(info.get("seed")),
        arms=tuple(map(as_text, as_list(info.get("arms")))),
        changed=changed,
        live=state == "running" and time.time() - changed < _QUIET_S,
        stamp=hashlib.sha256(repr(changes).encode()).hexdigest()[:16],
    )


def _changes(path: Path) -> Iterator[tuple[str, float, int]]:
    """(name, when, bytes) of its files, and of what its store is written to."""
    store = path / "trajectories"
    logs = sorted((store / "log").glob("seg-*.jsonl"))[-1:]
    more = [store / "manifest.jsonl", *logs, path / "trees", path / "beliefs"]
    for file in (*(path / name for name in _FILES), *more):
        try:
            state = file.stat()
        except OSError:
            continue
        yield file.name, state.st_mtime, state.st_size


def _info(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            return as_mapping(json.loads(file.read(_LARGEST)))
    except (OSError, ValueError, RecursionError):
        return {}


def _tail(run: RunPlace) -> Tail:
    rows = list(_last_rows(run.folder / "metrics.jsonl"))
    step = next((number for row in rows if (number := as_number(row.get("step"))) is not None), None)
    loss = next((number for row in rows if (number := as_number(row.get("loss"))) is not None), None)
    means = [as_number(row.get("mean")) for row in _newest_stage(run.folder / "results.jsonl")]
    known = [mean for mean in means if mean is not None]
    return Tail(step, loss, sum(known) / len(known) if known and len(known) == len(means) else None)


def _newest_stage(path: Path) -> list[Mapping[str, object]]:
    """All rows of the newest stage: with their outcomes they may be larger than a tail. None of them if too large."""
    most = _TAIL
    while most <= _LARGEST:
        rows = list(_last_rows(path, most))
        own = [row for row in rows if row.get("stage") == rows[0].get("stage")]
        if len(own) < len(rows) or not path.is_file() or path.stat().st_size <= most:
            return own
        most *= 4
    return []


def _last_rows(path: Path, most: int = _TAIL) -> Iterator[Mapping[str, object]]:
    """The JSON objects in the last bytes of a file, the newest first."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - most)
            file.seek(begin)
            lines = file.read(most).split(b"\n")[1 if begin else 0 :]
    except OSError:
        return
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row

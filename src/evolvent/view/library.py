"""The runs below a folder: discovered, identified by short keys, and read again only when their files have changed.

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

__all__ = ["Library", "RunEntry", "RunStatus"]

_WATCHED_FILES = (
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
_RUN_MARKERS = ("run.json", "stages.jsonl", "metrics.jsonl", "trajectories")
_SKIPPED_FOLDERS = frozenset(
    {"stages", "trajectories", "snapshots", "checkpoints", "model", "policy", "trees", "beliefs"}
)
_MAX_DEPTH, _MAX_RUNS = 4, 2000  # folders below the one that is shown, and runs
_RESCAN_S = 2.0  # the folder is looked through again after so long
_MAX_CACHED = 6  # reports and indexes that are remembered
_TAIL_BYTES = 1 << 16  # bytes at the end of a file that say how a run stands
_LIVE_S = 120.0  # a run that says "running" and has written nothing for so long is not called live
_MAX_INFO_BYTES = 8 << 20  # bytes of a run.json
_CONTROL = "control"  # the arm that a method is compared with


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run: its key in addresses, its path below the folder, and the fields of its `run.json`.

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
        """Returns the folder of its trajectories."""
        return self.folder / "trajectories"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run, from the last lines of its files; None where they lack a number.

    Attributes:
        step: newest update or iteration. loss: there. success: mean over the panels of the newest evaluation that is
            not the control's.
    """

    step: float | None
    loss: float | None
    success: float | None


class Library:
    """A cache of runs, reports and indexes; several threads may query it."""

    def __init__(self, folder: Path) -> None:
        """Opens a folder of runs, which may itself be a run.

        Raises:
            ConfigError: there is no such folder.
        """
        if not folder.is_dir():
            raise ConfigError("nothing to view in the folder", value=str(folder), expected="a run, or a folder of runs")
        self.folder = folder
        self._lock = Lock()
        self._places: dict[str, Path] = {}
        self._looked = float("-inf")
        self._reports: OrderedDict[str, tuple[str, ReportData]] = OrderedDict()
        self._indexes: OrderedDict[str, TrajectoryIndex] = OrderedDict()
        self._tails: dict[str, tuple[str, RunStatus]] = {}  # of the runs that there are

    def runs(self) -> list[RunEntry]:
        """Returns all runs, the most recently changed first."""
        with self._lock:
            if time.monotonic() - self._looked > _RESCAN_S:
                paths = _find_runs(self.folder)
                self._places = {_run_key(self.folder, path): path for path in paths}
                self._tails = {key: tail for key, tail in self._tails.items() if key in self._places}
                self._looked = time.monotonic()
            keyed_paths = list(self._places.items())
        return sorted(
            (_read_entry(self.folder, key, path) for key, path in keyed_paths), key=lambda run: (-run.changed, run.name)
        )

    def run(self, key: str) -> RunEntry | None:
        """Returns the run of a key; None if it does not exist (any more)."""
        with self._lock:
            path = self._places.get(key)
        if path is None:
            return next((run for run in self.runs() if run.key == key), None)
        return _read_entry(self.folder, key, path) if path.is_dir() else None

    def report(self, run: RunEntry) -> ReportData:
        """Returns the data of its report, read again if a file has changed.

        Raises:
            ConfigError, StoreUnavailable: it is gone, or cannot be read.
        """
        with self._lock:
            cached = self._reports.get(run.key)
        if cached is not None and cached[0] == run.stamp:
            return cached[1]
        data = read_run(run.folder)
        with self._lock:
            self._reports[run.key] = run.stamp, data
            self._reports.move_to_end(run.key)
            while len(self._reports) > _MAX_CACHED:
                self._reports.popitem(last=False)
        return data

    def index(self, run: RunEntry) -> TrajectoryIndex:
        """Returns the index of its trajectories, which caches the rows it has read."""
        with self._lock:
            trajectory_index = self._indexes.setdefault(run.key, TrajectoryIndex(run.store))
            self._indexes.move_to_end(run.key)
            while len(self._indexes) > _MAX_CACHED:
                self._indexes.popitem(last=False)
            return trajectory_index

    def status(self, run: RunEntry) -> RunStatus:
        """Returns the status of the run, from a few kilobytes, read again if a file has changed."""
        with self._lock:
            cached = self._tails.get(run.key)
        if cached is None or cached[0] != run.stamp:
            cached = run.stamp, _read_status(run)
            with self._lock:
                self._tails[run.key] = cached
        return cached[1]


# ---------------------------------------------------------------------- finding


def _find_runs(folder: Path) -> list[Path]:
    """Finds the folders of runs, up to a depth limit; links are not followed, and a run holds no further runs."""
    paths: list[Path] = []
    pending = [(folder, 0)]
    while pending and len(paths) < _MAX_RUNS:
        path, depth = pending.pop()
        try:
            entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(path)}
        except OSError:
            continue  # a folder that may not be read, or is gone
        if any(marker in entries for marker in _RUN_MARKERS):
            paths.append(path)
        elif depth < _MAX_DEPTH:
            subfolders = sorted(
                name for name, is_folder in entries.items() if is_folder and name not in _SKIPPED_FOLDERS
            )
            pending += [(path / name, depth + 1) for name in reversed(subfolders) if not name.startswith(".")]
    return paths


def _run_key(folder: Path, path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.relative_to(folder))).hexdigest()[:12]


def _read_entry(folder: Path, key: str, path: Path) -> RunEntry:
    info, changes = _read_info(path / "run.json"), list(_list_changes(path))
    name = str(path.relative_to(folder)) if path != folder else folder.resolve().name
    changed, state = max((changed_at for _, changed_at, _ in changes), default=0.0), as_text(info.get("state"))
    return RunEntry(
        key=key,
        name=name,
        folder=path,
        method=as_text(info.get("method")),
        state=state,
        created=as_text(info.get("created")),
        seed=as_text(info.get("seed")),
        arms=tuple(map(as_text, as_list(info.get("arms")))),
        changed=changed,
        live=state == "running" and time.time() - changed < _LIVE_S,
        stamp=hashlib.sha256(repr(changes).encode()).hexdigest()[:16],
    )


def _list_changes(path: Path) -> Iterator[tuple[str, float, int]]:
    """Yields (name, time of change, bytes) of its files, and of the files that its store is written to."""
    store = path / "trajectories"
    logs = sorted((store / "log").glob("seg-*.jsonl"))[-1:]
    further_paths = [store / "manifest.jsonl", *logs, path / "trees", path / "beliefs"]
    for file in (*(path / name for name in _WATCHED_FILES), *further_paths):
        try:
            state = file.stat()
        except OSError:
            continue
        yield file.name, state.st_mtime, state.st_size


def _read_info(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            return as_mapping(json.loads(file.read(_MAX_INFO_BYTES)))
    except (OSError, ValueError, RecursionError):
        return {}


def _read_status(run: RunEntry) -> RunStatus:
    rows = list(_read_last_rows(run.folder / "metrics.jsonl"))
    trained_rows = [row for row in rows if row.get("kind") != "evaluate"]  # a measurement counts its own steps
    step = next((n for row in (*trained_rows, *rows) if (n := as_number(row.get("step"))) is not None), None)
    loss = next((number for row in rows if (number := as_number(row.get("loss"))) is not None), None)
    means = [as_number(row.get("mean")) for row in _newest_stage_rows(run.folder / "results.jsonl")]
    known_means = [mean for mean in means if mean is not None]
    return RunStatus(
        step, loss, sum(known_means) / len(known_means) if known_means and len(known_means) == len(means) else None
    )


def _newest_stage_rows(path: Path) -> list[Mapping[str, object]]:
    """Returns all rows of the newest stage that is not the control's; of the control's where there is no other.

    With their outcomes they may exceed a tail. Empty if too large.
    """
    max_bytes = _TAIL_BYTES
    while max_bytes <= _MAX_INFO_BYTES:
        rows = list(_read_last_rows(path, max_bytes))
        is_whole = not path.is_file() or path.stat().st_size <= max_bytes
        method_rows = [row for row in rows if row.get("arm") != _CONTROL]
        rows = method_rows if method_rows or not is_whole else rows
        stage_rows = [row for row in rows if row.get("stage") == rows[0].get("stage")]
        if len(stage_rows) < len(rows) or is_whole:
            return stage_rows
        max_bytes *= 4
    return []


def _read_last_rows(path: Path, max_bytes: int = _TAIL_BYTES) -> Iterator[Mapping[str, object]]:
    """Yields the JSON objects in the last bytes of a file, the newest first."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - max_bytes)
            file.seek(begin)
            lines = file.read(max_bytes).split(b"\n")[1 if begin else 0 :]
    except OSError:
        return
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row

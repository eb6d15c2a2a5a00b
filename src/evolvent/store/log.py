"""The live part of a store: append-only segments of lines, one writer, one `os.write` a line.

A killed process loses at most the line being written; only a loss of power costs what was written since the last
`fsync`, at most 200 ms while episodes keep ending. Every writer begins segments of its own. When a segment is full, the
lines of episodes that are still open are copied to the next one, so that each segment can be read, and sealed, alone.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from evolvent.errors import CorruptRecord, NoSpace
from evolvent.files import TEMPORARY, disk_error, disk_errors, ensure_space, sync_folder
from evolvent.store.frame import Line, parse, read_lines, to_line
from evolvent.store.schema import INTERRUPTED, interrupted

__all__ = ["Disk", "LogWriter", "Record", "log_folder", "read_records", "segment_path", "segments"]

_NAME = re.compile(r"seg-(\d{6,})\.jsonl")
_RESERVE = 1 << 14  # bytes that must be free to begin a segment


@dataclass(frozen=True, slots=True)
class Disk:
    """What the writer asks of the system; handed in to simulate failing disks and jumping clocks.

    Args:
        write: appends bytes to a file descriptor, returns how many it took.
        sync: waits until a file descriptor's data is on disk.
        clock: seconds.
        sync_every: seconds between two syncs; 0 syncs at every end of an episode.
    """

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = os.fsync
    clock: Callable[[], float] = time.monotonic
    sync_every: float = 0.2


def log_folder(root: Path) -> Path:
    """Where the live segments are."""
    return root / "log"


def segment_path(root: Path, number: int) -> Path:
    """The file of a live segment."""
    return log_folder(root) / f"seg-{number:06d}.jsonl"


def segments(root: Path) -> list[int]:
    """The numbers of the live segments, in the order they were written."""
    with disk_errors(root):
        names = [path.name for path in log_folder(root).iterdir()] if log_folder(root).exists() else []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


class LogWriter:
    """Appends lines to segments from number `first` on. The caller holds the store's lock; its threads may take turns.

    Raises (all methods that write):
        NoSpace: the disk is full; the file ends with its last whole line and writing may be tried again.
        StoreUnavailable: the file cannot be written.
    """

    def __init__(self, root: Path, *, first: int, run: str, segment_bytes: int, disk: Disk) -> None:
        self._root, self._run, self._limit, self._disk = root, run, segment_bytes, disk
        self._next, self._handle, self._path = first, -1, segment_path(root, first)
        self._size = self._carried = self._notes = 0
        self._unsynced, self._synced, self._one = False, disk.clock(), RLock()
        self.open: dict[str, list[bytes]] = {}  # the lines of episodes that have begun and not ended

    @property
    def number(self) -> int:
        """The segment being written, or the next one where none is open."""
        with self._one:
            return self._next - 1 if self._handle >= 0 else self._next

    def whole(self, traj: str, fields: dict[str, Any]) -> None:
        """Append a finished episode: one line."""
        self._append(to_line(fields, run=self._run, traj=traj))

    def begin(self, traj: str, fields: dict[str, Any]) -> None:
        line = to_line(fields, run=self._run, traj=traj, kind="begin")
        with self._one:
            self._append(line)
            self.open[traj] = [line]

    def step(self, traj: str, fields: dict[str, Any]) -> None:
        lines = self.open[traj]
        line = to_line({"step": fields}, run=self._run, traj=traj, n=len(lines), kind="step")
        with self._one:
            self._append(line)
            lines.append(line)

    def end(self, traj: str, fields: dict[str, Any]) -> None:
        line = to_line(fields, run=self._run, traj=traj, n=len(self.open[traj]), kind="end")
        with self._one:
            self._append(line)
            del self.open[traj]

    def annotate(self, traj: str, fields: dict[str, Any]) -> None:
        """Append an annotation; its `n` counts the annotations of this writer."""
        with self._one:
            self._append(to_line(fields, run=self._run, traj=traj, n=self._notes, kind="annotation"))
            self._notes += 1

    def settle(self) -> None:
        """After the end of an episode: sync, unless the last sync is less than `sync_every` seconds ago."""
        # Also where the clock jumped back: a sync too many is harmless, a sync that never comes is not.
        if not 0 <= self._disk.clock() - self._synced < self._disk.sync_every:
            self.flush()

    def flush(self) -> None:
        """Wait until everything written is on disk."""
        with self._one, disk_errors(self._path):
            if self._handle >= 0 and self._unsynced:
                self._disk.sync(self._handle)
                self._unsynced, self._synced = False, self._disk.clock()

    def rotate(self) -> None:
        """End this segment; the next line begins a new one, after the lines of the open episodes."""
        with self._one:
            self.close()
            if self.open:
                self._start()

    def close(self) -> None:
        """End this segment. What is open stays open: a reader sees it as interrupted."""
        with self._one:
            if self._handle < 0:
                return
            try:
                self.flush()
            finally:
                os.close(self._handle)
                self._handle = -1

    def _start(self) -> None:
        folder, carries = log_folder(self._root), bool(self.open)
        ensure_space(folder, _RESERVE)
        self._path = segment_path(self._root, self._next)
        # Lines that are carried on are whole in the segment before: half of them here would hide those from readers.
        path = self._path.with_name(self._path.name + TEMPORARY) if carries else self._path
        with disk_errors(self._path):
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._size, begun = 0, False
        try:
            if carries:
                path = self._carry(path)
            with disk_errors(folder):
                sync_folder(folder)
            begun = True
        finally:
            if not begun:
                os.close(self._handle)
                self._handle = -1
                path.unlink()
        self._next += 1
        self._carried = self._size

    def _carry(self, path: Path) -> Path:
        """Write the lines of the open episodes under a name that nobody reads, then give it the segment's."""
        for line in (line for lines in self.open.values() for line in lines):
            self._write(line)
        self.flush()
        with disk_errors(self._path):
            if self._path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            return path.rename(self._path)

    def _append(self, line: bytes) -> None:
        with self._one:
            if self._handle >= 0 and self._size - self._carried >= self._limit:
                self.rotate()
            if self._handle < 0:
                self._start()
            self._write(line)

    def _write(self, line: bytes) -> None:
        took = 0
        try:
            took = self._disk.write(self._handle, line)
        except OSError as error:
            raise disk_error(error, self._path) from error
        finally:
            if took != len(line):  # also after an interrupt: the file must end with a whole line
                os.ftruncate(self._handle, self._size)
        if took != len(line):
            raise NoSpace(f"only part of a record fits into {self._path}", value=took, expected=len(line))
        self._size += took
        self._unsynced = True


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory or annotation of a segment: its id, and its fields not yet decoded.

    `lines` are one line for a whole episode or an annotation, else those of a streamed one.
    """

    id: str
    kind: str
    lines: tuple[Line, ...]

    @property
    def ended(self) -> bool:
        return self.lines[-1].kind != "begin" and self.lines[-1].kind != "step"

    @property
    def interrupted(self) -> bool:
        """Whether a later record of the same id takes its place."""
        if not self.ended:
            return True
        if b'"interrupted"' not in self.lines[-1].raw:
            return False
        error = parse(self.lines[-1]).get("error") or [None]
        return bool(error[0] == INTERRUPTED)

    def fields(self) -> dict[str, Any]:
        """All fields, those of a streamed episode put together; an open one ends by an error."""
        first = parse(self.lines[0])
        if len(self.lines) == 1 and self.ended:
            return first
        rows = [parse(line) for line in self.lines[1:]]
        last = rows.pop() if self.ended else {}
        steps = [row["step"] for row in rows]
        if not self.ended:
            last = {"ended_by": "error", "error": interrupted(len(steps))}
        meta = {**first.get("meta", {}), **last.get("meta", {})}
        return {**first, **last, "steps": steps, **({"meta": meta} if meta else {})}


def read_records(path: Path, *, torn: bool, prefix: str = "", annotations: bool = False) -> Iterator[Record]:
    """The records of one segment in the order in which they ended; open ones come last.

    Args:
        torn: see `read_lines`.
        prefix: only trajectories whose id begins so.
        annotations: those instead of the trajectories.
    Raises:
        CorruptRecord: a damaged line, or lines of an episode out of order.
    """
    begun: dict[str, list[Line]] = {}
    for line in read_lines(path, torn=torn):
        if (line.kind == "annotation") != annotations or not line.traj.startswith(prefix):
            continue
        if line.kind in ("trajectory", "annotation"):
            begun.pop(line.traj, None)
            yield Record(line.traj, line.kind, (line,))
        elif line.kind == "begin":
            begun[line.traj] = [line]
        elif line.n != len(begun.get(line.traj, ())) or line.kind not in ("step", "end"):
            raise CorruptRecord(
                f"{path} misses a line of trajectory {line.traj!r} before byte {line.offset}",
                offset=line.offset,
                value=f"{line.kind} {line.n}",
                hint="restore the file from a copy",
            )
        else:
            begun[line.traj].append(line)
            if line.kind == "end":
                yield Record(line.traj, "trajectory", tuple(begun.pop(line.traj)))
    for traj, lines in begun.items():
        yield Record(traj, "trajectory", tuple(lines))

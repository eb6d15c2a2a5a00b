"""The live part of a store: append-only segments of lines, one writer, one `os.write` a line.

A killed process loses at most the line being written; only a power failure loses the lines written since the last
`fsync`, at most 200 ms while episodes keep ending. Every writer begins its own segments. When a segment is full, the
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

from evolvent.errors import CorruptRecord, NoSpace
from evolvent.files import TEMPORARY_SUFFIX, disk_error, disk_errors, ensure_space, sync_folder
from evolvent.store.frame import RecordLine, encode_line, parse_line, read_lines
from evolvent.store.schema import INTERRUPTED, interruption_error
from evolvent.trajectory import JsonObject

__all__ = ["DiskOperations", "LogWriter", "Record", "list_segments", "log_folder", "read_records", "segment_path"]

_NAME = re.compile(r"seg-(\d{6,})\.jsonl")
_MIN_FREE_BYTES = 1 << 14  # bytes that must be free to begin a segment


@dataclass(frozen=True, slots=True)
class DiskOperations:
    """System calls of the writer; passed in to simulate failing disks and jumping clocks.

    Args:
        write: appends bytes to a file descriptor, returns the number of bytes written.
        sync: waits until a file descriptor's data is on disk.
        clock: returns seconds.
        sync_every: seconds between two syncs; 0 syncs at every end of an episode.
    """

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = os.fsync
    clock: Callable[[], float] = time.monotonic
    sync_every: float = 0.2


def log_folder(root: Path) -> Path:
    """Returns the folder of the live segments."""
    return root / "log"


def segment_path(root: Path, number: int) -> Path:
    """Returns the file of a live segment."""
    return log_folder(root) / f"seg-{number:06d}.jsonl"


def list_segments(root: Path) -> list[int]:
    """Returns the numbers of the live segments, in the order in which they were written."""
    with disk_errors(root):
        names = [path.name for path in log_folder(root).iterdir()] if log_folder(root).exists() else []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


class LogWriter:
    """Appends lines to segments from number `first` on. The caller holds the store's lock; its threads may take turns.

    Raises (all methods that write):
        NoSpace: the disk is full; the file ends with its last whole line and writing may be tried again.
        StoreUnavailable: the file cannot be written.
    """

    def __init__(self, root: Path, *, first: int, run: str, segment_bytes: int, disk: DiskOperations) -> None:
        self._root, self._run, self._limit, self._disk = root, run, segment_bytes, disk
        self._next, self._handle, self._path = first, -1, segment_path(root, first)
        self._size = self._carried = self._notes = 0
        self._unsynced, self._synced, self._one = False, disk.clock(), RLock()
        self.open: dict[str, list[bytes]] = {}  # the lines of episodes that have begun and not ended

    @property
    def number(self) -> int:
        """Returns the segment being written, or the next one where none is open."""
        with self._one:
            return self._next - 1 if self._handle >= 0 else self._next

    def append_episode(self, trajectory_id: str, fields: JsonObject) -> None:
        """Appends a finished episode: one line."""
        self._append(encode_line(fields, run=self._run, traj=trajectory_id))

    def begin(self, trajectory_id: str, fields: JsonObject) -> None:
        line = encode_line(fields, run=self._run, traj=trajectory_id, kind="begin")
        with self._one:
            self._append(line)
            self.open[trajectory_id] = [line]

    def step(self, trajectory_id: str, fields: JsonObject) -> None:
        lines = self.open[trajectory_id]
        line = encode_line({"step": fields}, run=self._run, traj=trajectory_id, n=len(lines), kind="step")
        with self._one:
            self._append(line)
            lines.append(line)

    def end(self, trajectory_id: str, fields: JsonObject) -> None:
        line = encode_line(fields, run=self._run, traj=trajectory_id, n=len(self.open[trajectory_id]), kind="end")
        with self._one:
            self._append(line)
            del self.open[trajectory_id]

    def annotate(self, trajectory_id: str, fields: JsonObject) -> None:
        """Appends an annotation; its `n` counts the annotations of this writer."""
        with self._one:
            self._append(encode_line(fields, run=self._run, traj=trajectory_id, n=self._notes, kind="annotation"))
            self._notes += 1

    def sync_if_due(self) -> None:
        """Waits until the data is on disk, unless the last sync is less than `sync_every` seconds ago."""
        # Also where the clock jumped back: a sync too many is harmless, a sync that never comes is not.
        if not 0 <= self._disk.clock() - self._synced < self._disk.sync_every:
            self.flush()

    def flush(self) -> None:
        """Waits until all written data is on disk."""
        with self._one, disk_errors(self._path):
            if self._handle >= 0 and self._unsynced:
                self._disk.sync(self._handle)
                self._unsynced, self._synced = False, self._disk.clock()

    def rotate(self) -> None:
        """Ends this segment; the next line begins a new one, after the lines of the open episodes."""
        with self._one:
            self.close()
            if self.open:
                self._start_segment()

    def close(self) -> None:
        """Ends this segment. Open episodes stay open: a reader sees them as interrupted."""
        with self._one:
            if self._handle < 0:
                return
            try:
                self.flush()
            finally:
                os.close(self._handle)
                self._handle = -1

    def _start_segment(self) -> None:
        folder, has_open_episodes = log_folder(self._root), bool(self.open)
        ensure_space(folder, _MIN_FREE_BYTES)
        self._path = segment_path(self._root, self._next)
        # Lines that are carried on are whole in the segment before: half of them here would hide those from readers.
        path = self._path.with_name(self._path.name + TEMPORARY_SUFFIX) if has_open_episodes else self._path
        with disk_errors(self._path):
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._size, is_started = 0, False
        try:
            if has_open_episodes:
                path = self._copy_open_episodes(path)
            with disk_errors(folder):
                sync_folder(folder)
            is_started = True
        finally:
            if not is_started:
                os.close(self._handle)
                self._handle = -1
                path.unlink()
        self._next += 1
        self._carried = self._size

    def _copy_open_episodes(self, path: Path) -> Path:
        """Writes the lines of the open episodes under a name that no reader opens, then renames the file to the
        segment's name.
        """
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
                self._start_segment()
            self._write(line)

    def _write(self, line: bytes) -> None:
        num_written = 0
        try:
            num_written = self._disk.write(self._handle, line)
        except OSError as error:
            raise disk_error(error, self._path) from error
        finally:
            if num_written != len(line):  # also after an interrupt: the file must end with a whole line
                os.ftruncate(self._handle, self._size)
        if num_written != len(line):
            raise NoSpace(f"only part of a record fits into {self._path}", value=num_written, expected=len(line))
        self._size += num_written
        self._unsynced = True


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory or annotation of a segment: its id, and its fields not yet decoded.

    `lines` are one line for a whole episode or an annotation, else the lines of a streamed episode.
    """

    id: str
    kind: str
    lines: tuple[RecordLine, ...]

    @property
    def is_ended(self) -> bool:
        return self.lines[-1].kind != "begin" and self.lines[-1].kind != "step"

    @property
    def is_interrupted(self) -> bool:
        """Returns whether a later record of the same id replaces it."""
        if not self.is_ended:
            return True
        if b'"interrupted"' not in self.lines[-1].raw:
            return False
        error = parse_line(self.lines[-1]).get("error") or [None]
        return bool(error[0] == INTERRUPTED)

    def fields(self) -> JsonObject:
        """Returns all fields, those of a streamed episode put together; an open episode ends with an error."""
        first = parse_line(self.lines[0])
        if len(self.lines) == 1 and self.is_ended:
            return first
        rows = [parse_line(line) for line in self.lines[1:]]
        last = rows.pop() if self.is_ended else {}
        steps = [row["step"] for row in rows]
        if not self.is_ended:
            last = {"ended_by": "error", "error": interruption_error(len(steps))}
        meta = {**first.get("meta", {}), **last.get("meta", {})}
        return {**first, **last, "steps": steps, **({"meta": meta} if meta else {})}


def read_records(path: Path, *, torn: bool, prefix: str = "", annotations: bool = False) -> Iterator[Record]:
    """Yields the records of one segment in the order in which they ended; open ones come last.

    Args:
        torn: see `read_lines`.
        prefix: only trajectories whose id begins with it.
        annotations: yield annotations instead of trajectories.
    Raises:
        CorruptRecord: a damaged line, or lines of an episode out of order.
    """
    open_lines: dict[str, list[RecordLine]] = {}
    for line in read_lines(path, torn=torn):
        if (line.kind == "annotation") != annotations or not line.traj.startswith(prefix):
            continue
        if line.kind in ("trajectory", "annotation"):
            open_lines.pop(line.traj, None)
            yield Record(line.traj, line.kind, (line,))
        elif line.kind == "begin":
            open_lines[line.traj] = [line]
        elif line.n != len(open_lines.get(line.traj, ())) or line.kind not in ("step", "end"):
            raise CorruptRecord(
                f"{path} misses a line of trajectory {line.traj!r} before byte {line.offset}",
                offset=line.offset,
                value=f"{line.kind} {line.n}",
                hint="restore the file from a copy",
            )
        else:
            open_lines[line.traj].append(line)
            if line.kind == "end":
                yield Record(line.traj, "trajectory", tuple(open_lines.pop(line.traj)))
    for trajectory_id, lines in open_lines.items():
        yield Record(trajectory_id, "trajectory", tuple(lines))

"""The live part of a store: append-only segments of lines, one writer, one `os.write` a line.

A killed process loses at most the line being written; only a power failure loses the lines written since the last
`fsync`, at most 200 ms while episodes keep ending. Every writer begins its own segments. When a segment is full, the
lines of episodes that are still open are copied to the next one, so that each segment can be read, and sealed, alone.

One record, one line: compact JSON that begins with a fixed header and ends with the CRC-32 of the rest.

    {"v":1,"run":"r","traj":"t","n":0,"kind":"trajectory", ... ,"crc":123456789}

`n` counts a trajectory's lines. The checksum is of the line without the `crc` field and without the newline. The fixed
order of the header lets a reader find a record's id without parsing the whole line.

The ledger of a run: a line for every finished stage, and the cost so far of unfinished stages.

    stages.jsonl               one row a finished stage, by its key
    stages/NAME/spent.json     the cost of an interrupted try of a stage: added up when the stage is finished

So the cost of a stage does not depend on how often it was interrupted. The cost of a killed process since its last
note is lost with it.

Restores a store after a kill: whole records are kept, torn ones are dropped and counted.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from evolvent.errors import CorruptRecord, NoSpace, SampleInvalid, UnknownSchema
from evolvent.files import (
    TEMPORARY_SUFFIX,
    append_line,
    disk_error,
    disk_errors,
    ensure_space,
    plain_json,
    sync_folder,
    write_atomic,
)
from evolvent.store.schema import INTERRUPTED, interruption_error
from evolvent.trajectory import JsonObject

__all__ = [
    "SCHEMA_VERSION",
    "DiskOperations",
    "Ledger",
    "LogWriter",
    "Record",
    "RecordLine",
    "RecoveryReport",
    "encode_line",
    "find_last_line_end",
    "list_segments",
    "log_folder",
    "parse_line",
    "parse_rows",
    "read_lines",
    "read_records",
    "read_rows",
    "read_stage_cost",
    "repair_log",
    "segment_path",
    "write_stage_cost",
]

T = TypeVar("T")


def parse_rows(path: Path, parse: Callable[[JsonObject], T]) -> Iterator[T]:
    """Yields what `parse` makes of each row of a JSON-lines file; there are no rows where the file does not exist.

    Text after the last newline is torn (its writer was killed) and left out.

    Raises:
        CorruptRecord: a broken line before it, a line that is not an object, or a row from which `parse` cannot make
            anything (it raises ValueError, KeyError, TypeError or AttributeError).
    """
    with disk_errors(path):
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    offset = 0
    for line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise CorruptRecord(f"{path} has a line that is not an object", offset=offset, value=line[:80])
            parsed_row = parse(row)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRecord(f"{path} has a broken line", offset=offset, value=line[:80]) from error
        yield parsed_row
        offset += len(line) + 1


def read_rows(path: Path) -> Sequence[JsonObject]:
    """Reads the rows of a JSON-lines file; see `parse_rows`."""
    return list(parse_rows(path, lambda row: row))


class Ledger:
    """The finished stages of a run, by key.

    Args:
        folder: the folder of the run.
        writing: whether stages that are recorded are written; otherwise they stay in memory.
    Raises:
        CorruptRecord: `stages.jsonl` is not a ledger.
    """

    def __init__(self, folder: Path, *, writing: bool = True) -> None:
        self._path, self._writing = folder / "stages.jsonl", writing
        self._rows: dict[str, dict[str, Any]] = {}
        for row in read_rows(self._path):
            if not isinstance(row.get("key"), str):
                raise CorruptRecord(
                    f"{self._path} has a row that is not a finished stage", offset=0, value=str(row)[:80]
                )
            self._rows[row["key"]] = dict(row)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def key_version(self) -> int:
        """Returns the newest version of the keys of its rows; rows without one are of version 1."""
        return max((int(row.get("key_version", 1)) for row in self._rows.values()), default=1)

    def get(self, key: str) -> JsonObject | None:
        """Returns the row of a finished stage, None if the stage is not finished."""
        return self._rows.get(key)

    def append(self, row: JsonObject) -> None:
        """Records a finished stage; it is on disk when this returns."""
        if self._writing:
            append_line(self._path, row)
        self._rows[row["key"]] = dict(row)


def read_stage_cost(stage: Path) -> dict[str, float]:
    """Returns the cost of interrupted tries of a stage, by name; empty if there were none."""
    path = stage / "spent.json"
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b"{}"
    try:
        return {str(name): float(value) for name, value in json.loads(raw).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"{path} cannot be read", offset=0, hint="remove it; only the cost of the attempt is lost"
        ) from error


def write_stage_cost(stage: Path, cost: Mapping[str, float]) -> None:
    """Records the cost of a stage so far."""
    write_atomic(stage / "spent.json", plain_json(dict(cost)))


SCHEMA_VERSION = 1
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_HEADER = re.compile(rb'\{"v":(\d+),"run":' + _TEXT + rb',"traj":' + _TEXT + rb',"n":(\d+),"kind":"(\w+)"')
_CRC = b',"crc":'
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RecordLine:
    """One verified line: its offset in the file, its header, and its bytes without the newline."""

    offset: int
    traj: str
    n: int
    kind: str
    raw: bytes


def encode_line(fields: Mapping[str, object], *, run: str, traj: str, n: int = 0, kind: str = "trajectory") -> bytes:
    """Encodes the line of a record. Half surrogates, which UTF-8 cannot hold, become U+FFFD and are counted in
    `replaced`.

    Raises:
        SampleInvalid: for NaN, infinities outside the fields that may hold them, and values that are not JSON.
    """
    record = {"v": SCHEMA_VERSION, "run": run, "traj": traj, "n": n, "kind": kind, **fields}
    try:
        text = _ENCODE(record)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            count = len(_SURROGATE.findall(text))
            body = _SURROGATE.sub("\ufffd", _ENCODE({**record, "replaced": count})).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"trajectory {traj!r} cannot be stored: {error}", expected="JSON values, no NaN") from error
    return body[:-1] + _CRC + str(zlib.crc32(body)).encode() + b"}\n"


def _has_valid_crc(raw: bytes) -> bool:
    """Returns whether a line (without its newline) fits its checksum."""
    crc_start = raw.rfind(_CRC)
    digits = raw[crc_start + len(_CRC) : -1]
    return (
        crc_start > 0 and raw.endswith(b"}") and digits.isdigit() and zlib.crc32(raw[:crc_start] + b"}") == int(digits)
    )


def _parse_header(path: Path, offset: int, raw: bytes) -> RecordLine:
    match = _HEADER.match(raw)
    if match:
        version, traj = int(match[1]), match[3]
        name = traj.decode() if b"\\" not in traj else json.loads(b'"' + traj + b'"')
        line = RecordLine(offset, name, int(match[4]), match[5].decode(), raw)
    else:
        record = json.loads(raw)
        version = record.get("v", -1)
        line = RecordLine(offset, str(record.get("traj")), int(record.get("n", 0)), str(record.get("kind")), raw)
    if version != SCHEMA_VERSION:
        raise UnknownSchema(
            f"{path} holds a record with another schema at byte {offset}",
            value=version,
            expected=f"version {SCHEMA_VERSION}",
            hint="read it with the version of evolvent that wrote it",
        )
    return line


def parse_line(line: RecordLine) -> JsonObject:
    """Parses the fields of a verified line."""
    record: dict[str, Any] = json.loads(line.raw)
    return record


def read_lines(path: Path, *, torn: bool, begin: int = 0) -> Iterator[RecordLine]:
    """Yields the lines of a segment from byte `begin`, each verified.

    Args:
        torn: whether the last line may be unterminated (a killed or still writing writer); it is then left out.
    Raises:
        CorruptRecord: a checksum that does not fit, with file and byte offset.
        UnknownSchema: a line of another schema version.
        StoreUnavailable: a file that cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        file.seek(begin)
        offset = begin
        for raw in file:
            is_terminated = raw.endswith(b"\n")
            if not is_terminated and torn:
                return
            if not is_terminated or not _has_valid_crc(raw[:-1]):
                raise CorruptRecord(
                    f"a record of {path} is damaged at byte {offset}",
                    offset=offset,
                    value=repr(raw[:60]),
                    hint="restore the file from a copy; records before this byte are good",
                )
            yield _parse_header(path, offset, raw[:-1])
            offset += len(raw)


def find_last_line_end(path: Path) -> int:
    """Returns the size of a segment without an unterminated last line."""
    with disk_errors(path), path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            begin = max(0, end - (1 << 16))
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0


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
                f"{path} lacks a line of trajectory {line.traj!r} before byte {line.offset}",
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


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The content of a store after recovery.

    Args:
        num_finished: number of finished trajectories.
        dropped_bytes: bytes of a record that was being written when its process ended.
        num_interrupted: number of trajectories without an end; they read as `ended_by="error"`, error "interrupted".
    """

    num_finished: int
    dropped_bytes: int
    num_interrupted: int


def repair_log(root: Path, *, sealed: set[int]) -> int:
    """Removes the torn end of the last segment, unfinished files, and segments that are sealed already.

    The caller holds the store's lock. Returns the number of bytes cut off; running it twice changes nothing more.
    """
    with disk_errors(root):
        for path in root.rglob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()
        for number in list_segments(root):
            if number in sealed:
                segment_path(root, number).unlink()
    live_segments = list_segments(root)
    return _cut_torn_end(segment_path(root, live_segments[-1])) if live_segments else 0


def _cut_torn_end(path: Path) -> int:
    end = find_last_line_end(path)
    with disk_errors(path):
        size = path.stat().st_size
        if end == 0:
            path.unlink()
        elif end < size:
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
    if end < size:
        _LOG.warning("%s: dropped the last %d bytes, an incomplete record", path, size - end)
    return size - end

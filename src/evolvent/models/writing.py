"""Writing tensors into a folder, by many ranks at once, completely or not at all.

Each rank writes its parts into a temporary folder, every file synced, and last a note that lists them. Rank 0
waits for all notes, merges them into one index, renames the folder and writes the marker. Ranks communicate
through the folder alone: collectives on a thread would interfere with those of the training.

A complete checkpoint in its folder: opening it, and reporting its damage.

A checkpoint is a folder of safetensors files. `index.json` gives the location of every tensor's pieces,
`state.json` holds the other saved values, and the marker `COMPLETE`, written last, the SHA-256 of all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evolvent.deadline import Deadline
from evolvent.errors import (
    ConfigError,
    EvolventError,
    HashMismatch,
    Incomplete,
    RankFailed,
    ShapeMismatch,
    UnknownSchema,
)
from evolvent.files import ensure_space, safe_join, sync_folder, write_atomic
from evolvent.models.pieces import DTYPES, Entry, Index, Piece, Region
from evolvent.trajectory import JsonObject

__all__ = [
    "FORMAT",
    "INDEX",
    "MARKER",
    "STATE",
    "SaveJob",
    "StoredCheckpoint",
    "TensorPart",
    "WrittenFile",
    "entry_from_row",
    "entry_to_row",
    "group_shards",
    "is_live",
    "merge_indices",
    "open_checkpoint",
    "write_tensors",
]


FORMAT = 2
MARKER = "COMPLETE"
INDEX = "index.json"
STATE = "state.json"
_REMOVE = "remove this checkpoint to use the one before it"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A complete checkpoint, opened: its JSON values and the locations of its tensors, group by group; none is read
    yet.

    Attributes:
        path: its folder. values: the values saved beside the tensors. groups: an index each. files: SHA-256 by
            name.
    """

    path: Path
    values: JsonObject
    groups: dict[str, Index]
    files: dict[str, str]

    def group_files(self, groups: Iterable[str]) -> list[str]:
        """Returns the files that hold these groups, sorted."""
        every = (self.groups[group] for group in groups if group in self.groups)
        return sorted({piece.file for index in every for entry in index.values() for piece in entry.pieces})

    def find_fault(self, file: str) -> Incomplete | HashMismatch | None:
        """Checks a file and returns the fault, with the names of missing or changed tensors; None: the file is
        intact.
        """
        path = safe_join(self.path, file)
        pieces = {
            name: piece
            for index in self.groups.values()
            for name, entry in index.items()
            for piece in entry.pieces
            if piece.file == file
        }
        try:
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            return Incomplete(
                f"{path} is missing", expected=f"tensors {', '.join(pieces)}"[:180], value=str(error), hint=_REMOVE
            )
        if digest == self.files.get(file):
            return None
        crcs = _compute_crcs(path)
        changed = [name for name, piece in pieces.items() if crcs.get(name) != piece.crc] if crcs else []
        return HashMismatch(
            f"{path} has changed since it was written",
            value=f"changed tensors {changed}" if changed else "a changed header",
            expected=f"sha256 {self.files.get(file)}",
            hint=_REMOVE,
        )


def open_checkpoint(path: Path) -> StoredCheckpoint:
    """Reads the description of a checkpoint; its tensors are neither read nor checked.

    Raises:
        Incomplete: no marker, or a missing file. HashMismatch: other content than was written. UnknownSchema: a
            checkpoint of another format.
    """
    try:
        marker = json.loads((path / MARKER).read_bytes())
        if marker["format"] != FORMAT:
            raise UnknownSchema(f"{path} has another format", value=marker["format"], expected=FORMAT)
        files = {str(name): str(entry["sha256"]) for name, entry in marker["files"].items()}
    except FileNotFoundError as error:
        raise Incomplete(
            f"{path} lacks the {MARKER} marker",
            value=sorted(p.name for p in path.iterdir())[:5] if path.is_dir() else "no folder",
            expected="a complete checkpoint",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HashMismatch(f"{path / MARKER} cannot be read", value=str(error), hint=_REMOVE) from error
    unopened = StoredCheckpoint(path, {}, {}, files)
    for name in (INDEX, STATE):
        if (fault := unopened.find_fault(name)) is not None:
            raise fault
    groups = json.loads((path / INDEX).read_bytes())
    indices = {
        group: Index(path, {name: entry_from_row(row) for name, row in rows.items()}) for group, rows in groups.items()
    }
    return StoredCheckpoint(path, json.loads((path / STATE).read_bytes()), indices, files)


def entry_to_row(entry: Entry) -> dict[str, object]:
    """Converts an entry of an index to JSON."""
    pieces = [
        {"file": piece.file, "offset": piece.region.offset, "shape": piece.region.shape, "crc": piece.crc}
        for piece in entry.pieces
    ]
    return {"dtype": _NAMES[entry.dtype], "shape": entry.shape, "pieces": pieces}


def entry_from_row(row: JsonObject) -> Entry:
    """Parses an entry of an index from JSON."""
    pieces = (
        Piece(piece["file"], Region(tuple(piece["offset"]), tuple(piece["shape"])), piece["crc"])
        for piece in row["pieces"]
    )
    return Entry(tuple(row["shape"]), DTYPES[row["dtype"]], tuple(pieces))


def _compute_crcs(path: Path) -> dict[str, int]:
    """Computes the CRC-32 of each tensor in a safetensors file; returns nothing where its header cannot be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1 << 27)))
            offsets = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
            crcs = {}
            for name, (begin, end) in offsets.items():
                file.seek(8 + length + begin)
                crcs[name] = zlib.crc32(file.read(end - begin))
            return crcs
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SHARD_BYTES = 1 << 30
_PAUSE = 0.02  # seconds between two looks into the shared folder


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file: its SHA-256, and the CRC-32 of every tensor in it."""

    sha256: str
    crcs: dict[str, int]


def group_shards(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Groups names of tensors, in order, by at most `limit` bytes (or one tensor that is larger)."""
    group: list[str] = []
    total = 0
    for name, size in sizes.items():
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def write_tensors(
    path: Path, specs: Mapping[str, tuple[torch.dtype, Sequence[int]]], source: Callable[[str], Tensor]
) -> WrittenFile:
    """Writes a safetensors file tensor by tensor, so that memory holds at most one copy of one tensor, and syncs it.

    Args:
        specs: type and shape of every tensor, known before the first is made.
        source: returns each of them, in any order.
    Raises:
        OSError: it cannot be written. ConfigError: a type that the format does not have.
    """
    unsupported = [str(dtype) for dtype, _ in specs.values() if dtype not in _NAMES]
    if unsupported:
        raise ConfigError("tensor type is not supported by safetensors", value=unsupported[0])
    names = sorted(specs, key=lambda name: (-specs[name][0].itemsize, name))  # widest first: all lie aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        dtype, shape = specs[name]
        begin, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, crcs = hashlib.sha256(), {}
    with path.open("xb", buffering=0) as file:
        for block in (len(text).to_bytes(8, "little"), text):
            digest.update(block)
            _write_all(file.fileno(), memoryview(block))
        for name in names:
            data = _tensor_bytes(source(name))
            digest.update(data)
            crcs[name] = zlib.crc32(data)
            _write_all(file.fileno(), data)
        os.fsync(file.fileno())
    return WrittenFile(digest.hexdigest(), crcs)


def _tensor_bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().to(torch.device("cpu")).contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data


def _write_all(handle: int, data: memoryview) -> None:
    """Writes all bytes: one call takes at most 2 GiB, and a full disk takes a part."""
    while data:
        data = data[os.write(handle, data) :]


def merge_indices(parts: Sequence[Mapping[str, Mapping[str, Entry]]], folder: Path) -> dict[str, Index]:
    """Merges the entries that several ranks wrote into a folder to one index per group; of duplicate pieces the first
    counts.

    Raises:
        ShapeMismatch: two ranks disagree about a tensor. Incomplete: a part of a tensor was not written.
    """
    groups: dict[str, dict[str, Entry]] = {}
    for part in parts:
        for group, entries in part.items():
            group_entries = groups.setdefault(group, {})
            for name, entry in entries.items():
                known_entry = group_entries.setdefault(name, entry)
                if (known_entry.shape, known_entry.dtype) != (entry.shape, entry.dtype):
                    raise ShapeMismatch(
                        f"two ranks hold different tensors {name!r} of group {group!r}",
                        value=(entry.shape, entry.dtype),
                        expected=(known_entry.shape, known_entry.dtype),
                    )
                known_regions = {piece.region for piece in known_entry.pieces}
                new = tuple(piece for piece in entry.pieces if piece.region not in known_regions)
                group_entries[name] = Entry(known_entry.shape, known_entry.dtype, known_entry.pieces + new)
    indices = {group: Index(folder, entries) for group, entries in groups.items()}
    for index in indices.values():
        for name, entry in index.items():
            index.plan_reads(name, Region.whole(entry.shape))
    return indices


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A rank's part of a tensor: the full shape, its region of it, and the values there."""

    shape: tuple[int, ...]
    region: Region
    values: Tensor

    @property
    def nbytes(self) -> int:
        """Returns the part's size in a file, in bytes."""
        return self.values.numel() * self.values.element_size()

    def copy_to_host(self) -> TensorPart:
        """Copies the values to the host's own memory; from a GPU into pinned memory, without waiting for it."""
        gpu = self.values.is_cuda
        host = torch.empty_like(self.values, device="cpu", pin_memory=gpu)
        return TensorPart(self.shape, self.region, host.copy_(self.values, non_blocking=gpu))


Groups = Mapping[str, Mapping[str, TensorPart]]
_Note = tuple[dict[str, str], dict[str, dict[str, Entry]]]  # SHA-256 by file, entries by group


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One rank's share of writing a checkpoint.

    Attributes:
        target: the folder of the complete checkpoint. temporary: the folder until then, a new name each time, the
            same on all ranks. groups: this rank's parts. state: JSON of rank 0. timeout: seconds that rank 0 waits
            for the notes of the others.
    """

    target: Path
    temporary: Path
    groups: Groups
    state: bytes
    rank: int
    size: int
    timeout: float

    def run(self) -> None:
        """Writes the parts; then rank 0 completes the checkpoint, and the others wait for that.

        Raises:
            OSError, NoSpace: this rank cannot write. RankFailed: another rank did not do its share. In every case
                nothing is left of the checkpoint, and earlier ones are intact.
        """
        self.temporary.mkdir(exist_ok=True)
        with _mark_live(self.temporary):
            if self.rank == 0:
                self._lead()
            else:
                self._follow()

    def _lead(self) -> None:
        done = False
        try:
            self._complete([self._write_own_parts(), *self._wait_for_notes()])
            done = True
        finally:
            if not done:
                shutil.rmtree(self.temporary, ignore_errors=True)
                if not (self.target / MARKER).exists():
                    shutil.rmtree(self.target, ignore_errors=True)

    def _complete(self, notes: Sequence[_Note]) -> None:
        files = {file: digest for note in notes for file, digest in note[0].items()}
        groups = merge_indices([note[1] for note in notes], self.temporary)
        rows = {group: {name: entry_to_row(entry) for name, entry in index.items()} for group, index in groups.items()}
        for name, data in ((INDEX, json.dumps(rows).encode()), (STATE, self.state)):
            write_atomic(self.temporary / name, data)
            files[name] = hashlib.sha256(data).hexdigest()
        for rank in range(1, self.size):
            self._note_path(rank).unlink()
        sync_folder(self.temporary)
        self.temporary.rename(self.target)
        sync_folder(self.target.parent)
        marker = {"format": FORMAT, "files": {file: {"sha256": files[file]} for file in sorted(files)}}
        write_atomic(self.target / MARKER, json.dumps(marker))

    def _follow(self) -> None:
        try:
            files, groups = self._write_own_parts()
        except (EvolventError, OSError) as error:
            with suppress(EvolventError):  # rank 0 need not wait for its deadline then
                write_atomic(self._note_path(self.rank), json.dumps({"failed": str(error)}))
            raise
        rows = {
            group: {name: entry_to_row(entry) for name, entry in group_entries.items()}
            for group, group_entries in groups.items()
        }
        write_atomic(self._note_path(self.rank), json.dumps({"files": files, "groups": rows}))
        deadline = Deadline(2 * self.timeout)  # rank 0 has its own, and gives up first
        while not (self.target / MARKER).exists():
            is_gone = not self.temporary.exists() and not self.target.exists()
            if is_gone or deadline.expired:
                raise RankFailed(
                    f"rank 0 did not complete {self.target.name}",
                    value="it gave up" if is_gone else f"nothing for {deadline.total_s:g} s",
                    hint="read the message of rank 0; earlier checkpoints are intact",
                )
            time.sleep(_PAUSE)

    def _note_path(self, rank: int) -> Path:
        return self.temporary / f"rank-{rank:05d}.json"

    def _wait_for_notes(self) -> Iterator[_Note]:
        """Yields the notes of the other ranks, in the order of ranks."""
        if self.size == 1:
            return
        deadline = Deadline(self.timeout)
        missing = set(range(1, self.size))
        while missing:
            arrived = {rank for rank in missing if self._note_path(rank).exists()}
            missing -= arrived
            for rank in sorted(arrived):
                failed = json.loads(self._note_path(rank).read_bytes()).get("failed")
                if failed is not None:
                    raise RankFailed(
                        f"rank {rank} could not write its part of {self.target.name}",
                        value=failed,
                        hint="earlier checkpoints are intact",
                    )
            if missing and deadline.expired:
                raise RankFailed(
                    f"ranks {sorted(missing)} did not write their parts of {self.target.name}",
                    value=f"nothing for {self.timeout:g} s",
                    hint="earlier checkpoints are intact",
                )
            time.sleep(_PAUSE if missing else 0)
        for rank in range(1, self.size):
            note = json.loads(self._note_path(rank).read_bytes())
            yield (
                note["files"],
                {
                    group: {name: entry_from_row(row) for name, row in rows.items()}
                    for group, rows in note["groups"].items()
                },
            )

    def _write_own_parts(self) -> _Note:
        """Writes this rank's parts and returns the digests of the files, and their entries."""
        files: dict[str, str] = {}
        entries: dict[str, dict[str, Entry]] = {}
        ensure_space(self.temporary, sum(part.nbytes for parts in self.groups.values() for part in parts.values()))
        prefix = f"rank-{self.rank:05d}-" if self.size > 1 else ""
        for group, parts in self.groups.items():
            group_entries = entries[group] = {
                name: Entry(part.shape, part.values.dtype, ()) for name, part in parts.items()
            }
            sizes = {name: part.nbytes for name, part in parts.items() if part.nbytes}
            for number, names in enumerate(group_shards(sizes, _SHARD_BYTES)):
                file = f"{prefix}{group}-{number:05d}.safetensors"
                written_file = _write_parts(self.temporary / file, {name: parts[name] for name in names})
                files[file] = written_file.sha256
                for name in names:
                    piece = Piece(file, parts[name].region, written_file.crcs[name])
                    group_entries[name] = Entry(parts[name].shape, parts[name].values.dtype, (piece,))
        return files, entries


def _write_parts(path: Path, parts: Mapping[str, TensorPart]) -> WrittenFile:
    specs = {name: (part.values.dtype, part.region.shape) for name, part in parts.items()}
    return write_tensors(path, specs, lambda name: parts[name].values)


@contextmanager
def _mark_live(folder: Path) -> Iterator[None]:
    """Marks a folder as being written, until the process ends it or ends: see `is_live`. The mark moves with
    renames.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def is_live(folder: Path, *, seconds: float) -> bool:
    """Returns whether a process writes in a folder; where locks cannot tell, whether it changed in the last
    `seconds`.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return time.time() - folder.stat().st_mtime < seconds
    finally:
        os.close(handle)
    return False

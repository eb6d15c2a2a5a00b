"""A corpus of tokens in a folder: written once in constant memory, then a list of `TokenSequence` over mapped files.

    manifest.json   the content, with the SHA-256 of `blocks.bin` and of itself; it is written last
    blocks.bin      SHA-256 of every mebibyte of every array
    ids.bin, weight.bin, marks.bin, ...   an entry per token; arrays of equal entries are in the manifest alone
    offsets.bin, feeds.bin, targets.bin   an entry per sequence; notes.bin: their names, groups and scores

A folder appears complete under its name, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    HashMismatch,
    Incomplete,
    NothingToLearn,
    UnknownSchema,
)
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, sync_folder, write_atomic
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.windows import Intake
from evolvent.store.lock import WriterLock
from evolvent.trajectory import Array, canonical_json

__all__ = ["BLOCK", "DIGEST", "ArrayReader", "ArrayWriter", "Layout", "TokenFile", "write_tokens"]


BLOCK = 1 << 20
DIGEST = 32  # bytes of a SHA-256


@dataclass(frozen=True, slots=True)
class Layout:
    """The manifest entry of an array: type, number of rows, shape of a row, and the row (as hex) where all are
    equal.
    """

    dtype: str
    rows: int
    row: tuple[int, ...] = ()
    constant: str | None = None

    @property
    def width(self) -> int:
        """Returns the bytes of a row."""
        return np.dtype(self.dtype).itemsize * prod(self.row)

    @property
    def size(self) -> int:
        """Returns the bytes of the file."""
        return 0 if self.constant is not None else self.rows * self.width

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of the file."""
        return -(-self.size // BLOCK)


class ArrayWriter:
    """Appends rows to a file, which is created when two rows differ.

    Args:
        path: must not exist yet.
        dtype: numbers or booleans.
        row: shape of a row.
    Raises:
        BatchMismatch: another type, or rows without numbers.
    """

    def __init__(self, path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._path, self._dtype, self._row = path, np.dtype(dtype).newbyteorder("<"), row
        if self._dtype.kind not in "biuf" or not all(row):
            raise BatchMismatch(f"{path.stem} does not hold numbers", value=f"{self._dtype} {row}", expected="numbers")
        self._rows, self._constant = 0, b""
        self._file: BinaryIO | None = None
        self._digests: list[bytes] = []
        self._block, self._filled = hashlib.sha256(), 0

    def add(self, rows: NDArray[np.generic]) -> None:
        """Appends rows `[n, *row]`.

        Raises:
            BatchMismatch: the rows have another shape or type.
            NoSpace, StoreUnavailable: they cannot be written.
        """
        if rows.shape[1:] != self._row or rows.dtype.newbyteorder("<") != self._dtype:
            raise BatchMismatch(
                f"rows of {self._path.stem} differ from earlier rows",
                value=f"{rows.dtype} {rows.shape[1:]}",
                expected=f"{self._dtype} {self._row}",
            )
        if not len(rows):
            return
        data = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).reshape(len(rows), -1)
        if self._file is None:
            self._constant = self._constant or data[0].tobytes()
            if (data == np.frombuffer(self._constant, np.uint8)).all():
                self._rows += len(rows)
                return
            self._create_file()
        self._write(data.data.cast("B"))
        self._rows += len(rows)

    def _create_file(self) -> None:
        """Creates the file and writes the equal rows so far."""
        with disk_errors(self._path):
            self._file = self._path.open("xb")
        remaining, rows_per_write = self._rows, max(1, BLOCK // len(self._constant))
        while remaining:
            self._write(memoryview(self._constant * min(remaining, rows_per_write)))
            remaining -= min(remaining, rows_per_write)

    def _write(self, data: memoryview) -> None:
        """Writes bytes and updates the digests of blocks."""
        if self._file is None:
            return
        with disk_errors(self._path):
            self._file.write(data)
        while data:
            piece = data[: BLOCK - self._filled]
            self._block.update(piece)
            self._filled += len(piece)
            data = data[len(piece) :]
            if self._filled == BLOCK:
                self._digests.append(self._block.digest())
                self._block, self._filled = hashlib.sha256(), 0

    def finish(self) -> tuple[Layout, bytes]:
        """Writes everything to disk; returns the manifest entry and the digests of the blocks."""
        if self._file is None:
            return Layout(self._dtype.str, self._rows, self._row, self._constant.hex()), b""
        with disk_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        if self._filled:
            self._digests.append(self._block.digest())
            self._filled = 0
        return Layout(self._dtype.str, self._rows, self._row), b"".join(self._digests)

    def close(self) -> None:
        """Closes the file, whatever is in it."""
        if self._file is not None:
            with disk_errors(self._path):
                self._file.close()


class ArrayReader:
    """Reads rows of a file that an `ArrayWriter` wrote, by their numbers.

    Args:
        digests: of its blocks, one after the other.
    Raises:
        Incomplete: the file is missing.
        HashMismatch: the file has another size.
    """

    def __init__(self, path: Path, layout: Layout, digests: bytes) -> None:
        self._path, self._digests, self._width = path, digests, layout.width
        self._checked = np.zeros(layout.blocks, np.bool_)
        self._constant = layout.constant is not None
        if layout.constant is not None:
            self._bytes = np.frombuffer(bytes.fromhex(layout.constant), np.uint8)
        else:
            self._bytes = self._map_file(layout)
        self._rows = self._bytes.view(layout.dtype).reshape(-1, *layout.row)

    def _map_file(self, layout: Layout) -> NDArray[np.uint8]:
        path = self._path
        with disk_errors(path):
            file_size = path.stat().st_size if path.exists() else None
        if file_size is None:
            raise Incomplete(f"{path} is missing", expected=f"{layout.size} bytes")
        if file_size != layout.size or len(self._digests) != DIGEST * layout.blocks:
            raise HashMismatch(
                f"{path} has changed since it was written", value=f"{file_size} bytes", expected=f"{layout.size}"
            )
        with disk_errors(path):
            return np.asarray(np.memmap(path, np.uint8, "r"))

    def rows(self, start: int, stop: int) -> Array:
        """Returns rows `start` to `stop` (exclusive), `[stop - start, *row]`: a read-only view.

        Raises:
            HashMismatch: a block of the file has changed since it was written.
        """
        if self._constant:
            return np.broadcast_to(self._rows[:1], (stop - start, *self._rows.shape[1:]))
        for block in range(start * self._width // BLOCK, -(-stop * self._width // BLOCK)):
            if not self._checked[block]:
                self._check_block(block)
        return self._rows[start:stop]

    def verify(self) -> None:
        """Checks every block now; raises HashMismatch."""
        for block in range(len(self._checked)):
            self._check_block(block)

    def _check_block(self, block: int) -> None:
        data = self._bytes[block * BLOCK : (block + 1) * BLOCK]
        if hashlib.sha256(data.data).digest() != self._digests[block * DIGEST : (block + 1) * DIGEST]:
            raise HashMismatch(
                f"{self._path} has changed since it was written",
                value=f"bytes {block * BLOCK} to {block * BLOCK + len(data) - 1} changed",
                hint="remove the folder and tokenize again",
            )
        self._checked[block] = True


_FORMAT = 1
_MANIFEST, _BLOCKS, _COLUMN_PREFIX = "manifest.json", "blocks.bin", "column-"
_TOKEN_ARRAYS = {"ids": "<i4", "weight": "<f4", "marks": "|u1", "logprobs": "<f4", "step": "<i4", "span": "<i4"}
_SEQUENCE_ARRAYS = {"offsets": "<i8", "feeds": "<i4", "targets": "<i4", "notes_at": "<i8", "notes": "|u1"}


def write_tokens(
    folder: Path,
    sequences: Iterable[TokenSequence],
    *,
    source: str | None = None,
    vocabulary: str | None = None,
    intake: Intake | None = None,
) -> TokenFile:
    """Writes sequences into a folder, one after the other, in constant memory.

    If the folder exists and was made from the same source, it is opened and `sequences` is not read. One process
    writes; leftovers of a killed writer are removed by the next.

    Args:
        folder: appears when everything is on disk.
        sequences: token sequences.
        source: digest of the sequences' source (`learn.sources.source_digest`); None: never the same.
        vocabulary: digest of the tokenizer (`learn.sources.vocabulary_digest`), stored for readers of the tokens.
        intake: counts of the rows, stored for the record.
    Raises:
        ConfigError: the folder holds something else.
        NothingToLearn: no sequence has a learned token.
        BatchMismatch: columns differ between sequences, or a sequence has branches, which cannot be stored.
        Locked: another process writes it.
        NoSpace, StoreUnavailable: it cannot be written; then the folder does not exist.
    """
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(folder.parent / f".{folder.name}.lock")
    try:
        if folder.exists():
            return _open_existing(folder, source)
        temporary = folder.with_name(f".{folder.name}{TEMPORARY_SUFFIX}")
        with disk_errors(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        is_finished = False
        try:
            _write_folder(temporary, sequences, source=source, vocabulary=vocabulary, intake=intake)
            with disk_errors(folder):
                temporary.rename(folder)
                sync_folder(folder.parent)
            is_finished = True
        finally:
            if not is_finished:
                shutil.rmtree(temporary, ignore_errors=True)
        return TokenFile(folder)
    finally:
        lock.release()


def _open_existing(folder: Path, source: str | None) -> TokenFile:
    """Opens the tokens that are in the folder already, if they are of this source."""
    if not (folder / _MANIFEST).exists():
        raise ConfigError(
            f"{folder} already exists", value="a folder that does not hold tokens", hint="choose another folder"
        )
    tokens = TokenFile(folder)
    if source is None or tokens.source != source:
        raise ConfigError(
            f"{folder} holds the tokens of another source",
            value=tokens.source,
            expected=source or "a source with a digest",
            hint="remove it, or choose another folder",
        )
    return tokens


def _write_folder(
    folder: Path,
    sequences: Iterable[TokenSequence],
    *,
    source: str | None,
    vocabulary: str | None,
    intake: Intake | None,
) -> None:
    with closing(_CorpusWriter(folder)) as writing:
        for sequence in sequences:
            writing.add(sequence)
        if not writing.targets:
            raise NothingToLearn(
                "no sequence has a token with a nonzero learning weight",
                value=f"{writing.count} sequences" + (f", {intake.refused} rows refused" if intake is not None else ""),
                hint=str(intake.problems[0]) if intake is not None and intake.problems else "check the source",
            )
        arrays, digests = writing.finish()
    write_atomic(folder / _BLOCKS, digests)
    manifest = {
        "format": _FORMAT,
        "source": source,
        "vocabulary": vocabulary,
        "parts": writing.count,
        "tokens": writing.tokens,
        "targets": writing.targets,
        "intake": None if intake is None else asdict(intake),
        "blocks": hashlib.sha256(digests).hexdigest(),
        "arrays": {name: asdict(layout) for name, layout in arrays.items()},
    }
    text = json.dumps({**manifest, "sha256": _sha256(manifest)}, indent=1)
    write_atomic(folder / _MANIFEST, text + "\n")


class _CorpusWriter:
    """Writes the arrays of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays = {
            name: ArrayWriter(folder / f"{name}.bin", dtype)
            for name, dtype in (_TOKEN_ARRAYS | _SEQUENCE_ARRAYS).items()
        }
        self._columns: dict[str, ArrayWriter] | None = None
        self.count = self.tokens = self.targets = self._noted = 0
        self._append_entry("offsets", 0)
        self._append_entry("notes_at", 0)

    def _append_entry(self, name: str, value: int) -> None:
        self._arrays[name].add(np.asarray([value], _SEQUENCE_ARRAYS[name]))

    def add(self, sequence: TokenSequence) -> None:
        """Appends a sequence."""
        if sequence.parent is not None:
            raise BatchMismatch(
                f"sequence {sequence.trajectory!r} has branches",
                expected="a sequence without branches",
                hint="train on it from memory",
            )
        columns = self._column_writers(sequence)
        marks = sequence.written.astype(np.uint8) | sequence.sampled.astype(np.uint8) << np.uint8(1)
        for name, dtype in _TOKEN_ARRAYS.items():
            self._arrays[name].add(marks if name == "marks" else getattr(sequence, name).astype(dtype, copy=False))
        for name, array in columns.items():
            array.add(sequence.columns[name])
        learned = int(np.count_nonzero(sequence.weight[1:]))
        self.count, self.tokens, self.targets = self.count + 1, self.tokens + len(sequence), self.targets + learned
        note = _encode_note(sequence)
        self._noted += len(note)
        self._arrays["notes"].add(np.frombuffer(note, np.uint8))
        for name, value in (("offsets", self.tokens), ("feeds", sequence.feed), ("targets", learned)):
            self._append_entry(name, value)
        self._append_entry("notes_at", self._noted)

    def _column_writers(self, sequence: TokenSequence) -> dict[str, ArrayWriter]:
        """Returns the writers of its columns, which are those of the first sequence."""
        if self._columns is None:
            self._columns = {
                name: ArrayWriter(self._folder / f"{_COLUMN_PREFIX}{column_index}.bin", column.dtype, column.shape[1:])
                for column_index, (name, column) in enumerate(sorted(sequence.columns.items()))
            }
        if set(sequence.columns) != set(self._columns):
            raise BatchMismatch(
                f"columns of sequence {sequence.trajectory!r} differ from earlier sequences",
                value=sorted(sequence.columns),
                expected=sorted(self._columns),
            )
        return self._columns

    def finish(self) -> tuple[dict[str, Layout], bytes]:
        """Finishes all files: returns the layout of every array by name, and the digests of all blocks in that
        order.
        """
        columns = {f"{_COLUMN_PREFIX}{name}": array for name, array in (self._columns or {}).items()}
        finished = {name: array.finish() for name, array in (self._arrays | columns).items()}
        return {name: layout for name, (layout, _) in finished.items()}, b"".join(
            digest for _, digest in finished.values()
        )

    def close(self) -> None:
        """Closes all files."""
        for array in (*self._arrays.values(), *(self._columns or {}).values()):
            array.close()


def _encode_note(sequence: TokenSequence) -> bytes:
    scores = [None if score is None else float(score) for score in (sequence.reward, sequence.unit)]
    try:
        return canonical_json([sequence.trajectory, sequence.group, *scores]).encode()
    except ValueError as error:
        raise BatchMismatch(f"a score of {sequence.trajectory!r} is not finite", value=str(scores)) from error


class TokenFile(Sequence[TokenSequence]):
    """The sequences of a folder, by their number, without reading the others.

    Every block of a file is checked when it is first read. Arrays are read-only views of the files.

    Attributes:
        tokens, targets: total numbers.
        source, vocabulary: as they were given.
        intake: counts of its rows.
        feeds, targets_each: `[sequences]` int32, `TokenSequence.feed` and the number of learned targets of every
            sequence, known without reading it.
        digest: SHA-256 of the content.
    Raises:
        Incomplete: the folder or a file is missing.
        HashMismatch: a file has changed since it was written.
        UnknownSchema: the folder is of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = _read_manifest(folder)
        self.tokens, self.targets = int(manifest["tokens"]), int(manifest["targets"])
        self.source: str | None = manifest["source"]
        self.vocabulary: str | None = manifest["vocabulary"]
        self.intake: Mapping[str, Any] | None = manifest["intake"]
        self._count = int(manifest["parts"])
        content = canonical_json([manifest["arrays"], manifest["blocks"]])
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        self._arrays = dict(_open_arrays(folder, manifest))
        names = sorted(name for name in self._arrays if name.startswith(_COLUMN_PREFIX))
        self._columns = {name.removeprefix(_COLUMN_PREFIX): self._arrays[name] for name in names}
        self.feeds: NDArray[np.int32] = self._arrays["feeds"].rows(0, self._count)
        self.targets_each: NDArray[np.int32] = self._arrays["targets"].rows(0, self._count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> TokenSequence: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenSequence]: ...

    def __getitem__(self, index: int | slice) -> TokenSequence | list[TokenSequence]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError(f"sequence {index} of {self._count}")
        start, stop = self._arrays["offsets"].rows(number, number + 2).tolist()
        entry = {name: self._arrays[name].rows(start, stop) for name in _TOKEN_ARRAYS}
        marks = entry.pop("marks")
        name, group, reward, unit = json.loads(
            self._arrays["notes"].rows(*self._arrays["notes_at"].rows(number, number + 2).tolist()).tobytes()
        )
        columns = {column: array.rows(start, stop) for column, array in self._columns.items()}
        written, sampled = (marks & 1).astype(np.bool_), (marks & 2).astype(np.bool_)
        return TokenSequence(
            name, written=written, sampled=sampled, **entry, group=group, reward=reward, unit=unit, columns=columns
        )

    def __reduce__(self) -> tuple[type[TokenFile], tuple[Path]]:
        """Returns how to rebuild it in another process, which maps the same files again."""
        return TokenFile, (self.folder,)

    def verify(self) -> None:
        """Reads and checks every byte now.

        Raises:
            HashMismatch: a file has changed since it was written.
        """
        for array in self._arrays.values():
            array.verify()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else None
    if raw is None:
        raise Incomplete(f"{folder} does not hold tokens", expected=_MANIFEST, value="file not found")
    try:
        manifest = dict(json.loads(raw))
    except (ValueError, TypeError) as error:
        raise HashMismatch(f"{path} has changed since it was written", value=str(error)) from error
    if manifest.get("format") != _FORMAT:
        raise UnknownSchema(f"{path} has another format", value=manifest.get("format"), expected=_FORMAT)
    written = manifest.pop("sha256", None)
    if written != _sha256(manifest):
        raise HashMismatch(f"{path} has changed since it was written", value=_sha256(manifest), expected=written)
    return manifest


def _sha256(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(manifest).encode()).hexdigest()


def _open_arrays(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, ArrayReader]]:
    path = folder / _BLOCKS
    with disk_errors(path):
        digests = path.read_bytes() if path.exists() else None
    if digests is None:
        raise Incomplete(f"{path} is missing")
    if hashlib.sha256(digests).hexdigest() != manifest["blocks"]:
        raise HashMismatch(f"{path} has changed since it was written", expected=f"sha256 {manifest['blocks']}")
    offset = columns = 0
    for name, entry in manifest["arrays"].items():
        layout = Layout(entry["dtype"], entry["rows"], tuple(entry["row"]), entry["constant"])
        file = name
        if name.startswith(_COLUMN_PREFIX):
            file, columns = f"{_COLUMN_PREFIX}{columns}", columns + 1
        yield name, ArrayReader(folder / f"{file}.bin", layout, digests[offset : offset + DIGEST * layout.blocks])
        offset += DIGEST * layout.blocks

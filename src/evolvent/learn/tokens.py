"""A corpus of tokens in a folder: made once in constant memory, then a sequence of `Parts` over mapped files.

    manifest.json   what there is, with the SHA-256 of `blocks.bin` and of itself; it is written last
    blocks.bin      SHA-256 of every mebibyte of every array
    ids.bin, weight.bin, marks.bin, ...   an entry a token; those that are equal everywhere are in the manifest alone
    offsets.bin, feeds.bin, targets.bin   an entry a sequence; notes.bin: their names, groups and scores

A folder appears whole under its name, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    HashMismatch,
    Incomplete,
    NothingToLearn,
    UnknownSchema,
)
from evolvent.files import TEMPORARY, disk_errors, sync_folder, write_atomic
from evolvent.learn.arrays import DIGEST, ArrayReader, ArrayWriter, Layout
from evolvent.learn.token_sequences import Parts
from evolvent.learn.windows import Intake
from evolvent.store.lock import WriterLock
from evolvent.trajectory import canonical_json

__all__ = ["TokenFile", "write_tokens"]

_FORMAT = 1
_MANIFEST, _BLOCKS, _COLUMN = "manifest.json", "blocks.bin", "column-"
_BY_TOKEN = {"ids": "<i4", "weight": "<f4", "marks": "|u1", "logprobs": "<f4", "step": "<i4", "span": "<i4"}
_BY_PART = {"offsets": "<i8", "feeds": "<i4", "targets": "<i4", "notes_at": "<i8", "notes": "|u1"}


def write_tokens(
    folder: Path,
    parts: Iterable[Parts],
    *,
    source: str | None = None,
    vocabulary: str | None = None,
    intake: Intake | None = None,
) -> TokenFile:
    """Write sequences into a folder, one after the other, in constant memory.

    If the folder is there already, made of the same source, it is opened and `parts` is not looked at. One process
    writes; what a killed one has left is removed by the next.

    Args:
        folder: appears when everything is on disk.
        source: digest of what the parts are made of (`learn.sources.source_digest`); None: never the same.
        vocabulary: digest of the tokenizer (`learn.sources.vocabulary_digest`), kept for whoever reads the tokens.
        intake: what became of the rows, kept for the record.
    Raises:
        ConfigError: the folder holds something else. NothingToLearn: no sequence has a learned token.
        BatchMismatch: columns that are not the same in all sequences, or one with branches, which have no place here.
        Locked: another process writes it.
        NoSpace, StoreUnavailable: it cannot be written. The folder is not there then.
    """
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(folder.parent / f".{folder.name}.lock")
    try:
        if folder.exists():
            return _made_before(folder, source)
        temporary = folder.with_name(f".{folder.name}{TEMPORARY}")
        with disk_errors(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        done = False
        try:
            _fill(temporary, parts, source=source, vocabulary=vocabulary, intake=intake)
            with disk_errors(folder):
                temporary.rename(folder)
                sync_folder(folder.parent)
            done = True
        finally:
            if not done:
                shutil.rmtree(temporary, ignore_errors=True)
        return TokenFile(folder)
    finally:
        lock.release()


def _made_before(folder: Path, source: str | None) -> TokenFile:
    """The tokens that are in the folder already, if they are of this source."""
    if not (folder / _MANIFEST).exists():
        raise ConfigError(f"{folder} is in the way", value="a folder without tokens", hint="choose another folder")
    found = TokenFile(folder)
    if source is None or found.source != source:
        raise ConfigError(
            f"{folder} holds tokens of another source",
            value=found.source,
            expected=source or "a source with a digest",
            hint="remove it, or choose another folder",
        )
    return found


def _fill(
    folder: Path, parts: Iterable[Parts], *, source: str | None, vocabulary: str | None, intake: Intake | None
) -> None:
    with closing(_Writing(folder)) as writing:
        for sequence in parts:
            writing.add(sequence)
        if not writing.targets:
            raise NothingToLearn(
                "no sequence has a token with a learning weight",
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


class _Writing:
    """The arrays of a folder that is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays = {
            name: ArrayWriter(folder / f"{name}.bin", dtype) for name, dtype in (_BY_TOKEN | _BY_PART).items()
        }
        self._columns: dict[str, ArrayWriter] | None = None
        self.count = self.tokens = self.targets = self._noted = 0
        self._put("offsets", 0)
        self._put("notes_at", 0)

    def _put(self, name: str, value: int) -> None:
        self._arrays[name].add(np.asarray([value], _BY_PART[name]))

    def add(self, parts: Parts) -> None:
        """Append a sequence."""
        if parts.parent is not None:
            raise BatchMismatch(
                f"sequence {parts.trajectory!r} has branches",
                expected="one token after the other",
                hint="learn it from memory",
            )
        columns = self._columns_of(parts)
        marks = parts.written.astype(np.uint8) | parts.sampled.astype(np.uint8) << np.uint8(1)
        for name, dtype in _BY_TOKEN.items():
            self._arrays[name].add(marks if name == "marks" else getattr(parts, name).astype(dtype, copy=False))
        for name, array in columns.items():
            array.add(parts.columns[name])
        learned = int(np.count_nonzero(parts.weight[1:]))
        self.count, self.tokens, self.targets = self.count + 1, self.tokens + len(parts), self.targets + learned
        note = _note(parts)
        self._noted += len(note)
        self._arrays["notes"].add(np.frombuffer(note, np.uint8))
        for name, value in (("offsets", self.tokens), ("feeds", parts.feed), ("targets", learned)):
            self._put(name, value)
        self._put("notes_at", self._noted)

    def _columns_of(self, parts: Parts) -> dict[str, ArrayWriter]:
        """The writers of its columns, which are those of the first sequence."""
        if self._columns is None:
            self._columns = {
                name: ArrayWriter(self._folder / f"{_COLUMN}{place}.bin", column.dtype, column.shape[1:])
                for place, (name, column) in enumerate(sorted(parts.columns.items()))
            }
        if set(parts.columns) != set(self._columns):
            raise BatchMismatch(
                f"sequence {parts.trajectory!r} has other columns than those before it",
                value=sorted(parts.columns),
                expected=sorted(self._columns),
            )
        return self._columns

    def finish(self) -> tuple[dict[str, Layout], bytes]:
        """Everything on disk: the layout of every array by name, and the digests of all blocks in that order."""
        columns = {f"{_COLUMN}{name}": array for name, array in (self._columns or {}).items()}
        finished = {name: array.finish() for name, array in (self._arrays | columns).items()}
        return {name: layout for name, (layout, _) in finished.items()}, b"".join(d for _, d in finished.values())

    def close(self) -> None:
        """Let all files go."""
        for array in (*self._arrays.values(), *(self._columns or {}).values()):
            array.close()


def _note(parts: Parts) -> bytes:
    scores = [None if score is None else float(score) for score in (parts.reward, parts.unit)]
    try:
        return canonical_json([parts.trajectory, parts.group, *scores]).encode()
    except ValueError as error:
        raise BatchMismatch(f"a score of {parts.trajectory!r} is not finite", value=str(scores)) from error


class TokenFile(Sequence[Parts]):
    """The sequences of a folder, by their number, without reading the others.

    Every block of a file is checked when it is first read. Arrays are views of the files and cannot be written to.

    Attributes:
        tokens, targets: how many there are in all. source, vocabulary: as they were given. intake: counts of its rows.
        feeds, targets_each: `[parts]` int32, `Parts.feed` and the number of learned targets of every sequence, known
            without reading it. digest: SHA-256 of the content.
    Raises:
        Incomplete: no such folder, or a file is missing. HashMismatch: a file is not what was written. UnknownSchema:
            of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = _manifest(folder)
        self.tokens, self.targets = int(manifest["tokens"]), int(manifest["targets"])
        self.source: str | None = manifest["source"]
        self.vocabulary: str | None = manifest["vocabulary"]
        self.intake: Mapping[str, Any] | None = manifest["intake"]
        self._count = int(manifest["parts"])
        content = canonical_json([manifest["arrays"], manifest["blocks"]])
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        self._arrays = dict(_opened(folder, manifest))
        names = sorted(name for name in self._arrays if name.startswith(_COLUMN))
        self._columns = {name.removeprefix(_COLUMN): self._arrays[name] for name in names}
        self.feeds: NDArray[np.int32] = self._arrays["feeds"].rows(0, self._count)
        self.targets_each: NDArray[np.int32] = self._arrays["targets"].rows(0, self._count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Parts: ...

    @overload
    def __getitem__(self, index: slice) -> list[Parts]: ...

    def __getitem__(self, index: int | slice) -> Parts | list[Parts]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"sequence {index} of {self._count}")
        start, stop = self._arrays["offsets"].rows(at, at + 2).tolist()
        entry = {name: self._arrays[name].rows(start, stop) for name in _BY_TOKEN}
        marks = entry.pop("marks")
        name, group, reward, unit = json.loads(
            self._arrays["notes"].rows(*self._arrays["notes_at"].rows(at, at + 2).tolist()).tobytes()
        )
        columns = {column: array.rows(start, stop) for column, array in self._columns.items()}
        written, sampled = (marks & 1).astype(np.bool_), (marks & 2).astype(np.bool_)
        return Parts(
            name, written=written, sampled=sampled, **entry, group=group, reward=reward, unit=unit, columns=columns
        )

    def __reduce__(self) -> tuple[type[TokenFile], tuple[Path]]:
        """In another process the same files are mapped again."""
        return TokenFile, (self.folder,)

    def verify(self) -> None:
        """Read and check every byte now.

        Raises:
            HashMismatch: a file is not what was written.
        """
        for array in self._arrays.values():
            array.verify()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else None
    if raw is None:
        raise Incomplete(f"{folder} holds no tokens", expected=_MANIFEST, value="no such file")
    try:
        manifest = dict(json.loads(raw))
    except (ValueError, TypeError) as error:
        raise HashMismatch(f"{path} is not what was written", value=str(error)) from error
    if manifest.get("format") != _FORMAT:
        raise UnknownSchema(f"{path} is of another format", value=manifest.get("format"), expected=_FORMAT)
    written = manifest.pop("sha256", None)
    if written != _sha256(manifest):
        raise HashMismatch(f"{path} is not what was written", value=_sha256(manifest), expected=written)
    return manifest


def _sha256(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(manifest).encode()).hexdigest()


def _opened(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, ArrayReader]]:
    path = folder / _BLOCKS
    with disk_errors(path):
        digests = path.read_bytes() if path.exists() else None
    if digests is None:
        raise Incomplete(f"{path} is missing")
    if hashlib.sha256(digests).hexdigest() != manifest["blocks"]:
        raise HashMismatch(f"{path} is not what was written", expected=f"sha256 {manifest['blocks']}")
    at = columns = 0
    for name, entry in manifest["arrays"].items():
        layout = Layout(entry["dtype"], entry["rows"], tuple(entry["row"]), entry["constant"])
        file = name
        if name.startswith(_COLUMN):
            file, columns = f"{_COLUMN}{columns}", columns + 1
        yield name, ArrayReader(folder / f"{file}.bin", layout, digests[at : at + DIGEST * layout.blocks])
        at += DIGEST * layout.blocks

"""Data as shards of rows: JSON lines, JSON arrays, Parquet, and folders that Hugging Face `datasets` saved.

A row is a JSON object. A shard is a range of a file, small enough to be redone and known by a digest of what is in it.
Shards of a file depend on the file alone, so whoever works on them, and how many, cannot change what comes out.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from evolvent.errors import ConfigError, CorruptRecord, Problem, SampleInvalid
from evolvent.files import atomic_writer, disk_errors, safe_join

__all__ = ["Row", "Shard", "line_of", "read_shard", "shards_of", "store_in", "write_rows"]

Row = Mapping[str, Any]
Form = Literal["jsonl", "json", "parquet", "arrow"]
_FORMS: Mapping[str, Form] = {".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
_at_hand = threading.local()  # `opened`: the Parquet file whose shards this thread reads
_META = ("dataset_info.json", "state.json", "dataset_dict.json", "manifest.json")  # of a folder; no rows


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of the rows of a file.

    Args:
        path: of the file.
        form: how it is read.
        begin, end: bytes of JSON lines, else places of rows.
        first: the place of its first row in the file.
        count: how many rows it has; lines that are no JSON count too.
        digest: SHA-256 of its bytes, or of the whole file and the range, 64 hex digits.
    """

    path: Path
    form: Form
    begin: int
    end: int
    first: int
    count: int
    digest: str


def shards_of(path: Path, *, rows: int = 1000) -> tuple[Shard, ...]:
    """The shards of a file, or of all data files below a folder in the order of their paths.

    Args:
        rows: of a shard, at least 1; the last one of a file has fewer.
    Raises:
        ConfigError: no such file, no data file in the folder, a store of trajectories (`origins` reads those), or a
            shard of no rows. CorruptRecord: a file that cannot be read as what its name says.
    """
    if rows < 1:
        raise ConfigError("shards", value=rows, expected="at least one row each")
    files = _files(path)
    unknown = [
        Problem(str(one), "is no data file", f"expected {', '.join(_FORMS)}")
        for one in files
        if one.suffix not in _FORMS
    ]
    if unknown or not files:
        raise ConfigError(unknown or [Problem(str(path), "holds no data", f"expected files of {', '.join(_FORMS)}")])
    found: list[Shard] = []
    for file in files:
        form = _FORMS[file.suffix]
        with disk_errors(file):
            found += _of_lines(file, rows) if form == "jsonl" else _of_places(file, form, rows)
    return tuple(found)


def store_in(path: Path) -> Path | None:
    """The store of trajectories that a path is, or that a run there holds; None where there is none."""
    for folder in (path / "trajectories", path):
        if (folder / "log").is_dir() or (folder / "manifest.jsonl").is_file():
            return folder
    return None


def _files(path: Path) -> list[Path]:
    """The data files of a path: of a folder that `datasets` saved those that its state names."""
    if path.is_file():
        return [path]
    if store_in(path) is not None:
        raise ConfigError(
            [
                Problem(
                    str(path),
                    "holds trajectories, which are not cut into shards",
                    f"first: evolvent data convert {path} --to rows.jsonl",
                )
            ]
        )
    splits = _named(path / "dataset_dict.json", "splits")
    if splits:
        names = ", ".join(str(path / str(one)) for one in splits)
        raise ConfigError([Problem(str(path), f"holds the splits {', '.join(map(str, splits))}", f"name one: {names}")])
    listed = [one.get("filename") for one in _named(path / "state.json", "_data_files") if isinstance(one, Mapping)]
    if listed:
        return [safe_join(path, str(name)) for name in listed]
    return sorted(one for one in path.rglob("*") if one.suffix in _FORMS and one.name not in _META)


def _named(file: Path, field: str) -> list[Any]:
    """A list in a file that describes a folder; none where there is no such file."""
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_bytes()).get(field, [])
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptRecord(f"{file.name} cannot be read ({str(error)[:100]})", offset=0) from error
    return found if isinstance(found, list) else []


def _of_lines(path: Path, rows: int) -> Iterator[Shard]:
    begin = end = first = 0
    with path.open("rb") as file:
        while block := list(islice(file, rows)):
            digest = hashlib.sha256()
            for line in block:
                digest.update(line)
                end += len(line)
            count = sum(1 for line in block if line.strip())
            if count:
                yield Shard(path, "jsonl", begin, end, first, count, digest.hexdigest())
            begin, first = end, first + len(block)


def _of_places(path: Path, form: Form, rows: int) -> Iterator[Shard]:
    count = _count(path, form)
    for begin in range(0, count, rows):
        end = min(begin + rows, count)
        yield Shard(path, form, begin, end, begin, end - begin, _place_digest(path, begin, end))


def _place_digest(path: Path, begin: int, end: int) -> str:
    state = path.stat()
    whole = _file_digest(path, state.st_mtime_ns, state.st_size)
    return hashlib.sha256(f"{whole} {begin} {end}".encode()).hexdigest()


@lru_cache(maxsize=64)
def _file_digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count(path: Path, form: Form) -> int:
    try:
        if form == "parquet":
            return int(pq.ParquetFile(path).metadata.num_rows)
        if form == "arrow":
            with pa.memory_map(str(path)) as source:
                return sum(batch.num_rows for batch in _batches(source))
        return len(_array(path))
    except (pa.ArrowException, ValueError, RecursionError) as error:
        raise CorruptRecord(f"{path.name} is no {form} ({str(error)[:200]})", offset=0) from error


def read_shard(shard: Shard) -> Iterator[tuple[int, Row | SampleInvalid]]:
    """The rows of a shard with their places in the file, in order; what is no JSON object is an error in its place.

    Raises:
        StoreUnavailable: the file cannot be read any more. CorruptRecord: it is another one now.
    """
    with disk_errors(shard.path):
        for place, row in _read(shard):
            if isinstance(row, Mapping):
                yield place, row
            else:
                yield place, SampleInvalid("a row that is no object", value=str(row)[:80], expected="a JSON object")


def _read(shard: Shard) -> Iterator[tuple[int, Any]]:
    if shard.form == "jsonl":
        yield from _lines(shard)
        return
    if _place_digest(shard.path, shard.begin, shard.end) != shard.digest:
        raise CorruptRecord(f"{shard.path.name} has changed since its shards were cut", offset=shard.begin)
    try:
        if shard.form == "json":
            yield from enumerate(_array(shard.path)[shard.begin : shard.end], shard.first)
        elif shard.form == "parquet":
            yield from _parquet(shard)
        else:
            with pa.memory_map(str(shard.path)) as source:
                yield from _cut(_batches(source), shard)
    except (pa.ArrowException, ValueError, RecursionError) as error:
        raise CorruptRecord(f"{shard.path.name} is no {shard.form} ({str(error)[:200]})", offset=0) from error


def _lines(shard: Shard) -> Iterator[tuple[int, Any]]:
    with shard.path.open("rb") as file:
        file.seek(shard.begin)
        data = file.read(shard.end - shard.begin)
    if hashlib.sha256(data).hexdigest() != shard.digest:
        raise CorruptRecord(f"{shard.path.name} has changed since its shards were cut", offset=shard.begin)
    for place, line in enumerate(data.split(b"\n"), shard.first):
        if line.strip():
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError):
                yield place, line.decode("utf-8", "replace")


def _array(path: Path) -> list[Any]:
    state = path.stat()
    return _array_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _array_once(path: Path, changed: int, size: int) -> list[Any]:
    """A whole file: its shards are read one after another."""
    found = json.loads(path.read_bytes())
    if not isinstance(found, list):
        raise ValueError("no JSON array")
    return found


def _batches(source: Any) -> Iterator[pa.RecordBatch]:
    """Batches of a stream, as `datasets` saves them, or of a file."""
    try:
        yield from pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        source.seek(0)
        opened = pa.ipc.open_file(source)
        yield from (opened.get_batch(place) for place in range(opened.num_record_batches))


class _Opened:
    """A Parquet file that is read from front to back. To begin anew for each shard would take quadratic time."""

    def __init__(self, path: Path, known: tuple[Path, int, int]) -> None:
        file = pq.ParquetFile(path)
        self.known, self.rows = known, int(file.metadata.num_rows)
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches()
        self.begin, self._batch = 0, next(self._batches, None)  # a batch, and the place of its first row

    def read(self, shard: Shard) -> Iterator[tuple[int, Any]]:
        """The rows of a shard that does not begin before the batch at hand, which stays at hand if it goes on."""
        while self._batch is not None and self.begin < shard.end:
            yield from _cut([self._batch], shard, begin=self.begin)
            end = self.begin + self._batch.num_rows
            if end > shard.end:
                return
            self.begin, self._batch = end, next(self._batches, None)


def _parquet(shard: Shard) -> Iterator[tuple[int, Any]]:
    """Goes on where this thread ended with the shard before, if it was of the same file."""
    state = shard.path.stat()
    known = (shard.path, state.st_mtime_ns, state.st_size)
    opened: _Opened | None = vars(_at_hand).pop("opened", None)  # whoever reads at the same time opens it again
    if opened is None or opened.known != known or opened.begin > shard.begin:
        opened = _Opened(shard.path, known)
    yield from opened.read(shard)
    if opened.begin < opened.rows:
        _at_hand.opened = opened


def _cut(batches: Iterable[pa.RecordBatch], shard: Shard, *, begin: int = 0) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        end = begin + batch.num_rows
        if end > shard.begin and begin < shard.end:
            first = max(shard.begin - begin, 0)
            own = batch.slice(first, min(shard.end, end) - begin - first)
            yield from enumerate(own.to_pylist(), begin + first)
        begin = end
        if begin >= shard.end:
            return


def line_of(row: Row) -> bytes:
    """A row as a line of JSON, without its end.

    Raises:
        SampleInvalid: values that JSON does not have: NaN, dates, bytes.
    """
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
            "utf-8", "backslashreplace"
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(
            "a row of values that JSON does not have", value=str(error)[:200], expected="JSON"
        ) from error


def write_rows(path: Path, rows: Iterable[Row]) -> tuple[int, str]:
    """Write rows as JSON lines, or as Parquet where the name says so; whole or not at all.

    Returns:
        How many there are, and the SHA-256 of the file.
    Raises:
        ConfigError: another ending. SampleInvalid: a row that is no JSON, or rows that a table would not give back as
            they are: nested objects of different fields, say, which a column has one type for.
        NoSpace, StoreUnavailable: see `files.atomic_writer`.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError("a file of rows", value=path.name, expected="a name that ends in .jsonl or .parquet")
    count = 0
    with atomic_writer(path) as file:
        if path.suffix == ".jsonl":
            for row in rows:
                file.write(line_of(row) + b"\n")
                count += 1
        else:
            listed = list(rows)
            count = len(listed)
            pq.write_table(_table(listed), file, compression="zstd")
    with path.open("rb") as written:
        return count, hashlib.file_digest(written, "sha256").hexdigest()


def _table(rows: Sequence[Row]) -> pa.Table:
    """The rows as a table that gives every row back: fields that a row does not have are null in it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        same = all(
            found == {name: row.get(name) for name in names} for found, row in zip(table.to_pylist(), rows, strict=True)
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        same, why = False, str(error)[:200]
    else:
        why = "nested objects of different fields"
    if not same:
        raise SampleInvalid(
            "rows that are no table", value=why, expected="equal types of equal fields", hint="write .jsonl"
        )
    return table

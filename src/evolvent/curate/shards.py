"""Data as shards of rows: JSON lines, JSON arrays, Parquet, CSV, and folders that Hugging Face `datasets` saved.

A row is a JSON object. A shard is a range of a file, small enough to be recomputed and identified by a digest
of its content. Shards of a file depend on the file alone, so the number of workers cannot change the result.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from evolvent.data.arrow import make_row_converter
from evolvent.data.tables import iterate_rows
from evolvent.errors import ConfigError, CorruptRecord, Problem, SampleInvalid
from evolvent.files import atomic_writer, disk_errors, safe_join
from evolvent.store.arrow_limits import iterate_arrow
from evolvent.store.parquet_limits import open_parquet
from evolvent.trajectory import JsonObject

__all__ = ["Row", "Shard", "find_store", "list_shards", "read_shard", "row_to_line", "write_rows"]

Row = JsonObject
Form = Literal["jsonl", "json", "parquet", "arrow", "table"]
_FORMS: Mapping[str, Form] = {".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
_TABLE_SUFFIXES = (".csv", ".tsv", ".gz")  # read as a whole, as `data.tables` reads them
_thread_files = threading.local()  # `opened`: the Parquet file whose shards this thread reads
_META = ("dataset_info.json", "state.json", "dataset_dict.json", "manifest.json")  # of a folder; no rows


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of the rows of a file.

    Args:
        path: Path of the file.
        form: Format of the file.
        begin, end: Bytes for JSON lines, otherwise row numbers.
        first: Number of its first row in the file.
        count: Number of rows; lines that are not JSON count too.
        digest: SHA-256 of its bytes, or of the whole file and the range, 64 hex digits.
    """

    path: Path
    form: Form
    begin: int
    end: int
    first: int
    count: int
    digest: str


def list_shards(path: Path, *, rows: int = 1000) -> tuple[Shard, ...]:
    """Splits a file, or all data files below a folder in the order of their paths, into shards.

    Args:
        path: File or folder.
        rows: Rows of a shard, at least 1; the last shard of a file may have fewer.
    Raises:
        ConfigError: no such file, no data file in the folder, a store of trajectories (`origins` reads those), or a
            shard of no rows. CorruptRecord: a file that does not have the format of its suffix.
    """
    if rows < 1:
        raise ConfigError("shard size out of range", value=rows, expected="at least one row")
    files = _list_files(path)
    expected = ", ".join((*_FORMS, *_TABLE_SUFFIXES))
    problems = [
        Problem(str(candidate), "not a data file", f"expected {expected}")
        for candidate in files
        if candidate.suffix not in (*_FORMS, *_TABLE_SUFFIXES)
    ]
    if problems or not files:
        raise ConfigError(problems or [Problem(str(path), "does not hold data", f"expected files of {expected}")])
    shards: list[Shard] = []
    for file in files:
        form = _FORMS.get(file.suffix, "table")
        with disk_errors(file):
            shards += _split_lines(file, rows) if form == "jsonl" else _split_rows(file, form, rows)
    return tuple(shards)


def find_store(path: Path) -> Path | None:
    """Finds the store of trajectories at a path: the path itself or that of a run; None where there is none."""
    for folder in (path / "trajectories", path):
        if (folder / "log").is_dir() or (folder / "manifest.jsonl").is_file():
            return folder
    return None


def _list_files(path: Path) -> list[Path]:
    """Lists the data files of a path; for a folder saved by `datasets` those that its state names."""
    if path.is_file():
        return [path]
    if find_store(path) is not None:
        raise ConfigError(
            [
                Problem(
                    str(path),
                    "holds trajectories, which cannot be split into shards",
                    f"convert them: evolvent data convert {path} --to rows.jsonl",
                )
            ]
        )
    splits = _read_list(path / "dataset_dict.json", "splits")
    if splits:
        names = ", ".join(str(path / str(candidate)) for candidate in splits)
        raise ConfigError(
            [Problem(str(path), f"holds the splits {', '.join(map(str, splits))}", f"choose one: {names}")]
        )
    state_files = [
        candidate.get("filename")
        for candidate in _read_list(path / "state.json", "_data_files")
        if isinstance(candidate, Mapping)
    ]
    if state_files:
        return [safe_join(path, str(name)) for name in state_files]
    candidates = sorted(candidate for candidate in path.rglob("*") if candidate.name not in _META)
    files = [candidate for candidate in candidates if candidate.suffix in _FORMS]
    return files or [candidate for candidate in candidates if candidate.suffix in _TABLE_SUFFIXES]


def _read_list(file: Path, field: str) -> list[Any]:
    """Reads a list from a file that describes a folder; empty where there is no such file."""
    if not file.is_file():
        return []
    try:
        entries = json.loads(file.read_bytes()).get(field, [])
    except (ValueError, RecursionError, AttributeError) as error:
        raise CorruptRecord(f"{file.name} cannot be read ({str(error)[:100]})", offset=0) from error
    return entries if isinstance(entries, list) else []


def _split_lines(path: Path, rows: int) -> Iterator[Shard]:
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


def _split_rows(path: Path, form: Form, rows: int) -> Iterator[Shard]:
    count = _count_rows(path, form)
    for begin in range(0, count, rows):
        end = min(begin + rows, count)
        yield Shard(path, form, begin, end, begin, end - begin, _range_digest(path, begin, end))


def _range_digest(path: Path, begin: int, end: int) -> str:
    state = path.stat()
    file_digest = _file_digest(path, state.st_mtime_ns, state.st_size)
    return hashlib.sha256(f"{file_digest} {begin} {end}".encode()).hexdigest()


@lru_cache(maxsize=64)
def _file_digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count_rows(path: Path, form: Form) -> int:
    try:
        if form == "parquet":
            with open_parquet(path).file as file:
                return int(file.metadata.num_rows)
        if form == "arrow":
            return sum(batch.num_rows for batch in iterate_arrow(path))
        return len(_load_table(path) if form == "table" else _load_array(path))
    except (pa.ArrowException, ValueError, RecursionError, OSError) as error:
        raise _format_error(error, path, form) from error


def _format_error(error: Exception, path: Path, form: Form) -> Exception:
    """Returns the error of a file that is not of its format; pyarrow raises OSError without a number for damage."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return CorruptRecord(f"{path.name} is not valid {form} ({str(error)[:200]})", offset=0)


def read_shard(shard: Shard) -> Iterator[tuple[int, Row | SampleInvalid]]:
    """Yields the rows of a shard with their numbers in the file, in order; a row that is not a JSON object is an
    error.

    Raises:
        StoreUnavailable: the file cannot be read any more. CorruptRecord: it is another one now.
    """
    with disk_errors(shard.path):
        for row_number, row in _read_rows(shard):
            if isinstance(row, Mapping | SampleInvalid):
                yield row_number, row
            else:
                yield (
                    row_number,
                    SampleInvalid("the row is not an object", value=str(row)[:80], expected="a JSON object"),
                )


def _read_rows(shard: Shard) -> Iterator[tuple[int, Any]]:
    if shard.form == "jsonl":
        yield from _read_lines(shard)
        return
    if _range_digest(shard.path, shard.begin, shard.end) != shard.digest:
        raise CorruptRecord(f"{shard.path.name} has changed since it was split into shards", offset=shard.begin)
    try:
        if shard.form in ("json", "table"):
            rows = _load_table(shard.path) if shard.form == "table" else _load_array(shard.path)
            yield from enumerate(rows[shard.begin : shard.end], shard.first)
        elif shard.form == "parquet":
            yield from _read_parquet(shard)
        else:
            yield from _slice_batches(iterate_arrow(shard.path), shard)
    except (pa.ArrowException, ValueError, RecursionError, OSError) as error:
        raise _format_error(error, shard.path, shard.form) from error


def _read_lines(shard: Shard) -> Iterator[tuple[int, Any]]:
    with shard.path.open("rb") as file:
        file.seek(shard.begin)
        data = file.read(shard.end - shard.begin)
    if hashlib.sha256(data).hexdigest() != shard.digest:
        raise CorruptRecord(f"{shard.path.name} has changed since it was split into shards", offset=shard.begin)
    for row_number, line in enumerate(data.split(b"\n"), shard.first):
        if line.strip():
            try:
                yield row_number, json.loads(line)
            except (ValueError, RecursionError):
                yield row_number, line.decode("utf-8", "replace")


def _load_array(path: Path) -> list[Any]:
    state = path.stat()
    return _load_array_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _load_array_once(path: Path, changed: int, size: int) -> list[Any]:
    """Loads a whole file, cached, since its shards are read one after another.

    Where the array is damaged, its items are read one by one, so that a damaged row does not hide the others.
    """
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        rows = [row for _, row in iterate_rows(path)] if path.stat().st_size else None
        if rows is None or not any(isinstance(row, Mapping) for row in rows):
            raise
    if not isinstance(rows, list):
        raise ValueError("not a JSON array")
    return rows


def _load_table(path: Path) -> list[Any]:
    state = path.stat()
    return _load_table_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _load_table_once(path: Path, changed: int, size: int) -> list[Any]:
    return [row for _, row in iterate_rows(path)]


class _OpenParquet:
    """A Parquet file that is read from front to back; starting again for each shard would take quadratic time."""

    def __init__(self, path: Path, file_key: tuple[Path, int, int]) -> None:
        parquet = open_parquet(path)
        self.known, self.rows = file_key, int(parquet.file.metadata.num_rows)
        self._batches: Iterator[pa.RecordBatch] = parquet.iterate_batches()
        self.begin, self._batch = 0, next(self._batches, None)  # a batch, and the place of its first row

    def read_rows(self, shard: Shard) -> Iterator[tuple[int, Any]]:
        """Yields the rows of a shard that does not begin before the current batch, which stays current where it goes
        on.
        """
        while self._batch is not None and self.begin < shard.end:
            yield from _slice_batches([self._batch], shard, begin=self.begin)
            end = self.begin + self._batch.num_rows
            if end > shard.end:
                return
            self.begin, self._batch = end, next(self._batches, None)


def _read_parquet(shard: Shard) -> Iterator[tuple[int, Any]]:
    """Reads a Parquet shard; continues where this thread stopped with the previous shard of the same file."""
    state = shard.path.stat()
    file_key = (shard.path, state.st_mtime_ns, state.st_size)
    opened: _OpenParquet | None = vars(_thread_files).pop(
        "opened", None
    )  # whoever reads at the same time opens it again
    if opened is None or opened.known != file_key or opened.begin > shard.begin:
        opened = _OpenParquet(shard.path, file_key)
    yield from opened.read_rows(shard)
    if opened.begin < opened.rows:
        _thread_files.opened = opened


def _slice_batches(batches: Iterable[pa.RecordBatch], shard: Shard, *, begin: int = 0) -> Iterator[tuple[int, Any]]:
    convert: Callable[[pa.RecordBatch], list[Row]] | None = None
    for batch in batches:
        end = begin + batch.num_rows
        if end > shard.begin and begin < shard.end:
            first = max(shard.begin - begin, 0)
            part = batch.slice(first, min(shard.end, end) - begin - first)
            convert = make_row_converter(part.schema) if convert is None else convert
            yield from enumerate(convert(part), begin + first)
        begin = end
        if begin >= shard.end:
            return


def row_to_line(row: Row) -> bytes:
    """Serializes a row as a line of JSON, without the line end.

    Raises:
        SampleInvalid: values that JSON does not have: NaN, dates, bytes.
    """
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
            "utf-8", "backslashreplace"
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("the row holds a value that is not JSON", hint=str(error)[:200]) from error


def write_rows(path: Path, rows: Iterable[Row]) -> tuple[int, str]:
    """Writes rows as JSON lines, or as Parquet by the suffix; the file appears complete or not at all.

    Returns:
        How many there are, and the SHA-256 of the file.
    Raises:
        ConfigError: another ending. SampleInvalid: a row that is no JSON, or rows that a table would not give back as
            they are: nested objects of different fields, say, which a column has one type for.
        NoSpace, StoreUnavailable: see `files.atomic_writer`.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError("unknown row file format", value=path.name, expected="a name that ends in .jsonl or .parquet")
    count = 0
    with atomic_writer(path) as file:
        if path.suffix == ".jsonl":
            for row in rows:
                file.write(row_to_line(row) + b"\n")
                count += 1
        else:
            all_rows = list(rows)
            count = len(all_rows)
            pq.write_table(_build_table(all_rows), file, compression="zstd")
    with path.open("rb") as stream:
        return count, hashlib.file_digest(stream, "sha256").hexdigest()


def _build_table(rows: Sequence[Row]) -> pa.Table:
    """Builds a table that gives every row back; fields that a row does not have are null in it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        is_lossless = all(
            table_row == {name: row.get(name) for name in names}
            for table_row, row in zip(table.to_pylist(), rows, strict=True)
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        is_lossless, reason = False, str(error)[:200]
    else:
        reason = "nested objects of different fields"
    if not is_lossless:
        raise SampleInvalid(
            "rows do not form a table",
            value=reason,
            expected="the same type in every row of a field",
            hint="write a .jsonl file",
        )
    return table

"""JSON files of rows, read row by row: an invalid row is reported and left out, the others are kept.

There are three readers, by what their callers need:

    read_rows        whole files, parsed rows and the problems of the others; by index of the row
    read_json_lines  lines of one file with their numbers, whatever its name ends in; problems go to a list
    read_json_rows   lines or items of one file with their numbers, in constant memory; refused rows are counted

Readers with other needs share `iterate_lines` and `parse_json`.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from evolvent.errors import ConfigError, LimitExceeded, Problem, SampleInvalid, StoreUnavailable, VersionMismatch
from evolvent.files import disk_errors
from evolvent.trajectory import Task

__all__ = [
    "KnownRow",
    "Refusal",
    "Refusals",
    "get_row",
    "iterate_json_rows",
    "iterate_lines",
    "open_unpacked",
    "parse_json",
    "read_json_lines",
    "read_json_rows",
    "read_rows",
    "row_files",
    "split_of_path",
]

R = TypeVar("R")


class KnownRow(Protocol):
    """A row that knows its position and its digest."""

    @property
    def where(self) -> str:
        """Returns the position of the row, for messages."""
        ...

    @property
    def digest(self) -> str:
        """Returns the digest of the row's content."""
        ...


K = TypeVar("K", bound=KnownRow)
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_MAX_LISTED_PROBLEMS = 5  # rows that a message names
_MAX_LISTED_REFUSALS = 1000  # refused rows that are described; the others are only counted
_CHUNK = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)
_MIN_UNPACKED_BYTES = 2**29  # bytes that any packed file may unpack to
_MAX_UNPACKED_RATIO = 200  # a larger one may unpack to so many times its size; text is seldom packed to a twentieth
_SPLIT_BY_WORD = {
    "test": "test",
    "train": "train",
    "training": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
}


def row_files(path: Path, pattern: str = "*") -> list[tuple[Path, str]]:
    """Lists a file, or a folder's JSON files (`.json`, `.jsonl`, also `.gz`) in path order, each with its name.

    Args:
        pattern: glob pattern of paths in the folder; "**/*" finds all files below it.
    """
    if path.is_file():
        return [(path, path.name)]
    paths = sorted(file for file in path.glob(pattern) if file.name.endswith(_SUFFIXES))
    return [(file, file.relative_to(path).as_posix()) for file in paths]


def read_rows(
    files: Sequence[tuple[Path, str]],
    parse_row: Callable[[object, str, int], R],
    *,
    single: bool = False,
    load: Callable[[Path], Iterator[object]] | None = None,
) -> tuple[tuple[R, ...], tuple[Problem, ...]]:
    """Reads the usable rows of files, and lists the problems of the other rows.

    Args:
        parse_row: makes a row of (JSON value, file name, index in the file); raises SampleInvalid to refuse it.
        single: whether a `.json` file may also hold a single row outside an array.
        load: reads the rows of a path that is not a JSON file.
    Raises:
        ConfigError: a file cannot be read, or no row is usable.
    """
    rows: list[R] = []
    problems: list[Problem] = []
    for file, name in files:
        for index, entry in enumerate(_read_entries(file, single=single) if load is None else load(file)):
            if isinstance(entry, _BrokenLine):
                problems.append(Problem(f"{name}, row {index}", entry.reason, "the row is skipped"))
                continue
            try:
                rows.append(parse_row(entry, name, index))
            except SampleInvalid as error:
                problems.append(Problem(f"{name}, row {index}", str(error), "the row is skipped"))
    if not rows:
        summary = (
            [Problem("and", f"{len(problems) - _MAX_LISTED_PROBLEMS} more rows", "like these")]
            if len(problems) > _MAX_LISTED_PROBLEMS
            else []
        )
        raise ConfigError(
            [*problems[:_MAX_LISTED_PROBLEMS], *summary] or f"no rows in {', '.join(name for _, name in files)}"
        )
    return tuple(rows), tuple(problems)


def get_row(rows: Mapping[tuple[str, int], K], task: Task) -> K:
    """Returns the row that a task names by `file` and `row`, if its content still has the task's `digest`.

    Raises:
        ConfigError: the row does not exist. VersionMismatch: its content has changed.
    """
    row = rows.get((task.spec.get("file", ""), task.spec.get("row", -1)))
    if row is None:
        raise ConfigError("row not found", value=dict(task.spec), expected="a file name and a row number of it")
    if task.spec.get("digest") != row.digest:
        raise VersionMismatch(
            f"the content of {row.where} has changed", value=task.spec.get("digest"), expected=row.digest
        )
    return row


def split_of_path(name: str, root: Path = Path()) -> str:
    """Returns the split that a path names: the last of the words train, dev, val and test in it; test if it has
    none.

    Args:
        name: name of the file, as `row_files` returns it.
        root: the path that was read; a folder's name, or that of a file's folder, counts as part of the path.
    """
    parent_name = root.resolve().parent.name if root.is_file() else root.resolve().name if root != Path() else ""
    path_words = re.split(r"[^a-z]+", f"{parent_name}/{name}".lower())
    return next((_SPLIT_BY_WORD[word] for word in reversed(path_words) if word in _SPLIT_BY_WORD), "test")


def _read_entries(file: Path, *, single: bool) -> Iterator[Any]:
    """Reads the rows of a file as JSON values; a broken line of a `.jsonl` file becomes a `_BrokenLine`."""
    is_jsonl = file.name.removesuffix(".gz").endswith(".jsonl")
    try:
        text = _read_text(file)
        document = None if is_jsonl else json.loads(text)
    except (OSError, ValueError, RecursionError, StoreUnavailable) as error:
        raise ConfigError(f"{file.name} cannot be read ({error})", value=str(file)) from error
    if is_jsonl:
        for number, value in _iterate_parsed_lines(text):
            yield _BrokenLine(f"line {number} {value.reason}") if isinstance(value, _BrokenLine) else value
    elif isinstance(document, list):
        yield from document
    elif single:
        yield document
    else:
        raise ConfigError(
            f"{file.name} does not hold an array of rows", value=type(document).__name__, expected="a JSON array"
        )


def _read_text(file: Path) -> str:
    if file.suffix != ".gz":
        return file.read_text(encoding="utf-8-sig")
    with open_unpacked(file) as stream:
        return stream.read().decode("utf-8-sig")


@dataclass(frozen=True, slots=True)
class _BrokenLine:
    """A line that is not valid JSON, and the reason."""

    reason: str


def _iterate_parsed_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Yields the JSON of each line that is not empty, or a `_BrokenLine`, with its number from 1."""
    for number, line in enumerate(text.split("\n"), 1):  # other line ends may stand inside of JSON's texts
        if line.strip():
            yield number, _parse_line(line)


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return _BrokenLine(f"is not valid JSON ({error.msg}, letter {error.colno})")
    except (ValueError, RecursionError) as error:
        return _BrokenLine(f"cannot be read: {error}")


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading; one that gzip packed is unpacked while it is read, whatever its name.

    Raises:
        StoreUnavailable: it cannot be read or unpacked. LimitExceeded: it unpacks to too much.
    """
    with disk_errors(path), path.open("rb") as file:
        is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        try:
            yield io.BufferedReader(_Unpacked(file, path), _CHUNK) if is_packed else file
        except (EOFError, zlib.error) as error:
            raise StoreUnavailable(f"{path} cannot be unpacked", value=str(error)) from error


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file of gzip, up to a limit: a megabyte may hold a gigabyte of zeros."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._stream, self._path = gzip.GzipFile(fileobj=file), path
        self._limit = max(_MIN_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(len(buffer))
        if self._stream.tell() > self._limit:
            raise LimitExceeded(
                f"{self._path} unpacks to too much",
                value=f"more than {self._limit:,} bytes",
                expected=f"at most {_MAX_UNPACKED_RATIO} times its size",
                hint="unpack it first, or split it",
            )
        buffer[: len(data)] = data
        return len(data)


def iterate_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields each line of an open file that is not blank, with its number from 1."""
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, line


def parse_json(text: str | bytes) -> object:
    """Parses one row.

    Raises:
        SampleInvalid: it is not valid JSON.
    """
    try:
        row: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"not valid JSON: {error}") from error
    return row


def read_json_lines(path: Path, problems: list[Problem], *, hint: str = "") -> Iterator[tuple[int, object]]:
    """Yields the JSON of each line that is not empty, with its number from 1; a line without JSON becomes a problem.

    Args:
        path: the file.
        problems: receives a problem for every line that is left out.
        hint: what the file is needed for, should it be missing.
    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = _read_text(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError([Problem(path.name, f"this file cannot be read ({error})", hint)]) from error
    for number, value in _iterate_parsed_lines(text):
        if isinstance(value, _BrokenLine):
            problems.append(Problem(f"{path.name}, line {number}", f"it {value.reason}", "the line is left out"))
        else:
            yield number, value


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused row: its file, its number (lines, or items of an array, from 1), the field, and the reason."""

    file: str
    line: int
    field: str
    reason: str


@dataclass(slots=True)
class Refusals:
    """The number of refused rows, and the first thousand of them."""

    count: int = 0
    rows: list[Refusal] = field(default_factory=list)

    def record(self, path: Path, line: int, *, field: str, reason: str) -> None:
        """Counts a refused row."""
        self.count += 1
        if len(self.rows) < _MAX_LISTED_REFUSALS:
            self.rows.append(Refusal(str(path), line, field, reason))


def read_json_rows(path: Path, refused: Refusals, *, max_bytes: int = 1 << 24) -> Iterator[tuple[int, object]]:
    """Yields the rows of a file with their numbers, from JSON lines or from one JSON array, in constant memory.

    A file that gzip packed is unpacked while it is read.

    Args:
        path: The file.
        refused: Counts unreadable rows; reading continues with the next row.
        max_bytes: Maximum bytes of one row; longer rows are refused and not kept in memory.
    Raises:
        StoreUnavailable: the file cannot be read.
    """
    for number, row in iterate_json_rows(path, max_bytes=max_bytes):
        if isinstance(row, SampleInvalid):
            refused.record(path, number, field="", reason=str(row))
        else:
            yield number, row


def iterate_json_rows(path: Path, *, max_bytes: int = 1 << 24) -> Iterator[tuple[int, object]]:
    """Yields rows as `read_json_rows` does, and an unreadable row as a `SampleInvalid` in its place.

    Raises:
        StoreUnavailable: the file cannot be read.
    """
    with open_unpacked(path) as file:
        is_array = _is_array(file)
        rows = _iterate_items(file, max_bytes) if is_array else _iterate_bounded_lines(file, max_bytes)
        for number, raw in rows:
            try:
                if raw is None:
                    raise SampleInvalid("the row is longer than the limit", expected=f"at most {max_bytes} bytes")
                row = _parse_strictly(raw)
            except SampleInvalid as error:
                row = error
            yield number, row


def _parse_strictly(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid("the row is not valid JSON", value=str(error)) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


def _is_array(file: IO[bytes]) -> bool:
    """Returns whether the file is one array, and moves just behind its bracket, otherwise to its beginning."""
    if file.read(3) != b"\xef\xbb\xbf":
        file.seek(0)
    start = file.tell()
    while (byte := file.read(1)).isspace():
        pass
    if byte != b"[":
        file.seek(start)
    return byte == b"["


def _iterate_bounded_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    number = 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        if len(raw) > max_bytes and not raw.endswith(b"\n"):
            while (remainder := file.readline(_CHUNK)) and not remainder.endswith(b"\n"):
                pass
            yield number, None
        elif raw.strip():
            yield number, raw


def _iterate_items(file: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields the items of an array whose bracket has been read, split at commas outside strings and brackets."""
    depth, is_quoted, number = 0, False, 1
    item = bytearray()
    while chunk := file.read(_CHUNK):
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk += file.read(1)  # a backslash and what it escapes stay together
        start = 0
        for match in _MARKS.finditer(chunk):
            position, mark = match.start(), match[0]
            if mark == b'"':
                is_quoted = not is_quoted
            elif is_quoted or mark[:1] == b"\\":
                continue
            elif mark in b"{[":
                depth += 1
            elif mark in b"}]" and depth:
                depth -= 1
            elif mark in b",]" and not depth:
                item += chunk[start:position]
                start = position + 1
                if item.strip():
                    yield number, bytes(item) if len(item) <= max_bytes else None
                number += 1
                item.clear()
                if mark == b"]":
                    return
        if len(item) <= max_bytes:
            item += chunk[start:]
    if item.strip():
        yield number, bytes(item) if len(item) <= max_bytes else None

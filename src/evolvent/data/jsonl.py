"""JSON files of rows, read row by row: an invalid row is reported and left out, the others are kept."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch
from evolvent.trajectory import Task

__all__ = ["KnownRow", "get_row", "read_rows", "row_files", "split_of_path"]

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
_MAX_UNPACKED_BYTES = 2**31  # bytes of a file once it is unpacked
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
                problems.append(Problem(f"{name}, row {index}", entry.reason, "the row is left out"))
                continue
            try:
                rows.append(parse_row(entry, name, index))
            except SampleInvalid as error:
                problems.append(Problem(f"{name}, row {index}", str(error), "the row is left out"))
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
        raise ConfigError("no such row that can be used", value=dict(task.spec), expected="a file and a row of it")
    if task.spec.get("digest") != row.digest:
        raise VersionMismatch(f"{row.where} says something else", value=task.spec.get("digest"), expected=row.digest)
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
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ConfigError(f"{file.name} cannot be read ({error})", value=str(file)) from error
    if is_jsonl:
        for number, line in enumerate(text.split("\n"), 1):  # other line ends may stand inside of JSON's texts
            if line.strip():
                yield _parse_line(line, number)
    elif isinstance(document, list):
        yield from document
    elif single:
        yield document
    else:
        raise ConfigError(f"{file.name} holds no array of rows", value=type(document).__name__, expected="a JSON array")


def _read_text(file: Path) -> str:
    if file.suffix != ".gz":
        return file.read_text(encoding="utf-8-sig")
    with gzip.open(file, "rb") as stream:
        data = stream.read(_MAX_UNPACKED_BYTES + 1)
    if len(data) > _MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to more than {_MAX_UNPACKED_BYTES} bytes")
    return data.decode("utf-8-sig")


@dataclass(frozen=True, slots=True)
class _BrokenLine:
    """A line that is not valid JSON, with its number and the reason."""

    reason: str


def _parse_line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return _BrokenLine(f"line {number} is no JSON ({error.msg}, letter {error.colno})")
    except (ValueError, RecursionError) as error:
        return _BrokenLine(f"line {number} cannot be read: {error}")

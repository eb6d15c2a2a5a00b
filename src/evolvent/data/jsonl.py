"""Files of rows in JSON, read one by one: what is wrong with a row is told, and the others go on."""

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

__all__ = ["KnownRow", "read_rows", "row_files", "row_named", "split_said"]

R = TypeVar("R")


class KnownRow(Protocol):
    """A row that says where it stands and what it says."""

    @property
    def where(self) -> str:
        """The row for a message."""
        ...

    @property
    def digest(self) -> str:
        """Of what it says."""
        ...


K = TypeVar("K", bound=KnownRow)
_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_TOLD = 5  # rows that a message names
_LARGEST = 2**31  # bytes of a file once it is unpacked
_MARKS = {
    "test": "test",
    "train": "train",
    "training": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
}


def row_files(path: Path, pattern: str = "*") -> list[tuple[Path, str]]:
    """A file, or a folder's JSON files (`.json`, `.jsonl`, also `.gz`) in the order of their paths; with their names.

    Args:
        pattern: of paths in the folder: "**/*" for all below it.
    """
    if path.is_file():
        return [(path, path.name)]
    found = sorted(one for one in path.glob(pattern) if one.name.endswith(_ENDINGS))
    return [(one, one.relative_to(path).as_posix()) for one in found]


def read_rows(
    files: Sequence[tuple[Path, str]],
    read: Callable[[object, str, int], R],
    *,
    single: bool = False,
    load: Callable[[Path], Iterator[object]] | None = None,
) -> tuple[tuple[R, ...], tuple[Problem, ...]]:
    """The rows of these files that can be used, and what is wrong with the others.

    Args:
        read: of (JSON value, file's name, place in it) makes a row; SampleInvalid refuses it.
        single: a `.json` file may also hold one row that is in no array.
        load: makes rows of a path that is no file of JSON.
    Raises:
        ConfigError: a file that cannot be read, or not one row that can be used.
    """
    rows: list[R] = []
    problems: list[Problem] = []
    for file, name in files:
        for place, entry in enumerate(_entries(file, single=single) if load is None else load(file)):
            if isinstance(entry, _Broken):
                problems.append(Problem(f"{name}, row {place}", entry.told, "the row is left out"))
                continue
            try:
                rows.append(read(entry, name, place))
            except SampleInvalid as error:
                problems.append(Problem(f"{name}, row {place}", str(error), "the row is left out"))
    if not rows:
        more = [Problem("and", f"{len(problems) - _TOLD} more rows", "like these")] if len(problems) > _TOLD else []
        raise ConfigError([*problems[:_TOLD], *more] or f"no rows in {', '.join(name for _, name in files)}")
    return tuple(rows), tuple(problems)


def row_named(rows: Mapping[tuple[str, int], K], task: Task) -> K:
    """The row that a task names by `file` and `row`, if it still says what its `digest` tells.

    Raises:
        ConfigError: there is no such row. VersionMismatch: it says something else now.
    """
    row = rows.get((task.spec.get("file", ""), task.spec.get("row", -1)))
    if row is None:
        raise ConfigError("no such row that can be used", value=dict(task.spec), expected="a file and a row of it")
    if task.spec.get("digest") != row.digest:
        raise VersionMismatch(f"{row.where} says something else", value=task.spec.get("digest"), expected=row.digest)
    return row


def split_said(name: str, root: Path = Path()) -> str:
    """The split that a file's path says: the mark (train, dev, val, test) nearest to its end; test without one.

    Args:
        name: of the file, as `row_files` gives it.
        root: what was read; a folder's name, or that of a file's folder, counts as part of the path.
    """
    above = root.resolve().parent.name if root.is_file() else root.resolve().name if root != Path() else ""
    words = re.split(r"[^a-z]+", f"{above}/{name}".lower())
    return next((_MARKS[word] for word in reversed(words) if word in _MARKS), "test")


def _entries(file: Path, *, single: bool) -> Iterator[Any]:
    """The rows of a file as JSON, and what is wrong with a broken line of a `.jsonl` file."""
    lines = file.name.removesuffix(".gz").endswith(".jsonl")
    try:
        text = _text(file)
        whole = None if lines else json.loads(text)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ConfigError(f"{file.name} cannot be read ({error})", value=str(file)) from error
    if lines:
        for number, line in enumerate(text.split("\n"), 1):  # other line ends may stand inside of JSON's texts
            if line.strip():
                yield _line(line, number)
    elif isinstance(whole, list):
        yield from whole
    elif single:
        yield whole
    else:
        raise ConfigError(f"{file.name} holds no array of rows", value=type(whole).__name__, expected="a JSON array")


def _text(file: Path) -> str:
    if file.suffix != ".gz":
        return file.read_text(encoding="utf-8-sig")
    with gzip.open(file, "rb") as packed:
        data = packed.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"it unpacks to more than {_LARGEST} bytes")
    return data.decode("utf-8-sig")


@dataclass(frozen=True, slots=True)
class _Broken:
    """A line that is no JSON: where, and why."""

    told: str


def _line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return _Broken(f"line {number} is no JSON ({error.msg}, letter {error.colno})")
    except (ValueError, RecursionError) as error:
        return _Broken(f"line {number} cannot be read: {error}")

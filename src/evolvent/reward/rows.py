"""Rows of JSON out of a file of any size, one at a time: lines, or the items of one array. Bad ones are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from evolvent.errors import SampleInvalid
from evolvent.files import disk_errors

__all__ = ["Refusal", "Refusals", "json_rows"]

_CHUNK = 1 << 16
_KEPT = 1000
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row that was refused: its file, its number (lines, or items of an array, from 1), the field, and why."""

    file: str
    line: int
    field: str
    why: str


@dataclass(slots=True)
class Refusals:
    """How many rows were refused, and the first thousand of them."""

    count: int = 0
    rows: list[Refusal] = field(default_factory=list)

    def note(self, path: Path, line: int, *, field: str, why: str) -> None:
        """Count a row."""
        self.count += 1
        if len(self.rows) < _KEPT:
            self.rows.append(Refusal(str(path), line, field, why))


def json_rows(path: Path, refused: Refusals, *, most_bytes: int = 1 << 24) -> Iterator[tuple[int, Any]]:
    """The rows of a file with their numbers, from JSON lines or from one JSON array, in constant memory.

    Args:
        refused: what cannot be read is counted there, and reading goes on with the next row.
        most_bytes: of one row; longer ones are refused and not kept in memory.
    Raises:
        StoreUnavailable: the file cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        array = _begins_with_bracket(file)
        rows = _items(file, most_bytes) if array else _lines(file, most_bytes)
        for number, raw in rows:
            try:
                if raw is None:
                    raise SampleInvalid("the row is longer than the limit", expected=f"at most {most_bytes} bytes")
                yield number, _parsed(raw)
            except SampleInvalid as error:
                refused.note(path, number, field="", why=str(error))


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid("the row is no JSON", value=str(error)) from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _begins_with_bracket(file: IO[bytes]) -> bool:
    """Whether the file is one array; the file is then just behind its bracket, else at its beginning."""
    if file.read(3) != b"\xef\xbb\xbf":
        file.seek(0)
    start = file.tell()
    while (byte := file.read(1)).isspace():
        pass
    if byte != b"[":
        file.seek(start)
    return byte == b"["


def _lines(file: IO[bytes], most: int) -> Iterator[tuple[int, bytes | None]]:
    number = 0
    while raw := file.readline(most + 1):
        number += 1
        if len(raw) > most and not raw.endswith(b"\n"):
            while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif raw.strip():
            yield number, raw


def _items(file: IO[bytes], most: int) -> Iterator[tuple[int, bytes | None]]:
    """The items of an array whose bracket has been read: cut at the commas that stand in no string and no bracket."""
    depth, quoted, number = 0, False, 1
    item = bytearray()
    while chunk := file.read(_CHUNK):
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk += file.read(1)  # a backslash and what it escapes stay together
        start = 0
        for found in _MARKS.finditer(chunk):
            at, mark = found.start(), found[0]
            if mark == b'"':
                quoted = not quoted
            elif quoted or mark[:1] == b"\\":
                continue
            elif mark in b"{[":
                depth += 1
            elif mark in b"}]" and depth:
                depth -= 1
            elif mark in b",]" and not depth:
                item += chunk[start:at]
                start = at + 1
                if item.strip():
                    yield number, bytes(item) if len(item) <= most else None
                number += 1
                item.clear()
                if mark == b"]":
                    return
        if len(item) <= most:
            item += chunk[start:]
    if item.strip():
        yield number, bytes(item) if len(item) <= most else None

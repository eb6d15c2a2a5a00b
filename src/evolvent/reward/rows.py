"""Rows of JSON from a file of any size, one at a time: lines, or the items of one array. Bad rows are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from evolvent.errors import SampleInvalid
from evolvent.files import disk_errors

__all__ = ["Refusal", "Refusals", "read_json_rows"]

_CHUNK = 1 << 16
_MAX_LISTED = 1000
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)


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
        if len(self.rows) < _MAX_LISTED:
            self.rows.append(Refusal(str(path), line, field, reason))


def read_json_rows(path: Path, refused: Refusals, *, max_bytes: int = 1 << 24) -> Iterator[tuple[int, Any]]:
    """Yields the rows of a file with their numbers, from JSON lines or from one JSON array, in constant memory.

    Args:
        path: The file.
        refused: Counts unreadable rows; reading continues with the next row.
        max_bytes: Maximum bytes of one row; longer rows are refused and not kept in memory.
    Raises:
        StoreUnavailable: the file cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        is_array = _is_array(file)
        rows = _iterate_items(file, max_bytes) if is_array else _iterate_lines(file, max_bytes)
        for number, raw in rows:
            try:
                if raw is None:
                    raise SampleInvalid("the row is longer than the limit", expected=f"at most {max_bytes} bytes")
                yield number, _parse(raw)
            except SampleInvalid as error:
                refused.record(path, number, field="", reason=str(error))


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid("the row is no JSON", value=str(error)) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


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


def _iterate_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
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

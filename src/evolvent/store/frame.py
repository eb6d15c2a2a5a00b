"""One record, one line: compact JSON that begins with a fixed header and ends with the CRC-32 of the rest.

    {"v":1,"run":"r","traj":"t","n":0,"kind":"trajectory", ... ,"crc":123456789}

`n` counts a trajectory's lines. The checksum is of the line without the `crc` field and without the newline. The fixed
order of the header lets a reader find a record's id without parsing the whole line.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import CorruptRecord, SampleInvalid, UnknownSchema
from evolvent.files import disk_errors

__all__ = ["SCHEMA_VERSION", "Line", "parse", "read_lines", "to_line", "whole_end"]

SCHEMA_VERSION = 1
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_HEADER = re.compile(rb'\{"v":(\d+),"run":' + _TEXT + rb',"traj":' + _TEXT + rb',"n":(\d+),"kind":"(\w+)"')
_CRC = b',"crc":'
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Line:
    """One verified line: where it begins in its file, its header, and its bytes without the newline."""

    offset: int
    traj: str
    n: int
    kind: str
    raw: bytes


def to_line(fields: Mapping[str, Any], *, run: str, traj: str, n: int = 0, kind: str = "trajectory") -> bytes:
    """The line of a record. Half surrogates, which UTF-8 cannot hold, become U+FFFD and are counted in `replaced`.

    Raises:
        SampleInvalid: for NaN, infinities outside the fields that may hold them, and values that are not JSON.
    """
    record = {"v": SCHEMA_VERSION, "run": run, "traj": traj, "n": n, "kind": kind, **fields}
    try:
        text = _ENCODE(record)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            count = len(_SURROGATE.findall(text))
            body = _SURROGATE.sub("\ufffd", _ENCODE({**record, "replaced": count})).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"trajectory {traj!r} cannot be stored: {error}", expected="JSON values, no NaN") from error
    return body[:-1] + _CRC + str(zlib.crc32(body)).encode() + b"}\n"


def _crc_holds(raw: bytes) -> bool:
    """Whether a line (without its newline) is what was written."""
    cut = raw.rfind(_CRC)
    digits = raw[cut + len(_CRC) : -1]
    return cut > 0 and raw.endswith(b"}") and digits.isdigit() and zlib.crc32(raw[:cut] + b"}") == int(digits)


def _header(path: Path, offset: int, raw: bytes) -> Line:
    found = _HEADER.match(raw)
    if found:
        version, traj = int(found[1]), found[3]
        name = traj.decode() if b"\\" not in traj else json.loads(b'"' + traj + b'"')
        line = Line(offset, name, int(found[4]), found[5].decode(), raw)
    else:
        record = json.loads(raw)
        version = record.get("v", -1)
        line = Line(offset, str(record.get("traj")), int(record.get("n", 0)), str(record.get("kind")), raw)
    if version != SCHEMA_VERSION:
        raise UnknownSchema(
            f"{path} holds a record of another schema at byte {offset}",
            value=version,
            expected=f"version {SCHEMA_VERSION}",
            hint="read it with the version of evolvent that wrote it",
        )
    return line


def parse(line: Line) -> dict[str, Any]:
    """The fields of a verified line."""
    record: dict[str, Any] = json.loads(line.raw)
    return record


def read_lines(path: Path, *, torn: bool, begin: int = 0) -> Iterator[Line]:
    """The lines of a segment from byte `begin`, each verified.

    Args:
        torn: whether the last line may be unterminated (a killed or still writing writer); it is then left out.
    Raises:
        CorruptRecord: a checksum that does not fit, with file and byte offset.
        UnknownSchema: a line of another schema version.
        StoreUnavailable: a file that cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        file.seek(begin)
        offset = begin
        for raw in file:
            whole = raw.endswith(b"\n")
            if not whole and torn:
                return
            if not whole or not _crc_holds(raw[:-1]):
                raise CorruptRecord(
                    f"a record of {path} is damaged at byte {offset}",
                    offset=offset,
                    value=repr(raw[:60]),
                    hint="restore the file from a copy; records before this byte are good",
                )
            yield _header(path, offset, raw[:-1])
            offset += len(raw)


def whole_end(path: Path) -> int:
    """The size of a segment without an unterminated last line."""
    with disk_errors(path), path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            begin = max(0, end - (1 << 16))
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0

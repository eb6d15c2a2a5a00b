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
from evolvent.trajectory import JsonObject

__all__ = ["SCHEMA_VERSION", "RecordLine", "encode_line", "find_last_line_end", "parse_line", "read_lines"]

SCHEMA_VERSION = 1
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
_HEADER = re.compile(rb'\{"v":(\d+),"run":' + _TEXT + rb',"traj":' + _TEXT + rb',"n":(\d+),"kind":"(\w+)"')
_CRC = b',"crc":'
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RecordLine:
    """One verified line: its offset in the file, its header, and its bytes without the newline."""

    offset: int
    traj: str
    n: int
    kind: str
    raw: bytes


def encode_line(fields: Mapping[str, object], *, run: str, traj: str, n: int = 0, kind: str = "trajectory") -> bytes:
    """Encodes the line of a record. Half surrogates, which UTF-8 cannot hold, become U+FFFD and are counted in
    `replaced`.

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


def _has_valid_crc(raw: bytes) -> bool:
    """Returns whether a line (without its newline) fits its checksum."""
    crc_start = raw.rfind(_CRC)
    digits = raw[crc_start + len(_CRC) : -1]
    return (
        crc_start > 0 and raw.endswith(b"}") and digits.isdigit() and zlib.crc32(raw[:crc_start] + b"}") == int(digits)
    )


def _parse_header(path: Path, offset: int, raw: bytes) -> RecordLine:
    match = _HEADER.match(raw)
    if match:
        version, traj = int(match[1]), match[3]
        name = traj.decode() if b"\\" not in traj else json.loads(b'"' + traj + b'"')
        line = RecordLine(offset, name, int(match[4]), match[5].decode(), raw)
    else:
        record = json.loads(raw)
        version = record.get("v", -1)
        line = RecordLine(offset, str(record.get("traj")), int(record.get("n", 0)), str(record.get("kind")), raw)
    if version != SCHEMA_VERSION:
        raise UnknownSchema(
            f"{path} holds a record of another schema at byte {offset}",
            value=version,
            expected=f"version {SCHEMA_VERSION}",
            hint="read it with the version of evolvent that wrote it",
        )
    return line


def parse_line(line: RecordLine) -> JsonObject:
    """Parses the fields of a verified line."""
    record: dict[str, Any] = json.loads(line.raw)
    return record


def read_lines(path: Path, *, torn: bool, begin: int = 0) -> Iterator[RecordLine]:
    """Yields the lines of a segment from byte `begin`, each verified.

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
            is_terminated = raw.endswith(b"\n")
            if not is_terminated and torn:
                return
            if not is_terminated or not _has_valid_crc(raw[:-1]):
                raise CorruptRecord(
                    f"a record of {path} is damaged at byte {offset}",
                    offset=offset,
                    value=repr(raw[:60]),
                    hint="restore the file from a copy; records before this byte are good",
                )
            yield _parse_header(path, offset, raw[:-1])
            offset += len(raw)


def find_last_line_end(path: Path) -> int:
    """Returns the size of a segment without an unterminated last line."""
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

"""Sealing: closed segments of the log become Parquet, three tables, one part of each for a segment.

What a segment is sealed to depends on its bytes alone, and the part's name holds their hash: sealing again after a kill
writes the same bytes under the same name. The order makes every moment safe: parts under temporary names, on disk,
renamed; then the line in the manifest, which makes them count; then the segment is removed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evolvent.errors import CorruptRecord, StoreUnavailable, UnknownSchema
from evolvent.files import append_line, atomic_writer, disk_errors, safe_join
from evolvent.store.columns import annotation_table, step_table, trajectory_table
from evolvent.store.frame import SCHEMA_VERSION
from evolvent.store.log import read_records, segment_path, segments
from evolvent.store.schema import decode, decode_annotation
from evolvent.trajectory import Annotation, Trajectory

__all__ = ["TABLES", "SealReport", "manifest", "part_path", "read_part", "seal"]

TABLES = ("trajectories", "steps", "annotations")
_ROW_GROUP = 2048
_VERSION_KEY = b"evolvent_schema"


@dataclass(frozen=True, slots=True)
class SealReport:
    """What sealing did: segments sealed, their rows by table, and bytes before and after."""

    segments: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    log_bytes: int = 0
    parquet_bytes: int = 0


def _manifest_path(root: Path) -> Path:
    return root / "manifest.jsonl"


def manifest(root: Path) -> dict[int, dict[str, Any]]:
    """The sealed segments: number -> {"segment", "sha256", "part", "rows": {table: count}}.

    Raises:
        CorruptRecord: a damaged line; a torn last line is left out.
    """
    path = _manifest_path(root)
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b""
    rows: dict[int, dict[str, Any]] = {}
    offset = 0
    for line in raw.splitlines(keepends=True):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
                rows[int(row["segment"])] = row
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptRecord(f"{path} is damaged at byte {offset}", offset=offset, value=line[:60]) from error
        offset += len(line)
    return rows


def part_path(root: Path, table: str, row: Mapping[str, Any]) -> Path:
    """The file of a table of a sealed segment."""
    return safe_join(root / "parquet" / table, str(row["part"]))


def read_part(
    root: Path, table: str, row: Mapping[str, Any], *, columns: Sequence[str] | None = None, filters: Any = None
) -> pa.Table:
    """One table of a sealed segment (checksums of its pages are verified).

    Raises:
        UnknownSchema: sealed by a newer version.
        CorruptRecord: a damaged file.
        StoreUnavailable: a file that is not there.
    """
    path = part_path(root, table, row)
    if not path.exists():
        raise StoreUnavailable(f"the manifest names {path}, which does not exist", hint="restore it from a copy")
    try:
        wanted = list(columns) if columns is not None else None
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"0"))
            if version == SCHEMA_VERSION and filters is None:
                return file.read(columns=wanted)
        if version == SCHEMA_VERSION:  # slower to begin, but skips the row groups that cannot hold what is asked
            return pq.read_table(path, columns=wanted, filters=filters, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptRecord(
            f"{path} is damaged: {str(error).rstrip('.')}", offset=0, hint="restore the file from a copy"
        ) from error
    raise UnknownSchema(f"{path} has another schema", value=version, expected=f"version {SCHEMA_VERSION}")


def seal(root: Path, *, before: int, older_than: int = 0) -> SealReport:
    """Seal the segments with a number below `before`; the caller holds the store's lock and writes none of them.

    Args:
        older_than: only segments last written at least so many seconds ago.
    Raises:
        NoSpace, StoreUnavailable: what was sealed before stays sealed, the rest stays in the log.
        CorruptRecord: a damaged segment; it stays as it is.
    """
    done = manifest(root)
    rows = dict.fromkeys(TABLES, 0)
    count = before_bytes = after_bytes = 0
    for number in segments(root):
        path = segment_path(root, number)
        with disk_errors(path):
            state = path.stat()
        young = older_than > 0 and state.st_mtime > time.time() - older_than
        if number >= before or number in done or young:
            continue
        row = _seal_one(root, number)
        append_line(_manifest_path(root), row)
        with disk_errors(path):
            path.unlink()
            parts = [part_path(root, table, row).stat().st_size for table in TABLES if row["rows"][table]]
        count, before_bytes, after_bytes = count + 1, before_bytes + state.st_size, after_bytes + sum(parts)
        rows = {table: rows[table] + row["rows"][table] for table in TABLES}
    return SealReport(count, rows, before_bytes, after_bytes)


def _seal_one(root: Path, number: int) -> dict[str, Any]:
    path = segment_path(root, number)
    with disk_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    rows = sorted(_trajectories(path), key=lambda row: row[2].id)
    notes = sorted(_annotations(path), key=lambda row: (row[2].trajectory, row[1]))
    tables = {
        "trajectories": trajectory_table(rows),
        "steps": step_table([trajectory for _, _, trajectory in rows]),
        "annotations": annotation_table(notes),
    }
    row = {
        "segment": number,
        "sha256": digest,
        "part": f"part-{digest[:16]}.parquet",
        "rows": {name: table.num_rows for name, table in tables.items()},
    }
    for name, table in tables.items():
        if table.num_rows:
            _write(part_path(root, name, row), table)
    return row


def _trajectories(path: Path) -> list[tuple[str, int, Trajectory]]:
    """The segment's trajectories with run and place; an interrupted one gives way to a later one of its id."""
    found: dict[str, tuple[str, int, Trajectory]] = {}
    for seq, record in enumerate(read_records(path, torn=False)):
        fields = record.fields()
        found[record.id] = (fields["run"], seq, decode(fields))
    return list(found.values())


def _annotations(path: Path) -> list[tuple[str, int, Annotation]]:
    rows = []
    for seq, record in enumerate(read_records(path, torn=False, annotations=True)):
        fields = record.fields()
        rows.append((fields["run"], seq, decode_annotation(fields)))
    return rows


def _write(path: Path, table: pa.Table) -> None:
    versioned = table.replace_schema_metadata({_VERSION_KEY: str(SCHEMA_VERSION)})
    with atomic_writer(path, needed=table.nbytes // 4) as file:
        pq.write_table(
            versioned, file, compression="zstd", row_group_size=_ROW_GROUP, write_page_checksum=True, store_schema=True
        )

"""Seals closed segments of the log: they become Parquet, three tables, one part of each for a segment.

The result of sealing depends on a segment's bytes alone, and the part's name holds their hash: sealing again after a
kill writes the same bytes under the same name. The order makes every moment safe: parts under temporary names, on disk,
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
from evolvent.store.log import list_segments, read_records, segment_path
from evolvent.store.schema import decode_annotation, decode_trajectory
from evolvent.trajectory import Annotation, JsonObject, Trajectory

__all__ = ["TABLES", "SealReport", "part_path", "read_part", "read_seal_manifest", "seal_segments"]

TABLES = ("trajectories", "steps", "annotations")
_ROW_GROUP = 2048
_VERSION_KEY = b"evolvent_schema"


@dataclass(frozen=True, slots=True)
class SealReport:
    """The result of sealing: segments sealed, their rows by table, and bytes before and after."""

    segments: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    log_bytes: int = 0
    parquet_bytes: int = 0


def _manifest_path(root: Path) -> Path:
    return root / "manifest.jsonl"


def read_seal_manifest(root: Path) -> Mapping[int, JsonObject]:
    """Reads the sealed segments: number -> {"segment", "sha256", "part", "rows": {table: count}}.

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


def part_path(root: Path, table: str, row: Mapping[str, object]) -> Path:
    """Returns the file of a table of a sealed segment."""
    return safe_join(root / "parquet" / table, str(row["part"]))


def read_part(
    root: Path, table: str, row: Mapping[str, object], *, columns: Sequence[str] | None = None, filters: object = None
) -> pa.Table:
    """Reads one table of a sealed segment (checksums of its pages are verified).

    Raises:
        UnknownSchema: sealed by a newer version.
        CorruptRecord: a damaged file.
        StoreUnavailable: a file that is not there.
    """
    path = part_path(root, table, row)
    if not path.exists():
        raise StoreUnavailable(f"the manifest names {path}, which does not exist", hint="restore it from a copy")
    try:
        column_names = list(columns) if columns is not None else None
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"0"))
            if version == SCHEMA_VERSION and filters is None:
                return file.read(columns=column_names)
        if version == SCHEMA_VERSION:  # slower to begin, but skips the row groups that cannot hold what is asked
            return pq.read_table(path, columns=column_names, filters=filters, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptRecord(
            f"{path} is damaged: {str(error).rstrip('.')}", offset=0, hint="restore the file from a copy"
        ) from error
    raise UnknownSchema(f"{path} has another schema", value=version, expected=f"version {SCHEMA_VERSION}")


def seal_segments(root: Path, *, before: int, older_than: int = 0) -> SealReport:
    """Converts the segments with a number below `before`; the caller holds the store's lock and writes none of them.

    Args:
        older_than: only segments last written at least this number of seconds ago.
    Raises:
        NoSpace, StoreUnavailable: segments sealed before stay sealed, the others stay in the log.
        CorruptRecord: a damaged segment; it stays as it is.
    """
    sealed_rows = read_seal_manifest(root)
    rows = dict.fromkeys(TABLES, 0)
    count = before_bytes = after_bytes = 0
    for number in list_segments(root):
        path = segment_path(root, number)
        with disk_errors(path):
            stat_result = path.stat()
        is_recent = older_than > 0 and stat_result.st_mtime > time.time() - older_than
        if number >= before or number in sealed_rows or is_recent:
            continue
        row = _seal_segment(root, number)
        append_line(_manifest_path(root), row)
        with disk_errors(path):
            path.unlink()
            parts = [part_path(root, table, row).stat().st_size for table in TABLES if row["rows"][table]]
        count, before_bytes, after_bytes = count + 1, before_bytes + stat_result.st_size, after_bytes + sum(parts)
        rows = {table: rows[table] + row["rows"][table] for table in TABLES}
    return SealReport(count, rows, before_bytes, after_bytes)


def _seal_segment(root: Path, number: int) -> dict[str, Any]:
    path = segment_path(root, number)
    with disk_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    rows = sorted(_read_trajectories(path), key=lambda row: row[2].id)
    annotations = sorted(_read_annotations(path), key=lambda row: (row[2].trajectory, row[1]))
    tables = {
        "trajectories": trajectory_table(rows),
        "steps": step_table([trajectory for _, _, trajectory in rows]),
        "annotations": annotation_table(annotations),
    }
    row = {
        "segment": number,
        "sha256": digest,
        "part": f"part-{digest[:16]}.parquet",
        "rows": {name: table.num_rows for name, table in tables.items()},
    }
    for name, table in tables.items():
        if table.num_rows:
            _write_table(part_path(root, name, row), table)
    return row


def _read_trajectories(path: Path) -> list[tuple[str, int, Trajectory]]:
    """Reads the segment's trajectories with run and position; an interrupted one gives way to a later one of its id."""
    rows: dict[str, tuple[str, int, Trajectory]] = {}
    for seq, record in enumerate(read_records(path, torn=False)):
        fields = record.fields()
        rows[record.id] = (fields["run"], seq, decode_trajectory(fields))
    return list(rows.values())


def _read_annotations(path: Path) -> list[tuple[str, int, Annotation]]:
    rows = []
    for seq, record in enumerate(read_records(path, torn=False, annotations=True)):
        fields = record.fields()
        rows.append((fields["run"], seq, decode_annotation(fields)))
    return rows


def _write_table(path: Path, table: pa.Table) -> None:
    versioned = table.replace_schema_metadata({_VERSION_KEY: str(SCHEMA_VERSION)})
    with atomic_writer(path, needed=table.nbytes // 4) as file:
        pq.write_table(
            versioned, file, compression="zstd", row_group_size=_ROW_GROUP, write_page_checksum=True, store_schema=True
        )

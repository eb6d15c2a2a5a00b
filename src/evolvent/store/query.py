"""Reads a store: sealed parts and live segments as one sequence, in the order in which episodes were appended.

One rule decides between records of one id: an interrupted episode gives way to a later record. So that memory does not
grow with the store, episodes are streamed, and only interrupted ones are held back, to the end.

Seals closed segments of the log: they become Parquet, three tables, one part of each for a segment.

The result of sealing depends on a segment's bytes alone, and the part's name holds their hash: sealing again after a
kill writes the same bytes under the same name. The order makes every moment safe: parts under temporary names, on disk,
renamed; then the line in the manifest, which makes them count; then the segment is removed.

Columns of a store as Arrow batches, for notebooks, reports and query engines.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evolvent.errors import ConfigError, CorruptRecord, StoreUnavailable, UnknownSchema, unknown_name_problem
from evolvent.files import append_line, atomic_writer, disk_errors, safe_join
from evolvent.store.columns import (
    STEPS,
    TRAJECTORIES,
    add_missing_fields,
    annotation_table,
    read_annotations,
    step_table,
    trajectory_reader,
    trajectory_table,
)
from evolvent.store.log import SCHEMA_VERSION, Record, list_segments, read_records, segment_path
from evolvent.store.parquet_limits import check_parquet
from evolvent.store.schema import INTERRUPTED, decode_annotation, decode_trajectory
from evolvent.trajectory import Annotation, JsonObject, Trajectory

__all__ = [
    "FILTER_COLUMNS",
    "TABLES",
    "Filters",
    "SealReport",
    "StoredTrajectory",
    "Table",
    "check_filters",
    "find_annotations",
    "find_trajectories",
    "interrupted_rows",
    "iter_segments",
    "mask_rows",
    "matches_filters",
    "part_path",
    "read_part",
    "read_seal_manifest",
    "scan",
    "seal_segments",
]


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
            check_parquet(file, path)
            version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"0"))
            if version == SCHEMA_VERSION and filters is None:
                return add_missing_fields(file.read(columns=column_names))
        if version == SCHEMA_VERSION:  # slower to begin, but skips the row groups that cannot hold what is asked
            return add_missing_fields(
                pq.read_table(path, columns=column_names, filters=filters, page_checksum_verification=True)
            )
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


T = TypeVar("T")

Filters = Mapping[str, object]
FILTER_COLUMNS = (
    "run",
    "traj",
    "task",
    "world",
    "version",
    "kind",
    "tier",
    "split",
    "group",
    "sample",
    "ended_by",
    "success",
)


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """One trajectory of a store: its id, whether it matches the filters, and a function that loads it."""

    id: str
    interrupted: bool
    matches: bool
    load: Callable[[], Trajectory]


def check_filters(filters: Filters | None) -> dict[str, Collection[object]]:
    """Returns the accepted values of each column; a single value stands for itself.

    Raises:
        ConfigError: names every unknown column.
    """
    problems = [
        unknown_name_problem("column", name, FILTER_COLUMNS, location="where")
        for name in filters or ()
        if name not in FILTER_COLUMNS
    ]
    if problems:
        raise ConfigError(problems)
    return {
        name: tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
        for name, value in (filters or {}).items()
    }


def iter_segments(
    root: Path,
    read_sealed: Callable[[JsonObject], Iterator[T]],
    read_live: Callable[[Path, bool], Iterator[T]],
) -> Iterator[T]:
    """Reads every segment, sealed or live; a segment that is sealed meanwhile by its writer is read from its parts."""
    live_segments = list_segments(root)  # before the manifest: what is sealed in between is in both
    sealed_rows = read_seal_manifest(root)
    for number in sorted({*sealed_rows, *live_segments}):
        row = sealed_rows.get(number)
        if row is None:
            try:
                yield from read_live(
                    segment_path(root, number), number == live_segments[-1]
                )  # the last may have a torn end
                continue
            except StoreUnavailable as error:
                row = read_seal_manifest(root).get(number)
                if row is None or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        yield from read_sealed(row)


def find_trajectories(
    root: Path, *, filters: Filters | None = None, prefix: str = "", ids_only: bool = False
) -> Iterator[StoredTrajectory]:
    """Yields the trajectories that match, in append order, interrupted ones last; memory is that of one segment.

    Args:
        filters: column -> value, or a list of accepted values; columns are `FILTER_COLUMNS`.
        prefix: start of their ids.
        ids_only: read no more than their ids need; `StoredTrajectory.load` then has no data.
    """
    accepted_values = check_filters(filters)
    columns = [*dict.fromkeys([*accepted_values, "traj", "seq", "error"])] if ids_only else None

    def read_live(path: Path, is_last: bool) -> Iterator[StoredTrajectory]:
        for record in read_records(path, torn=is_last, prefix=prefix):
            yield _from_record(record, accepted_values)

    def read_sealed(row: Mapping[str, Any]) -> Iterator[StoredTrajectory]:
        if row["rows"]["trajectories"]:
            has_prefix = pc.starts_with(pc.field("traj"), pattern=prefix) if prefix else None
            heads = read_part(root, "trajectories", row, columns=columns, filters=has_prefix).sort_by("seq")
            yield from _from_part(root, row, heads, accepted_values=accepted_values)

    interrupted: dict[str, StoredTrajectory] = {}
    for stored in iter_segments(root, read_sealed, read_live):
        interrupted.pop(stored.id, None)
        if stored.interrupted:
            interrupted[stored.id] = stored
        elif stored.matches:
            yield stored
    yield from (stored for stored in interrupted.values() if stored.matches)


def matches_filters(fields: JsonObject, accepted_values: Mapping[str, Collection[object]]) -> bool:
    """Returns whether the fields of a live record match the filters."""
    task, score = fields["task"], fields.get("score", (None, None, None))
    values = {**fields, **task, "task": task["id"], "success": score[2]}
    return all(values.get(name) in accepted for name, accepted in accepted_values.items())


def _from_record(record: Record, accepted_values: Mapping[str, Collection[Any]]) -> StoredTrajectory:
    is_match = not accepted_values or matches_filters(record.fields(), accepted_values)
    return StoredTrajectory(record.id, record.is_interrupted, is_match, lambda: decode_trajectory(record.fields()))


def mask_rows(heads: pa.Table, accepted_values: Mapping[str, Collection[object]]) -> list[bool]:
    """Returns for each row whether it matches."""
    mask = [True] * heads.num_rows
    for name, accepted in accepted_values.items():
        mask = [is_match and value in accepted for is_match, value in zip(mask, heads[name].to_pylist(), strict=True)]
    return mask


def interrupted_rows(heads: pa.Table) -> list[bool]:
    """Returns for each row whether a later record of its id replaces it."""
    kinds = pc.struct_field(heads["error"], "kind")
    return [kind == INTERRUPTED for kind in kinds.to_pylist()]


def _from_part(
    root: Path, row: Mapping[str, Any], heads: pa.Table, *, accepted_values: Mapping[str, Collection[Any]]
) -> Iterator[StoredTrajectory]:
    mask, interrupted, ids = mask_rows(heads, accepted_values), interrupted_rows(heads), heads["traj"].to_pylist()
    matching = heads.filter(pa.array(mask, pa.bool_()))

    @cache
    def make_reader() -> Callable[[int], Trajectory]:
        is_subset = matching.num_rows < row["rows"]["trajectories"]
        id_filter = pc.field("traj").isin(matching["traj"].combine_chunks()) if is_subset else None
        has_steps = bool(row["rows"]["steps"])
        steps = read_part(root, "steps", row, filters=id_filter) if has_steps else STEPS.empty_table()
        return trajectory_reader(matching, steps)

    def load(index: int) -> Trajectory:
        return make_reader()(index)

    index = 0
    for i, traj in enumerate(ids):
        yield StoredTrajectory(traj, interrupted[i], mask[i], partial(load, index))
        index += mask[i]


def find_annotations(root: Path, *, trajectory: str | None = None, scorer: str | None = None) -> Iterator[Annotation]:
    """Yields the annotations, of one trajectory or scorer if given; within a trajectory in append order."""

    def is_match(annotation: Annotation) -> bool:
        return trajectory in (None, annotation.trajectory) and scorer in (None, annotation.scorer)

    def read_live(path: Path, is_last: bool) -> Iterator[Annotation]:
        for record in read_records(path, torn=is_last, prefix=trajectory or "", annotations=True):
            yield decode_annotation(record.fields())

    def read_sealed(row: Mapping[str, Any]) -> Iterator[Annotation]:
        if row["rows"]["annotations"]:
            filters = None if trajectory is None else pc.field("traj") == trajectory
            yield from read_annotations(read_part(root, "annotations", row, filters=filters).sort_by("seq"))

    return (note for note in iter_segments(root, read_sealed, read_live) if is_match(note))


Table = Literal["trajectories", "steps"]
_SCHEMAS = {"trajectories": TRAJECTORIES, "steps": STEPS}
_BATCH_ROWS = 512
_Row = tuple[str, int, Trajectory]


def scan(
    root: Path, *, columns: Sequence[str] | None = None, filters: Filters | None = None, table: Table = "trajectories"
) -> Iterator[pa.RecordBatch]:
    """Yields batches of the table, of all segments, live ones included; interrupted trajectories come last.

    Args:
        columns: only those (all if None). Sealed parts are read column by column, so few columns are quick.
        filters: as in `find_trajectories`; they select trajectories, also for the table of steps.
    Raises:
        ConfigError: for an unknown column.
    """
    schema, accepted_values = _SCHEMAS[table], check_filters(filters)
    names = list(columns) if columns is not None else schema.names
    problems = [
        unknown_name_problem("column", name, schema.names, location="columns")
        for name in names
        if name not in schema.names
    ]
    if problems:
        raise ConfigError(problems)
    interrupted: dict[str, tuple[bool, Callable[[], pa.Table]]] = {}

    def read_live(path: Path, is_last: bool) -> Iterator[pa.Table]:
        ready: list[_Row] = []
        for seq, record in enumerate(read_records(path, torn=is_last)):
            interrupted.pop(record.id, None)
            fields = record.fields()
            is_match = matches_filters(fields, accepted_values)
            if record.is_interrupted:
                interrupted[record.id] = (
                    is_match,
                    partial(_make_table, [(fields["run"], seq, decode_trajectory(fields))], table),
                )
            elif is_match:
                ready.append((fields["run"], seq, decode_trajectory(fields)))
            if len(ready) == _BATCH_ROWS:
                yield _make_table(ready, table)
                ready = []
        yield _make_table(ready, table)

    def read_sealed(row: Mapping[str, Any]) -> Iterator[pa.Table]:
        if not row["rows"]["trajectories"]:
            return
        heads = read_part(root, "trajectories", row, columns=_required_columns(names, table, [*accepted_values]))
        mask, is_interrupted = mask_rows(heads, accepted_values), interrupted_rows(heads)
        for trajectory_id in heads["traj"].to_pylist() if interrupted else ():
            interrupted.pop(trajectory_id, None)
        for i in (i for i, is_broken in enumerate(is_interrupted) if is_broken):
            interrupted[heads["traj"][i].as_py()] = (
                mask[i],
                partial(_read_part_rows, root, row, heads.slice(i, 1), table),
            )
        selected = [is_match and not is_broken for is_match, is_broken in zip(mask, is_interrupted, strict=True)]
        yield _read_part_rows(
            root, row, heads if all(selected) else heads.filter(pa.array(selected, pa.bool_())), table
        )

    for segment_table in iter_segments(root, read_sealed, read_live):
        yield from segment_table.select(names).to_batches()
    for is_match, load_table in interrupted.values():
        if is_match:
            yield from load_table().select(names).to_batches()


def _required_columns(names: Sequence[str], table: Table, filter_columns: Sequence[str]) -> list[str]:
    columns = [] if table == "steps" else list(names)
    return list(dict.fromkeys([*columns, *filter_columns, "traj", "seq", "error"]))


def _make_table(rows: Sequence[_Row], table: Table) -> pa.Table:
    return trajectory_table(rows) if table == "trajectories" else step_table([t for _, _, t in rows])


def _read_part_rows(root: Path, row: Mapping[str, Any], heads: pa.Table, table: Table) -> pa.Table:
    """Returns the rows of a sealed part that belong to `heads`."""
    if table == "trajectories":
        return heads.sort_by("seq")
    if not row["rows"]["steps"]:
        return STEPS.empty_table()
    is_whole_part = heads.num_rows == row["rows"]["trajectories"]
    filters = None if is_whole_part else pc.field("traj").isin(heads["traj"].combine_chunks())
    return read_part(root, "steps", row, filters=filters)

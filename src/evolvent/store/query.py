"""Reads a store: sealed parts and live segments as one sequence, in the order in which episodes were appended.

One rule decides between records of one id: an interrupted episode gives way to a later record. So that memory does not
grow with the store, episodes are streamed, and only interrupted ones are held back, to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from evolvent.errors import ConfigError, StoreUnavailable, unknown_name_problem
from evolvent.store.columns import STEPS, read_annotations, trajectory_reader
from evolvent.store.log import Record, list_segments, read_records, segment_path
from evolvent.store.schema import INTERRUPTED, decode_annotation, decode_trajectory
from evolvent.store.seal import read_part, read_seal_manifest
from evolvent.trajectory import Annotation, JsonObject, Trajectory

__all__ = [
    "FILTER_COLUMNS",
    "Filters",
    "StoredTrajectory",
    "check_filters",
    "find_annotations",
    "find_trajectories",
    "interrupted_rows",
    "iter_segments",
    "mask_rows",
    "matches_filters",
]

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

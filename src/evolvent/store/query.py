"""Reading a store: sealed parts and live segments as one sequence, in the order in which episodes were appended.

One rule decides between records of one id: an interrupted episode gives way to a later record. So that memory does not
grow with the store, episodes are streamed, and only interrupted ones are held back, to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evolvent.errors import ConfigError, StoreUnavailable, unknown
from evolvent.store.columns import STEPS, read_annotations, trajectory_reader
from evolvent.store.log import Record, read_records, segment_path, segments
from evolvent.store.schema import INTERRUPTED, decode, decode_annotation
from evolvent.store.seal import manifest, read_part
from evolvent.trajectory import Annotation, Trajectory

__all__ = [
    "FILTERS",
    "Found",
    "Where",
    "check_where",
    "each_unit",
    "find",
    "find_annotations",
    "interrupted_rows",
    "mask_rows",
    "matches",
]

Where = Mapping[str, Any]
FILTERS = (
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
class Found:
    """One trajectory of a store: its id, whether it matches the question, and how to read it."""

    id: str
    interrupted: bool
    matches: bool
    read: Callable[[], Trajectory]


def check_where(where: Where | None) -> dict[str, Collection[Any]]:
    """The accepted values of each column; a single value stands for itself.

    Raises:
        ConfigError: naming every column that cannot be asked for.
    """
    problems = [unknown("column", name, FILTERS, where="where") for name in where or () if name not in FILTERS]
    if problems:
        raise ConfigError(problems)
    return {
        name: tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
        for name, value in (where or {}).items()
    }


def each_unit(
    root: Path, sealed: Callable[[Mapping[str, Any]], Iterator[Any]], live: Callable[[Path, bool], Iterator[Any]]
) -> Iterator[Any]:
    """Read every segment from where it is; one that is sealed meanwhile by its writer is read from its parts."""
    there = segments(root)  # before the manifest: what is sealed in between is in both
    done = manifest(root)
    for number in sorted({*done, *there}):
        row = done.get(number)
        if row is None:
            try:
                yield from live(segment_path(root, number), number == there[-1])  # the last may have a torn end
                continue
            except StoreUnavailable as error:
                row = manifest(root).get(number)
                if row is None or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        yield from sealed(row)


def find(root: Path, *, where: Where | None = None, prefix: str = "", ids_only: bool = False) -> Iterator[Found]:
    """The trajectories that match, in append order, interrupted ones last; memory is that of one segment.

    Args:
        where: column -> value, or values of which one must fit; columns are `FILTERS`.
        prefix: how their ids begin.
        ids_only: read no more than their ids need; `Found.read` is then of no use.
    """
    wanted = check_where(where)
    columns = [*dict.fromkeys([*wanted, "traj", "seq", "error"])] if ids_only else None

    def live(path: Path, last: bool) -> Iterator[Found]:
        for record in read_records(path, torn=last, prefix=prefix):
            yield _of_record(record, wanted)

    def sealed(row: Mapping[str, Any]) -> Iterator[Found]:
        if row["rows"]["trajectories"]:
            begins = pc.starts_with(pc.field("traj"), pattern=prefix) if prefix else None
            heads = read_part(root, "trajectories", row, columns=columns, filters=begins).sort_by("seq")
            yield from _of_part(root, row, heads, wanted=wanted)

    held: dict[str, Found] = {}
    for found in each_unit(root, sealed, live):
        held.pop(found.id, None)
        if found.interrupted:
            held[found.id] = found
        elif found.matches:
            yield found
    yield from (found for found in held.values() if found.matches)


def matches(fields: Mapping[str, Any], wanted: Mapping[str, Collection[Any]]) -> bool:
    """Whether the fields of a live record fit."""
    task, score = fields["task"], fields.get("score", (None, None, None))
    values = {**fields, **task, "task": task["id"], "success": score[2]}
    return all(values.get(name) in accepted for name, accepted in wanted.items())


def _of_record(record: Record, wanted: Mapping[str, Collection[Any]]) -> Found:
    fits = not wanted or matches(record.fields(), wanted)
    return Found(record.id, record.interrupted, fits, lambda: decode(record.fields()))


def mask_rows(heads: pa.Table, wanted: Mapping[str, Collection[Any]]) -> list[bool]:
    """For each row, whether it fits."""
    mask = [True] * heads.num_rows
    for name, accepted in wanted.items():
        mask = [fits and value in accepted for fits, value in zip(mask, heads[name].to_pylist(), strict=True)]
    return mask


def interrupted_rows(heads: pa.Table) -> list[bool]:
    """For each row, whether a later record of its id takes its place."""
    kinds = pc.struct_field(heads["error"], "kind")
    return [kind == INTERRUPTED for kind in kinds.to_pylist()]


def _of_part(
    root: Path, row: Mapping[str, Any], heads: pa.Table, *, wanted: Mapping[str, Collection[Any]]
) -> Iterator[Found]:
    mask, broken, ids = mask_rows(heads, wanted), interrupted_rows(heads), heads["traj"].to_pylist()
    chosen = heads.filter(pa.array(mask, pa.bool_()))

    @cache
    def reader() -> Callable[[int], Trajectory]:
        some = chosen.num_rows < row["rows"]["trajectories"]
        asked = pc.field("traj").isin(chosen["traj"].combine_chunks()) if some else None
        has_steps = bool(row["rows"]["steps"])
        steps = read_part(root, "steps", row, filters=asked) if has_steps else STEPS.empty_table()
        return trajectory_reader(chosen, steps)

    def read(place: int) -> Trajectory:
        return reader()(place)

    place = 0
    for i, traj in enumerate(ids):
        yield Found(traj, broken[i], mask[i], partial(read, place))
        place += mask[i]


def find_annotations(root: Path, *, trajectory: str | None = None, scorer: str | None = None) -> Iterator[Annotation]:
    """The annotations, of one trajectory or scorer if given; within a trajectory in append order."""

    def fits(note: Annotation) -> bool:
        return trajectory in (None, note.trajectory) and scorer in (None, note.scorer)

    def live(path: Path, last: bool) -> Iterator[Annotation]:
        for record in read_records(path, torn=last, prefix=trajectory or "", annotations=True):
            yield decode_annotation(record.fields())

    def sealed(row: Mapping[str, Any]) -> Iterator[Annotation]:
        if row["rows"]["annotations"]:
            filters = None if trajectory is None else pc.field("traj") == trajectory
            yield from read_annotations(read_part(root, "annotations", row, filters=filters).sort_by("seq"))

    return (note for note in each_unit(root, sealed, live) if fits(note))

"""Columns of a store as Arrow batches, for notebooks, reports and query engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.store.columns import STEPS, TRAJECTORIES, step_table, trajectory_table
from evolvent.store.log import read_records
from evolvent.store.query import Filters, check_filters, interrupted_rows, iter_segments, mask_rows, matches_filters
from evolvent.store.schema import decode_trajectory
from evolvent.store.seal import read_part
from evolvent.trajectory import Trajectory

__all__ = ["Table", "scan"]

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

"""Columns of a store as Arrow batches: what a notebook, a report or a query engine reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from evolvent.errors import ConfigError, unknown
from evolvent.store.columns import STEPS, TRAJECTORIES, step_table, trajectory_table
from evolvent.store.log import read_records
from evolvent.store.query import Where, check_where, each_unit, interrupted_rows, mask_rows, matches
from evolvent.store.schema import decode
from evolvent.store.seal import read_part
from evolvent.trajectory import Trajectory

__all__ = ["Table", "scan"]

Table = Literal["trajectories", "steps"]
_SCHEMAS = {"trajectories": TRAJECTORIES, "steps": STEPS}
_BATCH = 512
_Row = tuple[str, int, Trajectory]


def scan(
    root: Path, *, columns: Sequence[str] | None = None, where: Where | None = None, table: Table = "trajectories"
) -> Iterator[pa.RecordBatch]:
    """Batches of the table, of all segments, live ones included; interrupted trajectories come last.

    Args:
        columns: only those (all if None). Sealed parts are read column by column, so few columns are quick.
        where: as in `find`; it selects trajectories, also for the table of steps.
    Raises:
        ConfigError: for an unknown column.
    """
    schema, wanted = _SCHEMAS[table], check_where(where)
    names = list(columns) if columns is not None else schema.names
    problems = [unknown("column", name, schema.names, where="columns") for name in names if name not in schema.names]
    if problems:
        raise ConfigError(problems)
    held: dict[str, tuple[bool, Callable[[], pa.Table]]] = {}

    def live(path: Path, last: bool) -> Iterator[pa.Table]:
        ready: list[_Row] = []
        for seq, record in enumerate(read_records(path, torn=last)):
            held.pop(record.id, None)
            fields = record.fields()
            fits = matches(fields, wanted)
            if record.interrupted:
                held[record.id] = fits, partial(_table, [(fields["run"], seq, decode(fields))], table)
            elif fits:
                ready.append((fields["run"], seq, decode(fields)))
            if len(ready) == _BATCH:
                yield _table(ready, table)
                ready = []
        yield _table(ready, table)

    def sealed(row: Mapping[str, Any]) -> Iterator[pa.Table]:
        if not row["rows"]["trajectories"]:
            return
        heads = read_part(root, "trajectories", row, columns=_needed(names, table, [*wanted]))
        mask, broken = mask_rows(heads, wanted), interrupted_rows(heads)
        for traj in heads["traj"].to_pylist() if held else ():
            held.pop(traj, None)
        for i in (i for i, bad in enumerate(broken) if bad):
            held[heads["traj"][i].as_py()] = mask[i], partial(_part, root, row, heads.slice(i, 1), table)
        kept = [fits and not bad for fits, bad in zip(mask, broken, strict=True)]
        yield _part(root, row, heads if all(kept) else heads.filter(pa.array(kept, pa.bool_())), table)

    for piece in each_unit(root, sealed, live):
        yield from piece.select(names).to_batches()
    for fits, read in held.values():
        if fits:
            yield from read().select(names).to_batches()


def _needed(names: Sequence[str], table: Table, wanted: Sequence[str]) -> list[str]:
    inside = [] if table == "steps" else list(names)
    return list(dict.fromkeys([*inside, *wanted, "traj", "seq", "error"]))


def _table(rows: Sequence[_Row], table: Table) -> pa.Table:
    return trajectory_table(rows) if table == "trajectories" else step_table([t for _, _, t in rows])


def _part(root: Path, row: Mapping[str, Any], heads: pa.Table, table: Table) -> pa.Table:
    """The rows of a sealed part that belong to `heads`."""
    if table == "trajectories":
        return heads.sort_by("seq")
    if not row["rows"]["steps"]:
        return STEPS.empty_table()
    every = heads.num_rows == row["rows"]["trajectories"]
    filters = None if every else pc.field("traj").isin(heads["traj"].combine_chunks())
    return read_part(root, "steps", row, filters=filters)

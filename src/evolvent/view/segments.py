"""One segment of a store as rows of columns, read on from where it was left, and single records from where they lie."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evolvent.errors import SampleInvalid
from evolvent.files import disk_errors
from evolvent.store.columns import STEPS, read_annotations, trajectory_reader
from evolvent.store.frame import Line, parse, read_lines
from evolvent.store.log import Record, segment_path
from evolvent.store.schema import decode, decode_annotation
from evolvent.store.seal import manifest, read_part
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, Trajectory

__all__ = ["COLUMNS", "Unit", "read_annotated", "read_trajectory"]

COLUMNS = pa.schema(
    [
        ("traj", pa.string()),
        ("task", pa.string()),
        ("world", pa.string()),
        ("kind", pa.string()),
        ("tier", pa.string()),
        ("split", pa.string()),
        ("stage", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int64()),
        ("ended_by", pa.string()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("outcome", pa.string()),
        ("unit", pa.float64()),
        ("raw", pa.float64()),
        ("length", pa.int32()),
        ("segment", pa.int64()),
        ("offset", pa.int64()),
        ("text", pa.string()),
    ]
)
"""A row an episode. `offset`: the byte of its line in a live segment; -1: it has several lines, or is sealed."""

_HEADS = [
    "traj",
    "seq",
    "task",
    "world",
    "kind",
    "tier",
    "split",
    "group",
    "sample",
    "ended_by",
    "error",
    "success",
    "unit",
    "raw",
    "length",
    "spec",
    "final_observation",
]
_SPEC, _ACTIONS, _FINAL = 600, 2000, 400  # characters of each that are searched
_EVERY = 64  # lines between two looks at the clock
_MARK = 64  # bytes at the end of a line, its checksum among them, that it is known by
_PIECES = 32  # tables that a live segment is kept in before they become one


class Unit:
    """A segment: sealed, or live and perhaps growing.

    `notes`: id -> the bytes where a live one tells of it. `reads`: grows whenever something was read.
    """

    def __init__(self, root: Path, number: int, row: Mapping[str, Any] | None) -> None:
        """Nothing of it has been read yet; `row` is that of the manifest where it is sealed."""
        self.number, self.sealed, self.row = number, row is not None, row
        self.notes: dict[str, list[int]] = {}
        self.reads = 0
        self._root, self._done = root, False
        self._path, self._offset, self._last = segment_path(root, number), 0, b""
        self._tables: list[pa.Table] = []
        self._begun: dict[str, list[Line]] = {}

    def advance(self, end: float, *, last: bool) -> None:
        """Read on until the clock (`time.monotonic`) shows `end`, or to a record that cannot be read.

        Args:
            last: whether its last line may still be being written.
        """
        if self.row is not None:
            if not self._done:
                self._tables, self._done, self.reads = [_sealed(self._root, self.row)], True, self.reads + 1
            return
        if not self.unread():
            return
        rows: list[dict[str, Any]] = []
        began = self._offset
        try:
            for count, line in enumerate(read_lines(self._path, torn=last, begin=self._offset), 1):
                self._line(line, rows)
                self._offset, self._last = line.offset + len(line.raw) + 1, line.raw[-_MARK:] + b"\n"
                if count % _EVERY == 0 and time.monotonic() > end:
                    break
        finally:  # what comes before a damaged record is kept
            self._tables += [_table(rows)] if rows else []
            self.reads += self._offset > began
        if len(self._tables) > _PIECES:
            self._tables = [pa.concat_tables(self._tables).combine_chunks()]

    def replaced(self) -> bool:
        """Whether another file has taken its place: what was read last does not stand there any more."""
        if self.sealed or not self._offset:
            return False
        with disk_errors(self._path), self._path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            return file.read(len(self._last)) != self._last

    def unread(self) -> bool:
        """Whether there is more than what has been read."""
        if self.sealed:
            return not self._done
        with disk_errors(self._path):
            return self._path.stat().st_size > self._offset

    def table(self) -> pa.Table:
        """The rows so far; episodes that have begun and not ended come last."""
        begun = [self._row_of(Record(traj, "trajectory", tuple(lines))) for traj, lines in self._begun.items()]
        return pa.concat_tables([COLUMNS.empty_table(), *self._tables, _table(begun)])

    def _line(self, line: Line, rows: list[dict[str, Any]]) -> None:
        if line.kind == "annotation":
            self.notes.setdefault(line.traj, []).append(line.offset)
        elif line.kind == "trajectory":
            self._begun.pop(line.traj, None)
            rows.append(self._row_of(Record(line.traj, "trajectory", (line,)), line.offset))
        elif line.kind == "begin":
            self._begun[line.traj] = [line]
        elif line.traj in self._begun:
            lines = [*self._begun[line.traj], line] if line.kind == "end" else []
            rows += [self._row_of(Record(line.traj, "trajectory", tuple(lines)))] if lines else []
            if lines:
                del self._begun[line.traj]
            else:
                self._begun[line.traj].append(line)

    def _row_of(self, record: Record, offset: int = -1) -> dict[str, Any]:
        try:
            return _row(record.fields(), self.number, offset)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SampleInvalid(f"record {record.id!r} is no trajectory", value=f"{error!r}") from error


# ---------------------------------------------------------------------- rows


def _row(fields: Mapping[str, Any], segment: int, offset: int) -> dict[str, Any]:
    """The row of a record that is not decoded: arrays and log-probabilities are left alone."""
    task, steps, error = fields["task"], fields["steps"], fields.get("error")
    raw, unit, success = fields.get("score", (None, None, None))
    final = fields.get("final", "")
    said = [step["action"] for step in steps if isinstance(step["action"], str)]
    about = [
        _spec(task["spec"])[:_SPEC],
        "\n".join(said)[:_ACTIONS],
        final[:_FINAL] if isinstance(final, str) else "",
        *(error[:2] if error else ()),
    ]
    known = [fields["traj"], task["id"], task["world"], task["kind"], fields.get("group") or ""]
    return {
        **{name: task[name] for name in ("world", "kind", "tier", "split")},
        "traj": fields["traj"],
        "task": task["id"],
        "stage": _stage(fields["traj"]),
        "group": fields.get("group"),
        "sample": fields.get("sample", 0),
        "ended_by": fields["ended_by"],
        "error": error[0] if error else None,
        "success": success,
        "outcome": _OUTCOMES[success],
        "unit": _finite(unit),
        "raw": _finite(raw),
        "length": len(steps),
        "segment": segment,
        "offset": offset,
        "text": "\n".join([*known, *about, ""]).lower(),
    }


_OUTCOMES = {True: "solved", False: "failed", None: "unscored"}


def _stage(traj: str) -> str:
    """The stage in an id `stage/task/sample`; nothing where it has none."""
    return traj.rsplit("/", 2)[0] if traj.count("/") >= 2 else ""


def _spec(spec: object) -> str:
    """A specification as it is searched: in the order of the sealed columns, with its letters as they are."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in COLUMNS}, COLUMNS)


def _sealed(root: Path, row: Mapping[str, Any]) -> pa.Table:
    """The rows of a sealed segment, from its columns."""
    if not row["rows"]["trajectories"]:
        return COLUMNS.empty_table()
    heads = read_part(root, "trajectories", row, columns=_HEADS)
    size = heads.num_rows
    errors = heads["error"]
    told = [pc.struct_field(errors, name) for name in ("kind", "message")]
    texts = _specs(heads["spec"]), pc.fill_null(heads["final_observation"], "")
    clipped = [pc.utf8_slice_codeunits(text, 0, most) for text, most in zip(texts, (_SPEC, _FINAL), strict=True)]
    known = [pc.fill_null(heads[name], "") for name in ("traj", "task", "world", "kind", "group")]
    every = [*known, clipped[0], _actions(root, row, heads), clipped[1], *(pc.fill_null(one, "") for one in told), ""]
    text = pc.utf8_lower(pc.binary_join_element_wise(*every, "\n"))
    success = heads["success"]
    outcome = pc.if_else(pc.is_null(success), "unscored", pc.if_else(success, "solved", "failed"))
    stage = pc.replace_substring_regex(heads["traj"], r"^(?:(.*)/[^/]*/[^/]*|.*)$", r"\1")
    made = {
        "stage": stage,
        "error": told[0],
        "outcome": outcome,
        "text": text,
        "segment": pa.array([int(row["segment"])] * size),
        "offset": pa.array([-1] * size),
    }
    table = pa.table({name: made.get(name, heads[name] if name in _HEADS else None) for name in COLUMNS.names})
    return table.cast(COLUMNS).take(pc.sort_indices(heads["seq"]))


def _specs(column: pa.ChunkedArray) -> pa.Array:
    """The specifications, letters beyond ASCII as they are: canonical JSON writes them as escapes."""
    specs = pc.fill_null(column, "{}").combine_chunks()
    escaped = pc.match_substring(specs, "\\u")
    if not pc.any(escaped).as_py():
        return specs
    told = [_spec(json.loads(text)) for text in specs.filter(escaped).to_pylist()]
    return pc.replace_with_mask(specs, escaped, pa.array(told, pa.string()))


def _actions(root: Path, row: Mapping[str, Any], heads: pa.Table) -> pa.Array:
    """The actions of each episode, one under the other; both tables of a part are sorted by id."""
    lengths = heads["length"].to_numpy()
    if not row["rows"]["steps"] or lengths.sum() != row["rows"]["steps"]:
        return pa.array([""] * heads.num_rows)
    actions = pc.fill_null(read_part(root, "steps", row, columns=["action"])["action"], "").combine_chunks()
    ends = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, actions), "\n")
    return pc.utf8_slice_codeunits(joined, 0, _ACTIONS)


# ---------------------------------------------------------------------- records


def read_trajectory(root: Path, traj: str, *, number: int, offset: int) -> Trajectory:
    """A record of segment `number`, at a byte of its log; from its part, or by search, where it has none.

    Raises:
        StoreError: it cannot be read, or is gone.
    """
    row = manifest(root).get(number)
    if row is None and offset >= 0:
        for line in read_lines(segment_path(root, number), torn=True, begin=offset):
            if line.traj == traj:
                return decode(parse(line))
            break
    if row is not None and row["rows"]["trajectories"]:
        own = pc.field("traj") == traj
        heads = read_part(root, "trajectories", row, filters=own)
        if heads.num_rows:
            has_steps = bool(row["rows"]["steps"])
            steps = read_part(root, "steps", row, filters=own) if has_steps else STEPS.empty_table()
            return trajectory_reader(heads, steps)(0)
    return Store.open(root).get(traj)


def read_annotated(
    root: Path, traj: str, *, sealed: Iterable[int], live: Iterable[tuple[int, int]]
) -> list[Annotation]:
    """The annotations of a trajectory in these sealed segments, and at these bytes of live ones.

    Raises:
        StoreError: a file that cannot be read.
    """
    rows, live = manifest(root), list(live)
    found: list[Annotation] = []
    for number in sorted({*sealed, *(number for number, _ in live if number in rows)}):  # some are sealed by now
        row = rows.get(number)
        if row is not None and row["rows"]["annotations"]:
            table = read_part(root, "annotations", row, filters=pc.field("traj") == traj)
            found += read_annotations(table.sort_by("seq"))
    for number, offset in live:
        if number in rows:
            continue
        line = next(read_lines(segment_path(root, number), torn=True, begin=offset), None)
        if line is not None and line.traj == traj:
            found.append(decode_annotation(parse(line)))
    return found

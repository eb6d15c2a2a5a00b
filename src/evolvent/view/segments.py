"""Segments of a store as rows of columns, read incrementally, and single records read by their offsets."""

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
from evolvent.store.log import Record, RecordLine, parse_line, read_lines, segment_path
from evolvent.store.query import read_part, read_seal_manifest
from evolvent.store.schema import decode_annotation, decode_trajectory
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, JsonObject, Trajectory

__all__ = ["COLUMNS", "SegmentReader", "read_trajectory", "read_trajectory_annotations"]

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
        ("title", pa.string()),
        ("text", pa.string()),
    ]
)
"""A row an episode. `offset`: the byte of its line in a live segment; -1: it has several lines, or is sealed. `title`:
the first line of the first observation, which is what the task says; "" where it is not text.
"""

_HEAD_COLUMNS = [
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
_TITLE = 120  # characters of the first line of an episode that are shown
_LINES_PER_CLOCK_CHECK = 64  # lines between two looks at the clock
_CHECKED_BYTES = 64  # bytes at the end of a line, its checksum among them, that it is known by
_MAX_TABLES = 32  # tables that a live segment is kept in before they become one


class SegmentReader:
    """A segment: sealed, or live and perhaps growing.

    `notes`: id -> the bytes where a live one tells of it. `reads`: grows whenever something was read.
    """

    def __init__(self, root: Path, number: int, row: JsonObject | None) -> None:
        """Prepares to read a segment; `row` is its row in the manifest if it is sealed."""
        self.number, self.sealed, self.row = number, row is not None, row
        self.notes: dict[str, list[int]] = {}
        self.reads = 0
        self._root, self._done = root, False
        self._path, self._offset, self._last = segment_path(root, number), 0, b""
        self._tables: list[pa.Table] = []
        self._begun: dict[str, list[RecordLine]] = {}

    def advance(self, end: float, *, last: bool) -> None:
        """Reads on until the clock (`time.monotonic`) shows `end`, or until a record cannot be read.

        Args:
            last: whether its last line may still be being written.
        """
        if self.row is not None:
            if not self._done:
                self._tables, self._done, self.reads = [_sealed_rows(self._root, self.row)], True, self.reads + 1
            return
        if not self.has_unread():
            return
        rows: list[dict[str, Any]] = []
        start_offset = self._offset
        try:
            for count, line in enumerate(read_lines(self._path, torn=last, begin=self._offset), 1):
                self._add_line(line, rows)
                self._offset, self._last = line.offset + len(line.raw) + 1, line.raw[-_CHECKED_BYTES:] + b"\n"
                if count % _LINES_PER_CLOCK_CHECK == 0 and time.monotonic() > end:
                    break
        finally:  # what comes before a damaged record is kept
            self._tables += [_table(rows)] if rows else []
            self.reads += self._offset > start_offset
        if len(self._tables) > _MAX_TABLES:
            self._tables = [pa.concat_tables(self._tables).combine_chunks()]

    def is_replaced(self) -> bool:
        """Returns whether another file has replaced the segment, so that the last bytes read have changed."""
        if self.sealed or not self._offset:
            return False
        with disk_errors(self._path), self._path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            return file.read(len(self._last)) != self._last

    def has_unread(self) -> bool:
        """Returns whether some of the segment has not been read yet."""
        if self.sealed:
            return not self._done
        with disk_errors(self._path):
            return self._path.stat().st_size > self._offset

    def table(self) -> pa.Table:
        """Returns the rows so far; episodes that have begun and not ended come last."""
        open_rows = [self._build_row(Record(traj, "trajectory", tuple(lines))) for traj, lines in self._begun.items()]
        return pa.concat_tables([COLUMNS.empty_table(), *self._tables, _table(open_rows)])

    def _add_line(self, line: RecordLine, rows: list[dict[str, Any]]) -> None:
        if line.kind == "annotation":
            self.notes.setdefault(line.traj, []).append(line.offset)
        elif line.kind == "trajectory":
            self._begun.pop(line.traj, None)
            rows.append(self._build_row(Record(line.traj, "trajectory", (line,)), line.offset))
        elif line.kind == "begin":
            self._begun[line.traj] = [line]
        elif line.traj in self._begun:
            lines = [*self._begun[line.traj], line] if line.kind == "end" else []
            rows += [self._build_row(Record(line.traj, "trajectory", tuple(lines)))] if lines else []
            if lines:
                del self._begun[line.traj]
            else:
                self._begun[line.traj].append(line)

    def _build_row(self, record: Record, offset: int = -1) -> dict[str, Any]:
        try:
            return _record_row(record.fields(), self.number, offset)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SampleInvalid(f"record {record.id!r} is not a trajectory", value=f"{error!r}") from error


# ---------------------------------------------------------------------- rows


def _record_row(fields: Mapping[str, Any], segment: int, offset: int) -> dict[str, Any]:
    """Builds the row of a record without decoding it: arrays and log-probabilities are not read."""
    task, steps, error = fields["task"], fields["steps"], fields.get("error")
    raw, unit, success = fields.get("score", (None, None, None))
    final = fields.get("final", "")
    actions = [step["action"] for step in steps if isinstance(step["action"], str)]
    searchable_texts = [
        _format_spec(task["spec"])[:_SPEC],
        "\n".join(actions)[:_ACTIONS],
        final[:_FINAL] if isinstance(final, str) else "",
        *(error[:2] if error else ()),
    ]
    ids = [fields["traj"], task["id"], task["world"], task["kind"], fields.get("group") or ""]
    return {
        **{name: task[name] for name in ("world", "kind", "tier", "split")},
        "traj": fields["traj"],
        "task": task["id"],
        "stage": _stage_of(fields["traj"]),
        "group": fields.get("group"),
        "sample": fields.get("sample", 0),
        "ended_by": fields["ended_by"],
        "error": error[0] if error else None,
        "success": success,
        "outcome": _OUTCOMES[success],
        "unit": _float_or_none(unit),
        "raw": _float_or_none(raw),
        "length": len(steps),
        "segment": segment,
        "offset": offset,
        "title": _first_line(steps[0]["observation"] if steps else final),
        "text": "\n".join([*ids, *searchable_texts, ""]).lower(),
    }


def _first_line(text: object) -> str:
    return text.lstrip().partition("\n")[0][:_TITLE] if isinstance(text, str) else ""


_OUTCOMES = {True: "solved", False: "failed", None: "unscored"}


def _stage_of(traj: str) -> str:
    """Returns the stage in an id `stage/task/sample`, or "" if there is none."""
    return traj.rsplit("/", 2)[0] if traj.count("/") >= 2 else ""


def _format_spec(spec: object) -> str:
    """Formats a specification for search: keys sorted as in the sealed columns, letters unescaped."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _float_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in COLUMNS}, COLUMNS)


def _sealed_rows(root: Path, row: Mapping[str, Any]) -> pa.Table:
    """Returns the rows of a sealed segment, from its columns."""
    if not row["rows"]["trajectories"]:
        return COLUMNS.empty_table()
    heads = read_part(root, "trajectories", row, columns=_HEAD_COLUMNS)
    num_rows = heads.num_rows
    errors = heads["error"]
    error_columns = [pc.struct_field(errors, name) for name in ("kind", "message")]
    texts = _unescape_specs(heads["spec"]), pc.fill_null(heads["final_observation"], "")
    clipped = [
        pc.utf8_slice_codeunits(text, 0, max_chars) for text, max_chars in zip(texts, (_SPEC, _FINAL), strict=True)
    ]
    id_columns = [pc.fill_null(heads[name], "") for name in ("traj", "task", "world", "kind", "group")]
    text_columns = [
        *id_columns,
        clipped[0],
        _join_actions(root, row, heads),
        clipped[1],
        *(pc.fill_null(column, "") for column in error_columns),
        "",
    ]
    text = pc.utf8_lower(pc.binary_join_element_wise(*text_columns, "\n"))
    success = heads["success"]
    outcome = pc.if_else(pc.is_null(success), "unscored", pc.if_else(success, "solved", "failed"))
    stage = pc.replace_substring_regex(heads["traj"], r"^(?:(.*)/[^/]*/[^/]*|.*)$", r"\1")
    computed_columns = {
        "stage": stage,
        "error": error_columns[0],
        "outcome": outcome,
        "title": _read_titles(root, row, heads),
        "text": text,
        "segment": pa.array([int(row["segment"])] * num_rows),
        "offset": pa.array([-1] * num_rows),
    }
    table = pa.table(
        {name: computed_columns.get(name, heads[name] if name in _HEAD_COLUMNS else None) for name in COLUMNS.names}
    )
    return table.cast(COLUMNS).take(pc.sort_indices(heads["seq"]))


def _unescape_specs(column: pa.ChunkedArray) -> pa.Array:
    """Returns the specifications with letters beyond ASCII unescaped: canonical JSON writes them as escapes."""
    specs = pc.fill_null(column, "{}").combine_chunks()
    escaped = pc.match_substring(specs, "\\u")
    if not pc.any(escaped).as_py():
        return specs
    unescaped_specs = [_format_spec(json.loads(text)) for text in specs.filter(escaped).to_pylist()]
    return pc.replace_with_mask(specs, escaped, pa.array(unescaped_specs, pa.string()))


def _join_actions(root: Path, row: Mapping[str, Any], heads: pa.Table) -> pa.Array:
    """Joins the actions of each episode, one a line; both tables of a part are sorted by id."""
    lengths = heads["length"].to_numpy()
    if not row["rows"]["steps"] or lengths.sum() != row["rows"]["steps"]:
        return pa.array([""] * heads.num_rows)
    actions = pc.fill_null(read_part(root, "steps", row, columns=["action"])["action"], "").combine_chunks()
    ends = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, actions), "\n")
    return pc.utf8_slice_codeunits(joined, 0, _ACTIONS)


def _read_titles(root: Path, row: Mapping[str, Any], heads: pa.Table) -> pa.Array:
    """Returns the first line of each episode's first observation, or of its final one where it has no steps."""
    lengths, texts = heads["length"].to_numpy(), pc.fill_null(heads["final_observation"], "").combine_chunks()
    if row["rows"]["steps"] and lengths.sum() == row["rows"]["steps"]:
        observations = pc.fill_null(read_part(root, "steps", row, columns=["observation"])["observation"], "")
        first_steps = pa.array(lengths.cumsum() - lengths, mask=lengths == 0)
        texts = pc.if_else(pa.array(lengths > 0), observations.take(first_steps).combine_chunks(), texts)
    first_lines = pc.replace_substring_regex(pc.utf8_ltrim_whitespace(texts), r"(?s)\n.*", "")
    return pc.utf8_slice_codeunits(first_lines, 0, _TITLE)


# ---------------------------------------------------------------------- records


def read_trajectory(root: Path, traj: str, *, number: int, offset: int) -> Trajectory:
    """Reads a record of segment `number` at a byte of its log; from its sealed part, or by search, where it has no
    offset.

    Raises:
        StoreError: it cannot be read, or is gone.
    """
    row = read_seal_manifest(root).get(number)
    if row is None and offset >= 0:
        for line in read_lines(segment_path(root, number), torn=True, begin=offset):
            if line.traj == traj:
                return decode_trajectory(parse_line(line))
            break
    if row is not None and row["rows"]["trajectories"]:
        is_trajectory = pc.field("traj") == traj
        heads = read_part(root, "trajectories", row, filters=is_trajectory)
        if heads.num_rows:
            has_steps = bool(row["rows"]["steps"])
            steps = read_part(root, "steps", row, filters=is_trajectory) if has_steps else STEPS.empty_table()
            return trajectory_reader(heads, steps)(0)
    return Store.open(root).get(traj)


def read_trajectory_annotations(
    root: Path, traj: str, *, sealed: Iterable[int], live: Iterable[tuple[int, int]]
) -> list[Annotation]:
    """Reads the annotations of a trajectory in these sealed segments, and at these bytes of live segments.

    Raises:
        StoreError: a file that cannot be read.
    """
    rows, live = read_seal_manifest(root), list(live)
    annotations: list[Annotation] = []
    for number in sorted({*sealed, *(number for number, _ in live if number in rows)}):  # some are sealed by now
        row = rows.get(number)
        if row is not None and row["rows"]["annotations"]:
            table = read_part(root, "annotations", row, filters=pc.field("traj") == traj)
            annotations += read_annotations(table.sort_by("seq"))
    for number, offset in live:
        if number in rows:
            continue
        line = next(read_lines(segment_path(root, number), torn=True, begin=offset), None)
        if line is not None and line.traj == traj:
            annotations.append(decode_annotation(parse_line(line)))
    return annotations

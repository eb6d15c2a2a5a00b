"""Trajectories and annotations as Arrow tables and back, bit by bit: the columns of the sealed store.

Three tables: one row a trajectory, one row a step, one row an annotation. Text and arrays have their own columns
(`observation` and `observation_array`: bytes, dtype, shape); JSON values are JSON text whose keys keep their order,
because some values, such as a tool's parameters, are shown to a model in that order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evolvent.errors import ErrorRecord
from evolvent.store.schema import decode_array
from evolvent.trajectory import (
    Annotation,
    AnnotationTarget,
    Branch,
    Generation,
    Score,
    Step,
    Task,
    Trajectory,
    Value,
    canonical_json,
)

__all__ = [
    "ANNOTATIONS",
    "STEPS",
    "TRAJECTORIES",
    "add_missing_fields",
    "annotation_table",
    "read_annotations",
    "step_table",
    "trajectory_reader",
    "trajectory_table",
]

_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_ARRAY = pa.struct([("data", pa.binary()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64()))])
_BRANCH = pa.struct([("parent", pa.string()), ("step", pa.int32()), ("token", pa.int32())])
_ERROR = pa.struct(
    [
        ("kind", pa.string()),
        ("message", pa.string()),
        ("at_step", pa.int32()),
        ("retryable", pa.bool_()),
    ]
)
_GENERATION = pa.struct(
    [
        ("ids", pa.list_(pa.int32())),
        ("sampled", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("extends", pa.int32()),
        ("spans", pa.list_(pa.int32())),
        ("acted", pa.bool_()),
        ("policy_version", pa.int64()),
        ("stop", pa.string()),
        ("model_logprobs", pa.list_(pa.float32())),
    ]
)

TRAJECTORIES = pa.schema(
    [
        ("run", pa.string()),
        ("traj", pa.string()),
        ("seq", pa.int64()),
        ("task", pa.string()),
        ("world", pa.string()),
        ("version", pa.string()),
        ("spec", pa.string()),
        ("kind", pa.string()),
        ("tier", pa.string()),
        ("split", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int64()),
        ("branch", _BRANCH),
        ("final_observation", pa.string()),
        ("final_observation_array", _ARRAY),
        ("ended_by", pa.string()),
        ("error", _ERROR),
        ("raw", pa.float64()),
        ("unit", pa.float64()),
        ("success", pa.bool_()),
        ("length", pa.int32()),
        ("meta", pa.string()),
    ]
)
STEPS = pa.schema(
    [
        ("traj", pa.string()),
        ("step", pa.int32()),
        ("agent", pa.string()),
        ("observation", pa.string()),
        ("observation_array", _ARRAY),
        ("thought", pa.string()),
        ("action", pa.string()),
        ("action_array", _ARRAY),
        ("reward", pa.float64()),
        ("tool_calls", pa.string()),
        ("info", pa.string()),
        ("generations", pa.list_(_GENERATION)),
    ]
)
ANNOTATIONS = pa.schema(
    [
        ("run", pa.string()),
        ("traj", pa.string()),
        ("seq", pa.int64()),
        ("scorer", pa.string()),
        ("step", pa.int32()),
        ("generation", pa.int32()),
        ("span", pa.int32()),
        ("token", pa.int32()),
        ("value", pa.float64()),
        ("label", pa.string()),
        ("values", pa.list_(pa.float64())),
    ]
)


def trajectory_table(rows: Sequence[tuple[str, int, Trajectory]]) -> pa.Table:
    """Builds one row for each (run, position in the append order, trajectory)."""
    branches = [None if t.branch is None else _read_fields(t.branch, "parent", "step", "token") for _, _, t in rows]
    errors = [
        None if t.error is None else _read_fields(t.error, "kind", "message", "at_step", "retryable")
        for _, _, t in rows
    ]
    trajectories = [t for _, _, t in rows]
    columns: dict[str, Sequence[Any]] = {
        "run": [run for run, _, _ in rows],
        "traj": [t.id for t in trajectories],
        "seq": [seq for _, seq, _ in rows],
        "task": [t.task.id for t in trajectories],
        "spec": [_encode_json(dict(t.task.spec)) for t in trajectories],
        "branch": branches,
        "error": errors,
        "group": [t.group for t in trajectories],
        "sample": [t.sample for t in trajectories],
        "final_observation": [_text_or_none(t.final_observation) for t in trajectories],
        "final_observation_array": [_array_or_none(t.final_observation) for t in trajectories],
        "ended_by": [t.ended_by for t in trajectories],
        "raw": [t.score.raw for t in trajectories],
        "unit": [t.score.unit for t in trajectories],
        "success": [t.score.success for t in trajectories],
        "length": [len(t.steps) for t in trajectories],
        "meta": [_encode_json(dict(t.meta)) for t in trajectories],
    }
    for name in ("world", "version", "kind", "tier", "split"):
        columns[name] = [getattr(t.task, name) for t in trajectories]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in TRAJECTORIES}, TRAJECTORIES)


def _read_fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _text_or_none(value: Value) -> str | None:
    return None if isinstance(value, np.ndarray) else value


def _array_or_none(value: Value) -> dict[str, Any] | None:
    if not isinstance(value, np.ndarray):
        return None
    return {"data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}


def step_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Builds one row for each step, in the given order."""
    rows = [(t.id, i, step) for t in trajectories for i, step in enumerate(t.steps)]
    steps = [step for _, _, step in rows]
    infos = [{k: v for k, v in step.info.items() if k != "tool_calls"} for step in steps]
    columns: dict[str, Any] = {
        "traj": [trajectory_id for trajectory_id, _, _ in rows],
        "step": [i for _, i, _ in rows],
        "agent": [s.agent for s in steps],
        "observation": [_text_or_none(s.observation) for s in steps],
        "thought": [s.thought for s in steps],
        "observation_array": [_array_or_none(s.observation) for s in steps],
        "action": [_text_or_none(s.action) for s in steps],
        "action_array": [_array_or_none(s.action) for s in steps],
        "reward": [None if s.reward is None else float(s.reward) for s in steps],
        "tool_calls": [_encode_json(s.info["tool_calls"]) if "tool_calls" in s.info else None for s in steps],
        "info": [_encode_json(info) if info else None for info in infos],
    }
    arrays = {name: pa.array(values, STEPS.field(name).type) for name, values in columns.items()}
    arrays["generations"] = _make_generation_lists(steps)
    return pa.table({field.name: arrays[field.name] for field in STEPS}, STEPS)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _make_list_array(values: Sequence[NDArray[Any]], dtype: Any) -> pa.ListArray:
    flat = np.concatenate([np.zeros(0, dtype), *values]).astype(dtype)
    return pa.ListArray.from_arrays(_offsets([len(v) for v in values]), pa.array(flat))


def _make_optional_list_array(values: Sequence[NDArray[np.float32] | None]) -> pa.ListArray:
    present = [value for value in values if value is not None]
    flat = np.concatenate([np.zeros(0, np.float32), *present]).astype(np.float32)
    lengths = [0 if value is None else len(value) for value in values]
    is_missing = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(lengths), pa.array(flat), mask=is_missing)


def add_missing_fields(steps: pa.Table) -> pa.Table:
    """Returns a table of steps with the fields of generations that an earlier version did not write, as nulls."""
    index = steps.schema.get_field_index("generations")
    if index < 0 or steps.schema.field(index).type == pa.list_(_GENERATION):
        return steps
    chunks = []
    for lists in steps.column(index).chunks:
        structs = lists.values
        stored = {field.name: structs.field(field.name) for field in structs.type}
        arrays = [stored.get(field.name, pa.nulls(len(structs), field.type)) for field in _GENERATION]
        chunks.append(
            pa.ListArray.from_arrays(lists.offsets, pa.StructArray.from_arrays(arrays, fields=list(_GENERATION)))
        )
    column = pa.chunked_array(chunks, pa.list_(_GENERATION))
    return steps.set_column(index, pa.field("generations", column.type), column)


def _make_generation_lists(steps: Sequence[Step]) -> pa.ListArray:
    generations = [generation for step in steps for generation in step.generations]
    arrays = [
        _make_list_array([g.ids for g in generations], np.int32),
        _make_list_array([g.sampled for g in generations], np.bool_),
        _make_list_array([g.logprobs for g in generations], np.float32),
        pa.array([g.extends for g in generations], pa.int32()),
        pa.array([list(g.spans) for g in generations], pa.list_(pa.int32())),
        pa.array([g.acted for g in generations], pa.bool_()),
        pa.array([g.policy_version for g in generations], pa.int64()),
        pa.array([g.stop for g in generations], pa.string()),
        _make_optional_list_array([g.model_logprobs for g in generations]),
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=list(_GENERATION))
    return pa.ListArray.from_arrays(_offsets([len(step.generations) for step in steps]), structs)


def _list_reader(lists: pa.ListArray, dtype: Any) -> Callable[[int], NDArray[Any]]:
    """Returns a reader of single lists; each list is a writable copy."""
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return lambda i: values[offsets[i] : offsets[i + 1]].copy()


def _generation_reader(lists: pa.ListArray) -> Callable[[int], tuple[Generation, ...]]:
    outer, structs = lists.offsets.to_numpy(), lists.values
    ids = _list_reader(structs.field("ids"), np.int32)
    sampled = _list_reader(structs.field("sampled"), np.bool_)
    logprobs = _list_reader(structs.field("logprobs"), np.float32)
    model_logprobs = _list_reader(structs.field("model_logprobs"), np.float32)
    has_model_logprobs = structs.field("model_logprobs").is_valid().to_pylist()
    other_columns = [
        structs.field(name).to_pylist() for name in ("extends", "spans", "acted", "policy_version", "stop")
    ]

    def read_generation(i: int) -> Generation:
        extends, spans, acted, version, stop = (column[i] for column in other_columns)
        at_one = model_logprobs(i) if has_model_logprobs[i] else None
        return Generation(ids(i), sampled(i), logprobs(i), extends, tuple(spans), acted, version, stop, at_one)

    return lambda row: tuple(read_generation(i) for i in range(outer[row], outer[row + 1]))


def _decode_value(text: str | None, array: Mapping[str, Any] | None) -> Value:
    if array is None:
        return text or ""
    return decode_array(array["dtype"], array["shape"], array["data"])


def trajectory_reader(heads: pa.Table, steps: pa.Table) -> Callable[[int], Trajectory]:
    """Returns a function that reads single trajectories of a sealed part by their row in `heads`.

    Args:
        heads: rows of the table of trajectories, any of them, in any order.
        steps: the steps of those trajectories, sorted by (traj, step).
    """
    columns = {name: heads[name].to_pylist() for name in TRAJECTORIES.names if name not in ("run", "seq")}
    read_steps = _step_reader(steps)
    tasks: dict[str, Task] = {}

    def read_trajectory(i: int) -> Trajectory:
        row = {name: column[i] for name, column in columns.items()}
        key = canonical_json([row["task"], row["kind"], row["tier"], row["split"]])
        if key not in tasks:
            tasks[key] = Task(
                row["world"], row["version"], json.loads(row["spec"]), row["kind"], row["tier"], row["split"]
            )
        return Trajectory(
            row["traj"],
            tasks[key],
            tuple(read_steps(row["traj"])),
            _decode_value(row["final_observation"], row["final_observation_array"]),
            row["ended_by"],
            Score(row["raw"], row["unit"], row["success"]),
            row["sample"],
            Branch(**row["branch"]) if row["branch"] else None,
            ErrorRecord(**row["error"]) if row["error"] else None,
            row["group"],
            json.loads(row["meta"]),
        )

    return read_trajectory


def _step_reader(steps: pa.Table) -> Callable[[str], Iterator[Step]]:
    columns = {name: steps[name].to_pylist() for name in STEPS.names if name != "generations"}
    lists = steps["generations"].combine_chunks()
    generations = _generation_reader(lists)
    spans: dict[str, tuple[int, int]] = {}
    for i, traj in enumerate(columns["traj"]):
        spans[traj] = (spans[traj][0] if traj in spans else i, i + 1)

    def read_steps(traj: str) -> Iterator[Step]:
        for i in range(*spans.get(traj, (0, 0))):
            info, calls = columns["info"][i], columns["tool_calls"][i]
            yield Step(
                _decode_value(columns["observation"][i], columns["observation_array"][i]),
                _decode_value(columns["action"][i], columns["action_array"][i]),
                columns["reward"][i],
                columns["thought"][i],
                generations(i),
                columns["agent"][i],
                {**(json.loads(info) if info else {}), **({"tool_calls": json.loads(calls)} if calls else {})},
            )

    return read_steps


def annotation_table(rows: Sequence[tuple[str, int, Annotation]]) -> pa.Table:
    """Builds one row for each (run, position in the append order, annotation)."""
    annotations = [a for _, _, a in rows]
    columns: dict[str, Sequence[Any]] = {
        "run": [run for run, _, _ in rows],
        "traj": [a.trajectory for a in annotations],
        "seq": [seq for _, seq, _ in rows],
        "scorer": [a.scorer for a in annotations],
        "value": [float(a.value) if isinstance(a.value, (int, float)) else None for a in annotations],
        "label": [a.value if isinstance(a.value, str) else None for a in annotations],
        "values": [None if isinstance(a.value, (str, int, float)) else list(a.value) for a in annotations],
    }
    for name in ("step", "generation", "span", "token"):
        columns[name] = [getattr(a.target, name) for a in annotations]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in ANNOTATIONS}, ANNOTATIONS)


def read_annotations(table: pa.Table) -> Iterator[Annotation]:
    """Reads the annotations of a table, in its order."""
    for row in table.to_pylist():
        value = row["value"]
        if value is None:
            value = row["label"] if row["label"] is not None else tuple(row["values"])
        target = AnnotationTarget(row["step"], row["generation"], row["span"], row["token"])
        yield Annotation(row["traj"], row["scorer"], target, value)

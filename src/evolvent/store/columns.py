"""Trajectories and annotations as Arrow tables and back, bit by bit: the columns of the sealed store.

Three tables: one row a trajectory, one row a step, one row an annotation. Text and arrays have columns of their own
(`observation` and `observation_array`: bytes, dtype, shape); JSON values are JSON text whose keys keep their order: a
tool's parameters, say, are shown to a model in it.
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
    Branch,
    Generation,
    Place,
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
    "annotation_table",
    "read_annotations",
    "step_table",
    "trajectory_reader",
    "trajectory_table",
]

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
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
    """One row for each (run, place in the append order, trajectory)."""
    branches = [None if t.branch is None else _fields(t.branch, "parent", "step", "token") for _, _, t in rows]
    errors = [
        None if t.error is None else _fields(t.error, "kind", "message", "at_step", "retryable") for _, _, t in rows
    ]
    every = [t for _, _, t in rows]
    columns: dict[str, Sequence[Any]] = {
        "run": [run for run, _, _ in rows],
        "traj": [t.id for t in every],
        "seq": [seq for _, seq, _ in rows],
        "task": [t.task.id for t in every],
        "spec": [_json(dict(t.task.spec)) for t in every],
        "branch": branches,
        "error": errors,
        "group": [t.group for t in every],
        "sample": [t.sample for t in every],
        "final_observation": [_text(t.final_observation) for t in every],
        "final_observation_array": [_array(t.final_observation) for t in every],
        "ended_by": [t.ended_by for t in every],
        "raw": [t.score.raw for t in every],
        "unit": [t.score.unit for t in every],
        "success": [t.score.success for t in every],
        "length": [len(t.steps) for t in every],
        "meta": [_json(dict(t.meta)) for t in every],
    }
    for name in ("world", "version", "kind", "tier", "split"):
        columns[name] = [getattr(t.task, name) for t in every]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in TRAJECTORIES}, TRAJECTORIES)


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _text(value: Value) -> str | None:
    return None if isinstance(value, np.ndarray) else value


def _array(value: Value) -> dict[str, Any] | None:
    if not isinstance(value, np.ndarray):
        return None
    return {"data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}


def step_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row for each step, in the order given."""
    rows = [(t.id, i, step) for t in trajectories for i, step in enumerate(t.steps)]
    steps = [step for _, _, step in rows]
    infos = [{k: v for k, v in step.info.items() if k != "tool_calls"} for step in steps]
    columns: dict[str, Any] = {
        "traj": [traj for traj, _, _ in rows],
        "step": [i for _, i, _ in rows],
        "agent": [s.agent for s in steps],
        "observation": [_text(s.observation) for s in steps],
        "thought": [s.thought for s in steps],
        "observation_array": [_array(s.observation) for s in steps],
        "action": [_text(s.action) for s in steps],
        "action_array": [_array(s.action) for s in steps],
        "reward": [None if s.reward is None else float(s.reward) for s in steps],
        "tool_calls": [_json(s.info["tool_calls"]) if "tool_calls" in s.info else None for s in steps],
        "info": [_json(info) if info else None for info in infos],
    }
    arrays = {name: pa.array(values, STEPS.field(name).type) for name, values in columns.items()}
    arrays["generations"] = _generation_lists(steps)
    return pa.table({field.name: arrays[field.name] for field in STEPS}, STEPS)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _lists(values: Sequence[NDArray[Any]], dtype: Any) -> pa.ListArray:
    flat = np.concatenate([np.zeros(0, dtype), *values]).astype(dtype)
    return pa.ListArray.from_arrays(_offsets([len(v) for v in values]), pa.array(flat))


def _generation_lists(steps: Sequence[Step]) -> pa.ListArray:
    every = [generation for step in steps for generation in step.generations]
    arrays = [
        _lists([g.ids for g in every], np.int32),
        _lists([g.sampled for g in every], np.bool_),
        _lists([g.logprobs for g in every], np.float32),
        pa.array([g.extends for g in every], pa.int32()),
        pa.array([list(g.spans) for g in every], pa.list_(pa.int32())),
        pa.array([g.acted for g in every], pa.bool_()),
        pa.array([g.policy_version for g in every], pa.int64()),
        pa.array([g.stop for g in every], pa.string()),
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=list(_GENERATION))
    return pa.ListArray.from_arrays(_offsets([len(step.generations) for step in steps]), structs)


def _split(lists: pa.ListArray, dtype: Any) -> Callable[[int], NDArray[Any]]:
    """A reader of single lists: a writable copy each."""
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return lambda i: values[offsets[i] : offsets[i + 1]].copy()


def _read_generations(lists: pa.ListArray) -> Callable[[int], tuple[Generation, ...]]:
    outer, structs = lists.offsets.to_numpy(), lists.values
    ids = _split(structs.field("ids"), np.int32)
    sampled = _split(structs.field("sampled"), np.bool_)
    logprobs = _split(structs.field("logprobs"), np.float32)
    rest = [structs.field(name).to_pylist() for name in ("extends", "spans", "acted", "policy_version", "stop")]

    def one(i: int) -> Generation:
        extends, spans, acted, version, stop = (column[i] for column in rest)
        return Generation(ids(i), sampled(i), logprobs(i), extends, tuple(spans), acted, version, stop)

    return lambda row: tuple(one(i) for i in range(outer[row], outer[row + 1]))


def _value(text: str | None, array: Mapping[str, Any] | None) -> Value:
    if array is None:
        return text or ""
    return decode_array(array["dtype"], array["shape"], array["data"])


def trajectory_reader(heads: pa.Table, steps: pa.Table) -> Callable[[int], Trajectory]:
    """Reads single trajectories of a sealed part by their row in `heads`.

    Args:
        heads: rows of the table of trajectories, any of them, in any order.
        steps: the steps of those, sorted by (traj, step).
    """
    head = {name: heads[name].to_pylist() for name in TRAJECTORIES.names if name not in ("run", "seq")}
    read_steps = _step_reader(steps)
    tasks: dict[str, Task] = {}

    def read(i: int) -> Trajectory:
        row = {name: column[i] for name, column in head.items()}
        key = canonical_json([row["task"], row["kind"], row["tier"], row["split"]])
        if key not in tasks:
            tasks[key] = Task(
                row["world"], row["version"], json.loads(row["spec"]), row["kind"], row["tier"], row["split"]
            )
        return Trajectory(
            row["traj"],
            tasks[key],
            tuple(read_steps(row["traj"])),
            _value(row["final_observation"], row["final_observation_array"]),
            row["ended_by"],
            Score(row["raw"], row["unit"], row["success"]),
            row["sample"],
            Branch(**row["branch"]) if row["branch"] else None,
            ErrorRecord(**row["error"]) if row["error"] else None,
            row["group"],
            json.loads(row["meta"]),
        )

    return read


def _step_reader(steps: pa.Table) -> Callable[[str], Iterator[Step]]:
    column = {name: steps[name].to_pylist() for name in STEPS.names if name != "generations"}
    lists = steps["generations"].combine_chunks()
    generations = _read_generations(lists)
    spans: dict[str, tuple[int, int]] = {}
    for i, traj in enumerate(column["traj"]):
        spans[traj] = (spans[traj][0] if traj in spans else i, i + 1)

    def read(traj: str) -> Iterator[Step]:
        for i in range(*spans.get(traj, (0, 0))):
            info, calls = column["info"][i], column["tool_calls"][i]
            yield Step(
                _value(column["observation"][i], column["observation_array"][i]),
                _value(column["action"][i], column["action_array"][i]),
                column["reward"][i],
                column["thought"][i],
                generations(i),
                column["agent"][i],
                {**(json.loads(info) if info else {}), **({"tool_calls": json.loads(calls)} if calls else {})},
            )

    return read


def annotation_table(rows: Sequence[tuple[str, int, Annotation]]) -> pa.Table:
    """One row for each (run, place in the append order, annotation)."""
    every = [a for _, _, a in rows]
    columns: dict[str, Sequence[Any]] = {
        "run": [run for run, _, _ in rows],
        "traj": [a.trajectory for a in every],
        "seq": [seq for _, seq, _ in rows],
        "scorer": [a.scorer for a in every],
        "value": [float(a.value) if isinstance(a.value, (int, float)) else None for a in every],
        "label": [a.value if isinstance(a.value, str) else None for a in every],
        "values": [None if isinstance(a.value, (str, int, float)) else list(a.value) for a in every],
    }
    for name in ("step", "generation", "span", "token"):
        columns[name] = [getattr(a.place, name) for a in every]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in ANNOTATIONS}, ANNOTATIONS)


def read_annotations(table: pa.Table) -> Iterator[Annotation]:
    """The annotations of a table, in its order."""
    for row in table.to_pylist():
        value = row["value"]
        if value is None:
            value = row["label"] if row["label"] is not None else tuple(row["values"])
        place = Place(row["step"], row["generation"], row["span"], row["token"])
        yield Annotation(row["traj"], row["scorer"], place, value)

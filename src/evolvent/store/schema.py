"""A trajectory as JSON values and back, bit by bit.

Fields that hold their default are left out. Token ids are a list of integers, `sampled` is text of 0 and 1, and
`logprobs` are the base64 of little-endian float32: all of them, or only the sampled ones where the others are zero;
`model_logprobs` are always those of the sampled ones.
(Base64 is 15 to 30 times faster than the shortest exact decimal text, and smaller.) Arrays are base64 with dtype and
shape. Fields that this version does not know are kept in `meta["_unknown"]` and written back where they were.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ErrorRecord, EvolventError, SampleInvalid
from evolvent.trajectory import (
    Annotation,
    AnnotationTarget,
    Branch,
    Generation,
    JsonObject,
    Score,
    Step,
    Task,
    Trajectory,
    Value,
)

__all__ = [
    "INTERRUPTED",
    "UNKNOWN_KEY",
    "decode_annotation",
    "decode_array",
    "decode_trajectory",
    "encode_annotation",
    "encode_array",
    "encode_episode_end",
    "encode_episode_start",
    "encode_step",
    "encode_trajectory",
    "finite_or_text",
    "interruption_error",
]

INTERRUPTED = "interrupted"  # the kind of error of an episode whose process ended before it did
UNKNOWN_KEY = "_unknown"
_FRAME_FIELDS = {"v", "run", "traj", "n", "kind", "crc", "replaced"}
_TRAJECTORY_FIELDS = _FRAME_FIELDS | {
    "task",
    "sample",
    "branch",
    "group",
    "steps",
    "final",
    "ended_by",
    "score",
    "error",
    "meta",
    "step",
}
_TASK_FIELDS = {"id", "world", "version", "spec", "kind", "tier", "split"}
_STEP_FIELDS = {"observation", "action", "reward", "thought", "generations", "agent", "info"}
_GENERATION_FIELDS = {
    "ids",
    "sampled",
    "logprobs",
    "extends",
    "spans",
    "acted",
    "policy_version",
    "stop",
    "model_logprobs",
}


def finite_or_text(value: float | None, label: str) -> float | str | None:
    """Converts a number for JSON: infinities to "inf" and "-inf", None to None. NaN is refused (SampleInvalid)."""
    if value is None:
        return None
    number = float(value)
    if math.isfinite(number):
        return number
    if math.isnan(number):
        raise SampleInvalid(f"{label} is NaN", value=number, expected="a number, or None for 'not scored'")
    return str(number)


def _float_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def encode_array(array: NDArray[np.generic]) -> dict[str, object]:
    """Encodes an array as its dtype, shape and base64 of its bytes in C order; refuses object and structured arrays."""
    if array.dtype.kind not in "biufcSUmM":
        raise SampleInvalid("array type cannot be stored", value=array.dtype.str, expected="numbers or text")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": _encode_base64(array.tobytes())}


def decode_array(dtype: str, shape: list[int], data: bytes) -> NDArray[np.generic]:
    """Decodes a writable array from its bytes in C order."""
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape).copy()


def _encode_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _encode_value(value: Value) -> Any:
    if isinstance(value, np.ndarray):
        return encode_array(value)
    if not isinstance(value, str):
        raise SampleInvalid("observation or action cannot be stored", value=value, expected="text or an array")
    return value


def _decode_value(value: Any) -> Value:
    if isinstance(value, dict):
        return decode_array(value["dtype"], value["shape"], binascii.a2b_base64(value["data"]))
    return str(value)


def _encode_generation(generation: Generation) -> dict[str, Any]:
    sampled = np.asarray(generation.sampled, dtype=np.bool_)
    logprobs = np.asarray(generation.logprobs, dtype="<f4")
    if np.isnan(logprobs).any():
        raise SampleInvalid("a log-probability is NaN", value=int(np.isnan(logprobs).argmax()), expected="numbers")
    if not logprobs.view("<u4")[~sampled].any():
        logprobs = logprobs[sampled]
    row: dict[str, Any] = {
        "ids": np.asarray(generation.ids, dtype=np.int32).tolist(),
        "sampled": (sampled.view(np.uint8) + 48).tobytes().decode(),
        "logprobs": _encode_base64(logprobs.tobytes()),
        "policy_version": generation.policy_version,
    }
    if generation.extends is not None:
        row["extends"] = generation.extends
    if generation.spans:
        row["spans"] = list(generation.spans)
    if not generation.acted:
        row["acted"] = False
    if generation.stop != "stop":
        row["stop"] = generation.stop
    if generation.model_logprobs is not None:
        row["model_logprobs"] = _encode_base64(np.asarray(generation.model_logprobs, "<f4")[sampled].tobytes())
    return row


def _decode_generation(row: Mapping[str, Any]) -> Generation:
    ids = np.array(row["ids"], dtype=np.int32)
    sampled = np.frombuffer(row["sampled"].encode(), dtype=np.uint8) == 49
    logprobs = np.frombuffer(binascii.a2b_base64(row["logprobs"]), dtype="<f4").astype(np.float32)
    if len(logprobs) != len(ids):
        full = np.zeros(len(ids), dtype=np.float32)
        full[sampled] = logprobs
        logprobs = full
    model_logprobs = None
    if row.get("model_logprobs") is not None:
        model_logprobs = np.zeros(len(ids), dtype=np.float32)
        model_logprobs[sampled] = np.frombuffer(binascii.a2b_base64(row["model_logprobs"]), dtype="<f4")
    return Generation(
        ids,
        sampled,
        logprobs,
        row.get("extends"),
        tuple(row.get("spans", ())),
        row.get("acted", True),
        row.get("policy_version", 0),
        row.get("stop", "stop"),
        model_logprobs,
    )


def encode_step(step: Step) -> dict[str, object]:
    """Encodes a step as JSON values."""
    row: dict[str, Any] = {"observation": _encode_value(step.observation), "action": _encode_value(step.action)}
    if step.reward is not None:
        row["reward"] = finite_or_text(step.reward, "the reward of a step")
    if step.thought is not None:
        row["thought"] = step.thought
    if step.generations:
        row["generations"] = [_encode_generation(generation) for generation in step.generations]
    if step.agent is not None:
        row["agent"] = step.agent
    if step.info:
        row["info"] = dict(step.info)
    return row


def _decode_step(row: Mapping[str, Any]) -> Step:
    return Step(
        _decode_value(row["observation"]),
        _decode_value(row["action"]),
        _float_or_none(row.get("reward")),
        row.get("thought"),
        tuple(_decode_generation(entry) for entry in row.get("generations", ())),
        row.get("agent"),
        row.get("info", {}),
    )


def encode_episode_start(
    task: Task, *, sample: int, branch: Branch | None, group: str | None, meta: Mapping[str, object]
) -> JsonObject:
    """Encodes the fields of an episode that are known when it begins."""
    row: dict[str, Any] = {
        "task": {
            "id": task.id,
            "world": task.world,
            "version": task.version,
            "spec": dict(task.spec),
            "kind": task.kind,
            "tier": task.tier,
            "split": task.split,
        },
        "sample": sample,
    }
    if branch is not None:
        row["branch"] = [branch.parent, branch.step, branch.token]
    if group is not None:
        row["group"] = group
    if meta:
        row["meta"] = dict(meta)
    return row


def encode_episode_end(final: Value, *, ended_by: str, score: Score, error: ErrorRecord | None) -> dict[str, object]:
    """Encodes the fields of an episode that are known when it ends, apart from its steps."""
    row: dict[str, Any] = {"ended_by": ended_by}
    if isinstance(final, np.ndarray) or final != "":
        row["final"] = _encode_value(final)
    if score != Score():
        raw, unit = finite_or_text(score.raw, "the raw score"), finite_or_text(score.unit, "the unit score")
        row["score"] = [raw, unit, score.success]
    if error is not None:
        row["error"] = [error.kind, error.message, error.at_step, error.retryable]
    return row


def encode_trajectory(trajectory: Trajectory) -> JsonObject:
    """Encodes a whole trajectory as JSON values, without the frame of its line.

    Raises:
        SampleInvalid: for NaN, or array type cannot be stored.
    """
    source = trajectory
    meta, unknown_fields = dict(source.meta), source.meta.get(UNKNOWN_KEY, ())
    if unknown_fields:
        meta.pop(UNKNOWN_KEY)
    start = encode_episode_start(source.task, sample=source.sample, branch=source.branch, group=source.group, meta=meta)
    row: dict[str, Any] = {**start}
    row["steps"] = [encode_step(step) for step in source.steps]
    row |= encode_episode_end(
        source.final_observation, ended_by=source.ended_by, score=source.score, error=source.error
    )
    unplaced = [[path, value] for path, value in unknown_fields if not _set_at_path(row, path, value)]
    if unplaced:
        row["meta"] = {**meta, UNKNOWN_KEY: unplaced}
    return row


def interruption_error(steps: int) -> list[object]:
    """Returns the error of an episode whose process ended after this number of steps."""
    return [INTERRUPTED, "the process ended before the episode did", steps, True]


def decode_trajectory(record: Mapping[str, object]) -> Trajectory:
    """Decodes the trajectory of a record (the fields of its line, or of its assembled lines).

    Raises:
        SampleInvalid: where fields are missing or of a wrong form; the text names the trajectory.
    """
    try:
        return _decode_fields(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, EvolventError) as error:
        raise SampleInvalid(
            f"record {record.get('traj')!r} is not a trajectory: {type(error).__name__}: {error}",
            expected="the fields of evolvent.store.schema",
        ) from error


def _decode_fields(record: Mapping[str, Any]) -> Trajectory:
    task = record["task"]
    meta = dict(record.get("meta", {}))
    unknown_fields = _find_unknown_fields(record)
    if unknown_fields:
        meta[UNKNOWN_KEY] = unknown_fields + [
            entry for entry in meta.get(UNKNOWN_KEY, ()) if entry not in unknown_fields
        ]
    if "replaced" in record:
        meta["replaced"] = record["replaced"]
    raw, unit, success = record.get("score", (None, None, None))
    branch, error = record.get("branch"), record.get("error")
    return Trajectory(
        record["traj"],
        Task(task["world"], task["version"], task["spec"], task["kind"], task["tier"], task["split"]),
        tuple(_decode_step(row) for row in record["steps"]),
        _decode_value(record.get("final", "")),
        record["ended_by"],
        Score(_float_or_none(raw), _float_or_none(unit), success),
        record.get("sample", 0),
        Branch(*branch) if branch else None,
        ErrorRecord(*error) if error else None,
        record.get("group"),
        meta,
    )


def _find_unknown_fields(record: Mapping[str, Any]) -> list[list[Any]]:
    """Returns fields of a newer minor version: `[path, value]` pairs."""
    unknown_fields: list[list[Any]] = []

    def collect(path: list[str | int], row: Mapping[str, Any], known_names: set[str]) -> None:
        if not known_names.issuperset(row):
            unknown_fields.extend([[*path, name], row[name]] for name in row if name not in known_names)

    collect([], record, _TRAJECTORY_FIELDS)
    collect(["task"], record["task"], _TASK_FIELDS)
    for i, step in enumerate(record["steps"]):
        collect(["steps", i], step, _STEP_FIELDS)
        for j, generation in enumerate(step.get("generations", ())):
            collect(["steps", i, "generations", j], generation, _GENERATION_FIELDS)
    return unknown_fields


def _set_at_path(row: dict[str, Any], path: list[Any], value: object) -> bool:
    """Sets a field at a path of names and indices; returns False where the path is gone."""
    node: Any = row
    for part in path[:-1]:
        is_list_index = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if not is_list_index and not (isinstance(node, dict) and part in node):
            return False
        node = node[part]
    if not isinstance(node, dict) or path[-1] in node:
        return False
    node[path[-1]] = value
    return True


def encode_annotation(annotation: Annotation) -> dict[str, object]:
    """Encodes an annotation as JSON values; a number, a label and a sequence of numbers are three different fields."""
    target, value = annotation.target, annotation.value
    row: dict[str, Any] = {
        "scorer": annotation.scorer,
        "place": [target.step, target.generation, target.span, target.token],
    }
    if isinstance(value, str):
        row["label"] = value
    elif isinstance(value, (int, float, np.floating, np.integer)):
        row["value"] = finite_or_text(float(value), "an annotation")
    else:
        row["values"] = [finite_or_text(entry, "an annotation") for entry in value]
    return row


def decode_annotation(record: JsonObject) -> Annotation:
    """Decodes the annotation of a record; sequences come back as tuples. Raises SampleInvalid."""
    try:
        if "label" in record:
            value: Any = str(record["label"])
        elif "values" in record:
            value = tuple(float(entry) for entry in record["values"])
        else:
            value = float(record["value"])
        return Annotation(record["traj"], record["scorer"], AnnotationTarget(*record["place"]), value)
    except (KeyError, TypeError, ValueError) as error:
        raise SampleInvalid(f"record is not an annotation: {error!r}", value=record.get("traj")) from error

"""A trajectory as JSON values and back, bit by bit.

Fields that hold their default are left out. Token ids are a list of integers, `sampled` is text of 0 and 1, and
`logprobs` are the base64 of little-endian float32: all of them, or only the sampled ones where the others are zero.
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
from evolvent.trajectory import Annotation, Branch, Generation, Place, Score, Step, Task, Trajectory, Value

__all__ = [
    "INTERRUPTED",
    "UNKNOWN",
    "begin_fields",
    "decode",
    "decode_annotation",
    "decode_array",
    "encode",
    "encode_annotation",
    "encode_array",
    "encode_step",
    "end_fields",
    "finite_or_text",
    "interrupted",
]

INTERRUPTED = "interrupted"  # the kind of error of an episode whose process ended before it did
UNKNOWN = "_unknown"
_FRAME = {"v", "run", "traj", "n", "kind", "crc", "replaced"}
_TRAJECTORY = _FRAME | {
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
_TASK = {"id", "world", "version", "spec", "kind", "tier", "split"}
_STEP = {"observation", "action", "reward", "thought", "generations", "agent", "info"}
_GENERATION = {"ids", "sampled", "logprobs", "extends", "spans", "acted", "policy_version", "stop"}


def finite_or_text(value: float | None, what: str) -> float | str | None:
    """A number for JSON: infinities as "inf" and "-inf", None as None. NaN is refused (SampleInvalid)."""
    if value is None:
        return None
    number = float(value)
    if math.isfinite(number):
        return number
    if math.isnan(number):
        raise SampleInvalid(f"{what} is NaN", value=number, expected="a number, or None for 'not scored'")
    return str(number)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def encode_array(array: NDArray[Any]) -> dict[str, Any]:
    """An array as its dtype, shape and base64 of its bytes in C order; object and structured arrays are refused."""
    if array.dtype.kind not in "biufcSUmM":
        raise SampleInvalid("an array that cannot be stored", value=array.dtype.str, expected="numbers or text")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": _base64(array.tobytes())}


def decode_array(dtype: str, shape: list[int], data: bytes) -> NDArray[Any]:
    """A writable array from its bytes in C order."""
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape).copy()


def _base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _value(value: Value) -> Any:
    if isinstance(value, np.ndarray):
        return encode_array(value)
    if not isinstance(value, str):
        raise SampleInvalid("an observation or action that cannot be stored", value=value, expected="text or an array")
    return value


def _read_value(value: Any) -> Value:
    if isinstance(value, dict):
        return decode_array(value["dtype"], value["shape"], binascii.a2b_base64(value["data"]))
    return str(value)


def _generation(generation: Generation) -> dict[str, Any]:
    sampled = np.asarray(generation.sampled, dtype=np.bool_)
    logprobs = np.asarray(generation.logprobs, dtype="<f4")
    if np.isnan(logprobs).any():
        raise SampleInvalid("a log-probability is NaN", value=int(np.isnan(logprobs).argmax()), expected="numbers")
    if not logprobs.view("<u4")[~sampled].any():
        logprobs = logprobs[sampled]
    row: dict[str, Any] = {
        "ids": np.asarray(generation.ids, dtype=np.int32).tolist(),
        "sampled": (sampled.view(np.uint8) + 48).tobytes().decode(),
        "logprobs": _base64(logprobs.tobytes()),
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
    return row


def _read_generation(row: Mapping[str, Any]) -> Generation:
    ids = np.array(row["ids"], dtype=np.int32)
    sampled = np.frombuffer(row["sampled"].encode(), dtype=np.uint8) == 49
    logprobs = np.frombuffer(binascii.a2b_base64(row["logprobs"]), dtype="<f4").astype(np.float32)
    if len(logprobs) != len(ids):
        full = np.zeros(len(ids), dtype=np.float32)
        full[sampled] = logprobs
        logprobs = full
    return Generation(
        ids,
        sampled,
        logprobs,
        row.get("extends"),
        tuple(row.get("spans", ())),
        row.get("acted", True),
        row.get("policy_version", 0),
        row.get("stop", "stop"),
    )


def encode_step(step: Step) -> dict[str, Any]:
    """A step as JSON values."""
    row: dict[str, Any] = {"observation": _value(step.observation), "action": _value(step.action)}
    if step.reward is not None:
        row["reward"] = finite_or_text(step.reward, "the reward of a step")
    if step.thought is not None:
        row["thought"] = step.thought
    if step.generations:
        row["generations"] = [_generation(generation) for generation in step.generations]
    if step.agent is not None:
        row["agent"] = step.agent
    if step.info:
        row["info"] = dict(step.info)
    return row


def _read_step(row: Mapping[str, Any]) -> Step:
    return Step(
        _read_value(row["observation"]),
        _read_value(row["action"]),
        _number(row.get("reward")),
        row.get("thought"),
        tuple(_read_generation(entry) for entry in row.get("generations", ())),
        row.get("agent"),
        row.get("info", {}),
    )


def begin_fields(
    task: Task, *, sample: int, branch: Branch | None, group: str | None, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of an episode when it begins."""
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


def end_fields(final: Value, *, ended_by: str, score: Score, error: ErrorRecord | None) -> dict[str, Any]:
    """What is known of an episode when it ends, apart from its steps."""
    row: dict[str, Any] = {"ended_by": ended_by}
    if isinstance(final, np.ndarray) or final != "":
        row["final"] = _value(final)
    if score != Score():
        raw, unit = finite_or_text(score.raw, "the raw score"), finite_or_text(score.unit, "the unit score")
        row["score"] = [raw, unit, score.success]
    if error is not None:
        row["error"] = [error.kind, error.message, error.at_step, error.retryable]
    return row


def encode(trajectory: Trajectory) -> dict[str, Any]:
    """A whole trajectory as JSON values, without the frame of its line.

    Raises:
        SampleInvalid: for NaN, or an array that cannot be stored.
    """
    t = trajectory
    meta, unknown = dict(t.meta), t.meta.get(UNKNOWN, ())
    if unknown:
        meta.pop(UNKNOWN)
    row = begin_fields(t.task, sample=t.sample, branch=t.branch, group=t.group, meta=meta)
    row["steps"] = [encode_step(step) for step in t.steps]
    row |= end_fields(t.final_observation, ended_by=t.ended_by, score=t.score, error=t.error)
    left = [[path, value] for path, value in unknown if not _put(row, path, value)]
    if left:
        row["meta"] = {**meta, UNKNOWN: left}
    return row


def interrupted(steps: int) -> list[Any]:
    """The error of an episode whose process ended after so many steps."""
    return [INTERRUPTED, "the process ended before the episode did", steps, True]


def decode(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a record (the fields of its line, or of its assembled lines).

    Raises:
        SampleInvalid: where fields are missing or of a wrong form; the text names the trajectory.
    """
    try:
        return _decode(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, EvolventError) as error:
        raise SampleInvalid(
            f"record {record.get('traj')!r} is no trajectory: {type(error).__name__}: {error}",
            expected="the fields of evolvent.store.schema",
        ) from error


def _decode(record: Mapping[str, Any]) -> Trajectory:
    task = record["task"]
    meta = dict(record.get("meta", {}))
    unknown = _unknown(record)
    if unknown:
        meta[UNKNOWN] = unknown + [entry for entry in meta.get(UNKNOWN, ()) if entry not in unknown]
    if "replaced" in record:
        meta["replaced"] = record["replaced"]
    raw, unit, success = record.get("score", (None, None, None))
    branch, error = record.get("branch"), record.get("error")
    return Trajectory(
        record["traj"],
        Task(task["world"], task["version"], task["spec"], task["kind"], task["tier"], task["split"]),
        tuple(_read_step(row) for row in record["steps"]),
        _read_value(record.get("final", "")),
        record["ended_by"],
        Score(_number(raw), _number(unit), success),
        record.get("sample", 0),
        Branch(*branch) if branch else None,
        ErrorRecord(*error) if error else None,
        record.get("group"),
        meta,
    )


def _unknown(record: Mapping[str, Any]) -> list[list[Any]]:
    """Fields of a newer minor version: `[path, value]` pairs."""
    found: list[list[Any]] = []

    def look(path: list[str | int], row: Mapping[str, Any], known: set[str]) -> None:
        if not known.issuperset(row):
            found.extend([[*path, name], row[name]] for name in row if name not in known)

    look([], record, _TRAJECTORY)
    look(["task"], record["task"], _TASK)
    for i, step in enumerate(record["steps"]):
        look(["steps", i], step, _STEP)
        for j, generation in enumerate(step.get("generations", ())):
            look(["steps", i, "generations", j], generation, _GENERATION)
    return found


def _put(row: dict[str, Any], path: list[Any], value: object) -> bool:
    """Set a field at a path of names and indices; False where the path is gone."""
    place: Any = row
    for part in path[:-1]:
        inside = isinstance(place, list) and isinstance(part, int) and part < len(place)
        if not inside and not (isinstance(place, dict) and part in place):
            return False
        place = place[part]
    if not isinstance(place, dict) or path[-1] in place:
        return False
    place[path[-1]] = value
    return True


def encode_annotation(annotation: Annotation) -> dict[str, Any]:
    """An annotation as JSON values; a number, a label and a sequence of numbers are three different fields."""
    place, value = annotation.place, annotation.value
    row: dict[str, Any] = {
        "scorer": annotation.scorer,
        "place": [place.step, place.generation, place.span, place.token],
    }
    if isinstance(value, str):
        row["label"] = value
    elif isinstance(value, (int, float, np.floating, np.integer)):
        row["value"] = finite_or_text(float(value), "an annotation")
    else:
        row["values"] = [finite_or_text(entry, "an annotation") for entry in value]
    return row


def decode_annotation(record: Mapping[str, Any]) -> Annotation:
    """The annotation of a record; sequences come back as tuples. Raises SampleInvalid."""
    try:
        if "label" in record:
            value: Any = str(record["label"])
        elif "values" in record:
            value = tuple(float(entry) for entry in record["values"])
        else:
            value = float(record["value"])
        return Annotation(record["traj"], record["scorer"], Place(*record["place"]), value)
    except (KeyError, TypeError, ValueError) as error:
        raise SampleInvalid(f"a record that is no annotation: {error!r}", value=record.get("traj")) from error

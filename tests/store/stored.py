"""Trajectories of every form, by hand and by hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evolvent.errors import ErrorRecord
from evolvent.trajectory import Annotation, AnnotationTarget, Branch, Generation, Score, Step, Task, Trajectory

INF = float("inf")
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_number = st.floats(allow_nan=False)
_maybe = st.one_of(st.none(), _number)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_object = st.dictionaries(_text, _json, max_size=3)
_array = hnp.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1", ">i4", "<U3"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
).filter(lambda array: array.dtype.kind != "f" or not np.isnan(array).any())
_value = st.one_of(_text, _text, _array)


@st.composite
def generations(draw) -> Generation:
    n = draw(st.integers(0, 6))
    floats = st.floats(width=32, allow_nan=False)
    sampled = draw(hnp.arrays(np.bool_, n))
    model_logprobs = draw(st.none() | hnp.arrays(np.float32, n, elements=floats))
    return Generation(
        draw(hnp.arrays(np.int32, n)),
        sampled,
        draw(hnp.arrays(np.float32, n, elements=st.sampled_from([0.0, -0.0]) | floats)),
        draw(st.none() | st.integers(0, 9)),
        tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
        draw(st.booleans()),
        draw(st.integers(0, 2**40)),
        draw(st.sampled_from(["stop", "length", "choice"])),
        None if model_logprobs is None else np.where(sampled, model_logprobs, np.float32(0)),
    )


_steps = st.builds(
    Step,
    _value,
    _value,
    _maybe,
    st.none() | _text,
    st.lists(generations(), max_size=2).map(tuple),
    st.none() | _text,
    st.one_of(_object, st.just({"tool_calls": [{"type": "function"}], "invalid": True})),
)
_tasks = st.builds(Task, _text, _text, _object, _text, _text, _text)
_errors = st.builds(ErrorRecord, _text, _text, st.integers(0, 9), st.booleans())
_scores = st.builds(Score, _maybe, _maybe, st.none() | st.booleans())


@st.composite
def trajectories(draw) -> Trajectory:
    ended_by = draw(st.sampled_from(["world", "horizon", "agent", "error"]))
    return Trajectory(
        draw(st.text('abc/-é"\\ ', min_size=1, max_size=8)),
        draw(_tasks),
        tuple(draw(st.lists(_steps, max_size=3))),
        draw(_value),
        ended_by,
        draw(_scores),
        draw(st.integers(0, 99)),
        draw(st.none() | st.builds(Branch, _text, st.integers(0, 9), st.integers(0, 9))),
        draw(_errors) if ended_by == "error" else None,
        draw(st.none() | _text),
        draw(_object),
    )


def several():
    return st.lists(trajectories(), max_size=5, unique_by=lambda t: t.id)


annotations = st.builds(
    Annotation,
    st.just("a"),
    _text,
    st.builds(AnnotationTarget, *[st.none() | st.integers(0, 9)] * 4),
    st.one_of(_number, _text, st.sampled_from(["inf", "nan"]), st.lists(_number, max_size=3).map(tuple)),
)


def generation(*ids: int, read: int = 1, extends: int | None = None) -> Generation:
    """Tokens of which the first `read` were read; the log-probability of a sampled one is -id/8."""
    row = np.array(ids, dtype=np.int32)
    sampled = np.arange(len(ids)) >= read
    return Generation(row, sampled, np.where(sampled, -row / 8, 0).astype(np.float32), extends)


def episode(name: str, *, steps: int = 2, world: str = "lookup", success: bool | None = True, **more) -> Trajectory:
    """A small finished episode."""
    task = Task(world, "1", {"key": name.rpartition("/")[2]}, "fetch", more.pop("tier", "seen"), "train")
    played = tuple(
        Step(f"room {i}", f"go {i}", float(i), generations=(generation(7, i, 3, extends=i - 1 if i else None),))
        for i in range(steps)
    )
    raw = None if success is None else float(success)
    return Trajectory(name, task, played, "done", more.pop("ended_by", "world"), Score(raw, raw, success), **more)


def bits(trajectory: Trajectory) -> list[bytes]:
    """Every number of its generations as bytes, so that -0.0 and 0.0 differ."""
    none = np.zeros(0, np.int8)
    return [
        part.tobytes()
        for g in trajectory.generations
        for part in (g.ids, g.sampled, g.logprobs, none if g.model_logprobs is None else g.model_logprobs)
    ]

"""Cross-validation of code that nobody trusts: what goes into the boxes, what comes out, and the score, made outside.

Each fold has a box of its own. It gets the rows and labels to learn from and the rows to judge, never the labels of
those: in one box, what is learned from in one fold would tell what is asked in another. Out come class probabilities;
they are compared with the labels here.

The sets that ship with scikit-learn lie in every box that has scikit-learn, labels and all, and a program might look
them up. So rows are drawn anew in another order, columns change places, units and zero points, classes change numbers,
all by a generator that is drawn outside, with a little noise. That makes looking up harder than fitting. It is no
proof; where scores must be beyond doubt, play data that no package holds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evolvent.sandbox.limits import CodeRunner, Limits, Outcome, Request
from evolvent.worlds.datasci.area import area_of_chances
from evolvent.worlds.datasci.sets import DataSet

__all__ = ["ENTRY", "HARNESS", "Judged", "cross_validate", "disguised", "folds"]

ENTRY = "evolvent_answer"
HARNESS = f"""

def {ENTRY}(rows, labels, asked, columns):
    import numpy
    rows = numpy.frombuffer(rows, "<f4").astype(float).reshape(-1, columns)
    asked = numpy.frombuffer(asked, "<f4").astype(float).reshape(-1, columns)
    labels = numpy.frombuffer(labels, "u1").astype(int)
    if "predict" in globals():
        found = predict(rows, labels, asked)
    else:
        made = globals().get("model", globals().get("pipeline"))
        if made is None:
            raise NameError("define model or pipeline, or a function predict(rows, labels, asked)")
        found = made.fit(rows, labels).predict_proba(asked)
    return [[float(chance) for chance in row] for row in found]
"""
"""What is run in the box after the program. It is not trusted either: only its answer counts."""
_NOISE = 1e-3  # of a column's spread


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a program: the mean area of the folds, or None and the error; whether it ran without isolation."""

    area: float | None
    error: str = ""
    unsafe: bool = False


def disguised(data: DataSet, rng: np.random.Generator) -> DataSet:
    """The same problem with rows, columns, units and class numbers drawn anew: nearly the same areas, but for noise."""
    order, columns = rng.permutation(len(data.rows)), rng.permutation(data.rows.shape[1])
    rows = data.rows[order][:, columns]
    spread = rows.std(axis=0)
    rows = rows + _NOISE * spread * rng.normal(size=rows.shape)
    unit = np.exp(rng.uniform(-0.3, 0.3, rows.shape[1]))
    rows = rows * unit + rng.uniform(-1, 1, rows.shape[1]) * spread
    return DataSet(data.name, rows, rng.permutation(data.classes)[data.labels[order]])


def folds(labels: NDArray[np.int64], count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The rows that each fold asks for: every class dealt evenly, in an order of its own."""
    place = np.empty(len(labels), np.int64)
    start = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        place[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return [np.flatnonzero(place == fold) for fold in range(count)]


def cross_validate(
    source: str, data: DataSet, asked: Sequence[NDArray[np.int64]], *, runner: CodeRunner, limits: Limits
) -> Judged:
    """Fit and judge a program on every fold; the first failure ends it.

    Args:
        source: the program.
        asked: the rows that each fold asks for.
        limits: of all folds together in wall time, of each in everything else.
    """
    end = time.monotonic() + limits.wall_s
    areas, unsafe = [], False
    for rows in asked:
        left = end - time.monotonic()
        if left <= 0:
            return Judged(None, f"timeout: more than {limits.wall_s:g} s", unsafe)
        request = _request(data, rows)
        (outcome,) = runner.observe(source + HARNESS, [request], replace(limits, wall_s=left))
        unsafe = unsafe or outcome.unsafe
        chances = _chances(outcome, len(rows), data.classes)
        if isinstance(chances, str):
            return Judged(None, chances, unsafe)
        areas.append(area_of_chances(data.labels[rows], chances))
    return Judged(float(np.mean(areas)), "", unsafe)


def _request(data: DataSet, asked: NDArray[np.int64]) -> Request:
    """Rows to learn from with their labels, and rows without."""
    known = np.setdiff1d(np.arange(len(data.labels)), asked)
    rows, labels = data.rows[known].astype("<f4").tobytes(), data.labels[known].astype("u1").tobytes()
    return Request(ENTRY, (rows, labels, data.rows[asked].astype("<f4").tobytes(), data.rows.shape[1]))


def _chances(outcome: Outcome, rows: int, classes: int) -> NDArray[np.float64] | str:
    """The probabilities in an answer `[rows, classes]`, or what is wrong with it."""
    if not outcome.ok:
        return f"{outcome.status}: {outcome.error}" if outcome.status != "raised" else outcome.error
    value = outcome.value
    expected = f"expected {rows} rows of {classes} finite probabilities"
    if type(value) is not list or len(value) != rows:
        return f"{expected}, got {len(value) if type(value) is list else type(value).__name__}"
    if not all(type(row) is list and len(row) == classes and all(type(one) is float for one in row) for row in value):
        return f"{expected} in each row"
    chances = np.array(value, np.float64)
    return chances if bool(np.isfinite(chances).all()) else expected

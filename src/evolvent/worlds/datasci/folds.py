"""Cross-validation of untrusted code: the input of the sandboxes, their output, and the score, computed outside.

Each fold has its own sandbox. It gets the rows and labels to learn from and the rows to judge, never their labels: in
a shared sandbox, the training rows of one fold would reveal the answers of another. The sandbox returns class
probabilities; they are compared with the labels here.

The sets that ship with scikit-learn lie in every sandbox that has scikit-learn, labels included, and a program might
look them up. So rows are shuffled, columns change places, units and zero points, classes change numbers, all by a
generator that is drawn outside, with a little noise. That makes looking up harder than fitting. It is not a proof;
where scores must be beyond doubt, use data that no package holds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evolvent.sandbox.limits import CallRequest, CodeRunner, Outcome, SandboxLimits
from evolvent.worlds.datasci.area import area_of_probabilities
from evolvent.worlds.datasci.sets import DataSet

__all__ = ["ENTRY", "HARNESS", "ProgramScore", "cross_validate", "deal_folds", "disguise"]

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
class ProgramScore:
    """The result of a program: the mean area of the folds, or None and the error; whether it ran without isolation."""

    area: float | None
    error: str = ""
    unsafe: bool = False


def disguise(data: DataSet, rng: np.random.Generator) -> DataSet:
    """Returns the same problem with rows, columns, units and class numbers drawn anew: nearly the same areas, but
    for noise.
    """
    order, columns = rng.permutation(len(data.rows)), rng.permutation(data.rows.shape[1])
    rows = data.rows[order][:, columns]
    spread = rows.std(axis=0)
    rows = rows + _NOISE * spread * rng.normal(size=rows.shape)
    unit = np.exp(rng.uniform(-0.3, 0.3, rows.shape[1]))
    rows = rows * unit + rng.uniform(-1, 1, rows.shape[1]) * spread
    return DataSet(data.name, rows, rng.permutation(data.classes)[data.labels[order]])


def deal_folds(labels: NDArray[np.int64], count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Splits the rows into test folds: every class is dealt evenly, in its own random order."""
    fold_of_row = np.empty(len(labels), np.int64)
    start = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        fold_of_row[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return [np.flatnonzero(fold_of_row == fold) for fold in range(count)]


def cross_validate(
    source: str,
    data: DataSet,
    test_indices_per_fold: Sequence[NDArray[np.int64]],
    *,
    runner: CodeRunner,
    limits: SandboxLimits,
) -> ProgramScore:
    """Fits and scores a program on every fold; the first failure ends it.

    Args:
        source: the program.
        data: the data set.
        test_indices_per_fold: the test rows of each fold.
        runner: runs the code.
        limits: of all folds together in wall time, of each in everything else.
    """
    deadline = time.monotonic() + limits.wall_s
    areas, unsafe = [], False
    for test_indices in test_indices_per_fold:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return ProgramScore(None, f"timeout: more than {limits.wall_s:g} s", unsafe)
        request = _build_request(data, test_indices)
        (outcome,) = runner.observe(source + HARNESS, [request], replace(limits, wall_s=remaining_s))
        unsafe = unsafe or outcome.unsafe
        probabilities = _parse_probabilities(outcome, len(test_indices), data.classes)
        if isinstance(probabilities, str):
            return ProgramScore(None, probabilities, unsafe)
        areas.append(area_of_probabilities(data.labels[test_indices], probabilities))
    return ProgramScore(float(np.mean(areas)), "", unsafe)


def _build_request(data: DataSet, test_indices: NDArray[np.int64]) -> CallRequest:
    """Builds the request of a fold: rows to learn from with their labels, and test rows without labels."""
    train_indices = np.setdiff1d(np.arange(len(data.labels)), test_indices)
    rows, labels = data.rows[train_indices].astype("<f4").tobytes(), data.labels[train_indices].astype("u1").tobytes()
    return CallRequest(ENTRY, (rows, labels, data.rows[test_indices].astype("<f4").tobytes(), data.rows.shape[1]))


def _parse_probabilities(outcome: Outcome, rows: int, classes: int) -> NDArray[np.float64] | str:
    """Parses the probabilities of an answer, `[rows, classes]`; returns the error text where they are malformed."""
    if not outcome.ok:
        return f"{outcome.status}: {outcome.error}" if outcome.status != "raised" else outcome.error
    value = outcome.value
    expected = f"expected {rows} rows of {classes} finite probabilities"
    if type(value) is not list or len(value) != rows:
        return f"{expected}, got {len(value) if type(value) is list else type(value).__name__}"
    if not all(
        type(row) is list and len(row) == classes and all(type(probability) is float for probability in row)
        for row in value
    ):
        return f"{expected} in each row"
    probabilities = np.array(value, np.float64)
    return probabilities if bool(np.isfinite(probabilities).all()) else expected

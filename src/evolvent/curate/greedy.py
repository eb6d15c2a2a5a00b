"""Greedy MAP of a determinantal point process in feature form: selects diverse items of high quality without a
kernel.

With features F `[n, d]` and quality s `[n]` the kernel is L = B B^T, B = diag(s) F. An item adds the log of its
residue to log det L_S, given the selected items S: the residue is the squared length of the part of its row of
B outside the span of the selected rows. Greedy takes the largest residue each time (Chen, Zhang and Zhou 2018,
arXiv 1709.05135, algorithm 1). The paper carries the rows of the Cholesky factor of L_S along, `[k, n]`
numbers. With features available these rows are products of the features with orthonormal directions of the
selected ones (Gram-Schmidt), so only the `[k, d]` directions are kept.

Residues only shrink. A block of rows is therefore updated only when its largest residue, as last known, could
still win; then all directions added since are subtracted at once. Sums are computed in the precision of the
features with a bound on their error, and whatever the bound leaves open is decided in float64. The selection is
therefore that of float64 arithmetic, and depends neither on blocks nor on the order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, Problem
from evolvent.trajectory import Array

__all__ = [
    "GreedySelector",
    "Selection",
    "Stopped",
    "check_features",
    "check_k",
    "check_quality",
    "greedy_map",
    "multiply",
    "restarted_map",
]

Stopped = Literal["k", "rank", "empty"]
_BLOCK = 1 << 19  # bytes of features in a block: what a core's cache holds
_MAX_PRODUCTS = 10**6  # products; BLAS libraries multiply smaller matrices as they lie, larger ones they copy first
_ROWS = 1 << 14
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Selected items, the best first.

    Args:
        indices: `[m]` int64. Rows of the pool, each once, in the order of selection.
        gains: `[m]` float64. Value for which each item was selected; its meaning depends on the selector. For
            `greedy_map` the log of the residue: the gains sum to log det L_S.
        stopped: "k": as many items as requested. "empty": the pool had fewer, and all were taken. "rank": the
            remaining items add nothing to the selected ones.
    """

    indices: NDArray[np.int64]
    gains: NDArray[np.float64]
    stopped: Stopped


def multiply(left: Array, right: Array) -> Array:
    """Computes the matrix product of finite arrays `[n, m]` and `[m, k]`: `[n, k]`.

    Kernels of OpenBLAS may raise the flag of invalid values in lanes that they pad and discard; numpy then warns of
    values that do not exist.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(left @ right)


def greedy_map(features: ArrayLike, quality: ArrayLike | None, k: int, *, rtol: float | None = None) -> Selection:
    """Selects at most k items greedily: at each step the largest residue, among equal ones the lowest index.

    Residues that float64 cannot distinguish are equal. Features are used as given (`unit_features` normalizes
    them). Time O(n k d) at most; memory besides the features: four numbers an item. Features may be on disk
    (`np.memmap`).

    Args:
        features: `[n, d]`. float32 and float64 are used without a copy.
        quality: `[n]`, at least 0. An item of quality 0 is never taken. None: 1 each.
        k: Number of items, at least 1.
        rtol: Stops ("rank") when the largest residue is at most rtol times the largest at the start. None:
            8 eps sqrt(d), with eps of the features' type: the residue that rounding of the features can leave.
    Raises:
        NonFinite: NaN or infinity in the features, NaN, infinity or a negative number in quality; names the
            position.
        BatchMismatch: features that are not a matrix, quality of another length. ConfigError: k below 1, a bad
            rtol.
    """
    check_k(k)
    return GreedySelector(features, quality, rtol=rtol).extend(k)


def restarted_map(features: ArrayLike, quality: ArrayLike | None, k: int, *, rtol: float | None = None) -> Selection:
    """Selects by greedy MAP that restarts on the remaining items whenever the rank is used up, until k items are
    taken.

    Gains are those of the round in which an item was taken. Items without residue at the start (quality or features
    0) are left out: where only these remain, the selection stops with "rank". Arguments and errors: `greedy_map`.
    """
    check_k(k)
    matrix, weights = check_features(features), None
    if quality is not None:
        weights = check_quality(quality, len(matrix))
    remaining = np.arange(len(matrix))
    indices: list[NDArray[np.int64]] = [remaining[:0]]
    gains: list[NDArray[np.float64]] = [np.zeros(0)]
    num_taken = 0
    while True:
        rows = matrix if len(remaining) == len(matrix) else matrix[remaining]
        selection = GreedySelector(rows, None if weights is None else weights[remaining], rtol=rtol).extend(
            k - num_taken
        )
        indices.append(remaining[selection.indices])
        gains.append(selection.gains)
        num_taken += len(selection.indices)
        if selection.stopped != "rank" or not len(selection.indices):
            return Selection(np.concatenate(indices), np.concatenate(gains), selection.stopped)
        remaining = np.delete(remaining, selection.indices)


class GreedySelector:
    """A greedy selection that can be continued: `extend(k)` takes further items until there are k.

    Arguments as in `greedy_map`. The features are never changed, and not copied where they are float32 or float64.
    """

    def __init__(self, features: ArrayLike, quality: ArrayLike | None = None, *, rtol: float | None = None) -> None:
        self._features = check_features(features)
        count, width = self._features.shape
        eps = float(np.finfo(self._features.dtype).eps)
        self._rtol = 8 * eps * math.sqrt(width) if rtol is None else rtol
        if not 0 <= self._rtol < 1:
            raise ConfigError([Problem("rtol", f"got {rtol}, expected 0 <= rtol < 1")])
        self._eps = eps
        self._squares = None if quality is None else check_quality(quality, count) ** 2
        self._directions = np.zeros((0, width))  # [t, d] float64, orthonormal: a view of the rows that are ready
        self._ready = np.zeros((8, width))
        self._indices: list[int] = []
        self._gains: list[float] = []
        rows = max(64, _BLOCK // max(1, width * self._features.itemsize))
        self._blocks = [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
        self._start = np.concatenate(
            [np.zeros(0), *map(self._squared_lengths, self._blocks)]
        )  # [n] residues at the start
        self._left = self._start.copy()  # [n] residues as last known, of directions[: fed]; -inf: taken
        self._fed = np.zeros(len(self._blocks), np.int64)  # directions that a block's residues are of
        self._top = np.zeros(len(self._blocks))  # no residue of a block is above it
        for block in range(len(self._blocks)):
            self._update_bound(block)
        self._most = float(self._start.max(initial=0.0))

    def extend(self, k: int) -> Selection:
        """Takes items until there are k, or until no remaining item adds anything. The result holds all items so
        far.
        """
        stopped: Stopped = "k"
        while len(self._indices) < k:
            item = None if len(self._directions) == self._features.shape[1] else self._find_largest()
            if item is None:
                stopped = "empty" if len(self._indices) == len(self._features) else "rank"
                break
            self._take(item)
        return Selection(np.array(self._indices, np.int64), np.array(self._gains, np.float64), stopped)

    def _squared_lengths(self, block_slice: slice) -> NDArray[np.float64]:
        """Computes squared lengths of a block's rows of B; they cannot overflow where the features are float32."""
        rows = self._features[block_slice].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            squared_lengths: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
            squared_lengths = squared_lengths if self._squares is None else squared_lengths * self._squares[block_slice]
        _raise_first(~np.isfinite(squared_lengths), partial(_describe_nonfinite, rows, offset=block_slice.start))
        return squared_lengths

    def _relative_error(self) -> float:
        """Computes the bound on the error of a known residue, as a share of the residue at the start.

        A sum of d products errs by at most d eps / 2 of the lengths (Higham 2002, section 3.1), a direction in the
        features' precision by the same amount again; over t directions the errors of the squares add up to at most
        twice that times sqrt(t) (Cauchy-Schwarz). The bound is twice as large.
        """
        count, width = self._directions.shape
        return self._eps * (2 * (width + 2) * math.sqrt(count) + count) + 2 * _EPS * (width + 2)

    def _update_bound(self, block: int) -> float:
        """Updates the upper bound of a block's residues; returns a lower bound of its largest residue."""
        block_slice = self._blocks[block]
        error = self._start[block_slice] * self._relative_error()
        upper = self._left[block_slice] + error
        best = int(upper.argmax())
        self._top[block] = upper[best]
        return float(upper[best] - 2 * error[best])

    def _update_residues(self, block: int) -> float:
        """Takes the directions added since from a block's residues; returns a lower bound of the largest residue."""
        block_slice = self._blocks[block]
        rows, scale = self._features[block_slice], 1.0 if self._squares is None else self._squares[block_slice]
        step = max(1, _MAX_PRODUCTS // max(1, rows.size))
        for start in range(int(self._fed[block]), len(self._directions), step):
            directions = self._directions[start : start + step].astype(self._features.dtype, copy=False)
            projections = multiply(rows, directions.T).astype(np.float64, copy=False)
            self._left[block_slice] -= np.einsum("ij,ij->i", projections, projections) * scale
        self._fed[block] = len(self._directions)
        return self._update_bound(block)

    def _find_largest(self) -> int | None:
        """Finds the item with the largest residue; None where it adds nothing."""
        order = np.argsort(-self._top, kind="stable").tolist()
        limit, candidate_blocks = self._rtol * self._most, []
        lower_bound = limit  # the largest residue is above it, or there is none to take
        for block in order:
            if self._top[block] < lower_bound or self._top[block] <= limit:
                break
            lower_bound = max(lower_bound, self._update_residues(block))
            candidate_blocks.append(block)
        slack, rows = self._relative_error(), []
        for block in sorted(candidate_blocks):
            block_slice = self._blocks[block]
            candidate_rows = np.flatnonzero(self._left[block_slice] + slack * self._start[block_slice] >= lower_bound)
            rows.append(candidate_rows + block_slice.start)
        return self._decide(np.concatenate(rows), limit) if rows else None

    def _decide(self, rows: NDArray[np.int64], limit: float) -> int | None:
        """Finds, among ascending rows, the first row with the largest residue in float64; None where it adds
        nothing.
        """
        if len(rows) == 1 and self._left[rows[0]] - self._relative_error() * self._start[rows[0]] > limit:
            return int(rows[0])
        size = max(1, _BLOCK // (8 * max(1, self._features.shape[1])))
        residues = [self._compute_residues(rows[start : start + size]) for start in range(0, len(rows), size)]
        values = np.concatenate([np.zeros(0), *residues])
        best = float(values.max(initial=0.0))
        if best <= limit:
            return None
        tolerance = 4 * _EPS * (self._features.shape[1] + 2) * np.sqrt(self._start[rows] * best)
        return int(rows[np.flatnonzero(values >= best - tolerance)[0]])

    def _compute_residues(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Computes residues `[m]` from the features and the directions alone, in float64."""
        outside = self._project_out(self._features[rows].astype(np.float64))
        residues: NDArray[np.float64] = np.einsum("ij,ij->i", outside, outside)
        residues = residues if self._squares is None else residues * self._squares[rows]
        return np.where(np.isneginf(self._left[rows]), 0.0, residues)

    def _project_out(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Computes the part of vectors `[m, d]` outside the span of the directions."""
        return np.asarray(vectors - multiply(multiply(vectors, self._directions.T), self._directions), np.float64)

    def _take(self, item: int) -> None:
        vector = self._features[item].astype(np.float64)[None]
        outside = self._project_out(vector)
        if np.sum(outside * outside) < 0.5 * np.sum(vector * vector):  # much was taken off: once more, which is enough
            outside = self._project_out(outside)  # (Daniel, Gragg, Kaufman and Stewart 1976)
        length = float(np.sqrt(np.sum(outside * outside)))
        scale = 1.0 if self._squares is None else float(self._squares[item])
        self._indices.append(item)
        self._gains.append(2 * math.log(length) + math.log(scale))
        self._left[item] = -np.inf
        count = len(self._indices)
        if count > len(self._ready):
            self._ready = np.concatenate([self._ready, np.zeros_like(self._ready)])
        self._ready[count - 1] = outside / length
        self._directions = self._ready[:count]


def check_features(features: ArrayLike, *, finite: bool = False) -> Array:
    """Checks features and returns them as a matrix `[n, d]` of float32 or float64.

    float16 becomes float32, integers become float64.

    Args:
        features: `[n, d]`. Features of the items.
        finite: Whether all values must be finite.
    Raises:
        BatchMismatch: not a matrix of numbers. NonFinite: a value that is not finite, with `finite`; names its
            position.
    """
    matrix = features if isinstance(features, np.ndarray) else np.asarray(features)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise BatchMismatch(
            "features do not form a matrix",
            value=f"{matrix.dtype} of shape {matrix.shape}",
            expected="numbers with one row per item",
        )
    if matrix.dtype not in (np.float32, np.float64):
        matrix = matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)
    for start in range(0, len(matrix) if finite else 0, _ROWS):
        is_invalid = np.asarray(~np.isfinite(matrix[start : start + _ROWS]).all(axis=1), np.bool_)
        _raise_first(is_invalid, partial(_describe_nonfinite, matrix[start : start + _ROWS], offset=start))
    return matrix


def check_quality(quality: ArrayLike, count: int, *, negative: bool = False) -> NDArray[np.float64]:
    """Checks quality and returns it as `[n]` float64.

    Args:
        quality: `[n]`. Quality of the items.
        count: Number of items.
        negative: Whether negative numbers are allowed.
    Raises:
        BatchMismatch: not one number an item. NonFinite: NaN, infinity, or, unless allowed, a negative number; names
            the row.
    """
    values = np.asarray(quality, np.float64)
    if values.shape != (count,):
        raise BatchMismatch("quality and features differ in length", value=values.shape, expected=(count,))
    is_invalid = ~np.isfinite(values) if negative else ~(np.isfinite(values) & (values >= 0))
    _raise_first(
        is_invalid,
        lambda row: (
            f"quality of row {row} is {values[row]}",
            "a finite number" if negative else "a finite number of at least 0",
        ),
    )
    return values


def check_k(k: int) -> None:
    """Raises an error unless at least one item is requested.

    Raises:
        ConfigError: k is no whole number of at least 1.
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ConfigError([Problem("k", f"got {k!r}, expected a whole number of at least 1")])


def _raise_first(is_invalid: NDArray[np.bool_], describe: Callable[[int], tuple[str, str]]) -> None:
    if is_invalid.any():
        problem, expected = describe(int(np.flatnonzero(is_invalid)[0]))
        raise NonFinite(problem, expected=expected)


def _describe_nonfinite(rows: NDArray[Any], row: int, *, offset: int) -> tuple[str, str]:
    columns = np.flatnonzero(~np.isfinite(rows[row]))
    if len(columns):
        return f"the feature in row {offset + row}, column {columns[0]} is {rows[row, columns[0]]}", "a finite number"
    return f"the features and quality of row {offset + row} are too large to be squared", "numbers below 1e150"

"""Greedy MAP of a determinantal point process in feature form: diverse items of high quality, and no kernel is built.

With features F `[n, d]` and quality s `[n]` the kernel is L = B B^T, B = diag(s) F. What an item would add to
log det L_S, given the items S, is log of its residue: the squared length of what of its row of B is not in the span of
theirs. Greedy takes the largest residue each time (Chen, Zhang and Zhou 2018, arXiv 1709.05135, algorithm 1). They
carry the rows of the Cholesky factor of L_S along, `[k, n]` numbers. With features at hand these rows are products of
the features with orthonormal directions of the chosen ones (Gram-Schmidt), so only the `[k, d]` directions are kept.

Residues only shrink. A block of rows is therefore looked at again only when its largest residue, as last known, could
still win; then all directions that came since are taken off at once. Sums are made in the features' own precision with
a bound on their error, and whatever the bound leaves possible is decided in float64. So the choice is that of float64
arithmetic, and it depends neither on blocks nor on the order of rows.
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

__all__ = [
    "Greedy",
    "Selection",
    "Stopped",
    "checked_features",
    "checked_k",
    "checked_quality",
    "greedy_map",
    "product",
    "restarted_map",
]

Stopped = Literal["k", "rank", "empty"]
_BLOCK = 1 << 19  # bytes of features in a block: what a core's cache holds
_SMALL = 10**6  # products; BLAS libraries multiply smaller matrices as they lie, larger ones they copy first
_ROWS = 1 << 14
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Chosen items, the best first.

    Args:
        indices: `[m]` int64, rows of the pool, each once, in the order of choice.
        gains: `[m]` float64, what each was chosen for; selectors say what it is. For `greedy_map`, log of the residue:
            their sum is log det L_S.
        stopped: "k": as many as asked for. "empty": the pool had fewer, and all were taken. "rank": what is left adds
            nothing to what was taken.
    """

    indices: NDArray[np.int64]
    gains: NDArray[np.float64]
    stopped: Stopped


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The matrix product of finite arrays.

    Kernels of OpenBLAS may raise the flag of invalid values in lanes that they fill up and throw away; numpy then
    warns of values that are not there.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(a @ b)


def greedy_map(features: ArrayLike, quality: ArrayLike | None, k: int, *, rtol: float | None = None) -> Selection:
    """The greedy choice of at most k items: at each step the largest residue, among equal ones the lowest index.

    Equal are residues that float64 cannot tell apart. Features are taken as they are (`unit_features` normalises).
    Time O(n k d) at most; memory beside the features: four numbers an item. Features may lie on disk (`np.memmap`).

    Args:
        features: `[n, d]`; float32 and float64 are used as they are.
        quality: `[n]`, at least 0; an item of quality 0 is never taken. None: 1 each.
        k: how many, at least 1.
        rtol: stops ("rank") when the largest residue is at most rtol times the largest at the start. None:
            8 eps sqrt(d), with eps of the features' type: what rounding in the features themselves can leave.
    Raises:
        NonFinite: NaN or infinity in the features, NaN, infinity or a negative number in quality; names the place.
        BatchMismatch: features that are no matrix, quality of another length. ConfigError: k below 1, a bad rtol.
    """
    checked_k(k)
    return Greedy(features, quality, rtol=rtol).extend(k)


def restarted_map(features: ArrayLike, quality: ArrayLike | None, k: int, *, rtol: float | None = None) -> Selection:
    """Greedy MAP that begins again on the rest whenever the rank is used up, until k items are taken.

    Gains are those of the round an item was taken in. Items without residue at the start (quality or features 0) are
    left: where only such ones remain it stops with "rank". Arguments and errors: `greedy_map`.
    """
    checked_k(k)
    matrix, weights = checked_features(features), None
    if quality is not None:
        weights = checked_quality(quality, len(matrix))
    left = np.arange(len(matrix))
    indices: list[NDArray[np.int64]] = [left[:0]]
    gains: list[NDArray[np.float64]] = [np.zeros(0)]
    taken = 0
    while True:
        rows = matrix if len(left) == len(matrix) else matrix[left]
        found = Greedy(rows, None if weights is None else weights[left], rtol=rtol).extend(k - taken)
        indices.append(left[found.indices])
        gains.append(found.gains)
        taken += len(found.indices)
        if found.stopped != "rank" or not len(found.indices):
            return Selection(np.concatenate(indices), np.concatenate(gains), found.stopped)
        left = np.delete(left, found.indices)


class Greedy:
    """A greedy choice that can be continued: `extend(k)` takes further items until there are k.

    Args: see `greedy_map`. The features are read, never changed, and not copied where they are float32 or float64.
    """

    def __init__(self, features: ArrayLike, quality: ArrayLike | None = None, *, rtol: float | None = None) -> None:
        self._features = checked_features(features)
        count, width = self._features.shape
        eps = float(np.finfo(self._features.dtype).eps)
        self._rtol = 8 * eps * math.sqrt(width) if rtol is None else rtol
        if not 0 <= self._rtol < 1:
            raise ConfigError([Problem("rtol", f"{rtol} is no share of the largest residue", "use 0 <= rtol < 1")])
        self._eps = eps
        self._squares = None if quality is None else checked_quality(quality, count) ** 2
        self._directions = np.zeros((0, width))  # [t, d] float64, orthonormal: a view of the rows that are ready
        self._ready = np.zeros((8, width))
        self._indices: list[int] = []
        self._gains: list[float] = []
        rows = max(64, _BLOCK // max(1, width * self._features.itemsize))
        self._blocks = [slice(at, min(at + rows, count)) for at in range(0, count, rows)]
        self._start = np.concatenate([np.zeros(0), *map(self._lengths, self._blocks)])  # [n] residues at the start
        self._left = self._start.copy()  # [n] residues as last known, of directions[: fed]; -inf: taken
        self._fed = np.zeros(len(self._blocks), np.int64)  # directions that a block's residues are of
        self._top = np.zeros(len(self._blocks))  # no residue of a block is above it
        for block in range(len(self._blocks)):
            self._bound(block)
        self._most = float(self._start.max(initial=0.0))

    def extend(self, k: int) -> Selection:
        """Take items until there are k, or none is left that adds anything. All so far are in the result."""
        stopped: Stopped = "k"
        while len(self._indices) < k:
            chosen = None if len(self._directions) == self._features.shape[1] else self._largest()
            if chosen is None:
                stopped = "empty" if len(self._indices) == len(self._features) else "rank"
                break
            self._take(chosen)
        return Selection(np.array(self._indices, np.int64), np.array(self._gains, np.float64), stopped)

    def _lengths(self, place: slice) -> NDArray[np.float64]:
        """Squared lengths of a block's rows of B, which cannot overflow where the features are float32."""
        rows = self._features[place].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            found: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
            found = found if self._squares is None else found * self._squares[place]
        _refuse(~np.isfinite(found), partial(_place_of, rows, offset=place.start))
        return found

    def _slack(self) -> float:
        """How far a residue as known may be off, as a share of the residue at the start.

        A sum of d products errs by at most d eps / 2 of the lengths (Higham 2002, section 3.1), a direction in the
        features' precision by as little again; over t directions the squares' errors add up to twice that times
        sqrt(t) at most (Cauchy-Schwarz). Twice as much is allowed here.
        """
        count, width = self._directions.shape
        return self._eps * (2 * (width + 2) * math.sqrt(count) + count) + 2 * _EPS * (width + 2)

    def _bound(self, block: int) -> float:
        """Renew the bound above a block's residues; returns one below its largest."""
        place = self._blocks[block]
        off = self._start[place] * self._slack()
        above = self._left[place] + off
        best = int(above.argmax())
        self._top[block] = above[best]
        return float(above[best] - 2 * off[best])

    def _renew(self, block: int) -> float:
        """Take the directions that came since off a block's residues; returns a number below the largest."""
        place = self._blocks[block]
        rows, scale = self._features[place], 1.0 if self._squares is None else self._squares[place]
        step = max(1, _SMALL // max(1, rows.size))
        for at in range(int(self._fed[block]), len(self._directions), step):
            some = self._directions[at : at + step].astype(self._features.dtype, copy=False)
            parts = product(rows, some.T).astype(np.float64, copy=False)
            self._left[place] -= np.einsum("ij,ij->i", parts, parts) * scale
        self._fed[block] = len(self._directions)
        return self._bound(block)

    def _largest(self) -> int | None:
        """The item with the largest residue; None where it adds nothing."""
        order = np.argsort(-self._top, kind="stable").tolist()
        limit, near = self._rtol * self._most, []
        floor = limit  # the largest residue is above it, or there is none to take
        for block in order:
            if self._top[block] < floor or self._top[block] <= limit:
                break
            floor = max(floor, self._renew(block))
            near.append(block)
        slack, rows = self._slack(), []
        for block in sorted(near):
            place = self._blocks[block]
            close = np.flatnonzero(self._left[place] + slack * self._start[place] >= floor)
            rows.append(close + place.start)
        return self._decided(np.concatenate(rows), limit) if rows else None

    def _decided(self, rows: NDArray[np.int64], limit: float) -> int | None:
        """Among these, ascending, the one with the largest residue in float64; equal ones: the first."""
        if len(rows) == 1 and self._left[rows[0]] - self._slack() * self._start[rows[0]] > limit:
            return int(rows[0])
        size = max(1, _BLOCK // (8 * max(1, self._features.shape[1])))
        parts = [self._residues(rows[at : at + size]) for at in range(0, len(rows), size)]
        values = np.concatenate([np.zeros(0), *parts])
        best = float(values.max(initial=0.0))
        if best <= limit:
            return None
        equal = 4 * _EPS * (self._features.shape[1] + 2) * np.sqrt(self._start[rows] * best)
        return int(rows[np.flatnonzero(values >= best - equal)[0]])

    def _residues(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Residues `[m]` from the features and the directions alone, in float64."""
        outside = self._outside(self._features[rows].astype(np.float64))
        found: NDArray[np.float64] = np.einsum("ij,ij->i", outside, outside)
        found = found if self._squares is None else found * self._squares[rows]
        return np.where(np.isneginf(self._left[rows]), 0.0, found)

    def _outside(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """What of vectors `[m, d]` is not in the span of the directions."""
        return np.asarray(vectors - product(product(vectors, self._directions.T), self._directions), np.float64)

    def _take(self, item: int) -> None:
        vector = self._features[item].astype(np.float64)[None]
        outside = self._outside(vector)
        if np.sum(outside * outside) < 0.5 * np.sum(vector * vector):  # much was taken off: once more, which is enough
            outside = self._outside(outside)  # (Daniel, Gragg, Kaufman and Stewart 1976)
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


def checked_features(features: ArrayLike, *, finite: bool = False) -> NDArray[Any]:
    """The features `[n, d]` as a matrix of float32 or float64; float16 becomes float32, whole numbers float64.

    Raises:
        BatchMismatch: no matrix of numbers. NonFinite: where all are to be finite, one that is not; names its place.
    """
    matrix = features if isinstance(features, np.ndarray) else np.asarray(features)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise BatchMismatch(
            "features that are no matrix",
            value=f"{matrix.dtype} of shape {matrix.shape}",
            expected="numbers, a row an item",
        )
    if matrix.dtype not in (np.float32, np.float64):
        matrix = matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)
    for at in range(0, len(matrix) if finite else 0, _ROWS):
        wrong = np.asarray(~np.isfinite(matrix[at : at + _ROWS]).all(axis=1), np.bool_)
        _refuse(wrong, partial(_place_of, matrix[at : at + _ROWS], offset=at))
    return matrix


def checked_quality(quality: ArrayLike, count: int, *, negative: bool = False) -> NDArray[np.float64]:
    """The quality `[n]` as float64.

    Raises:
        BatchMismatch: not one number an item. NonFinite: NaN, infinity, or, unless allowed, a negative number; the row
            is named.
    """
    values = np.asarray(quality, np.float64)
    if values.shape != (count,):
        raise BatchMismatch("quality and features differ in length", value=values.shape, expected=(count,))
    wrong = ~np.isfinite(values) if negative else ~(np.isfinite(values) & (values >= 0))
    _refuse(
        wrong,
        lambda row: (
            f"quality of row {row} is {values[row]}",
            "a finite number" if negative else "a finite number of at least 0",
        ),
    )
    return values


def checked_k(k: int) -> None:
    """Refuse to choose fewer than one item.

    Raises:
        ConfigError: k is no whole number of at least 1.
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ConfigError([Problem("k", f"{k!r} items cannot be chosen", "use a whole number of at least 1")])


def _refuse(wrong: NDArray[np.bool_], told: Callable[[int], tuple[str, str]]) -> None:
    if wrong.any():
        what, expected = told(int(np.flatnonzero(wrong)[0]))
        raise NonFinite(what, expected=expected)


def _place_of(rows: NDArray[Any], row: int, *, offset: int) -> tuple[str, str]:
    columns = np.flatnonzero(~np.isfinite(rows[row]))
    if len(columns):
        return f"the feature in row {offset + row}, column {columns[0]} is {rows[row, columns[0]]}", "a finite number"
    return f"the features and quality of row {offset + row} are too large to be squared", "numbers below 1e150"

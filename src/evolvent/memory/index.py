"""Exact nearest neighbours by cosine: rows on disk or in memory, many queries at once, and the same answer every time.

The product runs in float32, which is fast and inexact in its last bits: equal rows may get unequal scores, depending on
where in the matrix they stand. So the product only says which rows may be among the best: those within twice its error
bound of the k-th score. These few are scored again in float64, one row at a time, and sorted; ties go by the given
order. The answer therefore depends neither on batching, nor on blocks, nor on the machine's matrix library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, boundary

__all__ = ["FlatIndex", "Found", "Index", "unit_rows"]

Rows = NDArray[np.float32]
_Picked = list[tuple[NDArray[np.int64], Rows]]  # rows and their scores, a block after another
_Near = tuple[int, NDArray[np.int64], Rows]  # a query, rows, their scores
_QUERIES = 256  # scored together
_BLOCK = (4096, 65536, 1 << 21)  # rows of a block: at least, at most; and scores (8 MiB)
_ON_DEVICE = (4096, 1 << 22, 1 << 27)  # the same on a device (512 MiB)
_FEW, _CACHED = 8, 1000  # so few queries take scalar products, with so many rows at a time
_STRIPES = 64  # maxima of so many rows each bound the k-th score from below
_SEGMENTS = 16  # more are put together, the smallest first
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest rows of each query, best first.

    Args:
        rows: `[Q, k]` row numbers, -1 where there are fewer. scores: `[Q, k]` cosines, -inf there.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


class Index(Protocol):
    """What finds rows: `FlatIndex` exactly, `UsearchIndex` nearly."""

    def __len__(self) -> int: ...

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Found:
        """The `k` best of the allowed rows."""
        ...

    def extended(self, vectors: Rows, order: NDArray[np.int64]) -> Index:
        """The same index with more rows at its end; `order` is of all rows."""
        ...

    def vectors(self) -> Rows:
        """`[N, D]` all rows."""
        ...

    def graph(self) -> bytes | None:
        """What a file of its graph holds; None: it has none."""
        ...


def unit_rows(vectors: ArrayLike, *, what: str = "a vector") -> Rows:
    """Rows of length 1 as float32, `[N, D]`; a row of zeros, which has no direction, stays one.

    Raises:
        NonFinite: a NaN or an infinity, naming the row. BatchMismatch: no matrix.
    """
    with boundary(BatchMismatch, f"{what} is no row of a matrix"):
        made = np.array(vectors, dtype=np.float32, order="C")
    if made.ndim != 2:
        raise BatchMismatch(f"{what} is no row of a matrix", value=made.shape, expected="[N, D]")
    finite = np.isfinite(made).all(axis=1)
    if not finite.all():
        raise NonFinite(f"{what} is not finite", value=f"row {int(np.flatnonzero(~finite)[0])}")
    lengths = np.sqrt(np.einsum("ij,ij->i", made, made, dtype=np.float64))[:, None]
    np.divide(made, lengths, out=made, where=lengths > 0, casting="unsafe")
    return made


class FlatIndex:
    """Every row is looked at: exact, and for less than some hundred thousand rows the fastest there is.

    Args:
        segments: `[n, D]` float32 matrices, one after another; rows have length 1 or 0 (`unit_rows`). They may lie on
            disk (`np.load(..., mmap_mode="r")`) and are never copied.
        order: `[N]` which of two rows with equal scores comes first; None: the lower row.
        device: where the product is computed: None for numpy, else by torch ("cuda", "cpu"), which then keeps a copy.
    Raises:
        BatchMismatch: segments of other widths, types or numbers of rows than told.
    """

    def __init__(
        self, segments: Sequence[Rows], *, order: NDArray[np.int64] | None = None, device: str | None = None
    ) -> None:
        widths = {segment.shape[1] for segment in segments if segment.ndim == 2}
        if len(widths) != 1 or any(s.ndim != 2 or s.dtype != np.float32 for s in segments):
            shapes = [(segment.shape, segment.dtype.name) for segment in segments]
            raise BatchMismatch("segments of an index do not fit", value=shapes, expected="[n, D] float32")
        self.segments, self.device, self.width = tuple(segments), device, widths.pop()
        self._starts = np.cumsum([0, *map(len, self.segments)])
        self.order = np.arange(len(self)) if order is None else order
        if len(self.order) != len(self):
            raise BatchMismatch("the order of an index is not of its rows", value=(len(self.order), len(self)))
        self._moved = [_to_device(segment, device) for segment in self.segments] if device else []

    def __len__(self) -> int:
        return int(self._starts[-1])

    def vectors(self) -> Rows:
        """`[N, D]` all rows; a copy where there are several segments."""
        return self.segments[0] if len(self.segments) == 1 else np.concatenate(self.segments)

    def graph(self) -> None:
        """None: every row is looked at."""

    def rows(self, places: NDArray[np.int64]) -> Rows:
        """`[n, D]` the rows at these places."""
        if len(self.segments) == 1:
            return np.asarray(self.segments[0][places])
        made = np.empty((len(places), self.width), np.float32)
        owner = np.searchsorted(self._starts, places, side="right") - 1
        for at in np.unique(owner).tolist():
            mine = owner == at
            made[mine] = self.segments[at][places[mine] - self._starts[at]]
        return made

    def extended(self, vectors: Rows, order: NDArray[np.int64]) -> FlatIndex:
        """The same rows and more at the end. Nothing is copied, until there are many small segments to put together."""
        parts = [part for part in (*self.segments, vectors) if len(part)] or [vectors]
        while len(parts) > _SEGMENTS or (len(parts) > 2 and len(parts[-2]) <= len(parts[-1])):
            last = parts.pop()
            parts[-1] = np.concatenate([parts[-1], last])
        return FlatIndex(parts, order=order, device=self.device)

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Found:
        """The `k` rows nearest to each query, best first; equal scores by the index's order.

        Args:
            queries: `[Q, D]`, of any length. k: 1 or more; of fewer rows, all are found.
            allowed: `[N]` rows that may be found; None: all.
        Raises:
            ConfigError: k below 1. BatchMismatch: shapes that do not fit. NonFinite: NaN in a query, naming it.
        """
        asked = unit_rows(queries, what="a query")
        if k < 1:
            raise ConfigError("no nearest rows", value=f"k = {k}", expected="k >= 1")
        if asked.shape[1] != self.width or (allowed is not None and len(allowed) != len(self)):
            raise BatchMismatch(
                "queries or filter do not fit the index",
                expected=(len(self), self.width),
                value=(None if allowed is None else len(allowed), asked.shape[1]),
            )
        found = Found(np.full((len(asked), k), -1), np.full((len(asked), k), -np.inf))
        for at in range(0, len(asked), _QUERIES):
            some = asked[at : at + _QUERIES]
            for place, rows in enumerate(self._candidates(some, k, allowed)):
                self.rank(some[place], rows, out=(found.rows[at + place], found.scores[at + place]))
        return found

    def rank(self, query: Rows, rows: NDArray[np.int64], *, out: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
        """Score rows in float64, sort them, and write the best into `out` (row numbers, scores)."""
        scores = (self.rows(rows).astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        best = np.lexsort((self.order[rows], -scores))[: len(out[0])]
        out[0][: len(best)], out[1][: len(best)] = rows[best], scores[best]

    def _candidates(self, queries: Rows, k: int, allowed: NDArray[np.bool_] | None) -> list[NDArray[np.int64]]:
        """For each query the rows that may be among its `k` best."""
        slack = 2 * (self.width + 4) * 2.0**-23  # twice the bound of the error of a float32 product of unit rows
        floor = np.full(len(queries), _LOWEST)
        kept: list[_Picked] = [[] for _ in queries]
        for rows, scores in self._scored(queries, allowed):
            floor, picked = (_pick_torch if self.device else _pick)(scores, floor, k=k, slack=slack)
            for at, near, values in picked:
                kept[at].append((near + rows if isinstance(rows, int) else rows[near], values))
        return [_within(found, k, slack) for found in kept]

    def _scored(
        self, queries: Rows, allowed: NDArray[np.bool_] | None
    ) -> Iterator[tuple[int | NDArray[np.int64], Any]]:
        """Blocks of scores `[n, Q]` with the first row's number, or all numbers; -inf for what is not allowed."""
        block = _ON_DEVICE if self.device else _BLOCK
        size = min(max(block[2] // max(len(queries), 1), block[0]), block[1])
        asked = _to_device(queries, self.device) if self.device else queries
        for number, segment in enumerate(self._moved or self.segments):
            for at in range(0, len(segment), size):
                first, end = int(self._starts[number]) + at, min(at + size, len(segment))
                mask = None if allowed is None else allowed[first : first + end - at]
                if mask is not None and not mask.any():
                    continue
                if mask is not None and mask.mean() < 0.25:
                    inside = np.flatnonzero(mask)
                    yield inside + first, _product(asked, segment[at + inside])
                    continue
                scores = _product(asked, segment[at:end])
                if mask is not None:
                    scores[~mask] = -np.inf
                yield first, scores


def _pick(
    scores: Rows, floor: NDArray[np.float64], *, k: int, slack: float
) -> tuple[NDArray[np.float64], Iterator[_Near]]:
    """The raised bound of each query's k-th score, and which of `[n, Q]` scores are within the slack of it."""
    count, asked = scores.shape
    wide = count // _STRIPES
    bound = np.full(asked, _LOWEST)
    if count >= k:
        # The k-th of the maxima of stripes is a lower bound of the k-th of all, and far quicker to find.
        few = scores[: wide * _STRIPES].reshape(_STRIPES, wide, asked).max(axis=0) if wide >= 4 * k else scores
        bound = np.partition(few, len(few) - k, axis=0)[-k].astype(np.float64)
    floor = np.maximum(floor, bound)
    near = np.flatnonzero(scores >= _least(floor, slack))
    if asked == 1:
        return floor, iter([(0, near, scores[near, 0])])
    rows, queries = np.divmod(near, asked)
    return floor, _by_query(rows, queries, scores.reshape(-1)[near])


def _pick_torch(
    scores: Any, floor: NDArray[np.float64], *, k: int, slack: float
) -> tuple[NDArray[np.float64], Iterator[_Near]]:
    """The same where the scores lie on a device; only what is picked leaves it."""
    import torch

    bound = np.full(len(floor), _LOWEST)
    if len(scores) >= k:
        bound = scores.topk(k, dim=0).values[-1].double().cpu().numpy()
    floor = np.maximum(floor, bound)
    rows, queries = (scores >= torch.from_numpy(_least(floor, slack)).to(scores.device)).nonzero(as_tuple=True)
    values = scores[rows, queries]
    return floor, _by_query(rows.cpu().numpy(), queries.cpu().numpy(), values.cpu().numpy())


def _least(floor: NDArray[np.float64], slack: float) -> Rows:
    """`[Q]` the least score that is picked; never that of a row that is not allowed."""
    return np.where(floor > _LOWEST, floor - slack, _LOWEST).astype(np.float32)


def _by_query(rows: NDArray[np.int64], queries: NDArray[np.int64], values: Rows) -> Iterator[_Near]:
    order = np.argsort(queries, kind="stable")
    found, begins = np.unique(queries[order], return_index=True)
    cuts = [*begins.tolist(), len(order)]
    for number, query in enumerate(found.tolist()):
        mine = order[cuts[number] : cuts[number + 1]]
        yield query, rows[mine], values[mine]


def _within(found: _Picked, k: int, slack: float) -> NDArray[np.int64]:
    """Of what blocks kept, the rows within the slack of the k-th best of all."""
    if not found:
        return np.zeros(0, np.int64)
    rows, scores = (np.concatenate(part) for part in zip(*found, strict=True))
    if len(scores) <= k:
        return rows
    best: NDArray[np.int64] = rows[scores >= np.partition(scores, len(scores) - k)[-k] - slack]
    return best


def _to_device(rows: Rows, device: str) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)


def _product(queries: Any, rows: Any) -> Any:
    """`[n, Q]` in float32. torch's default precision of float32 products is the full one, which the bound needs."""
    if not isinstance(rows, np.ndarray) or len(queries) > _FEW:
        return rows @ queries.T
    # A matrix product with few columns copies all rows about first; scalar products read them once.
    made = np.empty((len(queries), len(rows)), np.float32)
    for at in range(0, len(rows), _CACHED):
        np.vecdot(rows[None, at : at + _CACHED], queries[:, None], out=made[:, at : at + _CACHED])
    return np.ascontiguousarray(made.T)

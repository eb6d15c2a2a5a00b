"""Exact nearest neighbors by cosine: rows on disk or in memory, many queries at once, and reproducible
results.

The product runs in float32, which is fast and inexact in its last bits: equal rows may get unequal scores,
depending on their position in the matrix. So the product only selects rows that may be among the best: those
within twice its error bound of the k-th score. These few are scored again in float64, one row at a time, and
sorted; the given order breaks ties. The result therefore depends neither on batching, nor on blocks, nor on the
machine's matrix library.

Nearly exact nearest neighbors for large stores: usearch's graph (the extra `embed`), scored again exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, CheckpointError, ConfigError, HashMismatch, MissingExtra, NonFinite, boundary

__all__ = ["FlatIndex", "Index", "Neighbors", "UsearchIndex", "normalize_rows"]


Rows = NDArray[np.float32]
_Picked = list[tuple[NDArray[np.int64], Rows]]  # rows and their scores, a block after another
_Near = tuple[int, NDArray[np.int64], Rows]  # a query, rows, their scores
_QUERIES = 256  # scored together
_BLOCK = (4096, 65536, 1 << 21)  # rows of a block: at least, at most; and scores (8 MiB)
_ON_DEVICE = (4096, 1 << 22, 1 << 27)  # the same on a device (512 MiB)
_MAX_VECDOT_QUERIES, _VECDOT_ROWS = 8, 1000  # so few queries take scalar products, with so many rows at a time
_STRIPES = 64  # maxima of so many rows each bound the k-th score from below
_SEGMENTS = 16  # more are put together, the smallest first
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The nearest rows of each query, best first.

    Args:
        rows: `[Q, k]`. Row numbers, -1 where there are fewer.
        scores: `[Q, k]`. Cosines, -inf where there are fewer rows.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


class Index(Protocol):
    """An index of rows: `FlatIndex` searches exactly, `UsearchIndex` nearly."""

    def __len__(self) -> int: ...

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Neighbors:
        """Returns the `k` best of the allowed rows."""
        ...

    def extend(self, vectors: Rows, order: NDArray[np.int64]) -> Index:
        """Returns the same index with more rows at its end; `order` is of all rows."""
        ...

    def vectors(self) -> Rows:
        """Returns all rows, `[N, D]`."""
        ...

    def graph(self) -> bytes | None:
        """Serializes its graph; None where it has none."""
        ...


def normalize_rows(vectors: ArrayLike, *, description: str = "a vector") -> Rows:
    """Returns rows of length 1 as float32, `[N, D]`; a row of zeros, which has no direction, stays zero.

    Raises:
        NonFinite: a NaN or an infinity, naming the row. BatchMismatch: no matrix.
    """
    with boundary(BatchMismatch, f"{description} is not a matrix"):
        rows = np.array(vectors, dtype=np.float32, order="C")
    if rows.ndim != 2:
        raise BatchMismatch(f"{description} is not a matrix", value=rows.shape, expected="[N, D]")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise NonFinite(f"{description} is not finite", value=f"row {int(np.flatnonzero(~finite)[0])}")
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    np.divide(rows, lengths, out=rows, where=lengths > 0, casting="unsafe")
    return rows


class FlatIndex:
    """An index that compares every row: exact, and the fastest below some hundred thousand rows.

    Args:
        segments: `[n, D]` float32 matrices, one after another; rows have length 1 or 0 (`normalize_rows`). They may
            be on disk (`np.load(..., mmap_mode="r")`) and are never copied.
        order: `[N]`. Rank that breaks ties between equal scores; None: the lower row first.
        device: Device of the product: None for numpy, otherwise by torch ("cuda", "cpu"), which then keeps a copy.
    Raises:
        BatchMismatch: segments of other widths or types, or an order of another length.
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
            raise BatchMismatch("the order of the index does not match its rows", value=(len(self.order), len(self)))
        self._moved = [_to_device(segment, device) for segment in self.segments] if device else []

    def __len__(self) -> int:
        return int(self._starts[-1])

    def vectors(self) -> Rows:
        """Returns all rows, `[N, D]`; a copy where there are several segments."""
        return self.segments[0] if len(self.segments) == 1 else np.concatenate(self.segments)

    def graph(self) -> None:
        """Returns None: there is no graph."""

    def take_rows(self, positions: NDArray[np.int64]) -> Rows:
        """Returns the rows at these positions, `[n, D]`."""
        if len(self.segments) == 1:
            return np.asarray(self.segments[0][positions])
        selected = np.empty((len(positions), self.width), np.float32)
        segment_of_row = np.searchsorted(self._starts, positions, side="right") - 1
        for segment_index in np.unique(segment_of_row).tolist():
            in_segment = segment_of_row == segment_index
            selected[in_segment] = self.segments[segment_index][positions[in_segment] - self._starts[segment_index]]
        return selected

    def extend(self, vectors: Rows, order: NDArray[np.int64]) -> FlatIndex:
        """Returns the same rows and more at the end. Nothing is copied until there are many small segments to merge."""
        parts = [part for part in (*self.segments, vectors) if len(part)] or [vectors]
        while len(parts) > _SEGMENTS or (len(parts) > 2 and len(parts[-2]) <= len(parts[-1])):
            last = parts.pop()
            parts[-1] = np.concatenate([parts[-1], last])
        return FlatIndex(parts, order=order, device=self.device)

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Neighbors:
        """Returns the `k` rows nearest to each query, best first; the index's order breaks ties.

        Args:
            queries: `[Q, D]`, of any length.
            k: 1 or more; of fewer rows, all are returned.
            allowed: `[N]`. Whether each row may be returned; None: all.
        Raises:
            ConfigError: k below 1. BatchMismatch: shapes that do not fit. NonFinite: NaN in a query, naming it.
        """
        unit_queries = normalize_rows(queries, description="a query")
        if k < 1:
            raise ConfigError("k out of range", value=f"k = {k}", expected="k >= 1")
        if unit_queries.shape[1] != self.width or (allowed is not None and len(allowed) != len(self)):
            raise BatchMismatch(
                "queries or filter do not fit the index",
                expected=(len(self), self.width),
                value=(None if allowed is None else len(allowed), unit_queries.shape[1]),
            )
        neighbors = Neighbors(np.full((len(unit_queries), k), -1), np.full((len(unit_queries), k), -np.inf))
        for start in range(0, len(unit_queries), _QUERIES):
            query_block = unit_queries[start : start + _QUERIES]
            for query_index, rows in enumerate(self._select_candidates(query_block, k, allowed)):
                self.rank(
                    query_block[query_index],
                    rows,
                    out=(neighbors.rows[start + query_index], neighbors.scores[start + query_index]),
                )
        return neighbors

    def rank(self, query: Rows, rows: NDArray[np.int64], *, out: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
        """Scores rows in float64, sorts them, and writes the best into `out` (row numbers, scores)."""
        scores = (self.take_rows(rows).astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        best = np.lexsort((self.order[rows], -scores))[: len(out[0])]
        out[0][: len(best)], out[1][: len(best)] = rows[best], scores[best]

    def _select_candidates(self, queries: Rows, k: int, allowed: NDArray[np.bool_] | None) -> list[NDArray[np.int64]]:
        """Selects for each query the rows that may be among its `k` best."""
        slack = 2 * (self.width + 4) * 2.0**-23  # twice the bound of the error of a float32 product of unit rows
        floor = np.full(len(queries), _LOWEST)
        picked_by_query: list[_Picked] = [[] for _ in queries]
        for rows, scores in self._score_blocks(queries, allowed):
            floor, picked = (_pick_torch if self.device else _pick)(scores, floor, k=k, slack=slack)
            for query_index, block_rows, values in picked:
                picked_by_query[query_index].append(
                    (block_rows + rows if isinstance(rows, int) else rows[block_rows], values)
                )
        return [_merge_blocks(query_blocks, k, slack) for query_blocks in picked_by_query]

    def _score_blocks(
        self, queries: Rows, allowed: NDArray[np.bool_] | None
    ) -> Iterator[tuple[int | NDArray[np.int64], Any]]:
        """Yields blocks of scores `[n, Q]` with the first row's number, or all numbers; -inf for rows that are not
        allowed.
        """
        block = _ON_DEVICE if self.device else _BLOCK
        size = min(max(block[2] // max(len(queries), 1), block[0]), block[1])
        device_queries = _to_device(queries, self.device) if self.device else queries
        for number, segment in enumerate(self._moved or self.segments):
            for start in range(0, len(segment), size):
                first, end = int(self._starts[number]) + start, min(start + size, len(segment))
                mask = None if allowed is None else allowed[first : first + end - start]
                if mask is not None and not mask.any():
                    continue
                if mask is not None and mask.mean() < 0.25:
                    inside = np.flatnonzero(mask)
                    yield inside + first, _multiply(device_queries, segment[start + inside])
                    continue
                scores = _multiply(device_queries, segment[start:end])
                if mask is not None:
                    scores[~mask] = -np.inf
                yield first, scores


def _pick(
    scores: Rows, floor: NDArray[np.float64], *, k: int, slack: float
) -> tuple[NDArray[np.float64], Iterator[_Near]]:
    """Raises the bound of each query's k-th score, and picks the scores `[n, Q]` within the slack of it."""
    count, num_queries = scores.shape
    rows_per_stripe = count // _STRIPES
    bound = np.full(num_queries, _LOWEST)
    if count >= k:
        # The k-th of the maxima of stripes is a lower bound of the k-th of all, and far quicker to find.
        stripe_maxima = (
            scores[: rows_per_stripe * _STRIPES].reshape(_STRIPES, rows_per_stripe, num_queries).max(axis=0)
            if rows_per_stripe >= 4 * k
            else scores
        )
        bound = np.partition(stripe_maxima, len(stripe_maxima) - k, axis=0)[-k].astype(np.float64)
    floor = np.maximum(floor, bound)
    close_indices = np.flatnonzero(scores >= _score_limits(floor, slack))
    if num_queries == 1:
        return floor, iter([(0, close_indices, scores[close_indices, 0])])
    rows, queries = np.divmod(close_indices, num_queries)
    return floor, _group_by_query(rows, queries, scores.reshape(-1)[close_indices])


def _pick_torch(
    scores: Any, floor: NDArray[np.float64], *, k: int, slack: float
) -> tuple[NDArray[np.float64], Iterator[_Near]]:
    """Picks scores that are on a device, as `_pick` does; only picked values leave the device."""
    import torch

    bound = np.full(len(floor), _LOWEST)
    if len(scores) >= k:
        bound = scores.topk(k, dim=0).values[-1].double().cpu().numpy()
    floor = np.maximum(floor, bound)
    rows, queries = (scores >= torch.from_numpy(_score_limits(floor, slack)).to(scores.device)).nonzero(as_tuple=True)
    values = scores[rows, queries]
    return floor, _group_by_query(rows.cpu().numpy(), queries.cpu().numpy(), values.cpu().numpy())


def _score_limits(floor: NDArray[np.float64], slack: float) -> Rows:
    """Computes the lowest picked score of each query, `[Q]`; never that of a row that is not allowed."""
    return np.where(floor > _LOWEST, floor - slack, _LOWEST).astype(np.float32)


def _group_by_query(rows: NDArray[np.int64], queries: NDArray[np.int64], values: Rows) -> Iterator[_Near]:
    order = np.argsort(queries, kind="stable")
    unique_queries, begins = np.unique(queries[order], return_index=True)
    cuts = [*begins.tolist(), len(order)]
    for number, query in enumerate(unique_queries.tolist()):
        members = order[cuts[number] : cuts[number + 1]]
        yield query, rows[members], values[members]


def _merge_blocks(picked: _Picked, k: int, slack: float) -> NDArray[np.int64]:
    """Selects, from the rows picked in blocks, those within the slack of the k-th best of all."""
    if not picked:
        return np.zeros(0, np.int64)
    rows, scores = (np.concatenate(part) for part in zip(*picked, strict=True))
    if len(scores) <= k:
        return rows
    best: NDArray[np.int64] = rows[scores >= np.partition(scores, len(scores) - k)[-k] - slack]
    return best


def _to_device(rows: Rows, device: str) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)


def _multiply(queries: Any, rows: Any) -> Any:
    """Computes products `[n, Q]` in float32, in full precision, which the error bound requires."""
    if not isinstance(rows, np.ndarray) or len(queries) > _MAX_VECDOT_QUERIES:
        return rows @ queries.T
    # A matrix product with few columns copies all rows about first; scalar products read them once.
    products = np.empty((len(queries), len(rows)), np.float32)
    for start in range(0, len(rows), _VECDOT_ROWS):
        np.vecdot(
            rows[None, start : start + _VECDOT_ROWS], queries[:, None], out=products[:, start : start + _VECDOT_ROWS]
        )
    return np.ascontiguousarray(products.T)


_MIN_FETCHED = 32  # rows fetched at least; what a graph of half precision ranks wrongly is among them
_EXACT_SHARE = 0.05  # a filter that leaves a smaller share is searched row by row
_MAX_FETCHED = 1 << 14  # rows fetched at most before every row is looked at


class UsearchIndex:
    """An index that walks a graph of neighbors (HNSW, Malkov and Yashunin 2018), for some 200,000 rows and more.

    The graph holds rows in half precision or as bytes and gives candidates; their scores are computed from the rows
    themselves, so that a hit has the score and the rank among ties that `FlatIndex` would give it. Rows that the
    graph does not find are missed. Filters that leave few rows are answered exactly.

    Args:
        flat: The rows, which may be on disk.
        dtype: Type of the graph: "f16", "i8" (half of the memory, lower recall) or "f32".
        expansion: Number of candidates on a walk; more of them find more.
        path: A file of `graph()`, of the first of these rows; it is memory-mapped. Rows beyond it are added, which
            reads the file.
    Raises:
        MissingExtra: usearch is not installed. HashMismatch: the file holds more rows than there are, or wider
            ones.
        CheckpointError: not such a file.
    """

    def __init__(
        self,
        flat: FlatIndex,
        *,
        dtype: Literal["f16", "i8", "f32"] = "f16",
        expansion: int = 64,
        path: Path | None = None,
    ) -> None:
        try:
            from usearch.index import Index as Graph
        except ImportError as error:
            raise MissingExtra("embed", "searching large memories") from error
        self.flat, self.expansion = flat, expansion
        options: dict[str, Any] = {"ndim": flat.width, "metric": "ip", "dtype": dtype, "expansion_search": expansion}
        self._fresh = partial(Graph, **options)
        self._graph: Any = self._fresh()
        if path is not None:
            with boundary(CheckpointError, f"{path} is no graph of usearch"):
                self._graph.view(str(path))
            if len(self._graph) > len(flat) or self._graph.ndim != flat.width:
                raise HashMismatch(
                    f"the graph {path} does not match the rows",
                    value=(len(self._graph), self._graph.ndim),
                    expected=(len(flat), flat.width),
                )
        self._path = path
        self._grow()

    def _grow(self) -> None:
        """Adds the rows that the graph does not hold. A memory-mapped graph is read first."""
        num_held = len(self._graph)
        if num_held == len(self.flat):
            return
        if self._path is not None:
            self._graph, path, self._path = self._fresh(), self._path, None
            self._graph.load(str(path))
        new_rows = np.arange(num_held, len(self.flat))
        self._graph.add(new_rows.astype(np.uint64), self.flat.take_rows(new_rows))

    def __len__(self) -> int:
        return len(self.flat)

    def vectors(self) -> Rows:
        """Returns all rows, `[N, D]`."""
        return self.flat.vectors()

    def graph(self) -> bytes:
        """Serializes the graph."""
        return bytes(self._graph.save())

    def extend(self, vectors: Rows, order: NDArray[np.int64]) -> UsearchIndex:
        """Returns the same index with more rows; both share the graph, in which this one ignores additional rows.

        A graph that holds rows of another extension, or of one that failed, is built anew.
        """
        extended_index = copy(self)
        extended_index.flat = self.flat.extend(vectors, order)
        if len(self._graph) != len(self.flat):
            extended_index._graph, extended_index._path = self._fresh(), None
        extended_index._grow()
        self._graph, self._path = extended_index._graph, extended_index._path
        return extended_index

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Neighbors:
        """Finds nearly the `k` best rows of each query, with the semantics of `FlatIndex.search`.

        Raises:
            ConfigError, BatchMismatch, NonFinite: as there.
        """
        unit_queries = normalize_rows(queries, description="a query")
        if k < 1:
            raise ConfigError("k out of range", value=f"k = {k}", expected="k >= 1")
        share = 1.0 if allowed is None else float(allowed.mean())
        if unit_queries.shape[1] != self.flat.width or share < _EXACT_SHARE or k * 2 >= len(self):
            return self.flat.search(queries, k, allowed=allowed)
        neighbors = Neighbors(np.full((len(unit_queries), k), -1), np.full((len(unit_queries), k), -np.inf))
        pending, count = np.arange(len(unit_queries)), max(_MIN_FETCHED, int(2 * k / share))
        while len(pending) and count < min(len(self), _MAX_FETCHED):
            rows = self._walk(unit_queries[pending], count)
            inside = rows >= 0 if allowed is None else (rows >= 0) & allowed[rows]
            has_enough = inside.sum(axis=1) >= k
            for index in np.flatnonzero(has_enough).tolist():
                query = pending[index]
                self.flat.rank(
                    unit_queries[query],
                    rows[index][inside[index]],
                    out=(neighbors.rows[query], neighbors.scores[query]),
                )
            pending, count = pending[~has_enough], count * 4
        if len(pending):
            exact_neighbors = self.flat.search(unit_queries[pending], k, allowed=allowed)
            neighbors.rows[pending], neighbors.scores[pending] = exact_neighbors.rows, exact_neighbors.scores
        return neighbors

    def _walk(self, queries: Rows, count: int) -> NDArray[np.int64]:
        """Returns candidates `[Q, count]`, -1 where the walk ended with fewer."""
        self._graph.expansion_search = max(self.expansion, count)
        batch = self._graph.search(queries, count)
        keys = np.atleast_2d(batch.keys).astype(np.int64)
        counts = np.asarray(getattr(batch, "counts", [len(batch)]))
        keys[(np.arange(keys.shape[1]) >= counts[:, None]) | (keys >= len(self))] = -1
        return keys

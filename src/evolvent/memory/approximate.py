"""Nearly exact nearest neighbors for large stores: usearch's graph (the extra `embed`), scored again exactly."""

from __future__ import annotations

from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import CheckpointError, ConfigError, HashMismatch, MissingExtra, boundary
from evolvent.memory.index import FlatIndex, Neighbors, Rows, normalize_rows

__all__ = ["UsearchIndex"]

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
                    f"the graph {path} is not of these rows",
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
            raise ConfigError("no nearest rows", value=f"k = {k}", expected="k >= 1")
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

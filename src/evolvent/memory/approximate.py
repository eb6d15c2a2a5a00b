"""Nearly exact nearest neighbours for large stores: usearch's graph (the extra `embed`), scored again exactly."""

from __future__ import annotations

from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import CheckpointError, ConfigError, HashMismatch, MissingExtra, boundary
from evolvent.memory.index import FlatIndex, Found, Rows, unit_rows

__all__ = ["UsearchIndex"]

_LEAST = 32  # rows fetched at least; what a graph of half precision ranks wrongly is among them
_EXACT = 0.05  # a filter that leaves a smaller share is searched row by row
_WIDEST = 1 << 14  # rows fetched at most before every row is looked at


class UsearchIndex:
    """Rows found by walking a graph of neighbours (HNSW, Malkov and Yashunin 2018), from some 200,000 rows on.

    The graph holds rows in half precision or as bytes and gives candidates; their scores are computed from the rows
    themselves, so that a hit has the score and the place among ties that `FlatIndex` would give it. What the graph
    does not find is missed. Filters that leave few rows are answered exactly.

    Args:
        flat: the rows, which may lie on disk.
        dtype: of the graph: "f16", "i8" (half of the memory, lower recall) or "f32".
        expansion: candidates looked at on a walk; more of them find more.
        path: a file of `graph()`, of the first of these rows; it is mapped into memory, not read. Rows beyond it are
            added, which reads it.
    Raises:
        MissingExtra: usearch is not installed. HashMismatch: the file holds more rows than there are, or wider ones.
        CheckpointError: it is no such file.
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
        """Add the rows that the graph does not hold. A graph that is mapped from a file is read first."""
        held = len(self._graph)
        if held == len(self.flat):
            return
        if self._path is not None:
            self._graph, path, self._path = self._fresh(), self._path, None
            self._graph.load(str(path))
        places = np.arange(held, len(self.flat))
        self._graph.add(places.astype(np.uint64), self.flat.rows(places))

    def __len__(self) -> int:
        return len(self.flat)

    def vectors(self) -> Rows:
        """`[N, D]` all rows."""
        return self.flat.vectors()

    def graph(self) -> bytes:
        """What a file of the graph holds."""
        return bytes(self._graph.save())

    def extended(self, vectors: Rows, order: NDArray[np.int64]) -> UsearchIndex:
        """The same index with more rows. Both share the graph, in which this one ignores what it does not have.

        A graph that holds rows of another extension, or of one that failed, is built anew.
        """
        made = copy(self)
        made.flat = self.flat.extended(vectors, order)
        if len(self._graph) != len(self.flat):
            made._graph, made._path = self._fresh(), None
        made._grow()
        self._graph, self._path = made._graph, made._path
        return made

    def search(self, queries: ArrayLike, k: int, *, allowed: NDArray[np.bool_] | None = None) -> Found:
        """Nearly the `k` best rows of each query, as `FlatIndex.search` has it.

        Raises:
            ConfigError, BatchMismatch, NonFinite: as there.
        """
        asked = unit_rows(queries, what="a query")
        if k < 1:
            raise ConfigError("no nearest rows", value=f"k = {k}", expected="k >= 1")
        share = 1.0 if allowed is None else float(allowed.mean())
        if asked.shape[1] != self.flat.width or share < _EXACT or k * 2 >= len(self):
            return self.flat.search(queries, k, allowed=allowed)
        found = Found(np.full((len(asked), k), -1), np.full((len(asked), k), -np.inf))
        waiting, count = np.arange(len(asked)), max(_LEAST, int(2 * k / share))
        while len(waiting) and count < min(len(self), _WIDEST):
            rows = self._walk(asked[waiting], count)
            inside = rows >= 0 if allowed is None else (rows >= 0) & allowed[rows]
            enough = inside.sum(axis=1) >= k
            for at in np.flatnonzero(enough).tolist():
                query = waiting[at]
                self.flat.rank(asked[query], rows[at][inside[at]], out=(found.rows[query], found.scores[query]))
            waiting, count = waiting[~enough], count * 4
        if len(waiting):
            rest = self.flat.search(asked[waiting], k, allowed=allowed)
            found.rows[waiting], found.scores[waiting] = rest.rows, rest.scores
        return found

    def _walk(self, queries: Rows, count: int) -> NDArray[np.int64]:
        """`[Q, count]` candidates, -1 where the walk ended with fewer."""
        self._graph.expansion_search = max(self.expansion, count)
        batch = self._graph.search(queries, count)
        keys = np.atleast_2d(batch.keys).astype(np.int64)
        counts = np.asarray(getattr(batch, "counts", [len(batch)]))
        keys[(np.arange(keys.shape[1]) >= counts[:, None]) | (keys >= len(self))] = -1
        return keys

"""One side of `benchmarks.trad.index`, in a process of its own: build an index of vectors, answer, tell the times.

    PYTHON -m benchmarks.trad_index_sides '{"side": ..., "vectors": FILE, "queries": FILE, "k": 10, "out": FILE}'

Only numpy and the side's own package are imported, so that it runs in an interpreter without this library. Every side
uses one thread (usearch all; its CPU time counts them). `ms_one`: the median over queries asked one at a time;
`qps_batch`: of all at once, least time of the repetitions; both by CPU time, which other work on the machine disturbs
least.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Search = Callable[[Any], Any]  # [Q, D] -> [Q, k] row numbers


def product(vectors: Any, k: int) -> Search:
    """The bare product in numpy's quicker form, and nothing chosen: what an exact search cannot go below."""

    def search(queries: Any) -> Any:
        scores = vectors @ queries.T if len(queries) > 1 else np.vecdot(vectors, queries[0])[:, None]
        return scores[:k].T.argsort()

    return search


def evolvent_flat(vectors: Any, k: int) -> Search:
    from evolvent.memory.index import FlatIndex

    index = FlatIndex([vectors])
    return lambda queries: index.search(queries, k).rows


def evolvent_usearch(vectors: Any, k: int) -> Search:
    from evolvent.memory.index import FlatIndex, UsearchIndex

    index = UsearchIndex(FlatIndex([vectors]))
    return lambda queries: index.search(queries, k).rows


def faiss_flat(vectors: Any, k: int) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda queries: index.search(queries, k)[1]


def faiss_hnsw(vectors: Any, k: int) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 128, 64
    index.add(vectors)
    return lambda queries: index.search(queries, k)[1]


def hnswlib(vectors: Any, k: int) -> Search:
    import hnswlib as package

    index = package.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), ef_construction=128, M=16)
    index.set_num_threads(1)
    index.add_items(vectors)
    index.set_ef(64)
    return lambda queries: index.knn_query(queries, k=k)[0]


SIDES = {each.__name__: each for each in (product, evolvent_flat, evolvent_usearch, faiss_flat, faiss_hnsw, hnswlib)}


def main() -> None:
    order = json.loads(sys.argv[1])
    vectors, queries = np.load(order["vectors"]), np.load(order["queries"])
    begin = time.process_time()
    search = SIDES[order["side"]](vectors, order["k"])
    built = time.process_time() - begin
    search(queries[:2])
    singles = []
    for query in queries[: order["singles"]]:
        begin = time.process_time()
        search(query[None])
        singles.append(time.process_time() - begin)
    batches = []
    for _ in range(order["repeats"]):
        begin = time.process_time()
        rows = search(queries)
        batches.append(time.process_time() - begin)
    np.save(Path(order["out"]), np.asarray(rows).astype(np.int64))
    told = {"build_s": built, "ms_one": 1e3 * float(np.median(singles)), "qps_batch": len(queries) / min(batches)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()

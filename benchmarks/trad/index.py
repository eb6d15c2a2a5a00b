"""Queries per second and recall of a memory's indexes beside faiss and hnswlib, and that nothing is embedded twice.

Vectors are those of sentences like an agent's thoughts (`HashedNgrams`, 384 numbers), each drawn again with noise until
there are enough of them (cosine to its sentence about .8); queries likewise. Clusters of like thoughts are what real
stores hold; vectors without any structure would be harder for graphs. Every side runs in a process of its own with one
thread (`benchmarks.trad_index_sides`). `recall`: share of the exact ten nearest that a side finds, the exact ones by
float64. `over_product`, `over_faiss_flat`: CPU time of a query of `evolvent_flat` over theirs, alone and in a batch.

A graph is not built where the smaller size says that it would take more than `--limit_s` CPU
seconds; peers that PYTHON does
not have are left out with the reason. They need: numpy, faiss-cpu 1.15, hnswlib 0.8; `evolvent_usearch` needs usearch
2.26 in this interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.memory.encoders import HashedNgrams
from evolvent.memory.index import FlatIndex, normalize_rows
from evolvent.memory.steps import StepMemory
from evolvent.trajectory import Step, Task, Trajectory

__all__ = ["index_report"]

ROOT = Path(__file__).resolve().parents[2]
DIM, K = 384, 10
OURS = ("product", "evolvent_flat", "evolvent_usearch")
PEERS = {"faiss_flat": "faiss", "faiss_hnsw": "faiss", "hnswlib": "hnswlib"}
GRAPHS = ("evolvent_usearch", "faiss_hnsw", "hnswlib")
THINGS = (
    "mug",
    "egg",
    "bowl",
    "pan",
    "cup",
    "apple",
    "knife",
    "plate",
    "pot",
    "tomato",
    "lettuce",
    "bread",
    "pen",
    "book",
    "cd",
    "towel",
    "soap",
    "cloth",
    "key",
    "card",
)
PLACES = (
    "shelf",
    "drawer",
    "cabinet",
    "countertop",
    "fridge",
    "microwave",
    "sinkbasin",
    "desk",
    "table",
    "sofa",
    "bed",
    "dresser",
    "toilet",
    "safe",
    "cart",
)
SAID = (
    "I need to find a {a}. A {a} is likely to be on a {p} or in a {q}. I start with the {p} {n}.",
    "On the {p} {n} there is no {a}. Next, I need to check the {q} {m}.",
    "I have found a {a} {m} on the {p} {n}. Next, I need to take it.",
    "Now I have taken the {a} {m}. Next, I need to go to the {p} {n} and clean it.",
    "The {p} {n} is closed. To see what is in it, I have to open it first.",
    "I have cooled the {a} {m}. Next, I need to put it in the {p} {n}.",
    "I am at the {p} {n}. Next, I need to heat the {a} {m} with the {q} {m}.",
)


def sentences(n: int, rng: np.random.Generator) -> list[str]:
    """Things an agent might think in a household."""
    made = []
    for _ in range(n):
        a, p, q = (str(rng.choice(words)) for words in (THINGS, PLACES, PLACES))
        made.append(str(rng.choice(SAID)).format(a=a, p=p, q=q, n=rng.integers(1, 9), m=rng.integers(1, 4)))
    return made


def noisy(base: NDArray[np.float32], n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """`[n, D]` rows of the base in turn, with noise of three quarters of their length."""
    made = np.empty((n, DIM), np.float32)
    for at in range(0, n, 50_000):
        end = min(at + 50_000, n)
        rows = base[np.arange(at, end) % len(base)]
        made[at:end] = normalize_rows(rows + 0.75 / np.sqrt(DIM) * rng.standard_normal(rows.shape, dtype=np.float32))
    return made


def again() -> dict[str, int]:
    """How many texts an encoder sees while a memory is built, added to, saved, loaded and asked."""

    class Counting:
        id, seen = "counting", 0

        def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
            self.seen += len(texts)
            return HashedNgrams(64)(texts)

    said = sorted(set(sentences(3000, np.random.default_rng(0))))
    episodes = [
        Trajectory(f"{at}", Task("rooms", "1", {"n": at}), (Step("seen", "act", thought=text),))
        for at, text in enumerate(said)
    ]
    encoder = Counting()
    memory = StepMemory.from_trajectories(episodes[:-100], encoder)
    memory.add(episodes)
    with tempfile.TemporaryDirectory() as folder:
        memory.save(Path(folder))
        loaded = StepMemory.load(Path(folder), encoder)
        loaded.query(said[:50], 3)
    return {"texts": len(said), "asked_with": 50, "embedded_again": encoder.seen - len(said) - 50 - 2}  # two probes


class Sides:
    """Runs sides in processes of their own."""

    def __init__(self, folder: Path, peers: str | None, limit_s: float) -> None:
        self.folder, self.peers, self.limit_s = folder, peers, limit_s
        self.built: dict[str, tuple[int, float]] = {}

    def missing(self, side: str) -> str | None:
        """Why a side cannot run here; None: it can."""
        if side in PEERS and self.peers is None:
            return "no --peers PYTHON was given"
        module = PEERS.get(side) or ("usearch.index" if side == "evolvent_usearch" else "numpy")
        done = subprocess.run([self.python(side), "-c", f"import {module}"], capture_output=True, text=True)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]

    def python(self, side: str) -> str:
        """The interpreter of a side."""
        return self.peers if side in PEERS and self.peers else sys.executable

    def too_long(self, side: str, n: int) -> bool:
        """Whether a graph of so many rows would take too long; building takes a little more than in proportion."""
        before, seconds = self.built.get(side, (n, 0.0))
        return side in GRAPHS and seconds * n / before > self.limit_s

    def run(
        self, side: str, n: int, *, singles: int, repeats: int
    ) -> tuple[dict[str, float], NDArray[np.int64]] | None:
        """What a side tells, and the rows that it found."""
        order = {
            "side": side,
            "vectors": str(self.folder / f"{n}.npy"),
            "queries": str(self.folder / f"{n}-q.npy"),
            "k": K,
            "singles": singles,
            "repeats": repeats,
            "out": str(self.folder / "rows.npy"),
        }
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        done = subprocess.run(
            [self.python(side), "-m", "benchmarks.trad_index_sides", json.dumps(order)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | dict.fromkeys(names, "1"),
        )
        if done.returncode:
            print(f"{side} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
            return None
        told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        self.built[side] = (n, told["build_s"])
        return told, np.load(self.folder / "rows.npy")


def one_size(sides: Sides, n: int, *, queries: int) -> dict[str, Any]:
    """All sides on so many rows."""
    rng = np.random.default_rng(n)
    base = HashedNgrams(DIM)(sorted(set(sentences(20_000, np.random.default_rng(1)))))
    vectors, asked = noisy(base, n, rng), noisy(base[rng.permutation(len(base))], queries, rng)
    np.save(sides.folder / f"{n}.npy", vectors)
    np.save(sides.folder / f"{n}-q.npy", asked)
    exact = FlatIndex([vectors]).search(asked, K).rows
    del vectors
    found: dict[str, Any] = {}
    for side in (*OURS, *PEERS):
        why = sides.missing(side) or ("building takes too long" if sides.too_long(side, n) else None)
        told = None if why else sides.run(side, n, singles=10 if n > 200_000 else 40, repeats=3)
        if told is None:
            found[side] = why or "failed"
            continue
        times, rows = told
        shared = [len(set(a.tolist()) & set(b.tolist())) / K for a, b in zip(exact, rows, strict=True)]
        found[side] = times | ({"recall": float(np.mean(shared))} if side != "product" else {})
    (sides.folder / f"{n}.npy").unlink()
    return found


def index_report(sizes: Sequence[int], *, peers: str | None, limit_s: float, quick: bool) -> dict[str, Any]:
    """`qps` and `recall` (size -> side -> value), details in `index`, ratios, and what was embedded."""
    every: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), peers, limit_s)
        for n in sorted(sizes)[: 1 if quick else None]:
            every[str(n)] = one_size(sides, n, queries=64 if quick else 256)
    good = {n: {side: told for side, told in found.items() if isinstance(told, dict)} for n, found in every.items()}
    ratios = {
        f"over_{other}": {
            n: [
                round(found["evolvent_flat"]["ms_one"] / found[other]["ms_one"], 2),
                round(found[other]["qps_batch"] / found["evolvent_flat"]["qps_batch"], 2),
            ]
            for n, found in good.items()
            if {other, "evolvent_flat"} <= set(found)
        }
        for other in ("product", "faiss_flat")
    }

    def each(name: str, digits: int) -> dict[str, dict[str, float]]:
        return {
            n: {side: round(told[name], digits) for side, told in found.items() if name in told}
            for n, found in good.items()
        }

    why = {n: {side: why for side, why in found.items() if isinstance(why, str)} for n, found in every.items()}
    return {
        "qps": each("qps_batch", 1),
        "recall": each("recall", 4),
        "ms_one": each("ms_one", 3),
        "build_s": each("build_s", 1),
        "left_out": why,
        **ratios,
        "store": again(),
    }

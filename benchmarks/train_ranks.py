"""One rank against two, each with one thread and as many tokens an update: wall time, interleaved."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.crew import Crew
from benchmarks.train_shapes import Point
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.parallel.ranks import Parallelism, join_ranks

__all__ = ["ranks2", "seconds"]

WARM = 2  # updates before the clock starts


def seconds(layout: dict[str, int], point: Point, updates: int, seed: int) -> list[float]:
    """Wall time of each update after the first few; runs in every rank."""
    torch.set_num_threads(1)
    parallelism, stamps = Parallelism(**layout), list[float]()
    bench = point.bench(updates=updates + WARM, seed=seed)
    with join_ranks(parallelism.mesh) as ranks:
        learner = Learner(bench.policy, weighted_nll, bench.config, seed=seed, parallelism=parallelism, ranks=ranks)
        learner.fit(bench.parts, on_update=lambda _: stamps.append(time.perf_counter()))
    return [after - before for before, after in zip(stamps[WARM - 1 :], stamps[WARM:], strict=False)]


def ranks2(*, repeats: int, updates: int, seed: int) -> dict[str, Any]:
    """Tokens per second of two ranks over twice those of one (weak scaling), for sharded and replicated data.

    The middle of an interleaved series: other work on the machine slows two ranks more than one.
    """
    one, two = Point("25M", 2048, 128), Point("25M", 4096, 128)
    times: dict[str, list[float]] = {"one": [], "shard 2": [], "replicate 2": []}
    with Crew(1, timeout=600) as alone, Crew(2, timeout=600) as pair:
        for _ in range(repeats):
            times["one"] += alone.run(seconds, {}, one, updates, seed)[0]
            times["shard 2"] += pair.run(seconds, {"shard": 2}, two, updates, seed)[0]
            times["replicate 2"] += pair.run(seconds, {"replicate": 2}, two, updates, seed)[0]
    median = {name: statistics.median(values) for name, values in times.items()}
    efficiency = {name: round(median["one"] / median[name], 3) for name in ("shard 2", "replicate 2")}
    return {"ranks2_efficiency": max(efficiency.values()), "ranks2": efficiency, "ranks2_seconds": median}

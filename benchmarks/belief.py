"""Speed of beliefs: updates and decisions per CPU-second, beside the same equations in NumPy.

    python -m benchmarks.belief [--quick] [--json] [--save]

Both sides filter the same readings on the same walk, with the same priors, number of particles, resampling threshold
and exact moves; only their random numbers differ. NumPy takes one episode at a time (`benchmarks.belief_numpy`), as the
published programmes do. "update" is a whole reading, with resampling and moves as they come; "weigh" is Bayes' rule
alone. "limit" is one pass of exp, sqrt and erf over arrays of the same size. Everything runs on one thread, and CPU
time is counted, the least of a few rounds. Where numba is installed (extra `belief`) the fused loops are measured too,
and the faster way is taken.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.belief_numpy import NumpyFilter, scores
from benchmarks.reporting import RESULTS, about, command_line, finish, versions
from evolvent.belief.cloud import Cloud
from evolvent.belief.particles import draw_prior, summarize_cloud, update
from evolvent.belief.planners import dcee, entrotaxis, go_to_mean, infotaxis, tabulate_draws
from evolvent.trajectory import sample_rng
from evolvent.worlds.plume.batch import PlumeBatch
from evolvent.worlds.plume.world import PlumeWorld

SHAPES = ((256, 1000), (1, 1000), (1, 10_000), (1, 20_000))
GOALS = {"x_numpy_256x1000": 50, "x_numpy_1x10000": 10}
STEPS, SWEEPS, NZ = 40, 3, 25
RESULT = RESULTS / "belief.json"
Walk = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def walk(episodes: int, steps: int) -> tuple[PlumeBatch, Walk]:
    """A batch of episodes and what they read on the way to the middle of the area."""
    world = PlumeWorld()
    tasks = world.tasks("train", "seen")[:episodes]
    batch = world.batch(episodes)
    batch.begin(range(episodes), tasks)
    found = [(batch.position.copy(), batch.reading.copy())]
    for step in range(steps - 1):
        batch.step(np.full(episodes, 0 if step % 2 else 2))
        found.append((batch.position.copy(), batch.reading.copy()))
    return batch, found


def cpu_s(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds of a run, the least of some rounds."""
    best = math.inf
    for _ in range(rounds):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return best


def ours(batch: PlumeBatch, seen: Walk, n: int, *, fused: bool, rounds: int) -> dict[str, Any]:
    """CPU microseconds for each episode of an update and of Bayes' rule alone; and the last cloud."""
    begun = draw_prior(batch.priors, n, seeds=range(batch.size), fused=fused)  # type: ignore[arg-type]
    last: list[Cloud] = []

    def episode() -> None:
        cloud = replace(begun, **{name: getattr(begun, name).clone() for name in ("theta", "derived", "base", "past")})
        cloud = replace(cloud, gain=begun.gain.clone(), counts=begun.counts.copy())
        for place, z in seen:
            cloud = update(cloud, place, z, sensor=batch.sensor, sweeps=SWEEPS, reuse=True, collapse="renew")
        last[:] = [cloud]

    if fused:
        episode()  # compiles
    each = batch.size * len(seen)
    whole = cpu_s(episode, rounds) / each

    def weights() -> None:
        cloud = begun
        for place, z in seen:
            cloud = update(cloud, place, z, sensor=batch.sensor, move="none", reuse=True, collapse="renew")

    weigh = cpu_s(weights, rounds) / each
    return {"update_us": whole * 1e6, "weigh_us": weigh * 1e6, "cloud": last[0]}


def theirs(batch: PlumeBatch, seen: Walk, n: int, *, episodes: int, rounds: int) -> dict[str, Any]:
    """The same of the NumPy side, over the first episodes."""
    last: list[NumpyFilter] = []

    def play(weights_only: bool) -> None:
        for row in range(episodes):
            one = NumpyFilter(batch.priors[row], n, row, sweeps=SWEEPS)  # type: ignore[arg-type]
            for at, z in seen:
                (one.weigh if weights_only else one.update)(at[row], float(z[row]), batch.sensor)
            last[:] = [one]

    weigh = cpu_s(partial(play, True), rounds)
    whole = cpu_s(partial(play, False), rounds)
    each = episodes * len(seen)
    return {"update_us": whole / each * 1e6, "weigh_us": weigh / each * 1e6, "filter": last[0]}


def limit_us(episodes: int, n: int, rounds: int) -> float:
    """CPU microseconds for each episode of one pass of exp, sqrt and erf."""
    x = torch.rand(episodes, n)
    return cpu_s(lambda: [(torch.exp(x), torch.sqrt(x), torch.erf(x)) for _ in range(20)], rounds) / 20 / episodes * 1e6


def shape(episodes: int, n: int, *, fused: bool, quick: bool) -> dict[str, Any]:
    """Both sides at one number of episodes and particles."""
    batch, seen = walk(episodes, 12 if quick else STEPS)
    rounds = 1 if quick else 3
    ways = {"eager": ours(batch, seen, n, fused=False, rounds=rounds)}
    if fused:
        ways["fused"] = ours(batch, seen, n, fused=True, rounds=rounds)
    numpy_side = theirs(batch, seen, n, episodes=min(episodes, 2 if quick else 4), rounds=rounds)
    row: dict[str, Any] = {"episodes": episodes, "particles": n, "limit_us": limit_us(episodes, n, rounds)}
    for what in ("update_us", "weigh_us"):
        row[what] = {name: way[what] for name, way in ways.items()} | {"numpy": numpy_side[what]}
        row[what.replace("_us", "_x")] = numpy_side[what] / min(way[what] for way in ways.values())
    row["updates_per_cpu_s"] = 1e6 / min(way["update_us"] for way in ways.values())
    row["spread_m"] = float(np.mean(summarize_cloud(ways["eager"]["cloud"]).spread))
    return row


def decisions(episodes: int, n: int, *, quick: bool) -> dict[str, Any]:
    """CPU microseconds of a decision, all three scores from one table, beside NumPy; and of going to the mean."""
    batch, seen = walk(episodes, 12 if quick else 25)
    rounds = 1 if quick else 3
    cloud = ours(batch, seen, n, fused=False, rounds=1)["cloud"]
    places, inside = batch.candidates()

    def decide() -> None:
        found = tabulate_draws(cloud, places, sensor=batch.sensor, allowed=inside, nz=NZ)
        for score in (infotaxis, entrotaxis, dcee):
            score(found)

    rng = sample_rng("belief benchmark", n)
    rows = range(min(episodes, 2))
    theta, w = cloud.theta.double().numpy(), torch.exp(cloud.log_w).double().numpy()
    z = np.where(
        rng.random((len(rows), places.shape[1], NZ)) < 0.5, 0.0, rng.random((len(rows), places.shape[1], NZ)) / 50
    )
    mine = cpu_s(decide, rounds) / episodes
    mean = cpu_s(lambda: go_to_mean(cloud, places), rounds) / episodes
    plain = cpu_s(
        lambda: [scores(w[i], theta[:, i], places[i], z=z[i].tolist(), sensor=batch.sensor) for i in rows], rounds
    ) / len(rows)
    return {
        "episodes": episodes,
        "particles": n,
        "table_us": mine * 1e6,
        "go_to_mean_us": mean * 1e6,
        "numpy_us": plain * 1e6,
        "x": plain / mine,
    }


def report(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    torch.set_num_threads(1)
    fused = find_spec("numba") is not None
    shapes = ((16, 1000), (1, 10_000)) if options.quick else SHAPES
    rows = [shape(*each, fused=fused, quick=options.quick) for each in shapes]
    found: dict[str, Any] = {f"x_numpy_{row['episodes']}x{row['particles']}": round(row["update_x"], 2) for row in rows}
    chosen: Sequence[tuple[int, int]] = ((16, 1000),) if options.quick else ((64, 1000), (1, 1000), (1, 10_000))
    found |= {"updates": rows, "decisions": [decisions(*each, quick=options.quick) for each in chosen]}
    found |= {
        "goals": GOALS,
        "quick": options.quick,
        "fused": fused,
        "sweeps": SWEEPS,
        "steps": STEPS,
        "sensor": PlumeWorld().preset.sensor.id,
        **versions("torch", "python"),
        **about("torch", "numpy", "numba", threads=1),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("belief", __doc__, quick="fewer episodes, steps and rounds", save=RESULT)
    options = parser.parse_args(arguments)
    found = report(options)
    for row in found["updates"]:
        told = ", ".join(f"{name} {value:.0f}" for name, value in row["update_us"].items())
        bare = ", ".join(f"{name} {value:.1f}" for name, value in row["weigh_us"].items())
        print(
            f"{row['episodes']:4} x {row['particles']:6}: update us {told} ({row['update_x']:.1f}x); "
            f"weigh us {bare} ({row['weigh_x']:.1f}x); limit {row['limit_us']:.1f} us"
        )
    for row in found["decisions"]:
        print(
            f"{row['episodes']:4} x {row['particles']:6}: decision {row['table_us']:.0f} us, NumPy "
            f"{row['numpy_us']:.0f} us ({row['x']:.1f}x); to the mean {row['go_to_mean_us']:.1f} us"
        )
    finish(found, options)


if __name__ == "__main__":
    main()

"""A round on many GPUs: how long, how fast, and what is full.

An engine's rows go round between its forwards and the environments of their node. In the mean, with n rows a forward,

    X(n) = n / (A d(n) + n q)             turns a second of an engine: A tokens written at d(n) a forward, and q a turn
                                          that only this engine can do (reading, Python)
    n + X(n) (s + l + W(X(n))) = r        rows in the engine, being served (s), on the wire (l) and waiting (W)

give the seconds of a turn with r rows busy, r / X(n). How many rows are busy comes from the episodes themselves
(`schedule`): every row plays the next episode when one ends, and at the end of a round the longest one holds up all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.scale_sim.events import Clock, Letters, Process, Servers
from benchmarks.scale_sim.fleet import Fleet
from benchmarks.scale_sim.model import Floats, Ints, departures, ring_s, rounds, schedule, wait_s
from evolvent.trajectory import sample_rng

__all__ = ["FULL", "ahead_of", "round_of", "turn_exactly", "turn_s"]

_DEPTH = 40  # episodes of a row that are played one by one; what more there are, in the middle, are a steady stream
FULL = 0.9  # a resource that is busy for this share of a collection has a queue that grows


def turn_s(fleet: Fleet, rows: Floats) -> tuple[Floats, Floats]:
    """Seconds of a turn with so many rows busy in each engine of a node, and the rows that are in a forward, `[R]`."""
    engines, library = fleet.gpu.per_node / fleet.model.engine, fleet.library
    own = fleet.read_s + library.turn_s

    def rate(inside: Floats) -> Floats:
        return inside / (fleet.workload.written * fleet.forward_s(inside) + inside * own)

    low, high = np.zeros_like(rows), rows.copy()
    for _ in range(60):
        middle = (low + high) / 2
        turns = rate(middle)
        waiting = wait_s(engines * turns, library.env_s, fleet.gpu.cores, 0.5)
        with np.errstate(invalid="ignore"):
            away = np.where(turns > 0, turns * (library.env_s + library.latency_s + waiting), 0.0)
        low, high = np.where(middle + away > rows, low, middle), np.where(middle + away > rows, middle, high)
    return rows / rate(high), high


def turn_exactly(fleet: Fleet, rows: int, *, turns: int) -> float:
    """Mean seconds of a turn on one node, event by event: what `turn_s` gives in the mean.

    Every engine feeds all rows that are there together, one token a forward; a row that has written its turn goes
    to the environments of the node, a queue with as many servers as cores. The first quarter is not counted.
    """
    clock = Clock()
    cores = Servers(clock, fleet.gpu.cores)
    own = fleet.read_s + fleet.library.turn_s
    ended: list[float] = []

    def away(door: Letters, row: int) -> Process:
        yield clock.sleep(fleet.library.latency_s)
        yield cores.serve(fleet.library.env_s)
        ended.append(clock.now)
        door.put(row)

    def engine(door: Letters) -> Process:
        left = dict.fromkeys(range(rows), fleet.workload.written)
        while len(ended) < turns:
            if not left:
                left[(yield door.take())] = fleet.workload.written
            while door.waiting:
                left[(yield door.take())] = fleet.workload.written
            new = sum(1 for tokens in left.values() if tokens == fleet.workload.written)
            yield clock.sleep(float(fleet.forward_s(np.array(float(len(left))))) + own * new)
            for row in [row for row, tokens in left.items() if tokens == 1]:
                del left[row]
                clock.spawn(away(door, row))
            for row in left:
                left[row] -= 1

    engines = fleet.gpu.per_node // fleet.model.engine
    for _ in range(engines):
        clock.spawn(engine(Letters(clock)))
    clock.run()
    first = len(ended) // 4
    return rows * engines * (ended[turns - 1] - ended[first]) / (turns - 1 - first)


# ------------------------------------------------------------------ a round


def round_of(fleet: Fleet, *, seed: int = 0) -> dict[str, Any]:
    """One synchronous round, an episode in every environment: its seconds, rates, shares, and what it is bound by."""
    if not fleet.rows or not fleet.learns:
        return {"bound_by": "memory", "steps_s": 0.0, "tokens_s": 0.0}
    workload, library = fleet.workload, fleet.library
    played = _played(fleet, seed)
    collect = float(played["ends"].max())
    engines_end = float(played["engines_end"])
    steps = float(played["steps"])
    tokens = steps * (workload.read + workload.written)
    learn, reduce = _learning(fleet, tokens)
    hand = _handed(fleet)
    whole = (collect + learn + reduce + hand) * (
        1 + fleet.gpus / fleet.gpu.between_failures_s * (fleet.gpu.restart_s + (collect + learn + reduce + hand) / 2)
    )
    used = {
        "gpu_decode": played["gpu_s"] / (fleet.engines * collect),
        "python_of_engines": played["python_s"] / (fleet.engines * collect),
        "environments": steps * library.env_s / (fleet.nodes * fleet.gpu.cores * collect),
        "driver": fleet.environments * (library.deal_s + library.take_s) / (fleet.drivers * collect),
        "network_of_driver": fleet.environments * library.episode_bytes / (fleet.drivers * fleet.gpu.network * collect),
    }
    used = {name: float(value) for name, value in used.items()}
    phases = {"collect": collect, "learn": learn, "all_reduce": reduce, "hand_over": hand}
    return {
        "steps_s": steps / whole,
        "tokens_s": steps * workload.written / whole,
        "round_s": whole,
        "share": {name: value / whole for name, value in phases.items()},
        "used": used,
        "waiting_for_rows": max(0.0, 1 - fleet.engines * fleet.rows / fleet.environments),
        "held_by_slowest": 1 - float(played["mean_end"]) / collect,
        "queue_s": collect - engines_end,
        "bound_by": _bound(phases, used),
        "full": sorted(name for name, value in used.items() if value >= FULL and name != "gpu_decode"),
    }


def _bound(phases: Mapping[str, float], used: Mapping[str, float]) -> str:
    """The longest phase; of a collection, what is used most, or the slowest episodes where nothing is half used."""
    longest = max(phases, key=lambda name: phases[name])
    if longest != "collect":
        return longest
    most = max(used, key=lambda name: used[name])
    return most if used[most] >= 0.5 else "slowest_episodes"


def _dealt(fleet: Fleet, rows: int, seed: int) -> tuple[Ints, int]:
    """Steps of the episodes that are played one by one, `[W, M]` (0: none), and how many more there are."""
    engines = fleet.engines
    each = -(-fleet.environments // engines)
    shown = min(each, _DEPTH * rows)
    lengths = fleet.workload.drawn(engines * shown, sample_rng("scale sim", seed, shown, engines)).reshape(
        engines, shown
    )
    more = max(0, fleet.environments - engines * shown)
    lengths[: engines * each - fleet.environments, -1] *= int(shown < each)  # they have one episode less
    return lengths, more


def _played(fleet: Fleet, seed: int) -> dict[str, Any]:
    """A collection: when the driver has stored each episode, and what the engines did meanwhile."""
    library, engines = fleet.library, fleet.engines
    rows = min(fleet.rows, -(-fleet.environments // engines))
    lengths, more = _dealt(fleet, rows, seed)
    active, ends = schedule(lengths, rows)
    cycle, inside = turn_s(fleet, np.arange(1.0, rows + 1))
    cycle, inside = np.r_[0.0, cycle], np.r_[1.0, inside]
    clock = np.vstack([np.zeros(engines), np.cumsum(cycle[active], axis=0)])
    finished = clock[ends, np.arange(engines)[:, None]]
    rest = more * float(
        lengths[lengths > 0].mean()
    )  # turns of a steady stream before these, in which all rows are busy
    steady = rest / engines / rows * float(cycle[rows])
    arrivals = np.r_[np.linspace(0.0, steady, more), np.sort(finished[lengths > 0]) + steady]
    dealt = library.deal_s * fleet.environments / fleet.drivers
    stored = departures(np.maximum(arrivals[:: fleet.drivers], dealt), library.take_s)
    turns = np.bincount(active.ravel(), minlength=rows + 1).astype(np.float64)
    turns[rows] += rest / rows
    busy, written = np.arange(rows + 1.0), fleet.workload.written
    gpu = written * fleet.forward_gpu_s(inside) / inside + fleet.read_s
    python = written * (library.forward_s + library.row_s * inside) / inside + library.turn_s
    return {
        "ends": stored,
        "engines_end": steady + finished.max(),
        "mean_end": steady + float(finished.max(axis=1).mean()),
        "steps": float(lengths.sum()) + rest,
        "gpu_s": float((turns * busy * gpu).sum()),
        "python_s": float((turns * busy * python).sum()),
    }


def ahead_of(fleet: Fleet, *, seed: int = 0, stale: int = 1, count: int = 12) -> dict[str, Any]:
    """Some nodes play while the others learn, with weights at most `stale` versions old: the best split of three.

    Returns:
        `steps_s` and the `playing` share of the nodes; empty where one node cannot be split, or nothing fits.
    """
    best: dict[str, Any] = {}
    for share in (0.25, 0.5, 0.75):
        nodes = round(share * fleet.nodes)
        if not 0 < nodes < fleet.nodes:
            continue
        playing = replace(fleet, gpus=nodes * fleet.gpu.per_node)
        learning = replace(fleet, gpus=fleet.gpus - playing.gpus)
        if not playing.rows or not learning.learns:
            continue
        played = _played(playing, seed)
        learn, reduce = _learning(learning, played["steps"] * (fleet.workload.read + fleet.workload.written))
        times = rounds(
            [float(played["ends"].max())] * count, [learn + reduce] * count, [_handed(playing)] * count, stale=stale
        )
        steps_s = float(played["steps"] * (count - 1) / (times[-1] - times[0]))
        if steps_s > best.get("steps_s", 0.0):
            best = {"steps_s": steps_s, "playing": share}
    return best


def _learning(fleet: Fleet, tokens: float) -> tuple[float, float]:
    """Seconds of forwards and backwards, and of all-reduces: within nodes first, then an eighth each between them."""
    gpu, weights = fleet.gpu, fleet.model.weights_bytes
    updates = max(1, math.ceil(tokens / fleet.workload.update_tokens))
    within = ring_s(weights, gpu.per_node, gpu.link, gpu.link_latency_s)
    between = ring_s(weights / gpu.per_node, fleet.nodes, gpu.network, gpu.network_latency_s)
    return 6 * fleet.model.parameters * tokens / (fleet.gpus * gpu.flops * gpu.train_share), updates * (
        within + between
    )


def _handed(fleet: Fleet) -> float:
    """Seconds until every engine has the new weights: packed by the driver, passed on from node to node, loaded."""
    weights = fleet.model.weights_bytes
    passed = math.ceil(math.log2(fleet.nodes + 1)) * weights / fleet.gpu.network
    return weights * (fleet.library.pack_s + fleet.library.load_s) + passed

"""The circle as a model: what a worker's engine does, one circle over few cores event by event, and closed formulae.

Costs are CPU-seconds. An engine with r rows in its forward takes `forward_s + row_s r` and `read_s` for each token that
is read rather than written; a row writes one token a forward and does what lies between (environment, dialect, parsing)
in line, `step_s` a step. Episodes take the first free row.

`circle` plays collect -> learn -> hand over with the rule by which the library deals slices (`scale.ray_work.Todo`), a
driver that is one thread, and cores that all threads share. `rounds` puts rounds beside one another: synchronous, or
with weights that are a bounded number of versions old.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale_sim.events import Clock, Cores, Letters, Process
from evolvent.errors import ConfigError
from evolvent.scale.ray_work import WorkItem, WorkQueue

__all__ = [
    "Circle",
    "Costs",
    "Machine",
    "Shape",
    "circle",
    "departures",
    "erlang_wait",
    "fitted",
    "ring_s",
    "rounds",
    "schedule",
    "slice_work",
    "wait_s",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_HAND_OVER_S = 0.25  # how long a worker gathers before it hands over (`scale.ray_players`)


@dataclass(frozen=True)
class Shape:
    """Episodes, `[N]` each: steps taken, tokens written, tokens read."""

    steps: Ints
    written: Ints
    read: Ints

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.written) == len(self.read):
            raise ConfigError(
                "episodes that do not fit together",
                expected="three arrays of one length",
                value=(len(self.steps), len(self.written), len(self.read)),
            )

    def drawn(self, count: int, rng: np.random.Generator) -> Shape:
        """So many episodes like these, with replacement."""
        chosen = rng.integers(0, len(self.steps), count)
        return Shape(self.steps[chosen], self.written[chosen], self.read[chosen])

    def part(self, first: int, last: int) -> Shape:
        """Episodes first..last-1."""
        return Shape(self.steps[first:last], self.written[first:last], self.read[first:last])


@dataclass(frozen=True)
class Costs:
    """CPU-seconds, fitted to measurements.

    Attributes:
        forward_s, row_s: of a forward, and of each row in it. read_s: of a token that is read.
        step_s: of an environment step with all that surrounds it. play_s: of an episode, its line included.
        deal_s, receive_s, store_s: of the driver, for an episode. learn_s: of a training, learn_token_s: of a token it
            is fed. pack_s, load_s: of a hand-over, in the driver and in each worker.
    """

    forward_s: float
    row_s: float
    read_s: float
    step_s: float
    play_s: float = 0.0
    deal_s: float = 0.0
    receive_s: float = 0.0
    store_s: float = 0.0
    learn_s: float = 0.0
    learn_token_s: float = 0.0
    pack_s: float = 0.0
    load_s: float = 0.0


# ------------------------------------------------------------------ one engine


def schedule(units: Ints, rows: int) -> tuple[Ints, Ints]:
    """Episodes of so many units on so many rows, in order, each on the first row that is free.

    Args:
        units: `[W, M]`, engines and their episodes; 0: there is none (none may follow in its line).
    Returns:
        `active` `[K, W]`, busy rows in each unit of time, and `ends` `[W, M]`, the unit after which an episode ends.
    Raises:
        ConfigError: no rows.
    """
    if rows < 1:
        raise ConfigError("an engine without rows", value=rows, expected="1 or more")
    engines, most = units.shape
    width = min(rows, most)
    holds = np.tile(np.arange(width), (engines, 1))  # which episode a row plays
    left = units[:, :width].copy()
    following = np.full(engines, width)
    counts: list[Ints] = []
    ends = np.zeros_like(units)
    while left.any():
        # rows change only where an episode ends: all units until then are alike
        jump = int(left[left > 0].min())
        counts.extend([(left > 0).sum(axis=1)] * jump)
        ended = left == jump
        left = np.where(left > 0, left - jump, 0)
        at, row = np.nonzero(ended)
        ends[at, holds[at, row]] = len(counts)
        place = following[at] + _rank(at)
        taken = place < most
        at, row, place = at[taken], row[taken], place[taken]
        holds[at, row], left[at, row] = place, units[at, place]
        following = np.minimum(following + np.bincount(at, minlength=engines), most)
    return np.array(counts, dtype=np.int64).reshape(len(counts), engines), ends


def _rank(groups: Ints) -> Ints:
    """The number of each entry within its group; groups come sorted."""
    first = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[first, len(groups)])
    return np.arange(len(groups)) - np.repeat(first, sizes)


def slice_work(shape: Shape, rows: int, costs: Costs) -> tuple[Floats, Ints]:
    """A slice in one worker: CPU-seconds of each forward `[K]`, and the forward after which each episode ends `[N]`.

    What is no forward (reading, environments, lines of episodes) is spread evenly over its episode's tokens.
    """
    active, ends = schedule(np.maximum(shape.written, 1)[None, :], rows)
    spent = costs.forward_s + costs.row_s * active[:, 0].astype(np.float64)
    length = np.maximum(shape.written, 1)
    rate = (costs.read_s * shape.read + costs.step_s * shape.steps + costs.play_s) / length
    change = np.zeros(len(spent) + 1)
    np.add.at(change, ends[0] - length, rate)
    np.add.at(change, ends[0], -rate)
    return spent + np.maximum(np.cumsum(change)[:-1], 0.0), ends[0]


# ------------------------------------------------------------------ one circle, event by event


@dataclass(frozen=True)
class Machine:
    """Cores that are shared, threads of others that always have work, and what a core loses beside busy ones."""

    cores: float
    rivals: float = 0.0
    slowed: float = 0.0


@dataclass(frozen=True)
class Circle:
    """What a circle takes: seconds from its beginning to its end, and to the end of collection; episodes stored.

    Attributes:
        work_s: of all threads, as long as it takes alone. stored: how many episodes the driver has taken in.
    """

    wall_s: float
    collected_s: float
    work_s: float
    stored: int


def circle(shape: Shape, costs: Costs, *, workers: int, rows: int, machine: Machine, learned: int = 0) -> Circle:
    """One round: weights are handed over, episodes dealt, played and stored, then learned from.

    Args:
        shape: the episodes, in the order in which they are dealt.
        rows: of each worker's engine. machine: the cores that all threads share.
        learned: tokens that the training is fed; 0: nothing is learned.
    """
    clock = Clock()
    shared = Cores(clock, machine.cores, machine.rivals, machine.slowed)
    inbox, doors = Letters(clock), [Letters(clock) for _ in range(workers)]
    told = {"collected": 0.0, "stored": 0.0}

    def driver() -> Process:
        yield shared.work(costs.pack_s)
        todo = WorkQueue([WorkItem(str(number), {}) for number in range(len(shape.steps))], slots=rows)
        idle, fresh = list(range(workers)), set(range(workers))
        while len(todo):
            while idle and todo.has_waiting:
                who, items = idle.pop(0), todo.next_slice(workers)
                first = int(items[0].key)
                yield shared.work(costs.deal_s * len(items))
                doors[who].put((shape.part(first, first + len(items)), first, who in fresh))
                fresh.discard(who)
            who, ended, last = yield inbox.take()
            yield shared.work((costs.receive_s + costs.store_s) * len(ended))
            for key in ended:
                told["stored"] += todo.finish(str(key)) is not None
            if last:
                idle.append(who)
        told["collected"] = clock.now
        for door in doors:
            door.put(None)
        if learned:
            yield shared.work(costs.learn_s + costs.learn_token_s * learned)

    for who in range(workers):
        clock.spawn(_worker(clock, shared, (inbox, doors[who]), who=who, rows=rows, costs=costs))
    clock.spawn(driver())
    wall = clock.run()
    return Circle(wall, told["collected"], shared.done_s, int(told["stored"]))


def _worker(
    clock: Clock, cores: Cores, posts: tuple[Letters, Letters], *, who: int, rows: int, costs: Costs
) -> Process:
    """A worker: slices come in, lists of ended episodes go out, at most every quarter of a second."""
    inbox, door = posts
    while True:
        letter: Any = yield door.take()
        if letter is None:
            return
        part, first, fresh = letter
        if fresh:
            yield cores.work(costs.load_s)
        spent, ends = slice_work(part, rows, costs)
        order, told, since = np.argsort(ends, kind="stable"), 0, clock.now
        for number, seconds in enumerate(spent, start=1):
            yield cores.work(float(seconds))
            ended = int(np.searchsorted(ends[order], number, side="right"))
            last = number == len(spent)
            if last or (ended > told and clock.now - since >= _HAND_OVER_S):
                inbox.put((who, [first + int(at) for at in order[told:ended]], last))
                told, since = ended, clock.now


# ------------------------------------------------------------------ closed formulae


def rounds(collect_s: Sequence[float], learn_s: Sequence[float], hand_s: Sequence[float], *, stale: int) -> Floats:
    """When the weights of each round have been handed over, `[K]` seconds.

    Round k is collected by weights that are at most `stale` versions older than those of k rounds; 0: synchronous.
    C_k = max(C_{k-1}, H_{k-1-stale}) + c_k;  T_k = max(C_k, H_{k-1}) + t_k;  H_k = T_k + h_k.

    Raises:
        ConfigError: less than 0 versions, or lists of unlike length.
    """
    if stale < 0 or not len(collect_s) == len(learn_s) == len(hand_s):
        raise ConfigError(
            "rounds that do not fit together",
            value=(stale, len(collect_s), len(learn_s), len(hand_s)),
            expected="0 or more versions, and lists of one length",
        )
    handed, collected = [0.0] * (stale + 1), 0.0
    for own, learned, hand in zip(collect_s, learn_s, hand_s, strict=True):
        collected = max(collected, handed[-1 - stale]) + own
        handed.append(max(collected, handed[-1]) + learned + hand)
    return np.array(handed[stale + 1 :])


def departures(arrivals: Floats, service_s: float) -> Floats:
    """When a queue with one server of constant service lets each job go, `[N]`; first come first served.

    Lindley's recursion D_i = max(A_i, D_{i-1}) + s, for all i at once: D_i - (i+1) s is a running maximum.
    """
    order = np.argsort(arrivals, kind="stable")
    number = np.arange(len(arrivals), dtype=np.float64)
    done = np.empty(len(arrivals))
    done[order] = np.maximum.accumulate(arrivals[order] - number * service_s) + (number + 1) * service_s
    return done


def ring_s(size_bytes: float, ranks: int, bandwidth: float, latency_s: float) -> float:
    """Seconds of a ring all-reduce: 2 (n-1)/n bytes over the bandwidth of one link, and 2 (n-1) latencies.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
    """
    return 2 * (ranks - 1) * (size_bytes / ranks / bandwidth + latency_s)


def erlang_wait(rate: float, service_s: float, servers: int) -> float:
    """Mean seconds that a job waits in M/M/c (Erlang's C formula); infinite where it is full."""
    load = rate * service_s
    if load >= servers:
        return math.inf
    blocked = 1.0
    for number in range(1, servers + 1):  # Erlang's B by its recursion, which does not overflow
        blocked = load * blocked / (number + load * blocked)
    queued = blocked / (1 - (load / servers) * (1 - blocked))
    return queued * service_s / (servers - load)


def wait_s(rate: Floats, service_s: float, servers: float, variation: float) -> Floats:
    """Mean seconds that a job waits among many, `[...]`; infinite where the servers are full.

    Sakasegawa (1977): ((ca^2 + cs^2)/2) s rho^(sqrt(2(c+1)) - 1) / (c (1 - rho)), exact for M/G/1.

    Args:
        variation: (ca^2 + cs^2)/2, the mean squared variation of arrivals and services: 1 for M/M/c, 1/2 for M/D/c.
    """
    load = rate * service_s / servers
    with np.errstate(divide="ignore", invalid="ignore"):
        waits = variation * service_s * load ** (math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load))
    return np.where(load < 1, waits, np.inf)


def fitted(
    columns: Sequence[Sequence[float]], seconds: Sequence[float], scale: Sequence[float] | None = None
) -> list[float]:
    """Coefficients of 0 or more that fit best: `columns` `[C][N]` to `seconds` `[N]`, errors counted in `scale` `[N]`.

    A coefficient that would be negative is 0 and the others are fitted anew (few columns, so one after another).

    Args:
        scale: None: `seconds` themselves, so that relative errors count.
    """
    weight = np.array(seconds if scale is None else scale, dtype=np.float64)
    table, wanted = np.array(columns, dtype=np.float64).T / weight[:, None], np.array(seconds) / weight
    kept, found = list(range(table.shape[1])), np.zeros(0)
    while kept:
        found = np.asarray(np.linalg.lstsq(table[:, kept], wanted, rcond=None)[0])
        if (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    answer = [0.0] * table.shape[1]
    for at, value in zip(kept, found, strict=False):
        answer[at] = float(value)
    return answer

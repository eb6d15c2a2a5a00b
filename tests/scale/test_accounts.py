"""What measurements and plays of a practice cost and hold is their own, whatever happens beside them or before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import evolvent as ev
from evolvent.rl.presets import POAD
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.trajectory import Branch, Start
from evolvent.worlds.base import Play
from tests.rl.acting import Echo, quick, run_of, small

MAIN = threading.main_thread()


def ledger(folder: Path) -> dict[str, dict[str, int]]:
    """The counts of the finished stages, by verb; of one verb the last."""
    rows = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    return {row["verb"]: row["counts"] for row in rows}


class Gate:
    """A lock that says so, once it is armed, when the main thread comes to it."""

    def __init__(self, said: Callable[[], object]) -> None:
        self._lock, self._said, self.armed = threading.RLock(), said, False

    def __enter__(self) -> None:
        if self.armed and threading.current_thread() is MAIN:
            self.armed = False
            self._said()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Held(Echo):
    """Where `holds` is set, what is played ahead waits until somebody lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.begun, self.goes_on = False, threading.Event(), threading.Event()

    def play(self, spec: Mapping[str, Any]) -> Play:
        if self.holds and threading.current_thread() is not MAIN:
            self.begun.set()
            assert self.goes_on.wait(60)
        return (yield from super().play(spec))


def to_the_third(practice: PolicyTrainer, world: Held) -> Iterator[int]:
    """Two iterations; in the second the third, which is played ahead, has begun and is held."""
    for number in practice.iterations():
        assert len(practice.rollout(practice.next_starts(world.tasks("train", "seen")))) == 32
        practice.advance_version()
        if number == 1:
            assert practice._prefetcher is not None
            wait([practice._prefetcher._under_way[2].trajectories])
            world.holds = True
        else:
            assert world.begun.wait(60)
        yield number


def test_what_is_played_ahead_of_a_measurement_is_not_its_cost(tmp_path: Path) -> None:
    """The next iteration is under way when a measurement begins, and ends before it can play."""
    setup, world = RLSpec("held", quick(iterations=3, prefetch_rollouts=True), POAD.objective), Held()
    with run_of(tmp_path, world) as run:
        run._verbs._lock = gate = Gate(world.goes_on.set)
        with run.train_rl(small(world), setup) as practice:
            for number in to_the_third(practice, world):
                if number == 2:
                    gate.armed = True
                    (row,) = run.evaluate(practice.policy, 2)
        written = sum(one.count_generated_tokens() for one in run.store.trajectories())
    counts = ledger(tmp_path)
    assert counts["evaluate"]["generated"] == row.generated > 0
    assert counts["evaluate"]["computed"] == row.computed
    assert counts["practise"]["generated"] == written - row.generated


def test_a_measurement_that_was_interrupted_counts_what_it_had_computed(tmp_path: Path) -> None:
    broken: list[int] = []

    class Breaks(Echo):
        def play(self, spec: Mapping[str, Any]) -> Play:
            broken.append(1)
            if len(broken) == 6:
                raise KeyboardInterrupt
            return (yield from super().play(spec))

    world = Breaks()
    with run_of(tmp_path / "broken", world) as run, pytest.raises(KeyboardInterrupt):
        run._verbs.slots = 2
        run.evaluate(small(world), 0)
    with run_of(tmp_path / "broken", world) as run:
        (row,) = run.evaluate(small(world), 0)
    with run_of(tmp_path / "whole", world) as run:
        (whole,) = run.evaluate(small(world), 0)
    assert row.generated == whole.generated
    assert row.computed == ledger(tmp_path / "broken")["evaluate"]["computed"] >= row.generated


def test_a_play_keeps_its_parents_when_another_comes_before_it(tmp_path: Path) -> None:
    """What is played ahead may take the engine between the moment a play of branches begins and its turn."""
    world, setup = Echo(), RLSpec("branches", quick(iterations=1), POAD.objective)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        tasks = world.tasks("train", "seen")
        shown = {one.id: one for one in ev.collect_demonstrations([Shown()], tasks[:3])}
        branches = [Start(one.task, 1, Branch(one.id, 1)) for one in shown.values()]
        run._verbs._lock = gate = Gate(lambda: practice.rollout([Start(tasks[5])]))
        gate.armed = True
        played = practice.rollout(branches, parents=shown)
        assert [one.branch for one in played] == [start.branch for start in branches]
        assert [one.error for one in played] == [None] * 3


class Shown(Echo):
    """Its expert says what it is told."""

    def expert(self, task: ev.Task) -> list[str]:
        return [task.spec["first"], task.spec["then"]]


def lets_go(pool: ThreadPoolExecutor, world: Held) -> None:
    """What is held goes on when the practice waits for its thread to end."""
    shutdown = pool.shutdown

    def first(**how: Any) -> None:
        world.goes_on.set()
        shutdown(**how)

    pool.shutdown = first  # type: ignore[method-assign]


def test_a_practice_that_ends_stops_what_it_plays_ahead(tmp_path: Path) -> None:
    """Of the iteration that is played ahead, one episode at a time, the rest is not played."""
    setup, world = RLSpec("held", quick(iterations=3, prefetch_rollouts=True), POAD.objective), Held()
    with run_of(tmp_path, world) as run:
        run._verbs.slots = 1
        with pytest.raises(ArithmeticError), run.train_rl(small(world), setup) as practice:
            for number in to_the_third(practice, world):
                if number == 2:
                    lets_go(practice._prefetcher._pool, world)
                    raise ArithmeticError
        assert 64 < len(list(run.store.ids())) < 70

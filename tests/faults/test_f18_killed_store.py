"""Fault 18: kill -9 at 50 random points of appending and sealing loses at most the open record, and doubles none."""

from __future__ import annotations

import random
import signal
import time

import pytest
from small_store import episode, python

from evolvent.store.store import Store
from evolvent.trajectory import Trajectory

# Appends episodes from a first number on, every 7th streamed, and seals now and then. It says each number when the
# episode is finished: that one must never be lost.
WRITER = """
import sys
from pathlib import Path
from small_store import episode
from evolvent.store.store import Store
path, first = Path(sys.argv[1]), int(sys.argv[2])
with Store.open(path, writing=True, run="r", segment_bytes=20_000) as store:
    print("ready", flush=True)
    for number in range(first, first + 100_000):
        whole = episode(number)
        if number % 7:
            store.append(whole)
        else:
            store.begin(whole.id, whole.task)
            for step in whole.steps:
                store.step(whole.id, step)
            store.end(whole.id, final_observation=whole.final_observation, score=whole.score)
        print(number, flush=True)
        if number % 25 == 24:
            store.seal()
"""


def _killed_run(path, first: int, wait: float) -> int:
    """Let a writer run for a moment and kill it; returns the last number that it said was finished."""
    process = python(WRITER, path, first)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    whole = said[: said.rfind("\n") + 1].split()
    return int(whole[-1]) if whole else first - 1


def _finished(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.error is None]


@pytest.mark.parametrize("seed", [0])
def test_fifty_kills_of_one_store(tmp_path, seed):
    """One store lives through all the kills: a writer, a kill, the next writer on what was left."""
    rng, path, first = random.Random(seed), tmp_path / "t", 0
    parts = cut = 0
    for _ in range(50):
        last = _killed_run(path, first, rng.random() * 0.12)
        found = list(Store.open(path).trajectories())  # a reader needs no recovery
        done = _finished(found)
        numbers = [int(t.id[1:]) for t in done]
        assert numbers == list(range(len(numbers))), "none is lost, doubled or out of order"
        assert last <= len(numbers) - 1 <= last + 1, "at most one finished episode was not yet told of"
        assert len(found) - len(done) <= 1, "at most one episode was open"
        assert all(t.error.kind == "interrupted" and t.ended_by == "error" for t in found[len(done) :])
        recovered = Store.open(path).recover()
        assert (recovered.kept, recovered.interrupted) == (len(done), len(found) - len(done))
        cut += recovered.interrupted
        assert list(Store.open(path).trajectories()) == found
        first = len(numbers)
        parts = len(list((path / "parquet").rglob("*.parquet"))) if (path / "parquet").exists() else 0
    assert done == [episode(i) for i in range(first)] and first > 200
    assert parts > 4, "kills came while sealed parts were there"
    Store.open(path).seal()
    assert list(Store.open(path).trajectories()) == found

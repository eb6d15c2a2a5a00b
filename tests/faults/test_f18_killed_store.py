"""Fault 18: kill -9 at 50 random points of appending and sealing loses at most the open record, and doubles none."""

from __future__ import annotations

import random

from small_store import episode, python

from evolvent.store.store import Store

# Forks a writer for each line "first count wait" that it reads, and kills it that many seconds after it has told of so
# many finished episodes. A writer appends episodes from `first` on, every 3rd streamed, and seals after every 5th.
# It tells of an episode, in a file, when it is finished: that one must never be lost.
FORKER = """
import contextlib, os, signal, sys, time
from pathlib import Path
import pyarrow.parquet, pyarrow.compute
import evolvent.store.query
with contextlib.suppress(ImportError):  # pyarrow imports it for its first table, so each writer would do so anew
    import pandas
from small_store import episode
from evolvent.store.store import Store

def write(path, first, told):
    with Store.open(path, writing=True, run="r", segment_bytes=9000) as store:
        for number in range(first, first + 100_000):
            whole = episode(number)
            if number % 3:
                store.append(whole)
            else:
                store.begin(whole.id, whole.task)
                for step in whole.steps:
                    store.step(whole.id, step)
                store.end(whole.id, final_observation=whole.final_observation, score=whole.score)
            os.write(told, b"%07d\\n" % number)
            if number % 5 == 4:
                store.seal()

path = Path(sys.argv[1])
for line in sys.stdin:
    first, count, wait = int(line.split()[0]), int(line.split()[1]), float(line.split()[2])
    told = os.open(path.with_suffix(".told"), os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_APPEND)
    child = os.fork()
    if child == 0:
        write(path, first, told)
        os._exit(1)
    while os.fstat(told).st_size < 8 * count:
        time.sleep(0.0005)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the writer failed"
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), os.fstat(told).st_size // 8, flush=True)
    os.close(told)
"""


def test_fifty_kills_of_one_store(tmp_path):
    """One store lives through all the kills: a writer, a kill, the next writer on what was left."""
    rng, path, first = random.Random(0), tmp_path / "t", 0
    forker = python(FORKER, path)
    assert forker.stdin is not None and forker.stdout is not None and forker.stderr is not None
    unsealed = 0
    for _ in range(50):
        print(first, rng.randrange(7), rng.random() * 0.03, file=forker.stdin, flush=True)
        answer = forker.stdout.readline().split()
        assert answer and answer[0] == "-9", forker.stderr.read()
        told = first + int(answer[1])
        found = list(Store.open(path).ids())  # a reader needs no recovery
        unsealed += any(path.rglob("seg-*"))
        recovered = Store.open(path).recover()
        first = recovered.num_finished
        assert found[:first] == [f"e{i}" for i in range(first)], "none is lost, doubled or out of order"
        assert told <= first <= told + 1, "at most one finished episode was not yet told of"
        assert len(found) - first == recovered.num_interrupted <= 1, "at most one episode was open"
    forker.communicate()
    found = list(Store.open(path).trajectories())
    assert first > 100 and found[:first] == [episode(i) for i in range(first)]
    assert [t.error.kind for t in found[first:]] == ["interrupted"] * recovered.num_interrupted
    assert len(list(path.rglob("*.parquet"))) > 10 and unsealed > 10, "kills came before, in and after sealing"
    Store.open(path).seal()
    assert list(Store.open(path).trajectories()) == found

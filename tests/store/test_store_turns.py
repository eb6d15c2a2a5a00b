"""The log of a store while episodes are open and several threads write: kills, other writers, locks, turns."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest
from stored import episode

from evolvent.errors import StoreUnavailable
from evolvent.store.lock import WriterLock, is_free
from evolvent.store.log import DiskOperations, LogWriter, RecoveryReport, log_folder, read_lines, segment_path
from evolvent.store.store import Store
from evolvent.trajectory import Task

TASK = Task("lookup", "1", {"key": "x"}, "fetch", "seen", "train")


def ids(store: Store) -> list[str]:
    return list(store.ids())


# Two open episodes of 5 lines each go on in a new segment; a process of its own ends when so many of these are there.
CARRIED = """
import os, sys
from pathlib import Path
from evolvent.store.store import DiskOperations, Store
from evolvent.trajectory import Step, Task

def ended(path, left):
    def write(handle, raw):
        if left.pop():
            os._exit(9)
        return os.write(handle, raw)

    store = Store.open(path, writing=True, disk=DiskOperations(write=write))
    for name in "ab":
        store.begin(name, Task("lookup", "1", {}))
        for i in range(4):
            store.step(name, Step(f"o{i}", "a"))
    store.seal()
    store.step("a", Step("o4", "a"))

for written in range(11):
    child = os.fork()
    if child == 0:
        ended(Path(sys.argv[1]) / str(written), [True] + [False] * (10 + written))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_kill_while_open_episodes_are_carried_on_costs_no_step(tmp_path):
    done = subprocess.run([sys.executable, "-c", CARRIED, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9"] * 11
    for path in tmp_path.iterdir():
        for _ in range(2):  # as a reader finds it, and when the next writer has put it in order
            assert {one.id: len(one.steps) for one in Store.open(path).trajectories()} == {"a": 4, "b": 4}
            assert Store.open(path).recover() == RecoveryReport(0, 0, 2)


def test_a_segment_that_somebody_else_began_is_not_replaced(tmp_path):
    """On file systems without locks a second writer may be there: its lines stay, whatever is carried on."""
    with Store.open(tmp_path / "t", writing=True) as store:
        store.begin("a", TASK)
        other = segment_path(store.path, 2)
        other.write_bytes(b"another's")
        with pytest.raises(StoreUnavailable, match="seg-000002"):
            store.seal()
        assert sorted(one.name for one in other.parent.iterdir()) == ["seg-000001.jsonl", other.name]
        assert other.read_bytes() == b"another's"


def test_who_only_looks_at_a_lock_keeps_no_writer_out(tmp_path, monkeypatch):
    """`is_free`, which others ask again and again while a run may begin, shares the lock for a moment."""
    path = tmp_path / "writer.lock"
    WriterLock(path).release()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
    lock = WriterLock(path)
    assert not is_free(path)
    lock.release()
    assert is_free(path)
    os.close(looking)


@pytest.mark.parametrize("what", ["append", "seal"])
def test_a_line_that_another_thread_appends_during_a_sync_is_synced_too(tmp_path, what):
    """A run notes a finished stage while it plays ahead: both use the store. Who comes second waits."""
    syncs, threads = [], []

    def sync(handle: int) -> None:
        if not syncs:
            threads.append(threading.Thread(target=other))
            threads[0].start()
            threads[0].join(0.3)
        os.fsync(handle)
        syncs.append(handle)

    def other() -> None:
        store.append(episode("b"))
        if what == "seal":
            store.seal()

    store = Store.open(tmp_path / "t", writing=True, disk=DiskOperations(sync=sync, sync_every=1e9))
    store.append(episode("a"))
    store.flush()
    threads[0].join()
    store.flush()
    assert len(syncs) == 2, "the second line was not on disk before"
    store.close()
    assert ids(Store.open(store.path)) == ["a", "b"]


def meanwhile(other):
    """A function that the first time lets another thread do something, and waits a moment for it; the thread."""
    thread = threading.Thread(target=other)

    def first():
        if thread.ident is None:
            thread.start()
            thread.join(0.3)

    return first, thread


def writer(root, **disk) -> LogWriter:
    log_folder(root).mkdir(parents=True)
    return LogWriter(root, first=1, run="r", segment_bytes=1 << 20, disk=DiskOperations(**disk))


def test_annotations_of_two_threads_have_numbers_of_their_own(tmp_path):
    first, thread = meanwhile(lambda: log.annotate("b", {}))

    def write(handle, raw):
        first()
        return os.write(handle, raw)

    log = writer(tmp_path, write=write)
    log.annotate("a", {})
    thread.join()
    log.close()
    assert [(line.traj, line.n) for line in read_lines(segment_path(tmp_path, 1), torn=False)] == [("a", 0), ("b", 1)]


def test_the_number_of_a_segment_is_told_when_it_has_begun(tmp_path):
    """Whoever seals what is below it, while another thread carries open episodes on, takes nothing that is written."""
    told, syncs = [], []
    first, thread = meanwhile(lambda: told.append(log.number))

    def sync(handle):
        syncs.append(handle)
        if len(syncs) == 2:  # of the new segment, whose name it does not have yet
            first()
        os.fsync(handle)

    log = writer(tmp_path, sync=sync)
    log.begin("a", {})
    log.rotate()
    thread.join()
    log.close()
    assert (told, len(syncs)) == ([2], 2)

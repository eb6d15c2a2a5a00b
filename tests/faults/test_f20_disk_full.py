"""Fault 20: the disk is full in the middle of a record: a clear stop, and everything before it is intact."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
from small_store import episode, filled, python, segment

from evolvent.errors import NoSpace
from evolvent.store.log import DiskOperations
from evolvent.store.store import Store

# Appends until the file size limit of the process is reached, then tells what happened.
LIMITED = """
import resource, signal, sys
from small_store import episode
from evolvent.errors import NoSpace
from evolvent.store.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[1], writing=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
number = 0
try:
    while True:
        store.append(episode(number))
        number += 1
except NoSpace as error:
    print(number, error)
store.close()
"""


def test_a_limit_on_the_size_of_files(tmp_path):
    """A real limit of the kernel, which lets part of the last line through."""
    path = tmp_path / "t"
    said, error = python(LIMITED, path).communicate()
    assert "no space" in said or "only part" in said, error
    count = int(said.split()[0])
    assert count > 5 and list(Store.open(path).trajectories()) == [episode(i) for i in range(count)]
    raw = segment(path).read_bytes()
    assert raw.endswith(b"}\n") and len(raw) <= 20_000
    with Store.open(path, writing=True) as store:
        assert store.recover().dropped_bytes == 0
        store.append(episode(count))
    assert len(list(Store.open(path).ids())) == count + 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("part", [0, 1, 200])
def test_writing_goes_on_when_there_is_space_again(tmp_path, error, part):
    """A write that stops in its middle, then one that fails outright; the store stays usable, with no half line."""
    full: list[bool] = []

    def write(handle: int, data: bytes) -> int:
        if not full:
            return os.write(handle, data)
        if full.pop() and part:
            return os.write(handle, data[:part])
        raise OSError(error, os.strerror(error))

    with Store.open(tmp_path / "t", writing=True, disk=DiskOperations(write=write)) as store:
        store.append(episode(0))
        for attempt in (True, False):
            full.append(attempt)
            with pytest.raises(NoSpace):
                store.append(episode(1))
            assert list(store.trajectories()) == [episode(0)]
        store.append(episode(1))
        assert list(store.trajectories()) == [episode(0), episode(1)]


def test_a_full_disk_while_a_segment_begins_keeps_open_episodes_whole(tmp_path):
    """The lines that are carried into a new segment fail half way: the next try carries all of them."""
    full: list[int] = []

    def write(handle: int, data: bytes) -> int:
        if full:
            full[0] -= 1
            if full[0] <= 0:
                full.clear()
                raise OSError(errno.ENOSPC, "full")
        return os.write(handle, data)

    whole = episode(0, steps=4)
    with Store.open(tmp_path / "t", writing=True, segment_bytes=10**6, disk=DiskOperations(write=write)) as store:
        store.begin(whole.id, whole.task)
        for step in whole.steps[:2]:
            store.step(whole.id, step)
        full.append(2)
        with pytest.raises(NoSpace):
            store.seal()
        for step in whole.steps[2:]:
            store.step(whole.id, step)
        store.end(whole.id, final_observation="end", score=whole.score)
        assert list(store.trajectories()) == [whole]
        store.seal()
        assert list(store.trajectories()) == [whole]


def test_sealing_without_space_leaves_the_log(tmp_path):
    """A file system of 160 kB, half of it log: sealing refuses or works, the episodes are there in any case."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", mount], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("this user cannot mount a small file system; the kernel's size limit is tested above")
    try:
        path = mount / "t"
        episodes = filled(path, 60)
        left = os.statvfs(mount)
        (mount / "ballast").write_bytes(bytes(left.f_bavail * left.f_frsize - 4096))
        with pytest.raises(NoSpace), Store.open(path, writing=True) as store:
            store.append(episode(60))
        with pytest.raises(NoSpace):
            Store.open(path).seal()
        assert list(Store.open(path).trajectories()) == episodes
        (mount / "ballast").unlink()
        assert Store.open(path).seal().rows["trajectories"] == 60
        assert list(Store.open(path).trajectories()) == episodes
        assert not list(path.rglob("*~"))
    finally:
        subprocess.run(["umount", mount], check=True)

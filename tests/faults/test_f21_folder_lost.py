"""Fault 21: a read-only folder, a permission lost, a file system that went stale.

StoreUnavailable with the reason of the system; what was stored before stays readable.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from small_store import episode, filled, python

from evolvent.errors import StoreUnavailable
from evolvent.store.log import DiskOperations
from evolvent.store.store import Store

# As root every folder can be written, so the process first becomes nobody.
NOBODY = """
import os, sys
import pyarrow.compute, pyarrow.parquet
from evolvent.errors import StoreUnavailable
from evolvent.store.store import Store
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    Store.open(sys.argv[1], writing=True)
    print("opened")
except StoreUnavailable as error:
    print("refused", error)
print(len(list(Store.open(sys.argv[1]).trajectories())))
"""


def test_a_read_only_folder_can_be_read(tmp_path):
    outer = Path(tempfile.mkdtemp())
    try:
        outer.chmod(0o755)
        path = outer / "t"
        filled(path, 3)
        for folder in (path, path / "log"):
            folder.chmod(0o555)
        (path / "writer.lock").chmod(0o444)
        said, error = python(NOBODY, path).communicate()
        assert said.startswith("refused cannot use") and "denied" in said.lower(), error
        assert said.split()[-1] == "3", error
    finally:
        for folder in (path, path / "log"):
            folder.chmod(0o755)
        shutil.rmtree(outer)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_file_system_that_fails(tmp_path, number):
    """Handed in: writing or syncing fails after two episodes. They stay; what failed to be written is not there."""
    broken: list[str] = []

    def write(handle: int, data: bytes) -> int:
        if "write" in broken:
            raise OSError(number, os.strerror(number))
        return os.write(handle, data)

    def sync(handle: int) -> None:
        if "sync" in broken:
            raise OSError(number, os.strerror(number))
        os.fsync(handle)

    store = Store.open(tmp_path / "t", writing=True, disk=DiskOperations(write=write, sync=sync, sync_every=0))
    store.append(episode(0))
    store.append(episode(1))
    broken.append("write")
    with pytest.raises(StoreUnavailable, match=os.strerror(number)):
        store.append(episode(2))
    assert list(store.ids()) == ["e0", "e1"]
    broken[:] = ["sync"]
    with pytest.raises(StoreUnavailable):
        store.append(episode(2))
    with pytest.raises(StoreUnavailable):
        store.close()
    with Store.open(tmp_path / "t", writing=True) as again:
        assert list(again.trajectories()) == [episode(i) for i in range(3)]


def test_the_folder_is_a_file_or_gone(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="file"):
        Store.open(tmp_path / "file", writing=True)
    with pytest.raises(StoreUnavailable):
        Store.open(tmp_path / "file")
    path = tmp_path / "t"
    filled(path, 2)
    Store.open(path).seal()
    (part,) = (path / "parquet" / "steps").iterdir()
    part.unlink()
    with pytest.raises(StoreUnavailable, match=part.name):
        list(Store.open(path).trajectories())

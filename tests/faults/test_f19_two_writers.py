"""Fault 19: two writers on one run; a lock left by a dead one; one of another machine.

The second is refused and told process and host of the first; what a dead process left holds nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest
from small_store import episode, filled, python

from evolvent.errors import Locked
from evolvent.store.lock import WriterLock
from evolvent.store.store import Store

HOLDER = """
import sys
from evolvent.store.store import Store
store = Store.open(sys.argv[1], writing=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_second_writer_is_told_process_and_host_and_a_dead_one_holds_nothing(tmp_path):
    path = tmp_path / "t"
    episodes = filled(path, 2)
    process = python(HOLDER, path)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for use in (
        lambda: Store.open(path, writing=True),
        lambda: Store.open(path).recover(),
        lambda: Store.open(path).seal(),
    ):
        with pytest.raises(Locked) as error:
            use()
        assert (error.value.pid, error.value.host) == (process.pid, socket.gethostname())
        assert f"Process {process.pid} on {socket.gethostname()}" in str(error.value)
    assert list(Store.open(path).trajectories()) == episodes, "readers are not locked out"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert json.loads((path / "writer.lock").read_text())["pid"] == process.pid, "it left its name"
    with Store.open(path, writing=True) as store:
        store.append(episode(2))


def test_also_in_one_process_and_free_after_closing(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        with pytest.raises(Locked) as error:
            Store.open(tmp_path / "t", writing=True)
        assert error.value.pid == os.getpid()
        store.append(episode(0))
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode(1))


def test_a_name_of_another_host_is_respected(tmp_path):
    """Network file systems do not always carry locks: this host cannot know whether that process still runs."""
    path = tmp_path / "t"
    filled(path, 1)
    (path / "writer.lock").write_text('{"pid": 7, "host": "elsewhere"}')
    with pytest.raises(Locked, match=r"remove .*writer\.lock\. Process 7 on elsewhere"):
        Store.open(path, writing=True)
    (path / "writer.lock").unlink()
    Store.open(path, writing=True).close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": null}', "\0\0"])
def test_a_lock_file_of_nonsense_is_nobody(tmp_path, text):
    (tmp_path / "writer.lock").write_text(text)
    lock = WriterLock(tmp_path / "writer.lock")
    assert json.loads((tmp_path / "writer.lock").read_text())["pid"] == os.getpid()
    lock.release()
    lock.release()
    assert (tmp_path / "writer.lock").read_text() == ""


def test_a_fork_may_not_write(tmp_path):
    """The child has the store, but not the right to write: two processes would write one segment."""
    with Store.open(tmp_path / "t", writing=True) as store:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.append(episode(0))
            except Locked:
                store.close()
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(Locked):
            Store.open(tmp_path / "t", writing=True)
        store.append(episode(1))
        assert list(store.ids()) == ["e1"]

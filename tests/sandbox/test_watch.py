from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evolvent.sandbox import watch
from evolvent.sandbox.limits import SandboxLimits
from evolvent.sandbox.watch import descendants, exceeded_limit

WIDE = SandboxLimits(wall_s=60.0, cpu_s=60)
SOURCE = """
import os, socket, threading, time
def fork(n):
    for _ in range(n):
        if os.fork() == 0:
            time.sleep(600)
def daemon():
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            open("alive", "w").close()
            time.sleep(600)
        os._exit(0)
    os.waitpid(first, 0)
    while not os.path.exists("alive"):
        time.sleep(0.01)
def threads(n):
    for _ in range(n):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def fill(mb):
    global kept
    kept = bytearray(b"x") * (mb * 2**20)
def talk(pairs):
    for _ in range(5):
        if os.fork() == 0:
            kept = [socket.socketpair() for _ in range(pairs)]
            open(str(os.getpid()), "w").close()
            time.sleep(600)
    while len(os.listdir(".")) < 5:
        time.sleep(0.01)
def names(n):
    for k in range(n):
        open(str(k), "w").close()
"""


@pytest.mark.parametrize(
    ("call", "tight", "said"),
    [
        (("fork", 6), {"processes": 6}, "7 processes, at most 6"),
        (("daemon",), {"processes": 1}, "2 processes, at most 1"),
        (("threads", 6), {"processes": 6}, "7 processes and threads, at most 6"),
        (("fill", 60), {"total_mb": 50}, "MiB in 1 processes, at most 50"),
        (("talk", 28), {"total_mb": 50}, "MiB in 6 processes, at most 50"),
        (("names", 1100), {"tmp_mb": 1}, "names in the working folder, at most 1000"),
    ],
)
def test_what_is_used_is_seen(boxes, call, tight, said):
    with boxes.open(SOURCE, WIDE) as box:
        assert exceeded_limit(box._pid, WIDE) == ""
        assert box.ask(call[0], call[1:]).ok
        assert exceeded_limit(box._pid, WIDE) == ""
        assert said in exceeded_limit(box._pid, dataclasses.replace(WIDE, **tight))


def test_memory_that_forks_share_counts_once(boxes):
    """Nine processes that share 100 MiB hold some 100 MiB, though each of them has it all in its address space."""
    with boxes.open(SOURCE, WIDE) as box:
        assert box.ask("fill", (100,)).ok and box.ask("fork", (8,)).ok
        assert exceeded_limit(box._pid, dataclasses.replace(WIDE, total_mb=300)) == ""
        assert "MiB in 9 processes" in exceeded_limit(box._pid, dataclasses.replace(WIDE, total_mb=90))


def test_processes_that_are_gone():
    assert list(descendants(2**22 + 1)) == []
    assert exceeded_limit(2**22 + 1, WIDE) == exceeded_limit(2**22 + 1, WIDE, unsafe=True) == ""


def test_the_pids_group_holds_where_there_is_one(boxes):
    """A host's root is exempt from RLIMIT_NPROC; ordinary users are not. Either way the 20th process is not made."""
    with boxes.open(SOURCE, dataclasses.replace(WIDE, processes=8)) as box:
        outcome = box.ask("fork", (20,))
    assert (outcome.status, "temporarily unavailable" in outcome.error) == ("raised", True) or outcome.status == "limit"


def test_a_process_that_hides_what_it_holds_counts_in_full(monkeypatch):
    """As root nothing is hidden from us, so the kernel's refusal is played."""

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    own = watch._resident_bytes(Path("/proc/self"))
    assert own > 0 and watch._proportional_bytes(Path("/proc/self")) > 0
    monkeypatch.setattr(Path, "iterdir", refused)
    hidden = watch._list_descriptors([Path("/proc/self")], 5)
    assert [len(held) for held in (hidden.sockets, hidden.pipes)] == [5, 5] and hidden.epolls == 5
    monkeypatch.setattr(watch, "_sum_kilobytes", lambda path, _: 7 if path.name == "status" else refused())
    assert watch._proportional_bytes(Path("/proc/self")) == 7 * 1024

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from evolvent.sandbox import box
from evolvent.sandbox.limits import CallRequest, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

FORKS = """
import os, sys, time
made = 0
sys.stdin.readline()
try:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    pass
print(made, flush=True)
os.killpg(0, 9)
"""


@pytest.fixture
def group():
    found = box.create_group()
    if found is None:
        pytest.skip("this user may make no control groups of the pids controller (cgroup v1)")
    yield found
    for _ in range(1000):  # the last of its processes is on its way out
        found.remove()
        if not found._path.exists():
            break
        time.sleep(0.01)
    assert not found._path.exists()


def test_what_is_started_inside_is_counted_and_this_process_is_not_in_it(group):
    group.set_limit(4)  # and two for bubblewrap
    with group.membership():
        process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    assert (group._path / "cgroup.procs").read_text(encoding="ascii").split() == [str(process.pid)]
    out, _ = process.communicate("go\n", timeout=60)
    assert out.split() == ["5"]


def test_groups_of_processes_that_are_gone_are_swept(group):
    old = group._path.with_name("evolvent-4194305-1")
    old.mkdir()
    another = box.create_group()
    assert not old.exists() and group._path.exists() and another._path.exists()
    another.remove()


def test_a_box_leaves_no_group(isolated, group):
    before = set(group._path.parent.glob("evolvent-*"))
    with SandboxPool(ahead=0) as pool:
        assert pool.observe("def f(): return 1", [CallRequest("f")], SandboxLimits(wall_s=60.0))[0].ok
        assert pool.observe("def f(): return g", [CallRequest("f")], SandboxLimits(wall_s=60.0))[0].status == "raised"
    assert set(group._path.parent.glob(f"evolvent-{os.getpid()}-*")) <= before


def test_a_user_without_rights_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(box, "find_parent_group", lambda: tmp_path / "nothing")
    assert box.create_group() is None
    monkeypatch.setattr(box, "find_parent_group", lambda: None)
    assert box.create_group() is None

"""Fault 46: a box has no network, no environment and no files of the host, and the next box has none of its."""

from __future__ import annotations

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.limits import CallRequest, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60)


@pytest.fixture(scope="module")
def boxes():
    try:
        pool = SandboxPool(ahead=1)
    except IsolationUnavailable as error:
        pytest.skip(f"this host has no isolation: {error}")
    with pool:
        yield pool


def told(boxes, body, before="import os"):
    (outcome,) = boxes.observe(f"{before}\ndef f():\n    return {body}", [CallRequest("f")], LIMITS)
    assert outcome.ok, outcome
    return outcome.value


def test_the_network_is_a_loopback_that_is_alone(boxes):
    devices = "[line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]"
    assert "lo" in told(boxes, devices) and not [name for name in told(boxes, devices) if name.startswith(("e", "w"))]
    assert told(boxes, "open('/proc/net/route').read().count(chr(10))") == 1


def test_the_environment_is_new(boxes, monkeypatch):
    monkeypatch.setenv("EVOLVENT_TOKEN", "secret")
    names = {"PATH", "HOME", "LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    assert set(told(boxes, "sorted(os.environ)")) - names <= {"PWD", "LC_CTYPE"}


def test_the_files_are_the_systems_and_pythons(boxes):
    top = set(told(boxes, "sorted(os.listdir('/'))"))
    assert {"usr", "proc", "dev", "tmp", "box"} <= top
    assert not top & {"home", "var", "sys", "run", "mnt", "media", "boot", "srv"}
    assert set(told(boxes, "os.listdir('/etc') if os.path.exists('/etc') else []")) <= {"ld.so.cache"}
    writable = "[p for p in ('/', '/usr', '/dev', '/dev/shm', '/tmp', '/box', '/proc/self') if os.access(p, os.W_OK)]"
    assert told(boxes, writable) == ["/dev/shm", "/tmp"]


def test_it_is_nobody_without_rights(boxes):
    assert told(boxes, "(os.getuid(), os.getgid(), os.uname().nodename)") == (65534, 65534, "box")
    status = told(boxes, "open('/proc/self/status').read()")
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def test_the_host_has_none_of_its_processes_and_the_next_box_none_of_its_files(boxes):
    leave = """
import os, time
def f():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            open("left", "a").close()
            open("/dev/shm/left", "a").close()
            time.sleep(0.001)
    while not os.path.exists("/dev/shm/left"):
        time.sleep(0.001)
"""
    (outcome,) = boxes.observe(leave, [CallRequest("f")], LIMITS)
    assert outcome.ok
    assert told(boxes, "os.listdir('/tmp') + os.listdir('/dev/shm')") == []
    assert told(boxes, "len([name for name in os.listdir('/proc') if name.isdigit()])") == 2


def test_a_link_leads_nowhere(boxes, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    source = """
import os
def f(target):
    os.symlink(target, "link")
    return open("link").read()
"""
    for target in (str(secret), "../../../../.." + str(secret), f"/proc/1/root{secret}"):
        (outcome,) = boxes.observe(source, [CallRequest("f", (target,))], LIMITS)
        assert outcome.status == "raised" and "No such file" in outcome.error
    assert secret.read_text(encoding="utf-8") == "secret"

"""Hosts of a small network on this machine: namespaces of processes, names and network interfaces, joined by a cable.

    with network() as (one, two):
        process = one.start(["torchrun", ...], cwd=folder)
        two.lose()                            # as if its power were cut: no process of it says another word

A host has its own interfaces (`lo` and `eth0`), its own name and its own process numbers. The hosts know each other by
name and share the file system. As on Debian, each takes its own name for an address of its `lo`, 127.0.1.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import SRC

_SPACES = ("--net", "--uts", "--mount", "--pid")


@dataclass(frozen=True)
class Started:
    """A program on a host, and where its two streams go."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(240)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None


class Host:
    """One host. Attributes: name; address: of `eth0`; pid: of its first process; started: what was started in it."""

    def __init__(self, name: str, address: str, names: Path) -> None:
        self.name, self.address = name, address
        begin = f"mount --bind {names} /etc/hosts && hostname {name} && ip link set lo up && exec sleep infinity"
        words = ["unshare", *_SPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", begin]
        self._power = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.started: list[Started] = []
        self.pid = self._first()

    def _first(self) -> int:
        """The number, out here, of the host's first process, once the host is as it shall be."""
        end = time.monotonic() + 20
        while time.monotonic() < end and self._power.poll() is None:
            told = Path(f"/proc/{self._power.pid}/task/{self._power.pid}/children").read_text().split()
            if told and Path(f"/proc/{told[0]}/comm").read_text().strip() == "sleep":
                return int(told[0])
            time.sleep(0.02)
        self._power.kill()
        pytest.skip(f"no namespaces here: {(self._power.communicate()[1] or 'not in time').strip()[-200:]}")

    def start(self, words: Sequence[object], *, cwd: Path, env: Mapping[str, str] | None = None) -> Started:
        """Start a program in a folder."""
        inside = ["nsenter", "--target", str(self.pid), *_SPACES, f"--wd={cwd}", "--", *map(str, words)]
        path = os.pathsep.join((str(SRC), str(SRC.parent)))
        own = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})}
        out, err = (cwd / f".{self.name}-{len(self.started)}-{stream}" for stream in ("out", "err"))
        with out.open("w") as first, err.open("w") as second:
            self.started.append(Started(subprocess.Popen(inside, stdout=first, stderr=second, env=own), out, err))
        return self.started[-1]

    def run(self, *words: str, spaces: Sequence[str] = _SPACES) -> str:
        """Run a command to its end, and return what it printed; skips the test where it fails."""
        done = subprocess.run(
            ["nsenter", "--target", str(self.pid), *spaces, "--", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no network of namespaces here: {done.stderr.strip()[-200:]}")
        return done.stdout

    def lose(self) -> None:
        """As if its power were cut: all that runs in it ends, and the other host hears nothing, not even goodbyes."""
        self.run("ip", "link", "set", "eth0", "down")
        self.run("sh", "-c", "kill -KILL -1")  # all but the first process, which holds the namespaces
        self._reap()

    def back(self) -> None:
        """It can be reached again; nothing runs in it."""
        self.run("ip", "link", "set", "eth0", "up")

    def off(self) -> None:
        """The host is no more."""
        self._power.kill()
        self._power.communicate()
        self._reap()

    def _reap(self) -> None:
        for started in self.started:
            started.process.kill()
            started.process.wait()


@contextmanager
def network() -> Iterator[tuple[Host, Host]]:
    """Two hosts, one and two, with a cable between them; neither is left at the end.

    Where the machine does not allow it the test is skipped.
    """
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount", "hostname") if shutil.which(tool) is None]
    if sys.platform != "linux" or missing or os.geteuid():
        pytest.skip(f"network namespaces need Linux, root and what is missing here: {' '.join(missing) or 'root'}")
    known = {"one": "10.77.0.1", "two": "10.77.0.2"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        hosts = []
        for name, address in known.items():
            table = Path(folder) / name
            others = "".join(f"{to} {other}\n" for other, to in known.items() if other != name)
            table.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
            hosts.append(Host(name, address, table))
            stack.callback(hosts[-1].off)
        one, two = hosts
        cable = ("type", "veth", "peer", "name", "eth0", "netns", str(two.pid))
        one.run("ip", "link", "add", "eth0", *cable, spaces=("--net",))  # by the other's number out here
        for host in hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
        yield one, two

"""A control group of the host that counts a box's processes, where there may be one.

The kernel exempts a host's root from the limit of processes (RLIMIT_NPROC), and so all boxes that root starts. There a
group of the `pids` controller (cgroup v1) does it, below the group that this process is in, so that no box leaves the
limits of its starter. With cgroup v2 a group that holds processes can have no such children; there root's boxes are
watched alone. Ordinary users have the limit itself, and need no group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

__all__ = ["Group", "made", "place"]

_OLD_NS = 60 * 10**9


@cache
def place() -> Path | None:
    """The folder in which groups can be made; None: there is none, or it is not ours to write."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line.split(":", 2)[2] for line in lines if "pids" in line.split(":")[1].split(",")), None)
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, kind, options, *_ = line.split()
            if own is not None and kind == "cgroup" and "pids" in options.split(","):
                found = Path(mounted, own.lstrip("/"))
                return found if os.access(found, os.W_OK) else None
    return None


def made() -> Group | None:
    """A new group for one box; None where there can be none."""
    parent = place()
    with suppress(OSError):
        if parent is not None:
            _sweep(parent)
            return Group(parent)
    return None


def _sweep(parent: Path) -> None:
    """Remove old groups: of a process that was killed, or with members that took long to end. Those in use stay."""
    for path in parent.glob("evolvent-*-*"):
        _, pid, made_ns = path.name.split("-", 2)
        if not Path("/proc", pid).exists() or time.monotonic_ns() - int(made_ns) > _OLD_NS:
            with suppress(OSError):
                path.rmdir()


class Group:
    """A group for one box.

    To move another process into a group takes some 10 ms, most of them waiting for all processors. A thread that moves
    itself takes none of them, and what it starts is a member from the beginning; so that is done.

    Args:
        parent: the folder in which it is made.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        self._parent, self._path = parent, parent / f"evolvent-{os.getpid()}-{time.monotonic_ns()}"
        self._path.mkdir()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be a member, with this thread alone, while a process is started.

        Raises:
            OSError: it cannot be done.
        """
        (self._path / "tasks").write_text("0", encoding="ascii")
        try:
            yield
        finally:
            (self._parent / "tasks").write_text("0", encoding="ascii")

    def limit(self, most: int) -> None:
        """Allow so many processes and threads, beside bubblewrap's two.

        Raises:
            OSError: it cannot be done.
        """
        (self._path / "pids.max").write_text(str(most + 2), encoding="ascii")

    def remove(self) -> None:
        """Remove it, once its processes are gone."""
        with suppress(OSError):
            self._path.rmdir()

"""A control group of the host that counts a sandbox's processes, where the host supports it.

The kernel exempts a host's root from the process limit (RLIMIT_NPROC), and so all sandboxes that root starts. There a
group of the `pids` controller (cgroup v1) limits them, below the group of this process, so that no sandbox leaves the
limits of its starter. With cgroup v2 a group that holds processes can have no such children; there root's sandboxes
are only watched. Ordinary users have the limit itself, and need no group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

__all__ = ["Group", "create_group", "find_parent_group"]

_MAX_AGE_NS = 60 * 10**9


@cache
def find_parent_group() -> Path | None:
    """Returns the folder in which groups can be created; None if there is none, or it is not writable."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own_group = next((line.split(":", 2)[2] for line in lines if "pids" in line.split(":")[1].split(",")), None)
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, kind, options, *_ = line.split()
            if own_group is not None and kind == "cgroup" and "pids" in options.split(","):
                path = Path(mounted, own_group.lstrip("/"))
                return path if os.access(path, os.W_OK) else None
    return None


def create_group() -> Group | None:
    """Creates a new group for one sandbox; returns None where groups are not supported."""
    parent = find_parent_group()
    with suppress(OSError):
        if parent is not None:
            _remove_old_groups(parent)
            return Group(parent)
    return None


def _remove_old_groups(parent: Path) -> None:
    """Removes old groups: of a killed process, or with members that took long to end. Groups in use stay."""
    for path in parent.glob("evolvent-*-*"):
        _, pid, created_ns = path.name.split("-", 2)
        if not Path("/proc", pid).exists() or time.monotonic_ns() - int(created_ns) > _MAX_AGE_NS:
            with suppress(OSError):
                path.rmdir()


class Group:
    """A group for one sandbox.

    Moving another process into a group takes some 10 ms, most of them waiting for all processors. A thread that moves
    itself needs no such wait, and the processes that it starts are members from the beginning.

    Args:
        parent: folder in which the group is created.

    Raises:
        OSError: the group cannot be created.
    """

    def __init__(self, parent: Path) -> None:
        self._parent, self._path = parent, parent / f"evolvent-{os.getpid()}-{time.monotonic_ns()}"
        self._path.mkdir()

    @contextmanager
    def membership(self) -> Iterator[None]:
        """Makes this thread alone a member of the group while a process is started.

        Raises:
            OSError: the thread cannot be moved.
        """
        (self._path / "tasks").write_text("0", encoding="ascii")
        try:
            yield
        finally:
            (self._parent / "tasks").write_text("0", encoding="ascii")

    def set_limit(self, max_processes: int) -> None:
        """Limits the processes and threads of the group, not counting bubblewrap's two.

        Raises:
            OSError: the limit cannot be set.
        """
        (self._path / "pids.max").write_text(str(max_processes + 2), encoding="ascii")

    def remove(self) -> None:
        """Removes the group after its processes have ended."""
        with suppress(OSError):
            self._path.rmdir()

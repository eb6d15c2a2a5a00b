"""A control group of the host that counts a box's processes, where there may be one.

The kernel exempts a host's root from the limit of processes (RLIMIT_NPROC), and so all boxes that root starts. There a
group of the `pids` controller (cgroup v1) does it, below the group that this process is in, so that no box leaves the
limits of its starter. With cgroup v2 a group that holds processes can have no such children; there root's boxes are
watched alone. Ordinary users have the limit itself, and need no group.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["Group", "place"]


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


class Group:
    """A group for one box.

    Args:
        parent: the folder in which it is made.
        name: its name.
        most: how many processes and threads there may be.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path, name: str, *, most: int) -> None:
        self._path = parent / name
        self._path.mkdir()
        (self._path / "pids.max").write_text(str(most), encoding="ascii")

    def add(self, pid: int) -> None:
        """Put a process into it, and with it all that it will start."""
        (self._path / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def remove(self) -> None:
        """Remove it, once its processes are gone."""
        with suppress(OSError):
            self._path.rmdir()

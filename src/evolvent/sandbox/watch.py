"""What the processes of a box use, seen from outside.

Address space is limited for each process, so 64 processes of half a GiB each would pass; and a host's root is exempt
from the limit of processes. The box's own /proc, seen through its first process, lists all that is in it: double forks
and new sessions too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evolvent.sandbox.limits import Limits

__all__ = ["descendants", "exceeded"]

_MIB = 2**20
_NAMES = 1000  # empty files a MiB of the working folder may hold: they take kernel memory, but no block of the folder
_SOCKET = 212_992  # bytes that wait in a socket at most: no box may ask for more (`filters.BUFFERS`)
_FIRST = "1"  # the first process of a box is bubblewrap's


def descendants(pid: int) -> Iterator[int]:
    """All processes below one that runs without isolation; those that left its tree are not found."""
    left = [pid]
    while left:
        here = left.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{here}/task").iterdir():
                with suppress(OSError):
                    found = [int(part) for part in (task / "children").read_bytes().split()]
                    yield from found
                    left.extend(found)


def exceeded(pid: int, limits: Limits, *, unsafe: bool = False) -> str:
    """Which limit of the whole box is exceeded, in words; "" where none is.

    Memory is first taken as what each process holds alone or shares with its forks; where that is too much, shared
    pages are counted once (Pss), which is exact and takes longer. What may wait in a socket is counted with it.

    Args:
        pid: the first process of the box, as the host counts.
        limits: `processes` counts threads, `total_mb` memory, `tmp_mb` the names in the working folder.
        unsafe: it has no /proc of its own: the tree of the process is looked at, and no folder.
    """
    inside = Path("/proc", str(pid), "root")
    if unsafe:
        found = [Path("/proc", str(each)) for each in (pid, *descendants(pid))]
    else:
        found = _listed(inside / "proc")
    if len(found) > limits.processes:
        return f"{len(found)} processes, at most {limits.processes}"
    threads = sum(map(_threads, found))
    if threads > limits.processes:
        return f"{threads} processes and threads, at most {limits.processes}"
    waiting = _SOCKET * len(set().union(*(_sockets(each, limits.files) for each in found)))
    if sum(map(_resident, found)) + waiting > limits.total_mb * _MIB:
        total = sum(map(_proportional, found)) + waiting
        if total > limits.total_mb * _MIB:
            return f"{total // _MIB} MiB in {len(found)} processes, at most {limits.total_mb}"
    return "" if unsafe else _names(inside / "tmp", limits.tmp_mb * _NAMES)


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.name != _FIRST]
    return []


def _names(folder: Path, most: int) -> str:
    with suppress(OSError):
        seen = os.statvfs(folder)
        if seen.f_files - seen.f_ffree > most:
            return f"{seen.f_files - seen.f_ffree} names in the working folder, at most {most}"
    return ""


def _threads(process: Path) -> int:
    with suppress(OSError):
        return sum(1 for _ in (process / "task").iterdir())
    return 0


def _sockets(process: Path, most: int) -> set[str]:
    """The sockets that a process holds, by name: forks hold the same ones. Who hides them has as many as can be."""
    found = set()
    try:
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found.add(str(entry.readlink()))
    except PermissionError:
        return {f"hidden {number} of {process}" for number in range(most)}
    except OSError:
        return set()  # it is gone
    return {name for name in found if name.startswith("socket:")}


def _kilobytes(path: Path, names: tuple[str, ...]) -> int:
    """The sum of some lines `name:  number kB` of a file of /proc; of a process that is gone 0."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0


def _resident(process: Path) -> int:
    """Bytes in memory without those of files."""
    with suppress(OSError):
        return 1024 * _kilobytes(process / "status", ("RssAnon:", "RssShmem:"))
    return 0


def _proportional(process: Path) -> int:
    """Bytes in memory, shared pages divided among those who share them; of one that hides them, all it has."""
    try:
        return 1024 * _kilobytes(process / "smaps_rollup", ("Pss:",))
    except OSError:
        return _resident(process)

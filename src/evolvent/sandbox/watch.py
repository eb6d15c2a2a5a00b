"""The resource use of the processes of a sandbox, seen from outside.

Address space is limited for each process, so 64 processes of half a GiB each would pass; and a host's root is exempt
from the process limit. The sandbox's own /proc, seen through its first process, lists all its processes: double forks
and new sessions too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evolvent.sandbox.limits import SandboxLimits

__all__ = ["descendants", "exceeded_limit"]

_MIB = 2**20
_NAMES_PER_MIB = (
    1000  # empty files a MiB of the working folder may hold: they take kernel memory, but no block of the folder
)
_SOCKET_BYTES = 212_992  # bytes that wait in a socket at most: no box may ask for more (`filters.BUFFERS`)
_FIRST_PID = "1"  # the first process of a box is bubblewrap's


def descendants(pid: int) -> Iterator[int]:
    """Yields all processes below one that runs without isolation; processes that left its tree are not found."""
    pending = [pid]
    while pending:
        parent_pid = pending.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{parent_pid}/task").iterdir():
                with suppress(OSError):
                    children = [int(pid_text) for pid_text in (task / "children").read_bytes().split()]
                    yield from children
                    pending.extend(children)


def exceeded_limit(pid: int, limits: SandboxLimits, *, unsafe: bool = False) -> str:
    """Returns the exceeded limit of the whole sandbox as text; "" if none is.

    Memory is first taken as the memory that each process holds alone or shares with its forks; if that is too much,
    shared
    pages are counted once (Pss), which is exact and takes longer. Bytes that may wait in a socket are counted with it.

    Args:
        pid: first process of the sandbox, by its pid on the host.
        limits: `processes` counts threads, `total_mb` memory, `tmp_mb` the names in the working folder.
        unsafe: the sandbox has no /proc of its own: the tree of the process is checked, and no folder.
    """
    root = Path("/proc", str(pid), "root")
    if unsafe:
        processes = [Path("/proc", str(process)) for process in (pid, *descendants(pid))]
    else:
        processes = _list_processes(root / "proc")
    if len(processes) > limits.processes:
        return f"{len(processes)} processes, at most {limits.processes}"
    threads = sum(map(_count_threads, processes))
    if threads > limits.processes:
        return f"{threads} processes and threads, at most {limits.processes}"
    socket_bytes = _SOCKET_BYTES * len(set().union(*(_find_sockets(process, limits.files) for process in processes)))
    if sum(map(_resident_bytes, processes)) + socket_bytes > limits.total_mb * _MIB:
        total = sum(map(_proportional_bytes, processes)) + socket_bytes
        if total > limits.total_mb * _MIB:
            return f"{total // _MIB} MiB in {len(processes)} processes, at most {limits.total_mb}"
    return "" if unsafe else _exceeded_names(root / "tmp", limits.tmp_mb * _NAMES_PER_MIB)


def _list_processes(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.name != _FIRST_PID]
    return []


def _exceeded_names(folder: Path, max_names: int) -> str:
    with suppress(OSError):
        stats = os.statvfs(folder)
        if stats.f_files - stats.f_ffree > max_names:
            return f"{stats.f_files - stats.f_ffree} names in the working folder, at most {max_names}"
    return ""


def _count_threads(process: Path) -> int:
    with suppress(OSError):
        return sum(1 for _ in (process / "task").iterdir())
    return 0


def _find_sockets(process: Path, max_sockets: int) -> set[str]:
    """Returns the sockets that a process holds, by name: forks hold the same ones. Hidden sockets count as the
    maximum.
    """
    links = set()
    try:
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                links.add(str(entry.readlink()))
    except PermissionError:
        return {f"hidden {number} of {process}" for number in range(max_sockets)}
    except OSError:
        return set()  # it is gone
    return {name for name in links if name.startswith("socket:")}


def _sum_kilobytes(path: Path, names: tuple[str, ...]) -> int:
    """Sums some lines `name:  number kB` of a file of /proc; returns 0 for a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0


def _resident_bytes(process: Path) -> int:
    """Returns the bytes in memory without those of files."""
    with suppress(OSError):
        return 1024 * _sum_kilobytes(process / "status", ("RssAnon:", "RssShmem:"))
    return 0


def _proportional_bytes(process: Path) -> int:
    """Returns the bytes in memory, shared pages divided among their owners; if they are hidden, all bytes in memory."""
    try:
        return 1024 * _sum_kilobytes(process / "smaps_rollup", ("Pss:",))
    except OSError:
        return _resident_bytes(process)

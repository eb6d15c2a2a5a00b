"""The resource use of the processes of a sandbox, seen from outside.

Address space is limited for each process, so 64 processes of half a GiB each would pass; and a host's root is exempt
from the process limit. The sandbox's own /proc, seen through its first process, lists all its processes: double forks
and new sessions too.

Objects that the kernel counts for a user, or keeps without counting them, are watched as well: pipes, watches of epoll,
locks, and what waits in sockets, also in those that no process holds any more. The seccomp filter sees to it that none
is hidden: threads share their process's descriptors, and only locks that end with their process exist.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from evolvent.sandbox.limits import SandboxLimits

__all__ = ["descendants", "exceeded_limit"]

_MIB = 2**20
_NAMES_PER_MIB = (
    1000  # empty files a MiB of the working folder may hold: they take kernel memory, but no block of the folder
)
_SOCKET_BYTES = 212_992  # bytes that wait in a socket at most: no box may ask for more (`filters.CHECKS`)
_DATAGRAMS = 11  # senders, each with that many bytes, may be gone before a datagram socket is read (max_dgram_qlen + 1)
_PIPE_BYTES = 65_536  # bytes that wait in a pipe at most
_OBJECTS_PER_PROCESS = 2  # pipes, and descriptors of epoll, for each process that a box may have
_MAX_LOCKS = 1024
_FIRST_PID = "1"  # the first process of a box is bubblewrap's
_OWN_FOLDERS = ("tmp", "dev/shm")  # what a box may write to, and lock


@dataclass(slots=True)
class _Descriptors:
    """Holds the sockets and pipes of the processes by name, because forks hold the same ones."""

    sockets: set[str] = field(default_factory=set)
    pipes: set[str] = field(default_factory=set)
    epolls: int = 0


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
    shared pages are counted once (Pss), which is exact and takes longer. Bytes that may wait in sockets and pipes are
    counted with it.

    Args:
        pid: first process of the sandbox, by its pid on the host.
        limits: `processes` counts threads, `total_mb` memory, `tmp_mb` the names in the working folder.
        unsafe: the sandbox has no /proc of its own: the tree of the process is checked, and no folder and no lock.
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
    processes = [_find_living_task(process) for process in processes]
    held = _list_descriptors(processes, limits.files)
    if reason := _exceeded_objects(held, _OBJECTS_PER_PROCESS * limits.processes):
        return reason
    waiting_bytes = _PIPE_BYTES * len(held.pipes)
    socket_bytes = None if unsafe else _waiting_bytes(Path("/proc", str(pid), "net", "unix"))
    waiting_bytes += _SOCKET_BYTES * len(held.sockets) if socket_bytes is None else socket_bytes
    if sum(map(_resident_bytes, processes)) + waiting_bytes > limits.total_mb * _MIB:
        total = sum(map(_proportional_bytes, processes)) + waiting_bytes
        if total > limits.total_mb * _MIB:
            return f"{total // _MIB} MiB in {len(processes)} processes, at most {limits.total_mb}"
    if unsafe:
        return ""
    return _exceeded_locks(root) or _exceeded_names(root / "tmp", limits.tmp_mb * _NAMES_PER_MIB)


def _exceeded_objects(held: _Descriptors, max_objects: int) -> str:
    if len(held.pipes) > max_objects:
        return f"{len(held.pipes)} pipes, at most {max_objects}"
    if held.epolls > max_objects:
        return f"{held.epolls} descriptors of epoll, at most {max_objects}"
    return ""


def _list_processes(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.name != _FIRST_PID]
    return []


def _exceeded_locks(root: Path) -> str:
    """Looks for too many locks, and for locks on files that are not the sandbox's own: its host may wait for those."""
    with suppress(OSError, ValueError, IndexError):
        locks = (root / "proc" / "locks").read_text(encoding="ascii", errors="replace").splitlines()
        if len(locks) > _MAX_LOCKS:
            return f"{len(locks)} locks, at most {_MAX_LOCKS}"
        if locks:
            devices = {(root / folder).stat().st_dev for folder in _OWN_FOLDERS}
            own_names = {f"{os.major(device):02x}:{os.minor(device):02x}" for device in devices}
            # "1: POSIX  ADVISORY  READ 7 00:2d:2 0 EOF"; one that waits has "->" behind its number
            names = [next(word for word in lock.split() if word.count(":") == 2) for lock in locks]
            if any(name.rpartition(":")[0] not in own_names for name in names):
                return "a lock on a file outside of the working folder"
    return ""


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


def _find_living_task(process: Path) -> Path:
    """Returns the process, or a thread that has outlived its first one, whose files of /proc would be empty."""
    with suppress(OSError):
        tasks = sorted((process / "task").iterdir(), key=lambda task: int(task.name))
        if len(tasks) > 1 and not _has_memory(process):
            return next((task for task in tasks if _has_memory(task)), process)
    return process


def _has_memory(task: Path) -> bool:
    return (task / "statm").read_bytes().split()[0] != b"0"


def _list_descriptors(processes: Sequence[Path], max_files: int) -> _Descriptors:
    """Lists what the processes hold. A process that hides its descriptors counts as if all of them were sockets."""
    held = _Descriptors()
    for process in processes:
        try:
            for entry in (process / "fd").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    _add_descriptor(held, entry)
        except PermissionError:
            held.sockets |= {f"hidden {number} of {process}" for number in range(max_files)}
            held.pipes |= {f"hidden {number} of {process}" for number in range(max_files)}
            held.epolls += max_files
        except OSError:
            continue  # it is gone
    return held


def _add_descriptor(held: _Descriptors, entry: Path) -> None:
    name = str(entry.readlink())
    if name.startswith("socket:"):
        held.sockets.add(name)
    elif name.startswith("pipe:"):
        held.pipes.add(name)
    elif name == "anon_inode:[eventpoll]":
        held.epolls += 1
    elif name.startswith("/") and stat.S_ISFIFO((stats := entry.stat()).st_mode):
        held.pipes.add(f"fifo:[{stats.st_dev}:{stats.st_ino}]")


def _waiting_bytes(path: Path) -> int | None:
    """Returns the bytes that may wait in all unix sockets of a network, also in those that no process holds: of
    connections that nobody has accepted. None: the table cannot be read.
    """
    try:
        rows = [row.split() for row in path.read_text(encoding="ascii", errors="replace").splitlines()[1:]]
    except OSError:
        return None
    return _SOCKET_BYTES * sum(_DATAGRAMS if row[4:5] == ["0002"] else 1 for row in rows)


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

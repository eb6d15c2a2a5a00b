"""One writer a store: a file lock that the kernel releases when its process dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from evolvent.errors import Locked
from evolvent.files import disk_errors

__all__ = ["WriterLock", "is_free"]

_MAX_ATTEMPTS, _PAUSE_S = 25, 0.01  # how often a taken lock is tried again, as it may be somebody who only looks


class WriterLock:
    """A lock held from construction to `release`. The file names its holder, for error messages of refused
    processes.

    A lock whose process died is free at once: the kernel drops it. The name that such a process leaves in the file is
    ignored if it is of this host; a name of another host is respected, as this host cannot know whether it still runs
    (network file systems do not always carry locks). `is_free` holds the lock for a moment: construction waits for it.

    Raises:
        Locked: naming the process and host that hold it.
        StoreUnavailable, NoSpace: where the file cannot be created.
    """

    def __init__(self, path: Path, *, host: str | None = None) -> None:
        self._host = host or socket.gethostname()
        with disk_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        is_acquired = False
        try:
            with disk_errors(path):
                self._acquire(path, handle)
            is_acquired = True
        finally:
            if not is_acquired:
                os.close(handle)
        self._handle = handle

    def _acquire(self, path: Path, handle: int) -> None:
        for attempt in range(_MAX_ATTEMPTS + 1):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _MAX_ATTEMPTS:
                    pid, host = _read_holder(handle)
                    raise Locked(f"{path.parent} has a writer", pid=pid, host=host) from None
                time.sleep(_PAUSE_S)
        pid, host = _read_holder(handle)
        if host not in ("", self._host):
            raise Locked(f"{path.parent} has a writer; if that process was killed, remove {path}", pid=pid, host=host)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": self._host}).encode(), 0)

    def release(self) -> None:
        """Releases the lock; calling it twice is harmless."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1


def is_free(path: Path) -> bool:
    """Returns whether the lock file exists and no process of this host holds it; the lock is not taken."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _read_holder(handle)[1] in ("", socket.gethostname())
    except BlockingIOError:
        return False
    finally:
        os.close(handle)


def _read_holder(handle: int) -> tuple[int, str]:
    """Returns process and host in the lock file; (0, "") where it is empty or being written."""
    try:
        row = json.loads(os.pread(handle, 1000, 0) or b"{}")
        return int(row.get("pid", 0)), str(row.get("host", ""))
    except (ValueError, AttributeError, TypeError):
        return 0, ""

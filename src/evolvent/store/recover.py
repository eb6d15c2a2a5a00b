"""Putting a store in order after a kill: what was whole is kept, what was torn is dropped and counted."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from evolvent.files import TEMPORARY, disk_errors
from evolvent.store.frame import whole_end
from evolvent.store.log import segment_path, segments

__all__ = ["Recovered", "tidy"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a store holds after recovery.

    Args:
        kept: finished trajectories.
        dropped_bytes: of a record that was being written when its process ended.
        interrupted: trajectories without an end; they read as `ended_by="error"`, error "interrupted".
    """

    kept: int
    dropped_bytes: int
    interrupted: int


def tidy(root: Path, *, sealed: set[int]) -> int:
    """Cut the torn end off the last segment; remove unfinished files and segments that are sealed already.

    The caller holds the store's lock. Returns the number of bytes cut off; running it twice changes nothing more.
    """
    with disk_errors(root):
        for path in root.rglob(f"*{TEMPORARY}"):
            path.unlink()
        for number in segments(root):
            if number in sealed:
                segment_path(root, number).unlink()
    live = segments(root)
    return _cut(segment_path(root, live[-1])) if live else 0


def _cut(path: Path) -> int:
    end = whole_end(path)
    with disk_errors(path):
        size = path.stat().st_size
        if end == 0:
            path.unlink()
        elif end < size:
            with path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
    if end < size:
        _LOG.warning("%s: dropped the last %d bytes, a record that was not written to its end", path, size - end)
    return size - end

"""Restores a store after a kill: whole records are kept, torn ones are dropped and counted."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from evolvent.files import TEMPORARY_SUFFIX, disk_errors
from evolvent.store.frame import find_last_line_end
from evolvent.store.log import list_segments, segment_path

__all__ = ["RecoveryReport", "repair_log"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The content of a store after recovery.

    Args:
        num_finished: number of finished trajectories.
        dropped_bytes: bytes of a record that was being written when its process ended.
        num_interrupted: number of trajectories without an end; they read as `ended_by="error"`, error "interrupted".
    """

    num_finished: int
    dropped_bytes: int
    num_interrupted: int


def repair_log(root: Path, *, sealed: set[int]) -> int:
    """Removes the torn end of the last segment, unfinished files, and segments that are sealed already.

    The caller holds the store's lock. Returns the number of bytes cut off; running it twice changes nothing more.
    """
    with disk_errors(root):
        for path in root.rglob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()
        for number in list_segments(root):
            if number in sealed:
                segment_path(root, number).unlink()
    live_segments = list_segments(root)
    return _cut_torn_end(segment_path(root, live_segments[-1])) if live_segments else 0


def _cut_torn_end(path: Path) -> int:
    end = find_last_line_end(path)
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

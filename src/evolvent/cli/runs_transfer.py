"""`evolvent runs push | pull`: a finished run to an object store, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evolvent.cli.parsing import Parser, whole
from evolvent.cli.progress import minutes
from evolvent.errors import ConfigError, Problem
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.store.objects_push import Moved

__all__ = ["run_pull", "run_push"]

_ADDRESS = "s3://BUCKET/PATH, gs://BUCKET/PATH, hdfs://HOST:PORT/PATH or file:///PATH"
_PAUSE_S, _QUIET_S = 0.2, 60.0  # between two pictures on a terminal, between two lines elsewhere
_WORKERS = 8


def run_push(words: Sequence[str], console: Console) -> int:
    """Copy a run or a store to an address; returns the exit code."""
    parser = Parser("evolvent runs push", "Copy a run that nobody writes to an object store. Again: it goes on.")
    parser.add("run", type=Path, help="the folder of a run or a store")
    parser.add("address", help=_ADDRESS)
    parser.add("--replace", action="store_true", help="take the place of another copy that is there")
    parser.add("--check", action="store_true", help="read back what is there; send again what is damaged")
    parser.add("--workers", type=whole, default=_WORKERS, help=f"transfers at once ({_WORKERS})")
    found = parser.read(words)
    _some(found.workers)
    from evolvent.store.objects_place import place_of
    from evolvent.store.objects_push import publish

    place = place_of(found.address)
    with _shown(console) as shown:
        done = publish(
            found.run, place, replace=found.replace, check=found.check, workers=found.workers, progress=shown.note
        )
    files = len(done.manifest.files)
    console.print(
        plain(
            f"{files} files, {_size(done.manifest.size)} at {place.address}; "
            f"sent {done.objects} objects, {_size(done.bytes)}"
        ),
        soft_wrap=True,
    )
    return 0


def run_pull(words: Sequence[str], console: Console) -> int:
    """Bring a copy from an address to a folder; returns the exit code."""
    parser = Parser("evolvent runs pull", "Bring a copy that was pushed to a new folder, checked. Again: it goes on.")
    parser.add("address", help=_ADDRESS)
    parser.add("folder", type=Path, help="a folder that does not exist yet")
    parser.add("--workers", type=whole, default=_WORKERS, help=f"transfers at once ({_WORKERS})")
    found = parser.read(words)
    _some(found.workers)
    from evolvent.store.objects_place import place_of
    from evolvent.store.objects_pull import copy_at, fetch

    copy = copy_at(place_of(found.address))
    console.print(
        plain(f"{len(copy.manifest.files)} files, {_size(copy.manifest.size)} at {copy.place.address}"), soft_wrap=True
    )
    with _shown(console) as shown:
        done = fetch(copy, found.folder, workers=found.workers, progress=shown.note)
    console.print(plain(f"in {found.folder}; fetched {_size(done.bytes)}"), soft_wrap=True)
    return 0


def _some(workers: int) -> None:
    if not 1 <= workers <= 64:
        raise ConfigError([Problem("--workers", f"got {workers}", "expected 1 to 64")])


def _size(count: float) -> str:
    """A number of bytes with its unit: 812 B, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class _Shown:
    """One living line on a terminal; elsewhere a line a minute."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._phase, self._began, self._last = "", 0.0, 0.0

    def note(self, moved: Moved) -> None:
        """Show how far a transfer is, if it is time to."""
        now = time.monotonic()
        if moved.phase != self._phase:
            self._phase, self._began, self._last = moved.phase, now, now
        if now - self._last < (_QUIET_S if self._live is None else _PAUSE_S):
            return
        self._last = now
        rate = moved.bytes / max(now - self._began, 1e-9)
        parts = [
            f"{moved.phase} {_size(moved.bytes)} of {_size(moved.of_bytes)}",
            f"{moved.files} of {moved.of_files} files",
            f"{_size(rate)}/s",
        ]
        if rate:
            parts.append(f"about {minutes((moved.of_bytes - moved.bytes) / rate)} left")
        if self._live is None:
            self._console.print(", ".join(parts), soft_wrap=True)
        else:
            self._live.update(Text(", ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True)


@contextmanager
def _shown(console: Console) -> Iterator[_Shown]:
    if not console.is_terminal:
        yield _Shown(console, None)
        return
    with Live(Text(), console=console, auto_refresh=False, transient=True) as live:
        yield _Shown(console, live)

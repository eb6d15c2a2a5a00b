"""`evolvent runs push | pull`: transfers of a finished run to an object store, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evolvent.cli.parsing import Parser, parse_count
from evolvent.cli.progress import format_duration
from evolvent.errors import ConfigError, Problem
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.store.objects_push import TransferProgress

__all__ = ["run_pull", "run_push"]

_ADDRESS_HELP = "s3://BUCKET/PATH, gs://BUCKET/PATH, hdfs://HOST:PORT/PATH or file:///PATH"
_REDRAW_INTERVAL_S, _LINE_INTERVAL_S = 0.2, 60.0  # between two pictures on a terminal, between two lines elsewhere
_DEFAULT_WORKERS = 8


def run_push(argv: Sequence[str], console: Console) -> int:
    """Copies a run or a store to an address; returns the exit code."""
    parser = Parser("evolvent runs push", "Copy a run that nobody writes to an object store. Again: it goes on.")
    parser.add("run", type=Path, help="the folder of a run or a store")
    parser.add("address", help=_ADDRESS_HELP)
    parser.add("--replace", action="store_true", help="take the place of another copy that is there")
    parser.add("--check", action="store_true", help="read back what is there; send again what is damaged")
    parser.add("--workers", type=parse_count, default=_DEFAULT_WORKERS, help=f"transfers at once ({_DEFAULT_WORKERS})")
    args = parser.parse_argv(argv)
    _check_workers(args.workers)
    from evolvent.store.objects_place import parse_storage_url
    from evolvent.store.objects_push import push_copy

    storage_url = parse_storage_url(args.address)
    with _display_transfer(console) as transfer_display:
        result = push_copy(
            args.run,
            storage_url,
            replace=args.replace,
            check=args.check,
            workers=args.workers,
            progress=transfer_display.update,
        )
    files = len(result.manifest.files)
    console.print(
        show_hidden(
            f"{files} files, {_format_bytes(result.manifest.size)} at {storage_url.address}; "
            f"sent {result.objects} objects, {_format_bytes(result.bytes)}"
        ),
        soft_wrap=True,
    )
    return 0


def run_pull(argv: Sequence[str], console: Console) -> int:
    """Fetches a copy from an address to a folder; returns the exit code."""
    parser = Parser("evolvent runs pull", "Bring a copy that was pushed to a new folder, checked. Again: it goes on.")
    parser.add("address", help=_ADDRESS_HELP)
    parser.add("folder", type=Path, help="a folder that does not exist yet")
    parser.add("--workers", type=parse_count, default=_DEFAULT_WORKERS, help=f"transfers at once ({_DEFAULT_WORKERS})")
    args = parser.parse_argv(argv)
    _check_workers(args.workers)
    from evolvent.store.objects_place import parse_storage_url
    from evolvent.store.objects_pull import fetch_copy, open_copy

    copy = open_copy(parse_storage_url(args.address))
    console.print(
        show_hidden(f"{len(copy.manifest.files)} files, {_format_bytes(copy.manifest.size)} at {copy.url.address}"),
        soft_wrap=True,
    )
    with _display_transfer(console) as transfer_display:
        result = fetch_copy(copy, args.folder, workers=args.workers, progress=transfer_display.update)
    console.print(show_hidden(f"in {args.folder}; fetched {_format_bytes(result.bytes)}"), soft_wrap=True)
    return 0


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= 64:
        raise ConfigError([Problem("--workers", f"got {workers}", "expected 1 to 64")])


def _format_bytes(count: float) -> str:
    """Formats a number of bytes with its unit: 812 B, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class _TransferDisplay:
    """A progress display: one updating line on a terminal, elsewhere a line a minute."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._phase, self._began, self._last = "", 0.0, 0.0

    def update(self, transfer: TransferProgress) -> None:
        """Shows the progress of a transfer when the next redraw is due."""
        now_s = time.monotonic()
        if transfer.phase != self._phase:
            self._phase, self._began, self._last = transfer.phase, now_s, now_s
        if now_s - self._last < (_LINE_INTERVAL_S if self._live is None else _REDRAW_INTERVAL_S):
            return
        self._last = now_s
        rate = transfer.bytes / max(now_s - self._began, 1e-9)
        parts = [
            f"{transfer.phase} {_format_bytes(transfer.bytes)} of {_format_bytes(transfer.of_bytes)}",
            f"{transfer.files} of {transfer.of_files} files",
            f"{_format_bytes(rate)}/s",
        ]
        if rate:
            parts.append(f"about {format_duration((transfer.of_bytes - transfer.bytes) / rate)} left")
        if self._live is None:
            self._console.print(", ".join(parts), soft_wrap=True)
        else:
            self._live.update(Text(", ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True)


@contextmanager
def _display_transfer(console: Console) -> Iterator[_TransferDisplay]:
    if not console.is_terminal:
        yield _TransferDisplay(console, None)
        return
    with Live(Text(), console=console, auto_refresh=False, transient=True) as live:
        yield _TransferDisplay(console, live)

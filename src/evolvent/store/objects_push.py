"""Publishing a finished folder, a run or a store, at a place beyond the disk.

What a file holds decides the name of its object, so an upload that was interrupted is gone on with by listing what is
there, equal files are sent once, and nobody overwrites what somebody else reads. The order makes every moment safe:
objects; a listing that shows each of them in its full size; then the manifest, which makes them a copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from evolvent.errors import (
    ConfigError,
    HashMismatch,
    Incomplete,
    Locked,
    Problem,
    StoreUnavailable,
    UnknownSchema,
    UnsafePath,
)
from evolvent.files import TEMPORARY, disk_errors
from evolvent.store.lock import WriterLock
from evolvent.store.objects import CHUNK, Objects, Patience
from evolvent.store.objects_manifest import MANIFEST, OBJECTS, Entry, Manifest, check_names, read_manifest
from evolvent.store.objects_place import Place

__all__ = ["Meter", "Moved", "Pushed", "publish"]

_MOMENTARY = {"gate.lock"}  # held for moments by readers of snapshots, who write nothing that is sent
_Seen = Mapping[str, tuple[int, int]]  # name -> bytes and time of the last change, in ns


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a transfer is.

    Args:
        phase: "read" (what is on disk already, for its digest), "sent" or "fetched".
        bytes, of_bytes: moved, and to be moved in this phase.
        files, of_files: the same in whole files, equal ones counted once.
    """

    phase: str
    bytes: int
    of_bytes: int
    files: int
    of_files: int


class Meter:
    """Adds up what several threads move; tells it to a callback, one call at a time."""

    def __init__(self, phase: str, of: Mapping[str, int], progress: Callable[[Moved], None] | None) -> None:
        self._phase, self._of, self._progress = phase, of, progress
        self._done: dict[str, int] = {}
        self._bytes, self._of_bytes, self._files, self._lock = 0, sum(of.values()), 0, Lock()

    def at(self, key: str, done: int, *, whole: bool = False) -> None:
        """So many bytes of one file have been moved; fewer than before where it was begun again."""
        with self._lock:
            self._bytes += done - self._done.get(key, 0)
            self._done[key] = done
            self._files += whole
            if self._progress is not None:
                self._progress(Moved(self._phase, self._bytes, self._of_bytes, self._files, len(self._of)))


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did.

    Args:
        manifest: of the copy that is there now.
        objects, bytes: that were sent; what was there already was not.
    """

    manifest: Manifest
    objects: int
    bytes: int


def publish(
    folder: Path,
    place: Place,
    *,
    replace: bool = False,
    check: bool = False,
    workers: int = 8,
    patience: Patience | None = None,
    progress: Callable[[Moved], None] | None = None,
) -> Pushed:
    """Make a copy of a folder at a place; doing it again goes on, and sends nothing twice that arrived whole.

    Locks, unfinished files and leases of readers stay behind, empty folders too. While it works nobody can write the
    folder: a run that is resumed meanwhile finds its lock taken. A run that was killed is copied as it is.

    Args:
        replace: let the copy take the place of another one that is there. Objects of the other stay.
        check: read back what is there, and send again what is damaged; else a name and a size are believed.
        workers: threads that send.
    Raises:
        Locked: somebody writes the folder.
        ConfigError: no folder, nothing in it, or another copy at the place.
        UnsafePath: links, devices and names that another system could not hold.
        StoreUnavailable: the folder changed meanwhile; see also `Objects`. There is no new manifest then.
    """
    objects = Objects(place, patience)
    with _held(folder) as seen:
        manifest = _manifest(folder, seen, progress)
        before = _before(objects, replace=replace)
        if before is not None and before != manifest and not replace:
            raise ConfigError(
                [Problem(place.address, "there is a copy of something else", "choose another address, or --replace")]
            )
        names = manifest.objects()
        entries = {digest: manifest.files[names[digest][0]] for digest in names}
        todo = _missing(objects, entries, check=check)
        meter = Meter("sent", {digest: entries[digest].size for digest in todo}, progress)

        def send(digest: str) -> None:
            name, entry = names[digest][0], entries[digest]
            objects.put(entry.name, lambda: _pieces(folder / name, entry, meter))
            meter.at(digest, entry.size, whole=True)

        objects.each(todo, send, workers=workers)
        late = _missing(objects, entries) if todo else []
        if late:
            raise StoreUnavailable(
                f"{place.address}: what was sent is not there", value=late[:3], hint="run the command again: it goes on"
            )
        if _scan(folder)[0] != seen:
            raise _changed(folder)
        if before != manifest:
            objects.put(MANIFEST, lambda: iter([manifest.raw()]))
    return Pushed(manifest, len(todo), sum(entries[digest].size for digest in todo))


def _before(objects: Objects, *, replace: bool) -> Manifest | None:
    try:
        return read_manifest(objects)
    except (Incomplete, UnknownSchema, UnsafePath):
        if not replace:
            raise
        return None


def _missing(objects: Objects, entries: Mapping[str, Entry], *, check: bool = False) -> list[str]:
    """The digests without an object of their size; with `check` also without one that holds what its name says."""
    there = objects.sizes(OBJECTS)
    return [
        digest
        for digest, entry in entries.items()
        if there.get(digest) != entry.size or (check and not _sound(objects, entry))
    ]


def _sound(objects: Objects, entry: Entry) -> bool:
    digest = hashlib.sha256()
    try:
        for piece in objects.pieces(entry.name, entry.size):
            digest.update(piece)
    except HashMismatch:
        return False
    return digest.hexdigest() == entry.sha256


# ---------------------------------------------------------------------- the folder


@contextmanager
def _held(folder: Path) -> Iterator[_Seen]:
    """What is in a folder that nobody writes while the block runs."""
    if not folder.is_dir():
        raise ConfigError([Problem("folder", f"{folder} is no folder", "name a run or a store")])
    with ExitStack() as stack:
        for lock in _scan(folder)[1]:
            if lock.name not in _MOMENTARY:
                stack.callback(_keep_out(lock))
        seen, _ = _scan(folder)
        if not seen:
            raise ConfigError([Problem("folder", f"{folder} holds no files", "name a run or a store")])
        check_names(seen)
        yield seen


def _keep_out(path: Path) -> Callable[[], None]:
    """Hold a lock, so that its folder has no writer; returns what gives it back. One that cannot be written is read."""
    if os.access(path, os.W_OK):
        return WriterLock(path).release
    holder = _holder(path) or {}
    with disk_errors(path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        free = holder.get("host") in (None, "", socket.gethostname())
    except BlockingIOError:
        free = False
    if not free:
        os.close(handle)
        raise Locked(f"{path.parent} has a writer", pid=holder.get("pid", 0), host=str(holder.get("host")))
    return partial(os.close, handle)


def _holder(path: Path) -> dict[str, Any] | None:
    """What a lock says of its holder, {} where it is empty; None for a file that is no lock."""
    with disk_errors(path):
        raw = path.read_bytes()
    try:
        row = json.loads(raw or b"{}")
    except ValueError:
        return None
    return row if isinstance(row, dict) and (not row or type(row.get("pid")) is int) else None


def _scan(folder: Path) -> tuple[dict[str, tuple[int, int]], list[Path]]:
    """The files to send, by name, and the locks.

    Raises:
        UnsafePath: naming links and what is neither a file nor a folder.
    """
    seen: dict[str, tuple[int, int]] = {}
    locks: list[Path] = []
    odd: list[str] = []

    def failed(error: OSError) -> None:
        raise error

    with disk_errors(folder):
        for place, folders, files in os.walk(folder, onerror=failed):
            here = Path(place)
            folders[:] = sorted(name for name in folders if not _stays(here / name))
            for path in (here / name for name in [*folders, *sorted(files)] if not _stays(here / name)):
                name, state = path.relative_to(folder).as_posix(), path.lstat()
                if stat.S_ISREG(state.st_mode):
                    if path.name.endswith(".lock") and _holder(path) is not None:
                        locks.append(path)
                    else:
                        seen[name] = (state.st_size, state.st_mtime_ns)
                elif not stat.S_ISDIR(state.st_mode):
                    odd.append(name)
    if odd:
        raise UnsafePath(
            f"{folder} holds links or devices, which are not followed",
            value=odd[:5],
            hint="put files in their place, or take them away",
        )
    return seen, locks


def _stays(path: Path) -> bool:
    """Whether a file or folder is nobody else's: unfinished, or a lease of a process here."""
    return path.name.endswith(TEMPORARY) or (path.name == "leases" and path.parent.name == "snapshots")


def _changed(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{path} changed while it was read", hint="push it when nothing writes there any more")


def _manifest(folder: Path, seen: _Seen, progress: Callable[[Moved], None] | None) -> Manifest:
    meter = Meter("read", {name: size for name, (size, _) in seen.items()}, progress)
    files = {}
    for name in sorted(seen):
        digest, size = hashlib.sha256(), 0
        with disk_errors(folder / name), _opened(folder / name) as file:
            while piece := file.read(CHUNK):
                digest.update(piece)
                size += len(piece)
                meter.at(name, size)
        meter.at(name, size, whole=True)
        files[name] = Entry(size, digest.hexdigest())
    return Manifest(files)


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _pieces(path: Path, entry: Entry, meter: Meter) -> Iterator[bytes]:
    """A file's bytes. The last ones are handed out only if the digest of all is right.

    So an object has its full size only if it holds what its name says: pyarrow finishes uploads that an error ends.
    """
    digest, done, held = hashlib.sha256(), 0, b""
    with disk_errors(path), _opened(path) as file:
        while piece := file.read(CHUNK):
            if held:
                yield held
                done += len(held)
                meter.at(entry.sha256, done)
            digest.update(piece)
            held = piece
    if digest.hexdigest() != entry.sha256:
        raise _changed(path)
    if held:
        yield held

"""Publishes a finished folder, a run or a store, at a storage location beyond the disk.

The content of a file decides the name of its object, so an interrupted upload continues by listing the objects that
exist, equal files are sent once, and no writer overwrites a file that another process reads. The order makes every
moment safe: objects; a listing that shows each of them in its full size; then the manifest, which completes the copy.
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
from evolvent.files import TEMPORARY_SUFFIX, disk_errors
from evolvent.store.lock import WriterLock
from evolvent.store.objects import CHUNK_BYTES, ObjectStore, RetryPolicy
from evolvent.store.objects_manifest import (
    MANIFEST_NAME,
    OBJECTS_FOLDER,
    CopyManifest,
    ManifestEntry,
    check_names,
    read_manifest,
)
from evolvent.store.objects_place import StorageURL

__all__ = ["ProgressMeter", "PushResult", "TransferProgress", "push_copy"]

_BRIEF_LOCKS = {"gate.lock"}  # held for moments by readers of snapshots, who write nothing that is sent
_FileStates = Mapping[str, tuple[int, int]]  # name -> bytes and time of the last change, in ns


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """The progress of a transfer.

    Args:
        phase: "read" (files on disk, for their digests), "sent" or "fetched".
        bytes: number of bytes moved in this phase.
        of_bytes: number of bytes to move in this phase.
        files: number of whole files moved, equal ones counted once.
        of_files: number of files to move.
    """

    phase: str
    bytes: int
    of_bytes: int
    files: int
    of_files: int


class ProgressMeter:
    """Adds up the bytes that several threads move, and reports them to a callback, one call at a time."""

    def __init__(
        self, phase: str, sizes: Mapping[str, int], progress: Callable[[TransferProgress], None] | None
    ) -> None:
        self._phase, self._of, self._progress = phase, sizes, progress
        self._done: dict[str, int] = {}
        self._bytes, self._of_bytes, self._files, self._lock = 0, sum(sizes.values()), 0, Lock()

    def update(self, key: str, num_bytes: int, *, is_complete: bool = False) -> None:
        """Records the bytes of one file that have been moved; fewer than before if the file was restarted."""
        with self._lock:
            self._bytes += num_bytes - self._done.get(key, 0)
            self._done[key] = num_bytes
            self._files += is_complete
            if self._progress is not None:
                self._progress(TransferProgress(self._phase, self._bytes, self._of_bytes, self._files, len(self._of)))


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of a push.

    Args:
        manifest: manifest of the copy at the storage location.
        objects: number of objects sent; objects that were there already are not counted.
        bytes: number of bytes sent.
    """

    manifest: CopyManifest
    objects: int
    bytes: int


def push_copy(
    folder: Path,
    url: StorageURL,
    *,
    replace: bool = False,
    check: bool = False,
    workers: int = 8,
    retry_policy: RetryPolicy | None = None,
    progress: Callable[[TransferProgress], None] | None = None,
) -> PushResult:
    """Copies a folder to a storage location; repeated, it continues and sends no complete object twice.

    Locks, unfinished files and leases of readers stay behind, empty folders too. Meanwhile no process can write the
    folder: a run that is resumed finds its lock taken. A run that was killed is copied as it is.

    Args:
        replace: replace another copy that is there. Objects of the other copy stay.
        check: read back the objects that are there, and send damaged ones again; else name and size are trusted.
        workers: number of threads that send.
    Raises:
        Locked: another process writes the folder.
        ConfigError: no folder, nothing in it, or another copy at the location.
        UnsafePath: links, devices and names that another system could not hold.
        StoreUnavailable: the folder changed meanwhile; see also `ObjectStore`. There is no new manifest then.
    """
    objects = ObjectStore(url, retry_policy)
    with _lock_folder(folder) as states:
        manifest = _build_manifest(folder, states, progress)
        old_manifest = _read_old_manifest(objects, replace=replace)
        if old_manifest is not None and old_manifest != manifest and not replace:
            raise ConfigError(
                [
                    Problem(
                        url.address,
                        "already holds a copy of another folder",
                        "choose another address, or pass --replace",
                    )
                ]
            )
        names = manifest.names_by_digest()
        entries = {digest: manifest.files[names[digest][0]] for digest in names}
        todo = _find_missing(objects, entries, check=check)
        meter = ProgressMeter("sent", {digest: entries[digest].size for digest in todo}, progress)

        def send(digest: str) -> None:
            name, entry = names[digest][0], entries[digest]
            objects.write_object(entry.object_name, lambda: _read_chunks(folder / name, entry, meter))
            meter.update(digest, entry.size, is_complete=True)

        objects.run_parallel(todo, send, workers=workers)
        missing = _find_missing(objects, entries) if todo else []
        if missing:
            raise StoreUnavailable(
                f"{url.address}: uploaded objects are missing",
                value=missing[:3],
                hint="run the command again; it resumes",
            )
        if _scan_folder(folder)[0] != states:
            raise _change_error(folder)
        if old_manifest != manifest:
            objects.write_object(MANIFEST_NAME, lambda: iter([manifest.encode()]))
    return PushResult(manifest, len(todo), sum(entries[digest].size for digest in todo))


def _read_old_manifest(objects: ObjectStore, *, replace: bool) -> CopyManifest | None:
    try:
        return read_manifest(objects)
    except (Incomplete, UnknownSchema, UnsafePath):
        if not replace:
            raise
        return None


def _find_missing(objects: ObjectStore, entries: Mapping[str, ManifestEntry], *, check: bool = False) -> list[str]:
    """Returns the digests without an object of their size; with `check` also those whose object has another digest."""
    sizes = objects.list_sizes(OBJECTS_FOLDER)
    return [
        digest
        for digest, entry in entries.items()
        if sizes.get(digest) != entry.size or (check and not _is_intact(objects, entry))
    ]


def _is_intact(objects: ObjectStore, entry: ManifestEntry) -> bool:
    digest = hashlib.sha256()
    try:
        for chunk in objects.read_chunks(entry.object_name, entry.size):
            digest.update(chunk)
    except HashMismatch:
        return False
    return digest.hexdigest() == entry.sha256


# ---------------------------------------------------------------------- the folder


@contextmanager
def _lock_folder(folder: Path) -> Iterator[_FileStates]:
    """Yields the states of the files in a folder that no process writes while the block runs."""
    if not folder.is_dir():
        raise ConfigError([Problem("folder", f"{folder} is not a folder", "pass a run or a store")])
    with ExitStack() as stack:
        for lock in _scan_folder(folder)[1]:
            if lock.name not in _BRIEF_LOCKS:
                stack.callback(_acquire_lock(lock))
        states, _ = _scan_folder(folder)
        if not states:
            raise ConfigError([Problem("folder", f"{folder} does not hold files", "pass a run or a store")])
        check_names(states)
        yield states


def _acquire_lock(path: Path) -> Callable[[], None]:
    """Locks a folder against writers; returns the function that releases the lock. A read-only lock file is locked
    shared.
    """
    if os.access(path, os.W_OK):
        return WriterLock(path).release
    holder = _read_holder(path) or {}
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


def _read_holder(path: Path) -> dict[str, Any] | None:
    """Reads the holder of a lock, {} where it is empty; returns None for a file that is not a lock."""
    with disk_errors(path):
        raw = path.read_bytes()
    try:
        row = json.loads(raw or b"{}")
    except ValueError:
        return None
    return row if isinstance(row, dict) and (not row or type(row.get("pid")) is int) else None


def _scan_folder(folder: Path) -> tuple[dict[str, tuple[int, int]], list[Path]]:
    """Returns the files to send, by name, and the locks.

    Raises:
        UnsafePath: names links and other entries that are neither a file nor a folder.
    """
    states: dict[str, tuple[int, int]] = {}
    locks: list[Path] = []
    irregular: list[str] = []

    def failed(error: OSError) -> None:
        raise error

    with disk_errors(folder):
        for folder_name, folders, files in os.walk(folder, onerror=failed):
            parent = Path(folder_name)
            folders[:] = sorted(name for name in folders if not _is_excluded(parent / name))
            for path in (parent / name for name in [*folders, *sorted(files)] if not _is_excluded(parent / name)):
                name, stat_result = path.relative_to(folder).as_posix(), path.lstat()
                if stat.S_ISREG(stat_result.st_mode):
                    if path.name.endswith(".lock") and _read_holder(path) is not None:
                        locks.append(path)
                    else:
                        states[name] = (stat_result.st_size, stat_result.st_mtime_ns)
                elif not stat.S_ISDIR(stat_result.st_mode):
                    irregular.append(name)
    if irregular:
        raise UnsafePath(
            f"{folder} holds links or devices, which cannot be pushed",
            value=irregular[:5],
            hint="replace them with files, or remove them",
        )
    return states, locks


def _is_excluded(path: Path) -> bool:
    """Returns whether a file or folder stays behind: unfinished, or a lease of a process here."""
    return path.name.endswith(TEMPORARY_SUFFIX) or (path.name == "leases" and path.parent.name == "snapshots")


def _change_error(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{path} changed while it was read", hint="push it when no process writes to it")


def _build_manifest(
    folder: Path, states: _FileStates, progress: Callable[[TransferProgress], None] | None
) -> CopyManifest:
    meter = ProgressMeter("read", {name: size for name, (size, _) in states.items()}, progress)
    files = {}
    for name in sorted(states):
        digest, size = hashlib.sha256(), 0
        with disk_errors(folder / name), _open_file(folder / name) as file:
            while piece := file.read(CHUNK_BYTES):
                digest.update(piece)
                size += len(piece)
                meter.update(name, size)
        meter.update(name, size, is_complete=True)
        files[name] = ManifestEntry(size, digest.hexdigest())
    return CopyManifest(files)


def _open_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _read_chunks(path: Path, entry: ManifestEntry, meter: ProgressMeter) -> Iterator[bytes]:
    """Yields a file's bytes. The last chunk is yielded only if the digest of all is right.

    So an object has its full size only if its content matches its name: pyarrow completes uploads that an error ends.
    """
    digest, num_bytes, last_chunk = hashlib.sha256(), 0, b""
    with disk_errors(path), _open_file(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            if last_chunk:
                yield last_chunk
                num_bytes += len(last_chunk)
                meter.update(entry.sha256, num_bytes)
            digest.update(chunk)
            last_chunk = chunk
    if digest.hexdigest() != entry.sha256:
        raise _change_error(path)
    if last_chunk:
        yield last_chunk

"""Reads published copies: a whole copy into a folder, a store as it is read, single files.

    with open_published_store(parse_storage_url("s3://bucket/runs/evolve-1")) as store:
        rates = [trajectory.success for trajectory in store.trajectories(filters={"world": "lookup"})]

    with open_copy(url).open("trajectories/parquet/steps/part-0123.parquet") as file:
        actions = pyarrow.parquet.read_table(file, columns=["action"])

A folder appears when every file of it is there and has the digest in the manifest. Files fetched before an
interruption are kept, checked again, and not fetched twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, HashMismatch, Incomplete, LimitExceeded, Problem, UnsafePath
from evolvent.files import TEMPORARY_SUFFIX, atomic_writer, disk_errors, ensure_space, safe_join, sync_folder
from evolvent.store.lock import WriterLock
from evolvent.store.objects import CHUNK_BYTES, ObjectStore, RetryPolicy
from evolvent.store.objects_manifest import MANIFEST_NAME, CopyManifest, ManifestEntry, read_manifest
from evolvent.store.objects_place import StorageURL
from evolvent.store.objects_push import ProgressMeter, TransferProgress
from evolvent.store.store import Store

if TYPE_CHECKING:
    from pyarrow import NativeFile

__all__ = ["PublishedCopy", "PullResult", "fetch_copy", "open_copy", "open_published_store"]

_STORE_FILE = re.compile(r"(manifest\.jsonl|log/seg-\d+\.jsonl|parquet/\w+/[^/]+\.parquet)")
_MAX_FILE_BYTES = 1 << 30  # bytes of a file that is read into memory


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    """A copy at a storage location: its manifest has been read, its files have not."""

    url: StorageURL
    manifest: CopyManifest
    retry_policy: RetryPolicy | None = None

    def _entry(self, name: str) -> ManifestEntry:
        if name not in self.manifest.files:
            raise ConfigError([Problem("name", f"{self.url.address} has no file {name!r}", "see manifest.files")])
        return self.manifest.files[name]

    def open(self, name: str) -> NativeFile:
        """Opens a file as a `pyarrow.NativeFile`: only the parts that are read are fetched, and the digest is not
        checked.

        Raises:
            ConfigError: no such file. Otherwise the errors of `ObjectStore`.
        """
        path = self.url.child_path(self._entry(name).object_name)
        return ObjectStore(self.url, self.retry_policy).retry(
            f"open {name}", lambda: self.url.filesystem.open_input_file(path)
        )

    def read_file(self, name: str) -> bytes:
        """Reads all bytes of a file and checks their digest.

        Raises:
            ConfigError: no such file. LimitExceeded: more than 1 GiB. HashMismatch: it is damaged.
        """
        entry = self._entry(name)
        if entry.size > _MAX_FILE_BYTES:
            raise LimitExceeded(
                f"{name} is too large to read at once",
                value=f"{entry.size} bytes",
                hint="open it as a file, or pull the copy",
            )
        data = b"".join(ObjectStore(self.url, self.retry_policy).read_chunks(entry.object_name, entry.size))
        _check_digest(hashlib.sha256(data).hexdigest(), entry, f"{self.url.address}: {name}")
        return data


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull: the copy's manifest, and the number of bytes that were fetched."""

    manifest: CopyManifest
    bytes: int


def open_copy(url: StorageURL, *, retry_policy: RetryPolicy | None = None) -> PublishedCopy:
    """Opens the copy at a storage location.

    Raises:
        Incomplete: there is none, or a push was interrupted. UnsafePath: its names are not safe.
        AccessDenied, StoreUnavailable: see `ObjectStore`.
    """
    manifest = read_manifest(ObjectStore(url, retry_policy))
    if manifest is None:
        raise Incomplete(
            f"{url.address} does not hold a copy: {MANIFEST_NAME} is missing",
            hint="check the address, and repeat an interrupted push",
        )
    return PublishedCopy(url, manifest, retry_policy)


def fetch_copy(
    copy: PublishedCopy, folder: Path, *, workers: int = 8, progress: Callable[[TransferProgress], None] | None = None
) -> PullResult:
    """Fetches a copy into a folder of this machine; repeated after an interruption, it continues.

    Files are gathered beside the folder, under a name that ends in `.part~`, and are renamed together at the end.

    Args:
        folder: target; must not exist.
        workers: number of threads that fetch.
    Raises:
        ConfigError: the folder exists. Locked: another process fetches this copy there.
        HashMismatch: an object differs from the manifest. UnsafePath: a name would leave the folder.
        NoSpace, StoreUnavailable, AccessDenied: the files fetched so far are kept.
    """
    if os.path.lexists(folder):
        raise ConfigError([Problem("folder", f"{folder} already exists", "choose a folder that does not exist")])
    parent = folder.absolute().parent
    staging = parent / f".{folder.name}.{copy.manifest.digest[:12]}{TEMPORARY_SUFFIX}"
    with disk_errors(staging):
        staging.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(staging / "lock")
    try:
        num_bytes = _gather_files(copy, copy.manifest.files, staging / "files", workers=workers, progress=progress)
        if os.path.lexists(folder):
            raise ConfigError(
                [Problem("folder", f"{folder} was created meanwhile", f"the fetched files are in {staging}")]
            )
        with disk_errors(folder):
            (staging / "files").rename(folder)
            sync_folder(parent)
            shutil.rmtree(staging)
    finally:
        lock.release()
    return PullResult(copy.manifest, num_bytes)


@contextmanager
def open_published_store(
    url: StorageURL,
    *,
    cache: Path | None = None,
    workers: int = 8,
    retry_policy: RetryPolicy | None = None,
    progress: Callable[[TransferProgress], None] | None = None,
) -> Iterator[Store]:
    """Opens the store of a published run, or a published store, for reading; no other files of the copy are fetched.

    Args:
        cache: folder in which fetched files stay, by copy; None: they are removed after the block.
    Raises:
        Incomplete: the copy holds no store. Otherwise the errors of `open_copy` and `fetch_copy`.
    """
    copy = open_copy(url, retry_policy=retry_policy)
    files = _find_store_files(copy.manifest.files)
    if not files:
        raise Incomplete(f"{url.address} does not hold a store", value=f"{len(copy.manifest.files)} files")
    with tempfile.TemporaryDirectory() if cache is None else nullcontext(cache) as cache_folder:
        target = Path(cache_folder) / copy.manifest.digest
        with disk_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(target / "lock")
        try:
            _gather_files(copy, files, target / "files", workers=workers, progress=progress)
        finally:
            lock.release()
        yield Store.open(target / "files")


def _find_store_files(files: Mapping[str, ManifestEntry]) -> dict[str, ManifestEntry]:
    """Returns the files of the store, by their names in it: from the run's folder `trajectories`, else from the
    folder.
    """
    for prefix in ("trajectories/", ""):
        relative_files = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
        if store_files := {name: entry for name, entry in relative_files.items() if _STORE_FILE.fullmatch(name)}:
            return store_files
    return {}


# ---------------------------------------------------------------------- gathering


def _gather_files(
    copy: PublishedCopy,
    files: Mapping[str, ManifestEntry],
    target: Path,
    *,
    workers: int,
    progress: Callable[[TransferProgress], None] | None,
) -> int:
    """Fetches files into a folder, each checked; returns the number of bytes that were not there before."""
    with disk_errors(target):
        target.mkdir(exist_ok=True)
        for path in target.rglob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()
    paths = {name: safe_join(target, name) for name in files}
    names = CopyManifest(files).names_by_digest()
    present = {
        digest: path
        for digest, file_names in names.items()
        for path in (paths[name] for name in file_names)
        if _is_present(path, files[file_names[0]])
    }
    ensure_space(target, sum(entry.size for name, entry in files.items() if present.get(entry.sha256) != paths[name]))
    todo = [digest for digest in names if digest not in present]
    meter = ProgressMeter("fetched", {digest: files[names[digest][0]].size for digest in todo}, progress)
    objects = ObjectStore(copy.url, copy.retry_policy)

    def fetch_object(digest: str) -> None:
        name, entry = names[digest][0], files[names[digest][0]]
        label = f"{copy.url.address}: {name}"
        _write_checked(
            paths[name], entry, _report_chunks(objects.read_chunks(entry.object_name, entry.size), entry, meter), label
        )
        present[digest] = paths[name]
        meter.update(digest, entry.size, is_complete=True)

    objects.run_parallel(todo, fetch_object, workers=workers)
    for digest, file_names in names.items():
        for name in file_names:
            if paths[name] != present[digest] and not _is_present(paths[name], files[name]):
                with disk_errors(present[digest]), present[digest].open("rb") as file:
                    _write_checked(
                        paths[name], files[name], iter(partial(file.read, CHUNK_BYTES), b""), str(paths[name])
                    )
    return sum(files[names[digest][0]].size for digest in todo)


def _report_chunks(chunks: Iterable[bytes], entry: ManifestEntry, meter: ProgressMeter) -> Iterator[bytes]:
    num_bytes = 0
    for chunk in chunks:
        yield chunk
        num_bytes += len(chunk)
        meter.update(entry.sha256, num_bytes)


def _is_present(path: Path, entry: ManifestEntry) -> bool:
    """Returns whether a file with these bytes exists."""
    with disk_errors(path):
        if path.is_symlink():
            raise UnsafePath(f"{path} is a link, which evolvent does not create", hint="remove it")
        if not path.is_file() or path.stat().st_size != entry.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _write_checked(path: Path, entry: ManifestEntry, chunks: Iterable[bytes], label: str) -> None:
    digest = hashlib.sha256()
    with atomic_writer(path) as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        _check_digest(digest.hexdigest(), entry, label)


def _check_digest(digest: str, entry: ManifestEntry, label: str) -> None:
    if digest != entry.sha256:
        raise HashMismatch(
            f"{label} is damaged",
            value=f"SHA-256 {digest[:16]}...",
            expected=f"{entry.sha256[:16]}...",
            hint="push it again with --check",
        )

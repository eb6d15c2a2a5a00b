"""Reading copies that were published: all of one to a folder, a store as it is read, single files.

    with stored(place_of("s3://bucket/runs/evolve-1")) as store:
        rates = [trajectory.success for trajectory in store.trajectories(where={"world": "lookup"})]

    with copy_at(place).open("trajectories/parquet/steps/part-0123.parquet") as file:
        actions = pyarrow.parquet.read_table(file, columns=["action"])

A folder appears when every file of it is there and has the digest that the manifest says. What came before an
interruption is kept, checked again, and not fetched twice.
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
from typing import Any

from evolvent.errors import ConfigError, HashMismatch, Incomplete, LimitExceeded, Problem, UnsafePath
from evolvent.files import TEMPORARY, atomic_writer, disk_errors, ensure_space, safe_join, sync_folder
from evolvent.store.lock import WriterLock
from evolvent.store.objects import CHUNK, Objects, Patience
from evolvent.store.objects_manifest import MANIFEST, Entry, Manifest, read_manifest
from evolvent.store.objects_place import Place
from evolvent.store.objects_push import Meter, Moved
from evolvent.store.store import Store

__all__ = ["Copy", "Pulled", "copy_at", "fetch", "stored"]

_STORE = re.compile(r"(manifest\.jsonl|log/seg-\d+\.jsonl|parquet/\w+/[^/]+\.parquet)")
_MOST = 1 << 30  # bytes of a file that is read into memory


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that is at a place: its manifest has been read, its files have not."""

    place: Place
    manifest: Manifest
    patience: Patience | None = None

    def _entry(self, name: str) -> Entry:
        if name not in self.manifest.files:
            raise ConfigError([Problem("name", f"{self.place.address} has no file {name!r}", "see manifest.files")])
        return self.manifest.files[name]

    def open(self, name: str) -> Any:
        """A file as a `pyarrow.NativeFile`: only what is read of it is fetched, and its digest is not checked.

        Raises:
            ConfigError: no such file. Otherwise as `Objects`.
        """
        path = self.place.child(self._entry(name).name)
        return Objects(self.place, self.patience).attempt(
            f"open {name}", lambda: self.place.filesystem.open_input_file(path)
        )

    def read(self, name: str) -> bytes:
        """All bytes of a file, their digest checked.

        Raises:
            ConfigError: no such file. LimitExceeded: more than 1 GiB. HashMismatch: it is damaged.
        """
        entry = self._entry(name)
        if entry.size > _MOST:
            raise LimitExceeded(f"{name} is large", value=f"{entry.size} bytes", hint="open it, or fetch the copy")
        data = b"".join(Objects(self.place, self.patience).pieces(entry.name, entry.size))
        _check(hashlib.sha256(data).hexdigest(), entry, f"{self.place.address}: {name}")
        return data


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did: the copy's manifest, and how many bytes of it were fetched, not found."""

    manifest: Manifest
    bytes: int


def copy_at(place: Place, *, patience: Patience | None = None) -> Copy:
    """The copy at a place.

    Raises:
        Incomplete: there is none, or a push has not come to its end. UnsafePath: its names are not safe.
        AccessDenied, StoreUnavailable: see `Objects`.
    """
    manifest = read_manifest(Objects(place, patience))
    if manifest is None:
        raise Incomplete(
            f"{place.address} holds no copy: no {MANIFEST}",
            hint="check the address; a push that was interrupted has to be run again",
        )
    return Copy(place, manifest, patience)


def fetch(copy: Copy, folder: Path, *, workers: int = 8, progress: Callable[[Moved], None] | None = None) -> Pulled:
    """Bring a copy to a folder of this machine; done again after an interruption it goes on.

    Files are gathered beside the folder, under a name that ends in `.part~`, and take its name together at the end.

    Args:
        folder: not there yet.
        workers: threads that fetch.
    Raises:
        ConfigError: the folder exists. Locked: another process fetches this copy there.
        HashMismatch: an object is not what the manifest says. UnsafePath: a name would leave the folder.
        NoSpace, StoreUnavailable, AccessDenied: what has been fetched is kept.
    """
    if os.path.lexists(folder):
        raise ConfigError([Problem("folder", f"{folder} exists", "choose a folder that does not")])
    parent = folder.absolute().parent
    beside = parent / f".{folder.name}.{copy.manifest.digest[:12]}{TEMPORARY}"
    with disk_errors(beside):
        beside.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(beside / "lock")
    try:
        moved = _gather(copy, copy.manifest.files, beside / "files", workers=workers, progress=progress)
        if os.path.lexists(folder):
            raise ConfigError([Problem("folder", f"{folder} exists by now", f"what was fetched is in {beside}")])
        with disk_errors(folder):
            (beside / "files").rename(folder)
            sync_folder(parent)
            shutil.rmtree(beside)
    finally:
        lock.release()
    return Pulled(copy.manifest, moved)


@contextmanager
def stored(
    place: Place,
    *,
    cache: Path | None = None,
    workers: int = 8,
    patience: Patience | None = None,
    progress: Callable[[Moved], None] | None = None,
) -> Iterator[Store]:
    """The store of a published run, or a published store, for reading: nothing else of the copy is fetched.

    Args:
        cache: a folder in which what was fetched stays, by copy; None: it is gone after the block.
    Raises:
        Incomplete: the copy holds no store. Otherwise as `copy_at` and `fetch`.
    """
    copy = copy_at(place, patience=patience)
    files = _store_files(copy.manifest.files)
    if not files:
        raise Incomplete(f"{place.address} holds no store", value=f"{len(copy.manifest.files)} files")
    with tempfile.TemporaryDirectory() if cache is None else nullcontext(cache) as kept:
        into = Path(kept) / copy.manifest.digest
        with disk_errors(into):
            into.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(into / "lock")
        try:
            _gather(copy, files, into / "files", workers=workers, progress=progress)
        finally:
            lock.release()
        yield Store.open(into / "files")


def _store_files(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """The files of the store, by their names in it: those of the run's folder `trajectories`, else of the folder."""
    for prefix in ("trajectories/", ""):
        inside = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
        if found := {name: entry for name, entry in inside.items() if _STORE.fullmatch(name)}:
            return found
    return {}


# ---------------------------------------------------------------------- gathering


def _gather(
    copy: Copy, files: Mapping[str, Entry], into: Path, *, workers: int, progress: Callable[[Moved], None] | None
) -> int:
    """Bring files into a folder, each checked; returns the bytes that were not there before."""
    with disk_errors(into):
        into.mkdir(exist_ok=True)
        for path in into.rglob(f"*{TEMPORARY}"):
            path.unlink()
    at = {name: safe_join(into, name) for name in files}
    names = Manifest(files).objects()
    have = {
        digest: path
        for digest, known in names.items()
        for path in (at[name] for name in known)
        if _holds(path, files[known[0]])
    }
    ensure_space(into, sum(entry.size for name, entry in files.items() if have.get(entry.sha256) != at[name]))
    todo = [digest for digest in names if digest not in have]
    meter = Meter("fetched", {digest: files[names[digest][0]].size for digest in todo}, progress)
    objects = Objects(copy.place, copy.patience)

    def bring(digest: str) -> None:
        first, entry = names[digest][0], files[names[digest][0]]
        where = f"{copy.place.address}: {first}"
        _write(at[first], entry, _told(objects.pieces(entry.name, entry.size), entry, meter), where)
        have[digest] = at[first]
        meter.at(digest, entry.size, whole=True)

    objects.each(todo, bring, workers=workers)
    for digest, known in names.items():
        for name in known:
            if at[name] != have[digest] and not _holds(at[name], files[name]):
                with disk_errors(have[digest]), have[digest].open("rb") as file:
                    _write(at[name], files[name], iter(partial(file.read, CHUNK), b""), str(at[name]))
    return sum(files[names[digest][0]].size for digest in todo)


def _told(pieces: Iterable[bytes], entry: Entry, meter: Meter) -> Iterator[bytes]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        meter.at(entry.sha256, done)


def _holds(path: Path, entry: Entry) -> bool:
    """Whether a file is there with these bytes."""
    with disk_errors(path):
        if path.is_symlink():
            raise UnsafePath(f"{path} is a link, which nothing here makes", hint="take it away")
        if not path.is_file() or path.stat().st_size != entry.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _write(path: Path, entry: Entry, pieces: Iterable[bytes], where: str) -> None:
    digest = hashlib.sha256()
    with atomic_writer(path) as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        _check(digest.hexdigest(), entry, where)


def _check(found: str, entry: Entry, where: str) -> None:
    if found != entry.sha256:
        raise HashMismatch(
            f"{where} is damaged",
            value=f"SHA-256 {found[:16]}...",
            expected=f"{entry.sha256[:16]}...",
            hint="push it again with --check",
        )

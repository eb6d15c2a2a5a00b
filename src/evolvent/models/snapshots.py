"""Snapshots of a policy in training: ordinary model folders, a pointer to the newest, and leases of their readers.

    RUN/snapshots/LATEST.json          the newest snapshot: its step, folder and the digest of its weight files
    RUN/snapshots/step-000123/         a model folder that `load_policy` and transformers read
    RUN/snapshots/leases/              one file per reader, locked while it reads; it names the process and its
        host

A snapshot appears by one rename, the pointer by another, so that a reader never sees half of either, whatever
kills the writer. The writer never waits: a snapshot with readers is removed later. The locks are the kernel's:
locks of a dead process are free at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import CheckpointError, ConfigError, HashMismatch, Incomplete, Locked, StoreUnavailable, boundary
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, safe_join, sync_folder, write_atomic

__all__ = ["Snapshot", "lease", "newest_snapshot", "publish_snapshot", "read_run_state"]

_log = logging.getLogger(__name__)
_FORMAT, _PREFIX = 1, "step-"
_CONFIGS = ("config.json", "adapter_config.json")  # of a model, and of an adapter as peft saves it
_GATE_S, _PAUSE_S = 10.0, 0.01  # how long a reader waits for the gate, which is held for the time of a few renames
_HEADER = 100 * 2**20  # bytes: longer headers are refused by safetensors too


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one step of a training.

    Args:
        step: the optimizer update after which they were taken.
        path: their folder.
        sha256: of the names, sizes and headers of its weight files, and of their index.
        serial: counts the snapshots that were published in this run, from 1.
    """

    step: int
    path: Path
    sha256: str
    serial: int


# ---------------------------------------------------------------------- writing


def publish_snapshot(run: Path, step: int, write: Callable[[Path], None], *, keep: int = 2) -> Path:
    """Writes a snapshot, makes it the newest, and removes older ones without readers; returns its folder.

    Readers never block this function. A step that is published again (by a training that went back to a checkpoint)
    gets its own folder. If writing fails, the previous snapshot stays the newest.

    Args:
        step: 0 or more.
        write: fills an empty folder with a model, as `Policy.save` does.
        keep: how many snapshots stay beside those with readers, the newest first.
    Raises:
        ConfigError: a negative step, or keep below 1. Locked: another process is publishing in this run.
        Incomplete: the written folder is not a model folder. CheckpointError: `write` failed.
        NoSpace, StoreUnavailable: the disk is full, or cannot be written.
    """
    if step < 0 or keep < 1:
        raise ConfigError(
            "snapshot settings out of range", value=f"step {step}, keep {keep}", expected="step >= 0 and keep >= 1"
        )
    folder = run / "snapshots"
    with disk_errors(folder):
        (folder / "leases").mkdir(parents=True, exist_ok=True)
    with _writer_lock(folder):
        _remove_leftovers(folder)
        before = _read_history(folder)
        temporary = folder / f"{_PREFIX}{step:06d}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        try:
            with boundary(CheckpointError, "a snapshot could not be written", step=step), disk_errors(temporary):
                temporary.mkdir()
                write(temporary)
                sha256 = _compute_digest(temporary)
                _sync_tree(temporary)
                path = _find_free_name(folder, step)
                temporary.rename(path)
                sync_folder(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        published = [*before[1], path.name]
        row = {
            "format": _FORMAT,
            "serial": before[0] + 1,
            "step": step,
            "path": path.name,
            "sha256": sha256,
            "published": published[-keep:],
        }
        write_atomic(folder / "LATEST.json", json.dumps(row, indent=1) + "\n")
        _remove_old(folder, published[-keep:])
    return path


@contextmanager
def _writer_lock(folder: Path) -> Iterator[None]:
    """Locks the folder for one writer; a second writer is refused at once."""
    path = folder / "writer.lock"
    handle = _try_lock(path)
    if handle is None:
        holder = _read_json(path)
        pid, host = (int(holder.get("pid", 0)), str(holder.get("host", ""))) if isinstance(holder, dict) else (0, "")
        raise Locked(f"{folder} has a writer", pid=pid, host=host)
    try:
        with disk_errors(path):
            _sign(handle)
        yield
    finally:
        _unlock(handle)


def _find_free_name(folder: Path, step: int) -> Path:
    path, attempt = folder / f"{_PREFIX}{step:06d}", 0
    while path.exists():
        attempt += 1
        path = folder / f"{_PREFIX}{step:06d}.{attempt}"
    return path


def _sync_tree(folder: Path) -> None:
    """Makes every file of a folder survive a loss of power."""
    for path, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(path, name), os.O_RDONLY)  # noqa: PTH118
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(path))


def _read_history(folder: Path) -> tuple[int, list[str]]:
    """Returns how many snapshots were published so far, and the last folders; none for a damaged pointer."""
    try:
        row = _read_pointer(folder)
    except Incomplete as error:
        _log.warning("%s: rewriting it", error)
        row = None
    return (0, []) if row is None else (row["serial"], row["published"])


def _remove_leftovers(folder: Path) -> None:
    """Removes unfinished folders of killed writers. The writer's lock is held, so there is no other writer."""
    with disk_errors(folder):
        for path in list(folder.iterdir()):
            if path.name.endswith(TEMPORARY_SUFFIX):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove_old(folder: Path, kept_names: Sequence[str]) -> None:
    """Removes the snapshots that are neither kept nor read. Snapshots that cannot be removed now are tried again
    next time.
    """
    gate = _try_lock(folder / "gate.lock")
    if gate is None:
        return  # somebody takes a lease at this moment
    removed = []
    try:
        with disk_errors(folder):
            staying = {*kept_names, *_find_leased(folder / "leases")}
            for path in list(folder.iterdir()):
                if (
                    path.name.startswith(_PREFIX)
                    and not path.name.endswith(TEMPORARY_SUFFIX)
                    and path.name not in staying
                ):
                    removed.append(path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")))
    except StoreUnavailable as error:
        _log.warning("older snapshots were not removed: %s", error)
    finally:
        _unlock(gate)
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)


def _find_leased(folder: Path) -> set[str]:
    """Returns the names of snapshots with readers; removes leases of dead processes of this host.

    A lease of another host is respected while its file is there: file systems over a network do not always carry
    locks.
    """
    leased = set()
    for path in folder.glob("*.json"):
        handle = _try_lock(path)
        row = _read_json(path)
        row = row if isinstance(row, dict) else {}
        if handle is None or row.get("host", socket.gethostname()) != socket.gethostname():
            leased.add(str(row.get("snapshot")))
        else:
            path.unlink(missing_ok=True)
        if handle is not None:
            _unlock(handle)
    return leased


# ---------------------------------------------------------------------- reading


def newest_snapshot(run: Path) -> Snapshot | None:
    """Returns the newest snapshot, or None where nothing was published. It may be removed soon: to read it, take a
    lease.

    Raises:
        Incomplete: a pointer that cannot be read. UnsafePath: one that leaves its folder.
    """
    row = _read_pointer(run / "snapshots")
    return None if row is None else _parse_snapshot(run / "snapshots", row)


@contextmanager
def lease(run: Path) -> Iterator[Snapshot]:
    """Yields the newest snapshot, checked; it is not deleted while the block runs. Training does not wait for its
    end.

    Raises:
        Incomplete: nothing was published yet, the pointer cannot be read, or a file is missing.
        HashMismatch: weight files that differ from the published ones.
        StoreUnavailable, NoSpace: the run cannot be written to: a lease is a file in it.
    """
    folder = run / "snapshots"
    if not (folder / "LATEST.json").exists():
        raise Incomplete(f"{run} does not hold a snapshot", hint="wait until the training job publishes one")
    with disk_errors(folder):
        snapshot, path, handle = _take_lease(folder)
    try:
        if _compute_digest(snapshot.path) != snapshot.sha256:
            raise HashMismatch(
                "the snapshot has changed since it was published",
                value=str(snapshot.path),
                expected=f"weight files of SHA-256 {snapshot.sha256[:16]}...",
            )
        yield snapshot
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        _unlock(handle)


def _take_lease(folder: Path) -> tuple[Snapshot, Path, int]:
    """Reads the pointer and writes the lease while the gate is held, so that nothing is removed in between."""
    gate, deadline = _try_lock(folder / "gate.lock"), Deadline(_GATE_S)
    while gate is None:
        if deadline.expired:
            raise StoreUnavailable(
                f"cannot lock a snapshot in {folder}",
                value=f"{_GATE_S:g} s of waiting",
                hint="end the stopped process that holds gate.lock",
            )
        time.sleep(_PAUSE_S)
        gate = _try_lock(folder / "gate.lock")
    try:
        row = _read_pointer(folder)
        if row is None:
            raise Incomplete(f"{folder} does not hold a snapshot pointer", expected="LATEST.json")
        snapshot = _parse_snapshot(folder, row)
        if not snapshot.path.is_dir():
            raise Incomplete("the newest snapshot is missing", value=str(snapshot.path))
        path = folder / "leases" / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        handle = _try_lock(path)
        if handle is None:  # a name of its own that nobody else knows
            raise StoreUnavailable(f"{path} is locked by another process")
        _sign(handle, snapshot=snapshot.path.name)
        return snapshot, path, handle
    finally:
        _unlock(gate)


def read_run_state(run: Path) -> str | None:
    """Returns a run's recorded state: "running", "finished", "interrupted" or "failed"; None where it has none.

    A killed run is still recorded as running: it may be resumed.
    """
    row = _read_json(run / "run.json")
    state = row.get("state") if isinstance(row, dict) else None
    return state if isinstance(state, str) else None


def _read_pointer(folder: Path) -> dict[str, Any] | None:
    """Reads the pointer and checks its types; returns None where there is none.

    Raises:
        Incomplete: it is damaged.
    """
    path = folder / "LATEST.json"
    if not path.exists():
        return None
    row = _read_json(path)
    types = {"serial": int, "step": int, "path": str, "sha256": str, "published": list}
    is_complete = isinstance(row, dict) and all(type(row.get(name)) is kind for name, kind in types.items())
    if not isinstance(row, dict) or not is_complete or not all(isinstance(name, str) for name in row["published"]):
        raise Incomplete(f"{path} is not a snapshot pointer", value=row, expected=f"format {_FORMAT}")
    return row


def _parse_snapshot(folder: Path, row: dict[str, Any]) -> Snapshot:
    path = safe_join(folder, row["path"])
    if path.parent != folder.resolve() or not path.name.startswith(_PREFIX):
        raise Incomplete("the pointer does not name a snapshot", value=row["path"], expected=f"{_PREFIX}000123")
    return Snapshot(row["step"], folder / path.name, row["sha256"], row["serial"])


def _compute_digest(folder: Path) -> str:
    """Computes SHA-256 over the weight files: their names, sizes and headers (tensors, types, shapes, offsets), and
    the index.

    The weights themselves are not read: that would take a training as long as writing them.

    Raises:
        Incomplete: not a model folder, or a weight file that is cut short, or missing though the index names it.
    """
    weights = sorted(folder.rglob("*.safetensors"))
    if not any((folder / name).is_file() for name in _CONFIGS) or not weights:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else "nothing"
        raise Incomplete(f"{folder} is not a model folder", value=names, expected="config.json and *.safetensors")
    digest = hashlib.sha256()
    for path in weights:
        name, size, header = path.relative_to(folder).as_posix(), path.stat().st_size, _read_header(path)
        digest.update(f"{name} {size} {len(header)} ".encode() + header)
    for index in sorted(folder.rglob("*.safetensors.index.json")):
        _check_index(index, {path.name for path in weights if path.parent == index.parent})
        digest.update(index.read_bytes())
    return digest.hexdigest()


def _read_header(path: Path) -> bytes:
    """Reads the header of a safetensors file: 8 bytes of its length, then JSON with the offsets of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length < _HEADER else b""
    try:
        rows = json.loads(header)
        ends = [row["data_offsets"][1] for name, row in rows.items() if name != "__metadata__"]
        expected_size = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise Incomplete(
            f"{path} does not have a safetensors header", value=f"{len(header)} of {length} bytes"
        ) from None
    if path.stat().st_size != expected_size:
        raise Incomplete(f"{path} is truncated", value=f"{path.stat().st_size} bytes", expected=f"{expected_size}")
    return header


def _check_index(index: Path, existing: set[str]) -> None:
    row = _read_json(index)
    weight_map = row.get("weight_map") if isinstance(row, dict) else None
    missing = sorted(set(map(str, weight_map.values())) - existing) if isinstance(weight_map, dict) else [index.name]
    if missing:
        raise Incomplete(f"weight files are missing in {index.parent}", value=missing[:5])


# ---------------------------------------------------------------------- files


def _try_lock(path: Path) -> int | None:
    """Locks a file until the handle is closed or the process dies, and returns the handle; None if it is locked
    elsewhere.
    """
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
    return handle


def _unlock(handle: int) -> None:
    """Releases the lock, also where a forked process has the handle too."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _sign(handle: int, **fields: str) -> None:
    """Writes the lock's holder into a locked file."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), **fields}).encode(), 0)


def _read_json(path: Path) -> Any:
    """Reads the JSON value of a file, or returns None where there is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None

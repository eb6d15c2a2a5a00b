"""How a folder is published: copied from files that may be handed on, whole or not at all, and known again later."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evolvent.errors import Problem, UnsafeFile
from evolvent.files import TEMPORARY, disk_errors, ensure_space, sync_folder

__all__ = ["Before", "before", "copy", "digests", "put", "weights_of", "whole_folder"]

_ENDINGS = (".json", ".safetensors", ".txt", ".model", ".jinja")
_OURS = ("README.md", "LICENSE", "evolvent.json")  # written anew
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Before:
    """What was published in a folder before: the identity of its run, and the names there that were not published."""

    identity: str
    strange: tuple[str, ...]


def before(to: Path, problems: list[Problem]) -> Before | None:
    """What a folder holds already; None where it is free, or where it may not be used, which is added to the problems.

    Raises:
        StoreUnavailable: it cannot be read.
    """
    with disk_errors(to):
        if not to.exists() and not to.is_symlink():
            return None
        if not to.is_dir():
            problems.append(Problem("--to", f"{to} is no folder", "name another place"))
            return None
        names = sorted(path.name for path in to.iterdir())
    if not names:
        return None
    note = _note(to / "evolvent.json")
    if note is None:
        problems.append(Problem("--to", f"{to} is not empty and was not published before", "name another folder"))
        return None
    identity, files = note
    return Before(identity, tuple(name for name in names if name not in (*files, "evolvent.json")))


def _note(path: Path) -> tuple[str, tuple[str, ...]] | None:
    """Identity and files of an earlier publication, None where the file tells of none."""
    try:
        note = json.loads(path.read_bytes())
        published = note["published"]
        return str(published["run"]["identity"]), tuple(map(str, published["files"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


@contextmanager
def whole_folder(to: Path) -> Iterator[Path]:
    """A folder to write into; it appears as `to` only when the block ends well, whole and on disk.

    A folder that lies there is set aside first and removed last. Killed in between, it is left beside `to` under a
    name that begins with a full stop and ends in `.part~`.

    Raises:
        NoSpace, StoreUnavailable: nothing is left behind then, and an old folder is as it was.
    """
    to = to.resolve()
    mark = secrets.token_hex(4)
    fresh, old = (to.with_name(f".{to.name}.{what}-{mark}{TEMPORARY}") for what in ("new", "old"))
    done = False
    try:
        with disk_errors(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            fresh.mkdir()
            yield fresh
            sync_folder(fresh)
            _exchange(fresh, to, old)
            done = True
            sync_folder(to.parent)
    finally:
        shutil.rmtree(old if done else fresh, ignore_errors=True)


def _exchange(fresh: Path, to: Path, old: Path) -> None:
    there = to.exists()
    if there:
        to.rename(old)
    try:
        fresh.rename(to)
    finally:  # refused or interrupted: the old folder comes back
        if there and not to.exists():
            old.rename(to)


def copy(source: Path, folder: Path) -> dict[str, str]:
    """Copy the files of a policy that may be handed on; returns the SHA-256 of each by name.

    Other files stay behind: pickles, code, folders.
    Raises:
        UnsafeFile: one that is a link: it could lead out of the run. NoSpace, StoreUnavailable.
    """
    with disk_errors(source):
        paths = [path for path in sorted(source.iterdir()) if path.suffix in _ENDINGS and path.name not in _OURS]
        linked = [path.name for path in paths if path.is_symlink()]
        paths = [path for path in paths if path.is_file()]
        size = sum(path.stat().st_size for path in paths)
    if linked:
        raise UnsafeFile(
            f"{source} holds links, which are not published",
            value=linked[:5],
            expected="plain files",
            hint="copy the files in their place",
        )
    ensure_space(folder, size + _CHUNK)
    return {path.name: _copied(path, folder / path.name) for path in paths}


def _copied(source: Path, target: Path) -> str:
    found = hashlib.sha256()
    with disk_errors(target), target.open("xb") as file:
        for chunk in _chunks(source):
            found.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return found.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with disk_errors(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def put(path: Path, text: str) -> str:
    """Write a text file into a folder that is not there yet for others; returns its SHA-256."""
    raw = text.encode()
    with disk_errors(path), path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(raw).hexdigest()


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of those of the files that are there."""
    found = {}
    for name in names:
        if (folder / name).is_file():
            found[name] = hashlib.sha256(b"".join(_chunks(folder / name))).hexdigest()
    return found


def weights_of(folder: Path) -> str:
    """A digest of the weights in a policy's folder, whatever its other files say."""
    found = hashlib.sha256()
    with disk_errors(folder):
        for path in sorted(folder.glob("*.safetensors")):
            found.update(f"{path.name}\n{path.stat().st_size}\n".encode())
            for chunk in _chunks(path):
                found.update(chunk)
    return found.hexdigest()

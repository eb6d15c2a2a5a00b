"""Publication of a folder: safe files are copied, whole or not at all, and the folder is recognized later."""

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
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, ensure_space, sync_folder

__all__ = [
    "EarlierPublication",
    "atomic_folder",
    "copy_policy_files",
    "file_digests",
    "read_earlier",
    "weights_digest",
    "write_text",
]

_COPIED_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
_GENERATED_FILES = ("README.md", "LICENSE", "evolvent.json")  # written anew
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EarlierPublication:
    """An earlier publication in a folder: the identity of its run, and the files there that were not published."""

    identity: str
    unknown_files: tuple[str, ...]


def read_earlier(output_dir: Path, problems: list[Problem]) -> EarlierPublication | None:
    """Reads the earlier publication of a folder; None where the folder is free or unusable; the latter adds a
    problem.

    Raises:
        StoreUnavailable: it cannot be read.
    """
    with disk_errors(output_dir):
        if not output_dir.exists() and not output_dir.is_symlink():
            return None
        if not output_dir.is_dir():
            problems.append(Problem("--to", f"{output_dir} is not a folder", "choose another path"))
            return None
        names = sorted(path.name for path in output_dir.iterdir())
    if not names:
        return None
    note = _read_note(output_dir / "evolvent.json")
    if note is None:
        problems.append(
            Problem("--to", f"{output_dir} is not empty and does not hold a publication", "choose another folder")
        )
        return None
    identity, files = note
    return EarlierPublication(identity, tuple(name for name in names if name not in (*files, "evolvent.json")))


def _read_note(path: Path) -> tuple[str, tuple[str, ...]] | None:
    """Reads the identity and files of an earlier publication, None where the file describes none."""
    try:
        note = json.loads(path.read_bytes())
        published = note["published"]
        return str(published["run"]["identity"]), tuple(map(str, published["files"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


@contextmanager
def atomic_folder(output_dir: Path) -> Iterator[Path]:
    """Yields a folder to write into; it appears as `output_dir` only when the block ends well, whole and on disk.

    An existing folder is moved aside first and removed last. If the process is killed in between, it remains beside
    `output_dir` under a name that begins with a full stop and ends in `.part~`.

    Raises:
        NoSpace, StoreUnavailable: nothing is left behind then, and an old folder is unchanged.
    """
    output_dir = output_dir.resolve()
    suffix = secrets.token_hex(4)
    new_folder, old_folder = (
        output_dir.with_name(f".{output_dir.name}.{state}-{suffix}{TEMPORARY_SUFFIX}") for state in ("new", "old")
    )
    is_published = False
    try:
        with disk_errors(output_dir):
            output_dir.parent.mkdir(parents=True, exist_ok=True)
            new_folder.mkdir()
            yield new_folder
            sync_folder(new_folder)
            _swap_folders(new_folder, output_dir, old_folder)
            is_published = True
            sync_folder(output_dir.parent)
    finally:
        shutil.rmtree(old_folder if is_published else new_folder, ignore_errors=True)


def _swap_folders(new_folder: Path, output_dir: Path, old_folder: Path) -> None:
    is_present = output_dir.exists()
    if is_present:
        output_dir.rename(old_folder)
    try:
        new_folder.rename(output_dir)
    finally:  # refused or interrupted: the old folder comes back
        if is_present and not output_dir.exists():
            old_folder.rename(output_dir)


def copy_policy_files(source: Path, folder: Path) -> dict[str, str]:
    """Copies the publishable files of a policy; returns the SHA-256 of each by name.

    Other files are not copied: pickles, code, folders.

    Raises:
        UnsafeFile: a file is a link, which could lead out of the run.
        NoSpace, StoreUnavailable: the copy cannot be written.
    """
    with disk_errors(source):
        paths = [
            path
            for path in sorted(source.iterdir())
            if path.suffix in _COPIED_SUFFIXES and path.name not in _GENERATED_FILES
        ]
        links = [path.name for path in paths if path.is_symlink()]
        paths = [path for path in paths if path.is_file()]
        size = sum(path.stat().st_size for path in paths)
    if links:
        raise UnsafeFile(
            f"{source} holds links, which cannot be published",
            value=links[:5],
            expected="regular files",
            hint="replace the links with copies",
        )
    ensure_space(folder, size + _CHUNK_BYTES)
    return {path.name: _copy_file(path, folder / path.name) for path in paths}


def _copy_file(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with disk_errors(target), target.open("xb") as file:
        for chunk in _read_chunks(source):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _read_chunks(path: Path) -> Iterator[bytes]:
    with disk_errors(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def write_text(path: Path, text: str) -> str:
    """Writes a text file into a folder that is not visible to others yet; returns its SHA-256."""
    encoded = text.encode()
    with disk_errors(path), path.open("xb") as file:
        file.write(encoded)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(encoded).hexdigest()


def file_digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns the SHA-256 of each of the files that exist."""
    digest_by_name = {}
    for name in names:
        if (folder / name).is_file():
            digest_by_name[name] = hashlib.sha256(b"".join(_read_chunks(folder / name))).hexdigest()
    return digest_by_name


def weights_digest(folder: Path) -> str:
    """Returns a digest of the weights in a policy's folder, independent of its other files."""
    digest = hashlib.sha256()
    with disk_errors(folder):
        for path in sorted(folder.glob("*.safetensors")):
            digest.update(f"{path.name}\n{path.stat().st_size}\n".encode())
            for chunk in _read_chunks(path):
                digest.update(chunk)
    return digest.hexdigest()

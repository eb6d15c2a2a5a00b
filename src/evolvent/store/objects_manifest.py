"""The manifest of a copy: its files, and the size and SHA-256 of each. A copy without a manifest is not a copy.

    {"format": 1, "files": {"run.json": {"bytes": 812, "sha256": "..."}, ...}}

A file's bytes lie at `objects/SHA256`. A manifest from elsewhere is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import Incomplete, LimitExceeded, UnknownSchema, UnsafePath
from evolvent.files import TEMPORARY_SUFFIX, safe_join
from evolvent.store.objects import ObjectStore

__all__ = [
    "MANIFEST_NAME",
    "OBJECTS_FOLDER",
    "CopyManifest",
    "ManifestEntry",
    "check_names",
    "parse_manifest",
    "read_manifest",
]

MANIFEST_NAME = "evolvent-manifest.json"
"""The object that says what a copy holds; it is written last, so a copy without it is none."""
OBJECTS_FOLDER = "objects"
"""The folder of the contents, each named by its SHA-256."""
_FORMAT = 1
_MAX_MANIFEST_BYTES = 64 << 20  # bytes of a manifest: some 400,000 files
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_FOLDER = Path("/dev/null/copy")  # below a file there is nothing, so names are judged by themselves


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file of a copy: its size in bytes, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str

    @property
    def object_name(self) -> str:
        """Returns the name of its object."""
        return f"{OBJECTS_FOLDER}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class CopyManifest:
    """The files of a copy by their names, which are relative to its folder."""

    files: Mapping[str, ManifestEntry]

    @property
    def size(self) -> int:
        """Returns the bytes of all files together."""
        return sum(entry.size for entry in self.files.values())

    def encode(self) -> bytes:
        """Encodes the manifest; the same files give the same bytes."""
        files = {name: {"bytes": entry.size, "sha256": entry.sha256} for name, entry in sorted(self.files.items())}
        return json.dumps({"format": _FORMAT, "files": files}, indent=0).encode() + b"\n"

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of `encode()`, which identifies this copy."""
        return hashlib.sha256(self.encode()).hexdigest()

    def names_by_digest(self) -> dict[str, list[str]]:
        """Returns the names of the files by the digest of their bytes: equal files are one object."""
        names: dict[str, list[str]] = {}
        for name, entry in self.files.items():
            names.setdefault(entry.sha256, []).append(name)
        return names


def check_names(names: Iterable[str]) -> None:
    """Refuses names that a folder of any file system could not hold side by side.

    Raises:
        UnsafePath: a name leaves the folder, is reserved or unfinished, is the folder of another name, or differs from
            another in case or composition alone.
    """
    names_by_key: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        safe_join(_NO_FOLDER, name)
        key = unicodedata.normalize("NFC", name).casefold()
        if key in names_by_key:
            raise UnsafePath("two names are equal on some file systems", value=f"{names_by_key[key]!r} and {name!r}")
        if any(part.endswith(TEMPORARY_SUFFIX) for part in name.split("/")):
            raise UnsafePath("reserved name for unfinished files", value=name)
        names_by_key[key] = name
        parts = key.split("/")
        folders.update({"/".join(parts[:depth]): name for depth in range(1, len(parts))})
    for key in names_by_key.keys() & folders.keys():
        raise UnsafePath("a name is both a file and a folder", value=f"{names_by_key[key]!r} and {folders[key]!r}")


def parse_manifest(raw: bytes, address: str) -> CopyManifest:
    """Parses the manifest in these bytes.

    Raises:
        Incomplete: they are not a manifest, or only a part. UnknownSchema: a manifest of a newer version.
        UnsafePath: see `check_names`.
    """
    try:
        row = json.loads(raw, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise Incomplete(
            f"{address}/{MANIFEST_NAME} is damaged: {error}", hint="push it again, with --replace"
        ) from error
    version = row.get("format") if isinstance(row, dict) else None
    if version != _FORMAT:
        raise UnknownSchema(f"{address}/{MANIFEST_NAME} has another format", value=version, expected=_FORMAT)
    files = row.get("files")
    if not isinstance(files, dict) or not files:
        raise Incomplete(f"{address}/{MANIFEST_NAME} names no files", value=type(files).__name__)
    check_names(files)
    return CopyManifest({name: _parse_entry(name, value, address) for name, value in files.items()})


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice")
    return row


def _parse_entry(name: str, value: object, address: str) -> ManifestEntry:
    size, digest = (value.get("bytes"), value.get("sha256")) if isinstance(value, dict) else (None, None)
    if type(size) is int and size >= 0 and isinstance(digest, str) and _SHA256.fullmatch(digest):
        return ManifestEntry(size, digest)
    raise Incomplete(
        f"{address}/{MANIFEST_NAME} has an invalid entry for {name!r}", value=value, expected="bytes and sha256"
    )


def read_manifest(objects: ObjectStore) -> CopyManifest | None:
    """Reads the manifest of a storage location; returns None if there is none.

    Raises:
        LimitExceeded: the manifest is too large. Incomplete, UnknownSchema, UnsafePath: see `parse_manifest`.
    """
    raw = objects.read_object(MANIFEST_NAME, max_bytes=_MAX_MANIFEST_BYTES + 1)
    if raw is None:
        return None
    if len(raw) > _MAX_MANIFEST_BYTES:
        raise LimitExceeded(
            f"{objects.place.address}/{MANIFEST_NAME} is too large", value=f"over {_MAX_MANIFEST_BYTES} bytes"
        )
    return parse_manifest(raw, objects.place.address)

"""The manifest of a copy: which files it has, and the size and SHA-256 of each. A copy without one is not a copy.

    {"format": 1, "files": {"run.json": {"bytes": 812, "sha256": "..."}, ...}}

A file's bytes lie at `objects/SHA256`. A manifest that came from elsewhere is checked before anything is done with it.
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
from evolvent.files import TEMPORARY, safe_join
from evolvent.store.objects import Objects

__all__ = ["MANIFEST", "OBJECTS", "Entry", "Manifest", "check_names", "parse", "read_manifest"]

MANIFEST = "evolvent-manifest.json"
"""The object that says what a copy holds; it is written last, so a copy without it is none."""
OBJECTS = "objects"
"""The folder of the contents, each named by its SHA-256."""
_FORMAT = 1
_LARGEST = 64 << 20  # bytes of a manifest: some 400,000 files
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOWHERE = Path("/dev/null/copy")  # below a file there is nothing, so names are judged by themselves


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a copy: its size in bytes, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of its object."""
        return f"{OBJECTS}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a copy by their names, which are relative to its folder."""

    files: Mapping[str, Entry]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())

    def raw(self) -> bytes:
        """As it is written: the same files give the same bytes."""
        files = {name: {"bytes": entry.size, "sha256": entry.sha256} for name, entry in sorted(self.files.items())}
        return json.dumps({"format": _FORMAT, "files": files}, indent=0).encode() + b"\n"

    @property
    def digest(self) -> str:
        """SHA-256 of `raw`, which tells this copy from every other."""
        return hashlib.sha256(self.raw()).hexdigest()

    def objects(self) -> dict[str, list[str]]:
        """The names of the files by the digest of what they hold: equal files are one object."""
        found: dict[str, list[str]] = {}
        for name, entry in self.files.items():
            found.setdefault(entry.sha256, []).append(name)
        return found


def check_names(names: Iterable[str]) -> None:
    """Refuse names that a folder of any file system could not hold side by side.

    Raises:
        UnsafePath: one that leaves the folder, is reserved or unfinished, is another's folder, or differs from another
            in case or composition alone.
    """
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        safe_join(_NOWHERE, name)
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            raise UnsafePath("two names that some file systems cannot tell apart", value=f"{seen[key]!r} and {name!r}")
        if any(part.endswith(TEMPORARY) for part in name.split("/")):
            raise UnsafePath("a name of unfinished files", value=name)
        seen[key] = name
        places = key.split("/")
        folders.update({"/".join(places[:depth]): name for depth in range(1, len(places))})
    for key in seen.keys() & folders.keys():
        raise UnsafePath("a name is a file and a folder", value=f"{seen[key]!r} and {folders[key]!r}")


def parse(raw: bytes, address: str) -> Manifest:
    """The manifest in these bytes.

    Raises:
        Incomplete: they are none, or only a part of one. UnknownSchema: of a newer version.
        UnsafePath: see `check_names`.
    """
    try:
        row = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Incomplete(f"{address}/{MANIFEST} is damaged: {error}", hint="push it again, with --replace") from error
    version = row.get("format") if isinstance(row, dict) else None
    if version != _FORMAT:
        raise UnknownSchema(f"{address}/{MANIFEST} has another format", value=version, expected=_FORMAT)
    files = row.get("files")
    if not isinstance(files, dict) or not files:
        raise Incomplete(f"{address}/{MANIFEST} names no files", value=type(files).__name__)
    check_names(files)
    return Manifest({name: _entry(name, value, address) for name, value in files.items()})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _entry(name: str, value: object, address: str) -> Entry:
    size, digest = (value.get("bytes"), value.get("sha256")) if isinstance(value, dict) else (None, None)
    if type(size) is int and size >= 0 and isinstance(digest, str) and _SHA256.fullmatch(digest):
        return Entry(size, digest)
    raise Incomplete(f"{address}/{MANIFEST} says nothing usable of {name!r}", value=value, expected="bytes and sha256")


def read_manifest(objects: Objects) -> Manifest | None:
    """The manifest of a place, None where there is none.

    Raises:
        LimitExceeded: one that is too large. Incomplete, UnknownSchema, UnsafePath: see `parse`.
    """
    raw = objects.read(MANIFEST, most=_LARGEST + 1)
    if raw is None:
        return None
    if len(raw) > _LARGEST:
        raise LimitExceeded(f"{objects.place.address}/{MANIFEST} is too large", value=f"over {_LARGEST} bytes")
    return parse(raw, objects.place.address)

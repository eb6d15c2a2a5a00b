"""A complete checkpoint in its folder: opening it, and reporting its damage.

A checkpoint is a folder of safetensors files. `index.json` gives the location of every tensor's pieces,
`state.json` holds the other saved values, and the marker `COMPLETE`, written last, the SHA-256 of all of them.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evolvent.errors import HashMismatch, Incomplete, UnknownSchema
from evolvent.files import safe_join
from evolvent.models.pieces import DTYPES, Entry, Index, Piece, Region
from evolvent.trajectory import JsonObject

__all__ = [
    "FORMAT",
    "INDEX",
    "MARKER",
    "STATE",
    "StoredCheckpoint",
    "entry_from_row",
    "entry_to_row",
    "open_checkpoint",
]

FORMAT = 2
MARKER = "COMPLETE"
INDEX = "index.json"
STATE = "state.json"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_REMOVE = "remove this checkpoint to use the one before it"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A complete checkpoint, opened: its JSON values and the locations of its tensors, group by group; none is read
    yet.

    Attributes:
        path: its folder. values: the values saved beside the tensors. groups: an index each. files: SHA-256 by
            name.
    """

    path: Path
    values: JsonObject
    groups: dict[str, Index]
    files: dict[str, str]

    def group_files(self, groups: Iterable[str]) -> list[str]:
        """Returns the files that hold these groups, sorted."""
        every = (self.groups[group] for group in groups if group in self.groups)
        return sorted({piece.file for index in every for entry in index.values() for piece in entry.pieces})

    def find_fault(self, file: str) -> Incomplete | HashMismatch | None:
        """Checks a file and returns the fault, with the names of missing or changed tensors; None: the file is
        intact.
        """
        path = safe_join(self.path, file)
        pieces = {
            name: piece
            for index in self.groups.values()
            for name, entry in index.items()
            for piece in entry.pieces
            if piece.file == file
        }
        try:
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            return Incomplete(
                f"{path} is missing", expected=f"tensors {', '.join(pieces)}"[:180], value=str(error), hint=_REMOVE
            )
        if digest == self.files.get(file):
            return None
        crcs = _compute_crcs(path)
        changed = [name for name, piece in pieces.items() if crcs.get(name) != piece.crc] if crcs else []
        return HashMismatch(
            f"{path} is not what was written",
            value=f"changed: {changed or 'its header'}",
            expected=f"sha256 {self.files.get(file)}",
            hint=_REMOVE,
        )


def open_checkpoint(path: Path) -> StoredCheckpoint:
    """Reads the description of a checkpoint; its tensors are neither read nor checked.

    Raises:
        Incomplete: no marker, or a missing file. HashMismatch: other content than was written. UnknownSchema: a
            checkpoint of another format.
    """
    try:
        marker = json.loads((path / MARKER).read_bytes())
        if marker["format"] != FORMAT:
            raise UnknownSchema(f"{path} is of another format", value=marker["format"], expected=FORMAT)
        files = {str(name): str(entry["sha256"]) for name, entry in marker["files"].items()}
    except FileNotFoundError as error:
        raise Incomplete(
            f"{path} has no {MARKER} marker",
            value=sorted(p.name for p in path.iterdir())[:5] if path.is_dir() else "no folder",
            expected="a checkpoint written to its end",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HashMismatch(f"{path / MARKER} cannot be read", value=str(error), hint=_REMOVE) from error
    unopened = StoredCheckpoint(path, {}, {}, files)
    for name in (INDEX, STATE):
        if (fault := unopened.find_fault(name)) is not None:
            raise fault
    groups = json.loads((path / INDEX).read_bytes())
    indices = {
        group: Index(path, {name: entry_from_row(row) for name, row in rows.items()}) for group, rows in groups.items()
    }
    return StoredCheckpoint(path, json.loads((path / STATE).read_bytes()), indices, files)


def entry_to_row(entry: Entry) -> dict[str, object]:
    """Converts an entry of an index to JSON."""
    pieces = [
        {"file": piece.file, "offset": piece.region.offset, "shape": piece.region.shape, "crc": piece.crc}
        for piece in entry.pieces
    ]
    return {"dtype": _NAMES[entry.dtype], "shape": entry.shape, "pieces": pieces}


def entry_from_row(row: JsonObject) -> Entry:
    """Parses an entry of an index from JSON."""
    pieces = (
        Piece(piece["file"], Region(tuple(piece["offset"]), tuple(piece["shape"])), piece["crc"])
        for piece in row["pieces"]
    )
    return Entry(tuple(row["shape"]), DTYPES[row["dtype"]], tuple(pieces))


def _compute_crcs(path: Path) -> dict[str, int]:
    """Computes the CRC-32 of each tensor in a safetensors file; returns nothing where its header cannot be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1 << 27)))
            offsets = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
            crcs = {}
            for name, (begin, end) in offsets.items():
                file.seek(8 + length + begin)
                crcs[name] = zlib.crc32(file.read(end - begin))
            return crcs
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}

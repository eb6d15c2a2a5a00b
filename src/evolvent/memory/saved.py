"""A memory as a folder: `memory.json`, two Parquet tables, and for each key its rows and vectors as npy.

`memory.json` is written last and holds the SHA-256 of every other file, whose names carry their hash, so that a
memory is either complete or absent, and an older one in the same folder stays readable until it is replaced.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evolvent.errors import CheckpointError, HashMismatch, Incomplete, UnknownSchema, boundary
from evolvent.files import TEMPORARY_SUFFIX, atomic_writer, disk_errors, safe_join, write_atomic
from evolvent.memory.index import Rows
from evolvent.memory.records import Key
from evolvent.memory.tables import EPISODES, STEPS, MemoryTables
from evolvent.store.parquet_limits import open_parquet

__all__ = ["StoredKey", "StoredMemory", "read_memory", "write_memory"]

_FORMAT, _MANIFEST = 1, "memory.json"
_MEMORY_FILE = re.compile(r"(episodes|steps|probe|rows-\d+|vectors-\d+|graph-\d+)-[0-9a-f]{12}\.(parquet|npy|usearch)")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The rows that one key retrieves, and their vectors.

    `[n]` rows of the table of steps, their `[n, D]` vectors, and a graph of them: its bytes for writing, its file
    after reading.
    """

    key: Key
    rows: NDArray[np.int64]
    vectors: Rows
    graph: bytes | Path | None = None


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """A memory on disk: the encoder's name, the `[D]` vector of the probe, the tables, and the stored keys."""

    encoder: str
    probe: Rows
    tables: MemoryTables
    keys: tuple[StoredKey, ...]


def write_memory(folder: Path, memory: StoredMemory) -> None:
    """Writes a memory; afterwards the folder holds it, or its previous content.

    Raises:
        NoSpace, StoreUnavailable
    """
    files: dict[str, str] = {}
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "encoder": memory.encoder,
        "dim": len(memory.probe),
        "episodes": memory.tables.episodes.num_rows,
        "steps": memory.tables.steps.num_rows,
        "files": files,
        "keys": [],
    }
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("episodes", memory.tables.episodes), ("steps", memory.tables.steps)):
        manifest[f"table_{name}"] = _write_file(folder, files, f"{name}.parquet", [_parquet(table)])
    manifest["probe"] = _write_file(folder, files, "probe.npy", _npy_pieces(memory.probe))
    for index, stored_key in enumerate(memory.keys):
        graph = [stored_key.graph] if isinstance(stored_key.graph, bytes) else []
        manifest["keys"].append(
            {
                "name": stored_key.key.name,
                "rows": _write_file(folder, files, f"rows-{index}.npy", _npy_pieces(stored_key.rows)),
                "vectors": _write_file(folder, files, f"vectors-{index}.npy", _npy_pieces(stored_key.vectors)),
                "graph": _write_file(folder, files, f"graph-{index}.usearch", graph) if graph else None,
            }
        )
    write_atomic(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for path in folder.iterdir():
        final_name = (
            path.name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[0]
            if path.name.endswith(TEMPORARY_SUFFIX)
            else path.name
        )
        is_memory_file = _MEMORY_FILE.fullmatch(final_name) or (
            final_name == _MANIFEST and final_name != path.name
        )  # also what a killed writer left
        if path.name not in files and is_memory_file:
            with suppress(OSError):
                path.unlink()


def _write_file(folder: Path, files: dict[str, str], name: str, pieces: Sequence[bytes | memoryview]) -> str:
    """Writes a file under its name and hash; returns that name."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    stem, dot, ending = name.rpartition(".")
    name = f"{stem}-{digest.hexdigest()[:12]}{dot}{ending}"
    files[name] = digest.hexdigest()
    with atomic_writer(folder / name, needed=sum(map(len, pieces))) as file:
        for piece in pieces:
            file.write(piece)
    return name


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table.combine_chunks(), buffer, compression="zstd")
    return buffer.getvalue()


def _npy_pieces(array: NDArray[Any]) -> list[bytes | memoryview]:
    """Serializes an array in numpy's format as pieces, without copying the array."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return [header.getvalue(), *([array.reshape(-1).view(np.uint8).data] if array.size else [])]


def read_memory(folder: Path, *, verify: bool = True) -> StoredMemory:
    """Reads a memory; its vectors are memory-mapped.

    Args:
        verify: compare the hash of every file, which reads the vectors once.
    Raises:
        Incomplete: no memory, or a file missing. HashMismatch: a file that is not what was written, naming both hashes.
        UnknownSchema: of a newer version. CheckpointError: a file that cannot be read.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        raise Incomplete(
            f"{folder} does not hold a memory", value=f"{_MANIFEST} is missing", hint="build a memory first"
        )
    with disk_errors(path):
        text = path.read_bytes()
    with boundary(CheckpointError, f"{path} cannot be read"):
        manifest = json.loads(text)
        if manifest["format"] != _FORMAT:
            raise UnknownSchema(f"{path} has another version", value=manifest["format"], expected=_FORMAT)
        for name, digest in manifest["files"].items():
            _check(safe_join(folder, name), str(digest), verify=verify)
        return _read_stored(folder, manifest)


def _check(path: Path, digest: str, *, verify: bool) -> None:
    if not path.is_file():
        raise Incomplete(f"memory {path.parent} lacks a file", value=path.name)
    if not verify:
        return
    with disk_errors(path), path.open("rb") as file:
        file_digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_digest != digest:
        raise HashMismatch(
            f"{path} has changed since it was written",
            value=file_digest,
            expected=digest,
            hint="build the memory again",
        )


def _read_stored_table(path: Path, schema: pa.Schema) -> pa.Table:
    with open_parquet(path).file:  # what it expands to is within its limit
        return pq.read_table(path, schema=schema)


def _read_stored(folder: Path, manifest: Mapping[str, Any]) -> StoredMemory:
    def load_array(name: str) -> NDArray[Any]:
        loaded: NDArray[Any] = np.load(safe_join(folder, name), mmap_mode="r", allow_pickle=False)
        return loaded

    with disk_errors(folder):
        episodes, steps = (
            _read_stored_table(safe_join(folder, manifest[f"table_{name}"]), schema)
            for name, schema in (("episodes", EPISODES), ("steps", STEPS))
        )
        probe, stored_keys = np.array(load_array(manifest["probe"])), []
        for key_row in manifest["keys"]:
            rows, vectors = np.array(load_array(key_row["rows"])), load_array(key_row["vectors"])
            graph = safe_join(folder, key_row["graph"]) if key_row["graph"] else None
            stored_keys.append(StoredKey(Key.from_name(key_row["name"]), rows, vectors, graph))
    for stored_key in stored_keys:
        shapes = (stored_key.vectors.shape, str(stored_key.vectors.dtype))
        if shapes != ((len(stored_key.rows), len(probe)), "float32") or (
            len(stored_key.rows) and stored_key.rows.max() >= len(steps)
        ):
            raise HashMismatch(
                f"the vectors of {stored_key.key.name!r} in {folder} do not match its rows",
                value=shapes,
                expected=((len(stored_key.rows), len(probe)), "float32"),
            )
    return StoredMemory(str(manifest["encoder"]), probe, MemoryTables(episodes, steps), tuple(stored_keys))

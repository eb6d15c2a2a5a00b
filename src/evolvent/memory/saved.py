"""A memory as a folder: `memory.json`, two Parquet tables, and for each key its rows and vectors as npy.

`memory.json` is written last and holds the SHA-256 of every other file, whose names carry their hash, so that a memory
is either there or not and an older one in the same folder stays readable until it is replaced.
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
from evolvent.files import TEMPORARY, atomic_writer, disk_errors, safe_join, write_atomic
from evolvent.memory.index import Rows
from evolvent.memory.records import Key
from evolvent.memory.tables import EPISODES, STEPS, Tables

__all__ = ["Kept", "Looked", "read_memory", "write_memory"]

_FORMAT, _NOTE = 1, "memory.json"
_OURS = re.compile(r"(episodes|steps|probe|rows-\d+|vectors-\d+|graph-\d+)-[0-9a-f]{12}\.(parquet|npy|usearch)")


@dataclass(frozen=True, slots=True)
class Looked:
    """What is found by one key: `[n]` rows of the table of steps, their `[n, D]` vectors, and a graph of them: its
    bytes where it is written, its file where it is read.
    """

    key: Key
    rows: NDArray[np.int64]
    vectors: Rows
    graph: bytes | Path | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A memory as it lies on disk: the encoder's name and `[D]` vector of the probe, the tables, what is looked up."""

    encoder: str
    probe: Rows
    tables: Tables
    looked: tuple[Looked, ...]


def write_memory(folder: Path, kept: Kept) -> None:
    """Write a memory; afterwards the folder holds it, or what it held before.

    Raises:
        NoSpace, StoreUnavailable
    """
    files: dict[str, str] = {}
    note: dict[str, Any] = {
        "format": _FORMAT,
        "encoder": kept.encoder,
        "dim": len(kept.probe),
        "episodes": kept.tables.episodes.num_rows,
        "steps": kept.tables.steps.num_rows,
        "files": files,
        "keys": [],
    }
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("episodes", kept.tables.episodes), ("steps", kept.tables.steps)):
        note[f"table_{name}"] = _put(folder, files, f"{name}.parquet", [_parquet(table)])
    note["probe"] = _put(folder, files, "probe.npy", _npy(kept.probe))
    for at, one in enumerate(kept.looked):
        graph = [one.graph] if isinstance(one.graph, bytes) else []
        note["keys"].append(
            {
                "name": one.key.name,
                "rows": _put(folder, files, f"rows-{at}.npy", _npy(one.rows)),
                "vectors": _put(folder, files, f"vectors-{at}.npy", _npy(one.vectors)),
                "graph": _put(folder, files, f"graph-{at}.usearch", graph) if graph else None,
            }
        )
    write_atomic(folder / _NOTE, json.dumps(note, indent=1) + "\n")
    for path in folder.iterdir():
        meant = path.name.removesuffix(TEMPORARY).rpartition(".")[0] if path.name.endswith(TEMPORARY) else path.name
        ours = _OURS.fullmatch(meant) or (meant == _NOTE and meant != path.name)  # also what a killed writer left
        if path.name not in files and ours:
            with suppress(OSError):
                path.unlink()


def _put(folder: Path, files: dict[str, str], name: str, pieces: Sequence[bytes | memoryview]) -> str:
    """Write a file under its name and hash; returns that name."""
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


def _npy(array: NDArray[Any]) -> list[bytes | memoryview]:
    """A file of numpy's format in pieces; the array itself is not copied."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return [header.getvalue(), *([array.reshape(-1).view(np.uint8).data] if array.size else [])]


def read_memory(folder: Path, *, verify: bool = True) -> Kept:
    """Read a memory; its vectors are mapped into memory, not read.

    Args:
        verify: compare the hash of every file, which reads the vectors once.
    Raises:
        Incomplete: no memory, or a file missing. HashMismatch: a file that is not what was written, naming both hashes.
        UnknownSchema: of a newer version. CheckpointError: a file that cannot be read.
    """
    path = folder / _NOTE
    if not path.is_file():
        raise Incomplete(f"{folder} holds no memory", value=f"no {_NOTE}", hint="build one first")
    with disk_errors(path):
        text = path.read_bytes()
    with boundary(CheckpointError, f"{path} cannot be read"):
        note = json.loads(text)
        if note["format"] != _FORMAT:
            raise UnknownSchema(f"{path} is of another version", value=note["format"], expected=_FORMAT)
        for name, digest in note["files"].items():
            _check(safe_join(folder, name), str(digest), verify=verify)
        return _kept(folder, note)


def _check(path: Path, digest: str, *, verify: bool) -> None:
    if not path.is_file():
        raise Incomplete(f"the memory {path.parent} has a file missing", value=path.name)
    if not verify:
        return
    with disk_errors(path), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise HashMismatch(f"{path} is not what was written", value=found, expected=digest, hint="build it again")


def _kept(folder: Path, note: Mapping[str, Any]) -> Kept:
    def array(name: str) -> NDArray[Any]:
        made: NDArray[Any] = np.load(safe_join(folder, name), mmap_mode="r", allow_pickle=False)
        return made

    with disk_errors(folder):
        episodes, steps = (
            pq.read_table(safe_join(folder, note[f"table_{name}"]), schema=schema)
            for name, schema in (("episodes", EPISODES), ("steps", STEPS))
        )
        probe, looked = np.array(array(note["probe"])), []
        for one in note["keys"]:
            rows, vectors = np.array(array(one["rows"])), array(one["vectors"])
            graph = safe_join(folder, one["graph"]) if one["graph"] else None
            looked.append(Looked(Key.of_name(one["name"]), rows, vectors, graph))
    for found in looked:
        shapes = (found.vectors.shape, str(found.vectors.dtype))
        if shapes != ((len(found.rows), len(probe)), "float32") or (len(found.rows) and found.rows.max() >= len(steps)):
            raise HashMismatch(
                f"the vectors of {found.key.name!r} in {folder} do not fit its rows",
                value=shapes,
                expected=((len(found.rows), len(probe)), "float32"),
            )
    return Kept(str(note["encoder"]), probe, Tables(episodes, steps), tuple(looked))

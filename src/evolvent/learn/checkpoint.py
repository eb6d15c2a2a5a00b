"""Checkpoints: a folder of safetensors and JSON that is either whole or not there.

A checkpoint is written into a temporary folder, every file synced, the folder renamed, and last the marker `COMPLETE`
written, which holds the SHA-256 of every file. Whatever happens on the way, the previous one stays the newest complete
one. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evolvent.errors import (
    CheckpointError,
    ConfigError,
    HashMismatch,
    Incomplete,
    NoSpace,
    Problem,
    ShapeMismatch,
    StoreUnavailable,
    UnknownSchema,
)
from evolvent.files import sync_folder

__all__ = ["Checkpointer", "Saved", "check_tensors"]

_MARKER, _STATE, _TEMPORARY = "COMPLETE", "state.json", ".writing-"
_FORMAT = 1
_SHARD_BYTES = 1 << 30
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a checkpoint: named groups of tensors (`model`, `optimizer`, ...), and JSON values."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    values: Mapping[str, Any] = field(default_factory=dict)


def check_tensors(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, what: str, missing: type[CheckpointError]
) -> None:
    """Compare names and shapes before anything is copied.

    Raises:
        missing: a tensor that is not there, named. ShapeMismatch: one of another shape, or one too many.
    """
    for name, tensor in expected.items():
        if name not in found:
            raise missing(
                f"the checkpoint's {what} has no tensor {name!r}",
                expected=tuple(tensor.shape),
                value=f"{len(found)} tensors",
                hint=_WEIGHTS_ONLY,
            )
        if found[name].shape != tensor.shape:
            raise ShapeMismatch(
                f"tensor {name!r} of the checkpoint's {what} has another shape than the model's",
                value=tuple(found[name].shape),
                expected=tuple(tensor.shape),
                hint=_WEIGHTS_ONLY,
            )
    extra = sorted(set(found) - set(expected))
    if extra:
        raise ShapeMismatch(
            f"the checkpoint's {what} has tensors that the model does not have", value=extra[:5], hint=_WEIGHTS_ONLY
        )


_WEIGHTS_ONLY = "train the model it was made with, or start from saved weights alone in a new folder"


class Checkpointer:
    """Keeps the newest checkpoints of one training in a folder. One process writes at a time.

    Args:
        folder: made if missing; what an interrupted writer left in it is removed.
        every: updates between checkpoints.
        keep: how many complete ones stay.
    Raises:
        ConfigError: numbers below 1. StoreUnavailable: a folder that cannot be written.
    """

    def __init__(self, folder: Path, *, every: int = 200, keep: int = 2) -> None:
        problems = [
            Problem(name, f"must be 1 or more, got {value}")
            for name, value in (("every", every), ("keep", keep))
            if value < 1
        ]
        if problems:
            raise ConfigError(problems)
        self.folder, self.every, self._keep = folder, every, keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in list(folder.iterdir()):
                if path.name.startswith(_TEMPORARY) or (_is_step(path) and not (path / _MARKER).exists()):
                    shutil.rmtree(path)
        except OSError as error:
            raise StoreUnavailable(f"the checkpoint folder {folder} cannot be used", value=str(error)) from error

    def complete(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return sorted(path for path in self.folder.iterdir() if _is_step(path) and (path / _MARKER).exists())

    def newest(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        found = self.complete()
        return found[-1] if found else None

    def save(self, update: int, saved: Saved) -> Path:
        """Write a checkpoint named after its update, then remove those beyond `keep`.

        Raises:
            NoSpace: the disk is full; earlier checkpoints stay as they are. StoreUnavailable: it cannot be written.
        """
        self._check_space(saved)
        target = self.folder / f"update-{update:09d}"
        if (target / _MARKER).exists():
            return target
        temporary = self.folder / f"{_TEMPORARY}{os.getpid()}"
        try:
            temporary.mkdir()
            manifest = {}
            for name, data, tensors in _files(saved):
                _write(temporary / name, data)
                manifest[name] = {"sha256": hashlib.sha256(data).hexdigest(), "tensors": tensors}
            sync_folder(temporary)
            temporary.rename(target)
            sync_folder(self.folder)
            self._mark(target, manifest)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not (target / _MARKER).exists():
                shutil.rmtree(target, ignore_errors=True)
            raise self._told(error, f"checkpoint {target.name} cannot be written") from error
        for old in self.complete()[: -self._keep]:
            (old / _MARKER).unlink()  # first: a removal that is interrupted must not look complete
            shutil.rmtree(old)
        return target

    def load(self, path: Path | None = None) -> Saved | None:
        """Read a checkpoint (None: the newest complete one), every byte checked; None where there is none.

        Raises:
            Incomplete: a missing marker or file. HashMismatch: other content than was written; names the tensors.
        """
        path = path or self.newest()
        if path is None:
            return None
        manifest = _manifest(path)
        tensors: dict[str, dict[str, Tensor]] = {}
        values: dict[str, Any] = {}
        for name, entry in manifest.items():
            try:
                data = (path / name).read_bytes()
            except FileNotFoundError as error:
                raise Incomplete(
                    f"{path / name} is missing",
                    expected=f"tensors {', '.join(entry['tensors'])}"[:180],
                    value="no file",
                    hint="remove this checkpoint to use the one before it",
                ) from error
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                wrong = [tensor for tensor, crc in _checksums(data).items() if entry["tensors"].get(tensor) != crc]
                raise HashMismatch(
                    f"{path / name} is not what was written",
                    value=f"changed: {wrong or 'its header'}",
                    expected=f"sha256 {entry['sha256']}",
                    hint="remove this checkpoint to use the one before it",
                )
            if name == _STATE:
                values = json.loads(data)
            else:
                from safetensors.torch import load

                tensors.setdefault(name.rpartition("-")[0], {}).update(load(data))
        for group in values.pop("empty_groups"):
            tensors[group] = {}
        return Saved(tensors, values)

    def _mark(self, target: Path, manifest: Mapping[str, Any]) -> None:
        written = target / f"{_TEMPORARY}marker"
        _write(written, json.dumps({"format": _FORMAT, "files": manifest}).encode())
        written.rename(target / _MARKER)
        sync_folder(target)

    def _check_space(self, saved: Saved) -> None:
        needed = sum(t.numel() * t.element_size() for group in saved.tensors.values() for t in group.values())
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise NoSpace(
                f"no room for a checkpoint in {self.folder}",
                value=f"{free} bytes free",
                expected=f"{needed} bytes",
                hint="free some space and resume; earlier checkpoints are intact",
            )

    def _told(self, error: OSError, what: str) -> NoSpace | StoreUnavailable:
        if error.errno in _FULL:
            return NoSpace(
                f"{what}: the disk is full",
                value=str(error),
                hint="free some space and resume; earlier checkpoints are intact",
            )
        return StoreUnavailable(what, value=str(error), hint="earlier checkpoints are intact")


def _is_step(path: Path) -> bool:
    return path.is_dir() and path.name.startswith("update-")


def _files(saved: Saved) -> Iterator[tuple[str, bytes, dict[str, int]]]:
    """File name, content, and the checksum of each tensor in it. Shards bound the memory that writing takes."""
    from safetensors.torch import save

    empty = [group for group, tensors in saved.tensors.items() if not tensors]
    for group, tensors in saved.tensors.items():
        for number, shard in enumerate(_shards(tensors)):
            data = save(shard)
            yield f"{group}-{number:05d}.safetensors", data, _checksums(data)
    yield _STATE, json.dumps({**saved.values, "empty_groups": empty}).encode(), {}


def _shards(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        wide = tensor.numel() * tensor.element_size()
        if shard and size + wide > _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.detach().to(torch.device("cpu")).contiguous()
        size += wide
    if shard:
        yield shard


def _checksums(data: bytes) -> dict[str, int]:
    """CRC-32 of each tensor in the bytes of a safetensors file; nothing where its header cannot be read."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        body = memoryview(data)[8 + length :]
        return {name: zlib.crc32(body[start:end]) for name, (start, end) in places.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _manifest(path: Path) -> dict[str, Any]:
    try:
        marker = json.loads((path / _MARKER).read_bytes())
        if marker["format"] != _FORMAT:
            raise UnknownSchema(f"{path} is of another format", value=marker["format"], expected=_FORMAT)
        return dict(marker["files"])
    except FileNotFoundError as error:
        raise Incomplete(
            f"{path} has no {_MARKER} marker",
            value=sorted(p.name for p in path.iterdir())[:5] if path.is_dir() else "no folder",
            expected="a checkpoint written to its end",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise HashMismatch(
            f"{path / _MARKER} cannot be read", value=str(error), hint="remove this checkpoint to use the one before it"
        ) from error


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

"""Tensors in pieces: which part of a whole tensor a rank holds, where its parts lie in files, and how one is filled.

A folder of safetensors files is read through an `Index`, whoever wrote it: a checkpoint of many ranks, in which a
tensor lies in pieces, or an ordinary Hugging Face folder, in which it is one. Whatever a layout needs is read from
either, and no more than that. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from evolvent.errors import ConfigError, Incomplete, ShapeMismatch
from evolvent.files import safe_join

__all__ = ["DTYPES", "Entry", "Index", "Piece", "Region", "fill", "fill_all", "local_of", "region_of"]

# The names that safetensors has for torch's types.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


# ---------------------------------------------------------------------- regions


@dataclass(frozen=True, slots=True)
class Region:
    """A box in a tensor: where it begins and how large it is, in every dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """All of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """How many elements it holds."""
        return math.prod(self.shape)

    def overlap(self, other: Region) -> Region | None:
        """What both hold, or None."""
        spans = [
            (max(a, b), min(a + m, b + n))
            for a, m, b, n in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        ]
        if any(begin >= end for begin, end in spans):
            return None
        return Region(tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans))

    def without(self, hole: Region) -> list[Region]:
        """What is left of it outside `hole`, as boxes that do not overlap."""
        common = self.overlap(hole)
        if common is None:
            return [self]
        left, offset, shape = [], list(self.offset), list(self.shape)
        for dim, (begin, size) in enumerate(zip(common.offset, common.shape, strict=True)):
            end = offset[dim] + shape[dim]
            for start, stop in ((offset[dim], begin), (begin + size, end)):
                if start < stop:
                    box = Region(tuple(offset), tuple(shape))
                    left.append(box.replaced(dim, start, stop - start))
            offset[dim], shape[dim] = begin, size
        return left

    def replaced(self, dim: int, begin: int, size: int) -> Region:
        """The same box with other bounds in one dimension."""
        offset, shape = list(self.offset), list(self.shape)
        offset[dim], shape[dim] = begin, size
        return Region(tuple(offset), tuple(shape))

    def slices(self, base: Region) -> tuple[slice, ...]:
        """It as an index into a tensor that holds `base`."""
        return tuple(
            slice(begin - at, begin - at + size)
            for begin, at, size in zip(self.offset, base.offset, self.shape, strict=True)
        )


def local_of(tensor: Tensor) -> Tensor:
    """The storage that this rank holds of a tensor; all of a plain one. Changes to it change the tensor."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def region_of(tensor: Tensor) -> tuple[tuple[int, ...], Region, bool]:
    """Which part of a whole tensor this rank holds: the whole shape, the part, and whether this rank is to save it.

    A part that lies on several ranks of the tensor's mesh belongs to the one at coordinate 0 of every replicated
    dimension, so that each is saved once. Parts may be uneven or empty. Where two dimensions of a mesh cut the same
    dimension of the tensor, as FSDP2 on top of tensor parallelism does, the later one may have cut first.

    Raises:
        ConfigError: a placement whose local part is no box of the whole, such as a partial sum.
    """
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return shape, Region.whole(shape), True
    place = tensor.device_mesh.get_coordinate()
    if place is None:
        return shape, Region((0,) * len(shape), (0,) * len(shape)), False
    region, sizes = Region.whole(shape), tuple(tensor.device_mesh.shape)
    for axis in _cut_order(tensor.placements, sizes):
        dim = tensor.placements[axis].dim % len(shape)  # type: ignore[attr-defined]
        size = region.shape[dim]
        part = -(-size // sizes[axis])
        begin = min(part * place[axis], size)
        region = region.replaced(dim, region.offset[dim] + begin, min(part, size - begin))
    local = local_of(tensor)
    if region.numel != local.numel() or (region.numel and region.shape != tuple(local.shape)):
        raise ConfigError(
            f"a sharded tensor's local part is not what its layout {tensor.placements} says",
            value=tuple(local.shape),
            expected=region.shape,
        )
    replicated = (axis for axis, placement in enumerate(tensor.placements) if isinstance(placement, Replicate))
    return shape, region, all(place[axis] == 0 for axis in replicated)


def _cut_order(placements: Sequence[Placement], sizes: Sequence[int]) -> list[int]:
    """The mesh dimensions that cut a tensor, in the order in which they did.

    A strided shard is a cut of what the shards to its right had cut before it.
    """
    plain, strided = [], []
    for axis, placement in enumerate(placements):
        if isinstance(placement, _StridedShard):
            later = [
                size
                for size, other in zip(sizes[axis + 1 :], placements[axis + 1 :], strict=True)
                if isinstance(other, Shard | _StridedShard) and other.dim == placement.dim
            ]
            if math.prod(later) != placement.split_factor:
                raise ConfigError("a strided shard without the shards that it strides over", value=placements)
            strided.append(axis)
        elif isinstance(placement, Shard):
            plain.append(axis)
        elif not isinstance(placement, Replicate):
            raise ConfigError("a tensor that is neither sharded nor replicated cannot be saved", value=placements)
    return plain + strided[::-1]


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor in a file, under the tensor's name; `crc` is its CRC-32 where it is known."""

    file: str
    region: Region
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of an index: its whole shape, its type, and where its pieces lie."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


class Index(Mapping[str, Entry]):
    """Tensors by name, in the safetensors files of a folder."""

    def __init__(self, folder: Path, entries: Mapping[str, Entry]) -> None:
        self.folder, self._entries = folder, dict(entries)

    @classmethod
    def of_folder(cls, folder: Path) -> Index:
        """The weights of a Hugging Face folder, from the headers of its files: each tensor is one piece.

        Raises:
            Incomplete: no weights, a missing file, or one that cannot be read. UnsafePath: an index that names a file
                outside of the folder.
        """
        entries = {}
        for file in _weight_files(folder):
            with _opened(safe_join(folder, file)) as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    part = opened.get_slice(name)
                    shape, dtype = tuple(part.get_shape()), part.get_dtype()
                    if dtype not in DTYPES:
                        raise Incomplete(f"tensor {name!r} of {folder / file} has a type that torch lacks", value=dtype)
                    entries[name] = Entry(shape, DTYPES[dtype], (Piece(file, Region.whole(shape)),))
        return cls(folder, entries)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def reads(self, name: str, region: Region) -> list[tuple[Piece, Region]]:
        """From which pieces a region of a tensor is put together, and which part of it each gives.

        Raises:
            Incomplete: a part of it lies nowhere.
        """
        entry, found = self._entries[name], []
        left = [region] if region.numel else []
        for piece in entry.pieces:
            if not left:
                break
            found += [(piece, part) for box in left if (part := box.overlap(piece.region)) is not None]
            left = [rest for box in left for rest in box.without(piece.region)]
        if left:
            raise Incomplete(
                f"a part of tensor {name!r} is in no file of {self.folder}",
                value=f"missing {left[0].shape} at {left[0].offset}",
                expected=entry.shape,
            )
        return found

    def whole(self, name: str) -> Tensor:
        """A tensor, all of it, on the CPU."""
        tensor = torch.empty(self._entries[name].shape, dtype=self._entries[name].dtype)
        fill(tensor, self, name)
        return tensor

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, whole, on the CPU."""
        made = {name: torch.empty(entry.shape, dtype=entry.dtype) for name, entry in self._entries.items()}
        fill_all(made.items(), self)
        return made


def fill(target: Tensor, index: Index, name: str) -> None:
    """Fill the part of a tensor that this rank holds with what the index has under a name; see `fill_all`."""
    fill_all([(name, target)], index)


def fill_all(targets: Iterable[tuple[str, Tensor]], index: Index) -> None:
    """Fill the parts of tensors that this rank holds, whatever the layouts they are read from and into.

    Targets are (name in the index, tensor).

    Every file is opened once, and only what is needed is read from it. Values are converted to the target's type.
    Nothing is changed before all names, shapes and parts have been found.

    Raises:
        Incomplete: a name, a part or a file is missing. ShapeMismatch: a tensor of another shape.
    """
    plan: dict[str, list[tuple[str, Piece, Region, Tensor]]] = {}
    for name, target in targets:
        if name not in index:
            raise Incomplete(f"{index.folder} has no tensor {name!r}", value=f"{len(index)} tensors")
        shape, held, _ = region_of(target)
        if index[name].shape != shape:
            raise ShapeMismatch(
                f"tensor {name!r} of {index.folder} has another shape", value=index[name].shape, expected=shape
            )
        local = local_of(target)
        for piece, part in index.reads(name, held):
            plan.setdefault(piece.file, []).append((name, piece, part, local[part.slices(held)]))
    for file, wanted in plan.items():
        with _opened(safe_join(index.folder, file)) as opened:
            for name, piece, part, into in wanted:
                if part == piece.region:
                    into.copy_(opened.get_tensor(name))
                else:
                    into.copy_(opened.get_slice(name)[part.slices(piece.region)])


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise Incomplete(f"{path} is missing", value="no file") from error
    except (SafetensorError, OSError) as error:
        raise Incomplete(f"{path} cannot be read as safetensors", value=str(error)) from error


def _weight_files(folder: Path) -> list[str]:
    """Where transformers looks for the weights of a folder, in its order."""
    listed = folder / "model.safetensors.index.json"
    try:
        if listed.exists():
            return sorted(set(json.loads(listed.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Incomplete(f"{listed} cannot be read", value=str(error)) from error
    if not (folder / "model.safetensors").exists():
        raise Incomplete(f"{folder} has no weights", expected=f"model.safetensors or {listed.name}")
    return ["model.safetensors"]

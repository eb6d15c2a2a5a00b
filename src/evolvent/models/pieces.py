"""Tensors in pieces: the part of a tensor that a rank holds, the location of its parts in files, and how to fill
it.

A folder of safetensors files is read through an `Index`, whichever program wrote it: a checkpoint of many
ranks, in which a tensor lies in pieces, or an ordinary Hugging Face folder, in which it is one. Only the parts
that a layout needs are read. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from evolvent.errors import ConfigError, Incomplete, ShapeMismatch
from evolvent.files import safe_join

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

__all__ = [
    "DTYPES",
    "Entry",
    "Index",
    "Piece",
    "Region",
    "fill",
    "fill_all",
    "is_dtensor",
    "local_tensor",
    "region_of",
]

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
    """A box in a tensor: its offset and size in every dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """Returns the region of an entire tensor with this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """Returns how many elements the region holds."""
        return math.prod(self.shape)

    def overlap(self, region: Region) -> Region | None:
        """Returns the common part of both regions, or None."""
        spans = [
            (max(a, b), min(a + m, b + n))
            for a, m, b, n in zip(self.offset, self.shape, region.offset, region.shape, strict=True)
        ]
        if any(begin >= end for begin, end in spans):
            return None
        return Region(tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans))

    def without(self, hole: Region) -> list[Region]:
        """Returns the part outside `hole`, as boxes that do not overlap."""
        common = self.overlap(hole)
        if common is None:
            return [self]
        left, offset, shape = [], list(self.offset), list(self.shape)
        for dim, (begin, size) in enumerate(zip(common.offset, common.shape, strict=True)):
            end = offset[dim] + shape[dim]
            for start, stop in ((offset[dim], begin), (begin + size, end)):
                if start < stop:
                    box = Region(tuple(offset), tuple(shape))
                    left.append(box.replace_dim(dim, start, stop - start))
            offset[dim], shape[dim] = begin, size
        return left

    def replace_dim(self, dim: int, begin: int, size: int) -> Region:
        """Returns the same box with other bounds in one dimension."""
        offset, shape = list(self.offset), list(self.shape)
        offset[dim], shape[dim] = begin, size
        return Region(tuple(offset), tuple(shape))

    def slices(self, base: Region) -> tuple[slice, ...]:
        """Returns the region as an index into a tensor that holds `base`."""
        return tuple(
            slice(begin - base_begin, begin - base_begin + size)
            for begin, base_begin, size in zip(self.offset, base.offset, self.shape, strict=True)
        )


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Tells whether a tensor is distributed over ranks.

    Where no code has imported torch's DTensor none exists, and this does not import it: that takes .6 s and 40 MB.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """Returns this rank's storage of a tensor; all of a plain one. Changes to it change the tensor."""
    with torch.no_grad():
        return tensor.to_local() if is_dtensor(tensor) else tensor.detach()


def region_of(tensor: Tensor) -> tuple[tuple[int, ...], Region, bool]:
    """Returns the part of a tensor that this rank holds: the full shape, the part, and whether this rank saves it.

    A part that lies on several ranks of the tensor's mesh belongs to the one at coordinate 0 of every replicated
    dimension, so that each is saved once. Parts may be uneven or empty. Where two dimensions of a mesh split the
    same dimension of the tensor, as FSDP2 on top of tensor parallelism does, the later one may have split first.

    Raises:
        ConfigError: a placement whose local part is not a box of the whole, such as a partial sum.
    """
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        return shape, Region.whole(shape), True
    from torch.distributed.tensor import Replicate

    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return shape, Region((0,) * len(shape), (0,) * len(shape)), False
    region, sizes = Region.whole(shape), tuple(tensor.device_mesh.shape)
    for axis in _split_order(tensor.placements, sizes):
        dim = tensor.placements[axis].dim % len(shape)  # type: ignore[attr-defined]
        size = region.shape[dim]
        part = -(-size // sizes[axis])
        begin = min(part * coordinate[axis], size)
        region = region.replace_dim(dim, region.offset[dim] + begin, min(part, size - begin))
    local = local_tensor(tensor)
    if region.numel != local.numel() or (region.numel and region.shape != tuple(local.shape)):
        raise ConfigError(
            f"local part of a sharded tensor does not match its layout {tensor.placements}",
            value=tuple(local.shape),
            expected=region.shape,
        )
    replicated = (axis for axis, placement in enumerate(tensor.placements) if isinstance(placement, Replicate))
    return shape, region, all(coordinate[axis] == 0 for axis in replicated)


def _split_order(placements: Sequence[Placement], sizes: Sequence[int]) -> list[int]:
    """Returns the mesh dimensions that split a tensor, in the order in which they did.

    A strided shard splits the result of the shards to its right.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    plain, strided = [], []
    for axis, placement in enumerate(placements):
        if isinstance(placement, _StridedShard):
            later = [
                size
                for size, later_placement in zip(sizes[axis + 1 :], placements[axis + 1 :], strict=True)
                if isinstance(later_placement, Shard | _StridedShard) and later_placement.dim == placement.dim
            ]
            if math.prod(later) != placement.split_factor:
                raise ConfigError("a strided shard lacks the shards that it strides over", value=placements)
            strided.append(axis)
        elif isinstance(placement, Shard):
            plain.append(axis)
        elif not isinstance(placement, Replicate):
            raise ConfigError("cannot save a tensor that is neither sharded nor replicated", value=placements)
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
        """Reads the index of a Hugging Face folder from the headers of its files: each tensor is one piece.

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
                        raise Incomplete(f"tensor {name!r} of {folder / file} has an unsupported type", value=dtype)
                    entries[name] = Entry(shape, DTYPES[dtype], (Piece(file, Region.whole(shape)),))
        return cls(folder, entries)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def plan_reads(self, name: str, region: Region) -> list[tuple[Piece, Region]]:
        """Returns the pieces that a region of a tensor consists of, and the part that each gives.

        Raises:
            Incomplete: a part of it lies nowhere.
        """
        entry, pieces = self._entries[name], []
        missing = [region] if region.numel else []
        for piece in entry.pieces:
            if not missing:
                break
            pieces += [(piece, part) for box in missing if (part := box.overlap(piece.region)) is not None]
            missing = [remainder for box in missing for remainder in box.without(piece.region)]
        if missing:
            raise Incomplete(
                f"no file of {self.folder} holds a part of tensor {name!r}",
                value=f"missing {missing[0].shape} at {missing[0].offset}",
                expected=entry.shape,
            )
        return pieces

    def whole(self, name: str) -> Tensor:
        """Reads a complete tensor to the CPU."""
        tensor = torch.empty(self._entries[name].shape, dtype=self._entries[name].dtype)
        fill(tensor, self, name)
        return tensor

    def tensors(self) -> dict[str, Tensor]:
        """Reads all tensors completely to the CPU."""
        tensors = {name: torch.empty(entry.shape, dtype=entry.dtype) for name, entry in self._entries.items()}
        fill_all(tensors.items(), self)
        return tensors


def fill(target: Tensor, index: Index, name: str) -> None:
    """Fills the part of a tensor that this rank holds from the index; see `fill_all`."""
    fill_all([(name, target)], index)


def fill_all(targets: Iterable[tuple[str, Tensor]], index: Index) -> None:
    """Fills the parts of tensors that this rank holds, whatever the layouts they are read from and into.

    Targets are (name in the index, tensor).

    Every file is opened once, and only the needed parts are read from it. Values are converted to the target's
    type. Nothing is changed before all names, shapes and parts have been found.

    Raises:
        Incomplete: a name, a part or a file is missing. ShapeMismatch: a tensor of another shape.
    """
    plan: dict[str, list[tuple[str, Piece, Region, Tensor]]] = {}
    for name, target in targets:
        if name not in index:
            raise Incomplete(f"{index.folder} lacks tensor {name!r}", value=f"{len(index)} tensors")
        shape, region, _ = region_of(target)
        if index[name].shape != shape:
            raise ShapeMismatch(
                f"tensor {name!r} of {index.folder} has the wrong shape", value=index[name].shape, expected=shape
            )
        local = local_tensor(target)
        for piece, part in index.plan_reads(name, region):
            plan.setdefault(piece.file, []).append((name, piece, part, local[part.slices(region)]))
    for file, reads in plan.items():
        with _opened(safe_join(index.folder, file)) as opened:
            for name, piece, part, destination in reads:
                if part == piece.region:
                    destination.copy_(opened.get_tensor(name))
                else:
                    destination.copy_(opened.get_slice(name)[part.slices(piece.region)])


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise Incomplete(f"{path} is missing", value="no file") from error
    except (SafetensorError, OSError) as error:
        raise Incomplete(f"{path} cannot be read as safetensors", value=str(error)) from error


def _weight_files(folder: Path) -> list[str]:
    """Lists the weight files of a folder, in the order in which transformers looks for them."""
    index_path = folder / "model.safetensors.index.json"
    try:
        if index_path.exists():
            return sorted(set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Incomplete(f"{index_path} cannot be read", value=str(error)) from error
    if not (folder / "model.safetensors").exists():
        raise Incomplete(f"{folder} has no weights", expected=f"model.safetensors or {index_path.name}")
    return ["model.safetensors"]

"""Memory of an engine: what is free on a device, and large tensors whose pages are taken when they are written.

On Linux and macOS a tensor of `lazy_zeros` is a private mapping of zeros: a page of it takes memory when it is first
written, and gives the memory back through `LazyMemory.release`. Reading an untouched page takes none.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["LazyMemory", "available_bytes", "lazy_zeros"]

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class LazyMemory:
    """A mapping of zeros below a tensor."""

    pages: mmap.mmap

    def release(self, first: int, last: int) -> None:
        """Gives the whole pages between two bytes back to the system; they read as zeros afterwards."""
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = last // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self.pages.madvise(mmap.MADV_DONTNEED, start, end - start)


def lazy_zeros(sizes: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, LazyMemory | None]:
    """Returns a tensor of zeros, and the mapping below it; None where the device takes all of its memory at once.

    Args:
        sizes: of the tensor.
    """
    length = math.prod(sizes) * dtype.itemsize
    if device.type != "cpu" or not hasattr(mmap, "MAP_ANONYMOUS") or not hasattr(mmap, "MADV_DONTNEED") or not length:
        return torch.zeros(sizes, dtype=dtype, device=device), None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would take 2 MB for one token
    return torch.frombuffer(pages, dtype=dtype).view(sizes), LazyMemory(pages)


def available_bytes(device: torch.device) -> int:
    """Returns how many bytes are free on a device: of main memory, what the system and a container's limit allow."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    limits = [_free_main_memory()]
    for limit_path, usage_path in _CGROUPS:
        try:
            limit = int(Path(limit_path).read_text(encoding="ascii"))
            limits.append(limit - int(Path(usage_path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no container, or no limit ("max")
            continue
    return max(0, min(limits))


def _free_main_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30

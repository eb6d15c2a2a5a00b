"""Placement of a model: its device, the numbers of its weights, and how much of its context is used.

Devices are those of torch: `cpu`, `cuda`, `cuda:1`, `mps`, or one that another package adds. They are checked before
weights are read, and so is the memory that the weights need.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from evolvent.errors import ConfigError, Problem, unknown_name_problem

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_CONTEXT",
    "DEVICE_PATTERN",
    "ContextSetting",
    "DtypeName",
    "Placement",
    "available_bytes",
    "check_memory",
    "find_device",
    "find_dtype",
    "multiplies_bfloat16",
]

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
ContextSetting = int | Literal["auto"] | None

DEFAULT_CONTEXT = 4096  # tokens of an episode where a model allows more: an engine's memory grows with them
DEVICE_PATTERN = re.compile(r"[a-z]+(:\d+)?")
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """The device, the numbers and the context of the models of a command.

    Attributes:
        device: the device of torch, as "cpu", "cuda:1" or "mps".
        dtype: the numbers of loaded weights; "auto": as they are stored.
        context: maximum tokens of an episode; "auto": 4,096, or the model's limit if that is less; None: the model's
            limit.
    """

    device: str = "cpu"
    dtype: DtypeName = "auto"
    context: ContextSetting = "auto"


def find_device(name: str | torch.device) -> torch.device:
    """Returns the device of a name after checking that this machine has it.

    Raises:
        ConfigError: an unknown device, or one that is not there.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        raise ConfigError([Problem("device", f"unknown device {str(name)!r}", "use cpu, cuda, cuda:N or mps")])
    if device.type == "cpu":
        return torch.device("cpu")
    count = _count_devices(device.type)
    if not count:
        message = f"got {str(name)!r}, but no {device.type} device was found"
        raise ConfigError([Problem("device", message, "set device to 'cpu'")])
    if (device.index or 0) >= count:
        message = f"got {str(name)!r}, expected {device.type}:0 to {device.type}:{count - 1}"
        raise ConfigError([Problem("device", message)])
    return device


def _count_devices(device_type: str) -> int:
    import torch

    try:
        backend = torch.get_device_module(device_type)
    except RuntimeError:  # this build of torch cannot use such devices
        return 0
    return int(backend.device_count()) if backend.is_available() else 0


def find_dtype(name: str) -> torch.dtype | None:
    """Returns the dtype of a name; None: that of the stored weights.

    Raises:
        ConfigError: another name.
    """
    import torch

    if name not in get_args(DtypeName):
        raise ConfigError([unknown_name_problem("dtype", name, get_args(DtypeName), location="dtype")])
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return dtypes.get(name)


def multiplies_bfloat16() -> bool:
    """Returns whether this CPU multiplies matrices of bfloat16 itself; others convert them, which is slower than
    float32.
    """
    with suppress(OSError):  # Linux tells without torch
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if flags is not None:
            return not {"avx512_bf16", "amx_tile"}.isdisjoint(flags[1].split())
    import torch

    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in names)


def check_memory(what: str, needed_bytes: int, device: torch.device) -> None:
    """Checks that a model's weights fit a device before they are read.

    Raises:
        ConfigError: less memory is free than the weights need.
    """
    free_bytes = available_bytes(device)
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"the weights of {what} do not fit the memory of {device}",
            value=f"{needed_bytes / 1e9:.2f} GB",
            expected=f"at most {free_bytes / 1e9:.2f} GB, which are free",
            hint="use --dtype bfloat16, another --device, or a smaller model",
        )


def available_bytes(device: torch.device) -> int:
    """Returns how many bytes are free on a device: of main memory, what the system and a container's limit allow."""
    import torch

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

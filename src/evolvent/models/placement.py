"""Placement of a model: its device, the numbers of its weights, and how much of its context is used.

Devices are those of torch: `cpu`, `cuda`, `cuda:1`, `mps`, or one that another package adds. They are checked before
weights are read, and so is the memory that the weights need.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from evolvent.errors import ConfigError, Problem, unknown_name_problem

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "DEFAULT_CONTEXT",
    "ContextSetting",
    "DtypeName",
    "Placement",
    "available_bytes",
    "check_memory",
    "check_working_memory",
    "find_device",
    "find_dtype",
    "find_memory_limit",
    "free_address_bytes",
    "is_device_name",
    "multiplies_bfloat16",
    "reserved_bytes",
    "token_bytes",
]

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
ContextSetting = int | Literal["auto"] | None

DEFAULT_CONTEXT = 4096  # tokens of an episode where a model allows more: an engine's memory grows with them
_DEVICE_PATTERN = re.compile(r"([a-z]+)(:\d+)?")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_MIB = 2**20
# Reports, threads and temporary values of a command beside its model, measured with the smallest one (`evolve` takes
# 360 MB of addresses after it has begun, glibc's arenas of 64 MB among them).
_PLAYING_BYTES, _TRAINING_BYTES = 256 * _MIB, 512 * _MIB
_RESIDENT_RATIO = 4  # of these addresses at most a quarter is memory
_TRAINED_WEIGHT_BYTES = 12  # a gradient and two moments, float32


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


# The kinds of device that torch itself knows and can compute on, or that a package can stand behind.
_DEVICE_TYPES = frozenset(
    ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia", "hip", "ipu", "ve", "fpga", "vulkan", "privateuseone")
)


def is_device_name(name: str) -> bool:
    """Returns whether a device can have this name, without importing torch: its form, and a kind that there is.

    `find_device` checks whether this machine has the device.

    >>> is_device_name("cuda:1"), is_device_name("cuda1")
    (True, False)
    """
    match = _DEVICE_PATTERN.fullmatch(name)
    return match is not None and (match[1] in _DEVICE_TYPES or _may_have_other_devices(match[1]))


def _may_have_other_devices(device_type: str) -> bool:
    """Returns whether torch may know a further kind of device: where it is loaded, or will load a package's."""
    return device_type != "meta" and ("torch" in sys.modules or bool(entry_points(group="torch.backends")))


def find_device(name: str | torch.device) -> torch.device:
    """Returns the device of a name after checking that this machine has it.

    Raises:
        ConfigError: an unknown device, or one that is not there.
    """
    unknown = ConfigError([Problem("device", f"unknown device {str(name)!r}", "use cpu, cuda, cuda:N or mps")])
    if not is_device_name(str(name)):
        raise unknown
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise unknown from error
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
    """Returns how many bytes are free on a device: of main memory, what `find_memory_limit` says."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return find_memory_limit()[0]


def find_memory_limit() -> tuple[int, str]:
    """Returns how many bytes of main memory this process can still take, and what sets that limit.

    The system's free memory, the limits of control groups, and the limit of addresses (`ulimit -v`).
    """
    limits = [(_free_main_memory(), "free main memory")]
    limits += [(free_bytes, "the limit of the control group") for free_bytes in _free_cgroup_bytes()]
    address_bytes = free_address_bytes()
    if address_bytes is not None:
        limits.append((address_bytes, "the limit of addresses (ulimit -v)"))
    free_bytes, name = min(limits)
    return max(0, free_bytes), name


def free_address_bytes() -> int | None:
    """Returns how many bytes of addresses this process can still take; None without a limit.

    Reserved addresses count, also where no page of them was written: libraries, stacks of threads, mapped files.
    """
    if sys.platform == "win32":
        return None
    import resource

    limits: list[int] = []
    with_fields = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))  # fields of statm: all, and data with stack
    try:
        fields = (_PROC / "self" / "statm").read_text(encoding="ascii").split()
        for limit_id, field in with_fields:
            soft_limit = resource.getrlimit(limit_id)[0]
            if soft_limit != resource.RLIM_INFINITY:
                limits.append(soft_limit - int(fields[field]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        return None
    return max(0, min(limits)) if limits else None


def check_working_memory(model: nn.Module, *, context: int, trains: bool, plays: bool = True) -> None:
    """Checks that a command's work with a model on the CPU fits the memory, before anything is played or trained.

    Args:
        model: the loaded model; its weights have been read already.
        context: tokens of the longest text.
        trains: whether its weights are trained too, by an optimizer with two moments.
        plays: whether episodes are played too, in a run with reports.
    Raises:
        ConfigError: less memory is free than the work needs.
    """
    weights = list(model.parameters())
    if any(weight.device.type != "cpu" for weight in weights):
        return
    needed_bytes = context * token_bytes(model)
    if trains:
        needed_bytes += _TRAINED_WEIGHT_BYTES * sum(weight.numel() for weight in weights if weight.requires_grad)
    free_bytes, limit_name = find_memory_limit()
    address_bytes, beside_bytes = free_address_bytes(), _TRAINING_BYTES if trains and plays else _PLAYING_BYTES
    if address_bytes == free_bytes:
        needed_bytes += beside_bytes
    else:
        needed_bytes += beside_bytes // _RESIDENT_RATIO
    if needed_bytes > free_bytes:
        is_address = address_bytes == free_bytes
        raise ConfigError(
            f"the work does not fit {limit_name}",
            value=f"{free_bytes / 1e9:.2f} GB",
            expected=f"at least {needed_bytes / 1e9:.2f} GB",
            hint="raise ulimit -v" if is_address else "set a lower --context, train an adapter, or use a smaller model",
        )


def reserved_bytes() -> int:
    """Returns the main memory that a training takes beside its model: reports, threads and temporary values."""
    return _TRAINING_BYTES if free_address_bytes() == find_memory_limit()[0] else _TRAINING_BYTES // _RESIDENT_RATIO


def token_bytes(model: nn.Module) -> int:
    """Returns the bytes of keys, values and the last hidden state of a token; 0 for a model that says no sizes."""
    config = getattr(model, "config", None)
    text_config = getattr(config, "text_config", None) or config
    hidden, layers, heads = (
        getattr(text_config, name, None) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    if not (isinstance(hidden, int) and isinstance(layers, int) and isinstance(heads, int) and heads):
        return 0
    kv_heads, head = getattr(text_config, "num_key_value_heads", None), getattr(text_config, "head_dim", None)
    kv_width = (kv_heads if isinstance(kv_heads, int) else heads) * (head if isinstance(head, int) else hidden // heads)
    itemsize = next(iter(model.parameters())).element_size()
    return (2 * layers * kv_width + hidden) * itemsize


def _free_cgroup_bytes() -> Iterator[int]:
    """Yields what the control groups of this process leave free: its own and all above it.

    Pages of files that the kernel gives back when memory is short are counted as free.
    """
    try:
        lines = (_PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    places = [("", "/", "memory.max", "memory.current")]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            places.append(("", path, "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            places.append(("memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    places.append(("memory", "/", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for mount, path, limit_name, usage_name in places:
        root = _CGROUPS / mount
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            try:
                limit = int((group / limit_name).read_text(encoding="ascii"))
                usage = int((group / usage_name).read_text(encoding="ascii"))
            except (OSError, ValueError):  # no such group here, or no limit ("max")
                continue
            yield limit - max(0, usage - _reclaimable_bytes(group))


def _reclaimable_bytes(group: Path) -> int:
    try:
        rows = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        sizes = {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return 0
    return sizes.get("total_inactive_file", sizes.get("inactive_file", 0))


def _free_main_memory() -> int:
    try:
        for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30

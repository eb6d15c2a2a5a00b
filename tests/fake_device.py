"""A device of torch that computes in main memory and refuses tensors of other devices, as a GPU does.

`register()` adds the device `fakegpu`. Its tensors are not CPU tensors: an operation that mixes both raises, except for
scalars, copies and indices, as on CUDA. So a program that runs here puts its tensors on the model's device. Registering
changes torch for the whole process: `run_commands` uses it in a forked one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.forks import context

NAME = "fakegpu"
_ATEN = torch.ops.aten
_TRANSFERS = {_ATEN._to_copy.default, _ATEN.copy_.default, _ATEN._local_scalar_dense.default}
operations = 0  # that ran on the device


class FakeDeviceTensor(torch.Tensor):
    """A tensor of the device; `cpu_data` holds its values."""

    @staticmethod
    def __new__(cls, cpu_data: torch.Tensor) -> FakeDeviceTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            cpu_data.shape,
            strides=cpu_data.stride(),
            storage_offset=cpu_data.storage_offset(),
            dtype=cpu_data.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, cpu_data: torch.Tensor) -> None:
        self.cpu_data = cpu_data

    def tolist(self) -> Any:
        return self.cpu_data.tolist()

    def storage(self) -> Any:
        return self.cpu_data.storage()

    def untyped_storage(self) -> Any:
        return self.cpu_data.untyped_storage()

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"{self.cpu_data!r} on {NAME}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Backend:
    """What torch asks of a device's module."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        pass

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    global operations
    operations += 1
    device_tensors: dict[int, FakeDeviceTensor] = {}
    cpu_tensors: list[torch.Tensor] = []

    def unwrap(value: Any) -> Any:
        if isinstance(value, FakeDeviceTensor):
            device_tensors[id(value.cpu_data)] = value
            return value.cpu_data
        if isinstance(value, torch.Tensor) and value.dim():
            cpu_tensors.append(value)
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value

    target = kwargs.get("device")
    cpu_args, cpu_kwargs = _map_leaves(unwrap, args), _map_leaves(unwrap, kwargs)
    is_index = func.name().startswith(("aten::index", "aten::_index"))
    if cpu_tensors and device_tensors and func not in _TRANSFERS and not is_index:
        raise RuntimeError(f"{func.name()}: expected all tensors on one device, found cpu and {NAME}")
    if func is _ATEN.is_pinned.default:
        return False
    result = func(*cpu_args, **cpu_kwargs)
    if func is _ATEN.copy_.default:
        return args[0]
    leaves_device = func is _ATEN._to_copy.default and target is not None and torch.device(target).type == "cpu"

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in device_tensors:
            return device_tensors[id(value)]
        return value if leaves_device else FakeDeviceTensor(value)

    return _map_leaves(wrap, result)


def _map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Changes what tuples, lists and dicts hold; the trees of operators have no others."""
    if type(tree) is dict:
        return {name: _map_leaves(change, branch) for name, branch in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)([_map_leaves(change, branch) for branch in tree])
    return change(tree)


class _NoGradMode(torch.no_grad):
    """Stands for `torch.inference_mode`, whose tensors cannot be wrapped."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()


class _Generator(torch.Generator):
    """A generator of the CPU, whatever device it is made for."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")


def register() -> None:
    """Adds the device to torch."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
    register.library = library  # type: ignore[attr-defined]  # it lives as long as the process
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied
    # `with torch.device(...)` lists once the functions that create tensors. With the one below in that list, models
    # that transformers builds without memory kept buffers that nothing had written.
    _device_constructors()
    make_tensor = torch.tensor

    def tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any) -> torch.Tensor:
        made = make_tensor(data, **options)
        made = made if device is None else made.to(device)
        return made.requires_grad_() if requires_grad else made

    torch.tensor = tensor  # type: ignore[assignment]
    torch.Generator = _Generator  # type: ignore[misc]
    torch.inference_mode = _NoGradMode  # type: ignore[misc,assignment]


def run_commands(commands: Sequence[str], folder: Path) -> list[tuple[int, bool]]:
    """Runs commands of evolvent one after another in one process that has this device.

    Args:
        commands: the words of each, without the name of the program.
        folder: where their output is kept.

    Returns:
        The exit code of each command and whether it ran an operation on the device.

    Raises:
        AssertionError: the process ended before its commands; the message is what it wrote.
    """
    process = context().Process(target=_run_commands, args=(list(commands), str(folder)), daemon=True)
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        process.join()
    ended = folder / "ended.json"
    assert process.exitcode == 0 and ended.exists(), (folder / "output").read_text(encoding="utf-8")
    return [(code, has_run) for code, has_run in json.loads(ended.read_text(encoding="utf-8"))]


def _run_commands(commands: list[str], folder: str) -> None:
    from evolvent.cli.main import main

    register()
    torch.use_deterministic_algorithms(True, warn_only=True)  # unwritten memory holds NaN, not what was there before
    ended = []
    with (Path(folder) / "output").open("w", encoding="utf-8", buffering=1) as output:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            for command in commands:
                count = operations
                code = main(command.split())
                ended.append((code, operations > count))
    (Path(folder) / "ended.json").write_text(json.dumps(ended), encoding="utf-8")

"""Linear layers of large models on a CPU, computed by oneDNN.

Outside of bfloat16, PyTorch multiplies matrices on a CPU with MKL. On processors that MKL does not know well this takes
more than twice as long as oneDNN, which comes with PyTorch too: 1,024 rows of 576 numbers with a weight of 3,072 x 576
in float32 take 35 ms on one core of an AMD EPYC, and 16 ms by oneDNN. Few rows, as in decoding, gain most from weights
that are laid out in blocks beforehand: all weights of a model with 135 million take 54 ms for 4 rows, and 22 ms so; in
bfloat16 22 ms and 13 ms.

oneDNN sums in another order than MKL: results differ by rounding. Small models, whose results are compared to the last
bit between machines, are not touched.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from evolvent.models.defaults import MIN_PRETRAINED
from evolvent.models.placement import available_bytes

__all__ = ["linear_by_onednn", "multiply_packed", "pack_weight", "packs_weights", "release_heap", "release_pages"]

_ROWS_HINT = 32  # for this many rows blocks are laid out such that all numbers of rows above one give equal bits
_MAX_COPY_SHARE = 0.25  # of the free memory
_MADV_PAGEOUT = 21


def packs_weights(weight: Tensor, num_parameters: int) -> bool:
    """Returns whether weights of a model of this size are to be packed: a large one's, on a CPU with oneDNN, where the
    copy takes at most a quarter of the free memory.
    """
    if not _multiplies_faster(weight, num_parameters):
        return False
    return num_parameters * weight.element_size() <= _MAX_COPY_SHARE * available_bytes(weight.device)


def _multiplies_faster(weight: Tensor, num_parameters: int) -> bool:
    if weight.device.type != "cpu" or num_parameters < MIN_PRETRAINED or not _has_onednn():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # type: ignore[no-untyped-call]


def pack_weight(weight: Tensor) -> Tensor:
    """Returns a weight `[out, in]` in oneDNN's blocks, a copy."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    return packed


def multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns `x [N, in] @ weight.T + bias`, `[N, out]`. From two rows on, a row does not depend on their number."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Lets the system take back the memory of tensors that were read from a file and are not needed for now.

    They keep their values: what is read again comes from the file. Tensors that are no part of a mapped file, or were
    changed, stay in memory. Does nothing where the system cannot do this.
    """
    if sys.platform != "linux":
        return
    mappings = _file_mappings()
    advise = ctypes.CDLL(None, use_errno=True).madvise
    for tensor in tensors:
        start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if tensor._version or not any(first <= start and start + size <= last for first, last in mappings):
            continue
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (tensor.data_ptr() + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


def release_heap(num_weights: int) -> None:
    """Gives freed memory of the C heap back to the system where a model is large; does nothing where that is not glibc.

    glibc keeps what is freed below a block in use: 1 GB after the weights of SmolLM2 were merged and packed.
    """
    if sys.platform == "linux" and num_weights >= MIN_PRETRAINED:
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _file_mappings() -> list[tuple[int, int]]:
    """Returns the addresses at which files lie in this process's memory: first and beyond the last."""
    found = []
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            first, last = addresses.split("-")
            found.append((int(first, 16), int(last, 16)))
    return found


class _OneDnnLinear(torch.autograd.Function):
    """`x @ weight.T + bias` and its gradients, with all three matrix products by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # The gradient of x needs no x: below an adapter, where weights are frozen, it is not kept.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.has_bias = bias is not None
        ctx.x_shape = x.shape
        return multiply_packed(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        x_gradient = multiply_packed(gradient, weight.t()).view(ctx.x_shape) if needs_x else None
        weight_gradient = multiply_packed(gradient.t(), x.reshape(-1, x.shape[-1]).t()) if needs_weight else None
        return x_gradient, weight_gradient, gradient.sum(0) if ctx.has_bias and needs_bias else None


class _LinearMode(TorchFunctionMode):
    """Sends the linear layers of large float32 weights to oneDNN."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and not torch.is_autocast_enabled("cpu"):
            x, weight, bias = _bind_linear(*args, **kwargs)
            if _pays(x, weight):
                return _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _bind_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the arguments of `torch.nn.functional.linear` in order."""
    return input, weight, bias


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Returns whether a product is large enough, and of plain tensors in float32: no shards, no quantized weights."""
    is_plain = all(type(each) in (Tensor, torch.nn.Parameter) for each in (x, weight))
    return is_plain and x.dtype == weight.dtype == torch.float32 and x.numel() > x.shape[-1] and weight.numel() >= 2**14


@contextmanager
def linear_by_onednn(model: torch.nn.Module) -> Iterator[None]:
    """Computes the model's linear layers and their gradients by oneDNN in this block, where that pays: float32 weights
    of a large model on a CPU. Layers that are compiled, or computed again in the backward pass, stay as they are.
    """
    first = next(model.parameters())
    num_parameters = sum(each.numel() for each in model.parameters())
    pays = first.dtype == torch.float32 and _multiplies_faster(first, num_parameters)
    if not pays or any(map(_is_special, model.modules())):
        yield
        return
    with _LinearMode():
        yield


def _is_special(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None or bool(getattr(module, "gradient_checkpointing", False))

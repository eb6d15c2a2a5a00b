"""Layers of large models on a CPU: linear ones by oneDNN; adapters, norms and attention of short rows in fewer pieces.

Outside of bfloat16, PyTorch multiplies matrices on a CPU with MKL. On processors that MKL does not know well this takes
more than twice as long as oneDNN, which comes with PyTorch too: 1,024 rows of 576 numbers with a weight of 3,072 x 576
in float32 take 35 ms on one core of an AMD EPYC, and 16 ms by oneDNN. Few rows, as in decoding, gain most from weights
that are laid out in blocks beforehand: all weights of a model with 135 million take 54 ms for 4 rows, and 22 ms so; in
bfloat16 22 ms and 13 ms.

A layer with a LoRA adapter is five modules, which read their input in two precisions and keep it twice. Computed as one
function it has two small matrix products beside the large one. A norm is seven operations in two precisions, and almost
three times as fast as one function. The backward pass of PyTorch's attention is slow for short rows in bfloat16: it
takes 1.6 of 5.6 seconds of an update of SmolLM2 with 8 rows of 126 tokens.

All this sums in another order: results differ by rounding. Small models, whose results are compared to the last bit
between machines, are not touched.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from evolvent.models.defaults import MIN_PRETRAINED
from evolvent.models.placement import available_bytes

__all__ = ["fast_layers", "multiply_packed", "pack_weight", "packs_weights", "release_heap", "release_pages"]

_ROWS_HINT = 32  # for this many rows blocks are laid out such that all numbers of rows above one give equal bits
_MAX_COPY_SHARE = 0.5  # of the free memory
_MADV_PAGEOUT = 21
_MAX_ATTENTION = 512  # tokens of a row; for longer ones PyTorch's attention is as fast and keeps less


def packs_weights(weight: Tensor, num_parameters: int) -> bool:
    """Returns whether weights of a model of this size are to be packed: a large one's, on a CPU with oneDNN, where the
    copy takes at most half of the free memory.
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
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        x_gradient = multiply_packed(gradient, weight.t()).view(ctx.x_shape) if needs_x else None
        weight_gradient = multiply_packed(gradient.t(), x.reshape(-1, x.shape[-1]).t()) if needs_weight else None
        return x_gradient, weight_gradient, gradient.sum(0) if ctx.has_bias and needs_bias else None


class _LayerMode(TorchFunctionMode):
    """Sends linear layers with large float32 weights to oneDNN, and attention that learns to `_Attention`.

    Args:
        by_onednn: whether linear layers are sent.
    """

    def __init__(self, *, by_onednn: bool) -> None:
        super().__init__()
        self._by_onednn = by_onednn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and self._by_onednn and not torch.is_autocast_enabled("cpu"):
            x, weight, bias = _bind_linear(*args, **kwargs)
            if _pays(x, weight):
                return _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        if func is F.scaled_dot_product_attention:
            result = _attend(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def _bind_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the arguments of `torch.nn.functional.linear` in order."""
    return input, weight, bias


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Returns whether a product is large enough, and of plain tensors in float32: no shards, no quantized weights."""
    is_plain = all(type(each) in (Tensor, torch.nn.Parameter) for each in (x, weight))
    return is_plain and x.dtype == weight.dtype == torch.float32 and x.numel() > x.shape[-1] and weight.numel() >= 2**14


class _LoraLinear(torch.autograd.Function):
    """`x @ weight.T + bias + scaling * x @ a.T @ b.T` of a frozen weight, and its gradients.

    All products are computed in the numbers of `x` and `weight`; the adapter's gradients have the adapter's.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        down, up = a.to(x.dtype), (b * scaling).to(x.dtype)
        inner = rows @ down.t()
        result = _multiply(rows, weight, bias).addmm_(inner, up.t())
        ctx.save_for_backward(rows, inner, weight, down, up)
        ctx.scaling, ctx.x_shape, ctx.dtypes = scaling, x.shape, (a.dtype, b.dtype)
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, inner, weight, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        inner_gradient = gradient @ up
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = _multiply(gradient, weight.t(), None).addmm_(inner_gradient, down).view(ctx.x_shape)
        a_gradient = (inner_gradient.t() @ rows).to(ctx.dtypes[0])
        b_gradient = (gradient.t() @ inner).to(ctx.dtypes[1]) * ctx.scaling
        return x_gradient, None, None, a_gradient, b_gradient, None


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns `x [N, in] @ weight.T + bias`, in float32 by oneDNN where that pays."""
    return multiply_packed(x, weight, bias) if _pays(x, weight) else F.linear(x, weight, bias)


def _run_lora(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Runs peft's linear layer with one LoRA adapter as one function, where its parts allow that."""
    name = _plain_adapter(module)
    autocast = torch.is_autocast_enabled("cpu")
    weight = module.base_layer.weight
    dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    if name is None or args or kwargs or (not autocast and weight.dtype != dtype):
        result: Tensor = type(module).forward(module, x, *args, **kwargs)
        return result
    bias = module.base_layer.bias
    with torch.autocast("cpu", enabled=False):
        product: Tensor = _LoraLinear.apply(  # type: ignore[no-untyped-call]
            x.to(dtype),
            weight.to(dtype),
            None if bias is None else bias.to(dtype),
            module.lora_A[name].weight,
            module.lora_B[name].weight,
            module.scaling[name],
        )
    return product


def _plain_adapter(module: Any) -> str | None:
    """Returns the one active adapter of a layer of peft whose parts are plain; None where any is not."""
    active = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or len(active) != 1 or active[0] in module.lora_variant:
        return None
    base, a, b = module.base_layer, module.lora_A[active[0]], module.lora_B[active[0]]
    dropout = module.lora_dropout[active[0]]
    is_plain = all(type(layer) is torch.nn.Linear for layer in (base, a, b)) and a.bias is None and b.bias is None
    weights = [layer.weight for layer in (base, a, b)] if is_plain else []
    has_hooks = any(layer._forward_hooks or layer._forward_pre_hooks for layer in (base, a, b, dropout))
    drops = type(dropout) is not torch.nn.Identity and module.training
    if not is_plain or has_hooks or drops or any(type(weight) is not torch.nn.Parameter for weight in weights):
        return None
    return None if base.weight.requires_grad or base.weight.device.type != "cpu" else active[0]


# ---------------------------------------------------------------- norms


class _RmsNorm(torch.autograd.Function):
    """`x / rms(x) * weight` over the last dimension, which keeps its input and one number a row for the backward pass.

    As in Llama, the quotient is computed in float32 and rounded to the numbers of `x` before it meets the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        in_float = x.float()
        norm = torch.linalg.vector_norm(in_float, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        normalized: Tensor = (in_float * inverse).to(x.dtype).mul_(weight)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        gradient, quotient = gradients[0].float(), x.float() * inverse
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (gradient * quotient).flatten(0, -2).sum(0).to(weight.dtype)
        inner = gradient * weight.float()
        means = (inner * quotient).mean(-1, keepdim=True)
        return inner.sub_(quotient.mul_(means)).mul_(inverse).to(x.dtype), weight_gradient, None


def _run_norm(module: Any, x: Tensor) -> Tensor:
    """Runs a model's norm as one function where its numbers are those of its weight."""
    learns = torch.is_grad_enabled() and (x.requires_grad or module.weight.requires_grad)
    if not learns or x.dtype != module.weight.dtype or type(module.weight) is not torch.nn.Parameter:
        normalized: Tensor = type(module).forward(module, x)
        return normalized
    result: Tensor = _RmsNorm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return result


@cache
def _is_rms_norm(kind: Callable[..., torch.nn.Module]) -> bool:
    """Returns whether modules of a class compute what `_RmsNorm` does, tried on one of them.

    The answer is kept, so the trial has real numbers even where tensors of the caller have none, as on `meta`.
    """
    if not getattr(kind, "__name__", "").endswith("RMSNorm"):
        return False
    with unset_fake_temporarily(), torch.device("cpu"), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float32) for shape in ((3, 8), (8,)))
        try:
            trial: Any = kind(8, eps=0.1).float()
            trial.weight.data.copy_(weight)
            expected = _RmsNorm.apply(x, weight, trial.variance_epsilon)  # type: ignore[no-untyped-call]
            return bool(torch.allclose(trial(x), expected, atol=1e-5))
        except (AttributeError, TypeError, RuntimeError):  # it is made in another way, or has other parts
            return False


# ---------------------------------------------------------------- attention


class _Attention(torch.autograd.Function):
    """Attention of short rows, which keeps its probabilities for the backward pass.

    `q [B, H, T, D]`, `k [B, G, S, D]` and `v` alike, each key for the heads of a group. Scores are computed in float32,
    to which `mask [1 or B, 1 or H, T, S]` is added.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.num_groups, ctx.scale = k.shape[1], scale
        queries, keys, values = _flatten_heads(q, 1), _flatten_heads(k, q.shape[1]), _flatten_heads(v, q.shape[1])
        scores = torch.bmm(queries.float() * scale, keys.float().transpose(1, 2)).view(*q.shape[:3], -1)
        shares = scores.add_(mask).softmax(-1).to(q.dtype).flatten(0, 1)
        ctx.save_for_backward(queries, keys, values, shares)
        return torch.bmm(shares, values).view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, shares = ctx.saved_tensors
        shape = gradients[0].shape
        gradient = gradients[0].reshape(-1, *shape[2:])
        share_gradient = torch.bmm(gradient, values.transpose(1, 2))
        changes = torch._softmax_backward_data(share_gradient, shares, -1, shares.dtype)
        q_gradient = torch.bmm(changes, keys).mul_(ctx.scale).view(shape)
        of_keys = torch.bmm(changes.transpose(1, 2), queries).mul_(ctx.scale)
        of_values = torch.bmm(shares.transpose(1, 2), gradient)
        grouped = (shape[0], ctx.num_groups, shape[1] // ctx.num_groups, *keys.shape[1:])
        return q_gradient, of_keys.view(grouped).sum(2), of_values.view(grouped).sum(2), None, None


def _flatten_heads(x: Tensor, num_heads: int) -> Tensor:
    """Returns `[B * H, T, D]` of `[B, G, T, D]`, every group repeated for its heads."""
    repeats = max(1, num_heads // x.shape[1])
    return x[:, :, None].expand(-1, -1, repeats, -1, -1).reshape(-1, *x.shape[2:])


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Attends as `scaled_dot_product_attention` does; returns None where PyTorch's own is to be used.

    `_Attention` pays for rows of at most 512 tokens in bfloat16: there the backward pass takes 8 ms for 8 rows of 126
    tokens and 9 heads, and PyTorch's 44 ms. It is for rows that learn, on a CPU, without dropout.
    """
    tensors = (query, key, value)
    if not all(type(each) is Tensor and each.dim() == 4 and each.device.type == "cpu" for each in tensors):
        return None
    autocast = torch.is_autocast_enabled("cpu")
    dtypes = {torch.get_autocast_dtype("cpu")} if autocast else {each.dtype for each in tensors}
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    num_queries, num_keys = query.shape[2], key.shape[2]
    is_short = num_queries == num_keys and 1 < num_queries <= _MAX_ATTENTION
    heads_fit = query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
    if not (learns and is_short and heads_fit and dtypes == {torch.bfloat16}) or dropout_p:
        return None
    shapes_fit = key.shape == value.shape and len(query) == len(key) and query.shape[-1] == key.shape[-1]
    mask = _make_mask(attn_mask, is_causal=is_causal, length=num_queries)
    if not shapes_fit or mask is None:
        return None
    with torch.autocast("cpu", enabled=False):
        result: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            *(each.bfloat16() for each in tensors), mask, query.shape[-1] ** -0.5 if scale is None else scale
        )
    return result


def _make_mask(mask: Tensor | None, *, is_causal: bool, length: int) -> Tensor | None:
    """Returns numbers to add to the scores of `length` queries, in four dimensions; None where the mask is of another
    kind, or learns.
    """
    if mask is None:
        shape = (1, 1, length, length)
        return torch.full(shape, -torch.inf).triu_(1) if is_causal else torch.zeros(shape)
    if is_causal or mask.dim() != 4 or mask.requires_grad or mask.shape[-2:] != (length, length):
        return None
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else mask


# ---------------------------------------------------------------- the context


@contextmanager
def fast_layers(model: torch.nn.Module) -> Iterator[None]:
    """Computes the layers of a large model on a CPU in this block, and their gradients, as this module does.

    Linear layers in float32 go to oneDNN, those with a LoRA adapter and the norms of Llama's kind are one function
    each, and short rows in bfloat16 keep the probabilities of their attention. Layers that are compiled, or computed
    again in the backward pass, stay as they are.
    """
    first = next(model.parameters(), None)
    num_parameters = sum(each.numel() for each in model.parameters())
    is_large = first is not None and first.device.type == "cpu" and num_parameters >= MIN_PRETRAINED
    if first is None or not is_large or any(map(_is_special, model.modules())):
        yield
        return
    replaced = [(module, run) for module in model.modules() if (run := _find_function(module)) is not None]
    for module, run in replaced:
        module.forward = partial(run, module)
    try:
        with _LayerMode(by_onednn=_multiplies_faster(first, num_parameters)):
            yield
    finally:
        for module, _ in replaced:
            del module.forward


def _find_function(module: torch.nn.Module) -> Callable[..., Tensor] | None:
    """Returns the function that computes a module in one piece; None where it stays as it is."""
    kind = type(module)
    if "forward" in vars(module):  # someone else replaced it
        return None
    if kind.__module__ == "peft.tuners.lora.layer" and kind.__qualname__ == "Linear":
        return _run_lora
    return _run_norm if _is_rms_norm(kind) else None  # type: ignore[arg-type]  # a class can be hashed


def _is_special(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None or bool(getattr(module, "gradient_checkpointing", False))

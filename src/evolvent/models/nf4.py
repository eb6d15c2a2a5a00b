"""Linear layers whose frozen weights are 4-bit numbers, below an adapter (QLoRA, arXiv 2305.14314).

A weight is one of the 16 levels of NF4 times the scale of its block of 64. A scale is an 8-bit number times the scale
of its 256 blocks: 4.13 bits a weight in all. Layers compute in the dtype of their input: weights are dequantized in
the forward and again in the backward, one layer at a time.

The levels are those of bitsandbytes, and so are the chosen levels of all weights. Scales differ: theirs are rounded to
a table of floats, these to multiples of 1/256 of the largest. So weights that were dequantized are quantized to the
same numbers again, and a model folder of floats is enough to store a base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "LEVELS",
    "NF4Linear",
    "count_weights",
    "dequantize_layers",
    "iterate_buffers",
    "list_nf4_layers",
    "quantize_layers",
]

LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution between -1 and 1, with an exact 0 (arXiv 2305.14314, appendix E)."""

_BLOCK = 64  # weights that share a scale
_GROUP = 256  # scales that share a scale
_STEPS = 256  # a power of two, so that the largest scale of a group is exact


class NF4Linear(nn.Linear):
    """A linear layer with a frozen weight of 4-bit numbers.

    Attributes:
        codes: [num_weights / 2], uint8. Two levels each, the first in the high bits.
        scales: [num_weights / 64], uint8. Scale of each block, in steps of its group, less one.
        steps: [num_weights / 64 / 256], float32. The step of each group.
    """

    codes: Tensor
    scales: Tensor
    steps: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self._dtype = weight.dtype
        for name, buffer in zip(("codes", "scales", "steps"), _quantize(weight), strict=True):
            self.register_buffer(name, buffer)
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # computed when it is read
        """Returns the weight `[out_features, in_features]` as floats, a copy."""
        return self.dequantize(self._dtype)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Returns the weight `[out_features, in_features]` in a dtype."""
        levels = torch.tensor(LEVELS, device=self.codes.device)
        codes = torch.stack([self.codes >> 4, self.codes & 15], dim=-1).view(-1, _BLOCK)
        scales = _scale_steps(self.scales, self.steps)
        count = self.out_features * self.in_features
        weights = levels[codes.int()] * scales.unsqueeze(-1)
        return weights.view(-1)[:count].view(self.out_features, self.in_features).to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Computes `input @ weight.T + bias` in the input's dtype, or in that of autocast."""
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            input = input.to(torch.get_autocast_dtype(device_type))
        output: Tensor = _FrozenProduct.apply(input, self)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NF4Linear:
        """Moves the numbers; a conversion changes the dtype of the weight that is computed, and not its numbers."""
        steps = self.steps
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.steps = steps.to(self.codes.device)
        self._dtype = fn(torch.empty(0, dtype=self._dtype, device=steps.device)).dtype
        return self

    def to_linear(self) -> nn.Linear:
        """Returns a plain layer with the same weight as floats."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight, requires_grad=False)
        linear.bias = self.bias
        return linear


class _FrozenProduct(torch.autograd.Function):
    """`x @ weight.T` and its gradient of x, for which the weight is dequantized again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NF4Linear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.dequantize(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.dequantize(gradient.dtype), None


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, scales and steps of a weight; see `NF4Linear`. On the meta device, only their shapes.

    >>> codes, scales, steps = _quantize(torch.tensor([[2.0, -1.0, 0.1, 0.0]]))
    >>> codes[:2].tolist(), scales.tolist(), steps.tolist()
    ([242, 135], [255], [0.0078125])
    """
    num_blocks = -(-weight.numel() // _BLOCK)
    if weight.is_meta:
        sizes = ((num_blocks * _BLOCK // 2, torch.uint8), (num_blocks, torch.uint8))
        codes, scales = (torch.empty(size, dtype=dtype, device="meta") for size, dtype in sizes)
        return codes, scales, torch.empty(-(-num_blocks // _GROUP), device="meta")
    flat = weight.reshape(-1).float()
    blocks = F.pad(flat, (0, num_blocks * _BLOCK - flat.numel())).view(num_blocks, _BLOCK)
    largest = blocks.abs().amax(-1)
    levels = torch.tensor(LEVELS, device=weight.device)
    bounds = (levels[1:] + levels[:-1]) / 2
    normalized = blocks / largest.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
    codes = torch.bucketize(normalized, bounds).to(torch.uint8).view(-1, 2)
    num_groups = -(-num_blocks // _GROUP)
    groups = F.pad(largest, (0, num_groups * _GROUP - num_blocks)).view(num_groups, _GROUP)
    steps = groups.amax(-1) / _STEPS
    scales = (groups / steps.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)).round() - 1
    return codes[:, 0] << 4 | codes[:, 1], scales.clamp(0, _STEPS - 1).to(torch.uint8).view(-1)[:num_blocks], steps


def _scale_steps(scales: Tensor, steps: Tensor) -> Tensor:
    """Returns the scale of each block."""
    return (scales.float() + 1) * steps.repeat_interleave(_GROUP)[: len(scales)]


# ---------------------------------------------------------------------- models


def list_nf4_layers(model: nn.Module) -> dict[str, NF4Linear]:
    """Returns the layers of a model that have 4-bit weights, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, NF4Linear)}


def quantize_layers(model: PreTrainedModel) -> int:
    """Replaces the linear layers of a model's decoder layers, in place; embeddings and head stay floats.

    Returns:
        The number of layers that have 4-bit weights now.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None:
        return 0
    plain_layers = {name: linear for name, linear in layers.named_modules() if type(linear) is nn.Linear}
    for name, linear in plain_layers.items():
        layers.set_submodule(name, NF4Linear(linear))
    return len(plain_layers)


def dequantize_layers(model: nn.Module) -> None:
    """Replaces the layers with 4-bit weights by plain ones, in place."""
    for name, layer in list_nf4_layers(model).items():
        model.set_submodule(name, layer.to_linear())


def count_weights(model: nn.Module) -> int:
    """Counts the weights of a model, those of 4 bits among them."""
    frozen = sum(layer.out_features * layer.in_features for layer in list_nf4_layers(model).values())
    return frozen + sum(weight.numel() for weight in model.parameters())


def iterate_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of the 4-bit weights, by their names in the model."""
    for layer_name, layer in list_nf4_layers(model).items():
        for name, buffer in layer.named_buffers():
            yield f"{layer_name}.{name}", buffer

"""Log-probabilities of targets from hidden states, without the logits of all targets at once.

A head of 50,000 to 150,000 tokens makes logits, their softmax and its gradient the largest tensors of a step: 3 x 4
bytes x N x V. Here the head is applied to blocks of rows. For a frozen head (LoRA) the forward already computes the
direction of each row's gradient, `(W[y] - sum_v p_v W[v]) / T`, which is `[N, H]`; the backward only scales it. For a
trained head the backward computes each block's logits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["block_size", "head_logprobs"]

_BLOCK_LOGITS = {"cpu": 1 << 22}  # logits of a block: 16 MiB in float32
_BLOCK_LOGITS_ON_DEVICES = 1 << 25  # enough rows that reading the weights again for each block costs little


def block_size(device_type: str) -> int:
    """Returns the number of logits that are computed at once on a type of device."""
    return _BLOCK_LOGITS.get(device_type, _BLOCK_LOGITS_ON_DEVICES)


def head_logprobs(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float32,
    needs_entropy: bool = False,
    block_logits: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Computes `log softmax(z / T)[y]` and the entropy of `softmax(z / T)` for `z = states @ weight.T + bias`.

    Args:
        states: `[N, H]`, hidden states at the targets.
        weight: `[V, H]` of the head.
        bias: `[V]`, or None.
        targets: `[N]` int64, token ids.
        temperature: T.
        dtype: of the matrix products; softmax and sums are in float32.
        needs_entropy: whether the entropy is computed.
        block_logits: number of logits that are computed at once; None: 4 million on a CPU, 32 million on a device.

    Returns:
        log-probabilities `[N]`, differentiable once, and entropies `[N]` in nats without a graph, or None; float32.

    >>> import torch
    >>> states, weight = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0986123, 5.0]])
    >>> outputs = head_logprobs(states, weight, None, torch.tensor([1]), needs_entropy=True)
    >>> [round(float(x), 4) for x in outputs]  # log(3/4), and the entropy of (1/4, 3/4)
    [-0.2877, 0.5623]
    """
    rows = max(1, (block_logits or block_size(states.device.type)) // weight.shape[0])
    logprobs, entropy = _HeadLogprobs.apply(states, weight, bias, targets, temperature, dtype, rows, needs_entropy)  # type: ignore[no-untyped-call]
    return logprobs, entropy if needs_entropy else None


class _HeadLogprobs(torch.autograd.Function):
    """Computes log-probabilities and entropies block by block; see `head_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        dtype: torch.dtype,
        rows: int,
        needs_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        needs_direction = ctx.needs_input_grad[0] and not trains_head
        weight_in_dtype = weight.detach().to(dtype)
        logprobs = torch.empty(len(states), dtype=torch.float32, device=states.device)
        entropy = torch.empty_like(logprobs) if needs_entropy else logprobs.new_empty(0)
        direction = torch.empty_like(states) if needs_direction else None
        for block in _blocks(len(states), rows):
            scaled = _scaled_logits(states[block], weight_in_dtype, bias, temperature)
            log_sum = scaled.logsumexp(-1, keepdim=True)
            target_logits = scaled.gather(-1, targets[block][:, None])
            logprobs[block] = (target_logits - log_sum)[:, 0]
            if direction is None and not needs_entropy:
                continue
            probabilities = scaled.sub_(log_sum).exp()
            if needs_entropy:
                entropy[block] = -scaled.mul_(probabilities).sum(-1)
            if direction is not None:
                mean_row = F.linear(probabilities.to(dtype), weight_in_dtype.t())
                target_row = weight_in_dtype.index_select(0, targets[block])
                direction[block] = ((target_row - mean_row) / temperature).to(direction.dtype)
        ctx.mark_non_differentiable(entropy)
        ctx.options = temperature, dtype, rows
        if direction is not None:
            ctx.save_for_backward(direction)
        elif trains_head:
            ctx.save_for_backward(states, weight, bias, targets)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        if not trains_head:
            (direction,) = ctx.saved_tensors
            return (direction * gradient[:, None].to(direction.dtype), *[None] * 7)
        states, weight, bias, targets = ctx.saved_tensors
        temperature, dtype, rows = ctx.options
        weight_in_dtype = weight.to(dtype)
        states_gradient = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_gradient = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for block in _blocks(len(states), rows):
            scaled = _scaled_logits(states[block], weight_in_dtype, bias, temperature)
            row_gradient = gradient[block, None] / temperature
            logits_gradient = scaled.softmax(-1).mul_(-row_gradient)
            logits_gradient.scatter_add_(-1, targets[block][:, None], row_gradient)
            if bias_gradient is not None:
                bias_gradient += logits_gradient.sum(0).to(bias_gradient.dtype)
            logits_gradient = logits_gradient.to(dtype)
            if states_gradient is not None:
                states_gradient[block] = F.linear(logits_gradient, weight_in_dtype.t()).to(states.dtype)
            if weight_gradient is not None:
                weight_gradient += (logits_gradient.t() @ states[block].to(dtype)).to(weight_gradient.dtype)
        return states_gradient, weight_gradient, bias_gradient, *[None] * 5


def _blocks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def _scaled_logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Returns `z / T` of a block in float32, a tensor of its own."""
    logits = F.linear(states.to(weight.dtype), weight, None if bias is None else bias.detach().to(weight.dtype)).float()
    return logits if temperature == 1.0 else logits.div_(temperature)

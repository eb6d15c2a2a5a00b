"""What a training costs while it runs: speed, share of the device's matrix-product ceiling, memory by kind, waiting.

Rows are plain JSON values under the update's number; they are measurements, so no two runs have the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.learn.parallel.ranks import ALONE, Ranks
from evolvent.learn.progress import Metrics

__all__ = ["Cost", "Monitor", "gemm_ceiling", "memory"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations of training, by what is fed and what is learned (forward and backward).

    Attributes:
        body: a fed token's, in the matrix products of the layers: 6 times their weights.
        head: a target's, in the output embedding, which sees targets only.
        attention: a fed token's, for each token of its row: 12 x layers x heads x head size, halved by causality.
    """

    body: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: Any) -> Cost:
        """The cost of a whole Hugging Face causal LM; frozen weights cost their forward and the way through, 4 of 6."""
        config = model.config
        head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        body = sum(
            (6.0 if weight.requires_grad else 4.0) * weight.numel()
            for weight in model.parameters()
            if weight.dim() > 1 and weight is not head and weight is not embedding
        )
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 6.0 * config.num_hidden_layers * config.num_attention_heads * size
        return cls(body, (6.0 if head.requires_grad else 4.0) * head.numel(), attention)

    def operations(self, fed: int, targets: int, length: float) -> float:
        """Of `fed` tokens in rows of `length`, with so many targets."""
        return fed * (self.body + self.attention * length) + targets * self.head


def gemm_ceiling(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> float:
    """Operations per second of large square matrix products on this device, the median of what fits the time."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    _ = left @ right
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 3:
        _wait(device)
        start = time.perf_counter()
        _ = left @ right
        _wait(device)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / sorted(times)[len(times) // 2]


def memory(parameters: Iterable[Tensor], optimizer: Optimizer, device: torch.device) -> dict[str, int]:
    """Bytes of this rank by kind: weights, gradients, optimizer state (its parts only), and the process' peak."""
    weights = list(parameters)
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"parameters": _bytes(weights), "gradients": _bytes(grads), "optimizer": _bytes(state), "peak": int(peak)}


@dataclass
class Monitor:
    """Turns metrics of updates into rows about their cost, one for every `every` seconds.

    Args:
        cost: of the whole model. ceiling: operations per second of one rank's device.
        parameters, optimizer: of this rank. ranks: all of them share the work.
    """

    cost: Cost
    ceiling: float
    parameters: list[Tensor]
    optimizer: Optimizer
    ranks: Ranks = ALONE
    every: float = 2.0
    _since: float = field(default_factory=time.perf_counter)
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("fed", "padded", "tokens", "waited"), 0.0))

    def __call__(self, metrics: Metrics, *, waited: float = 0.0, length: float = 0.0) -> Mapping[str, Any] | None:
        """A row where one is due.

        Args:
            waited: seconds that the update waited for its batches. length: mean tokens of its rows.
        """
        sums = self._sums
        for name, value in (("fed", metrics.fed), ("padded", metrics.padded), ("tokens", metrics.tokens)):
            sums[name] += value
        sums["waited"] += waited
        spent = time.perf_counter() - self._since
        if spent < self.every or spent <= 0:
            return None
        work = self.cost.operations(int(sums["fed"]), int(sums["tokens"]), length)
        kinds = memory(self.parameters, self.optimizer, self.ranks.device)
        row = {
            "step": metrics.update,
            "tokens_per_s": round(sums["fed"] / spent, 1),
            "pad_fraction": round(sums["padded"] / max(1.0, sums["fed"] + sums["padded"]), 4),
            "gemm_share": round(work / spent / (self.ceiling * self.ranks.mesh.size), 4),
            "data_wait": round(sums["waited"] / spent, 4),
            **{f"{kind}_bytes": size for kind, size in kinds.items()},
        }
        self._since = time.perf_counter()
        self._sums = dict.fromkeys(sums, 0.0)
        return row


def _bytes(tensors: Iterable[Tensor]) -> int:
    local = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

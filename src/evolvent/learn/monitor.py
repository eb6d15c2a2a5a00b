"""What a training costs while it runs: speed, share of the device's matrix-product ceiling, memory by kind, waiting.

Rows are plain JSON values under the update's number; they are measurements, so no two runs have the same.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.learn.parallel.ranks import ALONE, Ranks
from evolvent.learn.progress import Metrics
from evolvent.learn.token_sequences import Parts

if TYPE_CHECKING:
    from evolvent.learn.cost import Cost
    from evolvent.learn.learner import Learner

__all__ = ["Monitor", "gemm_ceiling", "memory", "monitored"]

_WORDS = {"logprobs", "teacher", "sampled"}  # needs that run the head


def gemm_ceiling(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> float:
    """Operations per second of large square matrix products here, in this dtype and with torch's threads.

    The fastest of what fits the time: on a shared machine others take turns. Called by all ranks at once they share
    what they share. Random numbers of the training are not touched.
    """
    size = 512 * math.ceil(torch.get_num_threads() ** (1 / 3)) if device.type == "cpu" else 8192
    numbers = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    out = left @ right
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 3:
        _wait(device)
        start = time.perf_counter()
        torch.matmul(left, right, out=out)
        _wait(device)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times)


def memory(parameters: Iterable[Tensor], optimizer: Optimizer, device: torch.device) -> dict[str, int]:
    """Bytes of this rank by kind: weights, gradients, optimizer state (its parts only), and the process' peak.

    The peak is of tensors on CUDA, since the monitor was made; elsewhere of the process' whole memory.
    """
    weights = list(parameters)
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    grads = [weight.grad for weight in weights if weight.grad is not None]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _most_resident()
    return {"parameters": _bytes(weights), "gradients": _bytes(grads), "optimizer": _bytes(state), "peak": peak}


@dataclass
class Monitor:
    """Turns metrics of updates into rows about their cost, one for every `every` seconds.

    The first update is not measured: its time holds what came before it. The second gives the first row, so that a
    short training has one.

    Args:
        each: operations for a fed token (`Cost.each`). ceiling: operations per second of one rank's device.
        parameters, optimizer: of this rank, frozen ones too. ranks: all of them share the work.
    Attributes:
        process: bytes that were held before training, beside the weights: interpreter, libraries, data.
    """

    each: float
    ceiling: float
    parameters: list[Tensor]
    optimizer: Optimizer
    ranks: Ranks = ALONE
    every: float = 2.0
    process: int = field(init=False)
    _since: float | None = None
    _due: float = 0.0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("fed", "padded", "waited"), 0.0))

    def __post_init__(self) -> None:
        device = self.ranks.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident()
        self.process = max(0, held - _bytes(self.parameters))

    def __call__(self, metrics: Metrics, *, waited: float = 0.0) -> Mapping[str, Any] | None:
        """A row where one is due.

        Args:
            waited: seconds that the update waited for its batches.
        """
        now = time.perf_counter()
        if self._since is None:
            self._since = now
            return None
        for name, value in (("fed", metrics.fed), ("padded", metrics.padded), ("waited", waited)):
            self._sums[name] += value
        if now < self._due:
            return None
        spent, sums = max(1e-9, now - self._since), self._sums
        self._since, self._due, self._sums = now, now + self.every, dict.fromkeys(sums, 0.0)
        kinds = memory(self.parameters, self.optimizer, self.ranks.device) | {"process": self.process}
        return {
            "step": metrics.update,
            "tokens_per_s": round(sums["fed"] / spent, 1),
            "pad_fraction": round(sums["padded"] / max(1.0, sums["fed"] + sums["padded"]), 4),
            "gemm_share": round(sums["fed"] * self.each / spent / (self.ceiling * self.ranks.mesh.size), 4),
            "gemm_per_s": round(self.ceiling),
            "data_wait": round(sums["waited"] / spent, 4),
            **{f"{kind}_bytes": size for kind, size in kinds.items()},
        }


def monitored(learner: Learner, cost: Cost, parts: Sequence[Parts]) -> Monitor:
    """The monitor of a training. All ranks make one, so that ceilings are measured while all are at work.

    Args:
        cost: of the whole model, before it was laid over ranks. parts: what is learned.
    """
    worded = bool(_WORDS & set(learner.objective.needs))
    low = torch.float32 if learner.config.dtype == "float32" else torch.bfloat16
    weights = [weight for _, weight in learner.laid.named_parameters()]
    ceiling = gemm_ceiling(learner.device, low)
    return Monitor(cost.each(parts, worded=worded), ceiling, weights, learner.optimizer, learner.ranks)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """What tensors hold on this rank: of a sharded one its own part."""
    local = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _most_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _resident() -> int:
    """Bytes of memory that this process holds now; where the system does not say, the most that it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return _most_resident()
    return pages * resource.getpagesize()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

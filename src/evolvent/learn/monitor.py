"""Measurements of a running training: speed, share of the device's matrix-product ceiling, memory by kind, data
waits.

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
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Ranks
from evolvent.learn.progress import UpdateMetrics
from evolvent.learn.token_sequences import TokenSequence

if TYPE_CHECKING:
    from evolvent.learn.cost import Cost
    from evolvent.learn.learner import Learner

__all__ = ["TrainingMonitor", "build_monitor", "measure_gemm_ceiling", "measure_memory"]

_SUMMED = ("fed", "padded", "waited", "learned", "updates")
_HEAD_NEEDS = {"logprobs", "teacher", "sampled"}  # needs that run the head


def measure_gemm_ceiling(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> float:
    """Measures the operations per second of large square matrix products here, in this dtype and with torch's
    threads.

    It takes the fastest product within the time, because other programs may use the machine. Called by all ranks at
    once, the ranks share the same resources as in training. The training's random numbers are not touched.
    """
    size = 512 * math.ceil(torch.get_num_threads() ** (1 / 3)) if device.type == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, dtype=dtype, generator=generator) for _ in range(2))
    out = left @ right
    times: list[float] = []
    start_time = time.perf_counter()
    while time.perf_counter() - start_time < seconds or len(times) < 3:
        _wait(device)
        start = time.perf_counter()
        torch.matmul(left, right, out=out)
        _wait(device)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times)


def measure_memory(parameters: Iterable[Tensor], optimizer: Optimizer, device: torch.device) -> dict[str, int]:
    """Measures bytes of this rank by kind: weights, gradients, optimizer state (its parts only), and the process'
    peak.

    The peak is of tensors on CUDA, since the monitor was created; elsewhere of the process' whole memory.
    """
    weights = list(parameters)
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _peak_resident_bytes()
    return {
        "parameters": _count_bytes(weights),
        "gradients": _count_bytes(gradients),
        "optimizer": _count_bytes(state),
        "peak": peak,
    }


@dataclass
class TrainingMonitor:
    """Turns metrics of updates into rows about their cost, one every `interval_s` seconds.

    The first update is not measured, because its time includes setup. The second gives the first row, so that a short
    training has one.

    Args:
        operations_per_token: operations per fed token (`Cost.per_token`).
        ceiling: operations per second of one rank's device.
        parameters, optimizer: of this rank, frozen parameters too.
        ranks: all of them share the work.
        dataset_tokens: learned tokens of one pass through the data; 0: unknown, and rows have no `epoch`.
        learned_tokens: learned tokens before the first update, of a training that is resumed.
    Attributes:
        process_bytes: bytes in use before training, beside the weights: interpreter, libraries, data.
    """

    operations_per_token: float
    ceiling: float
    parameters: list[Tensor]
    optimizer: Optimizer
    ranks: Ranks = SINGLE_PROCESS
    interval_s: float = 2.0
    dataset_tokens: int = 0
    learned_tokens: int = 0
    process_bytes: int = field(init=False)
    _since: float | None = None
    _due: float = 0.0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0.0))

    def __post_init__(self) -> None:
        device = self.ranks.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        bytes_in_use = torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident_bytes()
        self.process_bytes = max(0, bytes_in_use - _count_bytes(self.parameters))

    def __call__(self, metrics: UpdateMetrics, *, waited: float = 0.0) -> Mapping[str, object] | None:
        """Returns a row where one is due.

        Args:
            waited: seconds that the update waited for its batches.
        """
        now = time.perf_counter()
        self.learned_tokens += metrics.tokens
        if self._since is None:
            self._since = now
            return None
        for name, value in zip(_SUMMED, (metrics.fed, metrics.padded, waited, metrics.tokens, 1), strict=True):
            self._sums[name] += value
        if now < self._due:
            return None
        elapsed, sums = max(1e-9, now - self._since), self._sums
        self._since, self._due, self._sums = now, now + self.interval_s, dict.fromkeys(sums, 0.0)
        kinds = measure_memory(self.parameters, self.optimizer, self.ranks.device) | {"process": self.process_bytes}
        return {
            "step": metrics.update,
            "tokens_per_s": round(sums["fed"] / elapsed, 1),
            "pad_fraction": round(sums["padded"] / max(1.0, sums["fed"] + sums["padded"]), 4),
            "gemm_share": round(
                sums["fed"] * self.operations_per_token / elapsed / (self.ceiling * self.ranks.mesh.size), 4
            ),
            "gemm_per_s": round(self.ceiling),
            "data_wait": round(sums["waited"] / elapsed, 4),
            "updates_per_s": round(sums["updates"] / elapsed, 3),
            "update_tokens": round(sums["fed"] / sums["updates"], 1),
            "learned_fraction": round(sums["learned"] / max(1.0, sums["fed"]), 4),
            **({"epoch": round(self.learned_tokens / self.dataset_tokens, 4)} if self.dataset_tokens else {}),
            **{f"{kind}_bytes": size for kind, size in kinds.items()},
        }


def build_monitor(
    learner: Learner,
    cost: Cost,
    sequences: Sequence[TokenSequence],
    *,
    dataset_tokens: int = 0,
    learned_tokens: int = 0,
) -> TrainingMonitor:
    """Builds the monitor of a training; all ranks build one, so that ceilings are measured while all are at work.

    Args:
        cost: of the whole model, before it was distributed over ranks.
        sequences: the training data.
        dataset_tokens: learned tokens of one pass through them; 0: not reported.
        learned_tokens: learned tokens before, of a training that is resumed.
    """
    uses_head = bool(_HEAD_NEEDS & set(learner.objective.needs))
    dtype = torch.float32 if learner.config.dtype == "float32" else torch.bfloat16
    weights = [weight for _, weight in learner.laid.named_parameters()]
    ceiling = measure_gemm_ceiling(learner.device, dtype)
    return TrainingMonitor(
        cost.per_token(sequences, uses_head=uses_head),
        ceiling,
        weights,
        learner.optimizer,
        learner.ranks,
        dataset_tokens=dataset_tokens,
        learned_tokens=learned_tokens,
    )


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    """Counts the bytes of tensors on this rank; of a sharded one, its own part."""
    local = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _resident_bytes() -> int:
    """Returns the bytes of memory of this process now; where the system does not report them, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return _peak_resident_bytes()
    return pages * resource.getpagesize()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

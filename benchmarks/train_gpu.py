"""On a CUDA device: 0.5B and 1.5B shapes in bfloat16, tokens per second and share of the ceiling, beside HF Trainer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.reporting import about
from benchmarks.train_shapes import ON_A_GPU, Bench, Point, labelled
from evolvent.errors import DeviceMemory
from evolvent.learn.cost import Cost
from evolvent.learn.learner import Learner
from evolvent.learn.monitor import measure_gemm_ceiling
from evolvent.learn.objectives import weighted_nll

__all__ = ["on_a_gpu"]

WARM = 4  # updates before the clock starts


def on_a_gpu(*, seed: int, quick: bool) -> dict[str, Any]:
    """One row a shape. Each side has the card for itself."""
    device, rows = torch.device("cuda", 0), []
    ceiling = measure_gemm_ceiling(device, torch.bfloat16)
    for point in ON_A_GPU[:1] if quick else ON_A_GPU:
        updates = 8 if quick else 24
        row: dict[str, Any] = {"point": str(point)}
        for name, side in (("evolvent", _ours), ("hf", _hf)):
            try:
                row[name] = _measured(side, point, updates=updates, seed=seed, ceiling=ceiling)
            except (DeviceMemory, torch.OutOfMemoryError):
                row[name] = {"failed": "does not fit the device"}
            torch.cuda.empty_cache()
        if "failed" not in row["evolvent"] | row["hf"]:
            row["over_hf"] = round(row["evolvent"]["tokens_per_s"] / row["hf"]["tokens_per_s"], 3)
        rows.append(row)
        print(row, flush=True)
    return {
        "benchmark": "train",
        "device": torch.cuda.get_device_name(0),
        "ceiling_tflops": round(ceiling / 1e12, 1),
        "rows": rows,
        "seed": seed,
        **about("torch", "transformers", "accelerate"),
    }


def _measured(
    side: Callable[[Bench], float], point: Point, *, updates: int, seed: int, ceiling: float
) -> dict[str, float]:
    bench = point.bench(updates=updates + WARM, seed=seed, device="cuda", dtype="bfloat16")
    cost = Cost.from_model(bench.policy.model)
    torch.cuda.reset_peak_memory_stats()
    rate = updates * point.batch / side(bench)
    work = cost.count_operations(point.batch, point.batch, point.length) / point.batch * rate
    return {
        "tokens_per_s": round(rate),
        "gemm_share": round(work / ceiling, 3),
        "tflops": round(work / 1e12, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


class _Clock:
    """Seconds from the end of the warm-up to the last update, the device waited for at both ends."""

    def __init__(self) -> None:
        self.updates, self.began, self.ended = 0, 0.0, 0.0

    def tick(self, *_: object, **__: object) -> None:
        self.updates += 1
        if self.updates == WARM:
            torch.cuda.synchronize()
            self.began = time.perf_counter()

    def stop(self) -> float:
        torch.cuda.synchronize()
        return time.perf_counter() - self.began


def _ours(bench: Bench) -> float:
    clock = _Clock()
    Learner(bench.policy, weighted_nll, bench.config, seed=bench.seed).fit(bench.parts, on_update=clock.tick)
    return clock.stop()


def _hf(bench: Bench) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = _Clock()
    tick: Callable[..., None] = lambda self, *_, **__: clock.tick()  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            bf16=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            optim="adamw_torch_fused",
            learning_rate=bench.lr,
            adam_beta2=0.98,
            weight_decay=0.1,
            max_grad_norm=1.0,
            lr_scheduler_type="linear",
            seed=bench.seed,
            num_train_epochs=1,
            per_device_train_batch_size=1,
            remove_unused_columns=False,
        )
        Trainer(
            model=bench.policy.model,
            args=arguments,
            train_dataset=[labelled(batch) for batch in bench.batches()],
            data_collator=lambda items: items[0],
            callbacks=[type("Ticks", (TrainerCallback,), {"on_step_end": tick})()],
        ).train()
    return clock.stop()

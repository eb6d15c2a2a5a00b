"""The one loop that trains sequence policies on windows: AdamW, a warm-up, a limit on the gradient's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from evolvent.errors import NonFinite
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.offline.state import SequenceCheckpoint, SequenceProgress
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["build_optimizer", "build_seeded", "fit_windows"]

M = TypeVar("M", bound=nn.Module)
_HISTORY_ROWS = 20  # rows of a history


def build_seeded(build: Callable[[], M], seed: int) -> M:
    """Builds a module whose initialization depends on `seed` alone; torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sample_seed("initial", seed))
        return build()


def build_optimizer(model: nn.Module, settings: SequenceTrainingConfig) -> torch.optim.Optimizer:
    """Builds AdamW with these settings."""
    return torch.optim.AdamW(
        model.parameters(), settings.lr, betas=(0.9, settings.beta2), weight_decay=settings.weight_decay, fused=True
    )


def fit_windows(
    model: nn.Module,
    loss: Callable[[np.random.Generator], tuple[Tensor, Tensor]],
    settings: SequenceTrainingConfig,
    *,
    seed: int,
    first: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    on_update: Callable[[int], None] | None = None,
    checkpoint: SequenceCheckpoint | None = None,
    device: str | torch.device = "cpu",
) -> tuple[dict[str, float], ...]:
    """Trains in place; the model is in evaluation mode and on the CPU afterwards.

    Dropout and windows depend on `seed` and the update alone, so that a resumed training comes to the same weights.

    Args:
        loss: samples windows with the generator and returns (sum, count), computed on the device.
        on_update: called with each finished update.
        first, optimizer: of a training that continues: number of updates before, and their optimizer.
        checkpoint: where the state is stored; updates that it includes are not repeated.
        device: where the model learns.
    Returns:
        about twenty rows: the update and the mean loss since the previous row.
    Raises:
        NonFinite: a loss or a gradient is not finite; the weights are those before the update. Also the errors of
            `SequenceCheckpoint.resume`.
    """
    model.to(device)
    optimizer = build_optimizer(model, settings) if optimizer is None else optimizer
    progress = SequenceProgress(first) if checkpoint is None else checkpoint.resume(model, optimizer, first=first)
    last, every = first + settings.max_steps, max(1, settings.max_steps // _HISTORY_ROWS)
    model.train()
    with torch.random.fork_rng(devices=[torch.device(device)] if torch.device(device).type == "cuda" else []):
        for update in range(progress.updates, last):
            torch.manual_seed(sample_seed("dropout", seed, update))
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * min(1.0, (update + 1) / max(1, settings.warmup))
            total, count = loss(sample_rng("windows", seed, update))
            value = total / count.clamp(min=1)
            optimizer.zero_grad()
            torch.autograd.backward(value)
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.grad_norm)
            if not (torch.isfinite(value) and torch.isfinite(norm)):
                raise NonFinite(f"the loss or the gradient of update {update} is not finite", value=float(value))
            optimizer.step()
            progress.recent_losses.append(float(value.detach()))
            if on_update is not None:
                on_update(update)
            progress.updates = update + 1
            if progress.updates % every == 0 or progress.updates == last:
                progress.history.append(
                    {"update": float(progress.updates), "loss": float(np.mean(progress.recent_losses))}
                )
                progress.recent_losses.clear()
                if checkpoint is not None and checkpoint.told is not None:
                    checkpoint.told(progress.history[-1])
            if checkpoint is not None and (progress.updates % checkpoint.every == 0 or progress.updates == last):
                checkpoint.write(model, optimizer)
    model.eval().to("cpu")
    return tuple(row for row in progress.history if first < row["update"] <= last)

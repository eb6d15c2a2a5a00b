"""The one loop that trains sequence policies on windows: AdamW, a warm-up, a limit on the gradient's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from evolvent.config import Config
from evolvent.errors import NonFinite
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["SequenceTraining", "fit_windows", "made_optimizer", "seeded"]

M = TypeVar("M", bound=nn.Module)
_TOLD = 20  # rows of a history


class SequenceTraining(Config):
    """How a sequence policy is trained; the defaults are Decision Transformer's."""

    updates: int = Field(default=100_000, ge=1, description="of the weights")
    batch: int = Field(default=64, ge=1, description="windows of an update")
    lr: float = Field(default=1e-4, gt=0, description="learning rate")
    weight_decay: float = Field(default=1e-4, ge=0, description="of AdamW")
    warmup: int = Field(default=10_000, ge=0, description="updates in which the learning rate rises from 0")
    grad_norm: float = Field(default=0.25, gt=0, description="longer gradients are cut to it")
    beta2: float = Field(default=0.999, gt=0, lt=1, description="AdamW's second decay; its first is .9")


def seeded(make: Callable[[], M], seed: int) -> M:
    """A module whose initialisation depends on `seed` alone; torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sample_seed("initial", seed))
        return make()


def made_optimizer(model: nn.Module, settings: SequenceTraining) -> torch.optim.Optimizer:
    """AdamW as the settings say."""
    return torch.optim.AdamW(model.parameters(), settings.lr, betas=(0.9, settings.beta2),
                             weight_decay=settings.weight_decay, fused=True)  # fmt: skip


def fit_windows(
    model: nn.Module, loss: Callable[[np.random.Generator], tuple[Tensor, Tensor]], settings: SequenceTraining, *,
    seed: int, first: int = 0, optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int], None] | None = None,
) -> tuple[dict[str, float], ...]:  # fmt: skip
    """Train in place; the model evaluates afterwards. Dropout and windows depend on `seed` and the update alone.

    Args:
        loss: draws windows with the generator and returns (sum, count). after: called with each finished update.
        first, optimizer: of a training that goes on: updates that were made before, and what they left behind.
    Returns:
        some twenty rows: the update and the mean loss since the row before.
    Raises:
        NonFinite: a loss or a gradient that is not finite; the weights are those before the update.
    """
    optimizer = made_optimizer(model, settings) if optimizer is None else optimizer
    rows: list[dict[str, float]] = []
    every, since = max(1, settings.updates // _TOLD), []
    model.train()
    with torch.random.fork_rng(devices=[]):
        for update in range(first, first + settings.updates):
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
            since.append(float(value.detach()))
            if after is not None:
                after(update)
            if (update + 1) % every == 0 or update + 1 == first + settings.updates:
                rows.append({"update": float(update + 1), "loss": float(np.mean(since))})
                since = []
    model.eval()
    return tuple(rows)

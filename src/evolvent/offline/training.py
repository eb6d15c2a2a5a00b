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
from evolvent.offline.state import Keeping, Progress
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
    return torch.optim.AdamW(
        model.parameters(), settings.lr, betas=(0.9, settings.beta2), weight_decay=settings.weight_decay, fused=True
    )


def fit_windows(
    model: nn.Module,
    loss: Callable[[np.random.Generator], tuple[Tensor, Tensor]],
    settings: SequenceTraining,
    *,
    seed: int,
    first: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int], None] | None = None,
    keep: Keeping | None = None,
) -> tuple[dict[str, float], ...]:
    """Train in place; the model evaluates afterwards. Dropout and windows depend on `seed` and the update alone, so
    that a training that was kept and is taken up comes to the same weights.

    Args:
        loss: draws windows with the generator and returns (sum, count). after: called with each finished update.
        first, optimizer: of a training that goes on: updates that were made before, and what they left behind.
        keep: where the state is kept; updates that it has made already are not made again.
    Returns:
        some twenty rows: the update and the mean loss since the row before.
    Raises:
        NonFinite: a loss or a gradient that is not finite; the weights are those before the update. What
            `Keeping.taken_up` raises.
    """
    optimizer = made_optimizer(model, settings) if optimizer is None else optimizer
    so_far = Progress(first) if keep is None else keep.taken_up(model, optimizer, first=first)
    last, every = first + settings.updates, max(1, settings.updates // _TOLD)
    model.train()
    with torch.random.fork_rng(devices=[]):
        for update in range(so_far.done, last):
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
            so_far.since.append(float(value.detach()))
            if after is not None:
                after(update)
            so_far.done = update + 1
            if so_far.done % every == 0 or so_far.done == last:
                so_far.rows.append({"update": float(so_far.done), "loss": float(np.mean(so_far.since))})
                so_far.since.clear()
                if keep is not None and keep.told is not None:
                    keep.told(so_far.rows[-1])
            if keep is not None and (so_far.done % keep.every == 0 or so_far.done == last):
                keep.write(model, optimizer)
    model.eval()
    return tuple(row for row in so_far.rows if first < row["update"] <= last)

"""What a critic minimises where it learns apart from the policy: on a trunk of its own, or before the policy does."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.packing import Batch
from evolvent.rl import policy_losses as losses
from evolvent.rl.objective import ValueLoss

__all__ = ["critic"]


def critic(settings: ValueLoss | None = None) -> Objective:
    """Values of prefixes: the mean over targets of half the squared error to the column "returns".

    Args:
        settings: clipping against "old_values", Huber's bound, and the level: above "part" the value of a unit's first
            target alone is fitted. The coefficient is not used: the critic has a rate of its own.
    Raises:
        BatchMismatch: (its loss) a column that is missing.
    """
    chosen = settings or ValueLoss()
    described = tuple((name, getattr(chosen, name)) for name in ("clip", "huber", "level"))
    return Objective(
        "critic", partial(_loss, settings=chosen), partial(_count, settings=chosen), ("values",), settings=described
    )


def _fitted(batch: Batch, settings: ValueLoss) -> Tensor:
    """`[N]` bool, the targets whose values are fitted."""
    if settings.level == "part":
        return torch.ones_like(batch.weights, dtype=torch.bool)
    if batch.sequence is None:
        raise BatchMismatch("the batch does not say which sequence its targets belong to", value="sequence None")
    keys = (batch.sequence,) if settings.level == "sequence" else (batch.sequence, batch.columns[settings.level])
    return losses.first_of_unit(losses.units(*keys))


def _count(batch: Batch, *, settings: ValueLoss) -> int:
    return int(_fitted(batch, settings).sum())


def _loss(outputs: Outputs, batch: Batch, *, settings: ValueLoss) -> tuple[Tensor, int]:
    missing = {"returns", *(("old_values",) if settings.clip is not None else ())} - set(batch.columns)
    if missing or outputs.values is None:
        raise BatchMismatch("a critic lacks what it is fitted to", value=sorted(batch.columns), expected=missing)
    used = _fitted(batch, settings)
    weights = torch.where(used, batch.weights, 0.0)
    values, returns = losses.selected(weights, outputs.values, batch.columns["returns"])
    (old,) = losses.selected(weights, batch.columns["old_values"]) if settings.clip is not None else (None,)
    terms = losses.value_terms(values, returns, old, clip=settings.clip, huber=settings.huber)
    return losses.total(terms, weights), int(used.sum())

"""The objective of a critic that is trained separately from the policy: on its own network, or before the policy."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.token_sequences import Batch
from evolvent.rl import policy_losses as losses
from evolvent.rl.objective import ValueLoss

__all__ = ["critic_objective"]


def critic_objective(settings: ValueLoss | None = None) -> Objective:
    """Builds the objective of a critic: the mean over targets of half the squared error to the column "returns".

    Args:
        settings: clipping against "old_values", Huber's bound, and the level: above "part" only the value of a unit's
            first target is fitted. The coefficient is not used: the critic has its own learning rate.
    Raises:
        BatchMismatch: (in the loss) a column is missing.

    >>> index = torch.arange(3)
    >>> columns = {"returns": torch.tensor([1.0, 1.0, 1.0])}
    >>> batch = Batch(index[None], index, index, torch.ones(3), (0,), 3, columns=columns)
    >>> loss, count = critic_objective().loss(Outputs(values=torch.tensor([0.0, 1.0, 3.0])), batch)
    >>> float(loss), count  # (1 + 0 + 4) / 2
    (2.5, 3)
    """
    value_loss = settings or ValueLoss()
    identity = tuple((name, getattr(value_loss, name)) for name in ("clip", "huber", "level"))
    return Objective(
        "critic",
        partial(_loss, settings=value_loss),
        partial(_count, settings=value_loss),
        ("values",),
        settings=identity,
    )


def _mark_fitted(batch: Batch, settings: ValueLoss) -> Tensor:
    """Returns `[N]` bool, the targets whose values are fitted."""
    if settings.level == "part":
        return torch.ones_like(batch.weights, dtype=torch.bool)
    if batch.sequence is None:
        raise BatchMismatch("the batch has no sequence index", value="sequence=None")
    keys = (batch.sequence,) if settings.level == "sequence" else (batch.sequence, batch.columns[settings.level])
    return losses.is_first_of_unit(losses.number_units(*keys))


def _count(batch: Batch, *, settings: ValueLoss) -> int:
    return int(_mark_fitted(batch, settings).sum())


def _loss(outputs: Outputs, batch: Batch, *, settings: ValueLoss) -> tuple[Tensor, int]:
    missing = {"returns", *(("old_values",) if settings.clip is not None else ())} - set(batch.columns)
    if missing or outputs.values is None:
        raise BatchMismatch("the batch lacks the critic's targets", value=sorted(batch.columns), expected=missing)
    is_fitted = _mark_fitted(batch, settings)
    weights = torch.where(is_fitted, batch.weights, 0.0)
    values, returns = losses.mask_unlearned(weights, outputs.values, batch.columns["returns"])
    (old,) = losses.mask_unlearned(weights, batch.columns["old_values"]) if settings.clip is not None else (None,)
    terms = losses.value_losses(values, returns, old, clip_range=settings.clip, huber=settings.huber)
    return losses.weighted_sum(terms, weights), int(is_fitted.sum())

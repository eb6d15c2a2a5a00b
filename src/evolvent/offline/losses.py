"""Losses of sequence policies: pure functions, each a (sum, count). What is not learned is selected out.

Shapes: `[B, K]` windows of K steps, D numbers of an action; `mask [B, K]` bool, the steps that are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch

__all__ = ["action_error", "action_nll", "temperature_loss", "unseen_to_floor"]


def action_error(predicted: Tensor, action: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of actions that are numbers: sum over steps and numbers, and how many there are.

    Decision Transformer (arXiv 2106.01345) takes the mean over both. predicted, action: `[B, K, D]`.
    """
    if predicted.shape != action.shape:
        raise BatchMismatch("actions differ in shape", value=tuple(predicted.shape), expected=tuple(action.shape))
    error = torch.where(mask[..., None], predicted - action, 0.0)
    return error.square().sum(), mask.sum() * action.shape[-1]


def action_nll(logits: Tensor, action: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`sum -log p(a)` of discrete choices; `logits [..., A]`, `action [...]`, `mask [...]`."""
    chosen = action[mask]
    return F.cross_entropy(logits[mask].float(), chosen, reduction="sum"), mask.sum()


def temperature_loss(log_temperature: Tensor, entropy: Tensor, *, floor: float) -> Tensor:
    """`T (H - floor)`, whose descent raises T while the entropy is below its floor and lowers it above.

    The dual of "at least so much entropy" (Online DT, arXiv 2202.05607, equation 6). No gradient reaches the entropy.

    Args:
        log_temperature, entropy: `[]`; T is the exponential of the first.
    """
    return log_temperature.exp() * (entropy.detach() - floor)


def unseen_to_floor(q: Tensor, chosen: Tensor, mask: Tensor, *, floor: float) -> tuple[Tensor, Tensor]:
    """`sum_n mean_(w not chosen) (Q_n(w) - floor)^2 / 2`: bins that the data do not show are worth the least.

    Q-Transformer's conservative term (arXiv 2309.10150, equation 2, with the floor of the rewards in place of 0).

    Args:
        q: `[..., V]`, values of all bins. chosen: `[...]` int64, the bin in the data. mask: `[...]` bool.
    """
    error = 0.5 * (q[mask] - floor).square()
    others = error.sum(-1) - error.gather(-1, chosen[mask][:, None])[:, 0]
    return others.sum() / (q.shape[-1] - 1), mask.sum()

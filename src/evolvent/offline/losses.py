"""Losses of sequence policies: pure functions, each a (sum, count). Entries that are not learned are masked out.

Shapes: `[B, K]` windows of K steps, D numbers of an action; `mask [B, K]` bool, the steps that are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch

__all__ = ["action_error", "action_nll", "conservative_loss", "temperature_loss"]


def action_error(predicted: Tensor, action: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the squared error of numeric actions: sum over steps and numbers, and their count.

    Decision Transformer (arXiv 2106.01345) takes the mean over both.

    Args:
        predicted, action: `[B, K, D]`.
        mask: `[B, K]` bool.

    Returns:
        sum and count.

    >>> import torch
    >>> mask = torch.tensor([[True, True, False]])
    >>> action_error(torch.tensor([[[1.0], [2.0], [9.0]]]), torch.zeros(1, 3, 1), mask)
    (tensor(5.), tensor(2))
    """
    if predicted.shape != action.shape:
        raise BatchMismatch("actions differ in shape", value=tuple(predicted.shape), expected=tuple(action.shape))
    error = torch.where(mask[..., None], predicted - action, 0.0)
    return error.square().sum(), mask.sum() * action.shape[-1]


def action_nll(logits: Tensor, action: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Computes `sum -log p(a)` of discrete actions.

    Args:
        logits: `[..., A]`.
        action: `[...]` int64.
        mask: `[...]` bool.

    Returns:
        sum and count.

    >>> import torch
    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    >>> action_nll(logits, torch.tensor([0, 1, 1]), torch.tensor([True, True, False]))
    (tensor(1.0064), tensor(2))
    """
    learned_actions = action[mask]
    return F.cross_entropy(logits[mask].float(), learned_actions, reduction="sum"), mask.sum()


def temperature_loss(log_temperature: Tensor, entropy: Tensor, *, floor: float) -> Tensor:
    """Computes `T (H - floor)`, whose descent raises T while the entropy is below its floor and lowers it above.

    The dual of a lower bound on the entropy (Online DT, arXiv 2202.05607, equation 6). No gradient reaches the
    entropy.

    Args:
        log_temperature: `[]`, log T.
        entropy: `[]`, H in nats.
        floor: lower bound of the entropy, nats.

    Returns:
        a scalar.

    >>> import torch
    >>> temperature_loss(torch.tensor(0.0), torch.tensor(1.5), floor=1.0)
    tensor(0.5000)
    """
    return log_temperature.exp() * (entropy.detach() - floor)


def conservative_loss(q: Tensor, data_bins: Tensor, mask: Tensor, *, floor: float) -> tuple[Tensor, Tensor]:
    """Computes `sum_n mean_(w not in data) (Q_n(w) - floor)^2 / 2`, which pulls bins that the data do not show to
    the floor.

    Q-Transformer's conservative term (arXiv 2309.10150, equation 2, with the floor of the rewards in place of 0).

    Args:
        q: `[..., V]`, values of all bins.
        data_bins: `[...]` int64, the bin in the data.
        mask: `[...]` bool.
        floor: the least return.

    Returns:
        sum and count.

    >>> import torch
    >>> conservative_loss(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1]), torch.tensor([True]), floor=0.0)
    (tensor(2.5000), tensor(1))
    """
    error = 0.5 * (q[mask] - floor).square()
    other_bins = error.sum(-1) - error.gather(-1, data_bins[mask][:, None])[:, 0]
    return other_bins.sum() / (q.shape[-1] - 1), mask.sum()

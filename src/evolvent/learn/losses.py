"""Losses: pure functions on tensors, one per published estimator. Sums, never means: the Learner divides by the count.

Shapes: `N` targets with a learning weight, `V` words. Values that are not learned are selected out, never multiplied by
0, because 0 times NaN is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["target_logprobs", "weighted_nll"]


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """`log p(y_n)` of the targets `[N]`, in float32, from `logits [N, V]` and `targets [N]`."""
    return -F.cross_entropy(logits.float(), targets, reduction="none")


def weighted_nll(logprobs: Tensor, weights: Tensor) -> Tensor:
    """`sum_n -w_n log p(y_n)`: weighted maximum likelihood.

    With w the reward it is the learning step of AgentEvol (arXiv 2406.04151).

    Args:
        logprobs, weights: `[N]`. Where the weight is 0 the log-probability is not looked at.
    """
    return torch.where(weights != 0, -weights * logprobs, 0.0).sum()

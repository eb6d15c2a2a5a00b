"""Objectives: a loss, its count and what it needs, under a name. Contract: `loss(outputs, batch) -> (sum, count)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from evolvent.learn import losses
from evolvent.learn.packing import Batch

__all__ = ["Need", "Objective", "Outputs", "weighted_nll"]

Need = Literal["values", "reference", "target"]


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What the model said about a batch: `logprobs [N]` of its targets, float32."""

    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised.

    Args:
        name: how records call it; objectives of one name and needs have one `repr` in every process.
        loss: the sum over a batch (a scalar with its graph), and the batch's count.
        count: the normaliser, from the batch alone: it is known for a whole update before its first backward.
        needs: what else it reads: state values, a reference policy's log-probabilities, a target network.
    """

    name: str
    loss: Callable[[Outputs, Batch], tuple[Tensor, int]] = field(repr=False)
    count: Callable[[Batch], int] = field(repr=False)
    needs: tuple[Need, ...] = ()


def _targets(batch: Batch) -> int:
    return batch.count


def _weighted_nll(outputs: Outputs, batch: Batch) -> tuple[Tensor, int]:
    return losses.weighted_nll(outputs.logprobs, batch.weights), _targets(batch)


weighted_nll = Objective("weighted_nll", _weighted_nll, _targets)
"""Imitation: the mean over weighted targets of `-w log p`. The count is the number of targets whose weight is not 0,
and not the sum of weights: doubling all weights doubles the gradient."""

"""Offline learning from scored trees: weights of advantages, expectile values, and pairs of sibling spans.

The abstract of OpenR (arXiv 2410.09671) claims offline reinforcement learning and gives no formula. This library's
choice: advantage-weighted regression (arXiv 1910.00177), implicit Q-learning (arXiv 2110.06169), and direct preference
optimisation (arXiv 2305.18290) on the alternatives of one tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.learn.token_sequences import Parts
from evolvent.reward.solutions import Solution

__all__ = ["Siblings", "advantage_weights", "expectile_error", "q_targets", "sibling_pairs"]


def advantage_weights(advantages: ArrayLike, *, beta: float, cap: float = 20.0) -> NDArray[np.float64]:
    """`min(exp(A / beta), cap)`: learning weights of advantage-weighted regression (arXiv 1910.00177, equation 11).

    Args:
        advantages: of any shape. beta: the temperature; small ones learn from the best alone.
    Raises:
        ConfigError: `beta` or `cap` not above 0. BatchMismatch: an advantage that is not finite.
    """
    problems = [
        Problem(name, f"must be above 0, got {value}")
        for name, value in (("beta", beta), ("cap", cap))
        if not value > 0
    ]
    if problems:
        raise ConfigError(problems)
    values = np.asarray(advantages, np.float64)
    if not np.isfinite(values).all():
        raise BatchMismatch("an advantage that is not finite", value=values[~np.isfinite(values)][:3])
    return np.exp(np.minimum(values / beta, math.log(cap)))


def expectile_error(values: Tensor, targets: Tensor, weights: Tensor, *, tau: float = 0.7) -> Tensor:
    """`sum_n w_n |tau - 1[u_n < 0]| u_n^2` with `u_n = Q_n - V_n`: values near the best that the data holds.

    Implicit Q-learning (arXiv 2110.06169, equation 5); tau .5 is the squared error, halved. No gradient reaches the
    targets.

    Args:
        values, targets, weights: `[N]`. Where the weight is 0 nothing is looked at.
    Raises:
        ConfigError: `tau` not between 0 and 1.
    """
    if not 0 < tau < 1:
        raise ConfigError([Problem("tau", f"must be between 0 and 1, got {tau}")])
    error = torch.where(weights != 0, targets.detach() - values, 0.0)
    slope = torch.where(error < 0, 1.0 - tau, tau)
    return (weights * slope * error.square()).sum()


def q_targets(rewards: ArrayLike, values: ArrayLike, ended: ArrayLike, *, discount: float = 1.0) -> NDArray[np.float64]:
    """`r_t + discount V(s_(t+1))`, without the value where the episode ended: what Q is fitted to (2110.06169, eq. 6).

    Args:
        rewards, ended: `[T]`, of each span. values: `[T]`, of the state that each span leads to; where it ended they
            are not looked at.
    Raises:
        BatchMismatch: shapes that differ. ConfigError: a discount outside 0..1.
    """
    if not 0 <= discount <= 1:
        raise ConfigError([Problem("discount", f"must be from 0 to 1, got {discount}")])
    paid, following, over = np.asarray(rewards, np.float64), np.asarray(values, np.float64), np.asarray(ended, bool)
    if not paid.shape == following.shape == over.shape:
        raise BatchMismatch("rewards, values and ends differ in shape", value=(paid.shape, following.shape, over.shape))
    return paid + discount * np.where(over, 0.0, following)


# ------------------------------------------------------------------ pairs of siblings


@dataclass(frozen=True, slots=True)
class Siblings:
    """The spans that were tried after one prefix in a search tree.

    Args:
        prompt: tokens that were read. prefix: tokens written before. spans: the alternatives. values: of each.
        name: tells it from others.
    Raises:
        BatchMismatch: as many values as spans are not there.
    """

    prompt: tuple[int, ...]
    prefix: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.values):
            raise BatchMismatch("not one value for each sibling", value=len(self.values), expected=len(self.spans))


def sibling_pairs(families: Iterable[Siblings], *, margin: float = 0.0, most: int = 4) -> list[Parts]:
    """Chosen, rejected, chosen, rejected, ...: alternatives of one prefix, for `learn.objectives.dpo`.

    The span alone is learned; prompt and prefix are equal on both sides. Of each family the pairs with the greatest
    difference come first (ties: in the order of the spans). Equal spans, and values that are not finite, make no pair.

    Args:
        margin: values that differ by no more than this are a tie. most: pairs of a family.
    Raises:
        ConfigError: a negative margin, or `most` below 1.
    """
    problems = [
        *([Problem("margin", f"must be 0 or more, got {margin}")] if not margin >= 0 else []),
        *([Problem("most", f"must be 1 or more, got {most}")] if most < 1 else []),
    ]
    if problems:
        raise ConfigError(problems)
    made: list[Parts] = []
    for family in families:
        ranked = []
        for a, b in combinations(range(len(family.spans)), 2):
            gap = family.values[a] - family.values[b]
            if abs(gap) > margin and math.isfinite(gap) and family.spans[a] != family.spans[b]:
                ranked.append((-abs(gap), (a, b) if gap > 0 else (b, a)))
        ranked.sort(key=lambda pair: pair[0])
        for _, pair in ranked[:most]:
            made += [_side(family, family.spans[at]) for at in pair]
    return made


def _side(family: Siblings, span: Sequence[int]) -> Parts:
    written = (family.prefix, tuple(span)) if family.prefix else (tuple(span),)
    parts = Solution(family.prompt, written, family.name).parts()
    weight = np.zeros(len(parts), np.float32)
    weight[len(parts) - len(span) :] = 1.0
    return replace(parts, weight=weight)

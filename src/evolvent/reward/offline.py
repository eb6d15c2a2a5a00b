"""Offline learning from scored trees: weights of advantages, expectile values, and pairs of sibling spans.

The abstract of OpenR (arXiv 2410.09671) claims offline reinforcement learning and gives no formula. This
library's choice: advantage-weighted regression (arXiv 1910.00177), implicit Q-learning (arXiv 2110.06169), and
direct preference optimization (arXiv 2305.18290) on the alternatives of one tree.
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
from evolvent.learn.token_sequences import TokenSequence
from evolvent.reward.solutions import Solution

__all__ = ["SiblingSpans", "advantage_weights", "build_sibling_pairs", "expectile_error", "q_targets"]


def advantage_weights(advantages: ArrayLike, *, beta: float, cap: float = 20.0) -> NDArray[np.float64]:
    """Computes `min(exp(A / beta), cap)`: weights of advantage-weighted regression (arXiv 1910.00177, equation
    11).

    >>> advantage_weights([0.0, 1.0, 10.0], beta=1.0).round(3).tolist()
    [1.0, 2.718, 20.0]

    Args:
        advantages: Advantages A, of any shape.
        beta: Temperature; small values learn from the best alone.
        cap: Maximum weight.
    Raises:
        ConfigError: `beta` or `cap` not above 0. BatchMismatch: an advantage is not finite.
    """
    problems = [
        Problem(name, f"got {value}, expected above 0")
        for name, value in (("beta", beta), ("cap", cap))
        if not value > 0
    ]
    if problems:
        raise ConfigError(problems)
    values = np.asarray(advantages, np.float64)
    if not np.isfinite(values).all():
        raise BatchMismatch("an advantage is not finite", value=values[~np.isfinite(values)][:3])
    return np.exp(np.minimum(values / beta, math.log(cap)))


def expectile_error(values: Tensor, targets: Tensor, weights: Tensor, *, tau: float = 0.7) -> Tensor:
    """Computes `sum_n w_n |tau - 1[u_n < 0]| u_n^2` with `u_n = Q_n - V_n`: it fits values near the best in the
    data.

    Implicit Q-learning (arXiv 2110.06169, equation 5); tau .5 is half the squared error. No gradient reaches the
    targets.

    Args:
        values, targets, weights: `[N]`. Entries of weight 0 are ignored.
        tau: Expectile, between 0 and 1.
    Raises:
        ConfigError: `tau` not between 0 and 1.

    >>> values, targets = torch.zeros(3), torch.tensor([1.0, -1.0, 2.0])
    >>> float(expectile_error(values, targets, torch.ones(3), tau=0.75))  # 0.75 * 1 + 0.25 * 1 + 0.75 * 4
    4.0
    """
    if not 0 < tau < 1:
        raise ConfigError([Problem("tau", f"got {tau}, expected between 0 and 1")])
    error = torch.where(weights != 0, targets.detach() - values, 0.0)
    slope = torch.where(error < 0, 1.0 - tau, tau)
    return (weights * slope * error.square()).sum()


def q_targets(rewards: ArrayLike, values: ArrayLike, ended: ArrayLike, *, discount: float = 1.0) -> NDArray[np.float64]:
    """Computes `r_t + discount V(s_(t+1))`, without the value where the episode ended: targets of Q (2110.06169,
    eq. 6).

    Args:
        rewards, ended: `[T]`, of each span.
        values: `[T]`. Value of the state after each span; ignored where the episode ended.
        discount: Discount, 0 to 1.
    Raises:
        BatchMismatch: shapes that differ. ConfigError: a discount outside 0..1.

    >>> q_targets([0.0, 0.0, 1.0], [0.5, 0.6, 9.0], [False, False, True], discount=0.5).tolist()
    [0.25, 0.3, 1.0]
    """
    if not 0 <= discount <= 1:
        raise ConfigError([Problem("discount", f"got {discount}, expected from 0 to 1")])
    reward_array, next_values, is_ended = (
        np.asarray(rewards, np.float64),
        np.asarray(values, np.float64),
        np.asarray(ended, bool),
    )
    if not reward_array.shape == next_values.shape == is_ended.shape:
        raise BatchMismatch(
            "rewards, values and ends differ in shape", value=(reward_array.shape, next_values.shape, is_ended.shape)
        )
    return reward_array + discount * np.where(is_ended, 0.0, next_values)


# ------------------------------------------------------------------ pairs of siblings


@dataclass(frozen=True, slots=True)
class SiblingSpans:
    """The alternative spans after one prefix in a search tree.

    Args:
        prompt: Tokens of the prompt.
        prefix: Tokens written before.
        spans: Alternatives.
        values: Value of each.
        name: Unique name.
    Raises:
        BatchMismatch: another number of values than spans.
    """

    prompt: tuple[int, ...]
    prefix: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.values):
            raise BatchMismatch(
                "number of values does not match the siblings", value=len(self.values), expected=len(self.spans)
            )


def build_sibling_pairs(
    families: Iterable[SiblingSpans], *, margin: float = 0.0, max_pairs: int = 4
) -> list[TokenSequence]:
    """Builds the sequences chosen, rejected, chosen, rejected, ... of one prefix, for `learn.objectives.dpo_objective`.

    The span alone is learned; prompt and prefix are equal on both sides. Of each family the pairs with the greatest
    difference come first (ties: in the order of the spans). Equal spans, and values that are not finite, form no
    pair.

    Args:
        families: Alternatives of each prefix.
        margin: Values that differ by at most this are a tie.
        max_pairs: Maximum pairs of a family.
    Raises:
        ConfigError: a negative margin, or `max_pairs` below 1.

    >>> family = SiblingSpans(prompt=(1,), prefix=(), spans=((2,), (3,)), values=(0.2, 0.9))
    >>> [sequence.ids.tolist() for sequence in build_sibling_pairs([family])]  # chosen, rejected
    [[1, 3], [1, 2]]
    """
    problems = [
        *([Problem("margin", f"got {margin}, expected 0 or more")] if not margin >= 0 else []),
        *([Problem("most", f"got {max_pairs}, expected 1 or more")] if max_pairs < 1 else []),
    ]
    if problems:
        raise ConfigError(problems)
    sequences: list[TokenSequence] = []
    for family in families:
        ranked = []
        for a, b in combinations(range(len(family.spans)), 2):
            gap = family.values[a] - family.values[b]
            if abs(gap) > margin and math.isfinite(gap) and family.spans[a] != family.spans[b]:
                ranked.append((-abs(gap), (a, b) if gap > 0 else (b, a)))
        ranked.sort(key=lambda pair: pair[0])
        for _, pair in ranked[:max_pairs]:
            sequences += [_to_sequence(family, family.spans[span_index]) for span_index in pair]
    return sequences


def _to_sequence(family: SiblingSpans, span: Sequence[int]) -> TokenSequence:
    spans = (family.prefix, tuple(span)) if family.prefix else (tuple(span),)
    sequence = Solution(family.prompt, spans, family.name).to_sequence()
    weight = np.zeros(len(sequence), np.float32)
    weight[len(sequence) - len(span) :] = 1.0
    return replace(sequence, weight=weight)

"""Returns and linear recurrences over sequences of rewards, in logarithmically many vector operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch

__all__ = ["Floats", "reverse_scan", "reward_to_go", "scan_in_place"]

Floats = NDArray[np.float64]


def reverse_scan(delta: ArrayLike, carry: ArrayLike) -> Floats:
    """Computes `acc_p = delta_p + carry_p acc_(p+1)`, from the last entry to the first.

    Neighbors are merged, half as many are scanned, and the results are distributed back: O(P) work in log2(P)
    vector operations. Carries are only multiplied, never divided by, so that long products may vanish without harm.

    Args:
        delta: `[P, ...]`.
        carry: `[P]`, the same for all trailing axes; the last one is ignored.

    Returns:
        accumulated values `[P, ...]`, float64.

    Raises:
        BatchMismatch: the arrays differ in length.

    >>> reverse_scan([1.0, 2.0, 3.0], [0.5, 0.5, 0.0]).tolist()
    [2.75, 3.5, 3.0]
    """
    accumulated, factors = np.array(delta, np.float64), np.array(carry, np.float64)
    if factors.shape != accumulated.shape[:1]:
        raise BatchMismatch("carry and delta differ in length", value=factors.shape, expected=accumulated.shape[:1])
    scan_in_place(accumulated, factors.reshape(-1, *[1] * (accumulated.ndim - 1)))
    return accumulated


def scan_in_place(accumulated: Floats, carry: Floats) -> None:
    """Computes `reverse_scan` in place; each level works on every second entry of the level above, and overwrites
    the carries.

    Args:
        accumulated: `[P, ...]` float64, deltas; overwritten with the result.
        carry: `[P, ...]` float64; overwritten.

    >>> import numpy as np
    >>> values = np.array([1.0, 2.0, 3.0])
    >>> scan_in_place(values, np.array([0.5, 0.5, 0.0]))
    >>> values.tolist()
    [2.75, 3.5, 3.0]
    """
    pairs = len(accumulated) // 2
    if not pairs:
        return
    even_entries, even_carry = accumulated[::2], carry[::2]
    even_entries[:pairs] += even_carry[:pairs] * accumulated[1::2]
    even_carry[:pairs] *= carry[1::2]
    scan_in_place(even_entries, even_carry)
    accumulated[1:-1:2] += carry[1:-1:2] * even_entries[1:]


def reward_to_go(reward: ArrayLike, *, gamma: ArrayLike = 1.0, last: ArrayLike | None = None) -> Floats:
    """Computes the discounted return from each step to the end of its episode, `R_t = r_t + gamma_t R_(t+1)`.

    With `gamma` 1 it is the return-to-go of Decision Transformer (arXiv 2106.01345).

    Args:
        reward: `[N, ...]` in time order, episode after episode.
        gamma: one discount, or `[N]`, between each step and the next.
        last: `[N]` bool, or indices: the last steps of episodes; None: all steps are one episode.

    Returns:
        returns `[N, ...]`, float64.

    >>> reward_to_go([0.0, 0.0, 1.0], gamma=0.9).round(4).tolist()
    [0.81, 0.9, 1.0]
    """
    rewards = np.asarray(reward, np.float64)
    carry = np.array(np.broadcast_to(np.asarray(gamma, np.float64), len(rewards)))
    if last is not None:
        carry[np.asarray(last)] = 0.0
    return reverse_scan(rewards, carry)

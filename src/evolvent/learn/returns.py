"""Returns and linear recurrences over sequences of rewards, in logarithmically many vector operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch

__all__ = ["Floats", "reverse_scan", "reward_to_go", "scan_in_place"]

Floats = NDArray[np.float64]


def reverse_scan(delta: ArrayLike, carry: ArrayLike) -> Floats:
    """`acc_p = delta_p + carry_p acc_(p+1)`, from the last part to the first, `[P, ...]`.

    Neighbours are merged, half as many are scanned, and the results are handed back: O(P) work in log2(P) vector
    operations. Carries are only multiplied, never divided by, so that long products may vanish without harm.

    Args:
        delta: `[P, ...]`. carry: `[P]`, the same for all trailing axes; that of the last part is not looked at.
    Raises:
        BatchMismatch: the arrays differ in length.
    """
    found, factors = np.array(delta, np.float64), np.array(carry, np.float64)
    if factors.shape != found.shape[:1]:
        raise BatchMismatch("carry and delta differ in length", value=factors.shape, expected=found.shape[:1])
    scan_in_place(found, factors.reshape(-1, *[1] * (found.ndim - 1)))
    return found


def scan_in_place(found: Floats, carry: Floats) -> None:
    """In place: every level works on every second entry of the one above it, and spoils those carries."""
    pairs = len(found) // 2
    if not pairs:
        return
    even, factor = found[::2], carry[::2]
    even[:pairs] += factor[:pairs] * found[1::2]
    factor[:pairs] *= carry[1::2]
    scan_in_place(even, factor)
    found[1:-1:2] += carry[1:-1:2] * even[1:]


def reward_to_go(reward: ArrayLike, *, gamma: ArrayLike = 1.0, last: ArrayLike | None = None) -> Floats:
    """`R_t = r_t + gamma_t R_(t+1)`, `[N, ...]`: what is still earned from each step of an episode on.

    With `gamma` 1 it is the return-to-go of Decision Transformer (arXiv 2106.01345).

    Args:
        reward: `[N, ...]` in time order, episode after episode.
        gamma: one discount, or `[N]`, that between each step and the next.
        last: `[N]` bool, or places: the last steps of episodes; None: all is one.
    """
    paid = np.asarray(reward, np.float64)
    carry = np.array(np.broadcast_to(np.asarray(gamma, np.float64), len(paid)))
    if last is not None:
        carry[np.asarray(last)] = 0.0
    return reverse_scan(paid, carry)

"""A demonstration from two token lists: a prompt, and the target that follows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolvent.errors import NothingToLearn
from evolvent.learn.token_sequences import TokenSequence

__all__ = ["build_demonstration"]


def build_demonstration(
    name: str, prompt: Sequence[int], target: Sequence[int], *, weight: float = 1.0
) -> TokenSequence:
    """Builds the sequence prompt + target, `[P + T]`, of which the target is learned, as one span of one step.

    Args:
        name: of the trajectory.
        prompt: token ids.
        target: token ids.
        weight: of every target token; a target at position 0 has nothing before it and has weight 0.
    Raises:
        NothingToLearn: the target is empty.
    """
    if not target:
        raise NothingToLearn(f"demonstration {name!r} is empty", value=0, expected="at least one token")
    total = len(prompt) + len(target)
    written = np.arange(total) >= len(prompt)
    weights = np.where(written, np.float32(weight), np.float32(0.0))
    weights[0] = 0.0
    return TokenSequence(
        name,
        np.asarray([*prompt, *target], np.int32),
        written,
        np.zeros(total, np.bool_),
        np.zeros(total, np.float32),
        np.zeros(total, np.int32),
        np.where(written, 0, -1).astype(np.int32),
        weights,
    )

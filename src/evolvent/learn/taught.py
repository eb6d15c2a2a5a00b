"""A demonstration of two token lists: what is read, and what is to be written after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolvent.errors import NothingToLearn
from evolvent.learn.token_sequences import Parts

__all__ = ["taught"]


def taught(name: str, prompt: Sequence[int], target: Sequence[int], *, weight: float = 1.0) -> Parts:
    """The sequence prompt + target, `[P + T]`, of which the target is learned, as one span of one step.

    Args:
        name: of the trajectory.
        weight: of every target token; a target at position 0 has nothing before it and weighs 0.
    Raises:
        NothingToLearn: an empty target.
    """
    if not target:
        raise NothingToLearn(f"the demonstration {name!r} writes nothing", value=0, expected="at least one token")
    total = len(prompt) + len(target)
    written = np.arange(total) >= len(prompt)
    weights = np.where(written, np.float32(weight), np.float32(0.0))
    weights[0] = 0.0
    return Parts(
        name,
        np.asarray([*prompt, *target], np.int32),
        written,
        np.zeros(total, np.bool_),
        np.zeros(total, np.float32),
        np.zeros(total, np.int32),
        np.where(written, 0, -1).astype(np.int32),
        weights,
    )

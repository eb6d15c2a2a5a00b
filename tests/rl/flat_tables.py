"""Flats written by hand: episodes as lists of actions, actions as lists of spans, spans as numbers of parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evolvent.rl.rollout_batch import TERMINATED, TRUNCATED, RolloutBatch


@dataclass(frozen=True)
class Told:
    """One episode: the parts of each action (or of each span of each action), what the actions paid, how it ended."""

    actions: Sequence[int | Sequence[int]]
    rewards: Sequence[float]
    bootstrap: float | None = None  # a number: truncated
    group: int = 0


def table(*episodes: Told, logp: ArrayLike | None = None) -> RolloutBatch:
    """The flat of these episodes; rewards are paid on the last parts."""
    spans = [[[at] if isinstance(at, int) else list(at) for at in told.actions] for told in episodes]
    sizes = [sum(action) for told in spans for action in told]
    counts = [len(told) for told in spans]
    parts, actions = sum(sizes), len(sizes)
    widths = [size for told in spans for action in told for size in action]
    last = np.cumsum(counts) - 1
    reward, ended, bootstrap = np.zeros(parts), np.zeros(actions, np.int8), np.full(actions, np.nan)
    reward[np.cumsum(sizes) - 1] = [paid for told in episodes for paid in told.rewards]
    ended[last] = [TERMINATED if told.bootstrap is None else TRUNCATED for told in episodes]
    bootstrap[last] = [np.nan if told.bootstrap is None else told.bootstrap for told in episodes]
    episode = np.repeat(np.arange(len(episodes)), counts)
    action = np.repeat(np.arange(actions), sizes)
    return RolloutBatch(
        np.zeros(parts, np.float32) if logp is None else np.asarray(logp, np.float32),
        np.zeros(parts, np.int32),
        np.repeat(np.arange(len(widths)), widths),
        action,
        episode,
        np.asarray([told.group for told in episodes], np.int64),
        reward,
        ended,
        bootstrap,
        episode[action],
        np.arange(parts),
    )

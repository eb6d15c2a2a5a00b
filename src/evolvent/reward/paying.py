"""Process rewards in learning by acting: what a judge says of spans is paid where they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch
from evolvent.reward.scoring import Floats
from evolvent.rl.advantages import Credit, buffer_normalized
from evolvent.rl.rollout_batch import Flat
from evolvent.rl.scored_rollout import Seen

__all__ = ["process_rewards", "span_credit"]


def process_rewards(seen: Seen, scores: Mapping[str, Floats], *, gain: bool = False) -> Seen:
    """The same with each span's score added to the reward of its last part.

    Args:
        scores: by the episodes' ids, one for each span `[T]`. The spans are those that the generations note
            (`reward.scoring.cut`).
        gain: how much a score is above that of the span before, the first above 0: an episode is paid its last score in
            all, however many spans it has (shaping by potential: Ng et al., ICML 1999).
    Raises:
        BatchMismatch: an episode without scores, or not one for each of its spans.
    """
    ends = _ends(seen.flat)
    missing = [one.id for one in seen.episodes if one.id not in scores]
    counts = np.bincount(seen.flat.episode_of_part[ends], minlength=len(seen.episodes)).tolist()
    wrong = missing or [
        one.id for one, count in zip(seen.episodes, counts, strict=True) if len(scores[one.id]) != count
    ]
    if wrong:
        raise BatchMismatch("episodes without a score for each span", value=wrong[:5], expected="one a span, in order")
    own = [scores[one.id] for one in seen.episodes]
    reward = seen.flat.reward.copy()
    reward[ends] += np.concatenate([np.diff(each, prepend=0.0) if gain else each for each in own])
    return replace(seen, flat=replace(seen.flat, reward=reward))


def span_credit(flat: Flat) -> Credit:
    """OpenR's GRPO (arXiv 2410.09671): a span's advantage is its reward, normalised over all spans of the buffer.

    Tasks of different difficulty are compared with each other; `learn.presets.GRPO` compares within a task.
    """
    ends = _ends(flat)
    place = np.searchsorted(ends, np.arange(flat.parts))  # the span of each part
    reward = flat.reward[ends]
    return Credit(buffer_normalized(reward)[place], reward[place])


def _ends(flat: Flat) -> NDArray[np.intp]:
    """`[S]`, the last part of each span."""
    return np.flatnonzero(np.append(np.diff(flat.span) > 0, True))

"""Process rewards in learning by acting: what a judge says of spans is paid where they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch
from evolvent.reward.scoring import Floats
from evolvent.rl.advantages import Advantages, normalize_over_buffer
from evolvent.rl.rollout_batch import RolloutBatch
from evolvent.rl.scored_rollout import ScoredRollout

__all__ = ["process_rewards", "span_credit"]


def process_rewards(seen: ScoredRollout, scores: Mapping[str, Floats], *, gain: bool = False) -> ScoredRollout:
    """The same with each span's score added to the reward of its last part.

    Args:
        scores: by the episodes' ids, one for each span `[T]`. The spans are those that the generations note
            (`reward.scoring.cut`).
        gain: how much a score is above that of the span before, the first above 0: an episode is paid its last score in
            all, however many spans it has (shaping by potential: Ng et al., ICML 1999).
    Raises:
        BatchMismatch: an episode without scores, or not one for each of its spans.
    """
    ends = _ends(seen.batch)
    missing = [one.id for one in seen.episodes if one.id not in scores]
    counts = np.bincount(seen.batch.episode_of_token[ends], minlength=len(seen.episodes)).tolist()
    wrong = missing or [
        one.id for one, count in zip(seen.episodes, counts, strict=True) if len(scores[one.id]) != count
    ]
    if wrong:
        raise BatchMismatch("episodes without a score for each span", value=wrong[:5], expected="one a span, in order")
    own = [scores[one.id] for one in seen.episodes]
    reward = seen.batch.reward.copy()
    reward[ends] += np.concatenate([np.diff(each, prepend=0.0) if gain else each for each in own])
    return replace(seen, batch=replace(seen.batch, reward=reward))


def span_credit(flat: RolloutBatch) -> Advantages:
    """OpenR's GRPO (arXiv 2410.09671): a span's advantage is its reward, normalised over all spans of the buffer.

    Tasks of different difficulty are compared with each other; `learn.presets.GRPO` compares within a task.
    """
    ends = _ends(flat)
    place = np.searchsorted(ends, np.arange(flat.num_tokens))  # the span of each part
    reward = flat.reward[ends]
    return Advantages(normalize_over_buffer(reward)[place], reward[place])


def _ends(flat: RolloutBatch) -> NDArray[np.intp]:
    """`[S]`, the last part of each span."""
    return np.flatnonzero(np.append(np.diff(flat.span) > 0, True))

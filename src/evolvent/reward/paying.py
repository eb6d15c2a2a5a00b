"""Process rewards in reinforcement learning: the judge's scores of spans are paid at their ends."""

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

__all__ = ["add_process_rewards", "span_credit"]


def add_process_rewards(rollout: ScoredRollout, scores: Mapping[str, Floats], *, gain: bool = False) -> ScoredRollout:
    """Adds each span's score to the reward of its last token part.

    Args:
        rollout: The scored rollout.
        scores: By the episodes' ids, one for each span `[T]`. The spans are those noted in the generations
            (`reward.scoring.mark_spans`).
        gain: Whether to pay the increase of the score over the span before, the first over 0: an episode is then
            paid its last score in all, however many spans it has (potential-based shaping: Ng et al., ICML 1999).
    Raises:
        BatchMismatch: an episode without scores, or not one for each of its spans.
    """
    ends = _last_parts(rollout.batch)
    missing = [episode.id for episode in rollout.episodes if episode.id not in scores]
    counts = np.bincount(rollout.batch.episode_of_token[ends], minlength=len(rollout.episodes)).tolist()
    unmatched = missing or [
        episode.id for episode, count in zip(rollout.episodes, counts, strict=True) if len(scores[episode.id]) != count
    ]
    if unmatched:
        raise BatchMismatch(
            "episodes lack a score for each span", value=unmatched[:5], expected="one score per span, in order"
        )
    scores_by_episode = [scores[episode.id] for episode in rollout.episodes]
    reward = rollout.batch.reward.copy()
    reward[ends] += np.concatenate(
        [np.diff(span_scores, prepend=0.0) if gain else span_scores for span_scores in scores_by_episode]
    )
    return replace(rollout, batch=replace(rollout.batch, reward=reward))


def span_credit(batch: RolloutBatch) -> Advantages:
    """Computes OpenR's GRPO credit (arXiv 2410.09671): a span's advantage is its reward, normalized over all
    spans.

    Tasks of different difficulty are compared with each other; `rl.presets.GRPO` compares within a task.
    """
    ends = _last_parts(batch)
    span_of_part = np.searchsorted(ends, np.arange(batch.num_tokens))  # the span of each part
    reward = batch.reward[ends]
    return Advantages(normalize_over_buffer(reward)[span_of_part], reward[span_of_part])


def _last_parts(batch: RolloutBatch) -> NDArray[np.intp]:
    """Returns the last part of each span, `[S]`."""
    return np.flatnonzero(np.append(np.diff(batch.span) > 0, True))

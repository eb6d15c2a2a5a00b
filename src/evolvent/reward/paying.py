"""Process rewards in reinforcement learning: the judge's scores of spans are paid at their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch
from evolvent.reward.scoring import Floats
from evolvent.rl.advantages import Advantages, normalize_over_buffer
from evolvent.rl.rollout_batch import RolloutBatch
from evolvent.rl.scored_rollout import ScoredRollout

__all__ = ["add_process_rewards", "span_credit"]


def add_process_rewards(
    rollout: ScoredRollout, scores: Mapping[str, Floats], *, gain: bool = False, over_task_mean: bool = False
) -> ScoredRollout:
    """Adds each span's score to the reward of its last token part.

    Args:
        rollout: The scored rollout.
        scores: By the episodes' ids, one for each span `[T]`. The spans are those noted in the generations
            (`reward.scoring.mark_spans`).
        gain: Whether to pay the increase of the score over the span before, the first over 0: an episode is then
            paid its last score in all, however many spans it has (potential-based shaping: Ng et al., ICML 1999).
        over_task_mean: With `gain`, whether the first span is paid its increase over the mean first score of its
            task's episodes instead of over 0. The mean estimates the score before any span. Credit that compares spans
            needs it: otherwise every first span is paid its whole score and looks better than all that follow.
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
    scores_before = _mean_first_scores(rollout, scores) if over_task_mean else {}
    reward = rollout.batch.reward.copy()
    reward[ends] += np.concatenate(
        [
            np.diff(scores[episode.id], prepend=scores_before.get(episode.task.id, 0.0)) if gain else scores[episode.id]
            for episode in rollout.episodes
        ]
    )
    return replace(rollout, batch=replace(rollout.batch, reward=reward))


def _mean_first_scores(rollout: ScoredRollout, scores: Mapping[str, Floats]) -> dict[str, float]:
    """Returns the mean score of the first spans of each task's episodes, by task id."""
    first_scores: defaultdict[str, list[float]] = defaultdict(list)
    for episode in rollout.episodes:
        first_scores[episode.task.id].extend(map(float, scores[episode.id][:1]))
    return {task_id: fmean(values) for task_id, values in first_scores.items() if values}


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

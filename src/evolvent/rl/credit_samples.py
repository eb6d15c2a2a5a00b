"""Samples of advantages for inspection: two episodes of a few iterations, token by token, with the advantage of
each.

Two episodes of one task, one successful and one failed, show most: their common tokens have small advantages,
and the tokens where they diverge have large ones. All samples are small plain JSON, so that a report can show
them after the weights are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.rl.advantages import Advantages
from evolvent.rl.scored_rollout import ScoredRollout

__all__ = ["choose_episodes", "is_sampled_iteration", "sample_credit"]

_MIN_INTERVAL, _MAX_SAMPLES = (
    10,
    10,
)  # iterations between those that are shown, at least; how many of them in all, about
_MAX_TURNS, _MAX_TOKENS = 16, 240  # most of an episode
_MAX_OBSERVATION_CHARACTERS, _MAX_TOKEN_CHARACTERS = 600, 60  # most characters of an observation, and of a token
_DIGITS = 5


def is_sampled_iteration(iteration: int, count: int) -> bool:
    """Returns whether an iteration's advantages are stored: the first, the last, and about every tenth of `count`."""
    return iteration in (1, count) or iteration % max(_MIN_INTERVAL, ceil(count / _MAX_SAMPLES)) == 0


def choose_episodes(is_success: Sequence[bool], group: ArrayLike, max_advantage: ArrayLike) -> tuple[int, ...]:
    """Selects two episodes (or the only one): one success and one failure where possible, of one group where
    possible.

    Args:
        is_success: `[E]` bool.
        group: `[E]`, equal for episodes of one task.
        max_advantage: `[E]`, the largest absolute advantage in each episode; among equal choices the largest is
            taken, then
            the first.
    Returns:
        their indices, the success first.
    """
    groups, strengths = np.asarray(group), np.asarray(max_advantage, np.float64)
    ranked = sorted(range(len(is_success)), key=lambda episode: (-strengths[episode], episode))
    wins, losses = (
        [episode for episode in ranked if is_success[episode]],
        [episode for episode in ranked if not is_success[episode]],
    )
    if not wins or not losses:
        return tuple(ranked[:2])
    pairs = []
    for label in dict.fromkeys(groups[ranked].tolist()):
        pair = [next((episode for episode in side if groups[episode] == label), None) for side in (wins, losses)]
        if pair[0] is not None and pair[1] is not None:
            pairs.append((pair[0], pair[1]))
    return max(pairs, key=lambda pair: strengths[pair[0]] + strengths[pair[1]], default=(wins[0], losses[0]))


def sample_credit(
    rollout: ScoredRollout, advantages: Advantages, *, iteration: int, decode: Callable[[int], str]
) -> dict[str, object]:
    """Returns two episodes of an iteration as JSON values.

    Each has its task, its result, and turns. A turn has its observation, its reward, and its tokens with their text,
    log-probability before the update, advantage, return, and value where there is a critic. Long episodes keep the
    turns
    with the largest advantages, in time order. Numbers that are not finite become None.

    Args:
        decode: returns the text of a token id.
    """
    columns = {"logp": rollout.old, "advantage": advantages.advantage, "return": advantages.returns}
    columns |= {"value": rollout.values} if "values" in rollout.token_outputs else {}
    token_columns = {name: _average_trailing_axes(values) for name, values in columns.items()}
    learned_mask = (
        np.ones(rollout.batch.num_tokens, np.bool_) if advantages.learned_mask is None else advantages.learned_mask
    )
    max_advantage = np.zeros(len(rollout.batch.group))
    magnitudes = np.nan_to_num(np.abs(token_columns["advantage"]), nan=0.0, posinf=0.0)
    np.maximum.at(max_advantage, rollout.batch.episode_of_token, magnitudes)
    selected = choose_episodes(
        [trajectory.success is True for trajectory in rollout.episodes], rollout.batch.group, max_advantage
    )
    texts = _TokenFormatter(rollout, token_columns, learned_mask, magnitudes, decode)
    return {"iteration": iteration, "episodes": [_format_episode(rollout, number, texts) for number in selected]}


class _TokenFormatter:
    """Formats the tokens of actions as JSON values."""

    def __init__(
        self,
        rollout: ScoredRollout,
        columns: dict[str, NDArray[np.float64]],
        learned_mask: NDArray[np.bool_],
        strength: NDArray[np.float64],
        decode: Callable[[int], str],
    ) -> None:
        self._seen, self._columns, self._kept, self._word = rollout, columns, learned_mask, decode
        self.strength = strength

    def step_of(self, token: int) -> int:
        """Returns the step of its episode that a token belongs to."""
        batch = self._seen.batch
        return int(self._seen.sequences[int(batch.sequence[token])].step[int(batch.position[token])])

    def format_token(self, token: int) -> dict[str, Any]:
        batch = self._seen.batch
        token_id = int(self._seen.sequences[int(batch.sequence[token])].ids[int(batch.position[token])])
        numbers = {name: _round_finite(float(values[token])) for name, values in self._columns.items()}
        return {"text": self._word(token_id)[:_MAX_TOKEN_CHARACTERS], **numbers, "learned": bool(self._kept[token])}


def _format_episode(rollout: ScoredRollout, number: int, formatter: _TokenFormatter) -> dict[str, Any]:
    trajectory, batch = rollout.episodes[number], rollout.batch
    actions = np.flatnonzero(batch.episode == number).tolist()
    tokens_by_action = {action: np.flatnonzero(batch.action == action).tolist() for action in actions}
    selected = _select_actions(tokens_by_action, formatter.strength)
    turns = []
    for action in selected:
        step_index = formatter.step_of(tokens_by_action[action][0])
        step = trajectory.steps[step_index]
        turns.append(
            {
                "step": step_index + 1,
                "observation": str(step.observation)[:_MAX_OBSERVATION_CHARACTERS],
                "reward": step.reward,
                "tokens": [formatter.format_token(token) for token in tokens_by_action[action][:_MAX_TOKENS]],
            }
        )
    task = trajectory.task
    return {
        "trajectory": trajectory.id,
        "task": task.id,
        "world": task.world,
        "tier": task.tier,
        "kind": task.kind,
        "success": trajectory.success,
        "return": trajectory.score.raw,
        "ended_by": trajectory.ended_by,
        "group": int(batch.group[number]),
        "turns": turns,
        "turns_left": len(actions) - len(selected),
    }


def _select_actions(tokens_by_action: dict[int, list[int]], magnitudes: NDArray[np.float64]) -> list[int]:
    """Returns the actions with the largest advantages within the limits, in time order; at least one."""
    ranked = sorted(tokens_by_action, key=lambda action: (-float(magnitudes[tokens_by_action[action]].max()), action))
    selected, tokens = ranked[:1], len(tokens_by_action[ranked[0]])
    for action in ranked[1:_MAX_TURNS]:
        tokens += len(tokens_by_action[action])
        if tokens > _MAX_TOKENS:
            break
        selected.append(action)
    return sorted(selected)


def _average_trailing_axes(values: ArrayLike) -> NDArray[np.float64]:
    """Returns `[P]`: the mean over trailing axes, such as one value per agent."""
    array = np.asarray(values, np.float64)
    return array.reshape(len(array), -1).mean(1) if array.ndim > 1 else array


def _round_finite(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None

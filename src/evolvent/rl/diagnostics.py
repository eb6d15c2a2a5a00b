"""Numbers of one iteration that explain why a policy does not learn; `view/reinforcement.py` interprets them.

Samples of advantages for inspection: two episodes of a few iterations, token by token, with the advantage of
each.

Two episodes of one task, one successful and one failed, show most: their common tokens have small advantages,
and the tokens where they diverge have large ones. All samples are small plain JSON, so that a report can show
them after the weights are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, NothingToLearn
from evolvent.rl.advantages import Advantages, is_equal_within_rounding
from evolvent.rl.rollout_batch import RolloutBatch, RolloutReport
from evolvent.rl.scored_rollout import ScoredRollout
from evolvent.trajectory import Array, Trajectory

__all__ = [
    "DegenerateBatchMonitor",
    "choose_episodes",
    "explained_variance",
    "is_sampled_iteration",
    "measure_episodes",
    "measure_tokens",
    "sample_credit",
]


_MIN_INTERVAL, _MAX_SAMPLES = (
    10,
    10,
)  # iterations between those that are shown, at least; how many of them in all, about
_MAX_TURNS, _MAX_TOKENS = 16, 240  # most of an episode
_MAX_OBSERVATION_CHARACTERS, _MAX_TOKEN_CHARACTERS = 600, 60  # most characters of an observation, and of a token
_DIGITS = 5
_MIN_DEVIATION = 1e-8  # of returns; below it there is nothing to explain


def is_sampled_iteration(iteration: int, count: int) -> bool:
    """Returns whether an iteration's advantages are stored: the first, the last, and about every tenth of `count`."""
    return iteration in (1, count) or iteration % max(_MIN_INTERVAL, ceil(count / _MAX_SAMPLES)) == 0


def choose_episodes(is_success: Sequence[bool], group: ArrayLike, max_advantage: ArrayLike) -> tuple[int, ...]:
    """Selects two episodes (or the only one): one success and one failure where possible, of one group where
    possible.

    Args:
        is_success: `[E]` bool.
        group: `[E]`, equal for episodes of one task.
        max_advantage: `[E]`, the largest absolute advantage in each episode; among equal choices the largest is taken,
            then the first.
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
    log-probability before the update (the sampler's where it was not scored), advantage, return, and value where
    there is a critic. Long episodes keep the turns with the largest advantages, in time order. Numbers that are not
    finite become None.

    Args:
        decode: returns the text of a token id.
    """
    logp = rollout.token_outputs.get("old", rollout.batch.logp)
    columns = {"logp": logp, "advantage": advantages.advantage, "return": advantages.returns}
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


_MAX_DEGENERATE_ITERATIONS = 20  # iterations in a row that teach nothing
_REASONS = ("masked_horizon", "masked_cut", "groups_equal", "groups_single")  # as credit counts them
_TRUNCATION_HINT = (
    "raise max_tokens, the policy's context or the horizon, or take a kind that learns from cut episodes too"
)
_EQUAL_GROUPS_HINT = "choose tasks of other difficulty, more samples of a task, or imitate demonstrations first"


class DegenerateBatchMonitor:
    """Counts iterations in a row whose batches gave no gradient; an iteration that trains resets the count.

    Attributes:
        count: number of such iterations in a row.
        why: over these iterations, the number of `episodes` and `groups`, and of those with each reason.
    """

    def __init__(self, count: int = 0, why: Mapping[str, int] | None = None) -> None:
        self.count, self.why = count, Counter(why or {})

    def record(self, batch: RolloutBatch, advantages: Advantages, *, is_trained: bool) -> None:
        """Records one more iteration, and whether anything was learned from it."""
        if is_trained:
            self.count, self.why = 0, Counter()
            return
        self.count += 1
        groups = len(np.unique(batch.group))
        self.why.update({"episodes": len(batch.group), "groups": groups})
        self.why.update({name: int(advantages.counts[name]) for name in _REASONS if name in advantages.counts})

    def check(self, success: float) -> None:
        """Raises an error after too many such iterations.

        Args:
            success: the share of episodes that were solved in the last one.
        Raises:
            NothingToLearn: says why, with counts.
        """
        if self.count < _MAX_DEGENERATE_ITERATIONS:
            return
        reasons, hints = self._explain()
        raise NothingToLearn(
            f"no update in {self.count} consecutive iterations: {'; '.join(reasons)}",
            value=f"success {success:.0%}",
            expected="groups with different outcomes and complete episodes",
            hint="; ".join(hints),
        )

    def _explain(self) -> tuple[list[str], list[str]]:
        why, reasons, hints = self.why, [], []
        if num_cut := why["masked_horizon"] + why["masked_cut"]:
            horizon, context_cuts = why["masked_horizon"], why["masked_cut"]
            details = f"{horizon} at the horizon, {context_cuts} by the context or in their last reply"
            reasons.append(f"{num_cut} of {why['episodes']} episodes were left out because they were cut: {details}")
            hints.append(_TRUNCATION_HINT)
        if why["groups_equal"]:
            reasons.append(f"in {why['groups_equal']} of {why['groups']} groups all episodes earned the same")
            hints.append(_EQUAL_GROUPS_HINT)
        if why["groups_single"]:
            reasons.append(f"{why['groups_single']} of {why['groups']} groups had one episode, compared with none")
            hints.append("take 2 samples of a task or more")
        if not reasons:
            reasons.append(f"no part of {why['episodes']} episodes had an advantage other than 0")
            hints.append("look at what the method's credit compares")
        return reasons, hints


def measure_episodes(trajectories: Sequence[Trajectory], report: RolloutReport) -> dict[str, float]:
    """Measures all episodes, learned or not: rates over episodes, or over steps where they concern actions."""
    count, steps = max(len(trajectories), 1), max(sum(len(trajectory.steps) for trajectory in trajectories), 1)
    step_infos = [step.info for trajectory in trajectories for step in trajectory.steps]
    scored = [trajectory.score for trajectory in trajectories if trajectory.score.raw is not None]
    rates: dict[str, float] = {
        "truncated": sum(
            trajectory.truncated and not trajectory.meta.get("context_full") for trajectory in trajectories
        )
        / count,
        "context_full": sum(bool(trajectory.meta.get("context_full")) for trajectory in trajectories) / count,
        "unparsed": sum(bool(info.get("unparsed")) for info in step_infos) / steps,
        "invalid": sum(bool(info.get("invalid")) for info in step_infos) / steps,
        "unscored": report.unscored / count,
        "stale": report.stale / count,
        "silent": report.silent / count,
        "length": steps / count,
        "cut": sum(_is_cut(trajectory) for trajectory in trajectories) / count,
        "written": sum(trajectory.count_generated_tokens() for trajectory in trajectories) / count,
    }
    if scored:
        rates["return"] = float(np.mean([score.raw for score in scored if score.raw is not None]))
        rates["success"] = sum(score.success is True for score in scored) / len(scored)
        rates["paid_only"] = 0.0 if rates["success"] else sum((score.raw or 0.0) > 0 for score in scored) / len(scored)
    return rates


def _is_cut(trajectory: Trajectory) -> bool:
    """Returns whether the last reply of an episode ended at the limit of tokens, not where the policy stopped."""
    generations = trajectory.steps[-1].generations if trajectory.steps else ()
    return bool(generations) and generations[-1].stop == "length"


def measure_tokens(
    batch: RolloutBatch,
    token_outputs: Mapping[str, NDArray[np.generic]],
    columns: Mapping[str, Array],
    *,
    version: int,
) -> dict[str, float]:
    """Measures the tokens: lag and mismatch of the sampler, spread of the advantages, calibration of the values.

    Args:
        batch: the learned tokens.
        token_outputs: `[P]` each: "old", where it was scored, and, with a critic, "values".
        columns: `[P]` each: "advantages" and, with a critic, "returns".
        version: of the policy that is trained.
    """
    metrics: dict[str, float] = {
        "parts": float(batch.num_tokens),
        "actions": float(len(batch.episode)),
        "lag": float(np.mean(version - batch.version)),
        "lag_max": float(np.max(version - batch.version, initial=0)),
        "equal_groups": _equal_group_share(batch),
        "sampled_entropy": float(-np.mean(batch.logp)),
    }
    if "old" in token_outputs:
        log_ratio = np.clip(np.asarray(token_outputs["old"], np.float64) - batch.logp, -20, 20)
        metrics["mismatch"] = float(np.mean(np.expm1(log_ratio) - log_ratio))
    if "advantages" in columns:
        metrics["advantage_deviation"] = float(np.std(columns["advantages"]))
    if "values" in token_outputs and "returns" in columns:
        returns, values = np.asarray(columns["returns"], np.float64), np.asarray(token_outputs["values"], np.float64)
        metrics["value_error"] = float(np.mean((values - returns) ** 2))
        deviation = float(returns.std())
        if deviation > _MIN_DEVIATION:
            metrics["explained"] = explained_variance(values, returns)
            metrics["bias"] = abs(float((values - returns).mean())) / deviation
    return metrics


def explained_variance(values: ArrayLike, returns: ArrayLike) -> float:
    """Computes the share of the variance of returns that a critic explains; NaN where returns do not vary.

    `1 - var(R - V) / var(R)`: 1 for exact values, 0 for any constant, negative where values add variance. A constant
    error does not change it.

    Args:
        values: `[N]`. Estimates V.
        returns: `[N]`. Returns R.
    Raises:
        BatchMismatch: values and returns differ in shape.

    >>> round(explained_variance([0.0, 1.0, 1.0], [0.0, 1.0, 2.0]), 3)
    0.667
    """
    estimates, targets = np.asarray(values, np.float64), np.asarray(returns, np.float64)
    if estimates.shape != targets.shape:
        raise BatchMismatch("values and returns differ in shape", value=estimates.shape, expected=targets.shape)
    deviation = float(targets.std()) if targets.size else 0.0
    return 1.0 - float((targets - estimates).var()) / deviation**2 if deviation > _MIN_DEVIATION else nan


def _equal_group_share(batch: RolloutBatch) -> float:
    """Returns the share of groups of several episodes whose returns are all equal."""
    returns = np.bincount(batch.episode_of_token, weights=batch.reward, minlength=len(batch.group))
    size = np.bincount(batch.group)
    min_returns, max_returns = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(min_returns, batch.group, returns)
    np.maximum.at(max_returns, batch.group, returns)
    has_several = size > 1
    return float(is_equal_within_rounding(min_returns, max_returns)[has_several].mean()) if has_several.any() else 0.0

"""Numbers of one iteration that explain why a policy does not learn; `view/reinforcement.py` interprets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import NothingToLearn
from evolvent.rl.advantages import Advantages, is_equal_within_rounding
from evolvent.rl.rollout_batch import RolloutBatch, RolloutReport
from evolvent.trajectory import Array, Trajectory

__all__ = ["DegenerateBatchMonitor", "measure_episodes", "measure_tokens"]


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
            f"nothing was learned in {self.count} iterations in a row: {'; '.join(reasons)}",
            value=f"success {success:.0%}",
            expected="groups of episodes that differ, some of them whole",
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
        "written": sum(trajectory.count_generated_tokens() for trajectory in trajectories) / count,
    }
    if scored:
        rates["return"] = float(np.mean([score.raw for score in scored if score.raw is not None]))
        rates["success"] = sum(score.success is True for score in scored) / len(scored)
    return rates


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
        token_outputs: `[P]` each: "old" and, with a critic, "values".
        columns: `[P]` each: "advantages" and, with a critic, "returns".
        version: of the policy that is trained.
    """
    log_ratio = np.asarray(token_outputs["old"], np.float64) - batch.logp
    metrics: dict[str, float] = {
        "parts": float(batch.num_tokens),
        "actions": float(len(batch.episode)),
        "lag": float(np.mean(version - batch.version)),
        "mismatch": float(np.mean(np.expm1(np.clip(log_ratio, -20, 20)) - np.clip(log_ratio, -20, 20))),
        "equal_groups": _equal_group_share(batch),
        "sampled_entropy": float(-np.mean(batch.logp)),
    }
    if "advantages" in columns:
        metrics["advantage_deviation"] = float(np.std(columns["advantages"]))
    if "values" in token_outputs and "returns" in columns:
        returns, values = np.asarray(columns["returns"], np.float64), np.asarray(token_outputs["values"], np.float64)
        metrics["value_error"] = float(np.mean((values - returns) ** 2))
        deviation = float(returns.std())
        if deviation > 1e-8:
            metrics["explained"] = 1.0 - float((returns - values).var()) / deviation**2
            metrics["bias"] = abs(float((values - returns).mean())) / deviation
    return metrics


def _equal_group_share(batch: RolloutBatch) -> float:
    """Returns the share of groups of several episodes whose returns are all equal."""
    returns = np.bincount(batch.episode_of_token, weights=batch.reward, minlength=len(batch.group))
    size = np.bincount(batch.group)
    min_returns, max_returns = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(min_returns, batch.group, returns)
    np.maximum.at(max_returns, batch.group, returns)
    has_several = size > 1
    return float(is_equal_within_rounding(min_returns, max_returns)[has_several].mean()) if has_several.any() else 0.0

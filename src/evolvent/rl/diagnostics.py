"""Numbers of one iteration that tell why a policy does not learn; what they mean is in `view/signs.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import NothingToLearn
from evolvent.rl.advantages import Credit, alike
from evolvent.rl.rollout_batch import Flat, FlattenReport
from evolvent.trajectory import Trajectory

__all__ = ["Idle", "episode_health", "part_health"]


_PATIENCE = 20  # iterations in a row that teach nothing
_COUNTED = ("masked_horizon", "masked_cut", "groups_equal", "groups_single")  # as credit counts them
_CUT = "raise max_tokens, the policy's context or the horizon, or take a kind that learns from cut episodes too"
_EQUAL = "choose tasks of other difficulty, more samples of a task, or imitate demonstrations first"


class Idle:
    """Counts iterations that taught nothing; an iteration that teaches begins anew.

    Attributes:
        count: how many they are in a row.
        why: over them, how many `episodes` and `groups` there were, and of these how many are among each reason.
    """

    def __init__(self, count: int = 0, why: Mapping[str, int] | None = None) -> None:
        self.count, self.why = count, Counter(why or {})

    def note(self, found: Flat, credit: Credit, *, taught: bool) -> None:
        """One more iteration, and whether anything is learned from it."""
        if taught:
            self.count, self.why = 0, Counter()
            return
        self.count += 1
        groups = len(np.unique(found.group))
        self.why.update({"episodes": len(found.group), "groups": groups})
        self.why.update({name: int(credit.counts[name]) for name in _COUNTED if name in credit.counts})

    def check(self, success: float) -> None:
        """Give up after so many of them.

        Args:
            success: the share of episodes that were solved in the last one.
        Raises:
            NothingToLearn: says why, with counts.
        """
        if self.count < _PATIENCE:
            return
        reasons, hints = self._reasons()
        raise NothingToLearn(
            f"nothing was learned in {self.count} iterations in a row: {'; '.join(reasons)}",
            value=f"success {success:.0%}",
            expected="groups of episodes that differ, some of them whole",
            hint="; ".join(hints),
        )

    def _reasons(self) -> tuple[list[str], list[str]]:
        why, reasons, hints = self.why, [], []
        if cut := why["masked_horizon"] + why["masked_cut"]:
            horizon, others = why["masked_horizon"], why["masked_cut"]
            told = f"{horizon} at the horizon, {others} by the context or in their last reply"
            reasons.append(f"{cut} of {why['episodes']} episodes were left out because they were cut: {told}")
            hints.append(_CUT)
        if why["groups_equal"]:
            reasons.append(f"in {why['groups_equal']} of {why['groups']} groups all episodes earned the same")
            hints.append(_EQUAL)
        if why["groups_single"]:
            reasons.append(f"{why['groups_single']} of {why['groups']} groups had one episode, compared with none")
            hints.append("take 2 samples of a task or more")
        if not reasons:
            reasons.append(f"no part of {why['episodes']} episodes had an advantage other than 0")
            hints.append("look at what the method's credit compares")
        return reasons, hints


def episode_health(played: Sequence[Trajectory], report: FlattenReport) -> dict[str, float]:
    """What the episodes say, learned or not: rates over episodes, or over steps where it is about actions."""
    count, steps = max(len(played), 1), max(sum(len(one.steps) for one in played), 1)
    marks = [step.info for one in played for step in one.steps]
    scored = [one.score for one in played if one.score.raw is not None]
    rates: dict[str, float] = {
        "truncated": sum(one.truncated and not one.meta.get("context_full") for one in played) / count,
        "context_full": sum(bool(one.meta.get("context_full")) for one in played) / count,
        "unparsed": sum(bool(info.get("unparsed")) for info in marks) / steps,
        "invalid": sum(bool(info.get("invalid")) for info in marks) / steps,
        "unscored": report.unscored / count,
        "stale": report.stale / count,
        "silent": report.silent / count,
        "length": steps / count,
        "written": sum(one.generated() for one in played) / count,
    }
    if scored:
        rates["return"] = float(np.mean([score.raw for score in scored if score.raw is not None]))
        rates["success"] = sum(score.success is True for score in scored) / len(scored)
    return rates


def part_health(
    found: Flat, said: Mapping[str, NDArray[Any]], columns: Mapping[str, NDArray[Any]], *, version: int
) -> dict[str, float]:
    """What the parts say: lag and mismatch of the sampler, spread of the advantages, calibration of the values.

    Args:
        said: "old" and, with a critic, "values", `[P]`. columns: "advantages" and, with a critic, "returns", `[P]`.
        version: of the policy that is improved.
    """
    log_ratio = np.asarray(said["old"], np.float64) - found.logp
    shown: dict[str, float] = {
        "parts": float(found.parts),
        "actions": float(len(found.episode)),
        "lag": float(np.mean(version - found.version)),
        "mismatch": float(np.mean(np.expm1(np.clip(log_ratio, -20, 20)) - np.clip(log_ratio, -20, 20))),
        "equal_groups": _equal(found),
        "sampled_entropy": float(-np.mean(found.logp)),
    }
    if "advantages" in columns:
        shown["advantage_deviation"] = float(np.std(columns["advantages"]))
    if "values" in said and "returns" in columns:
        returns, values = np.asarray(columns["returns"], np.float64), np.asarray(said["values"], np.float64)
        shown["value_error"] = float(np.mean((values - returns) ** 2))
        deviation = float(returns.std())
        if deviation > 1e-8:
            shown["explained"] = 1.0 - float((returns - values).var()) / deviation**2
            shown["bias"] = abs(float((values - returns).mean())) / deviation
    return shown


def _equal(found: Flat) -> float:
    """The share of groups of several episodes whose returns are all equal."""
    paid = np.bincount(found.episode_of_part, weights=found.reward, minlength=len(found.group))
    size = np.bincount(found.group)
    least, most = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(least, found.group, paid)
    np.maximum.at(most, found.group, paid)
    several = size > 1
    return float(alike(least, most)[several].mean()) if several.any() else 0.0

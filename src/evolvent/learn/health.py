"""Why is it not learning? Numbers of one iteration that answer, each with a threshold and what it means beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.learn.flat import Flat, FlattenReport
from evolvent.trajectory import Trajectory

__all__ = ["SIGNS", "Sign", "episode_health", "part_health"]


@dataclass(frozen=True, slots=True)
class Sign:
    """A number that tells whether learning is in trouble.

    Attributes:
        name: of the number in the metrics. title: in words. limit: the threshold, and `side` the bad side of it.
        means: what is wrong beyond it. try_: what to do then.
    """

    name: str
    title: str
    limit: float
    side: Literal["above", "below"]
    means: str
    try_: str


SIGNS: tuple[Sign, ...] = (
    Sign("sampled_entropy", "entropy of a token (nats)", 0.02, "below", "the policy always does the same",
         "raise the entropy bonus or temperature, lower the learning rate"),
    Sign("kl", "divergence of an iteration's updates", 0.1, "above", "updates leave the policy that was measured",
         "fewer epochs, a lower learning rate, or a limit (stop_kl)"),
    Sign("clipped", "parts whose ratio was clipped", 0.3, "above", "most of what is learned is thrown away",
         "fewer epochs, or a lower learning rate"),
    Sign("mismatch", "sampler against learner", 0.01, "above", "actions were sampled from another distribution",
         "check temperature and top-k, correct it (behaviour), or allow less lag"),
    Sign("equal_groups", "groups without variance", 0.7, "above", "most tasks are always solved, or never",
         "choose tasks of other difficulty, more samples a task, or start from demonstrations"),
    Sign("truncated", "episodes cut at the horizon", 0.5, "above", "episodes end before the reward comes",
         "raise the horizon, or begin with a shorter task"),
    Sign("context_full", "episodes out of context", 0.1, "above", "the conversation does not fit the policy",
         "a longer context, or another history"),
    Sign("unparsed", "actions that cannot be read", 0.2, "above", "the policy does not know the language of actions",
         "imitate demonstrations first"),
    Sign("invalid", "actions that the world refuses", 0.5, "above", "actions are words, but not possible ones",
         "imitate demonstrations first, or choose among admissible actions"),
    Sign("unscored", "episodes without a score", 0.1, "above", "the world or its grader fails",
         "look at the errors of the episodes"),
    Sign("stale", "episodes of too old a policy", 0.2, "above", "collected work is thrown away", "allow more lag"),
    Sign("explained", "variance of returns that values explain", 0.0, "below", "the critic is worse than a constant",
         "a higher critic learning rate, or critic_warmup"),
    Sign("bias", "mean of values minus returns, in deviations", 0.5, "above", "the critic is off in one direction",
         "critic_warmup, or a lower discount"),
)  # fmt: skip


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
    return float(((most - least) < 1e-9)[several].mean()) if several.any() else 0.0

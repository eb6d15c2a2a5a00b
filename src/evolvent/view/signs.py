"""Signs of why a policy does not learn: metrics of an iteration, each with a threshold and its meaning beyond it.

They stand in the order of causes: what comes first makes what comes later meaningless. A policy that cannot be read has
groups without variance; without variance there is nothing for a critic to explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SIGNS", "Sign"]


@dataclass(frozen=True, slots=True)
class Sign:
    """A number that tells whether learning is in trouble.

    Attributes:
        name: of the number in the metrics. title: in words. limit: the threshold, and `side` the bad side of it.
        share: whether it is a share, read as per cent. means: what is wrong beyond it. try_: what to do then.
    """

    name: str
    title: str
    limit: float
    side: Literal["above", "below"]
    share: bool
    means: str
    try_: str


SIGNS: tuple[Sign, ...] = (
    Sign(
        "unscored",
        "episodes without a score",
        0.1,
        "above",
        True,
        "the world or its grader fails",
        "look at the errors of the episodes",
    ),
    Sign(
        "unparsed",
        "actions that cannot be read",
        0.2,
        "above",
        True,
        "the policy does not know the language of actions",
        "imitate demonstrations first",
    ),
    Sign(
        "invalid",
        "actions that the world refuses",
        0.5,
        "above",
        True,
        "actions are words, but not possible ones",
        "imitate demonstrations first, or choose among admissible actions",
    ),
    Sign(
        "context_full",
        "episodes out of context",
        0.1,
        "above",
        True,
        "the conversation does not fit the policy",
        "a longer context, or another history",
    ),
    Sign(
        "truncated",
        "episodes cut at the horizon",
        0.5,
        "above",
        True,
        "episodes end before the reward comes",
        "raise the horizon, or begin with a shorter task",
    ),
    Sign(
        "stale", "episodes of too old a policy", 0.2, "above", True, "collected work is thrown away", "allow more lag"
    ),
    Sign(
        "mismatch",
        "sampler against learner",
        0.01,
        "above",
        False,
        "actions were sampled from another distribution",
        "check temperature and top-k, correct it (rl.correct), or allow less lag",
    ),
    Sign(
        "equal_groups",
        "groups without variance",
        0.7,
        "above",
        True,
        "most tasks are always solved, or never",
        "choose tasks of other difficulty, more samples a task, or start from demonstrations",
    ),
    Sign(
        "sampled_entropy",
        "entropy of a token (nats)",
        0.02,
        "below",
        False,
        "the policy always does the same",
        "raise the entropy bonus or temperature, lower the learning rate",
    ),
    Sign(
        "kl",
        "divergence of an iteration's updates",
        0.1,
        "above",
        False,
        "updates leave the policy that was measured",
        "fewer epochs, a lower learning rate, or a limit (stop_kl)",
    ),
    Sign(
        "clipped",
        "parts whose ratio was clipped",
        0.3,
        "above",
        True,
        "most of what is learned is thrown away",
        "fewer epochs, or a lower learning rate",
    ),
    Sign(
        "explained",
        "variance of returns that values explain",
        0.0,
        "below",
        False,
        "the critic is worse than a constant",
        "a higher critic learning rate, or critic_warmup",
    ),
    Sign(
        "bias",
        "mean of values minus returns, in deviations",
        0.5,
        "above",
        False,
        "the critic is off in one direction",
        "critic_warmup, or a lower discount",
    ),
)

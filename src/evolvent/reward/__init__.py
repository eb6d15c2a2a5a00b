"""Rewards and judges of models: process, outcome and value heads, labels, calibration; built-in rewards by name.

`evolvent.reward` offers the built-in rewards and the judge behind an endpoint, loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.reward.builtin import CodeReward as CodeReward
    from evolvent.reward.builtin import JudgeReward as JudgeReward
    from evolvent.reward.builtin import MathsReward as MathsReward
    from evolvent.reward.builtin import exact as exact
    from evolvent.reward.builtin import find_reward as find_reward
    from evolvent.reward.builtin import number as number
    from evolvent.reward.judging import EndpointJudge as EndpointJudge

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "builtin": ("CodeReward", "JudgeReward", "MathsReward", "exact", "find_reward", "number"),
        "judging": ("EndpointJudge",),
    },
)

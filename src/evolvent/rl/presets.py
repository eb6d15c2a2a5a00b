"""Published reinforcement learning algorithms as data: an advantage estimator and the settings of the loss.

`dataclasses.replace` changes either half. Coefficients of the divergence that a paper does not fix (GRPO apart)
are common defaults. Settings outside a preset (group size, temperature, length) belong to the training loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolvent.rl.estimators import AdvantageEstimator, GaeEstimator, GroupEstimator
from evolvent.rl.settings import (
    Aggregate,
    Clip,
    ClippedWeight,
    Divergence,
    PolicyGradient,
    Reinforce,
    ValueLoss,
)

if TYPE_CHECKING:
    from evolvent.learn.objectives import Objective

__all__ = [
    "DAPO",
    "DR_GRPO",
    "GIGPO",
    "GRPO",
    "GSPO",
    "LITE_PPO",
    "NTPO",
    "OPENR_APPO",
    "OPENR_TPPO",
    "POAD",
    "PPO",
    "PPO_ACTION",
    "PRESETS",
    "R3",
    "REINFORCE_PP",
    "REINFORCE_PP_BASELINE",
    "RLOO",
    "Preset",
    "cispo",
]


@dataclass(frozen=True, slots=True)
class Preset:
    """Both halves of an algorithm.

    Attributes:
        name: of its objective.
        estimator: advantages, computed once over a buffer.
        loss: of every batch.
    """

    name: str
    estimator: AdvantageEstimator
    loss: PolicyGradient

    @property
    def objective(self) -> Objective:
        """Returns the objective that a Learner minimizes."""
        from evolvent.rl.objective import policy_gradient

        return policy_gradient(self.loss, name=self.name)

    @property
    def single_update_objective(self) -> Objective | None:
        """Returns the objective of iterations with one update, which needs no scores before it (`RLSpec`).

        None where the advantages need the log-probabilities before the update: a divergence is part of the reward.
        """
        from evolvent.rl.objective import policy_gradient

        if "reference" in self.estimator.needs:
            return None
        return policy_gradient(self.loss, name=self.name, single_update=True)


# ------------------------------------------------------------------ groups of samples, no critic

_SEQUENCE_MEAN = Aggregate("sequence_mean")

GRPO = Preset("grpo", GroupEstimator(), PolicyGradient(aggregate=_SEQUENCE_MEAN, kl=Divergence(0.04)))
"""DeepSeekMath, arXiv 2402.03300."""

DR_GRPO = Preset(
    "dr_grpo", GroupEstimator(scale="none"), PolicyGradient(aggregate=Aggregate("constant_length", length=3000))
)
"""arXiv 2503.20783: neither length nor difficulty of a task changes its weight. Length 3000, 8 samples a task."""

DAPO = Preset("dapo", GroupEstimator(drop_equal=True, drop_truncated=True), PolicyGradient(surrogate=Clip(0.2, 0.28)))
"""arXiv 2503.14476. Sampling on until the batch is full, and `advantages.overlong_penalty`, are the loop's."""

RLOO = Preset(
    "rloo",
    GroupEstimator(baseline="leave_one_out", scale="none", kl_coef=0.05),
    PolicyGradient(surrogate=Reinforce(), aggregate=Aggregate("sequence_sum")),
)
"""arXiv 2402.14740; the divergence is in the reward."""

REINFORCE_PP = Preset(
    "reinforce_pp",
    GroupEstimator(baseline="none", scale="none", whiten=True, kl_coef=0.01, kl_level="part"),
    PolicyGradient(),
)
"""REINFORCE++, arXiv 2501.03262: no groups; the divergence is in the reward, advantages are whitened over all parts."""

REINFORCE_PP_BASELINE = Preset(
    "reinforce_pp_baseline",
    GroupEstimator(baseline="group_mean", scale="none", whiten=True, kl_coef=0.01, kl_level="part"),
    PolicyGradient(),
)
"""REINFORCE++ with the group's mean taken off first."""

GSPO = Preset(
    "gspo",
    GroupEstimator(),
    PolicyGradient(ratio="sequence", surrogate=Clip(3e-4, 4e-4), aggregate=_SEQUENCE_MEAN),
)
"""arXiv 2507.18071: one ratio a sequence."""

LITE_PPO = Preset("lite_ppo", GroupEstimator(scale="batch_std"), PolicyGradient())
"""arXiv 2508.08221: the group's mean, the batch's deviation, the mean over all parts."""

GIGPO = Preset("gigpo", GroupEstimator(scale="none", anchor_coef=1.0), PolicyGradient())
"""arXiv 2505.10978: episodes compared in their group, and steps with those from the same state."""


def cispo(*, low: float, high: float) -> Preset:
    """Builds the preset of MiniMax-M1 (arXiv 2506.13585); its clip range was not published, so pass your own.

    >>> preset = cispo(low=0.2, high=5.0)
    >>> preset.name, preset.loss.surrogate.low, preset.loss.surrogate.high
    ('cispo', 0.2, 5.0)
    """
    return Preset("cispo", GroupEstimator(), PolicyGradient(surrogate=ClippedWeight(low, high)))


# ------------------------------------------------------------------ critics

PPO = Preset(
    "ppo",
    GaeEstimator(gamma=1.0, gae_lambda=0.95, token_lambda=0.95, kl_coef=0.05, whiten=True),
    PolicyGradient(value_loss=ValueLoss(0.5, clip=0.2)),
)
"""Token PPO as in learning from human feedback (arXiv 2203.02155): no discount, the divergence in the reward."""

R3 = Preset(
    "r3",
    GaeEstimator(gamma=1.0, gae_lambda=0.95, token_lambda=0.95, kl_coef=0.05, whiten=True),
    PolicyGradient(aggregate=_SEQUENCE_MEAN, value_loss=ValueLoss(5.0, clip=0.2)),
)
"""The PPO of R3 (arXiv 2402.05808), divergence as for its chains of thought in words."""

PPO_ACTION = Preset(
    "ppo_action",
    GaeEstimator(gamma=0.99, gae_lambda=0.95, level="action", whiten=True),
    PolicyGradient(
        ratio="action",
        aggregate=Aggregate("unit_mean", level="action"),
        entropy_coef=1e-2,
        value_loss=ValueLoss(0.5, clip=0.2, level="action"),
        target_kl=0.02,
    ),
)
"""PPO over whole actions (TWOSOME, arXiv 2401.14151): one value and one ratio an action."""

POAD = Preset(
    "poad",
    GaeEstimator(gamma=0.99, gae_lambda=0.95, token_lambda=0.95, whiten=True),
    PolicyGradient(entropy_coef=1e-4, value_loss=ValueLoss(0.5, clip=0.2), target_kl=0.02),
)
"""Policy optimization with action decomposition, arXiv 2405.15821: no discount inside an action."""

NTPO = Preset(
    "ntpo",
    GaeEstimator(gamma=0.99, gae_lambda=0.95, token_gamma=0.99, token_lambda=0.95, whiten=True),
    POAD.loss,
)
"""Naive token-wise policy optimisation, POAD's baseline: the discount falls between tokens too."""

OPENR_TPPO = Preset(
    "openr_tppo",
    GaeEstimator(gamma=0.95, gae_lambda=0.95, token_lambda=0.95, between="span"),
    PolicyGradient(entropy_coef=1e-2, value_loss=ValueLoss(0.5, clip=0.2), target_kl=0.02),
)
"""OpenR (arXiv 2410.09671), token level: spans of reasoning in the place of actions."""

OPENR_APPO = Preset(
    "openr_appo",
    GaeEstimator(gamma=0.95, gae_lambda=0.95, level="span", between="span"),
    PolicyGradient(
        ratio="span",
        aggregate=Aggregate("unit_mean", level="span"),
        entropy_coef=1e-2,
        value_loss=ValueLoss(0.5, clip=0.2, level="span"),
        target_kl=0.02,
    ),
)
"""OpenR, span level: the log-probability of a span is the sum of its tokens'."""

PRESETS: tuple[Preset, ...] = (
    GRPO,
    DR_GRPO,
    DAPO,
    RLOO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    GSPO,
    LITE_PPO,
    GIGPO,
    PPO,
    R3,
    PPO_ACTION,
    POAD,
    NTPO,
    OPENR_TPPO,
    OPENR_APPO,
)
"""All that need no further number (CISPO does)."""

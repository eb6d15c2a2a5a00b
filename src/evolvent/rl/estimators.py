"""Advantage estimators with their constants, as frozen data.

An estimator turns a `RolloutBatch` into `Advantages`. It is the half of a published algorithm that is computed
once for a whole buffer, in numpy (`rl.advantages`); the other half is a loss (`rl.objective`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.rl.advantages import (
    Advantages,
    Baseline,
    Level,
    Scale,
    anchor_advantage,
    decomposed_gae,
    discounted_returns,
    episode_returns,
    group_advantage,
    kl_in_reward,
    whiten,
)
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, RolloutBatch

__all__ = ["AdvantageEstimator", "GaeEstimator", "GroupEstimator"]


class AdvantageEstimator(Protocol):
    """The interface of an estimator; `needs` names the arrays that it reads: "values", "reference", "anchors".

    `needs` names the arrays that it reads beside the flat: "values", "reference", "anchors".
    """

    @property
    def needs(self) -> tuple[str, ...]: ...

    def __call__(
        self,
        batch: RolloutBatch,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Advantages: ...


@dataclass(frozen=True, slots=True)
class GaeEstimator:
    """Generalized advantage estimation over tokens (`advantages.decomposed_gae` explains the discounts).

    Args:
        gamma, gae_lambda: discount and lambda between actions.
        token_gamma, token_lambda: discount and lambda inside an action.
        level: the unit that receives credit.
        between: the units that `gamma` lies between.
        kl_coef: times `log pi - log ref` is subtracted from the reward of every token.
        whiten: normalize advantages to mean 0 and variance 1 over all tokens of the buffer; the returns stay.
    Raises:
        ConfigError: settings are out of their range; lists all of them.

    >>> GaeEstimator(gamma=0.99, gae_lambda=0.95).needs
    ('values',)
    """

    gamma: float
    gae_lambda: float
    token_gamma: float = 1.0
    token_lambda: float = 1.0
    level: Level = "part"
    between: Literal["action", "span"] = "action"
    kl_coef: float = 0.0
    whiten: bool = False

    def __post_init__(self) -> None:
        ratios = {
            "gamma": self.gamma,
            "lam": self.gae_lambda,
            "gamma_part": self.token_gamma,
            "lam_part": self.token_lambda,
        }
        _check_ranges(ratios, {"kl": self.kl_coef})

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns the names of the arrays that it reads beside the batch."""
        return ("values", "reference") if self.kl_coef else ("values",)

    def __call__(
        self,
        batch: RolloutBatch,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Advantages:
        """Estimates the advantage of every token.

        Args:
            batch: rewards, actions and episode ends.
            values: `[P, ...]`, of the prefix before each token.
            logp: `[P]`, under the policy before the update; None: the sampler's log-probabilities.
            reference: `[P]`, log-probabilities under the reference.
            anchors: ignored.
        Raises:
            BatchMismatch: an array is missing or does not fit.
            NonFinite: a value or reward is not finite.
        """
        advantages = decomposed_gae(
            _require_array(values, "values"),
            _penalize_kl(batch, self.kl_coef, logp, reference),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            token_gamma=self.token_gamma,
            token_lambda=self.token_lambda,
            level=self.level,
            between=self.between,
        )
        return replace(advantages, advantage=whiten(advantages.advantage)) if self.whiten else advantages


@dataclass(frozen=True, slots=True)
class GroupEstimator:
    """Compares episodes within their task; every token has its episode's advantage.

    Args:
        baseline, scale: see `advantages.group_advantage`.
        whiten: normalize to mean 0 and variance 1 over all tokens of the buffer, at the end.
        kl_coef: times `log pi - log ref` is subtracted.
        kl_level: "episode": from the return that is compared (RLOO); "part": from each token, summed from there to the
            end of the episode, after the comparison (REINFORCE++).
        anchor_coef: times the advantage among actions from the same state is added (GiGPO's w); 0: none.
        anchor_gamma: discount of the returns that are compared there.
        statistics_over: "steps": an episode counts once for each action in its group's mean and deviation (GiGPO's
            code).
        drop_equal: groups without variance are not learned.
        drop_truncated: episodes that were cut at their horizon, by the context, or in their last reply are not learned
            (DAPO's overlong filtering, arXiv 2503.14476 section 3.4).
    Raises:
        ConfigError: settings are out of their range; lists all of them.

    >>> GroupEstimator(kl_coef=0.05).needs
    ('reference',)
    """

    baseline: Baseline = "group_mean"
    scale: Scale = "group_std"
    whiten: bool = False
    kl_coef: float = 0.0
    kl_level: Literal["episode", "part"] = "episode"
    anchor_coef: float = 0.0
    anchor_gamma: float = 0.95
    statistics_over: Literal["episodes", "steps"] = "episodes"
    drop_equal: bool = False
    drop_truncated: bool = False

    def __post_init__(self) -> None:
        _check_ranges({"anchor_gamma": self.anchor_gamma}, {"kl": self.kl_coef, "anchor": self.anchor_coef})

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns the names of the arrays that it reads beside the batch."""
        return (("reference",) if self.kl_coef else ()) + (("anchors",) if self.anchor_coef else ())

    def __call__(
        self,
        batch: RolloutBatch,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Advantages:
        """Estimates the advantage of every token; its returns are the episode returns that were compared.

        Args:
            batch: rewards, groups and episode ends.
            values: ignored.
            logp: `[P]`, under the policy before the update; None: the sampler's log-probabilities.
            reference: `[P]`, log-probabilities under the reference.
            anchors: `[A]`, exact hashes of the observations that were acted on.
        Raises:
            BatchMismatch: an array is missing or does not fit.
            NonFinite: a reward is not finite.
        """
        penalized = _penalize_kl(batch, self.kl_coef, logp, reference)
        returns = episode_returns(penalized if self.kl_level == "episode" else batch)
        row_episode = batch.episode if self.statistics_over == "steps" else np.arange(len(returns))
        row_of_token = batch.action if self.statistics_over == "steps" else batch.episode_of_token
        grouped = group_advantage(
            returns[row_episode], batch.group[row_episode], baseline=self.baseline, scale=self.scale
        )
        advantage, counts = (
            grouped.advantage[row_of_token],
            {"groups_single": grouped.num_single, "groups_equal": grouped.num_equal},
        )
        if self.anchor_coef:
            starts = np.flatnonzero(np.append(True, batch.is_last_in_action[:-1]))
            returns_to_go, task = discounted_returns(batch, gamma=self.anchor_gamma)[starts], batch.group[batch.episode]
            anchor_advantages = anchor_advantage(
                returns_to_go, _require_array(anchors, "anchors"), task, scale=_anchor_scale(self.scale)
            )
            advantage = advantage + self.anchor_coef * anchor_advantages.advantage[batch.action]
            counts |= {"anchors_single": anchor_advantages.num_single, "anchors_equal": anchor_advantages.num_equal}
        if self.kl_coef and self.kl_level == "part":
            advantage = advantage + discounted_returns(batch, gamma=1.0, reward=penalized.reward - batch.reward)
        learned_mask = np.ones(batch.num_tokens, np.bool_)
        if self.drop_equal:
            learned_mask &= grouped.has_variance[row_of_token]
        if self.drop_truncated:
            end_of_token = batch.ended[np.searchsorted(batch.episode, batch.episode_of_token, side="right") - 1]
            learned_mask &= ~np.isin(end_of_token, (TRUNCATED, CUT_OFF))
            counts |= {"masked_horizon": _count_ended(batch, TRUNCATED), "masked_cut": _count_ended(batch, CUT_OFF)}
        if self.whiten:
            advantage = whiten(advantage, mask=learned_mask)
        return Advantages(
            advantage, returns[batch.episode_of_token], None if learned_mask.all() else learned_mask, counts
        )


def _count_ended(batch: RolloutBatch, end: int) -> int:
    """Counts the episodes that ended in this way."""
    return int((batch.ended == end).sum())


def _anchor_scale(scale: Scale) -> Scale:
    return "group_std" if scale == "group_std" else "none"


def _penalize_kl(batch: RolloutBatch, beta: float, logp: ArrayLike | None, reference: ArrayLike | None) -> RolloutBatch:
    if not beta:
        return batch
    logprobs = batch.logp if logp is None else logp
    return replace(
        batch, reward=kl_in_reward(batch.reward, logprobs, _require_array(reference, "reference"), beta=beta)
    )


def _require_array(array: ArrayLike | None, name: str) -> NDArray[np.generic]:
    if array is None:
        raise BatchMismatch(f"this estimator needs {name!r}", expected=f"{name}=[...]")
    return np.asarray(array)


def _check_ranges(ratios: Mapping[str, float], amounts: Mapping[str, float]) -> None:
    """Raises a ConfigError that lists the ratios outside 0..1 and the amounts below 0."""
    problems = [
        Problem(name, f"got {value}, expected from 0 to 1") for name, value in ratios.items() if not 0 <= value <= 1
    ]
    problems += [Problem(name, f"got {value}, expected 0 or more") for name, value in amounts.items() if not value >= 0]
    if problems:
        raise ConfigError(problems)

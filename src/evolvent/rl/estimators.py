"""Rules of credit: which estimator of `learn.advantages`, with which constants, as frozen data.

A rule turns a `Flat` into a `Credit`. It is the half of a published algorithm that is computed once for a whole buffer,
in numpy; the other half is a loss (`learn.reinforcement`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.rl.advantages import (
    Baseline,
    Credit,
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
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, Flat

__all__ = ["CreditRule", "GaeCredit", "GroupCredit"]


class CreditRule(Protocol):
    """From what was sampled to what each part is worth.

    `needs` names the arrays that it reads beside the flat: "values", "reference", "anchors".
    """

    @property
    def needs(self) -> tuple[str, ...]: ...

    def __call__(
        self,
        flat: Flat,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Credit: ...


@dataclass(frozen=True, slots=True)
class GaeCredit:
    """Generalised advantage estimation over parts (`advantages.decomposed_gae`, where the discounts are explained).

    Args:
        kl: times `log pi - log ref` is taken off the reward of every part.
        whiten: advantages to mean 0 and variance 1 over all parts of the buffer; the returns stay.
    Raises:
        ConfigError: settings out of their range, all at once.
    """

    gamma: float
    lam: float
    gamma_part: float = 1.0
    lam_part: float = 1.0
    level: Level = "part"
    between: Literal["action", "span"] = "action"
    kl: float = 0.0
    whiten: bool = False

    def __post_init__(self) -> None:
        shares = {"gamma": self.gamma, "lam": self.lam, "gamma_part": self.gamma_part, "lam_part": self.lam_part}
        _refuse(shares, {"kl": self.kl})

    @property
    def needs(self) -> tuple[str, ...]:
        """The arrays that it reads beside the flat."""
        return ("values", "reference") if self.kl else ("values",)

    def __call__(
        self,
        flat: Flat,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Credit:
        """Credit for every part.

        Args:
            values: `[P, ...]`, of the prefix before each part.
            logp: `[P]`, of the policy before the update; None: those of the sampler. reference: `[P]`.
            anchors: not read.
        Raises:
            BatchMismatch: an array that is missing or does not fit. NonFinite: a value or reward.
        """
        found = decomposed_gae(
            _given(values, "values"),
            _penalised(flat, self.kl, logp, reference),
            gamma=self.gamma,
            lam=self.lam,
            gamma_part=self.gamma_part,
            lam_part=self.lam_part,
            level=self.level,
            between=self.between,
        )
        return replace(found, advantage=whiten(found.advantage)) if self.whiten else found


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """Episodes compared within their task; every part has its episode's advantage.

    Args:
        baseline, scale: see `advantages.group_advantage`.
        whiten: to mean 0 and variance 1 over all parts of the buffer, at the end.
        kl: times `log pi - log ref` is taken off. kl_level: "episode": from the return that is compared (RLOO); "part":
            from each part, summed from there to the episode's end, after the comparison (REINFORCE++).
        anchor: times the advantage among actions from the same state is added (GiGPO's w); 0: none.
        anchor_gamma: the discount of the returns that are compared there.
        over: "steps": an episode counts once for each action in its group's mean and deviation (GiGPO's code).
        drop_equal: groups without variance are not learned. drop_truncated: nor are episodes that were cut, at their
            horizon, by the context, or in their last reply (DAPO's overlong filtering, arXiv 2503.14476 section 3.4).
    Raises:
        ConfigError: settings out of their range, all at once.
    """

    baseline: Baseline = "group_mean"
    scale: Scale = "group_std"
    whiten: bool = False
    kl: float = 0.0
    kl_level: Literal["episode", "part"] = "episode"
    anchor: float = 0.0
    anchor_gamma: float = 0.95
    over: Literal["episodes", "steps"] = "episodes"
    drop_equal: bool = False
    drop_truncated: bool = False

    def __post_init__(self) -> None:
        _refuse({"anchor_gamma": self.anchor_gamma}, {"kl": self.kl, "anchor": self.anchor})

    @property
    def needs(self) -> tuple[str, ...]:
        """The arrays that it reads beside the flat."""
        return (("reference",) if self.kl else ()) + (("anchors",) if self.anchor else ())

    def __call__(
        self,
        flat: Flat,
        *,
        values: ArrayLike | None = None,
        logp: ArrayLike | None = None,
        reference: ArrayLike | None = None,
        anchors: ArrayLike | None = None,
    ) -> Credit:
        """Credit for every part; its returns are those that were compared.

        Args:
            values: not read. logp: `[P]`, of the policy before the update; None: those of the sampler.
            reference: `[P]`. anchors: `[A]`, exact hashes of the observations that were acted on.
        Raises:
            BatchMismatch: an array that is missing or does not fit. NonFinite: a reward.
        """
        penalised = _penalised(flat, self.kl, logp, reference)
        returns = episode_returns(penalised if self.kl_level == "episode" else flat)
        of = flat.episode if self.over == "steps" else np.arange(len(returns))
        place = flat.action if self.over == "steps" else flat.episode_of_part
        grouped = group_advantage(returns[of], flat.group[of], baseline=self.baseline, scale=self.scale)
        advantage, counts = grouped.advantage[place], {"groups_single": grouped.single, "groups_equal": grouped.equal}
        if self.anchor:
            starts = np.flatnonzero(np.append(True, flat.last[:-1]))
            to_go, task = discounted_returns(flat, gamma=self.anchor_gamma)[starts], flat.group[flat.episode]
            compared = anchor_advantage(to_go, _given(anchors, "anchors"), task, scale=_anchor_scale(self.scale))
            advantage = advantage + self.anchor * compared.advantage[flat.action]
            counts |= {"anchors_single": compared.single, "anchors_equal": compared.equal}
        if self.kl and self.kl_level == "part":
            advantage = advantage + discounted_returns(flat, gamma=1.0, reward=penalised.reward - flat.reward)
        kept = np.ones(flat.parts, np.bool_)
        if self.drop_equal:
            kept &= grouped.varied[place]
        if self.drop_truncated:
            ends = flat.ended[np.searchsorted(flat.episode, flat.episode_of_part, side="right") - 1]
            kept &= ~np.isin(ends, (TRUNCATED, CUT_OFF))
            counts |= {"masked_horizon": _how_many(flat, TRUNCATED), "masked_cut": _how_many(flat, CUT_OFF)}
        if self.whiten:
            advantage = whiten(advantage, mask=kept)
        return Credit(advantage, returns[flat.episode_of_part], None if kept.all() else kept, counts)


def _how_many(flat: Flat, end: int) -> int:
    """How many episodes ended so."""
    return int((flat.ended == end).sum())


def _anchor_scale(scale: Scale) -> Scale:
    return "group_std" if scale == "group_std" else "none"


def _penalised(flat: Flat, beta: float, logp: ArrayLike | None, reference: ArrayLike | None) -> Flat:
    if not beta:
        return flat
    said = flat.logp if logp is None else logp
    return replace(flat, reward=kl_in_reward(flat.reward, said, _given(reference, "reference"), beta=beta))


def _given(array: ArrayLike | None, name: str) -> NDArray[np.generic]:
    if array is None:
        raise BatchMismatch(f"this rule of credit needs {name!r}", expected=f"{name}=[...]")
    return np.asarray(array)


def _refuse(shares: Mapping[str, float], amounts: Mapping[str, float]) -> None:
    """Raise a ConfigError that lists the shares which are not in 0..1, and the amounts below 0."""
    found = [
        Problem(name, f"must be from 0 to 1, got {value}") for name, value in shares.items() if not 0 <= value <= 1
    ]
    found += [Problem(name, f"must be 0 or more, got {value}") for name, value in amounts.items() if not value >= 0]
    if found:
        raise ConfigError(found)

"""GRPO and its family: episodes of one task are compared with each other, and no critic is needed.

GRPO: Shao et al., DeepSeekMath (arXiv 2402.03300). Dr.GRPO (2503.20783), DAPO (2503.14476), RLOO (2402.14740),
REINFORCE++ (2501.03262), GSPO (2507.18071), CISPO (2506.13585), Lite PPO (2508.08221), GiGPO (2505.10978): each is a
baseline, a scale and a loss (`rl/presets.py`). All that is left for this file is DAPO's dynamic sampling: a group in
which all episodes earned the same teaches nothing, so tasks are played on until there are enough that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Choice
from evolvent.errors import ConfigError, unknown
from evolvent.identity import version_1_text
from evolvent.plugins import installed_plugins, load_plugin, plugin_type_error
from evolvent.rl.advantages import episode_returns, overlong_penalty
from evolvent.rl.estimators import GroupCredit
from evolvent.rl.objective import Aggregate, Clip, Corrected, Divergence, Reinforce
from evolvent.rl.presets import (
    DAPO,
    DR_GRPO,
    GIGPO,
    GRPO,
    GSPO,
    LITE_PPO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    RLOO,
    Preset,
    cispo,
)
from evolvent.rl.scored_rollout import Seen
from evolvent.rl.trainer import Practice, PracticeConfig, Setup
from evolvent.run import Run
from evolvent.trajectory import Task, Trajectory

__all__ = ["FAMILY", "GRPOConfig", "find_loss", "grpo", "loss_names", "preset"]

P = TypeVar("P")
FAMILY: Mapping[str, Preset] = {
    "grpo": GRPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "rloo": RLOO,
    "reinforce_pp": REINFORCE_PP,
    "reinforce_pp_baseline": REINFORCE_PP_BASELINE,
    "gspo": GSPO,
    "lite_ppo": LITE_PPO,
    "gigpo": GIGPO,
}


def loss_names() -> tuple[str, ...]:
    """Returns the names of the losses that compare groups, those of other packages last."""
    builtin = tuple(FAMILY)
    builtin = (*builtin[: builtin.index("gspo") + 1], "cispo", *builtin[builtin.index("gspo") + 1 :])
    return (*builtin, *installed_plugins("losses", builtin))


def find_loss(name: str) -> Preset:
    """Returns the loss of a name, with the credit that it learns from.

    Raises:
        ConfigError: an unknown name, or a package's loss that cannot be loaded or is no `Preset`.
    """
    if name in FAMILY:
        return FAMILY[name]
    plugins = installed_plugins("losses", FAMILY)
    if name not in plugins:
        raise ConfigError([unknown("loss", name, loss_names())])
    loaded = load_plugin("loss", plugins[name])
    if not isinstance(loaded, Preset) or not isinstance(loaded.credit, GroupCredit):
        expected = "an evolvent.rl.presets.Preset whose credit is a GroupCredit"
        raise plugin_type_error("loss", plugins[name], loaded, expected)
    return loaded


class GRPOConfig(Corrected):
    """What can be chosen about GRPO and its kin; None: what the kind says."""

    kind: Annotated[str, Choice(loss_names)] = Field(default="grpo", description="which of the family")
    kl: float | None = Field(default=None, ge=0, description="coefficient of the divergence from the first policy")
    clip: float | None = Field(default=None, gt=0, description="lower clip of the ratio; of cispo, of the weight")
    clip_high: float | None = Field(default=None, gt=0, description="upper clip of the ratio; of cispo, of the weight")
    length: int | None = Field(default=None, ge=1, description="what dr_grpo divides a sequence's sum by")
    entropy: float = Field(default=0.0, ge=0, description="coefficient of an entropy bonus")
    stop_kl: float | None = Field(default=None, gt=0, description="divergence that ends an iteration's passes")
    drop_equal: bool | None = Field(default=None, description="leave out groups whose episodes all earned the same")
    refill: int = Field(default=0, ge=0, description="times that dropped groups are played for again, at most (DAPO)")
    overlong: int = Field(default=0, ge=0, description="tokens before the limit where a penalty begins (DAPO); 0: none")
    overlong_limit: int = Field(default=256, ge=1, description="written tokens of an episode at which it is -1")
    practice: PracticeConfig = Field(default_factory=PracticeConfig, description="playing and improving")

    @model_validator(mode="after")
    def _have_effect(self) -> GRPOConfig:
        chosen, problems = published(self), []
        if self.practice.samples == 1 and chosen.credit != FAMILY["reinforce_pp"].credit:
            problems.append(f"practice.samples: {self.kind} compares episodes of a task; take 2 or more")
        if self.length is not None and self.kind != "dr_grpo":
            problems.append(f"length: {self.kind} does not divide by a constant; leave it out, or take dr_grpo")
        if (self.clip or self.clip_high) and isinstance(chosen.loss.surrogate, Reinforce):
            problems.append(f"clip, clip_high: {self.kind} has no ratio to clip; leave them out")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def published(config: GRPOConfig) -> Preset:
    """Returns credit and loss of a kind as they were published; cispo takes the clip of these settings."""
    if config.kind == "cispo":
        return cispo(low=config.clip or 1.0, high=config.clip_high or 0.28)
    return find_loss(config.kind)


def preset(config: GRPOConfig) -> Preset:
    """Credit and loss of these settings."""
    clip, high, chosen = config.clip, config.clip_high, published(config)
    loss, credit = chosen.loss, chosen.credit
    if not isinstance(credit, GroupCredit):
        raise ConfigError(f"{config.kind} does not compare groups", value=credit)
    if isinstance(loss.surrogate, Clip) and (clip or high):
        loss = replace(
            loss, surrogate=replace(loss.surrogate, low=clip or loss.surrogate.low, high=high or loss.surrogate.high)
        )
    if config.kl is not None and credit.kl:
        credit = replace(credit, kl=config.kl)
    elif config.kl is not None:
        loss = replace(loss, kl=Divergence(config.kl) if config.kl else None)
    if config.length is not None:
        loss = replace(loss, aggregate=Aggregate("constant_length", length=config.length))
    loss = replace(loss, behaviour=config.behaviour("sequence" if loss.ratio == "sequence" else "part"))
    if config.drop_equal is not None:
        credit = replace(credit, drop_equal=config.drop_equal)
    loss = replace(loss, entropy=config.entropy, stop_kl=config.stop_kl, temperature=config.practice.temperature)
    return replace(chosen, credit=credit, loss=loss)


def grpo(policy: P, tasks: Sequence[Task], *, config: GRPOConfig, run: Run[P]) -> P:
    """Practise on these tasks. The handed-in policy is left as it was.

    Returns:
        the policy after the last iteration.
    """
    chosen = preset(config)
    setup = Setup(
        config.kind,
        config.practice,
        chosen.objective,
        settings=version_1_text(config),
        reference=chosen.loss.kl is not None or "reference" in chosen.credit.needs,
    )
    with run.practise(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.rounds():
            seen = _penalised(practice.look(sampled(practice, tasks, config)), config)
            practice.improve(seen, seen.credit(chosen.credit))
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result


def sampled(practice: Practice, tasks: Sequence[Task], config: GRPOConfig) -> list[Trajectory]:
    """An iteration's episodes. Where dropped groups are to be played for again: the next tasks, until as many groups
    differ as were wanted, or `refill` times."""
    played = practice.play(practice.starts(tasks))
    for turn in range(1, config.refill + 1):
        missing = config.practice.tasks - _differing(played)
        if missing <= 0:
            break
        more = practice.play(practice.starts(tasks, turn=turn, count=missing))
        practice.note({"refilled": float(turn)})
        played += more
    return played


def _differing(played: Sequence[Trajectory]) -> int:
    """How many tasks were met with different rewards."""
    earned: dict[str | None, set[float]] = {}
    for one in played:
        if one.score.raw is not None:
            earned.setdefault(one.group, set()).add(one.score.raw)
    return sum(len(scores) > 1 for scores in earned.values())


def _penalised(seen: Seen, config: GRPOConfig) -> Seen:
    """With DAPO's soft penalty for long episodes, paid at their end."""
    if not config.overlong:
        return seen
    lengths = np.bincount(seen.flat.episode_of_part, minlength=len(episode_returns(seen.flat)))
    penalty = overlong_penalty(lengths, limit=config.overlong_limit, cache=config.overlong)
    ends = np.flatnonzero(np.append(np.diff(seen.flat.episode_of_part) > 0, True))
    reward = seen.flat.reward.copy()
    reward[ends] += penalty
    return replace(seen, flat=replace(seen.flat, reward=reward))

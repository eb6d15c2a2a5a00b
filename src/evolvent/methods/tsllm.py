"""TS-LLM: a tree search guided by a learned value finds better texts than sampling; policy and value learn from them.

Feng et al., "AlphaZero-like Tree-Search can Guide Large Language Model Decoding and Training" (arXiv 2309.17179).

    samples of the policy, each with its outcome   ->  value: the outcome at the end of every span; at the last: the ORM
    rounds:  sampled search, guided by the value   ->  the best of each task  ->  policy, by their likelihood
             old and new episodes                  ->  value

An action of the search is a span of a response, a token of it, or a whole turn. Outcomes are in 0..1; the paper has
-1..1, which is the same up to scale. Where there is a reward model (the paper's alignment task), it is fitted to pairs
first, and its scores take the world's place in training and in search. The true reward is left to measurements.
Policy and value go on from the last round; which weights the paper's rounds begin with is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, isfinite
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.curate.balance import balanced
from evolvent.curate.chosen import best_of_each, distinct
from evolvent.errors import ConfigError, Problem
from evolvent.learn.objectives import reward_pairs, weighted_nll
from evolvent.learn.token_sequences import Parts
from evolvent.models.policy import Policy
from evolvent.reward.scoring import episode_rewards, judge_objective, judge_parts, rescored
from evolvent.rollout.held_out import check_held_out, measured_tasks
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory

__all__ = ["ALIGNMENT", "GAME24", "GSM8K", "TSLLM", "Scores", "kept", "tsllm"]

Rewarded = Callable[[Sequence[Trajectory]], list[Trajectory]]


class TSLLM(Config):
    """What can be chosen about TS-LLM."""

    rounds: int = Field(default=2, ge=0, description="rounds of searching and learning")
    samples: int = Field(default=16, ge=1, description="samples of a task whose outcomes the value learns first")
    distinct: int = Field(default=17, ge=1, description="different ones of them that are kept")
    temperature: float = Field(default=0.7, gt=0, description="of these samples")
    trajectories: int = Field(default=4, ge=1, description="searches of a task in a round")
    threshold: float = Field(default=0.99, ge=0, le=1, description="least score of what is imitated")
    per_task: int | None = Field(default=None, ge=1, description="best ones of a task that are imitated; none: all")
    reward: Literal["world", "model"] = Field(
        default="world", description="whose score is learned: the world's, or that of a model fitted to preferences"
    )
    guided: bool = Field(default=True, description="measure the search too, guided by the judge alone")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens of a round; none: the learner's epochs")
    judge_tokens: int | None = Field(default=None, ge=1, description="learned places of a value; none: the epochs")
    lr_scale: float = Field(default=1.0, gt=0, description="learning rate of the rounds against the learner's")
    search: SearchConfig = Field(
        default_factory=lambda: SearchConfig(method="mcts", paths=1, sampled=True), description="what gathers data"
    )

    @model_validator(mode="after")
    def _agree(self) -> TSLLM:
        wrong = []
        if self.search.score not in ("value", "outcome"):
            wrong.append(f"search.score: {self.search.score!r} is not learned from outcomes; take 'value' or 'outcome'")
        if self.guided and self.search.value in ("rollouts", "reward"):
            wrong.append(
                f"guided: search.value = {self.search.value!r} would ask for the true rewards of what is "
                "measured; guided = false"
            )
        asked = _asked(self.search)
        if self.reward == "model" and asked:
            wrong.append(f"{asked}: only the model's reward may be used to search; leave it out")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _asked(how: SearchConfig) -> str:
    """With which setting a search asks the world for rewards; empty: it does not."""
    if how.value in ("rollouts", "reward"):
        return f"search.value = {how.value!r}"
    return "search.terminal = 'reward'" if how.terminal == "reward" else ""


_MCTS = {"method": "mcts", "sampled": True, "paths": 1, "explore": 3.0, "top_k": 100}
GSM8K: Mapping[str, object] = {
    "samples": 100,
    "distinct": 17,
    "temperature": 0.7,
    "trajectories": 12,
    "search": {**_MCTS, "width": 10, "depth": 8, "simulations": 10, "separators": ["\n"], "span_tokens": 64},
}
"""Word problems, by lines: 10 x 8 nodes and 12 searches of a problem while gathering data (the paper and its code)."""
GAME24: Mapping[str, object] = {
    **GSM8K,
    "search": {**_MCTS, "width": 20, "depth": 4, "simulations": 10, "separators": ["\n"], "span_tokens": 64},
}
ALIGNMENT: Mapping[str, object] = {
    "samples": 100,
    "distinct": 17,
    "temperature": 0.7,
    "trajectories": 10,
    "reward": "model",
    "threshold": 0.0,
    "per_task": 1,
    "search": {**_MCTS, "top_k": 0, "level": "token", "width": 50, "depth": 64, "max_tokens": 64, "simulations": 5},
}
"""Continuations of 64 tokens, token by token: 50 x 64. How many of the ten are imitated is this library's choice."""


@dataclass(frozen=True)
class Scores:
    """Scores in 0..1 of a reward model: `1 / (1 + exp(-(r - mean) / deviation))` of its reward r.

    Args:
        mean, deviation: of the rewards of the first samples, so that scores mean the same in all rounds.
    """

    model: Policy
    mean: float
    deviation: float

    @classmethod
    def over(cls, model: Policy, samples: Sequence[Trajectory]) -> Scores:
        """Normalised over these. Raises ConfigError where none can be scored."""
        rewards = [reward for reward in episode_rewards(model, samples) if isfinite(reward)]
        if not rewards:
            raise ConfigError(
                "the reward model can score no sample",
                value=f"{len(samples)} samples",
                expected="responses that fit its context",
            )
        return cls(model, float(np.mean(rewards)), max(float(np.std(rewards)), 1e-6))

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes, with this score in place of the world's."""
        rewards = episode_rewards(self.model, trajectories)
        return [rescored(one, self.unit(reward)) for one, reward in zip(trajectories, rewards, strict=True)]

    def unit(self, reward: float) -> float | None:
        """The score of a reward; None where it is not finite."""
        return 1.0 / (1.0 + exp(min(700.0, -(reward - self.mean) / self.deviation))) if isfinite(reward) else None


def kept(found: Sequence[Trajectory], config: TSLLM) -> list[Trajectory]:
    """What is imitated: of each task the best distinct episodes, `per_task` of them, none below the threshold."""

    def worth(one: Trajectory) -> float | None:
        unit = one.score.unit
        return unit if unit is not None and unit >= config.threshold else None

    return best_of_each(found, worth, most=config.per_task)


def tsllm(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    config: TSLLM,
    run: Run[Policy],
    demonstrations: Sequence[Trajectory] = (),
    preferences: Sequence[Parts] = (),
    horizons: Mapping[str, int] | None = None,
) -> tuple[Policy, Policy]:
    """Alternate between searching with a value and learning from what was found. The policy is left as it was.

    Args:
        demonstrations: imitated in every round beside what was found.
        preferences: read-outs of chosen, rejected, chosen, rejected, ... (`learn.preferences.readout`), for a reward
            model.
        horizons: of the worlds, by name; see `judge_parts`.
    Returns:
        the policy and its judge, after the last round.
    Raises:
        ConfigError: tasks that are measured on; a reward model, and no preferences.
    """
    if config.reward == "model" and not preferences:
        raise ConfigError([Problem("preferences", "there are none", "give pairs, or take reward = 'world'")])
    check_held_out(tasks, measured_tasks(run.evaluate(policy, 0)))
    how, objective = config.search, judge_objective(config.search)
    learn = partial(run.fit, lr_scale=config.lr_scale)
    tried = run.collect(policy, _starts(tasks, config.samples), temperature=config.temperature)
    scored: Rewarded = list
    if config.reward == "model":
        scored = Scores.over(run.fit(policy, preferences, reward_pairs(center=0.01)), tried)
    known, best = distinct(scored(tried), config.distinct), list[Trajectory]()
    judge = run.fit(policy, judge_parts(known, policy, how, horizons=horizons), objective, tokens=config.judge_tokens)
    for number in run.rounds(config.rounds):
        found = scored(run.search(policy, _starts(tasks, config.trajectories), how, judge=judge))
        best, known = kept([*best, *found], config), distinct([*known, *found])
        imitated = balanced([*demonstrations, *best])
        policy = learn(policy, imitated, weighted_nll, tokens=config.tokens) if imitated else policy
        judge = learn(judge, judge_parts(known, policy, how, horizons=horizons), objective, tokens=config.judge_tokens)
        run.evaluate(policy, number)
        if config.guided:
            plain = how.model_copy(update={"sampled": False, "noise": 0.0, "terminal": "value"})
            run.arm("guided").evaluate(policy, number, how=plain, judge=judge)
    return policy, judge


def _starts(tasks: Sequence[Task], count: int) -> list[Start]:
    return [Start(task, number) for task in tasks for number in range(count)]

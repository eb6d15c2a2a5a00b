"""TS-LLM: a tree search guided by a learned value finds better texts than sampling; policy and value learn from
them.

Feng et al., "AlphaZero-like Tree-Search can Guide Large Language Model Decoding and Training" (arXiv
2309.17179).

    samples of the policy, each with its outcome   ->  value: the outcome at the end of every span; at the last: the ORM
    rounds:  sampled search, guided by the value   ->  the best of each task  ->  policy, by their likelihood
             old and new episodes                  ->  value

An action of the search is a span of a response, a token of it, or a whole turn. Outcomes are in 0..1; the paper
has -1..1, which is the same up to scale. Where there is a reward model (the paper's alignment task), it is
fitted to pairs first, and its scores replace the world's in training and in search. The true reward is used in
evaluation only. Policy and value continue from the last round; the paper does not say which weights its rounds
begin with.
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
from evolvent.curate.balance import balance_worlds
from evolvent.curate.chosen import select_best_per_task, select_distinct
from evolvent.errors import ConfigError, Problem
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy
from evolvent.rollout.held_out import check_held_out, evaluated_tasks
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory

__all__ = ["ALIGNMENT", "GAME24", "GSM8K", "RewardModelScores", "TSLLMConfig", "select_best", "tsllm"]

ScoreFunction = Callable[[Sequence[Trajectory]], list[Trajectory]]


class TSLLMConfig(Config):
    """Settings of TS-LLM."""

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
    def _check_combination(self) -> TSLLMConfig:
        violations = []
        if self.search.score not in ("value", "outcome"):
            violations.append(
                f"search.score: got {self.search.score!r}, expected 'value' or 'outcome', which learn from outcomes"
            )
        if self.guided and self.search.value in ("rollouts", "reward"):
            violations.append(
                f"guided: search.value = {self.search.value!r} would use the true rewards of evaluation tasks; "
                "set guided to false"
            )
        reward_setting = _find_reward_setting(self.search)
        if self.reward == "model" and reward_setting:
            violations.append(f"{reward_setting}: a search may use only the rewards of the reward model; leave it out")
        if violations:
            raise ValueError("; ".join(violations))
        return self


def _find_reward_setting(search: SearchConfig) -> str:
    """Returns the setting with which a search asks the world for rewards; empty: it does not."""
    if search.value in ("rollouts", "reward"):
        return f"search.value = {search.value!r}"
    return "search.terminal = 'reward'" if search.terminal == "reward" else ""


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
class RewardModelScores:
    """Scores in 0..1 of a reward model: `1 / (1 + exp(-(r - mean) / deviation))` of its reward r.

    Args:
        mean, deviation: of the rewards of the first samples, so that scores mean the same in all rounds.
    """

    model: Policy
    mean: float
    deviation: float

    @classmethod
    def from_samples(cls, model: Policy, samples: Sequence[Trajectory]) -> RewardModelScores:
        """Builds scores that are normalized over these samples; raises ConfigError where none can be scored."""
        from evolvent.reward.scoring import score_episodes

        rewards = [reward for reward in score_episodes(model, samples) if isfinite(reward)]
        if not rewards:
            raise ConfigError(
                "the reward model cannot score any sample",
                value=f"{len(samples)} samples",
                expected="responses that fit its context",
            )
        return cls(model, float(np.mean(rewards)), max(float(np.std(rewards)), 1e-6))

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the episodes, with this score in place of the world's."""
        from evolvent.reward.scoring import replace_score, score_episodes

        rewards = score_episodes(self.model, trajectories)
        return [
            replace_score(trajectory, self.unit_score(reward))
            for trajectory, reward in zip(trajectories, rewards, strict=True)
        ]

    def unit_score(self, reward: float) -> float | None:
        """Returns the score of a reward; None where it is not finite."""
        return 1.0 / (1.0 + exp(min(700.0, -(reward - self.mean) / self.deviation))) if isfinite(reward) else None


def select_best(trajectories: Sequence[Trajectory], config: TSLLMConfig) -> list[Trajectory]:
    """Selects the episodes to imitate: of each task the best distinct ones, `per_task` of them, none below the
    threshold.
    """

    def score(trajectory: Trajectory) -> float | None:
        unit = trajectory.score.unit
        return unit if unit is not None and unit >= config.threshold else None

    return select_best_per_task(trajectories, score, max_per_task=config.per_task)


def tsllm(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    config: TSLLMConfig,
    run: Run[Policy],
    demonstrations: Sequence[Trajectory] = (),
    preferences: Sequence[TokenSequence] = (),
    horizons: Mapping[str, int] | None = None,
) -> tuple[Policy, Policy]:
    """Runs rounds of searching with a value and learning from the results; the input policy is unchanged.

    Args:
        demonstrations: imitated in every round beside the search results.
        preferences: read-outs of chosen, rejected, chosen, rejected, ... (`learn.preferences.append_readout`), for
            a reward model.
        horizons: of the worlds, by name; see `reward.scoring.build_judge_rows`.
    Returns:
        the policy and its value model, after the last round.
    Raises:
        ConfigError: tasks are also evaluation tasks, or a reward model has no preferences.
    """
    from evolvent.learn.objectives import reward_pairs_objective, weighted_nll
    from evolvent.reward.scoring import build_judge_rows, judge_objective

    if config.reward == "model" and not preferences:
        raise ConfigError([Problem("preferences", "the list is empty", "pass pairs, or set reward to 'world'")])
    check_held_out(tasks, evaluated_tasks(run.evaluate(policy, 0)))
    search, objective = config.search, judge_objective(config.search)
    fit_round = partial(run.fit, lr_scale=config.lr_scale)
    samples = run.collect(policy, _build_starts(tasks, config.samples), temperature=config.temperature)
    rescore: ScoreFunction = list
    if config.reward == "model":
        rescore = RewardModelScores.from_samples(
            run.fit(policy, preferences, reward_pairs_objective(center=0.01)), samples
        )
    value_episodes, best_episodes = select_distinct(rescore(samples), config.distinct), list[Trajectory]()
    value_model = run.fit(
        policy,
        build_judge_rows(value_episodes, policy, search, horizons=horizons),
        objective,
        tokens=config.judge_tokens,
    )
    for number in run.rounds(config.rounds):
        searched = rescore(
            run.search(policy, _build_starts(tasks, config.trajectories), search, value_model=value_model)
        )
        best_episodes, value_episodes = (
            select_best([*best_episodes, *searched], config),
            select_distinct([*value_episodes, *searched]),
        )
        imitation_data = balance_worlds([*demonstrations, *best_episodes])
        policy = fit_round(policy, imitation_data, weighted_nll, tokens=config.tokens) if imitation_data else policy
        value_model = fit_round(
            value_model,
            build_judge_rows(value_episodes, policy, search, horizons=horizons),
            objective,
            tokens=config.judge_tokens,
        )
        run.evaluate(policy, number)
        if config.guided:
            greedy_search = search.model_copy(update={"sampled": False, "noise": 0.0, "terminal": "value"})
            run.arm("guided").evaluate(policy, number, search=greedy_search, value_model=value_model)
    return policy, value_model


def _build_starts(tasks: Sequence[Task], count: int) -> list[Start]:
    return [Start(task, number) for task in tasks for number in range(count)]

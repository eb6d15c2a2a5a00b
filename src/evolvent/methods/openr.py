"""OpenR: a process reward model from labeled steps of reasoning, learning from its rewards, and decoding guided by
it.

Wang et al., "OpenR: An Open Source Framework for Advanced Reasoning with Large Language Models" (arXiv
2410.09671).

    samples  ->  labels of their spans by continuing from them (OmegaPRM, arXiv 2406.06592; Math-Shepherd, 2312.08935)
             ->  process reward model: p(good) at the end of every span
    online   play, reward each span with its p, improve: over spans (appo), over tokens (tppo), or by comparing (grpo)
    offline  the best samples (rft), all of them weighted by advantage (awr), better against worse siblings (dpo)
    guided   search with the process reward model

The paper's abstract claims offline learning without a formula; the formulas here are this library's choice
(`reward/offline.py`). A reward of p at every span favors many spans; "gain" pays the differences, which add up
to the last p. Responses are of one turn. OpenR's released training uses its evaluation tasks; here that is
refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.curate.chosen import select_best_per_task, select_distinct
from evolvent.errors import ConfigError
from evolvent.identity import version_1_text
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy
from evolvent.reward.labelling import LabellingConfig, rows_to_solutions
from evolvent.reward.process import default_tags, prepare_rows
from evolvent.rl.presets import GRPO, OPENR_APPO, OPENR_TPPO, Preset
from evolvent.rl.settings import RLConfig, ValueLoss
from evolvent.rollout.held_out import check_held_out, evaluated_tasks
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory

if TYPE_CHECKING:
    from evolvent.reward.scoring import Floats

__all__ = ["PUBLISHED", "OpenRConfig", "build_preset", "openr"]

_log = logging.getLogger(__name__)


class OpenRConfig(Config):
    """Settings of OpenR."""

    samples: int = Field(default=8, ge=1, description="solutions of a task: to be labeled, and to learn offline from")
    temperature: float = Field(default=1.0, gt=0, description="of these samples")
    soft: bool = Field(default=True, description="learn the share of right completions; false: whether there was one")
    online: Literal["appo", "tppo", "grpo", "grpo_buffer", "none"] = Field(
        default="appo",
        description="learning by acting; grpo_buffer: spans compared over the whole buffer, as OpenR has",
    )
    reward: Literal["span", "gain"] = Field(
        default="span", description="of a span online: its p(good), or how much that is more than before it"
    )
    outcome: float = Field(default=0.0, ge=0, description="times the world's score that is paid at the end too")
    offline: Literal["rft", "awr", "dpo", "none"] = Field(
        default="none", description="learning from samples after that"
    )
    per_task: int = Field(default=2, ge=1, description="right samples of a task that rft imitates, best first")
    beta: float = Field(default=0.1, gt=0, description="temperature of awr's weights, or dpo's hold on its reference")
    margin: float = Field(default=0.1, ge=0, description="least difference of p between siblings that dpo compares")
    prm_tokens: int | None = Field(default=None, ge=1, description="labels that are learned; none: the epochs")
    offline_tokens: int | None = Field(default=None, ge=1, description="learned tokens offline; none: the epochs")
    lr_scale: float = Field(default=1.0, gt=0, description="learning rate offline against the learner's")
    labelling: LabellingConfig = Field(default_factory=LabellingConfig, description="how spans get labels")
    practice: RLConfig = Field(default_factory=RLConfig, description="playing and improving online")
    search: SearchConfig = Field(
        default_factory=lambda: SearchConfig(method="beam", score="process"), description="the guided decoding"
    )

    @model_validator(mode="after")
    def _check_combination(self) -> OpenRConfig:
        search = self.search
        rules = (
            (
                search.uses_judge and search.score != "process",
                f"search.score: {search.score!r}, and the judge is a process model",
            ),
            (
                search.level not in ("auto", "span"),
                f"search.level: {search.level!r}, and the judge knows ends of spans",
            ),
            (
                search.value in ("rollouts", "reward"),
                f"search.value: {search.value!r} asks for true rewards when measuring",
            ),
            (search.separators != self.labelling.separators, "search.separators: others than labelling.separators"),
        )
        violations = [message for is_broken, message in rules if is_broken]
        if violations:
            raise ValueError("; ".join(violations))
        return self


PUBLISHED: Mapping[str, object] = {
    "soft": False,
    "online": "appo",
    "reward": "span",
    "labelling": {
        "kind": "omega",
        "count": 16,
        "rollouts": 200,
        "searches": 20,
        "temperature": 0.7,
        "top_k": 30,
        "top_p": 0.9,
    },
    "search": {"method": "beam", "score": "process", "width": 4, "paths": 4, "reduce": "last", "rule": "vote"},
}
"""OmegaPRM's constants, labels '+' and '-', p of every span as reward, beam search with last-vote (paper and code)."""


def build_preset(config: OpenRConfig) -> Preset:
    """Builds estimator and loss of online learning; for grpo_buffer the loss alone (its estimator is `span_credit`)."""
    algorithm = {"appo": OPENR_APPO, "tppo": OPENR_TPPO}.get(config.online, GRPO)
    loss = replace(algorithm.loss, temperature=config.practice.temperature)
    return replace(algorithm, loss=replace(loss, value_loss=None) if config.practice.critic == "separate" else loss)


def openr(policy: Policy, tasks: Sequence[Task], *, config: OpenRConfig, run: Run[Policy]) -> tuple[Policy, Policy]:
    """Runs all stages one after another; the policy that was passed in is unchanged.

    Returns:
        the policy, and the process reward model.
    Raises:
        ConfigError: tasks are also evaluation tasks, or no solution could be labeled.
    """
    from evolvent.learn.objectives import span_labels_objective

    check_held_out(tasks, evaluated_tasks(run.evaluate(policy, 0)))
    starts = [Start(task, number) for task in tasks for number in range(config.samples)]
    samples = select_distinct(run.collect(policy, starts, temperature=config.temperature))
    is_shepherd = config.labelling.kind == "shepherd"  # else a whole task is explored, from the first sample's prompt
    to_label = (
        samples
        if is_shepherd
        else list({trajectory.task.id: trajectory for trajectory in reversed(samples)}.values())[::-1]
    )
    rows = run.label(policy, to_label, config.labelling)
    labelled = prepare_rows(rows_to_solutions(rows), default_tags(policy.tokenizer), context=policy.context)
    if not labelled.sequences:
        raise ConfigError(
            "no solution could be labeled",
            value=f"{len(to_label)} samples",
            expected="single-turn responses, some correct and some incorrect",
            hint="imitate demonstrations first",
        )
    reward_model = run.fit(
        policy, labelled.sequences, span_labels_objective(soft=config.soft), tokens=config.prm_tokens
    )
    last_round = 1
    if config.online != "none":
        policy, last_round = (
            _train_online(policy, reward_model, tasks, config=config, run=run),
            config.practice.iterations,
        )
    if config.offline != "none":
        samples = run.collect(policy, starts, temperature=config.temperature)
        policy, last_round = _train_offline(policy, reward_model, samples, config=config, run=run), last_round + 1
        run.evaluate(policy, last_round)
    run.arm("guided").evaluate(policy, last_round, search=config.search, value_model=reward_model)
    return policy, reward_model


# ------------------------------------------------------------------ online


def _train_online(
    policy: Policy, reward_model: Policy, tasks: Sequence[Task], *, config: OpenRConfig, run: Run[Policy]
) -> Policy:
    from evolvent.reward.paying import add_process_rewards, span_credit
    from evolvent.reward.scoring import collect_solutions, make_span_splitter, mark_spans, score_spans
    from evolvent.rl.critic import critic_objective
    from evolvent.rl.trainer import RLSpec

    algorithm, rl_config, tags = build_preset(config), config.practice, default_tags(reward_model.tokenizer)
    level: Literal["span", "part"] = "span" if config.online == "appo" else "part"
    critic_loss = critic_objective(ValueLoss(clip=0.2, level=level)) if "values" in algorithm.estimator.needs else None
    spec = RLSpec(
        f"openr_{config.online}",
        rl_config,
        algorithm.objective,
        critic_loss,
        reference=algorithm.loss.kl is not None,
        settings=version_1_text(config),
    )
    spans = make_span_splitter(policy, config.labelling.separators, max_tokens=config.labelling.max_tokens)
    with run.train_rl(policy, spec, [*(task.id for task in tasks), run.origin(reward_model)]) as trainer:
        for iteration in trainer.iterations():
            trajectories = [mark_spans(trajectory, spans) for trajectory in trainer.rollout(trainer.next_starts(tasks))]
            scores = score_spans(
                reward_model,
                collect_solutions(trajectories, spans),
                tags,
                max_tokens_per_forward=trainer.scoring_config.max_tokens_per_forward,
            )
            rollout = trainer.score(
                trajectories, rewards=partial(_outcome_rewards, scores=scores, coefficient=config.outcome)
            )
            compares_spans = config.online == "grpo_buffer"
            rollout = add_process_rewards(rollout, scores, gain=config.reward == "gain", over_task_mean=compares_spans)
            advantages = (
                span_credit(rollout.batch) if compares_spans else rollout.estimate_advantages(algorithm.estimator)
            )
            trainer.update(rollout, advantages)
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy


def _outcome_rewards(trajectory: Trajectory, *, scores: Mapping[str, Floats], coefficient: float) -> list[float | None]:
    """Returns the rewards beside those of spans, paid at the end; None, not scored, where spans could not be judged."""
    unit = trajectory.score.unit if coefficient else 0.0
    final_reward = None if unit is None or trajectory.id not in scores else coefficient * unit
    return [*(0.0 for _ in trajectory.steps[1:]), final_reward]


# ------------------------------------------------------------------ offline


def _train_offline(
    policy: Policy, reward_model: Policy, trajectories: Sequence[Trajectory], *, config: OpenRConfig, run: Run[Policy]
) -> Policy:
    """Trains on samples that the process reward model has scored; returns the policy itself where none is usable."""
    from evolvent.learn.annotate import annotate
    from evolvent.learn.objectives import dpo_objective, weighted_nll
    from evolvent.reward.offline import build_sibling_pairs
    from evolvent.reward.scoring import (
        build_advantage_rows,
        collect_solutions,
        group_siblings,
        make_span_splitter,
        score_spans,
    )

    spans = make_span_splitter(policy, config.labelling.separators, max_tokens=config.labelling.max_tokens)
    solutions = collect_solutions(select_distinct(trajectories), spans)
    scores = score_spans(reward_model, solutions, default_tags(reward_model.tokenizer))
    data: Sequence[Trajectory | TokenSequence]
    objective = weighted_nll
    if config.offline == "rft":
        min_scores = {name: float(solution_scores.min()) for name, solution_scores in scores.items()}
        right = [trajectory for trajectory in trajectories if trajectory.success]
        data = select_best_per_task(
            right, lambda trajectory: min_scores.get(trajectory.id), max_per_task=config.per_task
        )
    elif config.offline == "awr":
        tasks = {trajectory.id: trajectory.task.id for trajectory in trajectories}
        data = build_advantage_rows(solutions, scores, tasks, beta=config.beta)
    else:
        pairs = build_sibling_pairs(group_siblings(solutions, scores), margin=config.margin)
        data = list(annotate(policy, pairs, vocabulary=vocabulary_digest(policy.tokenizer)))
        objective = dpo_objective(beta=config.beta)
    if not data:
        _log.warning("skipped offline training: none of %d samples is usable for %s", len(trajectories), config.offline)
        return policy
    return run.fit(policy, data, objective, tokens=config.offline_tokens, lr_scale=config.lr_scale)

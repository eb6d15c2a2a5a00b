"""OpenR: a process reward model from labelled steps of reasoning, learning from its rewards, and decoding guided by it.

Wang et al., "OpenR: An Open Source Framework for Advanced Reasoning with Large Language Models" (arXiv 2410.09671).

    samples  ->  labels of their spans by going on from them (OmegaPRM, arXiv 2406.06592; Math-Shepherd, 2312.08935)
             ->  process reward model: p(good) at the end of every span
    online   play, reward each span with its p, improve: over spans (appo), over tokens (tppo), or by comparing (grpo)
    offline  the best samples (rft), all of them weighted by advantage (awr), better against worse siblings (dpo)
    guided   search with the process reward model

The paper's abstract claims offline learning without a formula; what is done here is this library's choice
(`reward/offline.py`). A reward of p at every span pays for writing many; "gain" pays the differences, which add up to
the last p. Responses are of one turn. OpenR's released training practises on what it measures: here that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.curate.chosen import best_of_each, distinct
from evolvent.errors import ConfigError
from evolvent.identity import version_1_text
from evolvent.learn.annotate import annotate
from evolvent.learn.objectives import dpo, span_labels, weighted_nll
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import Parts
from evolvent.models.policy import Policy
from evolvent.reward.labelling import Labelling, solutions_of
from evolvent.reward.offline import sibling_pairs
from evolvent.reward.paying import process_rewards, span_credit
from evolvent.reward.process import default_tags, prepare
from evolvent.reward.scoring import Floats, advantage_parts, cut, siblings_of, solutions_in, span_scores, spans_of
from evolvent.rl.critic import critic
from evolvent.rl.objective import ValueLoss
from evolvent.rl.presets import GRPO, OPENR_APPO, OPENR_TPPO, Preset
from evolvent.rl.trainer import PracticeConfig, Setup
from evolvent.rollout.held_out import check_held_out, measured_tasks
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory

__all__ = ["PUBLISHED", "OpenR", "openr", "preset"]

_log = logging.getLogger(__name__)


class OpenR(Config):
    """What can be chosen about OpenR."""

    samples: int = Field(default=8, ge=1, description="solutions of a task: to be labelled, and to learn offline from")
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
    labelling: Labelling = Field(default_factory=Labelling, description="how spans get labels")
    practice: PracticeConfig = Field(default_factory=PracticeConfig, description="playing and improving online")
    search: SearchConfig = Field(
        default_factory=lambda: SearchConfig(method="beam", score="process"), description="the guided decoding"
    )

    @model_validator(mode="after")
    def _agree(self) -> OpenR:
        how = self.search
        rules = (
            (how.judged and how.score != "process", f"search.score: {how.score!r}, and the judge is a process model"),
            (how.level not in ("auto", "span"), f"search.level: {how.level!r}, and the judge knows ends of spans"),
            (how.value in ("rollouts", "reward"), f"search.value: {how.value!r} asks for true rewards when measuring"),
            (how.separators != self.labelling.separators, "search.separators: others than labelling.separators"),
        )
        wrong = [what for broken, what in rules if broken]
        if wrong:
            raise ValueError("; ".join(wrong))
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


def preset(config: OpenR) -> Preset:
    """Credit and loss of the online learning; for grpo_buffer the loss alone (its credit is `span_credit`)."""
    chosen = {"appo": OPENR_APPO, "tppo": OPENR_TPPO}.get(config.online, GRPO)
    loss = replace(chosen.loss, temperature=config.practice.temperature)
    return replace(chosen, loss=replace(loss, value=None) if config.practice.critic == "own" else loss)


def openr(policy: Policy, tasks: Sequence[Task], *, config: OpenR, run: Run[Policy]) -> tuple[Policy, Policy]:
    """All stages, one after another. The handed-in policy is left as it was.

    Returns:
        the policy, and the process reward model.
    Raises:
        ConfigError: tasks that are measured on, or of which nothing could be labelled.
    """
    check_held_out(tasks, measured_tasks(run.evaluate(policy, 0)))
    starts = [Start(task, number) for task in tasks for number in range(config.samples)]
    tried = distinct(run.collect(policy, starts, temperature=config.temperature))
    shepherd = config.labelling.kind == "shepherd"  # else a whole task is explored, from the first sample's prompt
    asked = tried if shepherd else list({one.task.id: one for one in reversed(tried)}.values())[::-1]
    rows = run.label(policy, asked, config.labelling)
    labelled = prepare(solutions_of(rows), default_tags(policy.tokenizer), context=policy.context)
    if not labelled.parts:
        raise ConfigError(
            "no solution could be labelled",
            value=f"{len(asked)} samples",
            expected="responses of one turn, some right and some wrong",
            hint="imitate demonstrations first",
        )
    prm = run.fit(policy, labelled.parts, span_labels(soft=config.soft), tokens=config.prm_tokens)
    last = 1
    if config.online != "none":
        policy, last = _online(policy, prm, tasks, config=config, run=run), config.practice.iterations
    if config.offline != "none":
        tried = run.collect(policy, starts, temperature=config.temperature)
        policy, last = _offline(policy, prm, tried, config=config, run=run), last + 1
        run.evaluate(policy, last)
    run.arm("guided").evaluate(policy, last, how=config.search, judge=prm)
    return policy, prm


# ------------------------------------------------------------------ online


def _online(policy: Policy, prm: Policy, tasks: Sequence[Task], *, config: OpenR, run: Run[Policy]) -> Policy:
    chosen, practised, tags = preset(config), config.practice, default_tags(prm.tokenizer)
    level: Literal["span", "part"] = "span" if config.online == "appo" else "part"
    values = critic(ValueLoss(clip=0.2, level=level)) if "values" in chosen.credit.needs else None
    setup = Setup(
        f"openr_{config.online}",
        practised,
        chosen.objective,
        values,
        reference=chosen.loss.kl is not None,
        settings=version_1_text(config),
    )
    spans = spans_of(policy, config.labelling.separators, max_tokens=config.labelling.max_tokens)
    with run.practise(policy, setup, [*(task.id for task in tasks), run.origin(prm)]) as practice:
        for iteration in practice.rounds():
            played = [cut(one, spans) for one in practice.play(practice.starts(tasks))]
            scores = span_scores(prm, solutions_in(played, spans), tags, tokens=practice.view.micro)
            seen = practice.look(played, rewards=partial(_outcome, scores=scores, times=config.outcome))
            seen = process_rewards(seen, scores, gain=config.reward == "gain")
            credit = span_credit(seen.flat) if config.online == "grpo_buffer" else seen.credit(chosen.credit)
            practice.improve(seen, credit)
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: Policy = practice.policy
    return result


def _outcome(trajectory: Trajectory, *, scores: Mapping[str, Floats], times: float) -> list[float | None]:
    """What is paid at the end beside the spans; None, not scored, where these could not be judged."""
    unit = trajectory.score.unit if times else 0.0
    paid = None if unit is None or trajectory.id not in scores else times * unit
    return [*(0.0 for _ in trajectory.steps[1:]), paid]


# ------------------------------------------------------------------ offline


def _offline(policy: Policy, prm: Policy, tried: Sequence[Trajectory], *, config: OpenR, run: Run[Policy]) -> Policy:
    """Learn from samples that the process reward model has scored; the policy itself where they teach nothing."""
    spans = spans_of(policy, config.labelling.separators, max_tokens=config.labelling.max_tokens)
    solutions = solutions_in(distinct(tried), spans)
    scores = span_scores(prm, solutions, default_tags(prm.tokenizer))
    data: Sequence[Trajectory | Parts]
    objective = weighted_nll
    if config.offline == "rft":
        worth = {name: float(each.min()) for name, each in scores.items()}
        right = [one for one in tried if one.success]
        data = best_of_each(right, lambda one: worth.get(one.id), most=config.per_task)
    elif config.offline == "awr":
        tasks = {one.id: one.task.id for one in tried}
        data = advantage_parts(solutions, scores, tasks, beta=config.beta)
    else:
        pairs = sibling_pairs(siblings_of(solutions, scores), margin=config.margin)
        data = list(annotate(policy, pairs, vocabulary=vocabulary_digest(policy.tokenizer)))
        objective = dpo(beta=config.beta)
    if not data:
        _log.warning("nothing is learned offline: %d samples, none that %s could use", len(tried), config.offline)
        return policy
    return run.fit(policy, data, objective, tokens=config.offline_tokens, lr_scale=config.lr_scale)

"""The judges of `search_quality`: a value head on a copy of the policy that has learned how the policy's samples end.

All methods of a cell share one. It learns from training tasks alone, and what it is worth is measured on dev tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.search_bases import base_of, panel, world_of
from benchmarks.search_quality.protocol import TASKS, Protocol, shared
from benchmarks.study import load_or_make_policy, read_policy_note
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import outcome, reward_pairs_objective
from evolvent.learn.preferences import append_readout
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.tsllm import RewardModelScores
from evolvent.models.policy import Policy
from evolvent.reward.calibration import auc_within
from evolvent.reward.scoring import build_judge_rows, replace_score
from evolvent.rl.scored_rollout import ScoreKind, score_sequences
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task, Trajectory, sample_seed
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.preference.world import Preference

__all__ = ["SLOTS", "hindsight", "judge_of", "preferences", "said_at", "sampled"]

SLOTS = 96
_VALUES: tuple[ScoreKind, ...] = ("values",)
_LAST = 2  # states of an episode that hindsight speaks of


def judge_of(protocol: Protocol, task: str, seed: int, folder: Path) -> tuple[Policy, dict[str, float | None]]:
    """The judge of a task and seed, and what it is worth on dev samples that it never saw.

    Returns:
        the judge, and its AUC within tasks: "auc" at the ends of episodes, "auc_half" half way to them; None where no
        task was solved by some samples and missed by others.
    """

    def made() -> tuple[Policy, dict[str, float | None]]:
        judge = _judge(protocol, task, seed, folder)
        return judge, _worth(protocol, judge, task, seed, folder)

    name = f"judge-{protocol.digest(task)}-{task}-{seed}"
    return load_or_make_policy(folder, name, made), read_policy_note(folder, name)


def _judge(protocol: Protocol, task: str, seed: int, folder: Path) -> Policy:
    policy = base_of(task, seed, folder, bases=protocol.bases)
    tasks = panel(task, "train", protocol.judged, bases=protocol.bases)
    tried = sampled(protocol, policy, tasks, samples=protocol.samples, seed=seed)
    if task == "preference":
        tried = _scores(protocol, policy, task, seed, tried)(tried)
    rows = build_judge_rows(tried, policy, shared(task))
    goal, world = TASKS[task].goal, world_of(task, bases=protocol.bases)
    if goal is not None and isinstance(world, Countdown):
        tier = protocol.bases[task].tier
        held_out = {world.key(one) for split in ("dev", "test") for one in world.tasks(split, tier)}
        told = hindsight(tried, policy, world, goal=goal, held_out=held_out)
        rows += [_end_of(row, _LAST) for row in build_judge_rows(told, policy, shared(task))]
    config = protocol.train.model_copy(update={"tokens": protocol.judge_tokens})
    learner = Learner(policy.clone(), outcome, config, seed=sample_seed("judge", task, seed) % 2**31)
    learner.fit(rows)
    return learner.policy.next_version()


# ---------------------------------------------------------------------- what it learns from


def sampled(protocol: Protocol, policy: Policy, tasks: Sequence[Task], *, samples: int, seed: int) -> list[Trajectory]:
    """Episodes of tasks of one world at temperature 1, `samples` of each, in order."""
    name = tasks[0].world
    world, base = world_of(name, bases=protocol.bases), protocol.bases[name]
    agent = LanguageAgent(policy, Sampling(1.0), max_tokens=base.max_tokens)
    starts = [Start(one, number) for one in tasks for number in range(samples)]
    engine = LocalEngine(policy, slots=SLOTS)
    played = collect({world.name: world}, starts, agent, engine=engine, seed=sample_seed("samples", seed))
    return sorted(played, key=lambda one: one.id)


def hindsight(
    tried: Sequence[Trajectory], policy: Policy, world: Countdown, *, goal: str, held_out: set[str]
) -> list[Trajectory]:
    """Episodes that missed, told as if what they made had been asked for (Andrychowicz et al., arXiv 1707.01495).

    What the agent read changes in one token, the number asked for; the score becomes 1. The policy did not act for that
    number, so of the early states of such an episode nothing is learned: see `_end_of`.

    Args:
        goal: the word before the number. held_out: keys of tasks that must not be told of (`Countdown.key`).
    """
    words, told = policy.tokenizer.get_vocab(), []
    for one in tried:
        made = str(one.final_observation).split()
        if one.score.unit != 0 or len(made) != 2 or made[0] != "left" or not 1 <= int(made[1]) <= _LARGEST:
            continue
        task = replace(one.task, spec={**one.task.spec, "target": int(made[1])})
        if world.key(task) in held_out:
            continue
        first = one.steps[0].generations[0]
        ids = first.ids.copy()
        ids[ids.tolist().index(words[goal]) + 1] = words[made[1]]
        step = replace(one.steps[0], generations=(replace(first, ids=ids), *one.steps[0].generations[1:]))
        told.append(replace_score(replace(one, id=f"{one.id}/told", task=task, steps=(step, *one.steps[1:])), 1.0))
    return told


_LARGEST = 100  # targets are drawn up to here


def _end_of(row: TokenSequence, states: int) -> TokenSequence:
    """The row with its last so many states learned alone."""
    weight = np.zeros_like(row.weight)
    weight[np.flatnonzero(row.weight)[-states:]] = 1.0
    return replace(row, weight=weight)


def _scores(
    protocol: Protocol, policy: Policy, task: str, seed: int, samples: Sequence[Trajectory]
) -> RewardModelScores:
    """The reward model: fitted to pairs that the true reward has labelled, with noise."""
    config = protocol.train.model_copy(update={"tokens": 2 * protocol.pairs})
    learner = Learner(policy.clone(), reward_pairs_objective(center=0.01), config, seed=seed)
    learner.fit(preferences(protocol, policy, task, seed))
    return RewardModelScores.from_samples(learner.policy, samples)


def preferences(protocol: Protocol, policy: Policy, task: str, seed: int) -> list[TokenSequence]:
    """Read-outs of chosen, rejected, chosen, rejected, ... of the world's labeled pairs.

    Raises:
        ConfigError: a world without pairs.
    """
    world = world_of(task, bases=protocol.bases)
    if not isinstance(world, Preference):
        raise ConfigError("only continuations are preferred", value=task, expected=Preference.name)
    token = min(policy.dialect.stop_ids, default=0)
    made = []
    for pair in world.pairs("train", protocol.pairs, seed):
        for said in (pair.chosen, pair.rejected):
            ids = [*policy.dialect.open(world.instructions, pair.prompt), *policy.dialect.action(said)]
            none, own = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.bool_)
            row = TokenSequence(
                "pair",
                np.asarray(ids, np.int32),
                own,
                own,
                none,
                np.zeros(len(ids), np.int32),
                np.full(len(ids), -1, np.int32),
                none,
            )
            made.append(append_readout(row, token=token))
    return made


# ---------------------------------------------------------------------- what it is worth


def said_at(judge: Policy, tried: Sequence[Trajectory], task: str) -> dict[str, NDArray[np.float64]]:
    """The chance of a right end that a judge sees at each state of an episode, `[T]`, by the episode's id.

    States are those where a search asks; an episode without a score has none.
    """
    rows = build_judge_rows(tried, judge, shared(task))
    said = score_sequences(judge, rows, needs=_VALUES)
    return {
        row.trajectory: 1.0 / (1.0 + np.exp(-column["values"][row.weight != 0].astype(np.float64)))
        for row, column in zip(rows, said, strict=True)
    }


def _worth(protocol: Protocol, judge: Policy, task: str, seed: int, folder: Path) -> dict[str, float | None]:
    policy = base_of(task, seed, folder, bases=protocol.bases)
    tasks = panel(task, "dev", min(60, protocol.panel), bases=protocol.bases)
    tried = sampled(protocol, policy, tasks, samples=8, seed=seed + 1)
    said = said_at(judge, tried, task)
    tried = [one for one in tried if one.id in said]
    raw = [one.score.raw or 0.0 for one in tried]
    bar = float(np.median(raw)) if task == "preference" else 0.5
    truth, ids = [float(one > bar) for one in raw], [one.task.id for one in tried]
    ends = [float(said[one.id][-1]) for one in tried]
    half = [float(said[one.id][len(said[one.id]) // 2]) for one in tried]
    found = {"auc": auc_within(ends, truth, ids), "auc_half": auc_within(half, truth, ids)}
    return {name: round(share, 4) if isfinite(share) else None for name, share in found.items()}

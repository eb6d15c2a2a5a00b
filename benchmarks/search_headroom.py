"""What a policy does and what it could do: greedy decoding, pass@k of samples, and of deduction the truth of proofs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import GREEDY, Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, ScoringError
from evolvent.grade.passk import mean_pass_at_k
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.deduction.world import Deduction

__all__ = ["KS", "Measured", "marks_of", "measured"]

KS = (1, 4, 16)
"""Samples of pass@k, as far as there are so many."""
_SLOTS = 128


@dataclass(frozen=True)
class Measured:
    """What a policy does on a panel.

    Args:
        tasks, samples: how many; samples of each task.
        greedy: means over the tasks, greedily: success, return (the raw score), tokens (generated in an episode); of
            deduction also steps (the share of right ones) and proof (right answers by a proof without a wrong step).
        sampled: the same means over all samples; and success@k, proof@k: the chance that one of k samples has it, by
            the unbiased estimate of Chen et al. (arXiv 2107.03374).
        best: the mean over tasks of the highest return among all samples.
    """

    tasks: int
    samples: int
    temperature: float
    greedy: Mapping[str, float]
    sampled: Mapping[str, float]
    best: float

    @property
    def headroom(self) -> float:
        """pass@k of the largest k, less the success of greedy decoding."""
        return self.sampled[f"success@{max(k for k in KS if k <= self.samples)}"] - self.greedy["success"]


def measured(
    policy: Policy,
    world: World,
    tasks: Sequence[Task],
    *,
    max_tokens: int,
    samples: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
) -> Measured:
    """Play tasks of a world once greedily and `samples` times at a temperature, with at most `max_tokens` an action.

    Raises:
        ConfigError: no tasks, no samples, or a temperature at which all samples are the same. ScoringError: an episode
            that could not be scored.
    """
    if not tasks or samples < 1 or not temperature > 0:
        raise ConfigError(
            "nothing to measure",
            value=(len(tasks), samples, temperature),
            expected="tasks and samples, 1 or more each, and a temperature above 0",
        )
    engine = LocalEngine(policy, slots=_SLOTS)

    def played(sampling: Sampling, times: int) -> list[list[dict[str, float]]]:
        agent = LanguageAgent(policy, sampling, max_tokens=max_tokens)
        starts = [Start(task, number) for task in tasks for number in range(times)]
        found: dict[str, list[Trajectory]] = defaultdict(list)
        for one in collect({world.name: world}, starts, agent, engine=engine, seed=seed, slots=_SLOTS):
            found[one.task.id].append(one)
        return [[marks_of(world, one) for one in found[task.id]] for task in tasks]

    once, often = played(GREEDY, 1), played(Sampling(temperature=temperature), samples)
    sampled = _means(often)
    for mark in ("success", "proof"):
        if mark in sampled:
            counts = [(len(own), sum(int(one[mark]) for one in own)) for own in often]
            sampled |= {f"{mark}@{k}": mean_pass_at_k(counts, k) for k in KS if k <= samples}
    best = float(np.mean([max(one["return"] for one in own) for own in often]))
    return Measured(len(tasks), samples, temperature, _means(once), sampled, best)


def marks_of(world: World, played: Trajectory) -> dict[str, float]:
    """One episode by the names of `Measured.greedy`; ScoringError where it has no score."""
    score = played.score
    if score.success is None or score.raw is None:
        raise ScoringError("an episode that could not be scored", value=played.id)
    marks = {
        "success": float(score.success),
        "return": float(score.raw),
        "tokens": float(played.count_generated_tokens()),
    }
    if isinstance(world, Deduction):
        said = str(played.steps[0].action) if played.steps else ""
        right = world.check_steps(played.task, said)
        marks["steps"] = sum(right) / len(right) if right else 0.0
        marks["proof"] = float(bool(world.grade_proof(played.task, said).correct))
    return marks


def _means(rows: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Every mark's mean over all episodes; all tasks have as many."""
    every = [one for own in rows for one in own]
    return {mark: float(np.mean([one[mark] for one in every])) for mark in every[0]}

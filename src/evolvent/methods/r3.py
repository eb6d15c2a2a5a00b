"""R3: reinforcement learning through a reverse curriculum of the states on the way of demonstrations.

Xi et al., "Training Large Language Models for Reasoning through Reverse Curriculum Reinforcement Learning" (arXiv
2402.05808). A demonstration is cut into M states on its way. From each the policy goes on by itself, and only the
outcome is rewarded, alike wherever it began: near the end exploring is easy, and what is learned there carries back.

    mixed      all M + 1 stages at once, the beginning among them: R3
    staged     one after another, from the end to the beginning: the curriculum that R3 is compared with
    adaptive   how much each task is shown follows its success (AdaBack, arXiv 2506.18110)
    outcome    the beginning alone, M = 0: PPO on outcomes

The update is PPO over tokens with gamma 1; -kl (log pi - log ref) is paid at each sampled token, the outcome at the
last. An episode that the horizon cut is judged as it is: nothing is to come. What was given of a demonstration is
context: it has no weight, no divergence and no reward. The policy is measured from the beginning only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from evolvent.config import Config
from evolvent.curate.starts import Places, Reveal, adapted, adaptive, cut_points, mixed, readable, staged
from evolvent.errors import ConfigError, Problem
from evolvent.identity import version_1_text
from evolvent.rl.critic import critic
from evolvent.rl.estimators import GaeCredit
from evolvent.rl.objective import Clip, ValueLoss
from evolvent.rl.presets import R3 as PUBLISHED
from evolvent.rl.presets import Preset
from evolvent.rl.trainer import Practice, PracticeConfig, Setup
from evolvent.run import Run
from evolvent.trajectory import Branch, Start, Step, Task, Trajectory, canonical_json, sample_seed

__all__ = ["R3", "partial_credit", "preset", "r3"]

P = TypeVar("P")


class R3(Config):
    """What can be chosen about R3."""

    kind: Literal["mixed", "staged", "adaptive", "outcome"] = Field(default="mixed", description="the curriculum")
    stages: int = Field(default=6, ge=0, description="states on the way of a demonstration (M)")
    at: Places = Field(default="uniform", description="where demonstrations are cut")
    whole: float = Field(default=0.0, ge=0, le=1, description="least share of mixed starts at the beginning")
    threshold: float = Field(default=0.5, gt=0, le=1, description="mean score at which adaptive shows less")
    partial: float = Field(default=0.2, ge=0, lt=1, description="reward of an answer that is wrong")
    kl: float = Field(default=0.05, ge=0, description="times log pi - log reference is taken off every token's reward")
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount between actions")
    lam: float = Field(default=0.95, ge=0, le=1, description="of generalised advantage estimation")
    clip: float = Field(default=0.2, gt=0, description="of the ratio, and of values")
    value: float = Field(default=5.0, gt=0, description="coefficient of the value loss, on a shared trunk")
    practice: PracticeConfig = Field(
        default_factory=lambda: PracticeConfig(epochs=2, samples=1), description="playing and improving"
    )

    @model_validator(mode="after")
    def _in_turn(self) -> R3:
        if self.practice.overlap:
            raise ValueError("practice.overlap: where an iteration begins is known when it begins; leave it out")
        return self


def preset(config: R3) -> Preset:
    """Credit and loss of these settings."""
    own = config.practice.critic == "own"
    return replace(
        PUBLISHED,
        credit=GaeCredit(config.gamma, config.lam, lam_part=config.lam, kl=config.kl, whiten=True),
        loss=replace(
            PUBLISHED.loss,
            surrogate=Clip(config.clip, config.clip),
            temperature=config.practice.temperature,
            value=None if own else ValueLoss(config.value, clip=config.clip),
        ),
    )


def partial_credit(trajectory: Trajectory, *, wrong: float) -> list[float | None]:
    """The outcome, paid on the last action: 1 if right, `wrong` if there is an answer, 0 if there is none.

    The world says whether there is one (`answered` in its last info), or has ended the episode. None stays None.
    """
    if not trajectory.steps:
        return []
    answered = trajectory.steps[-1].info.get("answered", trajectory.terminated)
    success = trajectory.success
    outcome = None if success is None else 1.0 if success else wrong if answered else 0.0
    return [*(0.0 for _ in trajectory.steps[1:]), outcome]


def r3(
    policy: P,
    tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
    *,
    config: R3,
    run: Run[P],
    render: Callable[[Step], str] | None = None,
) -> P:
    """Practise on these tasks. The handed-in policy is left as it was.

    Args:
        demonstrations: at most one is used for a task. Tasks without one begin at their beginning.
        render: the text that an agent would write for a step of a demonstration; None: its action.
    Returns:
        the policy after the last iteration.
    Raises:
        ConfigError: no task has a demonstration. VocabularyMismatch: one is of another tokenizer.
    """
    shown = _demonstrated(tasks, demonstrations, config)
    chosen, values = preset(config), critic(ValueLoss(clip=config.clip))
    setup = Setup(
        "r3", config.practice, chosen.objective, values, reference=config.kl > 0, settings=version_1_text(config)
    )
    reward = partial(partial_credit, wrong=config.partial)
    with run.practise(policy, setup, [*(task.id for task in tasks), *map(_told, shown.values())]) as practice:
        if isinstance(practice, Practice):  # else it is over, and nothing is left to play
            beginning = _Beginning(practice, config, run.seed)
            beginning.cut(tasks, shown.values(), render)
        for iteration in practice.rounds():
            played = practice.play(beginning(practice.starts(tasks)), parents=shown)
            seen = practice.look(played, rewards=reward, final=True)
            practice.improve(seen, seen.credit(chosen.credit))
            practice.note(_by_beginning(played))
            beginning.learn(played)
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result


def _demonstrated(tasks: Sequence[Task], demonstrations: Sequence[Trajectory], config: R3) -> dict[str, Trajectory]:
    """By id, the first demonstration of each task that did not fail."""
    if config.kind == "outcome" or not config.stages:
        return {}
    wanted = {task.id for task in tasks}
    by_task: dict[str, Trajectory] = {}
    for one in demonstrations:
        if one.task.id in wanted and one.success is not False:
            by_task.setdefault(one.task.id, one)
    if not by_task:
        what = f"none of {len(demonstrations)} shows one of the {len(wanted)} tasks to practise on"
        raise ConfigError([Problem("demonstrations", what, "demonstrate these tasks, or take kind = 'outcome'")])
    return {one.id: one for one in by_task.values()}


def _told(demonstration: Trajectory) -> str:
    """A demonstration in words, to tell one practice from another."""
    return canonical_json([demonstration.id, *(str(step.action) for step in demonstration.steps)])


def _by_beginning(played: Sequence[Trajectory]) -> dict[str, float]:
    """How many episodes began in the middle, and the success of either kind."""
    found = {"begun_inside": sum(one.branch is not None for one in played) / max(len(played), 1)}
    for name, inside in (("success_whole", False), ("success_inside", True)):
        wins = [bool(one.success) for one in played if (one.branch is not None) == inside and one.success is not None]
        found |= {name: sum(wins) / len(wins)} if wins else {}
    return found


class _Beginning:
    """Where an iteration's episodes begin. What adaptive has learned of the tasks is kept with the practice."""

    def __init__(self, practice: Practice, config: R3, seed: int) -> None:
        self._practice, self._config, self._seed = practice, config, seed
        self._cuts: dict[str, tuple[Branch, ...]] = {}
        self._tasks: list[str] = []
        self._low = self._high = torch.zeros(0)

    def cut(self, tasks: Sequence[Task], shown: Iterable[Trajectory], render: Callable[[Step], str] | None) -> None:
        """Cut what is shown of these tasks."""
        dialect, stages, at = self._practice.policy.dialect, self._config.stages, self._config.at
        clear = (readable(one, words=len(self._practice.policy.tokenizer)) for one in shown)
        self._cuts = {one.task.id: cut_points(one, dialect, stages, at=at, render=render) for one in clear}
        self._tasks = list(dict.fromkeys(task.id for task in tasks))
        self._low, self._high = torch.zeros(len(self._tasks)), torch.ones(len(self._tasks))
        if self._config.kind == "adaptive":
            self._practice.follows("reveals", self)

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Both bounds `[tasks]`, for the practice's checkpoints."""
        return (("low", self._low), ("high", self._high))

    def _reveals(self) -> dict[str, Reveal]:
        return dict(zip(self._tasks, map(Reveal, self._low.tolist(), self._high.tolist()), strict=True))

    def __call__(self, starts: Sequence[Start]) -> list[Start]:
        iteration, last = self._practice.iteration, self._config.practice.iterations
        seed = sample_seed(self._seed, "r3", iteration)
        match self._config.kind:
            case "staged":
                return staged(starts, self._cuts, iteration=iteration, iterations=last)
            case "adaptive":
                return adaptive(starts, self._cuts, self._reveals(), seed=seed)
        return mixed(starts, self._cuts, seed=seed, whole=self._config.whole)

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Let adaptive know what came of an iteration."""
        if self._config.kind == "adaptive":
            found = adapted(self._reveals(), played, self._cuts, threshold=self._config.threshold)
            self._low.copy_(torch.tensor([found[task].low for task in self._tasks]))
            self._high.copy_(torch.tensor([found[task].high for task in self._tasks]))

"""R3: reinforcement learning through a reverse curriculum of intermediate states of demonstrations.

Xi et al., "Training Large Language Models for Reasoning through Reverse Curriculum Reinforcement Learning"
(arXiv 2402.05808). A demonstration is cut at M intermediate states. From each the policy continues by itself,
and only the outcome is rewarded, equally for every start: near the end exploring is easy, and skills learned
there carry back.

    mixed      all M + 1 stages at once, the beginning among them: R3
    staged     one after another, from the end to the beginning: the curriculum that R3 is compared with
    adaptive   the shown share of each task follows its success (AdaBack, arXiv 2506.18110)
    outcome    the beginning alone, M = 0: PPO on outcomes

The update is PPO over tokens with gamma 1; -kl (log pi - log ref) is paid at each sampled token, the outcome at
the last. An episode that the horizon cut is judged as it is: nothing follows. The given part of a demonstration
is context: it has no weight, no divergence and no reward. The policy is evaluated from the beginning only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.curate.starts import (
    CutPlacement,
    Reveal,
    check_vocabulary,
    cut_points,
    mix_starts,
    reveal_starts,
    stage_starts,
    update_reveals,
)
from evolvent.errors import ConfigError, Problem
from evolvent.identity import version_1_text
from evolvent.models.policy import Policy
from evolvent.rl.estimators import GaeEstimator
from evolvent.rl.presets import R3 as PUBLISHED
from evolvent.rl.presets import Preset
from evolvent.rl.settings import Clip, RLConfig, ValueLoss
from evolvent.run import Run
from evolvent.trajectory import Branch, Start, Step, Task, Trajectory, canonical_json, sample_seed

if TYPE_CHECKING:
    from torch import Tensor

    from evolvent.rl.trainer import PolicyTrainer

__all__ = ["R3Config", "build_preset", "outcome_rewards", "r3"]


class R3Config(Config):
    """Settings of R3."""

    kind: Literal["mixed", "staged", "adaptive", "outcome"] = Field(
        default="mixed",
        description="Curriculum: all starts at once, stage by stage, adaptive by task, or the beginning alone.",
    )
    stages: int = Field(
        default=6, ge=0, description="Number of intermediate states of a demonstration at which episodes may start (M)."
    )
    at: CutPlacement = Field(
        default="uniform", description="Positions at which demonstrations are cut: any token, ends of spans, or steps."
    )
    whole: float = Field(default=0.0, ge=0, le=1, description="Least share of mixed starts at the beginning.")
    threshold: float = Field(
        default=0.5, gt=0, le=1, description="Mean score from which `adaptive` reveals less of a demonstration."
    )
    partial: float = Field(default=0.2, ge=0, lt=1, description="Reward of a wrong answer that could be read.")
    kl: float = Field(
        default=0.05,
        ge=0,
        description="Coefficient of log pi - log reference, subtracted from the reward of each token.",
    )
    gamma: float = Field(default=1.0, ge=0, le=1, description="Discount between actions.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    clip_range: float = Field(default=0.2, gt=0, description="Clip range of the probability ratio and of values.")
    value_coef: float = Field(
        default=5.0, gt=0, description="Coefficient of the value loss where the critic shares the policy's trunk."
    )
    practice: RLConfig = Field(
        default_factory=lambda: RLConfig(ppo_epochs=2, group_size=1), description="Settings of rollouts and updates."
    )

    @model_validator(mode="after")
    def _check_prefetching(self) -> R3Config:
        if self.practice.prefetch_rollouts:
            raise ValueError(
                "practice.prefetch_rollouts: R3 chooses the start states of each iteration anew; leave it out"
            )
        return self


def build_preset(config: R3Config) -> Preset:
    """Builds estimator and loss from these settings."""
    has_separate_critic = config.practice.critic == "separate"
    return replace(
        PUBLISHED,
        estimator=GaeEstimator(
            config.gamma, config.gae_lambda, token_lambda=config.gae_lambda, kl_coef=config.kl, whiten=True
        ),
        loss=replace(
            PUBLISHED.loss,
            surrogate=Clip(config.clip_range, config.clip_range),
            temperature=config.practice.temperature,
            value_loss=None if has_separate_critic else ValueLoss(config.value_coef, clip=config.clip_range),
        ),
    )


def outcome_rewards(trajectory: Trajectory, *, wrong_reward: float) -> list[float | None]:
    """Returns the outcome, paid on the last action: 1 if right, `wrong_reward` for a wrong answer, 0 without an
    answer.

    The world reports an answer (`answered` in its last info), or has ended the episode. None stays None.
    """
    if not trajectory.steps:
        return []
    is_answered = trajectory.steps[-1].info.get("answered", trajectory.terminated)
    success = trajectory.success
    outcome = None if success is None else 1.0 if success else wrong_reward if is_answered else 0.0
    return [*(0.0 for _ in trajectory.steps[1:]), outcome]


def r3(
    policy: Policy,
    tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
    *,
    config: R3Config,
    run: Run[Policy],
    render: Callable[[Step], str] | None = None,
) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Args:
        demonstrations: at most one is used for a task. Tasks without one start at their beginning.
        render: returns the text that an agent would write for a step of a demonstration; None: its action.
    Returns:
        the policy after the last iteration.
    Raises:
        ConfigError: no task has a demonstration.
        VocabularyMismatch: a demonstration is of another tokenizer.
    """
    from evolvent.rl.critic import critic_objective
    from evolvent.rl.trainer import PolicyTrainer, RLSpec

    demonstrations_by_id = _select_demonstrations(tasks, demonstrations, config)
    algorithm, critic_loss = build_preset(config), critic_objective(ValueLoss(clip=config.clip_range))
    spec = RLSpec(
        "r3",
        config.practice,
        algorithm.objective,
        critic_loss,
        reference=config.kl > 0,
        settings=version_1_text(config),
    )
    reward = partial(outcome_rewards, wrong_reward=config.partial)
    with run.train_rl(
        policy, spec, [*(task.id for task in tasks), *map(_demonstration_key, demonstrations_by_id.values())]
    ) as trainer:
        if isinstance(trainer, PolicyTrainer):  # else it is over, and nothing is left to play
            start_sampler = _StartSampler(trainer, config, run.seed)
            start_sampler.cut_demonstrations(tasks, demonstrations_by_id.values(), render)
        for iteration in trainer.iterations():
            trajectories = trainer.rollout(start_sampler(trainer.next_starts(tasks)), parents=demonstrations_by_id)
            rollout = trainer.score(trajectories, rewards=reward, final=True)
            trainer.update(rollout, rollout.estimate_advantages(algorithm.estimator))
            trainer.add_metrics(_measure_starts(trajectories))
            start_sampler.update(trajectories)
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy


def _select_demonstrations(
    tasks: Sequence[Task], demonstrations: Sequence[Trajectory], config: R3Config
) -> dict[str, Trajectory]:
    """Returns by id the first demonstration of each task that did not fail."""
    if config.kind == "outcome" or not config.stages:
        return {}
    task_ids = {task.id for task in tasks}
    by_task: dict[str, Trajectory] = {}
    for trajectory in demonstrations:
        if trajectory.task.id in task_ids and trajectory.success is not False:
            by_task.setdefault(trajectory.task.id, trajectory)
    if not by_task:
        message = f"none of the {len(demonstrations)} demonstrations shows one of the {len(task_ids)} training tasks"
        raise ConfigError(
            [Problem("demonstrations", message, "add demonstrations of these tasks, or set kind to 'outcome'")]
        )
    return {trajectory.id: trajectory for trajectory in by_task.values()}


def _demonstration_key(demonstration: Trajectory) -> str:
    """Formats a demonstration as text that identifies it in a stage's key."""
    return canonical_json([demonstration.id, *(str(step.action) for step in demonstration.steps)])


def _measure_starts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Measures the share of episodes that started inside a demonstration, and the success of either kind."""
    metrics = {
        "begun_inside": sum(trajectory.branch is not None for trajectory in trajectories) / max(len(trajectories), 1)
    }
    for name, is_inside in (("success_whole", False), ("success_inside", True)):
        wins = [
            bool(trajectory.success)
            for trajectory in trajectories
            if (trajectory.branch is not None) == is_inside and trajectory.success is not None
        ]
        metrics |= {name: sum(wins) / len(wins)} if wins else {}
    return metrics


class _StartSampler:
    """Samples the starts of an iteration. The state of "adaptive" is saved with the training."""

    def __init__(self, trainer: PolicyTrainer, config: R3Config, seed: int) -> None:
        import torch

        self._trainer, self._config, self._seed = trainer, config, seed
        self._cuts: dict[str, tuple[Branch, ...]] = {}
        self._tasks: list[str] = []
        self._low = self._high = torch.zeros(0)

    def cut_demonstrations(
        self, tasks: Sequence[Task], demonstrations: Iterable[Trajectory], render: Callable[[Step], str] | None
    ) -> None:
        """Splits the demonstrations of these tasks at their cut points."""
        import torch

        dialect, stages, cut_rule = self._trainer.policy.dialect, self._config.stages, self._config.at
        readable_demonstrations = (
            check_vocabulary(demonstration, vocabulary_size=len(self._trainer.policy.tokenizer))
            for demonstration in demonstrations
        )
        self._cuts = {
            demonstration.task.id: cut_points(demonstration, dialect, stages, placement=cut_rule, render=render)
            for demonstration in readable_demonstrations
        }
        self._tasks = list(dict.fromkeys(task.id for task in tasks))
        self._low, self._high = torch.zeros(len(self._tasks)), torch.ones(len(self._tasks))
        if self._config.kind == "adaptive":
            self._trainer.track_weights("reveals", self)

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Returns both bounds `[tasks]`, for the training's checkpoints."""
        return (("low", self._low), ("high", self._high))

    def _current_reveals(self) -> dict[str, Reveal]:
        return dict(zip(self._tasks, map(Reveal, self._low.tolist(), self._high.tolist()), strict=True))

    def __call__(self, starts: Sequence[Start]) -> list[Start]:
        iteration, num_iterations = self._trainer.iteration, self._config.practice.iterations
        seed = sample_seed(self._seed, "r3", iteration)
        match self._config.kind:
            case "staged":
                return stage_starts(starts, self._cuts, iteration=iteration, iterations=num_iterations)
            case "adaptive":
                return reveal_starts(starts, self._cuts, self._current_reveals(), seed=seed)
        return mix_starts(starts, self._cuts, seed=seed, min_start_ratio=self._config.whole)

    def update(self, trajectories: Sequence[Trajectory]) -> None:
        """Updates the adaptive curriculum with the results of an iteration."""
        if self._config.kind == "adaptive":
            import torch

            reveals = update_reveals(
                self._current_reveals(), trajectories, self._cuts, threshold=self._config.threshold
            )
            self._low.copy_(torch.tensor([reveals[task].low for task in self._tasks]))
            self._high.copy_(torch.tensor([reveals[task].high for task in self._tasks]))

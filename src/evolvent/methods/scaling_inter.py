"""ScalingInter-RL: the longest episode grows by phases while a policy is trained.

Xi et al., "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn Reinforcement
Learning" (arXiv 2509.08755). With few allowed steps a policy learns to use its knowledge; with more of them it
learns to explore, to plan and to correct itself. In long episodes from the start, an ignorant policy wanders
about and learns little.

    step limit in update g:   h(g) = horizons[min(g // every, phases - 1)],   g = 1, 2, ...

The policy is updated by GRPO and its family, as in the paper's main runs. An episode that is cut earns its
rewards until then. The policy is evaluated with each world's own horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from evolvent.identity import version_1_text
from evolvent.methods.grpo import GRPOConfig, build_preset, sample_iteration
from evolvent.models.policy import Policy
from evolvent.rollout.horizon import HorizonSchedule
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["ScalingInterConfig", "scaling_inter"]


class ScalingInterConfig(GRPOConfig):
    """Settings of ScalingInter-RL: the phases, and the settings of GRPO and its family."""

    horizons: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(5, 10, 15), min_length=1, description="most steps of an episode in each phase, never falling"
    )
    every: int = Field(default=100, ge=1, description="updates in a phase")

    @model_validator(mode="after")
    def _check_phases(self) -> ScalingInterConfig:
        problems = []
        if list(self.horizons) != sorted(self.horizons):
            problems.append(f"horizons: {self.horizons} fall; give them in rising order")
        if self.practice.horizon is not None:
            problems.append(f"practice.horizon: {self.practice.horizon} has no effect here; leave it out")
        if self.practice.prefetch_rollouts:
            problems.append("practice.prefetch_rollouts: a prefetched iteration does not know its phase; leave it out")
        if self.overlong:
            problems.append(f"overlong: {self.overlong} has no effect here; leave it 0")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def scaling_inter(policy: Policy, tasks: Sequence[Task], *, config: ScalingInterConfig, run: Run[Policy]) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Returns:
        the policy after the last iteration.
    """
    from evolvent.rl.trainer import RLSpec

    algorithm, horizon = build_preset(config), HorizonSchedule(config.horizons, config.every)
    spec = RLSpec(
        "scaling_inter",
        config.practice,
        algorithm.objective,
        settings=version_1_text(config),
        reference=algorithm.loss.kl is not None or "reference" in algorithm.estimator.needs,
    )
    with run.train_rl(policy, spec, [task.id for task in tasks]) as trainer:
        for iteration in trainer.iterations():
            trainer.horizon = horizon(iteration)
            rollout = trainer.score(sample_iteration(trainer, tasks, config))
            trainer.update(rollout, rollout.estimate_advantages(algorithm.estimator))
            trainer.add_metrics({"horizon": float(trainer.horizon or 0)})
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    trained_policy: Policy = trainer.policy
    return trained_policy

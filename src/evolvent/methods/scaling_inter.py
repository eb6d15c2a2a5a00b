"""ScalingInter-RL: the longest episode grows by phases while a policy practises.

Xi et al., "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn Reinforcement Learning"
(arXiv 2509.08755). With few steps allowed a policy learns to use what it knows; with more of them it learns to explore,
to plan and to correct itself. In long episodes from the start, one that knows nothing wanders about and learns little.

    most steps in update g:   h(g) = horizons[min(g // every, phases - 1)],   g = 1, 2, ...

How an update improves the policy is left to GRPO and its family, as in the paper's main runs. An episode that is cut
earns what it earned until then. The policy is measured with each world's own horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from evolvent.identity import version_1_text
from evolvent.methods.grpo import GRPOConfig, preset, sampled
from evolvent.rl.trainer import Setup
from evolvent.rollout.horizon import HorizonSchedule
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["ScalingInter", "scaling_inter"]

P = TypeVar("P")


class ScalingInter(GRPOConfig):
    """What can be chosen about ScalingInter-RL: the phases, and all about GRPO and its kin."""

    horizons: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(5, 10, 15), min_length=1, description="most steps of an episode in each phase, never falling"
    )
    every: int = Field(default=100, ge=1, description="updates in a phase")

    @model_validator(mode="after")
    def _grows(self) -> ScalingInter:
        problems = []
        if list(self.horizons) != sorted(self.horizons):
            problems.append(f"horizons: {self.horizons} fall; give them in rising order")
        if self.practice.horizon is not None:
            problems.append(f"practice.horizon: {self.practice.horizon} has no effect here; leave it out")
        if self.practice.overlap:
            problems.append("practice.overlap: an iteration that is played ahead does not know its phase; leave it out")
        if self.overlong:
            problems.append(f"overlong: {self.overlong} has no effect here; leave it 0")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def scaling_inter(policy: P, tasks: Sequence[Task], *, config: ScalingInter, run: Run[P]) -> P:
    """Practise on these tasks. The handed-in policy is left as it was.

    Returns:
        the policy after the last iteration.
    """
    chosen, horizon = preset(config), HorizonSchedule(config.horizons, config.every)
    setup = Setup(
        "scaling_inter",
        config.practice,
        chosen.objective,
        settings=version_1_text(config),
        reference=chosen.loss.kl is not None or "reference" in chosen.credit.needs,
    )
    with run.practise(policy, setup, [task.id for task in tasks]) as practice:
        for iteration in practice.rounds():
            practice.horizon = horizon(iteration)
            seen = practice.look(sampled(practice, tasks, config))
            practice.improve(seen, seen.credit(chosen.credit))
            practice.note({"horizon": float(practice.horizon or 0)})
            if practice.due():
                run.evaluate(practice.policy, iteration)
    result: P = practice.policy
    return result

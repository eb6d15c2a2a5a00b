"""PPO over numbers: an actor and a critic of two small layers act in an environment of Gymnasium, without language.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347). Each iteration plays `rows` episodes side
by side for `steps` steps, estimates advantages by GAE, and takes `ppo_epochs` passes over them in minibatches.
Observations and returns are standardized by running means; the learning rate decays linearly. An episode that is cut at
its horizon continues in its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from evolvent.marl.control import ControlSpec, ControlTrainer
from evolvent.marl.settings import ControlPPOConfig
from evolvent.models.team_actions import TeamModel
from evolvent.run import Run
from evolvent.trajectory import Task

if TYPE_CHECKING:
    from evolvent.rl.trainer import RLSpec

__all__ = ["control_ppo"]


def control_ppo(
    policy: TeamModel, tasks: Sequence[Task], *, config: ControlPPOConfig, run: Run[TeamModel]
) -> TeamModel:
    """Trains on these tasks; the policy that was passed in is unchanged.

    Returns:
        the policy after the last iteration.
    """
    # The backend of policies over numbers takes this spec and makes this trainer (`scale.control_backend`).
    spec = cast("RLSpec", ControlSpec(config))
    with run.train_rl(policy, spec, [task.id for task in tasks]) as made:
        trainer = cast(ControlTrainer, made)
        for iteration in trainer.iterations():
            trainer.update(trainer.rollout(tasks))
            if trainer.should_evaluate():
                run.evaluate(trainer.policy, iteration)
    return trainer.policy

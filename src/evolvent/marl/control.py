"""Learning by acting over numbers: PPO's settings and the trainer of a policy in an environment of Gymnasium."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evolvent.errors import ShapeMismatch
from evolvent.identity import version_1_text
from evolvent.marl.checkpoint import TeamState, read_state, write_state
from evolvent.marl.policy import TeamPolicy, team_shape
from evolvent.marl.rollout import ArrayRollout, collect_ended
from evolvent.marl.settings import ControlPPOConfig
from evolvent.marl.updates import TeamLearner
from evolvent.models.team_actions import TeamModel, TeamShape
from evolvent.models.team_files import make_team
from evolvent.rollout.teams import TeamCollector, resume_collector
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.gym.rows import control_spec, make_control_batch
from evolvent.worlds.gym.world import GymnasiumWorld

__all__ = [
    "ControlSpec",
    "ControlTrainer",
    "check_control_policy",
    "control_shape",
    "make_control_policy",
]

_STATE_FILE = "training.safetensors"


@dataclass(frozen=True)
class ControlSpec:
    """Names the settings of a trainer of policies over numbers, as `RLSpec` does for language."""

    config: ControlPPOConfig
    name: str = "control_ppo"


def control_shape(world: GymnasiumWorld, *, width: int = 64) -> TeamShape:
    """Returns the shape of a policy over numbers that fits a world."""
    return team_shape(control_spec(world), "mlp", width=width)


def check_control_policy(policy: TeamModel, world: GymnasiumWorld) -> None:
    """Raises ShapeMismatch for a policy of other observations or actions than a world's."""
    expected = control_shape(world, width=policy.shape.width)
    if policy.shape != expected:
        raise ShapeMismatch(
            f"the policy does not fit {world.name}", value=_describe(policy.shape), expected=_describe(expected)
        )


def _describe(shape: TeamShape) -> str:
    actions = f"{shape.dim} numbers" if shape.dim else f"choices of {' x '.join(map(str, shape.sizes))}"
    return f"observations of {shape.observation} numbers and {actions} as actions"


def make_control_policy(world: GymnasiumWorld, *, width: int = 64, seed: int = 0) -> TeamModel:
    """Makes an untrained policy over numbers for a world.

    Raises:
        ConfigError: a world whose observations or actions are not numbers.

    >>> from evolvent.worlds.gym.world import GymnasiumWorld
    >>> make_control_policy(GymnasiumWorld("CartPole-v1")).shape.sizes
    (2,)
    """
    return make_team(control_shape(world, width=width), seed=sample_seed(seed, "initialisation") % 2**31)


class ControlTrainer:
    """Plays and updates a copy of a policy; each iteration is a rollout and an update.

    Args:
        policy: stays as it is. config: settings of the training. world: the environment.
        folder: folder of the states that a resumed training begins at. seed: of all draws. log: takes the metrics.
    Attributes:
        policy: the policy that learns.
        iteration: number of the present iteration.
    """

    def __init__(
        self,
        policy: TeamModel,
        config: ControlPPOConfig,
        world: GymnasiumWorld,
        *,
        folder: Path,
        seed: int,
        log: Callable[[Mapping[str, object]], None],
    ) -> None:
        check_control_policy(policy, world)
        self.policy, self.config, self.iteration = copy.deepcopy(policy), config, 0
        self._world, self._path, self._seed, self._log = world, folder / _STATE_FILE, seed, log
        self._learner = TeamLearner(
            TeamPolicy(self.policy, control_spec(world)), config.make_update_config(), seed=seed % 2**31
        )
        self._state = TeamState(decisions=0, first=0, running=np.zeros(config.rows), batch=None, history=())
        self._settings = {"config": version_1_text(config), "world": world.name}
        self._collector: TeamCollector | None = None
        self._running = np.zeros(config.rows)
        self._totals = {"episodes": 0.0, "env_steps": 0.0}
        self._metrics: dict[str, float] = {}

    def iterations(self) -> Iterator[int]:
        """Yields 1, 2, ... to the last iteration; a resumed training starts at the first iteration that is not
        saved.
        """
        self._restore()
        count = self.config.iterations
        for number in range(self.iteration + 1, count + 1):
            self.iteration, self._metrics = number, {}
            share = 1.0 - (1.0 - self.config.final_lr_ratio) * (number - 1) / count
            self._learner.set_learning_rate(self.config.lr * share)
            yield number
            self._log({"kind": "practise", "step": number, **self._totals, **self._metrics})
            if number % self.config.save_every == 0 or number == count:
                self._save()

    def rollout(self, tasks: Sequence[Task]) -> ArrayRollout:
        """Plays the next steps of all rows, in episodes of these tasks.

        Raises:
            ConfigError: no tasks. EnvLost: an environment that fails again and again.
        """
        if self._collector is None:
            self._collector, self._running = resume_collector(
                make_control_batch(self._world, tasks, self.config.rows),
                first=self._state.first,
                running=self._state.running,
                snapshot=self._state.batch,
                seed=self._seed,
            )
        rollout = self._collector.collect(TeamPolicy(self.policy, self._collector.batch.spec), self.config.steps)
        ended, self._running = collect_ended(rollout, self._running)
        self._totals["episodes"] += float(len(ended.returns))
        self._totals["env_steps"] += float(rollout.reward.size)
        summary = ended.summarize()
        names = {"episode_return": "return", "episode_length": "length", "success": "success"}
        self._metrics |= {names[name]: value for name, value in summary.items() if name in names}
        self._metrics["unscored"] = float(rollout.lost_end.sum()) / max(1.0, float(rollout.ended.sum()))
        return rollout

    def update(self, rollout: ArrayRollout) -> None:
        """Updates the policy from a rollout.

        Raises:
            NonFinite: training diverged. NothingToLearn: all episodes were lost.
        """
        means = self._learner.update(rollout)
        names = {"entropy": "sampled_entropy", "value_loss": "value_error", "advantage_std": "advantage_deviation"}
        kept = {names.get(name, name): value for name, value in means.items() if name not in ("return", "policy_loss")}
        self._metrics |= kept

    def should_evaluate(self) -> bool:
        """Returns whether the policy is to be evaluated after this iteration."""
        interval = self.config.measure_every
        return self.iteration == self.config.iterations or (interval > 0 and self.iteration % interval == 0)

    def close(self) -> None:
        """Closes the environments."""
        if self._collector is not None:
            self._collector.batch.close()

    def _save(self) -> None:
        collector = self._collector
        if collector is None:
            return
        state = TeamState(
            decisions=self.iteration,
            first=int(collector.view.number.max()) + 1,
            running=self._running,
            batch=collector.snapshot(),
            history=(dict(self._totals),),
        )
        write_state(self._path, self._learner, state, settings=self._settings)

    def _restore(self) -> None:
        state = read_state(self._path, self._learner, settings=self._settings)
        if state is not None:
            self._state, self.iteration = state, state.decisions
            self._totals |= state.history[-1]

"""Text policies that are conditioned on a return: Decision Transformer's idea in words, and cloning as its control.

"Decision Transformer" (arXiv 2106.01345) writes the return-to-go in front of every decision. For a policy of
texts that is a line, "return 3", above the observation: the return-to-go in a few bins that hold equally many
of the recorded decisions. Rewards are subtracted step by step. To act, request a return; the line falls as
rewards come. The same trajectories without the line are cloning.

Rewards of text worlds often come at the end alone. A `cost` subtracted at every step makes the shorter of two
successes worth more, so that a request can ask for more than success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError, NonFinite, SampleInvalid
from evolvent.learn.returns import reward_to_go
from evolvent.models.sequence_bins import QuantileBins
from evolvent.run import Run
from evolvent.trajectory import Task, Trajectory, Value
from evolvent.worlds.base import Env, Forkable, Info, Reply, World

__all__ = [
    "ReturnBins",
    "ReturnConditionedWorld",
    "ReturnTextConfig",
    "add_return_lines",
    "condition_worlds",
    "return_text",
    "returns_to_go",
]

P = TypeVar("P")
_WORD = "return"
_DIGITS = 9  # of returns: what rounding alone tells apart, by the order of a sum, is one return


class ReturnTextConfig(Config):
    """Settings of return-conditioned text."""

    conditioned: bool = Field(default=True, description="tell returns-to-go; false: cloning of the same trajectories")
    bins: int = Field(default=4, ge=2, description="of returns-to-go")
    cost: float = Field(default=0.0, ge=0, description="taken off the reward of every step")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens; none: what the run's training says")


@dataclass(frozen=True)
class ReturnBins:
    """Bins of returns-to-go: `borders`, ascending, between bins 0, 1, ... of which the last is the best.

    Raises:
        ConfigError: the borders are not finite and ascending.
    """

    borders: tuple[float, ...]

    def __post_init__(self) -> None:
        if not np.isfinite(self.borders).all() or (np.diff(self.borders) <= 0).any():
            raise ConfigError("return bins are invalid", value=self.borders, expected="finite and ascending")

    @classmethod
    def from_returns(cls, returns: Sequence[float], *, bins: int) -> ReturnBins:
        """Builds at most `bins` bins that hold equally many returns; one for each number where there are few
        (`QuantileBins`).

        Raises:
            SampleInvalid: there are no returns, or some are not finite.
        """
        quantile_bins = QuantileBins.fit(np.round(np.asarray(returns, np.float64), _DIGITS).reshape(-1, 1), bins=bins)
        return cls(tuple(quantile_bins.borders[0].tolist()))

    def __call__(self, value: float) -> int:
        """Returns the bin of a return; raises NonFinite where it is not finite."""
        if not np.isfinite(value):
            raise NonFinite("the target return is not finite", value=value)
        return int(np.searchsorted(self.borders, round(value, _DIGITS), side="right"))

    def format_observation(self, observation: Value, value: float) -> str:
        """Formats an observation below the line with the return-to-go."""
        return f"{_WORD} {self(value)}\n{observation}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Returns every word of the lines."""
        return (_WORD, *(str(number) for number in range(len(self.borders) + 1)))


def returns_to_go(trajectory: Trajectory, *, cost: float = 0.0) -> list[float]:
    """Computes the return from each step on; raises SampleInvalid where a step was not scored."""
    rewards = [step.reward for step in trajectory.steps]
    scored_rewards = [reward for reward in rewards if reward is not None]
    if len(scored_rewards) < len(rewards) or not np.isfinite(scored_rewards).all():
        raise SampleInvalid(
            f"trajectory {trajectory.id} has a step without a reward",
            value=rewards.index(None) if None in rewards else scored_rewards,
        )
    return [float(return_to_go) for return_to_go in reward_to_go(np.asarray(scored_rewards, np.float64) - cost)]


def add_return_lines(trajectories: Iterable[Trajectory], bins: ReturnBins, *, cost: float = 0.0) -> list[Trajectory]:
    """Returns the trajectories with the line above every observation.

    Generations are kept as text, not as tokens, because they followed another prompt. Raises the errors of
    `returns_to_go`.
    """
    conditioned = []
    for trajectory in trajectories:
        steps = zip(trajectory.steps, returns_to_go(trajectory, cost=cost), strict=True)
        conditioned_steps = (
            replace(step, observation=bins.format_observation(step.observation, value), generations=())
            for step, value in steps
        )
        conditioned.append(replace(trajectory, steps=tuple(conditioned_steps)))
    return conditioned


class ReturnConditionedWorld:
    """A world whose observations begin with the requested return; everything else is the inner world's.

    Args:
        returns: requested of every episode; its first line says so.
        cost: as in the policy's training.
    """

    def __init__(self, world: World, bins: ReturnBins, *, returns: float, cost: float = 0.0) -> None:
        self._world, self._bins, self._returns, self._cost = world, bins, returns, cost
        bins(returns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns the world's words, and those of the line."""
        world_words = self._world.vocabulary()
        return None if world_words is None else sorted({*world_words, *self._bins.vocabulary})

    def make(self, task: Task) -> _ReturnConditionedEnv:
        """Makes an environment for one task."""
        env = self._world.make(task)
        env_class = _ForkableReturnConditionedEnv if isinstance(env, Forkable) else _ReturnConditionedEnv
        return env_class(env, self._bins, returns=self._returns, cost=self._cost)


class _ReturnConditionedEnv:
    def __init__(self, env: Env, bins: ReturnBins, *, returns: float, cost: float) -> None:
        self._env, self._bins, self._returns, self._left, self._cost = env, bins, returns, returns, cost

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._left = self._returns
        observation, info = self._env.reset(seed=seed, options=options)
        return self._bins.format_observation(observation, self._left), info

    def step(self, action: Value) -> Reply:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._left -= float(reward) - self._cost
        return self._bins.format_observation(observation, self._left), reward, terminated, truncated, info

    def close(self) -> None:
        self._env.close()


class _ForkableReturnConditionedEnv(_ReturnConditionedEnv):
    def snapshot(self) -> object:
        return self._left, self._env.snapshot()  # type: ignore[attr-defined]

    def restore(self, value: object) -> None:
        if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int | float)):
            raise ConfigError(
                "the snapshot does not belong to this world", value=value, expected="a value that snapshot() returned"
            )
        self._env.restore(value[1])  # type: ignore[attr-defined]
        self._left = value[0]


def condition_worlds(
    worlds: Mapping[str, World],
    recorded: Sequence[Trajectory],
    config: ReturnTextConfig,
    *,
    returns: float | None = None,
) -> dict[str, World]:
    """Returns the worlds in which a policy of these settings acts.

    They request `returns`, or (None) the highest return of an episode in them; for cloning the worlds are
    unchanged.

    Raises:
        ConfigError: nothing was recorded of a world. Also the errors of `returns_to_go`.
    """
    if not config.conditioned:
        return dict(worlds)
    bins, best_returns = _build_bins(recorded, config), dict.fromkeys(worlds, -np.inf)
    for trajectory in recorded:
        if trajectory.task.world in best_returns and trajectory.steps:
            best_returns[trajectory.task.world] = max(
                best_returns[trajectory.task.world], returns_to_go(trajectory, cost=config.cost)[0]
            )
    if unrecorded := sorted(name for name, requested in best_returns.items() if requested == -np.inf):
        raise ConfigError("worlds without recorded episodes", value=unrecorded)
    requested = best_returns if returns is None else dict.fromkeys(worlds, returns)
    return {
        name: ReturnConditionedWorld(world, bins, returns=requested[name], cost=config.cost)
        for name, world in worlds.items()
    }


def return_text(policy: P, recorded: Sequence[Trajectory], *, config: ReturnTextConfig, run: Run[P]) -> P:
    """Trains on recorded trajectories of any quality; the policy that was passed in is unchanged.

    Act with it in the worlds that `condition_worlds` returns for the same trajectories and settings.

    Raises:
        ConfigError: nothing was recorded.
        SampleInvalid: a step has no reward.
    """
    from evolvent.learn.objectives import weighted_nll

    if not any(trajectory.steps for trajectory in recorded):
        raise ConfigError("no trajectory to learn from", value=len(recorded), expected="trajectories with steps")
    data = (
        add_return_lines(recorded, _build_bins(recorded, config), cost=config.cost)
        if config.conditioned
        else list(recorded)
    )
    return run.fit(policy, data, weighted_nll, tokens=config.tokens)


def _build_bins(recorded: Sequence[Trajectory], config: ReturnTextConfig) -> ReturnBins:
    """Builds the bins of all decisions together."""
    return ReturnBins.from_returns(
        [value for trajectory in recorded for value in returns_to_go(trajectory, cost=config.cost)], bins=config.bins
    )

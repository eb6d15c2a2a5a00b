"""Text policies that are asked for a return: Decision Transformer's idea in words, and the cloning beside it.

"Decision Transformer" (arXiv 2106.01345) writes what is still to be earned in front of every decision. For a policy of
texts that is a line, "return 3", above what is seen: the return-to-go, cut into a few bins that hold equally many of
the recorded decisions. What was earned is taken off step by step. To act, ask for a return; the line falls as
rewards come. The same trajectories without the line are cloning.

Rewards of text worlds often come at the end alone. A `cost` taken off every step makes the shorter of two successes
worth more, so that there is more to ask for than success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError, NonFinite, SampleInvalid
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.returns import reward_to_go
from evolvent.models.sequence_bins import QuantileBins
from evolvent.run import Run
from evolvent.trajectory import Task, Trajectory, Value
from evolvent.worlds.base import Env, Forkable, Info, Reply, World

__all__ = ["Asked", "ReturnBins", "ReturnText", "asking", "return_text", "returns_to_go", "with_returns"]

P = TypeVar("P")
_WORD = "return"
_DIGITS = 9  # of returns: what rounding alone tells apart, by the order of a sum, is one return


class ReturnText(Config):
    """What can be chosen about return-conditioned text."""

    conditioned: bool = Field(default=True, description="tell returns-to-go; false: cloning of the same trajectories")
    bins: int = Field(default=4, ge=2, description="of returns-to-go")
    cost: float = Field(default=0.0, ge=0, description="taken off the reward of every step")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens; none: what the run's training says")


@dataclass(frozen=True)
class ReturnBins:
    """How returns-to-go are told: `borders`, ascending, between bins 0, 1, ... of which the last is the best.

    Raises:
        ConfigError: borders that are not finite and ascending.
    """

    borders: tuple[float, ...]

    def __post_init__(self) -> None:
        if not np.isfinite(self.borders).all() or (np.diff(self.borders) <= 0).any():
            raise ConfigError("borders of returns", value=self.borders, expected="finite and ascending")

    @classmethod
    def of(cls, returns: Sequence[float], *, bins: int) -> ReturnBins:
        """At most so many bins that hold equally many; one for each number where there are few (`QuantileBins`).

        Raises:
            SampleInvalid: no returns, or some that are not finite.
        """
        found = QuantileBins.of(np.round(np.asarray(returns, np.float64), _DIGITS).reshape(-1, 1), bins=bins)
        return cls(tuple(found.borders[0].tolist()))

    def __call__(self, value: float) -> int:
        """The bin of a return; NonFinite for one that is none."""
        if not np.isfinite(value):
            raise NonFinite("a return that is asked for is not finite", value=value)
        return int(np.searchsorted(self.borders, round(value, _DIGITS), side="right"))

    def told(self, observation: Value, value: float) -> str:
        """What is seen, below the line that says what is to be earned yet."""
        return f"{_WORD} {self(value)}\n{observation}"

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of such lines."""
        return (_WORD, *(str(number) for number in range(len(self.borders) + 1)))


def returns_to_go(trajectory: Trajectory, *, cost: float = 0.0) -> list[float]:
    """What is still earned from each step on; SampleInvalid where a step was not scored."""
    rewards = [step.reward for step in trajectory.steps]
    paid = [reward for reward in rewards if reward is not None]
    if len(paid) < len(rewards) or not np.isfinite(paid).all():
        raise SampleInvalid(
            f"{trajectory.id} has a step without a reward", value=rewards.index(None) if None in rewards else paid
        )
    return [float(x) for x in reward_to_go(np.asarray(paid, np.float64) - cost)]


def with_returns(trajectories: Iterable[Trajectory], bins: ReturnBins, *, cost: float = 0.0) -> list[Trajectory]:
    """The trajectories with the line above every observation. What a model wrote is kept as text, not as tokens: these
    followed another prompt. Raises what `returns_to_go` does."""
    found = []
    for one in trajectories:
        steps = zip(one.steps, returns_to_go(one, cost=cost), strict=True)
        told = (replace(step, observation=bins.told(step.observation, value), generations=()) for step, value in steps)
        found.append(replace(one, steps=tuple(told)))
    return found


class Asked:
    """A world in which a policy is told what it is to earn yet; all else is the world's.

    Args:
        returns: what is asked for, of every episode; its first line says so. cost: as the policy learned with.
    """

    def __init__(self, world: World, bins: ReturnBins, *, returns: float, cost: float = 0.0) -> None:
        self._world, self._bins, self._returns, self._cost = world, bins, returns, cost
        bins(returns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def vocabulary(self) -> Sequence[str] | None:
        """The world's words, and those of the line."""
        words = self._world.vocabulary()
        return None if words is None else sorted({*words, *self._bins.words})

    def make(self, task: Task) -> _AskedEnv:
        """An environment for one task."""
        env = self._world.make(task)
        kind = _ForkableAskedEnv if isinstance(env, Forkable) else _AskedEnv
        return kind(env, self._bins, returns=self._returns, cost=self._cost)


class _AskedEnv:
    def __init__(self, env: Env, bins: ReturnBins, *, returns: float, cost: float) -> None:
        self._env, self._bins, self._returns, self._left, self._cost = env, bins, returns, returns, cost

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._left = self._returns
        seen, info = self._env.reset(seed=seed, options=options)
        return self._bins.told(seen, self._left), info

    def step(self, action: Value) -> Reply:
        seen, reward, terminated, truncated, info = self._env.step(action)
        self._left -= float(reward) - self._cost
        return self._bins.told(seen, self._left), reward, terminated, truncated, info

    def close(self) -> None:
        self._env.close()


class _ForkableAskedEnv(_AskedEnv):
    def snapshot(self) -> object:
        return self._left, self._env.snapshot()  # type: ignore[attr-defined]

    def restore(self, value: object) -> None:
        if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int | float)):
            raise ConfigError("not a snapshot of this world", value=value, expected="what snapshot() returned")
        self._env.restore(value[1])  # type: ignore[attr-defined]
        self._left = value[0]


def asking(
    worlds: Mapping[str, World], recorded: Sequence[Trajectory], config: ReturnText, *, returns: float | None = None
) -> dict[str, World]:
    """The worlds as a policy of these settings acts in them: asked for `returns`, or (None) for the most that an
    episode earned in them; for cloning they are what they were.

    Raises:
        ConfigError: a world of which nothing was recorded. What `returns_to_go` raises.
    """
    if not config.conditioned:
        return dict(worlds)
    bins, most = _bins(recorded, config), dict.fromkeys(worlds, -np.inf)
    for one in recorded:
        if one.task.world in most and one.steps:
            most[one.task.world] = max(most[one.task.world], returns_to_go(one, cost=config.cost)[0])
    if unknown := sorted(name for name, best in most.items() if best == -np.inf):
        raise ConfigError("worlds of which nothing was recorded", value=unknown)
    best = most if returns is None else dict.fromkeys(worlds, returns)
    return {name: Asked(world, bins, returns=best[name], cost=config.cost) for name, world in worlds.items()}


def return_text(policy: P, recorded: Sequence[Trajectory], *, config: ReturnText, run: Run[P]) -> P:
    """Learn from recorded trajectories of any quality. The handed-in policy stays as it was.

    Act with it in the worlds that `asking` gives for the same trajectories and settings.

    Raises:
        ConfigError: nothing was recorded. SampleInvalid: a step without a reward.
    """
    if not any(one.steps for one in recorded):
        raise ConfigError("nothing to learn from", value=len(recorded), expected="trajectories with steps")
    data = with_returns(recorded, _bins(recorded, config), cost=config.cost) if config.conditioned else list(recorded)
    return run.fit(policy, data, weighted_nll, tokens=config.tokens)


def _bins(recorded: Sequence[Trajectory], config: ReturnText) -> ReturnBins:
    """Of all decisions together."""
    return ReturnBins.of(
        [value for one in recorded for value in returns_to_go(one, cost=config.cost)], bins=config.bins
    )

"""Cessation: the agent itself ends the episode when its belief is certain, and is rewarded for that.

Source: AGDC, "Autonomous Goal Detection and Cessation in Reinforcement Learning: A Case Study on Source Term
Estimation" (arXiv 2409.09541). An agent that searches for an invisible target gets no signal of its arrival.
AGDC monitors the agent's belief: where every standard deviation is below zeta, the agent ends the episode and
receives the goal's reward. Only `terminated` and `reward` change, so the method works with any learner.

Cessation sets `terminated`, the horizon sets `truncated`, never both: only a truncated episode may be
bootstrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.seeking import FEATURES, DetectorHistory, SourceSearch, StopReward
from evolvent.belief.stopping import Detector
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, MissingExtra
from evolvent.trajectory import Array, Task
from evolvent.worlds.plume.presets import MOVES, Preset
from evolvent.worlds.plume.world import PlumeWorld

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as missing:
    raise MissingExtra("control", "cessation as an environment of Gymnasium") from missing

__all__ = ["Action", "Cessation", "PlumeSearchEnv", "action_space", "actions_to_moves", "observation_space"]

Observation = NDArray[np.float32]
ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
_BOUND = 20.0  # no feature is as large: log spread / L is at least log(1e-6 / L), the others are within -4..6


def observation_space() -> spaces.Space[Observation]:
    """Returns the space of the belief features, [13]."""
    return spaces.Box(-_BOUND, _BOUND, (FEATURES,), np.float32)


def action_space(preset: Preset) -> spaces.Space[object]:
    """Moves by number, or a direction (dx, dy), each in -1..1, whose length does not matter.

    A heading as one number would jump from pi to -pi, which a continuous policy cannot cross.
    """
    if preset.moves == "heading":
        return spaces.Box(-1.0, 1.0, (2,), np.float32)
    return spaces.Discrete(len(MOVES[preset.moves]))


def actions_to_moves(preset: Preset, actions: NDArray[np.generic]) -> NDArray[np.generic]:
    """Converts actions [B] or [B, 2] of the space to the input [B] of `PlumeBatch.step`."""
    if preset.moves == "heading":
        return np.arctan2(actions[..., 1].astype(np.float64), actions[..., 0].astype(np.float64))
    return actions


Action = int | Array
"""A move of the preset by its number, or a heading `[2]`."""


class PlumeSearchEnv(gymnasium.Env[Observation, Action]):
    """A search for a source as a Gymnasium environment: belief features are observed, moves are actions.

    It pays `cost` a step and never terminates; at the horizon it is truncated. `Cessation` ends it.

    Args:
        world: A plume world.
        tasks: Tasks, of which one is drawn at each reset.
        particles, sweeps: Settings of the belief, see `SourceSearch`.
        cost: Reward of a step.
    Raises:
        ConfigError: no task.
    """

    metadata: dict[str, object] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own shape)

    def __init__(
        self,
        world: PlumeWorld,
        tasks: Sequence[Task],
        *,
        particles: int | None = None,
        sweeps: int = 3,
        cost: float = -1.0,
    ) -> None:
        if not tasks:
            raise ConfigError("the task list is empty", value=0, expected="one task or more")
        self.search = SourceSearch(world.batch(1), particles=particles, sweeps=sweeps)
        self.observation_space: spaces.Space[Observation] = observation_space()
        self.action_space: spaces.Space[Any] = action_space(world.preset)
        self._tasks, self._cost = tasks, cost

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Starts a task drawn with the seed, or the given one: `options={"task": task, "seed": 3}`."""
        super().reset(seed=seed)
        reset_options: Mapping[str, Any] = options or {}
        task = reset_options.get("task") or self._tasks[int(self.np_random.integers(len(self._tasks)))]
        noise_seed = reset_options["seed"] if "seed" in reset_options else int(self.np_random.integers(2**31))
        self.search.begin([0], [task], [noise_seed])
        return self.search.observe()[0], {"task": task.id}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        """Runs one move; `info["lost"]` says whether the belief was reset."""
        result = self.search.step(actions_to_moves(self.search.preset, np.asarray(action)[None]))
        return self.search.observe()[0], self._cost, False, bool(result.is_over[0]), {"lost": bool(result.is_lost[0])}

    def belief(self) -> BeliefSummary:
        """Returns the current belief, [1]."""
        return self.search.summary

    def is_right(self) -> bool:
        """Returns whether the estimate is right: for scoring and for `paid_for="truth"`."""
        return bool(self.search.is_right()[0])


class Cessation(gymnasium.Wrapper[ObsT, ActT, ObsT, ActT], Generic[ObsT, ActT]):
    """A wrapper that ends an episode when the agent is certain; everything else is the inner environment's.

    Args:
        env: Any environment.
        belief: Returns the current belief of the agent, [1]; called after each step.
        detector: Decides whether the belief is certain enough.
        reward: Reward of ceasing.
        step_cost: Reward of every other step; None: that of the inner environment.
        paid_for: "belief": ceasing always earns the reward; "truth": only with a right estimate, otherwise it costs
            a step.
        right: Returns whether the estimate is right; required for "truth", otherwise only reported in
            `info["right"]`.
    Raises:
        ConfigError: see `StopReward`; "truth" without `right`.
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsT, ActT],
        belief: Callable[[], BeliefSummary],
        detector: Detector,
        *,
        reward: float = 100.0,
        step_cost: float | None = -1.0,
        paid_for: Literal["belief", "truth"] = "belief",
        right: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(env)
        if paid_for == "truth" and right is None:
            raise ConfigError(
                "the setting paid_for='truth' needs the function `right`", value="right=None", expected="a function"
            )
        self._pay = StopReward(reward=reward, cost=-1.0 if step_cost is None else step_cost, paid_for=paid_for)
        self._keep_inner = step_cost is None
        self._belief, self._detector, self._right = belief, detector, right
        self._lookout = DetectorHistory(detector, 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[ObsT, dict[str, object]]:
        """Starts an episode; the detector has made no decision yet."""
        self._lookout = DetectorHistory(self._detector, 1000)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: ActT) -> tuple[ObsT, float, bool, bool, dict[str, object]]:
        """Runs the inner step, then the detector. `info` has "stop_score", "ceased", and "right" where it is known.

        An episode that the inner environment terminated, or whose belief was lost in this step, does not cease.
        """
        observation, inner_reward, terminated, truncated, info = self.env.step(action)
        decision = self._lookout.decide(self._belief())
        ceased = bool(decision.stop[0]) and not terminated and not info.get("lost", False)
        step_info = {**info, "stop_score": float(decision.score[0]), "ceased": ceased}
        if self._right is not None:
            step_info["right"] = self._right()
        if ceased and (self._pay.paid_for == "belief" or step_info["right"]):
            reward = self._pay.reward
        else:  # an inner goal pays for itself
            reward = float(inner_reward) if terminated or self._keep_inner else self._pay.cost
        return observation, reward, terminated or ceased, truncated and not ceased, step_info

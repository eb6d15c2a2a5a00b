"""Cessation: the agent itself ends the episode when its belief is sure, and is paid for that.

Source: AGDC, "Autonomous Goal Detection and Cessation in Reinforcement Learning: A Case Study on Source Term
Estimation" (arXiv 2409.09541). An agent that looks for something it cannot see is told by nobody that it has arrived.
AGDC looks at the agent's belief: where every standard deviation is below zeta, the agent ends the episode and takes the
goal's reward. Only `terminated` and `reward` change, so any learner plugs in.

Ceasing is `terminated`, running out of time is `truncated`, never both: only the second may be bootstrapped over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.seeking import FEATURES, Lookout, Payment, SourceSearch
from evolvent.belief.stopping import Detector
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, MissingExtra
from evolvent.trajectory import Task
from evolvent.worlds.plume.presets import MOVES, Preset
from evolvent.worlds.plume.world import PlumeWorld

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as missing:
    raise MissingExtra("control", "cessation as an environment of Gymnasium") from missing

__all__ = ["Cessation", "PlumeSearchEnv", "action_space", "observation_space", "to_moves"]

Observation = NDArray[np.float32]
ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
_WIDE = 20.0  # no feature is as large: log spread / L is at least log(1e-6 / L), the others are within -4..6


def observation_space() -> spaces.Space[Observation]:
    """Of the features of a belief, [13]."""
    return spaces.Box(-_WIDE, _WIDE, (FEATURES,), np.float32)


def action_space(preset: Preset) -> spaces.Space[Any]:
    """Moves by number, or a direction (dx, dy), each in -1..1, whose length does not matter.

    A heading as one number would jump from pi to -pi, which a continuous policy cannot cross.
    """
    if preset.moves == "heading":
        return spaces.Box(-1.0, 1.0, (2,), np.float32)
    return spaces.Discrete(len(MOVES[preset.moves]))


def to_moves(preset: Preset, actions: NDArray[Any]) -> NDArray[Any]:
    """[B] what `PlumeBatch.step` takes, of [B] or [B, 2] actions of the space."""
    if preset.moves == "heading":
        return np.arctan2(actions[..., 1].astype(np.float64), actions[..., 0].astype(np.float64))
    return actions


class PlumeSearchEnv(gymnasium.Env[Observation, Any]):
    """One search for a source as an environment of Gymnasium: features of the belief in, moves out.

    It pays `cost` a step and never terminates; at the horizon it is truncated. `Cessation` ends it.

    Args:
        world: a plume world. tasks: those that are drawn from at each reset.
        particles, sweeps: of the belief, see `SourceSearch`. cost: of a step.
    Raises:
        ConfigError: no task.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own shape)

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
            raise ConfigError("a search without tasks", value=0, expected="one task or more")
        self.search = SourceSearch(world.batch(1), particles=particles, sweeps=sweeps)
        self.observation_space: spaces.Space[Observation] = observation_space()
        self.action_space: spaces.Space[Any] = action_space(world.preset)
        self._tasks, self._cost = tasks, cost

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a task drawn with the seed, or the given one: `options={"task": task, "seed": 3}`."""
        super().reset(seed=seed)
        given: Mapping[str, Any] = options or {}
        task = given.get("task") or self._tasks[int(self.np_random.integers(len(self._tasks)))]
        noise = given["seed"] if "seed" in given else int(self.np_random.integers(2**31))
        self.search.begin([0], [task], [noise])
        return self.search.observe()[0], {"task": task.id}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One move; `info["lost"]` where the belief had to be begun anew."""
        moved = self.search.step(to_moves(self.search.preset, np.asarray(action)[None]))
        return self.search.observe()[0], self._cost, False, bool(moved.over[0]), {"lost": bool(moved.lost[0])}

    def belief(self) -> BeliefSummary:
        """What is believed now, [1]."""
        return self.search.summary

    def right(self) -> bool:
        """Whether the estimate is right: for scoring and for `paid_for="truth"`."""
        return bool(self.search.right()[0])


class Cessation(gymnasium.Wrapper[ObsT, ActT, ObsT, ActT], Generic[ObsT, ActT]):
    """An environment that ends when the agent is sure. All else is the inner one's.

    Args:
        env: any environment.
        belief: what the agent believes now, [1]; called after each step.
        detector: whether that is sure enough.
        reward, step_cost: of ceasing, and of every other step. step_cost None: what the inner environment paid.
        paid_for: "belief": ceasing is paid in any case; "truth": only where `right()` says so, else it costs a step.
        right: whether the estimate is right now; needed for "truth", else only told in `info["right"]`.
    Raises:
        ConfigError: see `Payment`; "truth" without `right`.
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
            raise ConfigError("paid for the truth, which nobody tells", value="right=None", expected="a function")
        self._pay = Payment(reward=reward, cost=-1.0 if step_cost is None else step_cost, paid_for=paid_for)
        self._keep_inner = step_cost is None
        self._belief, self._detector, self._right = belief, detector, right
        self._lookout = Lookout(detector, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ObsT, dict[str, Any]]:
        """Begin; the detector has looked at nothing yet."""
        self._lookout = Lookout(self._detector, 1000)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: ActT) -> tuple[ObsT, float, bool, bool, dict[str, Any]]:
        """The inner step; then a look. `info`: "stop_score", "ceased", and "right" where it is known.

        An episode that the inner environment terminated, or whose belief was lost in this step, does not cease.
        """
        seen, inner, terminated, truncated, info = self.env.step(action)
        decision = self._lookout.look(self._belief())
        ceased = bool(decision.stop[0]) and not terminated and not info.get("lost", False)
        told = {**info, "stop_score": float(decision.score[0]), "ceased": ceased}
        if self._right is not None:
            told["right"] = self._right()
        if ceased and (self._pay.paid_for == "belief" or told["right"]):
            paid = self._pay.reward
        else:  # an inner goal pays for itself
            paid = float(inner) if terminated or self._keep_inner else self._pay.cost
        return seen, paid, terminated or ceased, truncated and not ceased, told

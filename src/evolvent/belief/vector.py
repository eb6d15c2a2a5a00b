"""Source searches as a `VecEnv` of stable-baselines3: B episodes in one batch, each restarted when it ends.

Learners of stable-baselines3 rely on three properties: the observation at an episode's end is in
`info["terminal_observation"]`, since the returned one belongs to the next episode;
`info["TimeLimit.truncated"]` is True at the horizon and False where the agent ceased, so that only the former
is bootstrapped; and `info["episode"]` has the return and the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.seeking import DetectorHistory, SourceSearch, StopReward
from evolvent.belief.stopping import Detector
from evolvent.errors import ConfigError, MissingExtra
from evolvent.trajectory import Task, sample_rng

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as missing:
    raise MissingExtra("control", "learning with stable-baselines3") from missing

from evolvent.belief.cessation import action_space, actions_to_moves, observation_space

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

__all__ = ["FinishedSearch", "SourceSearchVec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSearch:
    """A finished training episode.

    Args:
        total_steps: Steps of all episodes together when it ended.
        task: Id of its task.
        steps: Its length.
        total_reward: Sum of its unscaled rewards.
        ceased, right: Whether the agent ended it, and whether its estimate was right then.
    """

    total_steps: int
    task: str
    steps: int
    total_reward: float
    ceased: bool
    right: bool


class SourceSearchVec(VecEnv):
    """A batch of B searches.

    Row i plays tasks and noise drawn from (seed, i, number of its episodes), independent of the other rows.

    Args:
        search: The episodes and their beliefs.
        tasks: Tasks to draw from.
        detector: Ends episodes; None: they all run to the horizon, and ceasing is never rewarded.
        pay: Rewards of steps.
        seed: Seed of the draws.
        scale: Factor of the rewards for the learner.
    Raises:
        ConfigError: no task, a scale that is not above 0.
    """

    def __init__(
        self,
        search: SourceSearch,
        tasks: Sequence[Task],
        *,
        detector: Detector | None,
        pay: StopReward | None = None,
        seed: int = 0,
        scale: float = 1.0,
    ) -> None:
        if not tasks or not scale > 0:
            raise ConfigError(
                "the task list is empty or the reward scale is not positive",
                value=(len(tasks), scale),
                expected="one task or more, a scale above 0",
            )
        self.render_mode: str | None = None
        self.search, self.finished = search, list[FinishedSearch]()
        self._tasks, self._detector, self._pay = tasks, detector, pay or StopReward()
        self._draw_seed, self._scale = seed, scale
        self._actions: NDArray[Any] = np.zeros(search.size, np.int64)
        super().__init__(search.size, observation_space(), action_space(search.preset))

    def reset(self) -> NDArray[np.float32]:
        """Starts all episodes and resets the draws."""
        self._lookout = None if self._detector is None else DetectorHistory(self._detector, self.search.batch.horizon)
        self._played = np.zeros(self.num_envs, np.int64)
        self._paid = np.zeros(self.num_envs)
        self._names = [""] * self.num_envs
        self._steps = 0
        self._begin(range(self.num_envs))
        return self.search.observe()

    def step_async(self, actions: NDArray[np.generic]) -> None:
        """Stores actions [B] or [B, 2] of the space."""
        self._actions = np.asarray(actions)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, object]]]:
        """Runs one step of all episodes; returns observations [B, 13], rewards [B], done [B], infos."""
        step_result = self.search.step(actions_to_moves(self.search.preset, self._actions))
        self._steps += self.num_envs
        ceased, right = np.zeros(self.num_envs, np.bool_), self.search.is_right()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self._lookout is not None:
            decision = self._lookout.decide(self.search.summary)
            ceased = decision.stop & ~step_result.is_lost
            for info, score in zip(infos, decision.score.tolist(), strict=True):
                info["stop_score"] = score
        rewards = self._pay.compute(ceased, right)
        self._paid += rewards
        is_done: NDArray[np.bool_] = ceased | step_result.is_over
        observations = self.search.observe()
        if rows := np.flatnonzero(is_done).tolist():
            for row in rows:
                infos[row] |= self._finish(row, ceased=bool(ceased[row]), right=bool(right[row]))
                infos[row]["terminal_observation"] = observations[row].copy()
            if self._lookout is not None:
                self._lookout.forget(is_done)
            self._begin(rows)
            observations = self.search.observe()
        return observations, (self._scale * rewards).astype(np.float32), is_done, infos

    def _finish(self, row: int, *, ceased: bool, right: bool) -> dict[str, Any]:
        finished_search = FinishedSearch(
            total_steps=self._steps,
            task=self._names[row],
            steps=int(self.search.batch.steps[row]),
            total_reward=float(self._paid[row]),
            ceased=ceased,
            right=right,
        )
        self.finished.append(finished_search)
        return {
            "TimeLimit.truncated": not ceased,
            "is_success": ceased and right,
            "episode": {"r": finished_search.total_reward, "l": finished_search.steps, "t": 0.0},
        }

    def _begin(self, rows: Sequence[int]) -> None:
        generators = [sample_rng("search", self._draw_seed, row, int(self._played[row])) for row in rows]
        tasks = [self._tasks[int(rng.integers(len(self._tasks)))] for rng in generators]
        self.search.batch.end(rows)
        self.search.begin(rows, tasks, [int(rng.integers(2**31)) for rng in generators])
        for row, task in zip(rows, tasks, strict=True):
            self._played[row] += 1
            self._paid[row], self._names[row] = 0.0, task.id

    def close(self) -> None:
        """Closes nothing: no resource is held."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[object]:
        """Returns the same attribute of the batch for each requested row."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Raises ConfigError: rows of a batch have no separate attributes."""
        raise ConfigError("rows of a batch do not have separate attributes", value=attr_name)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[object]:
        """Raises ConfigError: rows of a batch have no separate methods."""
        raise ConfigError("rows of a batch do not have separate methods", value=method_name)

    def env_is_wrapped(self, wrapper_class: type[object], indices: VecEnvIndices = None) -> list[bool]:
        """Returns False for each row."""
        return [False for _ in self._get_indices(indices)]

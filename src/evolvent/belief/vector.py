"""Searches for sources as a `VecEnv` of stable-baselines3: B episodes in one batch, each begun anew when it is over.

Learners of stable-baselines3 rely on three things here: the observation at an episode's end is in
`info["terminal_observation"]`, for what is returned is already that of the next episode; `info["TimeLimit.truncated"]`
is True where time ran out and False where the agent ceased, so that only the former is bootstrapped over; and
`info["episode"]` has the return and the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.seeking import Lookout, Payment, SourceSearch
from evolvent.belief.stopping import Detector
from evolvent.errors import ConfigError, MissingExtra
from evolvent.trajectory import Task, sample_rng

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as missing:
    raise MissingExtra("control", "learning with stable-baselines3") from missing

from evolvent.belief.cessation import action_space, observation_space, to_moves

__all__ = ["FinishedSearch", "SourceSearchVec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSearch:
    """An episode of training, as it ended.

    Args:
        at: steps of all episodes together when it ended. task: its id.
        steps, paid: its length, and the sum of its rewards, unscaled.
        ceased, right: whether the agent ended it, and whether its estimate was right then.
    """

    at: int
    task: str
    steps: int
    paid: float
    ceased: bool
    right: bool


class SourceSearchVec(VecEnv):
    """B searches at once.

    Row i plays tasks and noise drawn from (seed, i, how many it has played), whatever the other rows do.

    Args:
        search: the episodes and their beliefs. tasks: those that are drawn from.
        detector: ends episodes; None: they all run to the horizon, and nothing is ever paid.
        pay: what steps earn.
        seed: of the draws.
        scale: what rewards are multiplied by before the learner sees them.
    Raises:
        ConfigError: no task, a scale that is not above 0.
    """

    def __init__(
        self,
        search: SourceSearch,
        tasks: Sequence[Task],
        *,
        detector: Detector | None,
        pay: Payment | None = None,
        seed: int = 0,
        scale: float = 1.0,
    ) -> None:
        if not tasks or not scale > 0:
            raise ConfigError(
                "a search without tasks, or rewards without a scale",
                value=(len(tasks), scale),
                expected="one task or more, a scale above 0",
            )
        self.render_mode: str | None = None
        self.search, self.finished = search, list[FinishedSearch]()
        self._tasks, self._detector, self._pay = tasks, detector, pay or Payment()
        self._draw_seed, self._scale = seed, scale
        self._actions: NDArray[Any] = np.zeros(search.size, np.int64)
        super().__init__(search.size, observation_space(), action_space(search.preset))

    def reset(self) -> NDArray[np.float32]:
        """Begin all episodes; the draws begin anew too."""
        self._lookout = None if self._detector is None else Lookout(self._detector, self.search.batch.horizon)
        self._played = np.zeros(self.num_envs, np.int64)
        self._paid = np.zeros(self.num_envs)
        self._names = [""] * self.num_envs
        self._steps = 0
        self._begin(range(self.num_envs))
        return self.search.observe()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take note of [B] or [B, 2] actions of the space."""
        self._actions = np.asarray(actions)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """One step of all: observations [B, 13], rewards [B], done [B], infos."""
        moved = self.search.step(to_moves(self.search.preset, self._actions))
        self._steps += self.num_envs
        ceased, right = np.zeros(self.num_envs, np.bool_), self.search.right()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self._lookout is not None:
            decision = self._lookout.look(self.search.summary)
            ceased = decision.stop & ~moved.lost
            for info, score in zip(infos, decision.score.tolist(), strict=True):
                info["stop_score"] = score
        rewards = self._pay.of(ceased, right)
        self._paid += rewards
        done: NDArray[np.bool_] = ceased | moved.over
        seen = self.search.observe()
        if rows := np.flatnonzero(done).tolist():
            for row in rows:
                infos[row] |= self._ended(row, ceased=bool(ceased[row]), right=bool(right[row]))
                infos[row]["terminal_observation"] = seen[row].copy()
            if self._lookout is not None:
                self._lookout.forget(done)
            self._begin(rows)
            seen = self.search.observe()
        return seen, (self._scale * rewards).astype(np.float32), done, infos

    def _ended(self, row: int, *, ceased: bool, right: bool) -> dict[str, Any]:
        one = FinishedSearch(
            at=self._steps,
            task=self._names[row],
            steps=int(self.search.batch.steps[row]),
            paid=float(self._paid[row]),
            ceased=ceased,
            right=right,
        )
        self.finished.append(one)
        return {
            "TimeLimit.truncated": not ceased,
            "is_success": ceased and right,
            "episode": {"r": one.paid, "l": one.steps, "t": 0.0},
        }

    def _begin(self, rows: Sequence[int]) -> None:
        drawn = [sample_rng("search", self._draw_seed, row, int(self._played[row])) for row in rows]
        tasks = [self._tasks[int(rng.integers(len(self._tasks)))] for rng in drawn]
        self.search.batch.end(rows)
        self.search.begin(rows, tasks, [int(rng.integers(2**31)) for rng in drawn])
        for row, task in zip(rows, tasks, strict=True):
            self._played[row] += 1
            self._paid[row], self._names[row] = 0.0, task.id

    def close(self) -> None:
        """Nothing is held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same attribute of the batch for each row asked for."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """ConfigError: rows of a batch have no attributes of their own."""
        raise ConfigError("rows of a batch have no attributes of their own", value=attr_name)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """ConfigError: rows of a batch have no methods of their own."""
        raise ConfigError("rows of a batch have no methods of their own", value=method_name)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """None is."""
        return [False for _ in self._get_indices(indices)]

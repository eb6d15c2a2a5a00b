"""Generated families of related tasks: bandits with random arms, and dark rooms with random goals.

A task differs from its relatives only in what is rewarded, and observations do not show it: a policy has to find out
by acting (Algorithm Distillation, arXiv 2210.14215, section 4) or from a demonstration (Prompt-DT, arXiv 2206.13499).
Tasks are numbered. Some numbers are held out, so that a policy is measured on tasks that its data do not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, SessionGone, unknown_name_problem
from evolvent.trajectory import Array, JsonObject, sample_rng

__all__ = ["FAMILIES", "BanditEnv", "DarkRoomEnv", "TaskFamily", "get_family"]

_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1), (0, 0))
_EPISODE_OVER = "the episode is over"


class BanditEnv:
    """One pull of one of A arms; each pays 1 with its own probability. The observation is the number 1.

    Args:
        probabilities: `[A]`, of a reward.
    """

    def __init__(self, probabilities: NDArray[np.float64]) -> None:
        self.probabilities = probabilities
        self._rng: np.random.Generator | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], JsonObject]:
        """Starts an episode; its reward depends on the seed and the arm."""
        self._rng = sample_rng("pull", seed)
        return np.ones(1, np.float32), {}

    def step(self, action: int | Array) -> tuple[NDArray[np.float32], float, bool, bool, JsonObject]:
        """Returns (observation, reward, terminated, truncated, info); raises SessionGone after the pull."""
        if self._rng is None:
            raise SessionGone(_EPISODE_OVER, hint="call reset()")
        reward = float(self._rng.random() < self.probabilities[int(action)])
        self._rng = None
        return np.ones(1, np.float32), reward, True, False, {}

    def best_action(self, observation: NDArray[np.float32]) -> int:
        """Returns the arm that pays most often."""
        return int(self.probabilities.argmax())

    def close(self) -> None:
        """Returns at once: the environment holds no resources."""


class DarkRoomEnv:
    """A square room with a goal that cannot be seen; every step that ends at the goal pays 1.

    Actions are up, right, down, left and stay. An episode begins in the middle. The observation is the row and the
    column, each as `[side]` numbers of which one is 1.

    Args:
        side: cells of a row.
        goal: row and column.
        horizon: steps of an episode.
    """

    def __init__(self, side: int, goal: tuple[int, int], horizon: int) -> None:
        self.side, self.goal, self.horizon = side, goal, horizon
        self._cell, self._steps_left = (side // 2, side // 2), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], JsonObject]:
        """Starts an episode in the middle of the room; nothing is random."""
        self._cell, self._steps_left = (self.side // 2, self.side // 2), self.horizon
        return self._observe(), {}

    def step(self, action: int | Array) -> tuple[NDArray[np.float32], float, bool, bool, JsonObject]:
        """Returns (observation, reward, terminated, truncated, info); raises SessionGone after the last step."""
        if not self._steps_left:
            raise SessionGone(_EPISODE_OVER, hint="call reset()")
        row, column = (
            min(self.side - 1, max(0, coordinate + move))
            for coordinate, move in zip(self._cell, _MOVES[int(action)], strict=True)
        )
        self._cell, self._steps_left = (row, column), self._steps_left - 1
        return self._observe(), float(self._cell == self.goal), False, not self._steps_left, {}

    def best_action(self, observation: NDArray[np.float32]) -> int:
        """Returns a move towards the goal: first to its row, then to its column; at the goal, stay."""
        row, column = int(observation[: self.side].argmax()), int(observation[self.side :].argmax())
        if row != self.goal[0]:
            return 0 if row > self.goal[0] else 2
        if column != self.goal[1]:
            return 3 if column > self.goal[1] else 1
        return 4

    def close(self) -> None:
        """Returns at once: the environment holds no resources."""

    def _observe(self) -> NDArray[np.float32]:
        observation = np.zeros(2 * self.side, np.float32)
        observation[[self._cell[0], self.side + self._cell[1]]] = 1.0
        return observation


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """A family of numbered tasks.

    Attributes:
        name: of the family.
        observation: O, numbers of an observation.
        actions: number of discrete actions.
        horizon: steps of an episode.
        num_tasks: the tasks are 0..num_tasks - 1.
        build_env: makes the environment of a task.
    """

    name: str
    observation: int
    actions: int
    horizon: int
    num_tasks: int
    build_env: Callable[[int], BanditEnv | DarkRoomEnv]

    def split_tasks(self, *, held_out: int, seed: int) -> tuple[list[int], list[int]]:
        """Returns the numbers of the training tasks and of the held-out tasks, each ascending.

        Raises:
            ConfigError: no training task would be left.
        """
        if not 0 < held_out < self.num_tasks:
            raise ConfigError(
                "number of held-out tasks out of range", value=held_out, expected=f"1..{self.num_tasks - 1}"
            )
        order = sample_rng("held out", self.name, seed).permutation(self.num_tasks).tolist()
        return sorted(order[held_out:]), sorted(order[:held_out])


def _build_bandit(task: int) -> BanditEnv:
    return BanditEnv(sample_rng("bandit", task).random(5))


def _build_dark_room(side: int, horizon: int) -> Callable[[int], DarkRoomEnv]:
    middle = (side // 2) * side + side // 2

    def build(task: int) -> DarkRoomEnv:
        cell = task + (task >= middle)  # the middle, where episodes begin, is never the goal
        return DarkRoomEnv(side, (cell // side, cell % side), horizon)

    return build


FAMILIES: Mapping[str, TaskFamily] = MappingProxyType(
    {
        "bandit": TaskFamily("bandit", 1, 5, 1, 1000, _build_bandit),
        "darkroom": TaskFamily("darkroom", 14, 5, 12, 48, _build_dark_room(7, 12)),
        "darkroom9": TaskFamily("darkroom9", 18, 5, 20, 80, _build_dark_room(9, 20)),
    }
)
"""Bandits of five arms, dark rooms of 7 x 7 cells, and those of 9 x 9 cells and 20 steps that were published."""


def get_family(name: str) -> TaskFamily:
    """Returns a family by its name; raises ConfigError for an unknown one."""
    if name not in FAMILIES:
        raise ConfigError([unknown_name_problem("task family", name, FAMILIES)])
    return FAMILIES[name]

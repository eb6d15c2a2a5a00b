"""The common part of in-tree team worlds: numbered episodes, horizons, the next episode in the same row,
snapshots.

A world defines how episodes start, move and are observed, for many rows at once and without a loop over them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem, SessionGone
from evolvent.trajectory import Array, Task
from evolvent.worlds.teams.base import TeamSpec, TeamStep, TeamView, check_actions, check_view, episode_of

__all__ = ["ArrayTeam", "check_numbers"]

Rows = NDArray[np.int64]


def check_numbers(seeds: Sequence[int] | NDArray[np.int64], size: int) -> Rows:
    """Returns numbers of episodes as a new array, `[E]`.

    Raises:
        BatchMismatch: not one number per row. ConfigError: a number below 0.
    """
    numbers = np.array(seeds, dtype=np.int64)
    if numbers.shape != (size,):
        raise BatchMismatch("wrong shape of the episode numbers", value=numbers.shape, expected=(size,))
    if (numbers < 0).any():
        raise ConfigError("episode number out of range", value=int(numbers.min()), expected="0 or more")
    return numbers


class ArrayTeam(ABC):
    """E episodes of tasks in this process, as arrays with a leading axis `[E]`.

    A subclass has `state_names`: the names of its arrays that change within an episode. Arrays that follow from the
    task and the sample alone are recomputed by `_begin`, so a snapshot need not contain them.

    Args:
        tasks: the tasks by which episodes are numbered.
        size: E.
        spec: the spec of all tasks.
    Raises:
        ConfigError: no tasks, or a size below 1.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, tasks: Sequence[Task], size: int, *, spec: TeamSpec) -> None:
        problems = [Problem("tasks", "got none, expected 1 or more")] if not tasks else []
        problems += [Problem("size", f"got {size}, expected 1 or more")] if size < 1 else []
        if problems:
            raise ConfigError(problems)
        self.tasks, self.size, self.spec = tuple(tasks), size, spec
        self.number = np.zeros(size, dtype=np.int64)
        self.time = np.zeros(size, dtype=np.int64)
        self._view: TeamView | None = None

    @abstractmethod
    def _begin(self, rows: Rows, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        """Puts rows `[K]` at the start of episodes. All randomness of an episode is drawn here, from its task and its
        sample.
        """

    @abstractmethod
    def _move(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Steps all rows with checked actions, after `time` has been advanced.

        Returns:
            (reward `[E]`, terminated `[E]`, success `[E]`); success is read only if the episode ends with this step.
        """

    @abstractmethod
    def _observe(self, rows: Rows) -> TeamView:
        """Returns the present view of some rows."""

    def _horizons(self) -> Rows | int:
        """Returns the number of steps after which an episode is truncated, of all rows or of each, `[E]`."""
        return self.spec.horizon

    def reset(self, seeds: Sequence[int] | NDArray[np.int64]) -> TeamView:
        """Starts an episode in every row; see `TeamBatch.reset`."""
        self.number = check_numbers(seeds, self.size)
        rows = np.arange(self.size)
        self._start(rows)
        return self._check_and_store(self._observe(rows))

    def step(self, actions: Array) -> TeamStep:
        """Steps every team once; see `TeamBatch.step`. Raises SessionGone before `reset`."""
        if self._view is None:
            raise SessionGone("step was called before reset", expected="reset() first")
        checked = check_actions(actions, self.spec, self._view)
        self.time += 1
        reward, terminated, success = self._move(checked)
        truncated = ~terminated & (self.time >= self._horizons())
        is_over = terminated | truncated
        ended = np.flatnonzero(is_over)
        final = None
        if ended.size:
            final = self._observe(ended)
            self.number[ended] += self.size
            self._start(ended)
        view = self._check_and_store(self._observe(np.arange(self.size)))
        return TeamStep(
            view=view,
            reward=reward,
            terminated=terminated.copy(),
            truncated=truncated,
            ended=ended,
            final=final,
            success=success & is_over,
        )

    def snapshot(self) -> Mapping[str, Array]:
        """Returns `number`, `time` and the arrays of `state_names`, copied."""
        return {name: getattr(self, name).copy() for name in ("number", "time", *self.state_names)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> TeamView:
        """Restores a snapshot; raises BatchMismatch for a batch with another size, another team or another world."""
        names = ("number", "time", *self.state_names)
        if set(state) != set(names):
            raise BatchMismatch("the snapshot belongs to another world", value=sorted(state), expected=sorted(names))
        wrong_shapes = {name: state[name].shape for name in names if state[name].shape != getattr(self, name).shape}
        if wrong_shapes:
            expected = {name: getattr(self, name).shape for name in wrong_shapes}
            raise BatchMismatch("the snapshot belongs to another batch", value=wrong_shapes, expected=expected)
        self.number = state["number"].astype(np.int64)
        self._start(np.arange(self.size))
        for name in names:
            setattr(self, name, state[name].astype(getattr(self, name).dtype, order="C"))  # worlds write flat views
        return self._check_and_store(self._observe(np.arange(self.size)))

    def close(self) -> None:  # noqa: B027 - a batch in this process has nothing to give back
        """Returns at once: the batch holds no resources."""

    def _start(self, rows: Rows) -> None:
        self.time[rows] = 0
        pairs = [episode_of(int(number), self.tasks) for number in self.number[rows]]
        self._begin(rows, [task for task, _ in pairs], [sample for _, sample in pairs])

    def _check_and_store(self, view: TeamView) -> TeamView:
        check_view(view, self.spec)
        self._view = view
        return view

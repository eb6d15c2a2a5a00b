"""The schedule of tasks over iterations: the same for a seed, wherever a training was stopped."""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Start, Task, sample_rng

__all__ = ["TaskSchedule"]


class TaskSchedule:
    """Draws tasks in an order that is shuffled for every pass through them, some per iteration, each several times.

    Args:
        seed: of the orders.
        tasks_per_iteration: number of tasks.
        group_size: episodes of each task.
    """

    def __init__(self, seed: int, *, tasks_per_iteration: int, group_size: int) -> None:
        self._seed, self._count, self._samples = seed, tasks_per_iteration, group_size
        self._order: tuple[int, list[int]] = (-1, [])
        self._met: tuple[int, dict[str, int]] = (0, {})

    def starts_of(self, tasks: Sequence[Task], iteration: int) -> list[Start]:
        """Returns the starts of an iteration.

        Raises:
            ConfigError: there are no tasks.
        """
        if not tasks:
            raise ConfigError([Problem("tasks", "there are none to practise on", "give worlds with training tasks")])
        first = (iteration - 1) * self._count
        return self._repeat_tasks([self._task_at(tasks, first + offset) for offset in range(self._count)], {})

    def sample_more(self, tasks: Sequence[Task], iteration: int, *, turn: int, count: int) -> list[Start]:
        """Samples further starts for an iteration, from `count` tasks at random.

        Args:
            turn: 1, 2, ...: the number of this request in the iteration.
        """
        if turn == 1 or self._met[0] != iteration:
            sample_counts: dict[str, int] = {}
            self._met = (iteration, sample_counts)
            self._repeat_tasks(
                [start.task for start in self.starts_of(tasks, iteration)[:: self._samples]], sample_counts
            )
        rng = sample_rng(self._seed, "more tasks", iteration, turn)
        return self._repeat_tasks([tasks[int(index)] for index in rng.integers(len(tasks), size=count)], self._met[1])

    def _task_at(self, tasks: Sequence[Task], position: int) -> Task:
        epoch, index = divmod(position, len(tasks))
        if self._order[0] != epoch or len(self._order[1]) != len(tasks):
            self._order = (epoch, sample_rng(self._seed, "tasks", epoch).permutation(len(tasks)).tolist())
        return tasks[self._order[1][index]]

    def _repeat_tasks(self, tasks: Sequence[Task], sample_counts: dict[str, int]) -> list[Start]:
        """Returns `group_size` starts of each task; samples of a task that was used before have further numbers."""
        starts = []
        for task in tasks:
            first = sample_counts.get(task.id, 0)
            starts += [Start(task, first + sample) for sample in range(self._samples)]
            sample_counts[task.id] = first + self._samples
        return starts

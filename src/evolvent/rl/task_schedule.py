"""Which tasks are practised in which iteration, and how often each: the same for a seed, whatever was stopped."""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Start, Task, sample_rng

__all__ = ["Rota"]


class Rota:
    """Tasks in an order that is drawn anew for every pass through them, some an iteration, each several times.

    Args:
        seed: of the orders. tasks: of an iteration. samples: episodes of each.
    """

    def __init__(self, seed: int, *, tasks: int, samples: int) -> None:
        self._seed, self._count, self._samples = seed, tasks, samples
        self._order: tuple[int, list[int]] = (-1, [])
        self._met: tuple[int, dict[str, int]] = (0, {})

    def starts(self, tasks: Sequence[Task], iteration: int) -> list[Start]:
        """An iteration's episodes.

        Raises:
            ConfigError: no tasks.
        """
        if not tasks:
            raise ConfigError([Problem("tasks", "there are none to practise on", "give worlds with training tasks")])
        first = (iteration - 1) * self._count
        return self._several([self._at(tasks, first + place) for place in range(self._count)], {})

    def more(self, tasks: Sequence[Task], iteration: int, *, turn: int, count: int) -> list[Start]:
        """Further episodes of an iteration, of so many tasks at random.

        Args:
            turn: 1, 2, ...: which time it is asked for more in this iteration.
        """
        if turn == 1 or self._met[0] != iteration:
            met: dict[str, int] = {}
            self._met = (iteration, met)
            self._several([start.task for start in self.starts(tasks, iteration)[:: self._samples]], met)
        rng = sample_rng(self._seed, "more tasks", iteration, turn)
        return self._several([tasks[int(at)] for at in rng.integers(len(tasks), size=count)], self._met[1])

    def _at(self, tasks: Sequence[Task], place: int) -> Task:
        turn, at = divmod(place, len(tasks))
        if self._order[0] != turn or len(self._order[1]) != len(tasks):
            self._order = (turn, sample_rng(self._seed, "tasks", turn).permutation(len(tasks)).tolist())
        return tasks[self._order[1][at]]

    def _several(self, tasks: Sequence[Task], met: dict[str, int]) -> list[Start]:
        """Each task so many times; samples of a task that was met before have further numbers."""
        starts = []
        for task in tasks:
            first = met.get(task.id, 0)
            starts += [Start(task, first + sample) for sample in range(self._samples)]
            met[task.id] = first + self._samples
        return starts

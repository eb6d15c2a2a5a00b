"""What is practised on must not be what is measured."""

from __future__ import annotations

from collections.abc import Iterable

from evolvent.errors import ConfigError, Problem
from evolvent.rollout.evaluate import Evaluation
from evolvent.trajectory import Task

__all__ = ["check_held_out", "measured_tasks"]


def measured_tasks(rows: Iterable[Evaluation]) -> list[str]:
    """The ids of the tasks that a measurement played."""
    return [task for row in rows for task, _, _ in row.outcomes]


def check_held_out(tasks: Iterable[Task], measured: Iterable[str]) -> None:
    """Refuse to learn from tasks that the result is measured on.

    Args:
        measured: ids of tasks.
    Raises:
        ConfigError: tasks that are both.
    """
    held = set(measured)
    both = list(dict.fromkeys(task.id for task in tasks if task.id in held))
    if both:
        what = f"{len(both)} of them are measured on too, {both[0]} for one"
        raise ConfigError([Problem("tasks", what, "learn from the train split, measure on another")])

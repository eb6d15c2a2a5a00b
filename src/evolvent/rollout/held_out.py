"""Checks that training tasks and evaluation tasks are disjoint."""

from __future__ import annotations

from collections.abc import Iterable

from evolvent.errors import ConfigError, Problem
from evolvent.rollout.evaluate import Evaluation
from evolvent.trajectory import Task

__all__ = ["check_held_out", "evaluated_tasks"]


def evaluated_tasks(rows: Iterable[Evaluation]) -> list[str]:
    """Returns the ids of the tasks that an evaluation played."""
    return [task for row in rows for task, _, _ in row.outcomes]


def check_held_out(tasks: Iterable[Task], evaluated: Iterable[str]) -> None:
    """Raises ConfigError for training tasks that the result is evaluated on.

    Args:
        evaluated: ids of tasks.
    Raises:
        ConfigError: tasks that are both.
    """
    evaluated_ids = set(evaluated)
    shared = list(dict.fromkeys(task.id for task in tasks if task.id in evaluated_ids))
    if shared:
        problem = f"{len(shared)} training tasks are also evaluation tasks, for example {shared[0]}"
        raise ConfigError([Problem("tasks", problem, "train on the train split, and evaluate on another")])

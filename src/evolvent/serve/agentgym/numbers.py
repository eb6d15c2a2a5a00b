"""AgentGym's own numbers of tasks, for the worlds that hold the same tasks: BabyAI's levels, the double-T maze,
BIRD.

Every other world's tasks are numbered by the task index: train, then dev, then test.
"""

from __future__ import annotations

from collections.abc import Callable

from evolvent.trajectory import Task
from evolvent.worlds.base import World
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.sql.world import SqlWorld

__all__ = ["task_by_number"]


def task_by_number(world: World) -> Callable[[int], Task] | None:
    """Returns a function from AgentGym's number to the task (it raises ConfigError); None if the world has no such
    numbers.
    """
    if isinstance(world, GridWorld) and world.name == "babyai":
        return world.task_at_index
    if isinstance(world, SqlWorld) and world.name == "bird":
        return world.task_at_index
    return world.task_from if isinstance(world, Maze) and world.published else None

"""AgentGym's own numbers of tasks, for the worlds that hold the same tasks: BabyAI's levels, the double-T maze, BIRD.

Every other world's tasks are numbered by the catalogue: train, then dev, then test.
"""

from __future__ import annotations

from collections.abc import Callable

from evolvent.trajectory import Task
from evolvent.worlds.base import World
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.sql.world import SqlWorld

__all__ = ["numbered"]


def numbered(world: World) -> Callable[[int], Task] | None:
    """From AgentGym's number to the task (ConfigError where there is none); None: the world has no such numbers."""
    if isinstance(world, GridWorld) and world.name == "babyai":
        return world.indexed
    if isinstance(world, SqlWorld) and world.name == "bird":
        return world.indexed
    return world.task_from if isinstance(world, Maze) and world.published else None

"""Balances worlds: a generalist learns from every world equally often, however many trajectories each world has."""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.trajectory import Trajectory

__all__ = ["balance_worlds"]


def balance_worlds(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Repeats the trajectories of smaller worlds in turn until every world has as many as the largest.

    Nothing is dropped; the order within a world is kept; no randomness is needed.
    """
    worlds: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        worlds.setdefault(trajectory.task.world, []).append(trajectory)
    max_count = max(map(len, worlds.values()), default=0)
    return [
        world_trajectories[index % len(world_trajectories)]
        for world_trajectories in worlds.values()
        for index in range(max_count)
    ]

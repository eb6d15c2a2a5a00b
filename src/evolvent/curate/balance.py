"""Balance over worlds: a generalist learns from every world as often, however many trajectories each one gave."""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.trajectory import Trajectory

__all__ = ["balanced"]


def balanced(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories, those of smaller worlds repeated in turn until every world has as many as the largest.

    Nothing is dropped; the order within a world is kept; no randomness is needed.
    """
    worlds: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        worlds.setdefault(trajectory.task.world, []).append(trajectory)
    most = max(map(len, worlds.values()), default=0)
    return [own[index % len(own)] for own in worlds.values() for index in range(most)]

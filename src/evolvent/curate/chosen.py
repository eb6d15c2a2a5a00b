"""What is chosen among the samples of a task: each text once, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite

from evolvent.trajectory import Trajectory

__all__ = ["best_of_each", "distinct"]


def distinct(trajectories: Iterable[Trajectory], most: int | None = None) -> list[Trajectory]:
    """Of samples of one task that wrote the same tokens, the first; of each task at most `most`, the first ones.

    A record without tokens, such as a demonstration, is told by its actions. Episodes that ended by an error are left
    out.
    """
    kept: dict[str, dict[object, Trajectory]] = {}
    for one in trajectories:
        own = kept.setdefault(one.task.id, {})
        written: tuple[object, ...] = tuple(tuple(g.ids[g.sampled].tolist()) for g in one.generations)
        key = written or tuple(str(action) for action in one.actions)
        if one.error is None and (most is None or len(own) < most):
            own.setdefault(key, one)
    return [one for own in kept.values() for one in own.values()]


def best_of_each(
    trajectories: Iterable[Trajectory], worth: Callable[[Trajectory], float | None], *, most: int | None = None
) -> list[Trajectory]:
    """Of each task at most `most` distinct episodes of highest worth (equals: the first), by task as first met.

    Args:
        worth: None, or a number that is not finite: never chosen.
    """
    tasks: dict[str, list[tuple[float, Trajectory]]] = {}
    for one in distinct(trajectories):
        value = worth(one)
        if value is not None and isfinite(value):
            tasks.setdefault(one.task.id, []).append((-value, one))
    ranked = [sorted(own, key=lambda pair: pair[0]) for own in tasks.values()]
    return [one for own in ranked for _, one in own[:most]]

"""Filters for several samples of one task: distinct texts, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite

from evolvent.trajectory import Trajectory

__all__ = ["select_best_per_task", "select_distinct"]


def select_distinct(trajectories: Iterable[Trajectory], max_per_task: int | None = None) -> list[Trajectory]:
    """Selects the first of the samples of a task that wrote the same tokens, and at most `most` samples of each
    task.

    A record without tokens, such as a demonstration, is identified by its actions. Episodes that ended with an error
    are left out.
    """
    samples_by_task: dict[str, dict[object, Trajectory]] = {}
    for trajectory in trajectories:
        task_samples = samples_by_task.setdefault(trajectory.task.id, {})
        sampled_ids: tuple[object, ...] = tuple(tuple(g.ids[g.sampled].tolist()) for g in trajectory.generations)
        key = sampled_ids or tuple(str(action) for action in trajectory.actions)
        if trajectory.error is None and (max_per_task is None or len(task_samples) < max_per_task):
            task_samples.setdefault(key, trajectory)
    return [trajectory for task_samples in samples_by_task.values() for trajectory in task_samples.values()]


def select_best_per_task(
    trajectories: Iterable[Trajectory], score: Callable[[Trajectory], float | None], *, max_per_task: int | None = None
) -> list[Trajectory]:
    """Selects for each task at most `max_per_task` distinct episodes with the highest score, in order of first
    appearance.

    Args:
        score: None, or a number that is not finite: never chosen.
    """
    tasks: dict[str, list[tuple[float, Trajectory]]] = {}
    for trajectory in select_distinct(trajectories):
        score_value = score(trajectory)
        if score_value is not None and isfinite(score_value):
            tasks.setdefault(trajectory.task.id, []).append((-score_value, trajectory))
    ranked = [sorted(scored_samples, key=lambda pair: pair[0]) for scored_samples in tasks.values()]
    return [trajectory for scored_samples in ranked for _, trajectory in scored_samples[:max_per_task]]

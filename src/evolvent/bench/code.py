"""Programs graded by their return values: pass@k over a set of problems (Chen et al. 2021, 2107.03374)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem
from evolvent.grade.passk import pass_at_k
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import Task, Trajectory, sample_rng

__all__ = ["ProblemTally", "check_ks", "count_samples", "mean_pass_at"]


@dataclass(frozen=True, slots=True)
class ProblemTally:
    """Counts of the samples of one problem: those that could be graded, and those that passed."""

    task: Task
    samples: int
    passed: int


def check_ks(ks: Sequence[int], samples: int) -> tuple[Problem, ...]:
    """Lists the problems of these k: none, below 1, or more than there are samples."""
    invalid = [k for k in ks if not 1 <= k <= samples]
    if ks and not invalid:
        return ()
    problem = f"got {list(ks)} with {samples} samples of a problem, expected 1 <= k <= samples"
    return (Problem("k", problem, "give more samples or smaller k"),)


def count_samples(tasks: Sequence[Task], trajectories: Iterable[Trajectory]) -> tuple[ProblemTally, ...]:
    """Counts the samples of each task, in order; samples that could not be graded are left out."""
    counts = {task.id: [0, 0] for task in tasks}
    for trajectory in trajectories:
        if trajectory.task.id in counts and trajectory.success is not None:
            counts[trajectory.task.id][0] += 1
            counts[trajectory.task.id][1] += bool(trajectory.success)
    return tuple(ProblemTally(task, *counts[task.id]) for task in tasks)


def mean_pass_at(problem_tallies: Sequence[ProblemTally], k: int) -> Interval:
    """Computes the mean unbiased pass@k over problems with at least k samples, with a bootstrap interval over
    problems.

    Raises:
        ConfigError: no problem has k samples.
    """
    estimates = [pass_at_k(tally.samples, tally.passed, k) for tally in problem_tallies if tally.samples >= k]
    if not estimates:
        raise ConfigError(f"cannot compute pass@{k}", value="no problem with k judged samples", expected="at least one")
    return paired_interval(estimates, [0.0] * len(estimates), rng=sample_rng("pass at", k)).clip(0.0, 1.0)

"""Programs judged by what they return: pass@k over a set of problems (Chen et al. 2021, 2107.03374)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem
from evolvent.grade.passk import pass_at_k
from evolvent.stats import Interval, paired
from evolvent.trajectory import Task, Trajectory, sample_rng

__all__ = ["Tally", "check_ks", "pass_at", "tallies"]


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the samples of one problem: how many could be judged, how many of them passed."""

    task: Task
    samples: int
    passed: int


def check_ks(ks: Sequence[int], samples: int) -> tuple[Problem, ...]:
    """What is wrong with these k: none, below 1, or more than there are samples."""
    wrong = [k for k in ks if not 1 <= k <= samples]
    if ks and not wrong:
        return ()
    said = f"got {list(ks)} with {samples} samples of a problem, expected 1 <= k <= samples"
    return (Problem("k", said, "give more samples or smaller k"),)


def tallies(tasks: Sequence[Task], played: Iterable[Trajectory]) -> tuple[Tally, ...]:
    """One tally a task, in order; samples that nobody could judge are left out."""
    found = {task.id: [0, 0] for task in tasks}
    for one in played:
        if one.task.id in found and one.success is not None:
            found[one.task.id][0] += 1
            found[one.task.id][1] += bool(one.success)
    return tuple(Tally(task, *found[task.id]) for task in tasks)


def pass_at(counted: Sequence[Tally], k: int) -> Interval:
    """The mean of the unbiased pass@k over problems with at least k samples, with a bootstrap interval over problems.

    Raises:
        ConfigError: no problem has k samples.
    """
    each = [pass_at_k(one.samples, one.passed, k) for one in counted if one.samples >= k]
    if not each:
        raise ConfigError(f"no pass@{k}", value="no problem with so many judged samples", expected="at least one")
    return paired(each, [0.0] * len(each), rng=sample_rng("pass at", k)).within(0.0, 1.0)

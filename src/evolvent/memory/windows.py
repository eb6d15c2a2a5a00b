"""Windows of demonstrations and histories for a prompt, with relative marks and alignment (pure functions).

Source: TRAD (arXiv 2403.06221), section 3.3: temporal expansion, relative order marks, history alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evolvent.errors import ConfigError
from evolvent.memory.records import Demonstration, StepRecord

__all__ = ["AlignedHistory", "Window", "align_history", "cut_window", "relative_marks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive steps of a demonstration.

    Args:
        trajectory_id: Id of the demonstration.
        center: Step around which they lie, in the demonstration.
        prefix: (task, first observation) of a window that starts late; None: its first step is the demonstration's.
        task: Instruction of the demonstration.
        steps: `[n]`, in order.
        marks: `[n]`. Positions relative to `center`; 0 exactly once.
        next_observation: Observation after the last step.
    """

    trajectory_id: str
    center: int
    prefix: tuple[str, str] | None
    task: str
    steps: tuple[StepRecord, ...]
    marks: tuple[int, ...]
    next_observation: str


@dataclass(frozen=True, slots=True)
class AlignedHistory(Generic[T]):
    """The agent's last steps, and their prefix (task, first observation), None where nothing is cut."""

    prefix: tuple[str, str] | None
    steps: tuple[T, ...]


def relative_marks(center: int, first: int, last: int) -> tuple[int, ...]:
    """Returns the positions of the steps `first` to `last` (inclusive) relative to step `center`: `(-1, 0, 1)`."""
    return tuple(range(first - center, last - center + 1))


def cut_window(demonstration: Demonstration, center: int, *, before: int | None = 1, after: int | None = 2) -> Window:
    """Returns steps `at - before` to `at + after` of a demonstration, as many as there are (temporal expansion).

    Args:
        before, after: how many steps around it; None: all.
    Raises:
        ConfigError: no such step, or a negative number of steps.
    """
    length = len(demonstration.steps)
    if not 0 <= center < length or (before or 0) < 0 or (after or 0) < 0:
        raise ConfigError(
            f"window out of range in trajectory {demonstration.trajectory_id!r}",
            value=f"step {center}, {before} before, {after} after",
            expected=f"a step from 0 to {length - 1}, with 0 or more steps before and after",
        )
    first = 0 if before is None else max(0, center - before)
    last = length - 1 if after is None else min(length - 1, center + after)
    next_observation = (
        demonstration.steps[last + 1].observation if last + 1 < length else demonstration.final_observation
    )
    return Window(
        trajectory_id=demonstration.trajectory_id,
        center=center,
        task=demonstration.task,
        next_observation=next_observation,
        prefix=(demonstration.task, demonstration.steps[0].observation) if first > 0 else None,
        steps=demonstration.steps[first : last + 1],
        marks=relative_marks(center, first, last),
    )


def align_history(history: Sequence[T], n: int, meta: tuple[str, str]) -> AlignedHistory[T]:
    """Returns the last `n` steps of a history in the form of windows: `min(n, len(history))` of them.

    Args:
        history: the agent's own steps, oldest first. n: steps before the current observation (B + F).
        meta: (task, first observation), which stand before them where earlier steps are left out.
    Raises:
        ConfigError: a negative number of steps.
    """
    if n < 0:
        raise ConfigError("number of steps out of range", value=n, expected="0 or more")
    last_steps = tuple(history[len(history) - min(n, len(history)) :])
    return AlignedHistory(meta if len(last_steps) < len(history) else None, last_steps)

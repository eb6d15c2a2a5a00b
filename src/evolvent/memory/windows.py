"""Cutting demonstrations and histories for a prompt: windows, relative marks, alignment (pure).

Source: TRAD (arXiv 2403.06221), section 3.3: temporal expansion, relative order marks, history alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evolvent.errors import ConfigError
from evolvent.memory.records import Demonstration, StepRecord

__all__ = ["Aligned", "Window", "align", "relative_marks", "window"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some steps of a demonstration in a row.

    Args:
        trajectory_id: where they are from. at: the step around which they lie, in the demonstration.
        prefix: (task, first observation) of a window that begins late; None: its first step is the demonstration's.
        task: the demonstration's instruction.
        steps: `[n]` in order. marks: `[n]` their places relative to `at`; 0 exactly once.
        following: the observation that follows the last of them.
    """

    trajectory_id: str
    at: int
    prefix: tuple[str, str] | None
    task: str
    steps: tuple[StepRecord, ...]
    marks: tuple[int, ...]
    following: str


@dataclass(frozen=True, slots=True)
class Aligned(Generic[T]):
    """The agent's own last steps, and what stands before them: (task, first observation), None where nothing is cut."""

    prefix: tuple[str, str] | None
    steps: tuple[T, ...]


def relative_marks(at: int, first: int, last: int) -> tuple[int, ...]:
    """The places of the steps `first` to `last` (inclusive) relative to step `at`: `(-1, 0, 1)`."""
    return tuple(range(first - at, last - at + 1))


def window(found: Demonstration, at: int, *, before: int | None = 1, after: int | None = 2) -> Window:
    """Steps `at - before` to `at + after` of a demonstration, as many as there are (temporal expansion).

    Args:
        before, after: how many steps around it; None: all.
    Raises:
        ConfigError: no such step, or a negative number of steps.
    """
    length = len(found.steps)
    if not 0 <= at < length or (before or 0) < 0 or (after or 0) < 0:
        raise ConfigError(
            f"no window in {found.trajectory_id!r}",
            value=f"step {at}, {before} before, {after} after",
            expected=f"a step of 0 to {length - 1}, and 0 or more around it",
        )
    first = 0 if before is None else max(0, at - before)
    last = length - 1 if after is None else min(length - 1, at + after)
    following = found.steps[last + 1].observation if last + 1 < length else found.final_observation
    return Window(
        trajectory_id=found.trajectory_id,
        at=at,
        task=found.task,
        following=following,
        prefix=(found.task, found.steps[0].observation) if first > 0 else None,
        steps=found.steps[first : last + 1],
        marks=relative_marks(at, first, last),
    )


def align(history: Sequence[T], n: int, meta: tuple[str, str]) -> Aligned[T]:
    """The last `n` steps of a history, so that it looks as the windows do: `min(n, len(history))` of them.

    Args:
        history: the agent's own steps, oldest first. n: steps before the current observation (B + F).
        meta: (task, first observation), which stand before them where earlier steps are left out.
    Raises:
        ConfigError: a negative number of steps.
    """
    if n < 0:
        raise ConfigError("no alignment to so many steps", value=n, expected="0 or more")
    kept = tuple(history[len(history) - min(n, len(history)) :])
    return Aligned(meta if len(kept) < len(history) else None, kept)

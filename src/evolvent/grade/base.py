"""What a grader says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Grade", "Grader"]


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict: whether the answer is right (None: nothing can be said), what was read as the answer, and why."""

    correct: bool | None
    extracted: str | None = None
    why: str = ""


Grader = Callable[[str, str], Grade]

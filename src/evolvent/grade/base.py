"""What a grader says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Grade", "Grader", "shown"]


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict: whether the answer is right (None: nothing can be said), what was read as the answer, and why."""

    correct: bool | None
    extracted: str | None = None
    why: str = ""


Grader = Callable[[str, str], Grade]
_LONGEST = 200


def shown(value: object, written: Callable[[object], str] = repr) -> str:
    """A value for a message, cut short. Python does not write out whole numbers of thousands of digits."""
    try:
        return written(value)[:_LONGEST]
    except ValueError:
        return f"a {type(value).__name__} with too many digits to be shown"

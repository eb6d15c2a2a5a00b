"""The result of a grader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Grade", "Grader", "shorten"]


@dataclass(frozen=True, slots=True)
class Grade:
    """A grade: whether the answer is correct (None: undecided), the extracted answer, and the reason."""

    correct: bool | None
    extracted: str | None = None
    why: str = ""


Grader = Callable[[str, str], Grade]
_MAX_CHARS = 200


def shorten(value: object, to_text: Callable[[object], str] = repr) -> str:
    """Formats a value for a message, truncated. Python does not print integers of thousands of digits."""
    try:
        return to_text(value)[:_MAX_CHARS]
    except ValueError:
        return f"a {type(value).__name__} with too many digits to be shown"

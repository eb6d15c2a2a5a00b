"""Grading of responses that are programs: straight-line ones here and now, all others in a box.

The box answers with the value of `solution()`; the comparison is made outside of it. Isolation that is missing raises
`IsolationUnavailable`: such an episode is not scored.
"""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.util import find_spec
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING

from evolvent.grade.base import Grade
from evolvent.grade.programs import ENTRY, assemble, near, run_straight
from evolvent.sandbox.limits import CodeRunner, Limits, Request

if TYPE_CHECKING:
    from evolvent.sandbox.pool import Boxes

__all__ = ["LIMITS", "PACKAGES", "Programs"]

PACKAGES: tuple[str, ...] = ("sympy",)
"""What a program may import beside the standard library, where it is installed here."""

LIMITS = Limits(cpu_s=2, wall_s=2.0, memory_mb=1024)
"""R3 gives a program two seconds."""
_ANSWER = "answer_of_solution"
_WRAPPED = f"""
def {_ANSWER}():
    value = {ENTRY}()
    plain = type(value) in (int, float, bool, str) or not hasattr(type(value), "__float__")
    return value if plain else float(value)
"""  # numbers of sympy, fractions and decimals leave the box as floats


class Programs:
    """Runs programs and compares what they return.

    Args:
        runner: what runs those that are not straight-line; None: boxes of our own, made when first needed.
        limits: of each box.
        straight: work straight-line programs out without a box; False runs every one in a box.
    """

    def __init__(self, runner: CodeRunner | None = None, *, straight: bool = True, limits: Limits = LIMITS) -> None:
        self._given, self._straight, self._limits = runner, straight, limits
        self._own: dict[tuple[str, ...], Boxes] = {}
        self._making = Lock()  # worlds that may block are stepped on several threads

    def _boxes(self, packages: tuple[str, ...]) -> Boxes:
        from evolvent.sandbox.pool import Boxes

        with self._making:
            if packages not in self._own:
                self._own[packages] = Boxes(packages=packages)
            return self._own[packages]

    def close(self) -> None:
        """Give back the boxes that were made here; calling it twice is harmless."""
        for boxes in self._own.values():
            boxes.close()
        self._own.clear()

    def grade(self, said: str, gold: Fraction) -> Grade:
        """Whether the program in a response returns the gold number, to 0.01; `extracted` None where it returns none.

        Raises:
            IsolationUnavailable: a program that needs a box, on a host without isolation.
        """
        source = assemble(said)
        ran = run_straight(source) if self._straight else None
        value, error = (ran.value, ran.error) if ran else self._boxed(source)
        if type(value) not in (int, float) or (isinstance(value, float) and not isfinite(value)):
            why = error or f"it returns no finite number but a {type(value).__name__}"
            return Grade(correct=False, extracted=None, why=why)
        right = near(value, gold)
        return Grade(correct=right, extracted=_shown(value), why="" if right else "another number")

    def _boxed(self, source: str) -> tuple[object, str]:
        packages = tuple(name for name in PACKAGES if re.search(rf"\b{name}\b", source) and find_spec(name))
        (outcome,) = (self._given or self._boxes(packages)).observe(source + _WRAPPED, [Request(_ANSWER)], self._limits)
        return (outcome.value, "") if outcome.ok else (None, f"{outcome.status}: {outcome.error}")


def _shown(value: object) -> str:
    """A number in at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 190:
        return f"a whole number of {value.bit_length()} bits"
    return str(value)

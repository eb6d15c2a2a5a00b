"""Scores responses that are programs: straight-line programs in this process, all others in a sandbox.

The sandbox returns the value of `solution()`; the comparison is made outside. Missing isolation raises
`IsolationUnavailable`: the episode is not scored.
"""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.util import find_spec
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING

from evolvent.grade.base import Grade
from evolvent.grade.programs import ENTRY, assemble_solution, evaluate_straight, is_near
from evolvent.sandbox.limits import CallRequest, CodeRunner, SandboxLimits

if TYPE_CHECKING:
    from evolvent.sandbox.pool import SandboxPool

__all__ = ["LIMITS", "PACKAGES", "Programs"]

PACKAGES: tuple[str, ...] = ("sympy",)
"""What a program may import beside the standard library, where it is installed here."""

LIMITS = SandboxLimits(cpu_s=2, wall_s=2.0, memory_mb=1024)
"""R3 gives a program two seconds."""
_ANSWER = "answer_of_solution"
_WRAPPER = f"""
def {_ANSWER}():
    value = {ENTRY}()
    plain = type(value) in (int, float, bool, str) or not hasattr(type(value), "__float__")
    return value if plain else float(value)
"""  # numbers of sympy, fractions and decimals leave the box as floats


class Programs:
    """Runs programs and compares their results.

    Args:
        runner: runs programs that are not straight-line; None: sandboxes created when first needed.
        limits: limits of each sandbox.
        straight: whether straight-line programs are evaluated without a sandbox; False runs every program in a
            sandbox.
    """

    def __init__(
        self, runner: CodeRunner | None = None, *, straight: bool = True, limits: SandboxLimits = LIMITS
    ) -> None:
        self._given, self._straight, self._limits = runner, straight, limits
        self._own: dict[tuple[str, ...], SandboxPool] = {}
        self._making = Lock()  # worlds that may block are stepped on several threads

    def _get_sandboxes(self, packages: tuple[str, ...]) -> SandboxPool:
        from evolvent.sandbox.pool import SandboxPool

        with self._making:
            if packages not in self._own:
                self._own[packages] = SandboxPool(packages=packages)
            return self._own[packages]

    def close(self) -> None:
        """Releases the sandboxes created here; a second call is harmless."""
        for boxes in self._own.values():
            boxes.close()
        self._own.clear()

    def grade(self, response: str, gold: Fraction) -> Grade:
        """Returns the grade of the program in a response: its result must be the gold number, to 0.01.

        `extracted` is None without a result.

        Raises:
            IsolationUnavailable: the program needs a sandbox, on a host without isolation.
        """
        source = assemble_solution(response)
        program_result = evaluate_straight(source) if self._straight else None
        value, error = (program_result.value, program_result.error) if program_result else self._run_in_sandbox(source)
        if type(value) not in (int, float) or (isinstance(value, float) and not isfinite(value)):
            reason = error or f"it returns no finite number but a {type(value).__name__}"
            return Grade(correct=False, extracted=None, why=reason)
        is_correct = is_near(value, gold)
        return Grade(correct=is_correct, extracted=_format_number(value), why="" if is_correct else "another number")

    def _run_in_sandbox(self, source: str) -> tuple[object, str]:
        packages = tuple(name for name in PACKAGES if re.search(rf"\b{name}\b", source) and find_spec(name))
        (outcome,) = (self._given or self._get_sandboxes(packages)).observe(
            source + _WRAPPER, [CallRequest(_ANSWER)], self._limits
        )
        return (outcome.value, "") if outcome.ok else (None, f"{outcome.status}: {outcome.error}")


def _format_number(value: object) -> str:
    """Formats a number in at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 190:
        return f"a whole number of {value.bit_length()} bits"
    return str(value)

"""Deadlines: one budget of time for a whole piece of work, with all its tries, and the pauses between tries.

A timeout of each try adds up over retries; a deadline does not. The clock and the random generator are arguments, so
that time can be played in tests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random

from evolvent.errors import ConfigError, StepTimeout

__all__ = ["Deadline", "backoff"]


class Deadline:
    """A moment by which a piece of work has to be done, `total_s` seconds from now on.

    Args:
        total_s: seconds, 0 or more; infinity: never.
        clock: a clock in seconds that never goes back.

    Raises:
        ConfigError: a negative number of seconds, or NaN.
    """

    __slots__ = ("_clock", "_end", "total_s")

    def __init__(self, total_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if math.isnan(total_s) or total_s < 0:
            raise ConfigError("a deadline in the past", value=total_s, expected="0 or more seconds")
        self.total_s, self._clock, self._end = total_s, clock, clock() + total_s

    def __repr__(self) -> str:
        return f"Deadline({self.total_s:g} s, {self.left():.3g} s left)"

    def left(self) -> float:
        """Seconds that are left, never below 0."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether the moment has come."""
        return self.left() <= 0

    def check(self, what: str) -> None:
        """Raise StepTimeout, which names `what` and the seconds it was given, if the moment has come."""
        if self.expired:
            raise StepTimeout(f"{what}: no end before the deadline", value=f"{self.total_s:g} s")

    def within(self, total_s: float) -> Deadline:
        """A deadline of a part of the work: `total_s` seconds from now, but never later than this one."""
        return Deadline(min(total_s, self.left()), clock=self._clock)


def backoff(attempt: int, rng: Random, *, base_s: float = 0.05, cap_s: float = 5.0) -> float:
    """How long to pause after a failed try: seconds, drawn from the upper half of a span that doubles with every try.

    The span is min(cap_s, base_s * 2^attempt). Half of it is certain, so that no try follows at once; half is drawn, so
    that many clients that failed together do not come back together.

    Args:
        attempt: how many tries failed before this one, from 0.
        rng: where the draw comes from.

    Raises:
        ConfigError: a negative attempt, or spans that are not positive.
    """
    if attempt < 0 or not base_s > 0 or not cap_s > 0:
        raise ConfigError("no pause can be drawn", value=(attempt, base_s, cap_s), expected="attempt >= 0, spans > 0")
    span = min(cap_s, base_s * 2.0 ** min(attempt, 60))
    return span * (1 + rng.random()) / 2

"""Deadlines: one time budget for a whole task with all its attempts, and the pauses between attempts.

A timeout of each attempt adds up over retries; a deadline does not. The clock and the random generator are
arguments, so that tests can control time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random

from evolvent.errors import ConfigError, StepTimeout

__all__ = ["Deadline", "backoff"]


class Deadline:
    """The time by which a task has to be done, `total_s` seconds from now on.

    Args:
        total_s: seconds, 0 or more; infinity: never.
        clock: a clock in seconds that never goes back.

    Raises:
        ConfigError: a negative number of seconds, or NaN.
    """

    __slots__ = ("_clock", "_end", "total_s")

    def __init__(self, total_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if math.isnan(total_s) or total_s < 0:
            raise ConfigError("deadline out of range", value=total_s, expected="0 or more seconds")
        self.total_s, self._clock, self._end = total_s, clock, clock() + total_s

    def __repr__(self) -> str:
        return f"Deadline({self.total_s:g} s, {self.left():.3g} s left)"

    def left(self) -> float:
        """Returns the seconds that are left, never below 0."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Returns whether the deadline has passed."""
        return self.left() <= 0

    def check(self, activity: str) -> None:
        """Raises StepTimeout, naming the activity and its time budget, if the deadline has passed."""
        if self.expired:
            raise StepTimeout(f"{activity}: no end before the deadline", value=f"{self.total_s:g} s")

    def within(self, total_s: float) -> Deadline:
        """Returns a deadline for a part of the work: `total_s` seconds from now, but never later than this deadline."""
        return Deadline(min(total_s, self.left()), clock=self._clock)


def backoff(attempt: int, rng: Random, *, base_s: float = 0.05, cap_s: float = 5.0) -> float:
    """Returns the seconds to pause after a failed attempt, drawn from the upper half of a span that doubles each
    time.

    The span is min(cap_s, base_s * 2^attempt). Half of it is certain, so that no try follows at once; half is drawn, so
    that many clients that failed together do not come back together.

    Args:
        attempt: how many tries failed before this one, from 0.
        rng: where the draw comes from.

    Raises:
        ConfigError: a negative attempt, or spans that are not positive.
    """
    if attempt < 0 or not base_s > 0 or not cap_s > 0:
        raise ConfigError(
            "invalid backoff settings", value=(attempt, base_s, cap_s), expected="attempt >= 0 and times > 0"
        )
    span = min(cap_s, base_s * 2.0 ** min(attempt, 60))
    return span * (1 + rng.random()) / 2

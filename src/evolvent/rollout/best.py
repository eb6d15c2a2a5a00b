"""Which round a run ends with: the last, or the best on the dev panels. The test panels are no place to choose on."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from evolvent.run import Run

__all__ = ["Best"]

P = TypeVar("P")


class Best(Generic[P]):
    """The policy to end with: the last one measured, or the best on the dev panels (of equals the earliest)."""

    def __init__(self, run: Run[P], select: Literal["last", "best"]) -> None:
        self._run, self._select, self.rate = run, select, -1.0
        self.policy: P | None = None

    def measure(self, policy: P, iteration: int) -> None:
        """Measure the policy of a round: on dev where the best is looked for, else on the run's panels.

        A round with dev episodes that could not be scored is no candidate for the best.
        """
        rows = self._run.evaluate(policy, iteration, split="dev" if self._select == "best" else None)
        means = [row.mean for row in rows if row.mean is not None]
        rate = sum(means) / len(means) if len(means) == len(rows) > 0 else -1.0
        if self._select == "last" or rate > self.rate:
            self.policy, self.rate = policy, rate

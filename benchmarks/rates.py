"""Learning rates of a study's arms: tried on a development seed, and chosen strictly inside their grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.study import play_once, read_cells
from evolvent.errors import ConfigError

__all__ = ["RateGrid"]


@dataclass(frozen=True)
class RateGrid:
    """The learning rates that every arm tries.

    Args:
        arms: names of the arms that learn.
        rates: in any order; the best of an arm must not be at an end.
        digest: of everything that a trial depends on: cells of another digest are not read.
    """

    arms: tuple[str, ...]
    rates: tuple[float, ...]
    digest: str

    def tune(self, folder: Path, try_rate: Callable[[str, float], float]) -> Iterator[str]:
        """Tries every rate of every arm that has no cell yet; yields a line for each.

        Args:
            try_rate: trains an arm with a rate and returns its success on dev, as a share.
        """
        for arm in self.arms:
            for rate in self.rates:
                key = f"tuning-{arm}-{rate:g}"
                row = play_once(folder, key, self.digest, partial(self._try, arm, rate, try_rate))
                if row is not None:
                    yield f"{key} {row['success']:.3f}"

    def _try(self, arm: str, rate: float, try_rate: Callable[[str, float], float]) -> dict[str, Any]:
        return {"digest": self.digest, "arm": arm, "rate": rate, "success": try_rate(arm, rate)}

    def tried(self, folder: Path, arm: str) -> dict[float, float]:
        """Returns the success on dev of every rate of an arm that was tried."""
        rows = read_cells(folder, self.digest)
        return {row["rate"]: row["success"] for row in rows if row.get("arm") == arm and "success" in row}

    def choose(self, folder: Path) -> dict[str, float]:
        """Returns the best rate of every arm on dev: of equals the lowest that is no end of the grid.

        Raises:
            ConfigError: a rate was not tried, or the best one is at an end of the grid.
        """
        return {arm: self._choose_rate(folder, arm) for arm in self.arms}

    def _choose_rate(self, folder: Path, arm: str) -> float:
        success = self.tried(folder, arm)
        if set(success) != set(self.rates):
            raise ConfigError(
                f"{len(success)} of {len(self.rates)} rates of {arm!r} were tried", hint="run it with --tune first"
            )
        best = max(success.values())
        ends = (min(self.rates), max(self.rates))
        equals = [rate for rate in self.rates if success[rate] == best]
        chosen = min([rate for rate in equals if rate not in ends] or equals)
        if chosen in ends:
            raise ConfigError(
                f"the best rate of {arm!r} is at an end of the grid",
                value=chosen,
                expected=f"a rate inside {self.rates}",
                hint="widen the grid: a chosen end says that better rates were not tried",
            )
        return chosen

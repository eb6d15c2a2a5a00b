"""How episodes came out that could end by themselves: right stops, false stops, what was withheld, what was unfinished.

A stop is right where the estimate was right at that moment; a belief that has contracted on the wrong place is a false
stop, whatever the agent believed. Where no truth is known there is no rate, and never a 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite
from evolvent.stats import Interval, paired, wilson
from evolvent.trajectory import Trajectory, sample_rng

__all__ = ["CELLS", "OutcomeTable", "outcomes", "outcomes_of"]

CELLS = ("right_stop", "false_stop", "withheld", "unfinished")
"""Ended by itself with a right or a wrong estimate; not ended with a right or a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTable:
    """Episodes by outcome. The four cells and `unknown` sum to `episodes`.

    Args:
        right_stop, false_stop, withheld, unfinished: episodes whose truth is known.
        unknown: episodes of which nobody knows whether the estimate was right; they are in no rate.
        stops: episodes that ended by themselves, known or not.
        means: of what was spent, by name: "steps", "distance", "generated", "computed" over all episodes, and
            "steps_right", "distance_right" over right stops; the mean travelled distance (MTD) is "distance". None:
            not told, or no right stop. Intervals are 95 % bootstrap intervals, NaN at one episode.
    """

    episodes: int
    right_stop: int
    false_stop: int
    withheld: int
    unfinished: int
    unknown: int
    stops: int
    means: Mapping[str, Interval | None]

    def rate(self, cell: str) -> Interval | None:
        """A cell as a share of the episodes whose truth is known, with Wilson's 95 % interval; None: of none it is."""
        known = self.episodes - self.unknown
        return wilson(int(getattr(self, cell)), known) if known else None

    @property
    def false_among_stops(self) -> Interval | None:
        """False stops as a share of the stops whose truth is known; None: there is no such stop."""
        known = self.right_stop + self.false_stop
        return wilson(self.false_stop, known) if known else None

    def as_dict(self) -> dict[str, object]:
        """The table as JSON values: counts, and [mean, low, high] of rates and means; None where there is none."""
        counts = {name: getattr(self, name) for name in ("episodes", *CELLS, "unknown", "stops")}
        rates = {name: _row(self.rate(name)) for name in CELLS}
        means = {name: _row(mean) for name, mean in self.means.items()}
        return {**counts, "rates": rates, "false_among_stops": _row(self.false_among_stops), **means}


def outcomes(
    ceased: Sequence[bool] | NDArray[np.bool_],
    correct: Sequence[bool | None],
    steps: Sequence[float],
    *,
    distance: Sequence[float] | None = None,
    generated: Sequence[float] | None = None,
    computed: Sequence[float] | None = None,
) -> OutcomeTable:
    """Put N episodes into the table.

    Args:
        ceased: [N] whether each ended by itself.
        correct: [N] whether the estimate at its end was right; None: nobody knows.
        steps, distance: [N] taken and travelled. generated, computed: [N] tokens sampled and tokens fed to models.
    Raises:
        BatchMismatch: lengths differ, or there is no episode. NonFinite: a number that is not finite.
    """
    told = {"steps": steps, "distance": distance, "generated": generated, "computed": computed}
    numbers = {name: np.asarray(each, np.float64) for name, each in told.items() if each is not None}
    lengths = {"ceased": len(ceased), "correct": len(correct), **{name: len(each) for name, each in numbers.items()}}
    if len(set(lengths.values())) != 1 or not len(ceased):
        raise BatchMismatch("episodes and what is told of them differ in number, or there are none", value=lengths)
    for name, each in numbers.items():
        if not np.isfinite(each).all():
            raise NonFinite(f"the {name} of an episode is not finite", value=float(each[~np.isfinite(each)][0]))
    ended = np.asarray(ceased, np.bool_)
    right = np.array([each is not None and bool(each) for each in correct])
    wrong = np.array([each is not None and not each for each in correct])
    means: dict[str, Interval | None] = {name: _mean(each, name) for name, each in numbers.items()}
    for name in ("steps", "distance"):
        if name in numbers:
            means[f"{name}_right"] = _mean(numbers[name][ended & right], name)
    return OutcomeTable(
        episodes=len(ended),
        right_stop=int((ended & right).sum()),
        false_stop=int((ended & wrong).sum()),
        withheld=int((~ended & right).sum()),
        unfinished=int((~ended & wrong).sum()),
        unknown=int((~right & ~wrong).sum()),
        stops=int(ended.sum()),
        means=means,
    )


def outcomes_of(trajectories: Sequence[Trajectory]) -> OutcomeTable:
    """Recorded episodes: a stop is what ended by the agent, and it was right where the world says success.

    An episode that ended by an error has no truth, and is no stop.

    Raises:
        BatchMismatch: no episode.
    """
    return outcomes(
        [one.ended_by == "agent" for one in trajectories],
        [None if one.ended_by == "error" else one.success for one in trajectories],
        [len(one.steps) for one in trajectories],
        generated=[one.generated() for one in trajectories],
    )


def _mean(values: NDArray[np.float64], name: str) -> Interval | None:
    if not len(values):
        return None
    return paired(values.tolist(), [0.0] * len(values), rng=sample_rng("outcomes", name)).within(0.0, np.inf)


def _row(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [each if isfinite(each) else None for each in (interval.mean, interval.low, interval.high)]

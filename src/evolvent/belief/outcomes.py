"""Outcome tables of episodes that an agent may end: right stops, false stops, withheld and unfinished
episodes.

A stop is right where the estimate was right at that moment; a belief that has contracted on the wrong position
is a false stop, whatever the agent believed. Where no truth is known there is no rate, and never a 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite
from evolvent.stats import Interval, paired_interval, wilson_interval
from evolvent.trajectory import Trajectory, sample_rng

__all__ = ["CELLS", "OutcomeTable", "tabulate_outcomes", "tabulate_trajectories"]

CELLS = ("right_stop", "false_stop", "withheld", "unfinished")
"""Ended by itself with a right or a wrong estimate; not ended with a right or a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTable:
    """Episodes by outcome. The four cells and `unknown` sum to `episodes`.

    Args:
        right_stop, false_stop, withheld, unfinished: Episodes whose truth is known.
        unknown: Episodes for which it is unknown whether the estimate was right; they are in no rate.
        stops: Episodes that the agent ended, with known or unknown truth.
        means: Means of costs, by name: "steps", "distance", "generated", "computed" over all episodes, and
            "steps_right", "distance_right" over right stops; the mean traveled distance (MTD) is "distance". None:
            not recorded, or no right stop. Intervals are 95 % bootstrap intervals, NaN at one episode.
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
        """Returns a cell as a share of the episodes with known truth, with Wilson's 95 % interval; None where there
        are none.
        """
        num_known = self.episodes - self.unknown
        return wilson_interval(int(getattr(self, cell)), num_known) if num_known else None

    @property
    def false_among_stops(self) -> Interval | None:
        """Returns false stops as a share of the stops with known truth; None where there are none."""
        num_known = self.right_stop + self.false_stop
        return wilson_interval(self.false_stop, num_known) if num_known else None

    def as_dict(self) -> dict[str, object]:
        """Returns the table as JSON values: counts, and [mean, low, high] of rates and means; None where there is
        none.
        """
        counts = {name: getattr(self, name) for name in ("episodes", *CELLS, "unknown", "stops")}
        rates = {name: _interval_to_row(self.rate(name)) for name in CELLS}
        means = {name: _interval_to_row(mean) for name, mean in self.means.items()}
        return {**counts, "rates": rates, "false_among_stops": _interval_to_row(self.false_among_stops), **means}


def tabulate_outcomes(
    ceased: Sequence[bool] | NDArray[np.bool_],
    correct: Sequence[bool | None],
    steps: Sequence[float],
    *,
    distance: Sequence[float] | None = None,
    generated: Sequence[float] | None = None,
    computed: Sequence[float] | None = None,
) -> OutcomeTable:
    """Computes the table of N episodes.

    Args:
        ceased: [N] whether each ended by itself.
        correct: [N] whether the estimate at its end was right; None: nobody knows.
        steps, distance: [N] taken and traveled. generated, computed: [N] tokens sampled and tokens fed to models.
    Raises:
        BatchMismatch: lengths differ, or there is no episode. NonFinite: a number that is not finite.
    """
    columns = {"steps": steps, "distance": distance, "generated": generated, "computed": computed}
    numbers = {name: np.asarray(values, np.float64) for name, values in columns.items() if values is not None}
    lengths = {
        "ceased": len(ceased),
        "correct": len(correct),
        **{name: len(values) for name, values in numbers.items()},
    }
    if len(set(lengths.values())) != 1 or not len(ceased):
        raise BatchMismatch("episodes and outcomes must have the same number, 1 or more", value=lengths)
    for name, values in numbers.items():
        if not np.isfinite(values).all():
            raise NonFinite(f"the {name} of an episode is not finite", value=float(values[~np.isfinite(values)][0]))
    is_ended = np.asarray(ceased, np.bool_)
    is_right = np.array([values is not None and bool(values) for values in correct])
    is_wrong = np.array([values is not None and not values for values in correct])
    means: dict[str, Interval | None] = {name: _mean_interval(values, name) for name, values in numbers.items()}
    for name in ("steps", "distance"):
        if name in numbers:
            means[f"{name}_right"] = _mean_interval(numbers[name][is_ended & is_right], name)
    return OutcomeTable(
        episodes=len(is_ended),
        right_stop=int((is_ended & is_right).sum()),
        false_stop=int((is_ended & is_wrong).sum()),
        withheld=int((~is_ended & is_right).sum()),
        unfinished=int((~is_ended & is_wrong).sum()),
        unknown=int((~is_right & ~is_wrong).sum()),
        stops=int(is_ended.sum()),
        means=means,
    )


def tabulate_trajectories(trajectories: Sequence[Trajectory]) -> OutcomeTable:
    """Computes the table of recorded episodes: a stop is an end by the agent, right where the world reports success.

    An episode that ended by an error has no truth, and is no stop.

    Raises:
        BatchMismatch: no episode.
    """
    return tabulate_outcomes(
        [trajectory.ended_by == "agent" for trajectory in trajectories],
        [None if trajectory.ended_by == "error" else trajectory.success for trajectory in trajectories],
        [len(trajectory.steps) for trajectory in trajectories],
        generated=[trajectory.count_generated_tokens() for trajectory in trajectories],
    )


def _mean_interval(values: NDArray[np.float64], name: str) -> Interval | None:
    if not len(values):
        return None
    return paired_interval(values.tolist(), [0.0] * len(values), rng=sample_rng("outcomes", name)).clip(0.0, np.inf)


def _interval_to_row(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [bound if isfinite(bound) else None for bound in (interval.mean, interval.low, interval.high)]

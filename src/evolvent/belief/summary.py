"""The summary of a belief for detectors: of a cloud of particles, a grid or a count of answers."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite

__all__ = ["BeliefSummary"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefSummary:
    """The summary of B beliefs; every array has the leading axis [B]. None: not defined for this kind of belief.

    Args:
        entropy: [B]. Entropy in nats.
        mean, std: [B, D]. Moments of the unknowns, in their units (a plume: D = 8, the order of `SourceTerm`).
        covariance: [B, 2, 2]. Covariance of the position (x, y).
        spread: [B]. sqrt(trace of `covariance`), in units of length.
        ess: [B]. Effective particles, 1 / sum of squared weights.
        leader, runner_up: [B]. Votes for the two most frequent answers; 0 where there are fewer answers.
        cast, left: [B]. Votes so far, unparsable ones included; maximum number of further votes.
    Raises:
        BatchMismatch: arrays that do not agree on B or D, or with another number of axes.
        NonFinite: a number that is not finite; names the first belief with one.
    """

    entropy: Array
    mean: Array | None = None
    std: Array | None = None
    covariance: Array | None = None
    spread: Array | None = None
    ess: Array | None = None
    leader: Array | None = None
    runner_up: Array | None = None
    cast: Array | None = None
    left: Array | None = None

    def __post_init__(self) -> None:
        batch = np.shape(self.entropy)[:1] or (0,)
        numbers = self.std if self.mean is None else self.mean
        unknowns = () if numbers is None else np.shape(numbers)[1:2]
        shapes = {"mean": batch + unknowns, "std": batch + unknowns, "covariance": (*batch, 2, 2)}
        for array_field in fields(self):
            array = getattr(self, array_field.name)
            if array is None:
                continue
            if np.shape(array) != shapes.get(array_field.name, batch):
                raise BatchMismatch(
                    f"the {array_field.name} of the beliefs has the wrong shape",
                    value=np.shape(array),
                    expected=shapes.get(array_field.name, batch),
                )
            bad = np.flatnonzero(~np.isfinite(array).reshape(batch[0], -1).all(axis=1))
            if bad.size:
                raise NonFinite(f"the {array_field.name} of belief {bad[0]} is not finite", value=array[bad[0]])

    def __len__(self) -> int:
        return len(self.entropy)

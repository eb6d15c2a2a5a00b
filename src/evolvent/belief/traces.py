"""What is kept of one episode of a search: the places, the readings and the beliefs, step by step.

Plain arrays, so that pages and files can hold them without what plays episodes (`tracing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Look", "Trace"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A moment of an episode, after the belief took in the reading there; lengths are metres.

    Args:
        place: (x, y) of the sensor. reading: grams per cubic metre, 0 where nothing was smelt.
        mean, covariance: [2] and [2, 2] of the source's place. spread: sqrt(trace of the covariance).
        score: the detector's; None before the first step.
        particles: [M, 2] places, drawn systematically by their weights, so that each stands for 1/M of the belief.
    """

    place: tuple[float, float]
    reading: float
    mean: Floats
    covariance: Floats
    spread: float
    score: float | None
    particles: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An episode.

    Args:
        name: who chose the moves. area: ((x low, x high), (y low, y high)), metres.
        source: (x, y) of the true source, which is known where it is drawn, never to the agent.
        looks: [T + 1], the first at the start. ended_by: "agent" (it ceased), "horizon" or "error" (belief lost).
        right: whether the estimate was within the tolerance at the end.
        field: [H, W] concentration at the height of the sensor, rows from south to north; see `field_of`.
    """

    name: str
    area: tuple[tuple[float, float], tuple[float, float]]
    source: tuple[float, float]
    looks: Sequence[Look]
    ended_by: str
    right: bool
    field: Floats

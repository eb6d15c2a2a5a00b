"""Records of one episode of a search: positions, readings and beliefs, step by step.

Plain arrays, so that pages and files can hold them without the code that plays episodes (`tracing`).
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
    """A moment of an episode, after the belief was updated by the reading there; lengths are meters.

    Args:
        position: (x, y) of the sensor.
        reading: Grams per cubic meter, 0 where nothing was detected.
        mean, covariance: [2] and [2, 2]. Moments of the source's position.
        spread: sqrt(trace of the covariance).
        score: Score of the detector; None before the first step.
        particles: [M, 2]. Positions drawn systematically by weight, so that each stands for 1/M of the belief.
    """

    position: tuple[float, float]
    reading: float
    mean: Floats
    covariance: Floats
    spread: float
    score: float | None
    particles: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An episode of a search.

    Args:
        name: Name of the chooser of the moves.
        area: ((x low, x high), (y low, y high)), meters.
        source: (x, y) of the true source, known for drawing, never to the agent.
        looks: [T + 1]. Moments, the first at the start.
        ended_by: "agent" (it ceased), "horizon" or "error" (belief lost).
        right: Whether the estimate was within the tolerance at the end.
        field: [H, W]. Concentration at the height of the sensor, rows from south to north; see
            `concentration_field`.
    """

    name: str
    area: tuple[tuple[float, float], tuple[float, float]]
    source: tuple[float, float]
    looks: Sequence[Look]
    ended_by: str
    right: bool
    field: Floats

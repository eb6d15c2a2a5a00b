"""An isotropic plume and its sensor, in numpy or torch by one formula.

Sources: Vergassola, Villermaux and Shraiman, Nature 445 (2007), and the published program AutoSTE (Cunjia Liu),
which adds a lifetime. A source theta = (x, y, z, Q, u, phi, D, tau) gives at a place p, with
lambda = sqrt(D tau / (1 + u^2 tau / (4 D))) and d = max(|p - (x, y, z)|, 1e-5),

    C(p | theta) = Q / (4 pi D d) exp( -(p_x - x) u cos(phi) / (2 D) - (p_y - y) u sin(phi) / (2 D) - d / lambda )

phi is the direction that the wind comes from: the plume reaches towards -phi.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem

__all__ = [
    "NAMES",
    "NEAREST",
    "Sensor",
    "SourceTerm",
    "Terms",
    "compute_terms",
    "concentration",
    "dilution",
    "sense",
    "simulate_reading",
]

NAMES = ("x", "y", "z", "rate", "wind_speed", "wind_from", "diffusivity", "lifetime")
"""The eight unknowns, in the order of every array of sources."""
NEAREST = 1e-5  # metres; nearer to the source nothing is known
_POSITIVE = ("diffusivity", "lifetime")
_NOT_NEGATIVE = ("rate", "wind_speed")


@dataclass(frozen=True, slots=True)
class SourceTerm:
    """A source and the air around it.

    Args:
        x, y, z: its place, metres.
        rate: Q, what it releases, grams a second, not negative.
        wind_speed: u, metres a second, not negative.
        wind_from: phi, where the wind comes from, radians counted from +x towards +y.
        diffusivity: D, square metres a second, positive.
        lifetime: tau of what is released, seconds, positive.

    Raises:
        ConfigError: a number that is not finite or outside its range; all of them at once.
    """

    x: float
    y: float
    z: float
    rate: float
    wind_speed: float
    wind_from: float
    diffusivity: float
    lifetime: float

    def __post_init__(self) -> None:
        problems = []
        for name, value in zip(NAMES, astuple(self), strict=True):
            if not math.isfinite(value):
                problems.append(Problem(name, f"got {value}, expected a finite number"))
            elif name in _POSITIVE and value <= 0:
                problems.append(Problem(name, f"got {value}, expected a number above 0"))
            elif name in _NOT_NEGATIVE and value < 0:
                problems.append(Problem(name, f"got {value}, expected 0 or more"))
        if problems:
            raise ConfigError(problems)

    def vector(self) -> NDArray[np.float64]:
        """Returns the eight numbers as an array [8] in the order of `NAMES`."""
        return np.array(astuple(self), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor and the likelihood of its readings. All policies of a comparison share one sensor.

    `likelihood="published"` keeps the sensor and the likelihood of AutoSTE as they are, which are not one model:
    the sensor draws z = C (1 + sigma_fraction n) and misses a share; the likelihood (`belief.likelihood`) has
    another spread, and no `detect` where something was sensed. `"consistent"` is one model on both sides: z = C +
    (sigma_fraction C + sigma) n, 0 at or below the threshold, and missed with probability 1 - detect.

    Args:
        threshold: readings below it are 0, grams per cubic metre; also the spread of AutoSTE's non-detections.
        detect: Pd, probability that the sensor works at all, in (0, 1].
        sigma: s, the constant part of the spread, grams per cubic metre.
        sigma_fraction: s_pct, the part that grows with the concentration.
        noisy: False: readings have no noise and none is missed; the likelihood does not use it.
        likelihood: see above.

    Raises:
        ConfigError: numbers outside their ranges; all of them at once.
    """

    threshold: float = 5e-4
    detect: float = 0.7
    sigma: float = 1e-4
    sigma_fraction: float = 0.5
    noisy: bool = True
    likelihood: Literal["published", "consistent"] = "published"

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.detect <= 1:
            problems.append(Problem("detect", f"got a probability of {self.detect}, expected above 0 and at most 1"))
        for name, value in (("threshold", self.threshold), ("sigma", self.sigma)):
            if not 0 < value < math.inf:
                problems.append(Problem(name, f"got {value}, expected a finite number above 0"))
        if not 0 <= self.sigma_fraction < math.inf:
            problems.append(Problem("sigma_fraction", f"got {self.sigma_fraction}, expected 0 or more"))
        if self.likelihood not in ("published", "consistent"):
            problems.append(Problem("likelihood", f"unknown {self.likelihood!r}", "give 'published' or 'consistent'"))
        if problems:
            raise ConfigError(problems)

    @property
    def id(self) -> str:
        """Returns the sensor in one line, to be printed above every table."""
        kind = self.likelihood if self.noisy else f"{self.likelihood}, noise-free readings"
        return (
            f"threshold {self.threshold:g}, Pd {self.detect:g}, sigma {self.sigma:g} + "
            f"{self.sigma_fraction:g} C ({kind})"
        )


Quantity: TypeAlias = Any
"""A float, an array of numpy or a tensor of torch: the formulas are the same for each."""
ArrayModule: TypeAlias = Any
"""The module of the arrays: numpy, or torch."""


class Terms(NamedTuple):
    """Terms of the concentration formula that depend on the source alone, computed once per source. Each [...]."""

    x: Quantity
    y: Quantity
    z: Quantity
    strength: Quantity  # Q / (4 pi D)
    along_x: Quantity  # u cos(phi) / (2 D)
    along_y: Quantity  # u sin(phi) / (2 D)
    decay: Quantity  # 1 / lambda


def compute_terms(x: Quantity, y: Quantity, z: Quantity, *parameters: Quantity, xp: ArrayModule = np) -> Terms:
    """Computes the terms of sources given by their eight numbers, in the order of `NAMES`, each [...]."""
    rate, speed, wind_from, diffusivity, lifetime = parameters
    half = speed / (2.0 * diffusivity)
    decay = xp.sqrt((1.0 + speed * half * lifetime / 2.0) / (diffusivity * lifetime))
    strength = rate / (4.0 * math.pi * diffusivity)
    return Terms(x, y, z, strength, half * xp.cos(wind_from), half * xp.sin(wind_from), decay)


def dilution(source_terms: Terms, coordinates: Sequence[Quantity], *, xp: ArrayModule = np) -> Quantity:
    """Computes the concentration from the terms of sources, in grams per cubic metre.

    C = strength / d * exp(-(dx * along_x + dy * along_y + d * decay)), with d = max(|p - source|, NEAREST).

    Args:
        source_terms: [...] terms of the sources (`compute_terms`).
        coordinates: (x, y, z) of the places in metres, which broadcast against the terms.
        xp: the module of the arrays: numpy, or torch.
    """
    dx, dy, dz = coordinates[0] - source_terms.x, coordinates[1] - source_terms.y, coordinates[2] - source_terms.z
    distance = xp.clip(xp.sqrt(dx * dx + dy * dy + dz * dz), NEAREST, None)
    return (
        source_terms.strength
        / distance
        * xp.exp(-(dx * source_terms.along_x + dy * source_terms.along_y + distance * source_terms.decay))
    )


def concentration(position: Quantity, source: Quantity, *, xp: ArrayModule = np) -> Quantity:
    """Computes the concentration that sources cause at places.

    Args:
        position: [..., 3] x, y, z in metres.
        source: [..., 8] in the order of `NAMES`. Leading axes broadcast.
        xp: the module of the arrays: numpy, or torch.
    Returns:
        [...] grams per cubic metre.
    """
    source_terms = compute_terms(*(source[..., i] for i in range(len(NAMES))), xp=xp)
    return dilution(source_terms, (position[..., 0], position[..., 1], position[..., 2]), xp=xp)


def simulate_reading(
    true_concentration: Quantity, normal: Quantity, uniform: Quantity, *, sensor: Sensor, xp: ArrayModule = np
) -> Quantity:
    """Computes the sensor's readings from concentrations and given noise draws.

    Args:
        true_concentration: [...] concentrations.
        normal, uniform: [...] a draw of N(0, 1) and one of U(0, 1) for each.
    """
    if not sensor.noisy:
        return xp.where(true_concentration < sensor.threshold, 0.0, true_concentration)
    spread = sensor.sigma_fraction * true_concentration
    if sensor.likelihood == "consistent":
        spread = spread + sensor.sigma
    noisy = true_concentration + spread * normal
    return xp.where((noisy < sensor.threshold) | (uniform >= sensor.detect), 0.0, noisy)


def sense(true_concentration: NDArray[np.float64], sensor: Sensor, rng: np.random.Generator) -> NDArray[np.float64]:
    """Samples [...] readings of [...] concentrations; the generator draws first all normals, then all uniforms."""
    shape = np.shape(true_concentration)
    readings: NDArray[np.float64] = simulate_reading(
        true_concentration, rng.standard_normal(shape), rng.random(shape), sensor=sensor
    )
    return readings

"""Settings of the plume world: area, moves, sensor, distribution of sources, and the agent's prior knowledge.

| preset | area | source | wind | walk |
|---|---|---|---|---|
| plume/25 | 25 x 25 m | in [5, 20]^2, all eight drawn | announced with an error | four moves of 1 m from (0, 0) |
| plume/75 | 75 x 75 m | AutoSTE's region, all eight drawn | announced with an error | 1 to 3 times 2 m from (2, 2, 4) |
| plume/agdc | 25 x 25 m | whole x, y in [5, 20]; the rest fixed | known to the prior | headings, 1 m, from (0, 0) |

The first two give the prior an announced wind: the true one with an error, kept in the task. `plume/agdc` keeps the
published priors, which lean on the truth: u ~ N(u*, 2), phi ~ N(0.9 phi*, 10 degrees), D ~ D* + U(0, 2), tau ~ tau* - 2
+ U(0, 2). It keeps its sensor too, which is free of noise (AGDC, arXiv 2409.09541; AutoSTE `plumeModel.m`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import JsonObject, sample_rng
from evolvent.worlds.plume.model import NAMES, Sensor, SourceTerm
from evolvent.worlds.plume.prior import Marginal, PlumePrior

__all__ = ["MOVES", "PRESETS", "Moves", "Preset", "draw_spec", "get_preset", "move_offsets", "parse_spec"]

Moves = Literal["four", "twelve", "heading"]
_TURN = math.radians(10)
_COMPASS = (("north", 0, 1), ("south", 0, -1), ("east", 1, 0), ("west", -1, 0))
MOVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "four": tuple(name for name, _, _ in _COMPASS),
        "twelve": tuple(f"{name} {times}" for name, _, _ in _COMPASS for times in (1, 2, 3)),
        "heading": tuple(f"heading {degrees}" for degrees in range(0, 360, 45)),
    }
)
"""The names of moves; of headings, which are continuous, the eight that planners and lists offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A preset of the plume world.

    Args:
        name: its name.
        area: ((x low, x high), (y low, y high)), metres; the prior of the place is uniform there.
        start: initial place of the sensor, metres; it stays at that height.
        moves, step: the kind of moves, and the length of a single move, metres.
        horizon: steps of an episode.
        sensor: the sensor, the same for every policy.
        sources: distribution of the true source, eight marginals.
        integer_position: whether x and y of a source are whole numbers.
        prior_marginals: prior marginals of z, rate, diffusivity and lifetime; None: those that depend on the truth.
        announced_std: standard deviations of the announced wind's speed and direction, which the prior takes over.
        zeta: the spread, in metres, below which an agent stops; AGDC's rule.
        particles: number of particles of a filter.
        tolerance: maximum distance, in metres, of a declared place from the source.
    """

    name: str
    area: tuple[tuple[float, float], tuple[float, float]]
    start: tuple[float, float, float]
    moves: Moves
    step: float
    horizon: int
    sensor: Sensor
    sources: tuple[Marginal, ...]
    integer_position: bool = False
    prior_marginals: tuple[Marginal, Marginal, Marginal, Marginal] | None
    announced_std: tuple[float, float]
    zeta: float
    particles: int
    tolerance: float = 2.0

    @property
    def length(self) -> float:
        """Returns the longer side of the area, metres."""
        return max(high - low for low, high in self.area)


def _between(low: float, high: float) -> Marginal:
    return Marginal("uniform", low, high)


def _fixed(value: float) -> Marginal:
    return Marginal("uniform", value, value)


_P25 = Preset(
    name="plume/25",
    area=((0.0, 25.0), (0.0, 25.0)),
    start=(0.0, 0.0, 0.0),
    moves="four",
    step=1.0,
    horizon=100,
    sensor=Sensor(),
    zeta=1.0,
    particles=1000,
    announced_std=(0.5, _TURN),
    sources=(
        _between(5, 20),
        _between(5, 20),
        _between(0, 2),
        _between(3, 8),
        _between(1.5, 2.5),
        _between(math.radians(30), math.radians(60)),
        _between(1.5, 2.5),
        _between(8, 12),
    ),
    prior_marginals=(_between(0, 5), Marginal("gamma", 2, 5), _between(1, 3), _between(5, 15)),
)
_P75 = Preset(
    name="plume/75",
    area=((0.0, 75.0), (0.0, 75.0)),
    start=(2.0, 2.0, 4.0),
    moves="twelve",
    step=2.0,
    horizon=100,
    sensor=Sensor(),
    zeta=5.0,
    particles=20000,
    tolerance=5.0,
    announced_std=(2.0, _TURN),
    sources=(
        _between(20, 60),
        _between(30, 70),
        _between(0, 2),
        _between(3, 8),
        _between(3, 5),
        _between(math.radians(75), math.radians(105)),
        _between(0.8, 1.5),
        _between(6, 10),
    ),
    prior_marginals=(_between(0, 5), Marginal("gamma", 2, 5), _between(0.5, 3), _between(4, 12)),
)
_AGDC = Preset(
    name="plume/agdc",
    area=((0.0, 25.0), (0.0, 25.0)),
    start=(0.0, 0.0, 0.0),
    moves="heading",
    step=1.0,
    horizon=100,
    sensor=Sensor(threshold=5e-10, noisy=False),
    zeta=0.2,
    particles=700,
    integer_position=True,
    announced_std=(2.0, _TURN),
    sources=(
        _between(5, 20),
        _between(5, 20),
        _fixed(0.0),
        _fixed(5.0),
        _fixed(2.0),
        _fixed(math.pi / 4),
        _fixed(2.0),
        _fixed(10.0),
    ),
    prior_marginals=None,
)
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in (_P25, _P75, _AGDC)})


def get_preset(name: str) -> Preset:
    """Returns the preset of a name (`plume/` may be left out); raises ConfigError with the nearest name for any
    other.
    """
    full = name if name in PRESETS else f"plume/{name}"
    if full not in PRESETS:
        raise ConfigError([unknown_name_problem("preset", name, PRESETS)])
    return PRESETS[full]


def move_offsets(moves: Moves, step: float) -> NDArray[np.float64]:
    """Returns the displacements of the moves of `MOVES[moves]`, [K, 2] in metres."""
    if moves == "heading":
        angles = np.arange(8) * (np.pi / 4)
        return step * np.stack([np.cos(angles), np.sin(angles)], -1)
    times = (1,) if moves == "four" else (1, 2, 3)
    return step * np.array([(x * n, y * n) for _, x, y in _COMPASS for n in times], dtype=np.float64)


def draw_spec(preset: Preset, seed: int) -> JsonObject:
    """Draws the spec of a task: the source and the announced wind, from the preset's name and a seed."""
    rng = sample_rng("plume source", preset.name, seed)
    source = PlumePrior(preset.sources, preset.area).draw(rng)
    if preset.integer_position:
        source[:2] = [rng.integers(int(marginal.a), int(marginal.b), endpoint=True) for marginal in preset.sources[:2]]
    speed, wind_from = source[4:6]
    if preset.prior_marginals is not None:
        speed = abs(speed + preset.announced_std[0] * rng.standard_normal())
        wind_from = wind_from + preset.announced_std[1] * rng.standard_normal()
    return {
        "preset": preset.name,
        "sensor": preset.sensor.id,
        "seed": seed,
        "source": [round(float(value), 6) for value in source],
        "announced": [round(float(speed), 6), round(float(wind_from), 6)],
    }


def parse_spec(preset: Preset, spec: JsonObject) -> tuple[SourceTerm, PlumePrior]:
    """Parses the source of a task, and the agent's prior.

    Raises:
        ConfigError: a spec of another preset, numbers missing or outside their ranges, a source outside the area.
    """
    if spec.get("preset") != preset.name:
        raise ConfigError("the task belongs to another preset", value=spec.get("preset"), expected=preset.name)
    if spec.get("sensor") != preset.sensor.id:
        raise ConfigError("the task belongs to another sensor", value=spec.get("sensor"), expected=preset.sensor.id)
    numbers, wind = spec.get("source"), spec.get("announced")
    problems = []
    if not _are_numbers(numbers, len(NAMES)):
        problems.append(Problem("source", f"{numbers!r} is not eight numbers", "give " + ", ".join(NAMES)))
    if not _are_numbers(wind, 2):
        problems.append(Problem("announced", f"got {wind!r}, expected wind speed and direction"))
    if problems or numbers is None or wind is None:
        raise ConfigError(problems)
    source = SourceTerm(*(float(value) for value in numbers))
    for name, value, (low, high) in zip("xy", (source.x, source.y), preset.area, strict=False):
        if not low <= value <= high:
            problems.append(Problem(name, f"got a source at {value}, expected {low:g} to {high:g}"))
    if problems:
        raise ConfigError(problems)
    return source, _build_prior(preset, source, (float(wind[0]), float(wind[1])))


def _are_numbers(values: object, count: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == count
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    )


def _build_prior(preset: Preset, source: SourceTerm, wind: tuple[float, float]) -> PlumePrior:
    position = tuple(_between(low, high) for low, high in preset.area)
    speed_std, direction_std = preset.announced_std
    if preset.prior_marginals is None:
        z, rate = _between(0, 5), Marginal("gamma", 2, 5)
        wind_marginals = Marginal("normal", wind[0], speed_std), Marginal("normal", 0.9 * wind[1], direction_std)
        diffusivity = _between(source.diffusivity, source.diffusivity + 2)
        lifetime = _between(source.lifetime - 2, source.lifetime)
    else:
        z, rate, diffusivity, lifetime = preset.prior_marginals
        wind_marginals = Marginal("normal", wind[0], speed_std), Marginal("normal", wind[1], direction_std)
    return PlumePrior((*position, z, rate, *wind_marginals, diffusivity, lifetime), preset.area)

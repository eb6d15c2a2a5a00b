"""The prior of a source before any reading: one distribution for each of its eight numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, WorldError
from evolvent.trajectory import JsonObject
from evolvent.worlds.plume.model import NAMES

__all__ = ["Family", "Marginal", "PlumePrior"]

Family = Literal["uniform", "normal", "gamma"]
_LOWER_BOUNDS = {"rate": 0.0, "wind_speed": 0.0, "diffusivity": 0.0, "lifetime": 0.0}  # no prior puts anything below


@dataclass(frozen=True, slots=True)
class Marginal:
    """One distribution: uniform(low, high), where low = high is a known number; normal(mean, std); gamma(shape,
    scale).
    """

    family: Family
    a: float
    b: float

    def problem(self) -> str:
        """Returns the error of its parameters; empty: none."""
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            return "not finite"
        if self.family == "uniform":
            return "low is above high" if self.a > self.b else ""
        if self.family == "normal":
            return "" if self.b > 0 else "a standard deviation that is not positive"
        if self.family == "gamma":
            return "" if self.a > 0 and self.b > 0 else "shape and scale have to be positive"
        return f"unknown family {self.family!r}"


@dataclass(frozen=True, slots=True)
class PlumePrior:
    """Independent marginals of the eight unknowns; rate and wind speed are cut off below 0, diffusivity and lifetime
    at or below 0.

    Args:
        marginals: eight, in the order of `NAMES`.
        area: ((x low, x high), (y low, y high)), where sensors may be, metres.

    Raises:
        ConfigError: not eight of them, or an invalid distribution; all problems at once.
    """

    marginals: tuple[Marginal, ...]
    area: tuple[tuple[float, float], tuple[float, float]]

    def __post_init__(self) -> None:
        if len(self.marginals) != len(NAMES):
            raise ConfigError(
                "wrong number of marginals in the prior", value=len(self.marginals), expected=", ".join(NAMES)
            )
        problems = [
            Problem(name, marginal.problem())
            for name, marginal in zip(NAMES, self.marginals, strict=True)
            if marginal.problem()
        ]
        problems += [
            Problem(f"area {name}", "low is not below high", "give (low, high)")
            for name, (low, high) in zip("xy", self.area, strict=True)
            if not low < high
        ]
        for name, marginal in zip(NAMES, self.marginals, strict=True):
            if (
                name in _LOWER_BOUNDS
                and marginal.family == "uniform"
                and (marginal.b < 0 or marginal.b == 0 == marginal.a)
            ):
                problems.append(Problem(name, f"no probability mass above 0: {marginal}"))
        if problems:
            raise ConfigError(problems)

    def families(self) -> tuple[Family, ...]:
        """Returns the eight families."""
        return tuple(marginal.family for marginal in self.marginals)

    def parameters(self) -> NDArray[np.float64]:
        """Returns the parameters a, b of the marginals, [8, 2]."""
        return np.array([(marginal.a, marginal.b) for marginal in self.marginals], dtype=np.float64)

    def fix(self, **values: float) -> PlumePrior:
        """Returns the same prior with some of the unknowns fixed, by name; raises ConfigError for an unknown name."""
        problems = [
            Problem(name, "unknown quantity", "known: " + ", ".join(NAMES)) for name in values if name not in NAMES
        ]
        if problems:
            raise ConfigError(problems)
        fixed_marginals = {name: Marginal("uniform", value, value) for name, value in values.items()}
        return PlumePrior(
            tuple(fixed_marginals.get(name, marginal) for name, marginal in zip(NAMES, self.marginals, strict=True)),
            self.area,
        )

    def draw(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draws one source [8], again for values outside their range. Raises WorldError after a thousand failed
        draws.
        """
        sample = np.empty(len(NAMES))
        for i, (name, marginal) in enumerate(zip(NAMES, self.marginals, strict=True)):
            for _ in range(1000):
                sample[i] = _sample_marginal(marginal, rng)
                if sample[i] > _LOWER_BOUNDS.get(name, -math.inf) or marginal.a == marginal.b:
                    break
            else:
                raise WorldError(f"the prior allows no {name}", value=marginal, expected="probability mass above 0")
        return sample

    def to_spec(self) -> JsonObject:
        """Returns JSON values, exactly invertible."""
        rows = [[marginal.family, marginal.a, marginal.b] for marginal in self.marginals]
        return {"marginals": rows, "area": [list(side) for side in self.area]}

    @classmethod
    def from_spec(cls, spec: JsonObject) -> PlumePrior:
        """Builds a prior from `to_spec`; raises ConfigError for anything else."""
        try:
            rows: Sequence[Any] = spec["marginals"]
            marginals = tuple(Marginal(str(family), float(a), float(b)) for family, a, b in rows)  # type: ignore[arg-type]
            (x_low, x_high), (y_low, y_high) = spec["area"]
            area = (float(x_low), float(x_high)), (float(y_low), float(y_high))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("invalid plume prior", value=spec, expected="a value that to_spec() returned") from error
        return cls(marginals, area)


def _sample_marginal(marginal: Marginal, rng: np.random.Generator) -> float:
    if marginal.family == "normal":
        return float(rng.normal(marginal.a, marginal.b))
    if marginal.family == "gamma":
        return float(rng.gamma(marginal.a, marginal.b))
    return float(rng.uniform(marginal.a, marginal.b))

"""The other side of `benchmarks.belief`: the same equations in NumPy, one episode at a time, written straight down.

Nothing is cached, shared or batched, and nothing is done clumsily either: arrays over the particles, no loop over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from evolvent.worlds.plume.model import Sensor
from evolvent.worlds.plume.prior import PlumePrior

Floats = NDArray[np.float64]


def likelihood(theta: Floats, place: Floats, z: float, sensor: Sensor) -> Floats:
    """[N] the published likelihood of a reading under particles [8, N]."""
    x, y, height, rate, speed, turn, diffusivity, lifetime = theta
    decay = np.sqrt(diffusivity * lifetime / (1 + speed**2 * lifetime / (4 * diffusivity)))
    d = np.maximum(np.sqrt((place[0] - x) ** 2 + (place[1] - y) ** 2 + (place[2] - height) ** 2), 1e-5)
    exponent = -(place[0] - x) * speed * np.cos(turn) / (2 * diffusivity)
    exponent = exponent - (place[1] - y) * speed * np.sin(turn) / (2 * diffusivity) - d / decay
    return reading_likelihood(rate / (4 * np.pi * diffusivity * d) * np.exp(exponent), z, sensor)


def reading_likelihood(clean: Floats, z: float, sensor: Sensor) -> Floats:
    """[N] the same from concentrations."""
    if z <= sensor.threshold:
        below = erf((sensor.threshold - clean) / (sensor.threshold * np.sqrt(2)))
        return np.asarray(sensor.detect / 2 * (1 + below) + 1 - sensor.detect)
    spread = sensor.sigma_fraction * clean + sensor.sigma
    return np.asarray(np.exp(-0.5 * ((z - clean) / spread) ** 2) / (spread * np.sqrt(2 * np.pi)))


def log_prior(theta: Floats, prior: PlumePrior) -> Floats:
    """[N] log prior density of particles, up to a constant."""
    total = np.zeros(theta.shape[1])
    possible = (theta[3] > 0) & (theta[4] >= 0) & (theta[6] > 0) & (theta[7] > 0)
    for value, one in zip(theta, prior.marginals, strict=True):
        if one.family == "uniform":
            possible &= (value >= one.a) & (value <= one.b)
        elif one.family == "normal":
            total -= 0.5 * ((value - one.a) / one.b) ** 2
        else:
            total += (one.a - 1) * np.log(np.maximum(value, 1e-300)) - value / one.b
    return np.where(possible, total, -np.inf)


class NumpyFilter:
    """A particle filter with systematic resampling and exact moves, one episode."""

    def __init__(self, prior: PlumePrior, n: int, seed: int, *, sweeps: int) -> None:
        self.rng, self.prior, self.sweeps = np.random.default_rng(seed), prior, sweeps
        self.theta = np.stack([self._draws(one.family, one.a, one.b, n) for one in prior.marginals])
        self.theta[4] = np.abs(self.theta[4])
        self.w = np.full(n, 1 / n)
        self.past: list[tuple[Floats, float]] = []

    def _draws(self, family: str, a: float, b: float, n: int) -> Floats:
        return np.asarray(getattr(self.rng, family)(a, b, n))

    def weigh(self, place: Floats, z: float, sensor: Sensor) -> float:
        """Bayes' rule; returns the effective sample size."""
        w = self.w * likelihood(self.theta, place, z, sensor)
        self.w = w / w.sum()
        return float(1 / np.sum(self.w**2))

    def update(self, place: Floats, z: float, sensor: Sensor) -> None:
        """One reading: weights, and where they degenerate, resampling and moves."""
        self.past.append((place, z))
        if self.weigh(place, z, sensor) < len(self.w) / 2:
            self._move(sensor)

    def _move(self, sensor: Sensor) -> None:
        n = len(self.w)
        centred = self.theta - (self.theta @ self.w)[:, None]
        values, vectors = np.linalg.eigh((centred * self.w) @ centred.T)
        root = vectors * np.sqrt(np.maximum(values, 0)) * (4 / 10) ** (1 / 12) * n ** (-1 / 12)
        points = (np.arange(n) + self.rng.random()) / n
        theta = self.theta[:, np.minimum(np.searchsorted(np.cumsum(self.w), points), n - 1)]
        density = self._posterior(theta, sensor)
        for _ in range(self.sweeps):
            moved = theta + root @ self.rng.standard_normal((8, n))
            new = self._posterior(moved, sensor)
            taken = np.log(self.rng.random(n)) < new - density
            theta, density = np.where(taken, moved, theta), np.where(taken, new, density)
        self.theta, self.w = theta, np.full(n, 1 / n)

    def _posterior(self, theta: Floats, sensor: Sensor) -> Floats:
        total = log_prior(theta, self.prior)
        with np.errstate(all="ignore"):  # proposals that no source can be
            for place, z in self.past:
                total = total + np.log(likelihood(theta, place, z, sensor))
        return np.where(np.isnan(total), -np.inf, total)


def scores(w: Floats, theta: Floats, candidates: Floats, *, z: Sequence[Sequence[float]], sensor: Sensor) -> Floats:
    """[K, 3] infotaxis, entrotaxis and minus DCEE's cost of candidates [K, 3] with readings [K][Nz], one by one."""
    found = []
    entropy = -np.sum(w * np.log(np.maximum(w, 1e-300)))
    for place, readings in zip(candidates, z, strict=True):
        x, y, height, rate, speed, turn, diffusivity, lifetime = theta
        decay = np.sqrt(diffusivity * lifetime / (1 + speed**2 * lifetime / (4 * diffusivity)))
        d = np.maximum(np.sqrt((place[0] - x) ** 2 + (place[1] - y) ** 2 + (place[2] - height) ** 2), 1e-5)
        exponent = -(place[0] - x) * speed * np.cos(turn) - (place[1] - y) * speed * np.sin(turn)
        clean = rate / (4 * math.pi * diffusivity * d) * np.exp(exponent / (2 * diffusivity) - d / decay)
        rows = []
        for one in readings:
            joint = w * reading_likelihood(clean, one, sensor)
            evidence = max(joint.sum(), 1e-300)
            after = joint / evidence
            mx, my = after @ x, after @ y
            spread = after @ ((x - mx) ** 2 + (y - my) ** 2)
            gain = entropy + np.sum(after * np.log(np.maximum(after, 1e-300)))
            rows.append((gain, -math.log(evidence), -((mx - place[0]) ** 2 + (my - place[1]) ** 2 + spread)))
        found.append(np.mean(rows, axis=0))
    return np.array(found)

"""The grid belief: every cell is a hypothesis, Bayes' rule in double precision, nothing is drawn and nothing moves.

It has the interface of `particles` and is exact up to the size of its cells, so it is what the filter is tested
against. Its likelihood is written a second time, straight from the formulas, and shares no code with the filter's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.belief.cloud import Cloud, checked, cloud_of, summary
from evolvent.belief.particles import IMPOSSIBLE, BeliefCollapsed
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.worlds.plume.model import NAMES, Sensor, concentration
from evolvent.worlds.plume.prior import Marginal, PlumePrior

__all__ = ["prior", "summary", "update"]

LARGEST = 5_000_000  # cells of one belief


def prior(
    priors: Sequence[PlumePrior], cells: Mapping[str, int], *, seeds: Sequence[int] | None = None, device: str = "cpu"
) -> Cloud:
    """A grid over the unknowns that are not known exactly.

    Args:
        priors: B of them, of the same families.
        cells: how many cells each unknown has, by name; one that is known needs none. Uniform ones are cut evenly,
            normal ones within four standard deviations, gamma ones up to six above the mean.
        seeds: [B] for planners that draw (None: 0, 1, ...).
    Raises:
        ConfigError: a name that is none, an unknown without cells, or more than five million cells.
    """
    problems = [unknown("unknown", name, NAMES) for name in cells if name not in NAMES]
    problems += [Problem(name, f"{count} cells", "give at least 1") for name, count in cells.items() if count < 1]
    for i, name in enumerate(NAMES):
        known = {_is_known(each.marginals[i]) for each in priors}
        if len(known) > 1:
            problems.append(Problem(name, "is known to some priors only", "give a grid to those that know the same"))
        elif False in known and name not in cells:
            problems.append(Problem(name, "has no cells", "say how many, or give a prior that knows it"))
    if math.prod(cells.values()) > LARGEST:
        problems.append(Problem("cells", f"{math.prod(cells.values())} of them", f"give at most {LARGEST}"))
    if problems:
        raise ConfigError(problems)
    theta, log_w = [], []
    for each in priors:
        axes = [_axis(name, marginal, cells.get(name, 1)) for name, marginal in zip(NAMES, each.marginals, strict=True)]
        theta.append(np.array(list(itertools.product(*(centres for centres, _ in axes)))).T)
        mass = np.array([sum(parts) for parts in itertools.product(*(weights for _, weights in axes))])
        log_w.append(mass - _log_sum(mass))
    points = torch.as_tensor(np.stack(theta, 1), dtype=torch.float64, device=device)
    weights = torch.as_tensor(np.stack(log_w), dtype=torch.float64, device=device)
    return cloud_of(priors, points, weights, seeds=range(len(priors)) if seeds is None else seeds)


def _is_known(marginal: Marginal) -> bool:
    return marginal.family == "uniform" and marginal.a == marginal.b


def _axis(name: str, marginal: Marginal, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(centres [count], log masses [count] up to a constant) of one unknown."""
    if _is_known(marginal):
        return np.array([marginal.a]), np.zeros(1)
    low, high = marginal.a, marginal.b
    if marginal.family == "normal":
        low, high = marginal.a - 4 * marginal.b, marginal.a + 4 * marginal.b
    elif marginal.family == "gamma":
        low, high = 0.0, marginal.a * marginal.b + 6 * math.sqrt(marginal.a) * marginal.b
    if name in ("rate", "wind_speed", "diffusivity", "lifetime"):
        low = max(low, 0.0)
    centres = low + (np.arange(count) + 0.5) * (high - low) / count
    if marginal.family == "normal":
        return centres, -0.5 * ((centres - marginal.a) / marginal.b) ** 2
    if marginal.family == "gamma":
        return centres, (marginal.a - 1) * np.log(centres) - centres / marginal.b
    return centres, np.zeros(count)


def _log_sum(values: NDArray[np.float64]) -> float:
    most = float(values.max())
    return most + math.log(float(np.exp(values - most).sum()))


def update(cloud: Cloud, position: object, z: object, *, sensor: Sensor) -> Cloud:
    """The beliefs after one more reading each; as `particles.update`, without resampling.

    Raises:
        WorldError: a reading or a place that cannot be. BeliefCollapsed: no cell allows a reading.
    """
    place = checked(cloud, position, z)
    clean = concentration(place[:, None, :3], cloud.theta.permute(1, 2, 0), xp=torch)
    read = place[:, 3:].expand_as(clean)
    spread = sensor.sigma_fraction * clean + sensor.sigma
    own = sensor.likelihood == "consistent"
    missed = spread if own else torch.full_like(clean, sensor.threshold)
    below = sensor.detect * torch.special.ndtr((sensor.threshold - clean) / missed) + 1 - sensor.detect
    found = -0.5 * ((read - clean) / spread) ** 2 - torch.log(spread) - 0.5 * math.log(2 * math.pi)
    found = found + (math.log(sensor.detect) if own else 0.0)
    joint = cloud.log_w + torch.where(read <= sensor.threshold, torch.log(below), found)
    evidence = torch.logsumexp(joint, -1)
    lost = np.flatnonzero((~(evidence > IMPOSSIBLE)).cpu().numpy())
    if lost.size:
        raise BeliefCollapsed(cloud, lost, z=place[lost, 3].tolist())
    log_w = joint - evidence.unsqueeze(-1)
    return replace(
        cloud,
        log_w=log_w,
        gain=cloud.gain + evidence,
        evidence=evidence,
        counts=cloud.counts + 1,
        ess=torch.exp(-torch.logsumexp(2 * log_w, -1)),
    )

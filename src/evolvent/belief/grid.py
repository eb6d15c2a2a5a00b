"""The grid belief: every cell is a hypothesis, updated by Bayes' rule in double precision without sampling or
moves.

It has the interface of `particles` and is exact up to the size of its cells, so the filter is tested against
it. Its likelihood is a second implementation straight from the formulas, which shares no code with the
filter's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.belief.cloud import Cloud, check_readings, make_cloud, summarize_cloud
from evolvent.belief.particles import IMPOSSIBLE, BeliefCollapsed
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.worlds.plume.model import NAMES, Sensor, concentration
from evolvent.worlds.plume.prior import Marginal, PlumePrior

__all__ = ["make_grid", "summarize_cloud", "update"]

MAX_CELLS = 5_000_000  # cells of one belief


def make_grid(
    priors: Sequence[PlumePrior], cells: Mapping[str, int], *, seeds: Sequence[int] | None = None, device: str = "cpu"
) -> Cloud:
    """Builds a grid over the unknowns that are not known exactly.

    Args:
        priors: B priors of the same families.
        cells: Number of cells of each unknown, by name; a known one needs none. Uniform ones are split evenly, normal
            ones within four standard deviations, gamma ones up to six above the mean.
        seeds: [B]. Seeds for planners that draw (None: 0, 1, ...).
        device: Device of the arrays.
    Raises:
        ConfigError: an unknown name, an unknown without cells, or more than five million cells.
    """
    problems = [unknown_name_problem("unknown", name, NAMES) for name in cells if name not in NAMES]
    problems += [Problem(name, f"got {count} cells", "give at least 1") for name, count in cells.items() if count < 1]
    for i, name in enumerate(NAMES):
        known_flags = {_is_known(plume_prior.marginals[i]) for plume_prior in priors}
        if len(known_flags) > 1:
            problems.append(
                Problem(name, "only some priors know it", "use one grid for priors that know the same quantities")
            )
        elif False in known_flags and name not in cells:
            problems.append(Problem(name, "has no cells", "set the number of cells, or use a prior that knows it"))
    if math.prod(cells.values()) > MAX_CELLS:
        problems.append(Problem("cells", f"got {math.prod(cells.values())} cells", f"give at most {MAX_CELLS}"))
    if problems:
        raise ConfigError(problems)
    theta, log_w = [], []
    for plume_prior in priors:
        axes = [
            _make_axis(name, marginal, cells.get(name, 1))
            for name, marginal in zip(NAMES, plume_prior.marginals, strict=True)
        ]
        theta.append(np.array(list(itertools.product(*(centres for centres, _ in axes)))).T)
        log_mass = np.array(
            [sum(cell_log_masses) for cell_log_masses in itertools.product(*(weights for _, weights in axes))]
        )
        log_w.append(log_mass - _log_sum(log_mass))
    points = torch.as_tensor(np.stack(theta, 1), dtype=torch.float64, device=device)
    weights = torch.as_tensor(np.stack(log_w), dtype=torch.float64, device=device)
    return make_cloud(priors, points, weights, seeds=range(len(priors)) if seeds is None else seeds)


def _is_known(marginal: Marginal) -> bool:
    return marginal.family == "uniform" and marginal.a == marginal.b


def _make_axis(name: str, marginal: Marginal, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes (centers [count], log masses [count] up to a constant) of one unknown."""
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
    max_value = float(values.max())
    return max_value + math.log(float(np.exp(values - max_value).sum()))


def update(cloud: Cloud, position: object, z: object, *, sensor: Sensor) -> Cloud:
    """Updates the beliefs by one reading each, as `particles.update` does, without resampling.

    Raises:
        WorldError: a reading or a place that cannot be. BeliefCollapsed: no cell allows a reading.
    """
    position_reading = check_readings(cloud, position, z)
    mean_reading = concentration(position_reading[:, None, :3], cloud.theta.permute(1, 2, 0), xp=torch)
    observed = position_reading[:, 3:].expand_as(mean_reading)
    spread = sensor.sigma_fraction * mean_reading + sensor.sigma
    is_consistent = sensor.likelihood == "consistent"
    miss_width = spread if is_consistent else torch.full_like(mean_reading, sensor.threshold)
    miss_probability = (
        sensor.detect * torch.special.ndtr((sensor.threshold - mean_reading) / miss_width) + 1 - sensor.detect
    )
    detection_log_density = (
        -0.5 * ((observed - mean_reading) / spread) ** 2 - torch.log(spread) - 0.5 * math.log(2 * math.pi)
    )
    detection_log_density = detection_log_density + (math.log(sensor.detect) if is_consistent else 0.0)
    joint = cloud.log_w + torch.where(observed <= sensor.threshold, torch.log(miss_probability), detection_log_density)
    evidence = torch.logsumexp(joint, -1)
    collapsed_rows = np.flatnonzero((~(evidence > IMPOSSIBLE)).cpu().numpy())
    if collapsed_rows.size:
        raise BeliefCollapsed(cloud, collapsed_rows, z=position_reading[collapsed_rows, 3].tolist())
    log_w = joint - evidence.unsqueeze(-1)
    return replace(
        cloud,
        log_w=log_w,
        gain=cloud.gain + evidence,
        evidence=evidence,
        counts=cloud.counts + 1,
        ess=torch.exp(-torch.logsumexp(2 * log_w, -1)),
    )

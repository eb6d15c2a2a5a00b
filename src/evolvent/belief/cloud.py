"""Beliefs about sources as weighted hypotheses: B beliefs of N hypotheses each, as a structure of arrays [B,
N].

Particles and grids both are clouds, so that planners, summaries and features do not depend on the kind. All
random numbers of a cloud derive from the seed of each belief and the number of its readings, so a belief is the
same alone and in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.belief.summary import BeliefSummary
from evolvent.errors import BatchMismatch, ConfigError, MissingExtra, WorldError
from evolvent.trajectory import sample_rng
from evolvent.worlds.plume.model import NAMES, Sensor, Terms, compute_terms
from evolvent.worlds.plume.prior import Family, Marginal, PlumePrior

__all__ = [
    "Cloud",
    "check_readings",
    "compute_features",
    "draw_prior",
    "log_prior",
    "make_cloud",
    "make_generators",
    "replace_rows",
    "select_rows",
    "summarize_cloud",
    "weighted_moments",
]

INITIAL_CAPACITY = 16  # readings that a cloud has room for; doubled when they are full


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """B beliefs of N hypotheses.

    Args:
        families: The eight families of the prior, the same for all B.
        parameters: [B, 8, 2]. Parameters of the prior.
        area: [B, 2, 2]. Bounds of sensor positions: low and high of x and of y, meters.
        theta: [8, B, N]. Hypotheses, in the order of `NAMES`.
        derived: [4, B, N]. Values derived from them for concentrations (`Terms` after x, y, z).
        log_w: [B, N]. Normalized log weights: their exponentials sum to 1.
        base: [B, N] and `gain`: [B] such that base + log_w + gain is the log-likelihood of all readings so far.
        past: [B, T, 4]. Sensor positions and readings; the first `counts` of each belief are valid.
        counts: [B]. Number of readings so far; kept on the CPU.
        seeds: [B]. Integers; kept on the CPU.
        ess: [B]. Effective sample size after the last reading, before resampling.
        evidence: [B]. Log predictive density of the last reading.
        collapses: [B]. Number of impossible readings after which the belief was reset.
        exact: False after a move that does not update `base`.
        fused: Whether its arithmetic is that of `fused`, loops compiled by numba for CPUs, instead of torch's.
    """

    families: tuple[Family, ...]
    parameters: Tensor
    area: Tensor
    theta: Tensor
    derived: Tensor
    log_w: Tensor
    base: Tensor
    gain: Tensor
    past: Tensor
    counts: NDArray[np.int64]
    seeds: NDArray[np.int64]
    ess: Tensor
    evidence: Tensor
    collapses: NDArray[np.int64]
    exact: bool = True
    fused: bool = False

    @property
    def terms(self) -> Terms:
        """Returns the terms of all hypotheses, each [B, N]."""
        return Terms(*self.theta[:3], *self.derived)

    @property
    def size(self) -> tuple[int, int]:
        """Returns (B, N)."""
        return int(self.log_w.shape[0]), int(self.log_w.shape[1])

    @property
    def log_like(self) -> Tensor:
        """Returns the log-likelihood of all readings so far under each hypothesis, [B, N]."""
        return self.base + self.log_w + self.gain.unsqueeze(-1)


def make_generators(seeds: NDArray[np.int64], counts: NDArray[np.int64], purpose: int) -> list[torch.Generator]:
    """Creates a generator for each belief from its seed `[B]`, the number of its readings `[B]` and a purpose."""
    with np.errstate(over="ignore"):
        mixed = seeds.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + counts.astype(np.uint64) * np.uint64(16)
        mixed += np.uint64(purpose)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64, Steele et al. 2014
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return [torch.Generator().manual_seed(int(number >> np.uint64(1))) for number in mixed]


def draw_prior(
    priors: Sequence[PlumePrior], num_particles: int, *, seeds: Sequence[int], device: str = "cpu", fused: bool = False
) -> Cloud:
    """Draws N particles from each of B priors, with equal weights.

    Args:
        priors: B priors of the same families.
        num_particles: Particles of each belief, at least 1. One particle never learns: it is the estimate, whatever
            is read.
        seeds: [B]. Equal seeds and priors give equal particles.
        device: Device of the particles; they are float32.
        fused: Whether to use loops compiled by numba, on CPUs only: at least ten times faster, after some seconds of
            compilation.
    Raises:
        ConfigError: no prior, n below 1, or priors of different families.
    """
    if num_particles < 1:
        raise ConfigError("number of particles out of range", value=num_particles, expected="at least 1")
    if fused and (device != "cpu" or find_spec("numba") is None):
        if device == "cpu":
            raise MissingExtra("belief", "fused arithmetic of beliefs")
        raise ConfigError("fused arithmetic runs only on the CPU", value=device, expected="cpu", hint="set fused=False")
    if len(priors) != len(seeds):
        raise BatchMismatch("number of seeds does not match the priors", value=len(seeds), expected=len(priors))
    hypotheses = np.empty((len(NAMES), len(priors), num_particles))
    for i, (plume_prior, seed) in enumerate(zip(priors, seeds, strict=True)):
        rng = sample_rng("particles", seed)
        for j, marginal in enumerate(plume_prior.marginals):
            hypotheses[j, i] = _draw_marginal(marginal, NAMES[j], num_particles, rng=rng)
    theta = torch.as_tensor(hypotheses, dtype=torch.float32, device=device)
    return replace(
        make_cloud(priors, theta, torch.full_like(theta[0], -math.log(num_particles)), seeds=seeds), fused=fused
    )


def _draw_marginal(marginal: Marginal, name: str, num_values: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws n values; impossible ones are drawn again. Raises WorldError after a hundred rounds."""
    values = np.full(num_values, np.nan)
    invalid_indices = np.arange(num_values)
    for _ in range(100):
        if marginal.family == "normal":
            values[invalid_indices] = rng.normal(marginal.a, marginal.b, len(invalid_indices))
        elif marginal.family == "gamma":
            values[invalid_indices] = rng.gamma(marginal.a, marginal.b, len(invalid_indices))
        else:
            values[invalid_indices] = rng.uniform(marginal.a, marginal.b, len(invalid_indices))
        invalid_indices = np.flatnonzero(~_is_possible(name, values))
        if not len(invalid_indices):
            return values
    raise WorldError(f"the prior allows almost no {name}", value=marginal, expected="probability mass above 0")


def _is_possible(name: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    if name in ("rate", "wind_speed"):
        return values >= 0
    return values > 0 if name in ("diffusivity", "lifetime") else np.isfinite(values)


def make_cloud(priors: Sequence[PlumePrior], theta: Tensor, log_w: Tensor, *, seeds: Sequence[int]) -> Cloud:
    """Builds a cloud of given hypotheses [8, B, N] with given log weights [B, N], before any reading.

    Raises:
        ConfigError: no prior, or priors of different families.
        BatchMismatch: arrays of another shape.
    """
    b, n = log_w.shape
    if not priors or len({plume_prior.families() for plume_prior in priors}) != 1:
        raise ConfigError(
            "priors of one batch have different families",
            value=sorted({plume_prior.families() for plume_prior in priors}),
            expected="one",
        )
    if theta.shape != (len(NAMES), b, n) or len(priors) != b:
        raise BatchMismatch("hypotheses have the wrong shape", value=tuple(theta.shape), expected=(len(NAMES), b, n))
    parameters = np.stack([plume_prior.parameters() for plume_prior in priors])
    area = np.array([plume_prior.area for plume_prior in priors], dtype=np.float64)
    return Cloud(
        families=priors[0].families(),
        parameters=torch.as_tensor(parameters).to(theta),
        area=torch.as_tensor(area).to(theta),
        theta=theta,
        derived=torch.stack(list(compute_terms(*theta, xp=torch)[3:])),
        log_w=log_w,
        base=-log_w,
        gain=theta.new_zeros(b),
        past=theta.new_zeros(b, INITIAL_CAPACITY, 4),
        counts=np.zeros(b, dtype=np.int64),
        seeds=np.array([int(seed) for seed in seeds], dtype=np.int64),
        ess=torch.exp(-torch.logsumexp(2 * log_w, -1)),
        evidence=theta.new_zeros(b),
        collapses=np.zeros(b, dtype=np.int64),
    )


def log_prior(families: Sequence[Family], parameters: Tensor, theta: Tensor) -> Tensor:
    """Computes the log prior density of hypotheses, [B, N], up to a constant of each belief; -inf outside the
    support.

    Args:
        families: Families of the prior.
        parameters: [B, 8, 2]. Parameters of the prior.
        theta: [8, B, N]. Hypotheses.
    """
    total = torch.zeros_like(theta[0])
    for i, (name, family) in enumerate(zip(NAMES, families, strict=True)):
        value, a, b = theta[i], parameters[:, i, :1], parameters[:, i, 1:]
        if family == "uniform":
            inside = (value >= a) & (value <= b)
        else:
            inside = value > 0 if family == "gamma" else torch.isfinite(value)
            if family == "normal":
                total = total - 0.5 * ((value - a) / b) ** 2
            else:
                total = total + (a - 1.0) * torch.log(value.clamp_min(1e-30)) - value / b
        if name in ("rate", "wind_speed"):
            inside &= value >= 0
        elif name in ("diffusivity", "lifetime"):
            inside &= value > 0
        total = torch.where(inside, total, -math.inf)
    return total


_ROW_AXIS = {"theta": 1, "derived": 1}


def select_rows(cloud: Cloud, rows: NDArray[np.int64]) -> Cloud:
    """Copies the beliefs of some rows, by their indices `[num_selected]`."""
    row_indices = torch.as_tensor(rows, device=cloud.log_w.device)
    selected_arrays = {
        cloud_field.name: getattr(cloud, cloud_field.name).index_select(_ROW_AXIS.get(cloud_field.name, 0), row_indices)
        if isinstance(getattr(cloud, cloud_field.name), Tensor)
        else getattr(cloud, cloud_field.name)[rows]
        for cloud_field in fields(cloud)
        if cloud_field.name not in ("families", "exact", "fused")
    }
    return replace(cloud, **selected_arrays)


def replace_rows(cloud: Cloud, rows: NDArray[np.int64], new_beliefs: Cloud) -> Cloud:
    """Replaces some beliefs of a cloud in place, for episodes that start again; the old cloud becomes invalid.

    Raises:
        BatchMismatch: another number of hypotheses, or families that differ.
    """
    if new_beliefs.size != (len(rows), cloud.size[1]) or new_beliefs.families != cloud.families:
        raise BatchMismatch("the new beliefs do not fit", value=new_beliefs.size, expected=(len(rows), cloud.size[1]))
    capacity = max(cloud.past.shape[1], new_beliefs.past.shape[1])
    cloud, new_beliefs = _ensure_capacity(cloud, capacity), _ensure_capacity(new_beliefs, capacity)
    row_indices = torch.as_tensor(rows, device=cloud.log_w.device)
    for cloud_field in fields(cloud):
        target, source = getattr(cloud, cloud_field.name), getattr(new_beliefs, cloud_field.name)
        if isinstance(target, Tensor):
            target.index_copy_(_ROW_AXIS.get(cloud_field.name, 0), row_indices, source)
        elif isinstance(target, np.ndarray):
            target[rows] = source
    return replace(cloud, exact=cloud.exact and new_beliefs.exact)


def _ensure_capacity(cloud: Cloud, readings: int) -> Cloud:
    """Extends the cloud to hold a number of readings."""
    b, capacity, _ = cloud.past.shape
    if capacity >= readings:
        return cloud
    padding = torch.zeros(
        b, max(readings, 2 * capacity) - capacity, 4, dtype=cloud.past.dtype, device=cloud.past.device
    )
    return replace(cloud, past=torch.cat([cloud.past, padding], 1))


def check_readings(cloud: Cloud, position: object, z: object) -> Tensor:
    """Checks positions and readings, and returns them as [B, 4] on the cloud's device.

    Args:
        cloud: The beliefs.
        position: [B, 3] meters, numpy or torch.
        z: [B] readings, grams per cubic meter.
    Raises:
        WorldError: a reading that is negative or not finite, or a position outside the area. BatchMismatch: other
            shapes.
    """
    reference = cloud.log_w
    positions = torch.as_tensor(position, dtype=reference.dtype, device=reference.device)
    readings = torch.as_tensor(z, dtype=reference.dtype, device=reference.device)
    b = cloud.size[0]
    if positions.shape != (b, 3) or readings.shape != (b,):
        raise BatchMismatch(
            "positions and readings have the wrong shape",
            value=(tuple(positions.shape), tuple(readings.shape)),
            expected=((b, 3), (b,)),
        )
    bad = ~(torch.isfinite(readings) & (readings >= 0))
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise WorldError(
            "invalid sensor reading",
            value=float(readings[row]),
            expected="finite and 0 or more",
            hint=f"check belief {row}",
        )
    slack = 1e-4 * (cloud.area[..., 1] - cloud.area[..., 0])
    inside = (positions[:, :2] >= cloud.area[..., 0] - slack) & (positions[:, :2] <= cloud.area[..., 1] + slack)
    inside = inside.all(-1) & torch.isfinite(positions).all(-1)
    if not bool(inside.all()):
        row = int((~inside).to(torch.int8).argmax())
        raise WorldError(
            "position is outside the area",
            value=positions[row].tolist(),
            expected=cloud.area[row].tolist(),
            hint=f"check belief {row}",
        )
    return torch.cat([positions, readings.unsqueeze(-1)], -1)


def weighted_moments(log_w: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes weights [B, N], means [B, D] and covariances [B, D, D] of hypotheses [D, B, N]; two passes, O(D N)
    memory.
    """
    w = torch.exp(log_w)
    rows = theta.permute(1, 0, 2)  # [B, D, N]
    mean = torch.linalg.vecdot(rows, w.unsqueeze(1))  # a matrix product would add up one belief otherwise than several
    centred = (rows - mean.unsqueeze(-1)) * torch.sqrt(w).unsqueeze(1)
    return w, mean, torch.bmm(centred, centred.transpose(1, 2))


def summarize_cloud(cloud: Cloud) -> BeliefSummary:
    """Computes the summary for detectors: weighted means, standard deviations, position covariance, entropy of the
    weights.

    The entropy is that of the weights: 0 to log N nats. It falls with every reading and rises when particles are
    resampled, so it compares only beliefs of one kind and size.
    """
    w, mean, covariance = weighted_moments(cloud.log_w, cloud.theta)
    position_covariance = covariance[:, :2, :2]
    entropy = -torch.where(w > 0, w * cloud.log_w, 0.0).sum(-1)
    moments = {
        "entropy": entropy.clamp_min(0.0),
        "mean": mean,
        "std": torch.sqrt(torch.diagonal(covariance, dim1=1, dim2=2).clamp_min(0.0)),
        "covariance": position_covariance,
        "spread": torch.sqrt((position_covariance[:, 0, 0] + position_covariance[:, 1, 1]).clamp_min(0.0)),
        "ess": 1.0 / (w * w).sum(-1),
    }
    return BeliefSummary(**{name: value.double().cpu().numpy() for name, value in moments.items()})


def compute_features(
    belief_summary: BeliefSummary,
    position: NDArray[np.float64],
    z: NDArray[np.float64],
    *,
    steps: NDArray[np.int64],
    horizon: int,
    length: float,
    sensor: Sensor,
) -> NDArray[np.float32]:
    """Computes the policy's features of a belief: [B, 13], most of them in -1..1.

    position / L, mean / L, std / L, (mean - position) / L (two each); log spread / L, x-y correlation, log10 of the
    reading over the threshold (0: nothing was detected), a flag of a detection, t / horizon.

    Args:
        belief_summary: Summary of B clouds.
        position: [B, 3] meters.
        z: [B]. Readings.
        steps: [B]. Steps.
        horizon: Maximum steps of an episode.
        length: L, the longer side of the area, meters.
        sensor: The sensor.
    """
    if (
        belief_summary.mean is None
        or belief_summary.std is None
        or belief_summary.covariance is None
        or belief_summary.spread is None
    ):
        raise ConfigError(
            "the belief has no features of a position",
            value="summary without moments",
            expected="the summary of a cloud",
        )
    sensor_position, mean, std = (
        position[:, :2] / length,
        belief_summary.mean[:, :2] / length,
        belief_summary.std[:, :2] / length,
    )
    spans = belief_summary.std[:, 0] * belief_summary.std[:, 1]
    correlation = np.where(spans > 0, belief_summary.covariance[:, 0, 1] / np.where(spans > 0, spans, 1.0), 0.0)
    hit = z > sensor.threshold
    level = np.where(hit, np.log10(np.maximum(z, sensor.threshold) / sensor.threshold), 0.0)
    spread = np.log(np.maximum(belief_summary.spread, 1e-6) / length)
    other_features = [spread, np.clip(correlation, -1.0, 1.0), level, hit, steps / horizon]
    return np.concatenate(
        [sensor_position, mean, std, mean - sensor_position, np.stack(other_features, -1)], -1
    ).astype(np.float32)

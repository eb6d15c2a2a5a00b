"""Beliefs about sources as weighted hypotheses: B beliefs of N hypotheses each, as a structure of arrays [B, N].

Particles and grids are such clouds; planners, summaries and features need not know which. The numbers that make a cloud
random come from the seed of each belief and the number of its readings, so a belief is the same alone and among others.
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
from evolvent.worlds.plume.model import NAMES, Sensor, Terms, terms
from evolvent.worlds.plume.prior import Family, Marginal, PlumePrior

__all__ = [
    "Cloud",
    "checked",
    "cloud_of",
    "features",
    "log_prior",
    "map_rows",
    "prior",
    "put",
    "streams",
    "summary",
    "weighted_moments",
]

ROOM = 16  # readings that a cloud has room for; doubled when they are full


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """B beliefs of N hypotheses.

    Args:
        families: the eight families of the prior, the same for all B.
        parameters: [B, 8, 2] the prior's parameters.
        area: [B, 2, 2] where sensors may be: low and high of x and of y, metres.
        theta: [8, B, N] the hypotheses, in the order of `NAMES`.
        derived: [4, B, N] what concentrations need of them (`Terms` after x, y, z).
        log_w: [B, N] log weights, normalised: their exponentials add up to 1.
        base: [B, N], `gain`: [B] such that base + log_w + gain is the log-likelihood of all readings so far.
        past: [B, T, 4] where the sensor stood and what it read; `counts` of each belief's are there.
        counts: [B] readings so far; kept on the processor.
        seeds: [B] whole numbers; kept on the processor.
        ess: [B] effective sample size after the last reading, before resampling.
        evidence: [B] log predictive density of the last reading.
        collapses: [B] how often a reading was impossible and the belief was begun anew.
        exact: False once a move was made that leaves `base` behind.
        fused: whether its arithmetic is that of `fused`, loops compiled by numba for processors, instead of torch's.
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
        """The terms of all hypotheses, each [B, N]."""
        return Terms(*self.theta[:3], *self.derived)

    @property
    def size(self) -> tuple[int, int]:
        """(B, N)."""
        return int(self.log_w.shape[0]), int(self.log_w.shape[1])

    @property
    def log_like(self) -> Tensor:
        """[B, N] the log-likelihood of all readings so far under each hypothesis."""
        return self.base + self.log_w + self.gain.unsqueeze(-1)


def streams(seeds: NDArray[np.int64], counts: NDArray[np.int64], purpose: int) -> list[torch.Generator]:
    """A generator for each belief, made from its seed, the number of its readings and what it is for."""
    with np.errstate(over="ignore"):
        mixed = seeds.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + counts.astype(np.uint64) * np.uint64(16)
        mixed += np.uint64(purpose)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64, Steele et al. 2014
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return [torch.Generator().manual_seed(int(number >> np.uint64(1))) for number in mixed]


def prior(
    priors: Sequence[PlumePrior], n: int, *, seeds: Sequence[int], device: str = "cpu", fused: bool = False
) -> Cloud:
    """N particles drawn from each of B priors, evenly weighted.

    Args:
        priors: B of them, of the same families.
        n: particles of each, at least 1. One particle never learns: it is the estimate, whatever is read.
        seeds: [B]; equal seeds and priors give equal particles.
        device: where they are; they are float32.
        fused: do the arithmetic in loops compiled by numba, for processors only: ten times faster and more, after
            some seconds for compiling.
    Raises:
        ConfigError: no prior, n below 1, or priors of different families.
    """
    if n < 1:
        raise ConfigError("a belief without particles", value=n, expected="n of at least 1")
    if fused and (device != "cpu" or find_spec("numba") is None):
        if device == "cpu":
            raise MissingExtra("belief", "fused arithmetic of beliefs")
        raise ConfigError("fused arithmetic is for processors", value=device, expected="cpu", hint="give fused=False")
    if len(priors) != len(seeds):
        raise BatchMismatch("a seed for each prior", value=len(seeds), expected=len(priors))
    drawn = np.empty((len(NAMES), len(priors), n))
    for i, (each, seed) in enumerate(zip(priors, seeds, strict=True)):
        rng = sample_rng("particles", seed)
        for j, marginal in enumerate(each.marginals):
            drawn[j, i] = _draws(marginal, NAMES[j], n, rng=rng)
    theta = torch.as_tensor(drawn, dtype=torch.float32, device=device)
    return replace(cloud_of(priors, theta, torch.full_like(theta[0], -math.log(n)), seeds=seeds), fused=fused)


def _draws(marginal: Marginal, name: str, n: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """n draws; those that no source can have are drawn again. WorldError: a hundred rounds did not do."""
    found = np.full(n, np.nan)
    wanted = np.arange(n)
    for _ in range(100):
        if marginal.family == "normal":
            found[wanted] = rng.normal(marginal.a, marginal.b, len(wanted))
        elif marginal.family == "gamma":
            found[wanted] = rng.gamma(marginal.a, marginal.b, len(wanted))
        else:
            found[wanted] = rng.uniform(marginal.a, marginal.b, len(wanted))
        wanted = np.flatnonzero(~_possible(name, found))
        if not len(wanted):
            return found
    raise WorldError(f"a prior that allows hardly any {name}", value=marginal, expected="mass above 0")


def _possible(name: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    if name in ("rate", "wind_speed"):
        return values >= 0
    return values > 0 if name in ("diffusivity", "lifetime") else np.isfinite(values)


def cloud_of(priors: Sequence[PlumePrior], theta: Tensor, log_w: Tensor, *, seeds: Sequence[int]) -> Cloud:
    """A cloud of given hypotheses [8, B, N] with given log weights [B, N], before any reading.

    Raises:
        ConfigError: no prior, or priors of different families.
        BatchMismatch: arrays of another shape.
    """
    b, n = log_w.shape
    if not priors or len({each.families() for each in priors}) != 1:
        raise ConfigError(
            "beliefs together have priors of the same families",
            value=sorted({each.families() for each in priors}),
            expected="one",
        )
    if theta.shape != (len(NAMES), b, n) or len(priors) != b:
        raise BatchMismatch("hypotheses of another shape", value=tuple(theta.shape), expected=(len(NAMES), b, n))
    parameters = np.stack([each.parameters() for each in priors])
    area = np.array([each.area for each in priors], dtype=np.float64)
    return Cloud(
        families=priors[0].families(),
        parameters=torch.as_tensor(parameters).to(theta),
        area=torch.as_tensor(area).to(theta),
        theta=theta,
        derived=torch.stack(list(terms(*theta, xp=torch)[3:])),
        log_w=log_w,
        base=-log_w,
        gain=theta.new_zeros(b),
        past=theta.new_zeros(b, ROOM, 4),
        counts=np.zeros(b, dtype=np.int64),
        seeds=np.array([int(seed) for seed in seeds], dtype=np.int64),
        ess=torch.exp(-torch.logsumexp(2 * log_w, -1)),
        evidence=theta.new_zeros(b),
        collapses=np.zeros(b, dtype=np.int64),
    )


def log_prior(families: Sequence[Family], parameters: Tensor, theta: Tensor) -> Tensor:
    """[B, N] the log prior density of hypotheses, up to a constant of each belief; -inf outside the support.

    Args:
        parameters: [B, 8, 2].
        theta: [8, B, N].
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


def map_rows(cloud: Cloud, rows: NDArray[np.int64]) -> Cloud:
    """The beliefs of some rows, copied."""
    at = torch.as_tensor(rows, device=cloud.log_w.device)
    picked = {
        each.name: getattr(cloud, each.name).index_select(_ROW_AXIS.get(each.name, 0), at)
        if isinstance(getattr(cloud, each.name), Tensor)
        else getattr(cloud, each.name)[rows]
        for each in fields(cloud)
        if each.name not in ("families", "exact", "fused")
    }
    return replace(cloud, **picked)


def put(cloud: Cloud, rows: NDArray[np.int64], fresh: Cloud) -> Cloud:
    """The cloud with some beliefs replaced, in place: the old cloud's arrays are used up. For episodes that begin anew.

    Raises:
        BatchMismatch: another number of hypotheses, or families that differ.
    """
    if fresh.size != (len(rows), cloud.size[1]) or fresh.families != cloud.families:
        raise BatchMismatch("beliefs that do not fit in", value=fresh.size, expected=(len(rows), cloud.size[1]))
    long = max(cloud.past.shape[1], fresh.past.shape[1])
    cloud, fresh = _with_room(cloud, long), _with_room(fresh, long)
    at = torch.as_tensor(rows, device=cloud.log_w.device)
    for each in fields(cloud):
        target, source = getattr(cloud, each.name), getattr(fresh, each.name)
        if isinstance(target, Tensor):
            target.index_copy_(_ROW_AXIS.get(each.name, 0), at, source)
        elif isinstance(target, np.ndarray):
            target[rows] = source
    return replace(cloud, exact=cloud.exact and fresh.exact)


def _with_room(cloud: Cloud, readings: int) -> Cloud:
    """The cloud with room for so many readings."""
    b, long, _ = cloud.past.shape
    if long >= readings:
        return cloud
    more = torch.zeros(b, max(readings, 2 * long) - long, 4, dtype=cloud.past.dtype, device=cloud.past.device)
    return replace(cloud, past=torch.cat([cloud.past, more], 1))


def checked(cloud: Cloud, position: object, z: object) -> Tensor:
    """[B, 4] places and readings on the cloud's device.

    Args:
        position: [B, 3] metres, numpy or torch.
        z: [B] readings, grams per cubic metre.
    Raises:
        WorldError: a reading that is negative or not finite, or a place outside the area. BatchMismatch: other shapes.
    """
    like = cloud.log_w
    at = torch.as_tensor(position, dtype=like.dtype, device=like.device)
    read = torch.as_tensor(z, dtype=like.dtype, device=like.device)
    b = cloud.size[0]
    if at.shape != (b, 3) or read.shape != (b,):
        raise BatchMismatch(
            "a place [B, 3] and a reading [B] for each belief",
            value=(tuple(at.shape), tuple(read.shape)),
            expected=((b, 3), (b,)),
        )
    bad = ~(torch.isfinite(read) & (read >= 0))
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise WorldError(
            "a reading that no sensor gives",
            value=float(read[row]),
            expected="finite and 0 or more",
            hint=f"belief {row}",
        )
    slack = 1e-4 * (cloud.area[..., 1] - cloud.area[..., 0])
    inside = (at[:, :2] >= cloud.area[..., 0] - slack) & (at[:, :2] <= cloud.area[..., 1] + slack)
    inside = inside.all(-1) & torch.isfinite(at).all(-1)
    if not bool(inside.all()):
        row = int((~inside).to(torch.int8).argmax())
        raise WorldError(
            "a place outside the area", value=at[row].tolist(), expected=cloud.area[row].tolist(), hint=f"belief {row}"
        )
    return torch.cat([at, read.unsqueeze(-1)], -1)


def weighted_moments(log_w: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(weights [B, N], means [B, D], covariances [B, D, D]) of hypotheses [D, B, N]; two passes, O(D N) memory."""
    w = torch.exp(log_w)
    rows = theta.permute(1, 0, 2)  # [B, D, N]
    mean = torch.linalg.vecdot(rows, w.unsqueeze(1))  # a matrix product would add up one belief otherwise than several
    centred = (rows - mean.unsqueeze(-1)) * torch.sqrt(w).unsqueeze(1)
    return w, mean, torch.bmm(centred, centred.transpose(1, 2))


def summary(cloud: Cloud) -> BeliefSummary:
    """What detectors look at: weighted means, standard deviations, the covariance of the place, entropy of the weights.

    The entropy is that of the weights: 0 to log N nats. It falls with every reading and rises when particles are
    resampled, so it compares beliefs of one kind and size only.
    """
    w, mean, covariance = weighted_moments(cloud.log_w, cloud.theta)
    place = covariance[:, :2, :2]
    entropy = -torch.where(w > 0, w * cloud.log_w, 0.0).sum(-1)
    found = {
        "entropy": entropy.clamp_min(0.0),
        "mean": mean,
        "std": torch.sqrt(torch.diagonal(covariance, dim1=1, dim2=2).clamp_min(0.0)),
        "covariance": place,
        "spread": torch.sqrt((place[:, 0, 0] + place[:, 1, 1]).clamp_min(0.0)),
        "ess": 1.0 / (w * w).sum(-1),
    }
    return BeliefSummary(**{name: value.double().cpu().numpy() for name, value in found.items()})


def features(
    seen: BeliefSummary,
    position: NDArray[np.float64],
    z: NDArray[np.float64],
    *,
    t: NDArray[np.int64],
    horizon: int,
    length: float,
    sensor: Sensor,
) -> NDArray[np.float32]:
    """What a policy sees of a belief: [B, 13], most of them in -1..1.

    place / L, mean / L, std / L, (mean - place) / L (two each); log spread / L, x-y correlation, log10 of the reading
    over the threshold (0: nothing was detected), a flag that something was, t / horizon.

    Args:
        seen: of B clouds.
        position: [B, 3] metres; z: [B] readings; t: [B] steps.
        length: L, the longer side of the area, metres.
    """
    if seen.mean is None or seen.std is None or seen.covariance is None or seen.spread is None:
        raise ConfigError("features of a belief about a place", value="a summary without moments", expected="a cloud's")
    place, mean, std = position[:, :2] / length, seen.mean[:, :2] / length, seen.std[:, :2] / length
    spans = seen.std[:, 0] * seen.std[:, 1]
    correlation = np.where(spans > 0, seen.covariance[:, 0, 1] / np.where(spans > 0, spans, 1.0), 0.0)
    hit = z > sensor.threshold
    level = np.where(hit, np.log10(np.maximum(z, sensor.threshold) / sensor.threshold), 0.0)
    spread = np.log(np.maximum(seen.spread, 1e-6) / length)
    rest = [spread, np.clip(correlation, -1.0, 1.0), level, hit, t / horizon]
    return np.concatenate([place, mean, std, mean - place, np.stack(rest, -1)], -1).astype(np.float32)

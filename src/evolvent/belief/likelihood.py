"""How likely a reading is under many sources at once: the likelihood of AutoSTE, and the one that is the sensor's own.

With C the concentration that a source causes, sigma0 = threshold and sigmaN = sigma_fraction C + sigma:

    published   z <= threshold:  Pd Phi((threshold - C) / sigma0) + (1 - Pd);      else  Normal(z; C, sigmaN)
    consistent  z <= threshold:  Pd Phi((threshold - C) / sigmaN) + (1 - Pd);      else  Pd Normal(z; C, sigmaN)

The first is `hLikePlume.m` of AutoSTE (note the missing Pd); it does not integrate to 1. The second does.

A non-detection says the same whatever the sensor would have read, so all of them share one evaluation (`planners`).
The functions here are torch, for processors and GPUs alike; `fused` has the same equations as single loops.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evolvent.worlds.plume.model import NEAREST, Sensor, Terms, dilution

__all__ = ["joint_log_likelihood", "log_likelihood", "past_log_likelihood", "reweigh", "sensor_row"]

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_PRODUCT = 30  # chances of at least 1/10 that are multiplied before the logarithm: 1e-30 is still a float32
_LEAST = 1e-37  # the least chance of a non-detection, still a normal float32
_CACHED = 1 << 14  # numbers in an array that is worked on: three of them fit the cache of a core


def sensor_row(sensor: Sensor, like: Tensor) -> Tensor:
    """[7] the sensor's numbers on the device and in the dtype of a tensor: threshold, Pd, sigma, sigma_fraction, the
    constant and the growing part of a non-detection's spread, and log Pd where it counts for detections."""
    own = sensor.likelihood == "consistent"
    missed = (sensor.sigma, sensor.sigma_fraction) if own else (sensor.threshold, 0.0)
    numbers = (
        sensor.threshold,
        sensor.detect,
        sensor.sigma,
        sensor.sigma_fraction,
        *missed,
        math.log(sensor.detect) if own else 0.0,
    )
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)


def _log_density(clean: Tensor, z: Tensor, row: Tensor) -> Tensor:
    """`log_likelihood` with the sensor as a row: the logarithm, the dearest part, is taken once for both branches.

    A sensor that never misses still has a chance of `_LEAST` to: 1 + erf is exactly 0 in float32 from 4 on, and where
    every hypothesis has a chance of 0 there is no weight left. `fused` takes its logarithms of such numbers too.
    """
    threshold, detect, sigma, fraction, missed, missed_fraction, log_detect = row.unbind()
    hit = z > threshold
    spread = fraction * clean + sigma
    below = torch.erf((threshold - clean) / ((missed_fraction * clean + missed) * math.sqrt(2.0)))
    log = torch.log(torch.where(hit, spread, (0.5 * detect * (1.0 + below) + (1.0 - detect)).clamp_min_(_LEAST)))
    error = (z - clean) / spread
    return torch.where(hit, log_detect - _LOG_ROOT - 0.5 * error * error - log, log)


def log_likelihood(clean: Tensor, z: Tensor, sensor: Sensor) -> Tensor:
    """log L(z | C).

    Args:
        clean: [...] concentrations C, grams per cubic metre.
        z: [...] readings, broadcast against them; at or below the threshold: nothing was detected.
    Returns:
        [...] natural logarithms; -inf where the density is 0 in the arrays' precision.
    """
    return _log_density(clean, z, sensor_row(sensor, clean))


def reweigh(log_w: Tensor, known: Terms, place: Tensor, *, sensor: Sensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bayes' rule for B beliefs of N hypotheses each.

    Args:
        log_w: [B, N] normalised log weights.
        known: the terms of the hypotheses, each [B, N].
        place: [B, 4] where the sensor stood (x, y, z) and what it read.
    Returns:
        (log weights [B, N], log predictive density of the reading [B], effective sample size [B]). Where no
        hypothesis allows the reading, the second is -inf and the others mean nothing.
    """
    px, py, pz, z = place.T.unsqueeze(-1).unbind()
    joint = log_w + log_likelihood(dilution(known, (px, py, pz), xp=torch), z, sensor)
    most = joint.amax(-1, keepdim=True)
    top = torch.where(most > -math.inf, most, 0.0)
    grown = torch.exp(joint - top)
    total = grown.sum(-1, keepdim=True)
    evidence = top + torch.log(total)
    ess = total.squeeze(-1) ** 2 / (grown * grown).sum(-1)
    return joint - evidence, evidence.squeeze(-1), ess


def past_log_likelihood(known: Terms, past: Tensor, counts: Tensor, *, sensor: Sensor) -> Tensor:
    """[R, N] the log-likelihood of all readings so far.

    Args:
        known: the terms of the hypotheses, each [R, N].
        past: [R, T, 4] places and readings.
        counts: [R] how many of the T are there.
    """
    at = Terms(*(term.unsqueeze(1) for term in known))
    px, py, pz, z = past.permute(2, 0, 1).unsqueeze(-1).unbind()
    log_l = log_likelihood(dilution(at, (px, py, pz), xp=torch), z, sensor)
    there = torch.arange(past.shape[1], device=past.device) < counts.unsqueeze(-1)
    return torch.where(there.unsqueeze(-1), log_l, 0.0).sum(1)


def joint_log_likelihood(known: Terms, past: Tensor, *, sensor: Sensor, hit: bool) -> Tensor:
    """[N] the log-likelihood of readings [T, 4] of one sort under the hypotheses of one belief, each term [N].

    The same as `past_log_likelihood`, for processors: detections (`hit`) and non-detections apart, so neither pays for
    the other; every array in use fits a cache; the logarithm of a product instead of a sum of logarithms.
    """
    total = torch.zeros_like(known.x)
    own = sensor.likelihood == "consistent"
    rows = min(_PRODUCT, max(1, _CACHED // max(1, len(total))))
    for i in range(0, len(past), rows):
        some = past[i : i + rows]
        px, py, pz, z = some.T.unsqueeze(-1).unbind()
        clean = _dilution_in_place(known, px, py, pz)
        spread = clean * sensor.sigma_fraction + sensor.sigma if hit or own else None
        if hit and spread is not None:
            error = clean.sub_(z).div_(spread)
            total -= 0.5 * torch.linalg.vecdot(error, error, dim=0) + torch.log(spread).sum(0)
            total -= len(some) * (_LOG_ROOT - (math.log(sensor.detect) if own else 0.0))
        else:
            width = sensor.threshold if spread is None else spread
            below = clean.neg_().add_(sensor.threshold).div_(width * math.sqrt(2.0)).erf_()
            chance = below.mul_(0.5 * sensor.detect).add_(1.0 - 0.5 * sensor.detect)
            total += torch.log(chance.clamp_min_(_LEAST)).sum(0) if sensor.detect > 0.9 else torch.log(chance.prod(0))
    return total


def _dilution_in_place(known: Terms, px: Tensor, py: Tensor, pz: Tensor) -> Tensor:
    """`dilution` of N hypotheses at T places [T, 1], in three arrays [T, N]."""
    dx, dy = px - known.x, py - known.y
    d = torch.addcmul((pz[:1] - known.z) ** 2, dx, dx) if bool((pz == pz[0]).all()) else (pz - known.z) ** 2 + dx * dx
    d = d.addcmul_(dy, dy).sqrt_().clamp_(min=NEAREST)
    exponent = dx.mul_(known.along_x).addcmul_(dy, known.along_y).addcmul_(d, known.decay)
    found: Tensor = exponent.neg_().exp_().mul_(known.strength).div_(d)
    return found

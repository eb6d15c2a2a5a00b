"""Likelihood of a reading under many sources at once: the published one of AutoSTE, and the one of the sensor
itself.

With C the concentration that a source causes, sigma0 = threshold and sigmaN = sigma_fraction C + sigma:

    published   z <= threshold:  Pd Phi((threshold - C) / sigma0) + (1 - Pd);      else  Normal(z; C, sigmaN)
    consistent  z <= threshold:  Pd Phi((threshold - C) / sigmaN) + (1 - Pd);      else  Pd Normal(z; C, sigmaN)

The first is `hLikePlume.m` of AutoSTE (note the missing Pd); it does not integrate to 1. The second does.

A non-detection has the same likelihood for any reading below the threshold, so all of them share one evaluation
(`planners`). The functions here use torch, on CPUs and GPUs; `fused` has the same equations as single loops.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evolvent.worlds.plume.model import NEAREST, Sensor, Terms, dilution

__all__ = ["joint_log_likelihood", "log_likelihood", "past_log_likelihood", "reweigh", "sensor_row"]

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_PRODUCT = 30  # chances of at least 1/10 that are multiplied before the logarithm: 1e-30 is still a float32
_MIN_PROBABILITY = 1e-37  # the least chance of a non-detection, still a normal float32
_CACHE_SIZE = 1 << 14  # numbers in an array that is worked on: three of them fit the cache of a core


def sensor_row(sensor: Sensor, like: Tensor) -> Tensor:
    """Returns the sensor's numbers, [7], on the device and in the dtype of a tensor.

    threshold, Pd, sigma, sigma_fraction, the constant and the growing part of a non-detection's spread, and log Pd
    where it counts for detections.
    """
    is_consistent = sensor.likelihood == "consistent"
    miss_spread = (sensor.sigma, sensor.sigma_fraction) if is_consistent else (sensor.threshold, 0.0)
    numbers = (
        sensor.threshold,
        sensor.detect,
        sensor.sigma,
        sensor.sigma_fraction,
        *miss_spread,
        math.log(sensor.detect) if is_consistent else 0.0,
    )
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)


def _log_density(mean_reading: Tensor, z: Tensor, row: Tensor) -> Tensor:
    """Computes `log_likelihood` with the sensor as a row; both branches share one logarithm, the most expensive
    part.

    A sensor that never misses still gets a probability of `_MIN_PROBABILITY` for a miss: 1 + erf is exactly 0 in
    float32 from 4 on, and where every hypothesis has probability 0 no weight is left. `fused` takes logarithms of
    such numbers too.
    """
    threshold, detect, sigma, fraction, miss_spread, miss_spread_fraction, log_detect = row.unbind()
    is_detection = z > threshold
    spread = fraction * mean_reading + sigma
    below = torch.erf(
        (threshold - mean_reading) / ((miss_spread_fraction * mean_reading + miss_spread) * math.sqrt(2.0))
    )
    log = torch.log(
        torch.where(is_detection, spread, (0.5 * detect * (1.0 + below) + (1.0 - detect)).clamp_min_(_MIN_PROBABILITY))
    )
    error = (z - mean_reading) / spread
    return torch.where(is_detection, log_detect - _LOG_ROOT - 0.5 * error * error - log, log)


def log_likelihood(mean_reading: Tensor, z: Tensor, sensor: Sensor) -> Tensor:
    """Computes log L(z | C).

    Args:
        mean_reading: [...]. Concentrations C, grams per cubic meter.
        z: [...]. Readings, broadcast against them; at or below the threshold: nothing was detected.
        sensor: The sensor.
    Returns:
        [...] natural logarithms; -inf where the density is 0 in the arrays' precision.
    """
    return _log_density(mean_reading, z, sensor_row(sensor, mean_reading))


def reweigh(
    log_w: Tensor, source_terms: Terms, position_reading: Tensor, *, sensor: Sensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes Bayes' rule for B beliefs of N hypotheses each.

    Args:
        log_w: [B, N]. Normalized log weights.
        source_terms: Terms of the hypotheses, each [B, N].
        position_reading: [B, 4]. Sensor position (x, y, z) and reading.
        sensor: The sensor.
    Returns:
        (log weights [B, N], log predictive density of the reading [B], effective sample size [B]). Where no
            hypothesis
        allows the reading, the second is -inf and the others are undefined.
    """
    px, py, pz, z = position_reading.T.unsqueeze(-1).unbind()
    joint = log_w + log_likelihood(dilution(source_terms, (px, py, pz), xp=torch), z, sensor)
    max_joint = joint.amax(-1, keepdim=True)
    top = torch.where(max_joint > -math.inf, max_joint, 0.0)
    unnormalized = torch.exp(joint - top)
    total = unnormalized.sum(-1, keepdim=True)
    evidence = top + torch.log(total)
    ess = total.squeeze(-1) ** 2 / (unnormalized * unnormalized).sum(-1)
    return joint - evidence, evidence.squeeze(-1), ess


def past_log_likelihood(source_terms: Terms, past: Tensor, counts: Tensor, *, sensor: Sensor) -> Tensor:
    """Computes the log-likelihood of all readings so far, [R, N].

    Args:
        source_terms: Terms of the hypotheses, each [R, N].
        past: [R, T, 4]. Positions and readings.
        counts: [R]. Number of valid readings among the T.
        sensor: The sensor.
    """
    broadcast_terms = Terms(*(term.unsqueeze(1) for term in source_terms))
    px, py, pz, z = past.permute(2, 0, 1).unsqueeze(-1).unbind()
    log_l = log_likelihood(dilution(broadcast_terms, (px, py, pz), xp=torch), z, sensor)
    is_valid = torch.arange(past.shape[1], device=past.device) < counts.unsqueeze(-1)
    return torch.where(is_valid.unsqueeze(-1), log_l, 0.0).sum(1)


def joint_log_likelihood(source_terms: Terms, past: Tensor, *, sensor: Sensor, is_detection: bool) -> Tensor:
    """Computes the log-likelihood of readings [T, 4] of one kind under the hypotheses of one belief, [N], each
    term [N].

    The same as `past_log_likelihood`, optimized for CPUs: detections (`is_detection`) and non-detections are
    separate, so neither pays for the other; every array fits a cache; the logarithm of a product replaces a sum of
    logarithms.
    """
    total = torch.zeros_like(source_terms.x)
    is_consistent = sensor.likelihood == "consistent"
    rows = min(_PRODUCT, max(1, _CACHE_SIZE // max(1, len(total))))
    for i in range(0, len(past), rows):
        block = past[i : i + rows]
        px, py, pz, z = block.T.unsqueeze(-1).unbind()
        mean_reading = _dilution_in_place(source_terms, px, py, pz)
        spread = mean_reading * sensor.sigma_fraction + sensor.sigma if is_detection or is_consistent else None
        if is_detection and spread is not None:
            error = mean_reading.sub_(z).div_(spread)
            total -= 0.5 * torch.linalg.vecdot(error, error, dim=0) + torch.log(spread).sum(0)
            total -= len(block) * (_LOG_ROOT - (math.log(sensor.detect) if is_consistent else 0.0))
        else:
            width = sensor.threshold if spread is None else spread
            below = mean_reading.neg_().add_(sensor.threshold).div_(width * math.sqrt(2.0)).erf_()
            probability = below.mul_(0.5 * sensor.detect).add_(1.0 - 0.5 * sensor.detect)
            total += (
                torch.log(probability.clamp_min_(_MIN_PROBABILITY)).sum(0)
                if sensor.detect > 0.9
                else torch.log(probability.prod(0))
            )
    return total


def _dilution_in_place(source_terms: Terms, px: Tensor, py: Tensor, pz: Tensor) -> Tensor:
    """Computes `dilution` of N hypotheses at T positions [T, 1], in three arrays [T, N]."""
    dx, dy = px - source_terms.x, py - source_terms.y
    d = (
        torch.addcmul((pz[:1] - source_terms.z) ** 2, dx, dx)
        if bool((pz == pz[0]).all())
        else (pz - source_terms.z) ** 2 + dx * dx
    )
    d = d.addcmul_(dy, dy).sqrt_().clamp_(min=NEAREST)
    exponent = dx.mul_(source_terms.along_x).addcmul_(dy, source_terms.along_y).addcmul_(d, source_terms.decay)
    concentrations: Tensor = exponent.neg_().exp_().mul_(source_terms.strength).div_(d)
    return concentrations

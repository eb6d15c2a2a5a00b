"""Arithmetic of the filter as fused loops for CPUs, compiled by numba (extra `belief`).

Separate operations, as in torch, read and write every array a dozen times; a fused loop keeps a particle in
registers. exp and log are polynomials (Cephes, single precision), and the normal distribution function is
Abramowitz and Stegun 7.1.26, so that compilers can vectorize them: relative errors stay near 1e-6, far below
those of any particle cloud. `likelihood` and `moves` have the same equations in torch; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["FAMILIES", "reweigh_fused", "sweep_fused"]

FAMILIES = ("uniform", "normal", "gamma")  # in the order of their codes

F = TypeVar("F", bound=Callable[..., object])
Floats = NDArray[np.float32]
_BLOCK = 256  # particles that are worked on together: their terms stay in the nearest cache
_PRODUCT = 16  # chances of non-detections that are multiplied before a logarithm is taken

f32, i32 = np.float32, np.int32
HALF, ONE, ZERO, TWO = f32(0.5), f32(1.0), f32(0.0), f32(2.0)
NEAREST = f32(1e-5)
LOG2E, LN2_HIGH, LN2_LOW = f32(1.44269504088896341), f32(0.693359375), f32(-2.12194440e-4)
E0, E1, E2 = f32(1.9875691500e-4), f32(1.3981999507e-3), f32(8.3334519073e-3)
E3, E4, E5 = f32(4.1665795894e-2), f32(1.6666665459e-1), f32(5.0000001201e-1)
L0, L1, L2 = f32(7.0376836292e-2), f32(-1.1514610310e-1), f32(1.1676998740e-1)
L3, L4, L5 = f32(-1.2420140846e-1), f32(1.4249322787e-1), f32(-1.6668057665e-1)
L6, L7, L8 = f32(2.0000714765e-1), f32(-2.4999993993e-1), f32(3.3333331174e-1)
P0, P1, P2, P3 = f32(0.3275911), f32(0.254829592), f32(-0.284496736), f32(1.421413741)
P4, P5 = f32(-1.453152027), f32(1.061405429)
EXP_MAX, EXP_MIN, TINY, ROOT_HALF = f32(88.0), f32(-87.0), f32(1e-37), f32(0.70710678118654752)
S1, S2, S3, S4, S5 = (f32((-1) ** i / math.factorial(2 * i + 1)) for i in range(1, 6))
C1, C2, C3, C4, C5, C6 = (f32((-1) ** i / math.factorial(2 * i)) for i in range(1, 7))
ONE_BY_PI, PI_HIGH, PI_LOW = f32(1 / math.pi), f32(3.140625), f32(math.pi - 3.140625)
BIAS, SHIFT, MANTISSA, EXPONENT = i32(127), i32(23), i32(0x7FFFFF), i32(0x3F800000)
LOG_ROOT, FOUR_PI = f32(0.5 * math.log(2 * math.pi)), f32(4 * math.pi)


def _compile(function: F) -> F:
    """Compiles a function, with sums in any order and infinities preserved."""
    compiled: F = numba.njit(fastmath={"contract", "reassoc", "afn", "arcp", "nsz"}, error_model="numpy")(function)
    return compiled


def _compile_ordered(function: F) -> F:
    """Compiles a function for numbers without NaN, which a vectorized maximum requires."""
    compiled: F = numba.njit(fastmath={"nnan", "nsz"})(function)
    return compiled


@_compile
def _exp(x: Any) -> Any:
    x = min(max(x, EXP_MIN), EXP_MAX)
    n = np.floor(x * LOG2E + HALF)
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = ((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5
    power = i32((i32(n) + BIAS) << SHIFT).view(f32)
    return (p * r * r + r + ONE) * power


@_compile
def _log(x: Any) -> Any:
    bits = f32(max(x, TINY)).view(i32)
    n = f32(i32(bits >> SHIFT) - BIAS)
    m = i32((bits & MANTISSA) | EXPONENT).view(f32) * HALF
    low = m < ROOT_HALF
    f = (m + m if low else m) - ONE
    n = n if low else n + ONE
    s = f * f
    p = ((((((((L0 * f + L1) * f + L2) * f + L3) * f + L4) * f + L5) * f + L6) * f + L7) * f + L8) * f * s
    return f + (p - HALF * s + n * LN2_LOW) + n * LN2_HIGH


@_compile
def _cos_sin(angle: Any) -> Any:
    """Computes (cos, sin) by their series around the nearest multiple of pi, for angles of a few turns."""
    n = np.floor(angle * ONE_BY_PI + HALF)
    r = angle - n * PI_HIGH - n * PI_LOW
    s = r * r
    sine = (((((S5 * s + S4) * s + S3) * s + S2) * s + S1) * s + ONE) * r
    cosine = (((((C6 * s + C5) * s + C4) * s + C3) * s + C2) * s + C1) * s + ONE
    half = n * HALF
    sign = ONE - TWO * TWO * (half - np.floor(half))
    return sign * cosine, sign * sine


@_compile
def _concentration(displacement: Any, source_terms: Any) -> Any:
    (dx, dy, dz), (strength, along_x, along_y, decay) = displacement, source_terms
    d = max(np.sqrt(dx * dx + dy * dy + dz * dz), NEAREST)
    return strength / d * _exp(-(dx * along_x + dy * along_y + d * decay))


@_compile
def _miss_probability(mean_reading: Any, sensor_values: Any) -> Any:
    """Computes Pd Phi((threshold - C) / width) + 1 - Pd."""
    threshold, detect, width = sensor_values
    v = (threshold - mean_reading) / width * ROOT_HALF
    a = abs(v)
    t = ONE / (ONE + P0 * a)
    upper_tail = HALF * ((((P5 * t + P4) * t + P3) * t + P2) * t + P1) * t * _exp(-a * a)
    return detect * (upper_tail if v < ZERO else ONE - upper_tail) + (ONE - detect)


@_compile
def _log_detection(mean_reading: Any, z: Any, sensor_values: Any) -> Any:
    """Computes log Normal(z; C, fraction C + sigma), without the constant."""
    sigma, fraction = sensor_values
    spread = fraction * mean_reading + sigma
    error = (z - mean_reading) / spread
    return -HALF * error * error - _log(spread)


@_compile
def _add_reading(source_terms: Any, position_reading: Any, work: Any) -> None:
    """Adds the log-likelihood of one reading to the totals of m particles."""
    m, row, total = work
    threshold, detect, sigma, fraction, miss_width, miss_growth, log_detect = row
    x, y, z, s, ax, ay, k = source_terms
    px, py, pz, observed = position_reading
    if observed > threshold:
        for i in range(m):
            c = _concentration((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            total[i] += _log_detection(c, observed, (sigma, fraction)) + (log_detect - LOG_ROOT)
    else:
        for i in range(m):
            c = _concentration((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            total[i] += _log(_miss_probability(c, (threshold, detect, miss_growth * c + miss_width)))


@_compile_ordered
def _largest(values: Any) -> Any:
    top = f32(-np.inf)
    for i in range(len(values)):
        top = max(top, values[i])
    return top


@_compile
def _normalize(joint: Any, top: Any) -> Any:
    """Normalizes log weights [N] in place, and returns (evidence, effective sample size)."""
    if not top > f32(-np.inf):
        return f32(-np.inf), ONE
    total, squares = ZERO, ZERO
    for i in range(len(joint)):
        grown = _exp(joint[i] - top)
        total += grown
        squares += grown * grown
    evidence = f32(top + math.log(total))
    for i in range(len(joint)):
        joint[i] -= evidence
    return evidence, total * total / squares


@_compile
def reweigh_fused(
    belief: tuple[Floats, Floats, Floats], readings: Floats, row: Floats
) -> tuple[Floats, Floats, Floats]:
    """Updates weights by Bayes' rule; see `likelihood.reweigh`. All arrays are float32 and contiguous.

    Args:
        belief: Log weights [B, N], theta [8, B, N], derived terms [4, B, N].
        readings: [B, 4]. Sensor positions and readings.
        row: [7]. See `likelihood.sensor_row`.
    """
    log_w, theta, derived = belief
    new_log_w, evidence, ess = log_w.copy(), np.empty(len(log_w), f32), np.empty(len(log_w), f32)
    numbers = (row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    for b in range(len(log_w)):
        position_reading = (readings[b, 0], readings[b, 1], readings[b, 2], readings[b, 3])
        source_terms = (
            theta[0, b],
            theta[1, b],
            theta[2, b],
            derived[0, b],
            derived[1, b],
            derived[2, b],
            derived[3, b],
        )
        _add_reading(source_terms, position_reading, (len(new_log_w[b]), numbers, new_log_w[b]))
        evidence[b], ess[b] = _normalize(new_log_w[b], _largest(new_log_w[b]))
    return new_log_w, evidence, ess


@_compile
def _add_misses(source_terms: Any, past: Any, work: Any) -> None:
    """Adds the log-likelihood of all non-detections to the totals of m particles."""
    m, row, total, product = work
    threshold, detect, _, _, miss_width, miss_growth, _ = row
    x, y, z, s, ax, ay, k = source_terms
    num_pending = 0
    product[:m] = ONE
    for t in range(len(past)):
        if past[t, 3] > threshold:
            continue
        px, py, pz = past[t, 0], past[t, 1], past[t, 2]
        for i in range(m):
            c = _concentration((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            product[i] *= _miss_probability(c, (threshold, detect, miss_growth * c + miss_width))
        num_pending += 1
        if num_pending == _PRODUCT or detect > f32(0.9):
            for i in range(m):
                total[i] += _log(product[i])
                product[i] = ONE
            num_pending = 0
    for i in range(m):
        total[i] += _log(product[i])


@_compile
def _select_accepted(proposals: Any, past: Any, work: Any) -> Any:
    """Selects the proposals of m that reach their thresholds over all readings, moves them to the front and counts
    them.

    Detections come first. Others are dropped as soon as they fail: the log-likelihood of a non-detection is at most 0.
    """
    m, row, thresholds, particle_indices, total, product = work
    total[:m] = ZERO
    source_terms = (proposals[0], proposals[1], proposals[2], proposals[3], proposals[4], proposals[5], proposals[6])
    for t in range(len(past)):
        if past[t, 3] > row[0]:
            _add_reading(source_terms, (past[t, 0], past[t, 1], past[t, 2], past[t, 3]), (m, row, total))
    num_left = 0
    for i in range(m):
        if total[i] > thresholds[i]:
            for j in range(7):
                proposals[j, num_left] = proposals[j, i]
            particle_indices[num_left], total[num_left], thresholds[num_left] = (
                particle_indices[i],
                total[i],
                thresholds[i],
            )
            num_left += 1
    _add_misses(source_terms, past, (num_left, row, total, product))
    m, num_left = num_left, 0
    for i in range(m):
        if total[i] > thresholds[i]:
            particle_indices[num_left], total[num_left] = particle_indices[i], total[i]
            num_left += 1
    return num_left


@_compile
def _add_log_prior(theta: Any, families: Any, work: Any) -> None:
    """Computes the log prior density of m particles [8, m] up to a constant, -inf outside the support; see
    `cloud.log_prior`.
    """
    m, parameters, out = work
    out[:m] = ZERO
    for j in range(8):
        a, b, row = parameters[j, 0], parameters[j, 1], theta[j]
        if families[j] == 0:
            for i in range(m):
                out[i] = out[i] if (row[i] >= a) & (row[i] <= b) else f32(-np.inf)
        elif families[j] == 1:
            for i in range(m):
                error = (row[i] - a) / b
                out[i] -= HALF * error * error
        else:
            for i in range(m):
                gamma = (a - ONE) * _log(row[i]) - row[i] / b
                out[i] = out[i] + gamma if row[i] > ZERO else f32(-np.inf)
        if j == 3 or j == 4:
            for i in range(m):
                out[i] = out[i] if row[i] >= ZERO else f32(-np.inf)
        elif j >= 6:
            for i in range(m):
                out[i] = out[i] if row[i] > ZERO else f32(-np.inf)


@_compile
def _propose(theta: Any, root: Any, work: Any) -> None:
    """Computes proposals theta + root eps of m particles."""
    m, normal, out = work
    for j in range(8):
        for i in range(m):
            out[j, i] = theta[j, i]
        for k in range(8):
            factor, column = root[j, k], normal[k]
            for i in range(m):
                out[j, i] += factor * column[i]


@_compile
def _gather_possible(proposed_theta: Any, thresholds: Any, work: Any) -> Any:
    """Stores the terms of the proposals with a finite threshold at the front of `proposals`, and returns their
    number.
    """
    m, proposals, particle_indices = work
    num_left = 0
    for i in range(m):
        if thresholds[i] < f32(np.inf):
            for j in range(8):
                proposals[j, num_left] = proposed_theta[j, i]
            particle_indices[num_left], thresholds[num_left] = i, thresholds[i]
            num_left += 1
    for i in range(num_left):
        rate, speed, turn, diffusivity, lifetime = (
            proposals[3, i],
            proposals[4, i],
            proposals[5, i],
            proposals[6, i],
            proposals[7, i],
        )
        half = speed / (TWO * diffusivity)
        proposals[3, i] = rate / (FOUR_PI * diffusivity)
        cosine, sine = _cos_sin(turn)
        proposals[4, i], proposals[5, i] = half * cosine, half * sine
        proposals[6, i] = np.sqrt((ONE + speed * half * lifetime * HALF) / (diffusivity * lifetime))
    return num_left


@_compile
def sweep_fused(
    particles: tuple[Floats, Floats],
    noise: tuple[Floats, Floats, Floats],
    posterior: tuple[Floats, NDArray[np.int64], Floats, NDArray[np.int64], Floats],
) -> None:
    """Runs one Metropolis move of the particles of R beliefs for the posterior, in place; see `moves`.

    Args:
        particles: theta [8, R, N] and log-likelihoods [R, N].
        noise: Roots [R, 8, 8], normals [R, 8, N], log uniforms [R, N].
        posterior: past [R, T, 4], counts [R], sensor row [7], families [8] (0 uniform, 1 normal, 2 gamma), parameters
            [R, 8, 2].
    """
    (theta, log_like), (root, normal, log_uniform) = particles, noise
    past, counts, row, families, parameters = posterior
    numbers = (row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    proposed_theta, proposals, particle_indices = (
        np.empty((8, _BLOCK), f32),
        np.empty((8, _BLOCK), f32),
        np.empty(_BLOCK, np.int64),
    )
    log_prior, thresholds = np.empty(_BLOCK, f32), np.empty(_BLOCK, f32)
    total, product = np.empty(_BLOCK, f32), np.empty(_BLOCK, f32)
    for r in range(len(log_like)):
        for start in range(0, log_like.shape[1], _BLOCK):
            stop = min(start + _BLOCK, log_like.shape[1])
            m, block_theta = stop - start, theta[:, r, start:stop]
            _propose(block_theta, root[r], (m, normal[r, :, start:stop], proposed_theta))
            _add_log_prior(block_theta, families, (m, parameters[r], log_prior))
            _add_log_prior(proposed_theta, families, (m, parameters[r], thresholds))
            for i in range(m):
                thresholds[i] = log_uniform[r, start + i] + log_like[r, start + i] + log_prior[i] - thresholds[i]
            num_left = _gather_possible(proposed_theta, thresholds, (m, proposals, particle_indices))
            num_left = _select_accepted(
                proposals, past[r, : counts[r]], (num_left, numbers, thresholds, particle_indices, total, product)
            )
            for i in range(num_left):
                log_like[r, start + particle_indices[i]] = total[i]
                for j in range(8):
                    block_theta[j, particle_indices[i]] = proposed_theta[j, particle_indices[i]]

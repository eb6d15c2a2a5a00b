"""The filter's arithmetic as fused loops for processors, compiled by numba (extra `belief`).

One operation after the other, as torch does it, reads and writes every array a dozen times; a fused loop keeps a
particle in registers. exp and log are polynomials (Cephes, single precision), and the normal distribution function is
Abramowitz and Stegun 7.1.26, so that compilers can make vectors of them: relative errors stay near 1e-6, far below
those of any particle cloud. `likelihood` and `moves` have the same equations in torch; tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["FAMILIES", "swept", "weighed"]

FAMILIES = ("uniform", "normal", "gamma")  # in the order of their codes

F = TypeVar("F", bound=Callable[..., Any])
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
LARGEST, LEAST, TINY, ROOT_HALF = f32(88.0), f32(-87.0), f32(1e-37), f32(0.70710678118654752)
S1, S2, S3, S4, S5 = (f32((-1) ** i / math.factorial(2 * i + 1)) for i in range(1, 6))
C1, C2, C3, C4, C5, C6 = (f32((-1) ** i / math.factorial(2 * i)) for i in range(1, 7))
ONE_BY_PI, PI_HIGH, PI_LOW = f32(1 / math.pi), f32(3.140625), f32(math.pi - 3.140625)
BIAS, SHIFT, MANTISSA, EXPONENT = i32(127), i32(23), i32(0x7FFFFF), i32(0x3F800000)
LOG_ROOT, FOUR_PI = f32(0.5 * math.log(2 * math.pi)), f32(4 * math.pi)


def _compile(function: F) -> F:
    """Compiled, with sums in any order and infinities kept."""
    found: F = numba.njit(fastmath={"contract", "reassoc", "afn", "arcp", "nsz"}, error_model="numpy")(function)
    return found


def _compile_ordered(function: F) -> F:
    """Compiled for numbers without NaN, among which alone a maximum can be a vector's."""
    found: F = numba.njit(fastmath={"nnan", "nsz"})(function)
    return found


@_compile
def _exp(x: Any) -> Any:
    x = min(max(x, LEAST), LARGEST)
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
def _turned(angle: Any) -> Any:
    """(cos, sin) by their series about the nearest multiple of pi, for angles of some turns."""
    n = np.floor(angle * ONE_BY_PI + HALF)
    r = angle - n * PI_HIGH - n * PI_LOW
    s = r * r
    sine = (((((S5 * s + S4) * s + S3) * s + S2) * s + S1) * s + ONE) * r
    cosine = (((((C6 * s + C5) * s + C4) * s + C3) * s + C2) * s + C1) * s + ONE
    half = n * HALF
    sign = ONE - TWO * TWO * (half - np.floor(half))
    return sign * cosine, sign * sine


@_compile
def _clean(away: Any, known: Any) -> Any:
    (dx, dy, dz), (strength, along_x, along_y, decay) = away, known
    d = max(np.sqrt(dx * dx + dy * dy + dz * dz), NEAREST)
    return strength / d * _exp(-(dx * along_x + dy * along_y + d * decay))


@_compile
def _missed(clean: Any, numbers: Any) -> Any:
    """Pd Phi((threshold - C) / width) + 1 - Pd."""
    threshold, detect, width = numbers
    v = (threshold - clean) / width * ROOT_HALF
    a = abs(v)
    t = ONE / (ONE + P0 * a)
    tail = HALF * ((((P5 * t + P4) * t + P3) * t + P2) * t + P1) * t * _exp(-a * a)
    return detect * (tail if v < ZERO else ONE - tail) + (ONE - detect)


@_compile
def _found(clean: Any, z: Any, numbers: Any) -> Any:
    """log Normal(z; C, fraction C + sigma), without the constant."""
    sigma, fraction = numbers
    spread = fraction * clean + sigma
    error = (z - clean) / spread
    return -HALF * error * error - _log(spread)


@_compile
def _add_reading(known: Any, place: Any, work: Any) -> None:
    """Adds the log-likelihood of one reading to the totals of m particles."""
    m, row, total = work
    threshold, detect, sigma, fraction, missed, growing, log_detect = row
    x, y, z, s, ax, ay, k = known
    px, py, pz, read = place
    if read > threshold:
        for i in range(m):
            c = _clean((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            total[i] += _found(c, read, (sigma, fraction)) + (log_detect - LOG_ROOT)
    else:
        for i in range(m):
            c = _clean((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            total[i] += _log(_missed(c, (threshold, detect, growing * c + missed)))


@_compile_ordered
def _largest(values: Any) -> Any:
    top = f32(-np.inf)
    for i in range(len(values)):
        top = max(top, values[i])
    return top


@_compile
def _normalise(joint: Any, top: Any) -> Any:
    """(evidence, effective sample size) of log weights [N], which are normalised in place."""
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
def weighed(belief: tuple[Floats, Floats, Floats], place: Floats, row: Floats) -> tuple[Floats, Floats, Floats]:
    """Bayes' rule; see `likelihood.reweigh`. All arrays are float32 and contiguous.

    Args:
        belief: log weights [B, N], theta [8, B, N], what is derived of it [4, B, N].
        place: [B, 4]. row: [7] of `likelihood.sensor_row`.
    """
    log_w, theta, derived = belief
    out, evidence, ess = log_w.copy(), np.empty(len(log_w), f32), np.empty(len(log_w), f32)
    numbers = (row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    for b in range(len(log_w)):
        at = (place[b, 0], place[b, 1], place[b, 2], place[b, 3])
        known = (theta[0, b], theta[1, b], theta[2, b], derived[0, b], derived[1, b], derived[2, b], derived[3, b])
        _add_reading(known, at, (len(out[b]), numbers, out[b]))
        evidence[b], ess[b] = _normalise(out[b], _largest(out[b]))
    return out, evidence, ess


@_compile
def _add_missed(known: Any, past: Any, work: Any) -> None:
    """Adds the log-likelihood of all non-detections to the totals of m particles."""
    m, row, total, product = work
    threshold, detect, _, _, missed, growing, _ = row
    x, y, z, s, ax, ay, k = known
    held_back = 0
    product[:m] = ONE
    for t in range(len(past)):
        if past[t, 3] > threshold:
            continue
        px, py, pz = past[t, 0], past[t, 1], past[t, 2]
        for i in range(m):
            c = _clean((px - x[i], py - y[i], pz - z[i]), (s[i], ax[i], ay[i], k[i]))
            product[i] *= _missed(c, (threshold, detect, growing * c + missed))
        held_back += 1
        if held_back == _PRODUCT or detect > f32(0.9):
            for i in range(m):
                total[i] += _log(product[i])
                product[i] = ONE
            held_back = 0
    for i in range(m):
        total[i] += _log(product[i])


@_compile
def _reach(held: Any, past: Any, work: Any) -> Any:
    """How many of m particles reach what they have to, by all readings, detections first; they are moved to the front.

    Others are let go as soon as they have lost: the log-likelihood of a non-detection is at most 0.
    """
    m, row, least, kept, total, product = work
    total[:m] = ZERO
    known = (held[0], held[1], held[2], held[3], held[4], held[5], held[6])
    for t in range(len(past)):
        if past[t, 3] > row[0]:
            _add_reading(known, (past[t, 0], past[t, 1], past[t, 2], past[t, 3]), (m, row, total))
    left = 0
    for i in range(m):
        if total[i] > least[i]:
            for j in range(7):
                held[j, left] = held[j, i]
            kept[left], total[left], least[left] = kept[i], total[i], least[i]
            left += 1
    _add_missed(known, past, (left, row, total, product))
    m, left = left, 0
    for i in range(m):
        if total[i] > least[i]:
            kept[left], total[left] = kept[i], total[i]
            left += 1
    return left


@_compile
def _density(theta: Any, families: Any, work: Any) -> None:
    """The log prior density of m particles [8, m] up to a constant, -inf outside the support; see `cloud.log_prior`."""
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
    """theta + root eps of m particles."""
    m, normal, out = work
    for j in range(8):
        for i in range(m):
            out[j, i] = theta[j, i]
        for other in range(8):
            factor, column = root[j, other], normal[other]
            for i in range(m):
                out[j, i] += factor * column[i]


@_compile
def _hold(moved: Any, least: Any, work: Any) -> Any:
    """The terms of those of m particles that have anything to reach, at the front of `held`; how many they are."""
    m, held, kept = work
    left = 0
    for i in range(m):
        if least[i] < f32(np.inf):
            for j in range(8):
                held[j, left] = moved[j, i]
            kept[left], least[left] = i, least[i]
            left += 1
    for i in range(left):
        rate, speed, turn, diffusivity, lifetime = held[3, i], held[4, i], held[5, i], held[6, i], held[7, i]
        half = speed / (TWO * diffusivity)
        held[3, i] = rate / (FOUR_PI * diffusivity)
        cosine, sine = _turned(turn)
        held[4, i], held[5, i] = half * cosine, half * sine
        held[6, i] = np.sqrt((ONE + speed * half * lifetime * HALF) / (diffusivity * lifetime))
    return left


@_compile
def swept(particles: tuple[Floats, Floats], noise: tuple[Floats, Floats, Floats], posterior: Any) -> None:
    """One Metropolis move of R beliefs' particles for the posterior, in place; see `moves`.

    Args:
        particles: theta [8, R, N] and log-likelihoods [R, N].
        noise: roots [R, 8, 8], normals [R, 8, N], log uniforms [R, N].
        posterior: past [R, T, 4], counts [R], sensor row [7], families [8] (0 uniform, 1 normal, 2 gamma), parameters
            [R, 8, 2].
    """
    (theta, log_like), (root, normal, chance) = particles, noise
    past, counts, row, families, parameters = posterior
    numbers = (row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    moved, held, kept = np.empty((8, _BLOCK), f32), np.empty((8, _BLOCK), f32), np.empty(_BLOCK, np.int64)
    old, least = np.empty(_BLOCK, f32), np.empty(_BLOCK, f32)
    total, product = np.empty(_BLOCK, f32), np.empty(_BLOCK, f32)
    for r in range(len(log_like)):
        for start in range(0, log_like.shape[1], _BLOCK):
            stop = min(start + _BLOCK, log_like.shape[1])
            m, here = stop - start, theta[:, r, start:stop]
            _propose(here, root[r], (m, normal[r, :, start:stop], moved))
            _density(here, families, (m, parameters[r], old))
            _density(moved, families, (m, parameters[r], least))
            for i in range(m):
                least[i] = chance[r, start + i] + log_like[r, start + i] + old[i] - least[i]
            left = _hold(moved, least, (m, held, kept))
            left = _reach(held, past[r, : counts[r]], (left, numbers, least, kept, total, product))
            for i in range(left):
                log_like[r, start + kept[i]] = total[i]
                for j in range(8):
                    here[j, kept[i]] = moved[j, kept[i]]

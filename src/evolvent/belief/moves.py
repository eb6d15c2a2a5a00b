"""Resampling and moves that keep the particles of a cloud spread over the posterior.

Source: `mcmcPF.m` of AutoSTE; resample-move is Gilks and Berzuini, J. R. Stat. Soc. B 63 (2001). Particles are
resampled systematically and each is moved: theta' = theta + h S eps, with S S^T the weighted covariance before
resampling and h = A N^(-1/(n+4)), A = (4/(n+2))^(1/(n+4)), n = 8.

*Exact* moves are accepted by Metropolis' rule for the posterior, that is prior and all readings so far, so a
posterior without new information does not change. S S^T is the whole covariance: blocks would be rejected twice
as often. *Published* moves take the covariance in the blocks (x, y, z), (Q), (u, phi), (D, tau), redraw
impossible particles up to three times, and accept with the ratio of the newest likelihoods alone, times
exp(-e^T Sigma^-1 e / 2).

On a CPU exact moves run belief by belief, and a rejected proposal is not evaluated further: the likelihood of a
non-detection is at most 1, so a proposal that detections and prior reject is rejected by all readings.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.belief.cloud import Cloud, log_prior, make_generators, weighted_moments
from evolvent.belief.likelihood import joint_log_likelihood, log_likelihood, past_log_likelihood, sensor_row
from evolvent.worlds.plume.model import Sensor, Terms, compute_terms, dilution

__all__ = ["bandwidth", "factor_covariance", "rejuvenate", "resample_systematic"]

BLOCKS = ((0, 3), (3, 4), (4, 6), (6, 8))
WHOLE_COVARIANCE = ((0, 8),)
_STREAM = 1  # the purpose of the random stream


def bandwidth(n: int, dims: int = 8) -> float:
    """Computes h, the width of a move for N particles in `dims` dimensions: the rule for a Gaussian kernel estimate."""
    return float((4 / (dims + 2)) ** (1 / (dims + 4)) * n ** (-1 / (dims + 4)))


def resample_systematic(log_w: Tensor, u: Tensor, count: int | None = None) -> Tensor:
    """Draws indices by systematic resampling: each index is drawn floor or ceil of `count` w times.

    Args:
        log_w: [B, N]. Normalized log weights.
        u: [B]. One draw of U(0, 1) for each belief.
        count: Number of indices (None: N).
    Returns:
        [B, count] int64 indices, ascending.
    """
    b, size = log_w.shape
    n = size if count is None else count
    cumulated = torch.cumsum(torch.exp(log_w.double()), -1)
    cumulated = cumulated / cumulated[:, -1:]
    ends = torch.ceil(n * cumulated - u.double().unsqueeze(-1)).clamp(0, n)  # points (i + u) / n below each
    ends[:, -1] = n
    copies = torch.diff(ends, dim=-1, prepend=torch.zeros_like(ends[:, :1])).long()
    flat = torch.repeat_interleave(copies.reshape(-1), output_size=b * n)
    return flat.reshape(b, n) - torch.arange(0, b * size, size, device=log_w.device).unsqueeze(-1)


def factor_covariance(covariance: Tensor, blocks: tuple[tuple[int, int], ...] = BLOCKS) -> Tensor:
    """Computes S with S S^T = the blocks of a covariance [R, 8, 8]; negative eigenvalues count as 0.

    Unknowns without variance (known ones) get rows of exact zeros.
    """
    factors = torch.zeros_like(covariance)
    for low, high in blocks:
        block = covariance[:, low:high, low:high]
        values, vectors = torch.linalg.eigh(block)
        factors[:, low:high, low:high] = vectors * torch.sqrt(values.clamp_min(0.0)).unsqueeze(1)
    is_known = torch.diagonal(covariance, dim1=1, dim2=2) <= 0
    return factors.masked_fill(is_known.unsqueeze(-1), 0.0)


def rejuvenate(cloud: Cloud, rows: NDArray[np.int64], *, sensor: Sensor, exact: bool, sweeps: int) -> Cloud:
    """Moves the resampled particles of some beliefs in place; the old cloud becomes invalid.

    Args:
        cloud: The beliefs.
        rows: [R]. Indices of the beliefs.
        sensor: The sensor.
        exact: Whether moves are exact, see the module.
        sweeps: Number of moves of each particle; published moves run once.
    """
    (_, n), row_indices = cloud.size, torch.as_tensor(rows, device=cloud.log_w.device)
    log_w, theta = cloud.log_w[row_indices], cloud.theta[:, row_indices]
    log_like = (cloud.base + cloud.gain.unsqueeze(-1))[row_indices] + log_w
    generators = make_generators(cloud.seeds[rows], cloud.counts[rows], _STREAM)
    covariance = weighted_moments(log_w.double(), theta.double())[2]
    root = (bandwidth(n) * factor_covariance(covariance, WHOLE_COVARIANCE if exact else BLOCKS)).to(theta.dtype)
    uniforms = torch.stack([torch.rand(1, generator=generator) for generator in generators]).to(theta)
    ancestors = resample_systematic(log_w, uniforms[:, 0])
    theta = theta.gather(2, ancestors.expand(len(theta), -1, -1))
    log_like = log_like.gather(1, ancestors)
    if exact:
        run_sweeps = _move_exact_fused if cloud.fused else _move_exact
        theta, log_like = run_sweeps(
            cloud, row_indices, theta, log_like, root=root, sensor=sensor, generators=generators * sweeps
        )
    else:
        theta = _move_published(cloud, row_indices, theta, root=root, sensor=sensor, generators=generators)
    cloud.theta.index_copy_(1, row_indices, theta)
    cloud.derived.index_copy_(1, row_indices, torch.stack(list(compute_terms(*theta, xp=torch)[3:])))
    cloud.base.index_copy_(0, row_indices, log_like + math.log(n))
    cloud.gain.index_fill_(0, row_indices, 0.0)
    cloud.log_w.index_fill_(0, row_indices, -math.log(n))
    return cloud if exact else replace(cloud, exact=False)


def _draw_noise(generators: list[torch.Generator], n: int, *, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (normals [R, 8, N], log uniforms [R, N]), each row from its own stream."""
    normal = torch.stack([torch.randn(8, n, generator=generator) for generator in generators])
    uniform = torch.stack([torch.rand(n, generator=generator) for generator in generators])
    return normal.to(reference), torch.log(uniform.to(reference))


def _propose(theta: Tensor, root: Tensor, normal: Tensor) -> Tensor:
    """Computes the proposals theta + root eps, [8, R, N]."""
    return theta + torch.bmm(root, normal).permute(1, 0, 2)


def _move_exact(
    cloud: Cloud,
    row_indices: Tensor,
    theta: Tensor,
    log_like: Tensor,
    *,
    root: Tensor,
    sensor: Sensor,
    generators: list[torch.Generator],
) -> tuple[Tensor, Tensor]:
    """Returns particles [8, R, N] and log-likelihoods [R, N] after Metropolis moves, one for each R generators."""
    (_, r, n), parameters = theta.shape, cloud.parameters[row_indices]
    counts = cloud.counts[row_indices.cpu().numpy()]
    past = cloud.past[row_indices, : int(counts.max())]
    density = log_prior(cloud.families, parameters, theta)
    for i in range(0, len(generators), r):
        normal, log_uniform = _draw_noise(generators[i : i + r], n, reference=theta)
        proposals = _propose(theta, root, normal)
        proposal_density = log_prior(cloud.families, parameters, proposals)
        thresholds = (
            log_uniform + log_like + density - proposal_density
        )  # the log-likelihood that a proposal has to reach; inf outside
        proposal_log_like = _log_like_above(proposals, past, counts, thresholds=thresholds, sensor=sensor)
        is_accepted = proposal_log_like > thresholds
        theta, log_like = (
            torch.where(is_accepted, proposals, theta),
            torch.where(is_accepted, proposal_log_like, log_like),
        )
        density = torch.where(is_accepted, proposal_density, density)
    return theta, log_like


def _log_like_above(
    proposals: Tensor, past: Tensor, counts: NDArray[np.int64], *, thresholds: Tensor, sensor: Sensor
) -> Tensor:
    """Computes the log-likelihood [R, N] of past readings under particles [8, R, N], exact where it exceeds
    `thresholds`.
    """
    if proposals.device.type == "cpu":
        log_likes = [
            _log_like_of_belief(proposals[:, r], past[r, : counts[r]], thresholds[r], sensor=sensor)
            for r in range(len(past))
        ]
        return torch.stack(log_likes)
    num_readings = torch.as_tensor(counts, device=proposals.device)
    return past_log_likelihood(compute_terms(*proposals, xp=torch), past, num_readings, sensor=sensor)


def _move_exact_fused(
    cloud: Cloud,
    row_indices: Tensor,
    theta: Tensor,
    log_like: Tensor,
    *,
    root: Tensor,
    sensor: Sensor,
    generators: list[torch.Generator],
) -> tuple[Tensor, Tensor]:
    """Runs `_exact` in fused loops, with the same random numbers."""
    from evolvent.belief.fused import FAMILIES, sweep_fused  # numba is optional

    (_, r, n), counts = theta.shape, cloud.counts[row_indices.numpy()]
    particles = theta.contiguous().numpy(), log_like.contiguous().numpy()
    families = np.array([FAMILIES.index(family) for family in cloud.families])
    past, row = cloud.past[row_indices, : int(counts.max())].numpy(), sensor_row(sensor, theta).numpy()
    posterior = past, counts, row, families, cloud.parameters[row_indices].numpy()
    for i in range(0, len(generators), r):
        normal, log_uniform = _draw_noise(generators[i : i + r], n, reference=theta)
        sweep_fused(particles, (root.contiguous().numpy(), normal.numpy(), log_uniform.numpy()), posterior)
    return torch.from_numpy(particles[0]), torch.from_numpy(particles[1])


def _log_like_of_belief(theta: Tensor, past: Tensor, thresholds: Tensor, *, sensor: Sensor) -> Tensor:
    """Computes the log-likelihood [N] of readings [T, 4] under particles [8, N] where it exceeds `thresholds`;
    otherwise -inf.
    """
    log_like = torch.full_like(thresholds, -math.inf)
    is_detection = past[:, 3] > sensor.threshold
    alive = torch.nonzero(thresholds < math.inf).squeeze(-1)
    source_terms = compute_terms(*theta[:, alive], xp=torch)
    detection_log_like = joint_log_likelihood(source_terms, past[is_detection], sensor=sensor, is_detection=True)
    remaining = torch.nonzero(detection_log_like > thresholds[alive]).squeeze(-1)
    source_terms = Terms(*(term[remaining] for term in source_terms))
    log_like[alive[remaining]] = detection_log_like[remaining] + joint_log_likelihood(
        source_terms, past[~is_detection], sensor=sensor, is_detection=False
    )
    return log_like


def _move_published(
    cloud: Cloud, row_indices: Tensor, theta: Tensor, *, root: Tensor, sensor: Sensor, generators: list[torch.Generator]
) -> Tensor:
    """Returns particles [8, R, N] after one move with the published acceptance rule."""
    n = theta.shape[-1]
    normal, log_uniform = _draw_noise(generators, n, reference=theta)
    proposals = _propose(theta, root, normal)
    for _ in range(3):
        is_impossible = _is_impossible(proposals)
        if not bool(is_impossible.any()):
            break
        normal = torch.where(is_impossible.unsqueeze(1), _draw_noise(generators, n, reference=theta)[0], normal)
        proposals = _propose(theta, root, normal)
    last = torch.as_tensor(cloud.counts - 1, device=row_indices.device)[row_indices]
    px, py, pz, z = cloud.past[row_indices, last].T.unsqueeze(-1).unbind()
    before, after = (
        log_likelihood(dilution(compute_terms(*particles, xp=torch), (px, py, pz), xp=torch), z, sensor)
        for particles in (theta, proposals)
    )
    moving = ((root * root).sum(1) > 0).unsqueeze(-1)
    ratio = after - before - 0.5 * torch.where(moving, normal * normal, 0.0).sum(1)
    return torch.where((log_uniform < ratio) & ~_is_impossible(proposals), proposals, theta)


def _is_impossible(theta: Tensor) -> Tensor:
    """Returns which particles [R, N] no source can be: Q or u below 0, D or tau not above 0."""
    return (theta[3] < 0) | (theta[4] < 0) | (theta[6] <= 0) | (theta[7] <= 0)

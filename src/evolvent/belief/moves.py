"""Resampling and moving particles: what keeps a cloud of particles spread over what is still possible.

Source: `mcmcPF.m` of AutoSTE; resample-move is Gilks and Berzuini, J. R. Stat. Soc. B 63 (2001). Particles are
resampled systematically and each is moved: theta' = theta + h S eps, with S S^T the weighted covariance before
resampling and h = A N^(-1/(n+4)), A = (4/(n+2))^(1/(n+4)), n = 8.

*Exact* moves are accepted by Metropolis' rule for the posterior, that is prior and all readings so far, so a
posterior that learns nothing stays where it is. S S^T is the whole covariance: blocks would be refused twice as often.
*Published* moves take the covariance in the blocks (x, y, z), (Q), (u, phi), (D, tau), redraw particles that no source
can have up to three times, and accept with the ratio of the newest likelihoods alone, times exp(-e^T Sigma^-1 e / 2).

On a processor exact moves go belief by belief, and a proposal that has lost already is not looked at further: the
likelihood of a non-detection is at most 1, so what detections and prior refuse, all readings refuse.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.belief.cloud import Cloud, log_prior, streams, weighted_moments
from evolvent.belief.likelihood import joint_log_likelihood, log_likelihood, past_log_likelihood, sensor_row
from evolvent.worlds.plume.model import Sensor, Terms, dilution, terms

__all__ = ["bandwidth", "factor", "rejuvenated", "systematic"]

BLOCKS = ((0, 3), (3, 4), (4, 6), (6, 8))
WHOLE = ((0, 8),)
_STREAM = 1  # the purpose of the random stream


def bandwidth(n: int, dims: int = 8) -> float:
    """h, the width of a move for N particles in so many dimensions: the rule for a Gaussian kernel estimate."""
    return float((4 / (dims + 2)) ** (1 / (dims + 4)) * n ** (-1 / (dims + 4)))


def systematic(log_w: Tensor, u: Tensor, count: int | None = None) -> Tensor:
    """Systematic resampling: each is drawn floor or ceil of `count` w times.

    Args:
        log_w: [B, N] normalised log weights.
        u: [B] one draw of U(0, 1) for each.
        count: how many to draw (None: N).
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


def factor(covariance: Tensor, blocks: tuple[tuple[int, int], ...] = BLOCKS) -> Tensor:
    """[R, 8, 8] S with S S^T = the blocks of a covariance [R, 8, 8]; negative eigenvalues are taken for 0.

    Unknowns without variance (known ones) get rows of exact zeros.
    """
    found = torch.zeros_like(covariance)
    for low, high in blocks:
        block = covariance[:, low:high, low:high]
        values, vectors = torch.linalg.eigh(block)
        found[:, low:high, low:high] = vectors * torch.sqrt(values.clamp_min(0.0)).unsqueeze(1)
    known = torch.diagonal(covariance, dim1=1, dim2=2) <= 0
    return found.masked_fill(known.unsqueeze(-1), 0.0)


def rejuvenated(cloud: Cloud, rows: NDArray[np.int64], *, sensor: Sensor, exact: bool, sweeps: int) -> Cloud:
    """Some beliefs resampled and moved, in place: the old cloud is used up.

    Args:
        rows: [R] which of the B.
        exact: see the module.
        sweeps: how often each particle may move; published ones move once.
    """
    (_, n), at = cloud.size, torch.as_tensor(rows, device=cloud.log_w.device)
    log_w, theta = cloud.log_w[at], cloud.theta[:, at]
    log_like = (cloud.base + cloud.gain.unsqueeze(-1))[at] + log_w
    generators = streams(cloud.seeds[rows], cloud.counts[rows], _STREAM)
    covariance = weighted_moments(log_w.double(), theta.double())[2]
    root = (bandwidth(n) * factor(covariance, WHOLE if exact else BLOCKS)).to(theta.dtype)
    first = torch.stack([torch.rand(1, generator=one) for one in generators]).to(theta)
    drawn = systematic(log_w, first[:, 0])
    theta = theta.gather(2, drawn.expand(len(theta), -1, -1))
    log_like = log_like.gather(1, drawn)
    if exact:
        sweep = _fused_exact if cloud.fused else _exact
        theta, log_like = sweep(cloud, at, theta, log_like, root=root, sensor=sensor, generators=generators * sweeps)
    else:
        theta = _published(cloud, at, theta, root=root, sensor=sensor, generators=generators)
    cloud.theta.index_copy_(1, at, theta)
    cloud.derived.index_copy_(1, at, torch.stack(list(terms(*theta, xp=torch)[3:])))
    cloud.base.index_copy_(0, at, log_like + math.log(n))
    cloud.gain.index_fill_(0, at, 0.0)
    cloud.log_w.index_fill_(0, at, -math.log(n))
    return cloud if exact else replace(cloud, exact=False)


def _noise(generators: list[torch.Generator], n: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """(normals [R, 8, N], log uniforms [R, N]), each row from a stream of its own."""
    normal = torch.stack([torch.randn(8, n, generator=one) for one in generators])
    uniform = torch.stack([torch.rand(n, generator=one) for one in generators])
    return normal.to(like), torch.log(uniform.to(like))


def _moved(theta: Tensor, root: Tensor, normal: Tensor) -> Tensor:
    """[8, R, N] theta + root eps."""
    return theta + torch.bmm(root, normal).permute(1, 0, 2)


def _exact(
    cloud: Cloud,
    at: Tensor,
    theta: Tensor,
    log_like: Tensor,
    *,
    root: Tensor,
    sensor: Sensor,
    generators: list[torch.Generator],
) -> tuple[Tensor, Tensor]:
    """Particles [8, R, N] and their log-likelihoods [R, N] after Metropolis moves: as many as R generators fit in."""
    (_, r, n), parameters = theta.shape, cloud.parameters[at]
    counts = cloud.counts[at.cpu().numpy()]
    past = cloud.past[at, : int(counts.max())]
    density = log_prior(cloud.families, parameters, theta)
    for i in range(0, len(generators), r):
        normal, chance = _noise(generators[i : i + r], n, like=theta)
        moved = _moved(theta, root, normal)
        new = log_prior(cloud.families, parameters, moved)
        least = chance + log_like + density - new  # the log-likelihood that a proposal has to reach; inf outside
        moved_like = _where_needed(moved, past, counts, least=least, sensor=sensor)
        taken = moved_like > least
        theta, log_like = torch.where(taken, moved, theta), torch.where(taken, moved_like, log_like)
        density = torch.where(taken, new, density)
    return theta, log_like


def _where_needed(moved: Tensor, past: Tensor, counts: NDArray[np.int64], *, least: Tensor, sensor: Sensor) -> Tensor:
    """[R, N] the log-likelihood of past readings under particles [8, R, N], exact where it is above `least` [R, N]."""
    if moved.device.type == "cpu":
        found = [_reaching(moved[:, r], past[r, : counts[r]], least[r], sensor=sensor) for r in range(len(past))]
        return torch.stack(found)
    there = torch.as_tensor(counts, device=moved.device)
    return past_log_likelihood(terms(*moved, xp=torch), past, there, sensor=sensor)


def _fused_exact(
    cloud: Cloud,
    at: Tensor,
    theta: Tensor,
    log_like: Tensor,
    *,
    root: Tensor,
    sensor: Sensor,
    generators: list[torch.Generator],
) -> tuple[Tensor, Tensor]:
    """`_exact` in fused loops, with the same random numbers."""
    from evolvent.belief.fused import FAMILIES, swept  # numba is optional

    (_, r, n), counts = theta.shape, cloud.counts[at.numpy()]
    particles = theta.contiguous().numpy(), log_like.contiguous().numpy()
    families = np.array([FAMILIES.index(family) for family in cloud.families])
    past, row = cloud.past[at, : int(counts.max())].numpy(), sensor_row(sensor, theta).numpy()
    posterior = past, counts, row, families, cloud.parameters[at].numpy()
    for i in range(0, len(generators), r):
        normal, chance = _noise(generators[i : i + r], n, like=theta)
        swept(particles, (root.contiguous().numpy(), normal.numpy(), chance.numpy()), posterior)
    return torch.from_numpy(particles[0]), torch.from_numpy(particles[1])


def _reaching(theta: Tensor, past: Tensor, least: Tensor, *, sensor: Sensor) -> Tensor:
    """[N] the log-likelihood of readings [T, 4] under particles [8, N], where it is above `least` [N]; else -inf."""
    found = torch.full_like(least, -math.inf)
    hit = past[:, 3] > sensor.threshold
    alive = torch.nonzero(least < math.inf).squeeze(-1)
    known = terms(*theta[:, alive], xp=torch)
    some = joint_log_likelihood(known, past[hit], sensor=sensor, hit=True)
    still = torch.nonzero(some > least[alive]).squeeze(-1)
    known = Terms(*(term[still] for term in known))
    found[alive[still]] = some[still] + joint_log_likelihood(known, past[~hit], sensor=sensor, hit=False)
    return found


def _published(
    cloud: Cloud, at: Tensor, theta: Tensor, *, root: Tensor, sensor: Sensor, generators: list[torch.Generator]
) -> Tensor:
    """Particles [8, R, N] after one move with the acceptance as written."""
    n = theta.shape[-1]
    normal, chance = _noise(generators, n, like=theta)
    moved = _moved(theta, root, normal)
    for _ in range(3):
        broken = _broken(moved)
        if not bool(broken.any()):
            break
        normal = torch.where(broken.unsqueeze(1), _noise(generators, n, like=theta)[0], normal)
        moved = _moved(theta, root, normal)
    last = torch.as_tensor(cloud.counts - 1, device=at.device)[at]
    px, py, pz, z = cloud.past[at, last].T.unsqueeze(-1).unbind()
    before, after = (
        log_likelihood(dilution(terms(*each, xp=torch), (px, py, pz), xp=torch), z, sensor) for each in (theta, moved)
    )
    moving = ((root * root).sum(1) > 0).unsqueeze(-1)
    ratio = after - before - 0.5 * torch.where(moving, normal * normal, 0.0).sum(1)
    return torch.where((chance < ratio) & ~_broken(moved), moved, theta)


def _broken(theta: Tensor) -> Tensor:
    """[R, N] particles that no source can be: Q or u below 0, D or tau not above 0."""
    return (theta[3] < 0) | (theta[4] < 0) | (theta[6] <= 0) | (theta[7] <= 0)

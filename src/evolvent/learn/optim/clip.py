"""Sums and norms over parameters in any layout, and clipping by the global norm.

Plain tensors, DTensors on several meshes and pipeline stages may be mixed: every element counts once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from evolvent.models.pieces import is_dtensor

__all__ = [
    "ParameterSum",
    "clamp_",
    "clip_factor",
    "local_gradient",
    "local_part",
    "scale_",
    "sharding_groups",
    "sum_over_groups",
    "total_norm",
]

Groups = tuple[dist.ProcessGroup, ...]


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor: the same storage, so that writing into it writes into the tensor."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def local_gradient(p: Tensor) -> Tensor:
    """Returns this rank's part of the gradient of a parameter that has one; an unsummed gradient is summed and
    stored.
    """
    if is_dtensor(p) and is_dtensor(p.grad) and p.grad.placements != p.placements:
        p.grad = p.grad.redistribute(p.device_mesh, p.placements)
    grad: Tensor = p.grad  # type: ignore[assignment]
    return local_part(grad)


def sharding_groups(p: Tensor, dim: int | None = None) -> Groups:
    """Returns the groups of ranks over which a parameter is sharded, or is sharded along dimension `dim` (from 0)."""
    if not is_dtensor(p):
        return ()
    shard_dims = [
        getattr(placement, "dim", None) for placement in p.placements
    ]  # a strided shard is no Shard, but has a dim
    return tuple(
        p.device_mesh.get_group(i)
        for i, shard_dim in enumerate(shard_dims)
        if shard_dim is not None and dim in (None, shard_dim)
    )


def sum_over_groups(value: Tensor, groups: Groups) -> Tensor:
    """Sums a local `value`, in place, over one group after the other."""
    for group in groups:
        dist.all_reduce(value, group=group)
    return value


class ParameterSum:
    """A sum over parameters of numbers that each rank computes on its own part: replicated parts count once."""

    def __init__(self, skip: Iterable[Tensor] = ()) -> None:
        self._skipped = {id(p) for p in skip}
        self._sums: dict[Groups, Tensor] = {}

    def add(self, p: Tensor, value: Tensor) -> None:
        """Adds a 0-dim `value` of this rank's part of `p`, unless that is skipped. Nothing is sent."""
        if id(p) not in self._skipped:
            groups = sharding_groups(p)
            self._sums[groups] = self._sums[groups] + value if groups in self._sums else value

    def take_gradient(self, p: Tensor) -> None:
        """Adds the squares of the gradient of `p`, and drops it."""
        self.add(p, torch.linalg.vector_norm(local_gradient(p), dtype=torch.float32).square())
        p.grad = None

    def reduce(self, pp_group: dist.ProcessGroup | None = None) -> Tensor:
        """Returns the sum over all ranks: one all-reduce for each sharding, and one for the stages of a pipeline."""
        total = torch.zeros((), device=next(iter(self._sums.values())).device if self._sums else None)
        for groups, value in self._sums.items():
            total += sum_over_groups(value, groups)
        return total if pp_group is None else sum_over_groups(total, (pp_group,))


@torch.no_grad()
def total_norm(
    params: Iterable[Tensor], *, pp_group: dist.ProcessGroup | None = None, skip: Iterable[Tensor] = ()
) -> Tensor:
    """Computes the 2-norm of all gradients as one float32 vector, the same on every rank; a collective call.

    Args:
        params: parameters of this rank; those without a gradient count nothing.
        pp_group: the ranks of the other pipeline stages.
        skip: parameters that another stage counts: copies of tied weights.
    """
    total, counted = ParameterSum(skip), [p for p in params if p.grad is not None]
    norms = torch._foreach_norm([local_gradient(p) for p in counted], 2, dtype=torch.float32) if counted else ()
    if norms and pp_group is None and not skip and not any(map(sharding_groups, counted)):
        norm_of_norms: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        return norm_of_norms  # the bits of torch's own
    for p, norm in zip(counted, norms, strict=True):
        total.add(p, norm.square())
    return total.reduce(pp_group).sqrt()


def clip_factor(max_norm: float, norm: Tensor) -> Tensor:
    """Computes the factor `[]` that scales gradients of this global norm `[]` to at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


@torch.no_grad()
def scale_(params: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scales the gradients in place to `max_norm`, given their global norm. Nothing is sent."""
    if grads := [local_part(p.grad) for p in params if p.grad is not None]:
        torch._foreach_mul_(grads, clip_factor(max_norm, norm))


@torch.no_grad()
def clamp_(params: Iterable[Tensor], limit: float) -> None:
    """Limits the gradients in place, each number by itself, to +- `limit`."""
    for grad in (local_part(p.grad) for p in params if p.grad is not None):
        grad.clamp_(-limit, limit)

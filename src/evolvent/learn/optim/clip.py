"""Sums and norms over parameters laid out in any way, and clipping by the global norm.

Plain tensors, DTensors on several meshes and pipeline stages may be mixed: every element counts once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["Total", "across", "clamp_", "cut_over", "factor", "local", "scale_", "settled", "total_norm"]

Groups = tuple[dist.ProcessGroup, ...]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: the same storage, so that writing into it writes into the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def settled(p: Tensor) -> Tensor:
    """This rank's part of the gradient of a parameter that has one; a gradient left unsummed is summed and kept so."""
    if isinstance(p, DTensor) and isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
        p.grad = p.grad.redistribute(p.device_mesh, p.placements)
    grad: Tensor = p.grad  # type: ignore[assignment]
    return local(grad)


def cut_over(p: Tensor, dim: int | None = None) -> Groups:
    """The groups of ranks over which a parameter is cut, or is cut along its dimension `dim` (from 0)."""
    if not isinstance(p, DTensor):
        return ()
    cuts = [getattr(placement, "dim", None) for placement in p.placements]  # a strided shard is no Shard, but has a dim
    return tuple(p.device_mesh.get_group(i) for i, cut in enumerate(cuts) if cut is not None and dim in (None, cut))


def across(value: Tensor, groups: Groups) -> Tensor:
    """A local `value` summed, in place, over one group after the other."""
    for group in groups:
        dist.all_reduce(value, group=group)
    return value


class Total:
    """A sum over parameters of what each rank computes on its own part: what several ranks hold counts once."""

    def __init__(self, skip: Iterable[Tensor] = ()) -> None:
        self._skipped = {id(p) for p in skip}
        self._sums: dict[Groups, Tensor] = {}

    def add(self, p: Tensor, value: Tensor) -> None:
        """Add a 0-dim `value` of this rank's part of `p`, unless that is skipped. Nothing is sent."""
        if id(p) not in self._skipped:
            groups = cut_over(p)
            self._sums[groups] = self._sums[groups] + value if groups in self._sums else value

    def take(self, p: Tensor) -> None:
        """Add the squares of the gradient of `p`, and drop it."""
        self.add(p, torch.linalg.vector_norm(settled(p), dtype=torch.float32).square())
        p.grad = None

    def everywhere(self, pp_group: dist.ProcessGroup | None = None) -> Tensor:
        """The sum over all ranks: one all-reduce for each way of cutting, one for the stages of a pipeline."""
        total = torch.zeros((), device=next(iter(self._sums.values())).device if self._sums else None)
        for groups, value in self._sums.items():
            total += across(value, groups)
        return total if pp_group is None else across(total, (pp_group,))


@torch.no_grad()
def total_norm(
    params: Iterable[Tensor], *, pp_group: dist.ProcessGroup | None = None, skip: Iterable[Tensor] = ()
) -> Tensor:
    """The 2-norm of all gradients as one float32 vector, the same on every rank; a collective call.

    Args:
        params: those of this rank; without a gradient they count nothing. pp_group: the ranks of the other stages.
        skip: what another stage counts: copies of tied weights.
    """
    total, counted = Total(skip), [p for p in params if p.grad is not None]
    norms = torch._foreach_norm([settled(p) for p in counted], 2, dtype=torch.float32) if counted else ()
    if norms and pp_group is None and not skip and not any(map(cut_over, counted)):
        found: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        return found  # the bits of torch's own
    for p, norm in zip(counted, norms, strict=True):
        total.add(p, norm.square())
    return total.everywhere(pp_group).sqrt()


def factor(max_norm: float, norm: Tensor) -> Tensor:
    """What gradients of this global norm are multiplied by, so that it becomes at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


@torch.no_grad()
def scale_(params: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    """Clip the gradients in place, given their global norm. Nothing is sent."""
    if grads := [local(p.grad) for p in params if p.grad is not None]:
        torch._foreach_mul_(grads, factor(max_norm, norm))


@torch.no_grad()
def clamp_(params: Iterable[Tensor], limit: float) -> None:
    """Clip the gradients in place, each number on its own, to +- `limit`."""
    for grad in (local(p.grad) for p in params if p.grad is not None):
        grad.clamp_(-limit, limit)

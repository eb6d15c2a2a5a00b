"""AdaLomo: LOMO with a factored second moment for each tensor (arXiv 2310.10195), that is Adafactor inside the
backward.

A matrix has one statistic for each row and each column. Shards sum these statistics, never gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from evolvent.learn.optim.clip import local_part, sharding_groups, sum_over_groups
from evolvent.learn.optim.fused import FusedOptimizer, Group, Params, State

__all__ = ["AdaLomo"]

_EPS = 1e-30  # added to squared gradients
_MIN_SCALE = 1e-3  # of the root mean square of weights that a step is relative to


class AdaLomo(FusedOptimizer):
    """Takes steps relative to a tensor's size, along gradients divided by the root of their factored second moment.

    With t from 1, `b = 1 - t ** -0.8`, `u = g ** 2 + 1e-30`: for matrices `r = b r + (1 - b) mean_last(u)`, `c = b
    c + (1 - b) mean_2ndlast(u)`, `v = r c / mean(r)`; for vectors `v = b v + (1 - b) u`. Then `U = g / sqrt(v)`, `U
    /= max(1, RMS(U) / d)`, `a = lr * max(1e-3, RMS(theta))`, `theta *= 1 - a * weight_decay`, `theta -= a U`.
    """

    writes = True

    def __init__(
        self,
        params: Params,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        d: float = 1.0,
        fused: bool = True,
        clip_value: float | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "d": d}, fused=fused, clip_value=clip_value)

    def init_state(self, p: Tensor) -> State:
        """Returns `row [..., R, 1]` and `column [..., 1, C]` of a matrix, else `variance`."""
        n = p.dim()
        return (
            {"row": _zero_mean(p, n - 1), "column": _zero_mean(p, n - 2)} if n > 1 else {"variance": _zero_mean(p, n)}
        )

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        weight, n = float(state["step"]) ** -0.8, p.dim()  # 1 - b
        if n < 2:
            g.mul_(state["variance"].lerp_(g.square().add_(_EPS), weight).rsqrt())
        else:
            r, c = state["row"], state["column"]
            square = sum_over_groups(
                torch.linalg.vector_norm(g, dim=-1, keepdim=True).square_(), sharding_groups(p, n - 1)
            )
            r.lerp_(square.div_(p.shape[-1]).add_(_EPS), weight)
            sums = [torch.linalg.vector_norm(g, dim=-2, keepdim=True).square_(), r.sum(-2, keepdim=True)]
            means = sum_over_groups(torch.cat(sums, dim=-1), sharding_groups(p, n - 2)).div_(p.shape[-2])
            c.lerp_(means[..., :-1].add_(_EPS), weight)
            g.mul_((means[..., -1:] / r).sqrt_()).mul_(c.rsqrt())
        squares = torch.stack([torch.linalg.vector_norm(x).square() for x in (g, theta)])
        size, scale = (sum_over_groups(squares, sharding_groups(p)) / p.numel()).sqrt().unbind()
        a = group["lr"] * scale.clamp_min(_MIN_SCALE)
        if group["weight_decay"]:
            theta.mul_(1.0 - a * group["weight_decay"])
        theta.addcmul_(g, a / (size / group["d"]).clamp_min(1.0), value=-1.0)


def _zero_mean(p: Tensor, dim: int) -> Tensor:
    """Returns float32 zeros, laid out as a parameter is, with length 1 along dimension `dim`."""
    full_shape, local_shape = (
        [1 if i == dim else n for i, n in enumerate(shape)] for shape in (p.shape, local_part(p).shape)
    )
    zeros = torch.zeros(local_shape, dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)
    if not isinstance(p, DTensor):
        return zeros
    placements = [Replicate() if getattr(cut, "dim", None) == dim else cut for cut in p.placements]
    shape, stride = torch.Size(full_shape), torch.empty(full_shape, device="meta").stride()
    return DTensor.from_local(zeros, p.device_mesh, placements, run_check=False, shape=shape, stride=stride)

"""SophiaG: steps limited by a diagonal estimate of the curvature (arXiv 2305.14342, algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor

from evolvent.learn.optim.clip import ParameterSum, local_gradient, local_part
from evolvent.learn.optim.fused import FusedOptimizer, Group, Params, State, to_float32

__all__ = ["SophiaG"]


class SophiaG(FusedOptimizer):
    """`theta *= 1 - lr * weight_decay`; `m = b1 m + (1 - b1) g`; `theta -= lr sign(m) min(1, |m| / (rho h +
    1e-15))`.

    Every `hessian_every` updates (the paper's k), the first included, the trainer samples labels from the model's
    own distribution, runs the backward of their mean loss and calls `update_hessian`: `h = b2 h + (1 - b2) tokens g
    ** 2`. Without that every step is the sign of the momentum.
    """

    moments = ("momentum", "hessian")

    def __init__(
        self,
        params: Params,
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.965, 0.99),
        rho: float = 0.04,
        weight_decay: float = 0.1,
        hessian_every: int = 10,
    ) -> None:
        self.hessian_every, self._clipped, self._share = hessian_every, ParameterSum(), torch.zeros(())
        super().__init__(params, {"lr": lr, "betas": betas, "rho": rho, "weight_decay": weight_decay})

    @property
    def clipped_share(self) -> float:
        """Returns the share of coordinates whose last step had full length, over all ranks that share these weights."""
        return float(self._share)

    @torch.no_grad()
    def update_hessian(self, tokens: int) -> None:
        """Updates the curvature from the present gradients, which stay: those of the mean loss of `tokens` sampled
        labels.
        """
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                g, h, b2 = to_float32(local_gradient(p)), local_part(self.get_state(p)["hessian"]), group["betas"][1]
                h.mul_(b2).addcmul_(g, g, value=(1.0 - b2) * tokens)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes one step; `clipped_share` is counted anew."""
        self._clipped = ParameterSum()
        loss = super().step(closure)
        size = sum(p.numel() for group in self.param_groups for p in group["params"] if p.grad is not None)
        self._share = self._clipped.reduce() / max(1, size)
        return loss

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        m, lr = state["momentum"], group["lr"]
        theta.mul_(1.0 - lr * group["weight_decay"])
        m.lerp_(g, 1.0 - group["betas"][0])
        move = state["hessian"].mul(group["rho"]).add_(1e-15)
        torch.div(m, move, out=move).clamp_(-1.0, 1.0)
        theta.add_(move, alpha=-lr)
        self._clipped.add(p, move.abs_().floor_().sum())  # 1 where the step has full length

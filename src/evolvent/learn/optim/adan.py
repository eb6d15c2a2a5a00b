"""Adan: Nesterov momentum from differences of gradients (arXiv 2208.06677, algorithm 1); and Lion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evolvent.learn.optim.fused import FusedOptimizer, Group, Params, State

__all__ = ["Adan", "Lion"]


class Lion(FusedOptimizer):
    """`theta *= 1 - lr * weight_decay`; `theta -= lr * sign(b1 m + (1 - b1) g)`; then `m = b2 m + (1 - b2) g`."""

    moments = ("momentum",)

    def __init__(
        self, params: Params, *, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        b1, b2 = group["betas"]
        theta.mul_(1.0 - group["lr"] * group["weight_decay"])
        theta.add_(state["momentum"].lerp(g, 1.0 - b1).sign_(), alpha=-group["lr"])
        state["momentum"].lerp_(g, 1.0 - b2)


class Adan(FusedOptimizer):
    """With t from 1 and `d = g - g_before` (0 at t = 1): m, D, n are running means of `g`, `d` and `(g + b2 d) ** 2`,
    each divided by `1 - b ** t`; `theta -= lr (m + b2 D) / (sqrt(n) + eps)`; then `theta /= 1 + lr * weight_decay`, or
    with `no_prox` before it all `theta *= 1 - lr * weight_decay`."""

    moments = ("mean", "difference", "square", "before")

    def __init__(
        self,
        params: Params,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "no_prox": no_prox}
        super().__init__(params, defaults)

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        t, m, difference, n, work = int(state["step"]), *(state[name] for name in self.moments)
        (b1, b2, b3), lr, decay = group["betas"], group["lr"], group["lr"] * group["weight_decay"]
        torch.sub(g, g if t == 1 else work, out=work)  # d; the place of the last gradient is free until the end
        m.lerp_(g, 1.0 - b1)
        difference.lerp_(work, 1.0 - b2)
        work.mul_(b2).add_(g)
        n.mul_(b3).addcmul_(work, work, value=1.0 - b3)
        torch.sqrt(n, out=work).div_(math.sqrt(1.0 - b3**t)).add_(group["eps"])
        theta.mul_(1.0 - decay if group["no_prox"] else 1.0)
        theta.addcdiv_(m, work, value=-lr / (1.0 - b1**t))
        theta.addcdiv_(difference, work, value=-lr * b2 / (1.0 - b2**t))
        theta.div_(1.0 if group["no_prox"] else 1.0 + decay)
        work.copy_(g)

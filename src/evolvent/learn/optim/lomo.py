"""LOMO: gradient descent inside the backward, without state (arXiv 2306.09782, algorithm 1)."""

from __future__ import annotations

from torch import Tensor

from evolvent.learn.optim.fused import FusedOptimizer, Group, Params, State

__all__ = ["Lomo"]


class Lomo(FusedOptimizer):
    """`theta *= 1 - lr * weight_decay`; `theta -= lr * g`."""

    writes = True

    def __init__(
        self,
        params: Params,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        fused: bool = True,
        clip_value: float | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, fused=fused, clip_value=clip_value)

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        if group["weight_decay"]:
            theta.mul_(1.0 - group["lr"] * group["weight_decay"])
        theta.add_(g, alpha=-group["lr"])

"""Lion: the sign of an interpolated momentum (arXiv 2302.06675, program 1)."""

from __future__ import annotations

from torch import Tensor

from evolvent.learn.optim.fused import Fused, Group, Params, State

__all__ = ["Lion"]


class Lion(Fused):
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

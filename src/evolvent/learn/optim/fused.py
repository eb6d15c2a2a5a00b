"""The base of these optimizers: rules for one local tensor at a time, and updates inside the backward.

LOMO: gradient descent inside the backward, without state (arXiv 2306.09782, algorithm 1).

AdaLomo: LOMO with a factored second moment for each tensor (arXiv 2310.10195), that is Adafactor inside the
backward.

A matrix has one statistic for each row and each column. Shards sum these statistics, never gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from evolvent.errors import ConfigError
from evolvent.learn.optim.clip import ParameterSum, local_gradient, local_part, sharding_groups, sum_over_groups
from evolvent.models.pieces import is_dtensor

__all__ = ["AdaLomo", "FusedOptimizer", "Group", "Lomo", "Params", "State", "to_float32"]


Group: TypeAlias = dict[str, Any]
"""A group of parameters with its settings, as torch keeps it."""
Params = Iterable[Tensor] | Iterable[Group]
State = dict[str, Tensor]


def to_float32(tensor: Tensor) -> Tensor:
    """Converts a tensor to the precision of arithmetic: float32 at least."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class FusedOptimizer(Optimizer):
    """An optimizer that can update inside the backward, so that a gradient lives until its own update (LOMO's idea).

    `arm()`, one backward, `step()`: if `fused`, each weight changes as soon as its gradient exists, and the gradient is
    freed. A backward without `arm()` leaves gradients, and `step()` uses them, as with any optimizer. Parameters may be
    plain tensors or DTensors of any layout. State is float32 and laid out as its parameter is, also where weights are
    bfloat16; `state[p]["step"]` counts the updates of `p`.

    Attributes:
        fused: whether the weights have hooks.
        clip_value: gradients are clamped to +- this first.
    Raises:
        ConfigError: a setting is negative, a beta is 1 or more, or fused weights are float16.
    """

    moments: ClassVar[tuple[str, ...]] = ()  # names of state as large as its parameter
    writes: ClassVar[bool] = False  # whether the gradient that a rule gets is changed on the way

    def __init__(
        self, params: Params, defaults: Group, *, fused: bool = False, clip_value: float | None = None
    ) -> None:
        self.fused, self.clip_value = fused, clip_value
        self._armed = False
        self._scale: float | Tensor | None = None
        self._total: ParameterSum | None = None  # of the gradients that are measured
        self._hooks: dict[int, RemovableHandle] = {}
        for name, value in defaults.items():
            numbers = value if isinstance(value, tuple) else (value,)
            if min(numbers) < 0 or (name == "betas" and max(numbers) >= 1):
                raise ConfigError(f"{name} of {type(self).__name__} is out of range", value=value)
        super().__init__(params, defaults)

    def init_state(self, p: Tensor) -> State:
        """Returns the state of a parameter before its first update, except its step."""
        return {name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name in self.moments}

    def update(self, p: Tensor, theta: Tensor, g: Tensor, *, state: State, group: Group) -> None:
        """Updates `theta`, the local part of `p`, given the local parts of its gradient and state (step counted)."""
        raise NotImplementedError

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group as torch does; fused: its state is created at once, because torch would load gradients of
        full size.
        """
        super().add_param_group(param_group)
        for p in (p for p in self.param_groups[-1]["params"] if p.requires_grad and self.fused):
            if p.dtype is torch.float16:
                raise ConfigError("float16 gradients underflow without a loss scale", hint="use bfloat16 weights")
            self.get_state(p)
            self._hooks[id(p)] = p.register_post_accumulate_grad_hook(self._build_hook(len(self.param_groups) - 1))

    def _build_hook(self, number: int) -> Callable[[Tensor], None]:
        self_reference = weakref.ref(self)  # weights outlive optimizers

        @torch.no_grad()
        def complete(p: Tensor) -> None:
            optimizer = self_reference()
            if optimizer is not None and optimizer._total is not None:
                optimizer._total.take_gradient(p)
            elif optimizer is not None and optimizer._armed:
                optimizer._update_parameter(
                    p, optimizer.param_groups[number], owned=True
                )  # by number: loading replaces groups
                p.grad = None

        return complete

    def arm(self, scale: float | Tensor | None = None) -> None:
        """Lets the next backward update, with gradients times `scale`; `step()` or `disarm()` ends it."""
        self._armed, self._scale = True, scale

    def disarm(self) -> None:
        """Lets backwards leave gradients again; weights that have been updated stay updated."""
        self._armed, self._scale = False, None

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every weight that has a gradient: all, or after an armed backward those that no hook has updated."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self._update_parameter(p, group, owned=False)
        self.disarm()
        return loss

    def _update_parameter(self, p: Tensor, group: Group, *, owned: bool) -> None:
        weights, state, grad = local_part(p), self.get_state(p), local_gradient(p)
        theta, g = to_float32(weights), to_float32(grad)
        if g is grad and self.writes and not owned:
            g = g.clone()
        if self.clip_value is not None:
            g.clamp_(-self.clip_value, self.clip_value)
        if self._scale is not None:
            g.mul_(self._scale)
        state["step"] += 1
        self.update(p, theta, g, state={name: local_part(value) for name, value in state.items()}, group=group)
        if theta is not weights:
            weights.copy_(theta)

    def get_state(self, p: Tensor) -> State:
        """Returns the state of a parameter, created where it is missing."""
        state: State = self.state[p]
        if not state:
            state.update(step=torch.zeros(()), **self.init_state(p))
        return state

    def load_state_dict(self, state_dict: Group) -> None:
        """Loads state as torch does, but keeps its precision: torch would round it to that of the weights."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, p in zip(numbers, (p for group in self.param_groups for p in group["params"]), strict=True):
            saved = state_dict["state"].get(number, {}).items()
            self.state[p] |= {name: value.to(self.state[p][name].device) for name, value in saved}

    @contextmanager
    def measure_norm(self, *, pp_group: ProcessGroup | None = None, skip: Iterable[Tensor] = ()) -> Iterator[Tensor]:
        """Measures gradients in the first of two passes: backwards inside the block drop their gradients, nothing is
        updated.

        Yields a 0-dim tensor that is the global norm once the block has ended (a collective call, see `total_norm` for
        the arguments); `arm(clip_factor(max_norm, norm))` begins the second pass.
        """
        norm, self._total = torch.zeros(()), ParameterSum(skip)
        try:
            yield norm
            with torch.no_grad():
                for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                    self._total.take_gradient(p)
                norm.copy_(self._total.reduce(pp_group).sqrt())
        finally:
            self._total = None

    def detach(self, params: Iterable[Tensor] | None = None) -> None:
        """Removes all hooks, or those of weights whose gradients are incomplete when they fire: `step()` updates
        them.
        """
        for key in list(self._hooks) if params is None else [id(p) for p in params]:
            if key in self._hooks:
                self._hooks.pop(key).remove()
        self.fused = bool(self._hooks)


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
    if not is_dtensor(p):
        return zeros
    from torch.distributed.tensor import DTensor, Replicate

    placements = [Replicate() if getattr(cut, "dim", None) == dim else cut for cut in p.placements]
    shape, stride = torch.Size(full_shape), torch.empty(full_shape, device="meta").stride()
    return DTensor.from_local(zeros, p.device_mesh, placements, run_check=False, shape=shape, stride=stride)

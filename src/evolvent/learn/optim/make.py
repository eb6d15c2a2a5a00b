"""Optimizers by name, from a configuration."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.errors import ConfigError, MissingExtra, Problem, boundary, unknown_name_problem
from evolvent.learn.optim.adan import Adan, Lion
from evolvent.learn.optim.fused import AdaLomo, Lomo
from evolvent.learn.optim.sophia import SophiaG
from evolvent.learn.settings import OptimizerConfig
from evolvent.models.pieces import is_dtensor

__all__ = ["OffloadedOptimizer", "OptimizerConfig", "build_optimizer", "check_fused", "check_offload", "is_builtin"]

_UNSUPPORTED = {"lbfgs", "sparseadam", "optimizer"}  # a closure, sparse gradients, the base class
_OWN_CLASSES = (AdaLomo, Adan, Lion, Lomo, SophiaG)
_TORCH_CLASSES = [cls for cls in vars(torch.optim).values() if isinstance(cls, type) and issubclass(cls, Optimizer)]
_CLASSES = {
    cls.__name__.lower(): cls for cls in (*_TORCH_CLASSES, *_OWN_CLASSES) if cls.__name__.lower() not in _UNSUPPORTED
}
# Those that change each weight by its own gradient and state alone: a part of a tensor steps as the whole does.
_ELEMENTWISE = frozenset(
    [
        "adadelta",
        "adagrad",
        "adam",
        "adamax",
        "adamw",
        "adan",
        "asgd",
        "lion",
        "nadam",
        "radam",
        "rmsprop",
        "rprop",
        "sgd",
    ]
)


def check_fused(config: OptimizerConfig, micro_batches: int, pp: int) -> list[Problem]:
    """Returns the reasons why weights cannot change inside the backward, with remedies; empty if they can, or need
    not.
    """
    problems = []
    if config.fuses and micro_batches > 1:
        message = f"{config.name} would change weights between the {micro_batches} micro-batches of an update"
        remedy = "raise train.max_tokens_per_forward" if pp == 1 else f"which is slow with {pp} pipeline stages"
        problems.append(
            Problem("optimizer.fused", message, f"set optimizer.fused=false, or use one micro-batch: {remedy}")
        )
    if config.fuses and config.clip == "norm":
        message = f"{config.name} uses each gradient before the global norm is known"
        hint = "set optimizer.clip to two_pass (a second backward), value or none, or optimizer.fused=false"
        problems.append(Problem("optimizer.clip", message, hint))
    return problems


def check_offload(config: OptimizerConfig, *, device_type: str, num_ranks: int = 1) -> list[Problem]:
    """Returns the reasons why the states of an optimizer cannot be offloaded, with remedies; empty if they can.

    Args:
        device_type: type of the device that trains, as "cuda".
        num_ranks: ranks that share the training.
    """
    place, problems = "train.offload", []
    if device_type == "cpu":
        message = "weights that train on the CPU are in main memory already, so nothing would be gained"
        problems.append(Problem(place, message, "leave it out, or train on a device: --device cuda"))
    if config.fuses or config.name == "sophiag" or not is_builtin(config.name):
        message = f"{config.name} cannot step on copies of the weights in main memory"
        problems.append(Problem(place, message, "leave it out, or use adamw, adan, lion or another built-in optimizer"))
    elif num_ranks > 1 and config.name not in _ELEMENTWISE:
        message = f"{config.name} reads whole tensors, of which each of {num_ranks} ranks has a part in main memory"
        problems.append(Problem(place, message, "leave it out, or use adamw, adan, lion or sgd"))
    return problems


class OffloadedOptimizer(Optimizer):
    """An optimizer whose states are in main memory, while its weights are on a device (ZeRO-Offload, 2101.06840).

    A step copies weights and gradients into main memory, steps there, and copies the weights back: 12 bytes of
    traffic for a weight of float32. The device holds no states, and main memory holds a copy of the weights, too.
    Of a weight that is distributed over ranks, each rank has its own part there, and steps that.

    Args:
        build: builds the optimizer of named weights, in the order of the given ones.
        named_weights: the weights on the device.
    """

    def __init__(
        self,
        build: Callable[[list[tuple[str, Tensor]]], Optimizer],
        named_weights: Iterable[tuple[str, Tensor]],
    ) -> None:
        weights = [(name, weight) for name, weight in named_weights if weight.requires_grad]
        host_weights = [(name, _copy_to_host(weight)) for name, weight in weights]
        self._host_optimizer = build(host_weights)
        self._host_weights = {weight: host for (_, weight), (_, host) in zip(weights, host_weights, strict=True)}
        device_weights = {host: weight for weight, host in self._host_weights.items()}
        groups = [
            {**group, "params": [device_weights[host] for host in group["params"]]}
            for group in self._host_optimizer.param_groups
        ]
        super().__init__(groups, dict(self._host_optimizer.defaults))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is evaluated
        """Updates every weight that has a gradient."""
        host_optimizer = self._host_optimizer
        for group, host_group in zip(self.param_groups, host_optimizer.param_groups, strict=True):
            host_group.update({name: setting for name, setting in group.items() if name != "params"})
        for weight, host_weight in self._host_weights.items():
            if weight not in self.state:
                host_optimizer.state.pop(host_weight, None)
            if weight.grad is not None:
                host_weight.copy_(weight)
                host_weight.grad = _align_gradient(weight, weight.grad).to("cpu")
        host_optimizer.step()
        for weight, host_weight in self._host_weights.items():
            if host_weight.grad is not None:
                weight.copy_(host_weight)
                host_weight.grad = None
            if host_weight in host_optimizer.state:
                self.state[weight] = host_optimizer.state[host_weight]
        for group, host_group in zip(self.param_groups, host_optimizer.param_groups, strict=True):
            group.update({name: setting for name, setting in host_group.items() if name != "params"})


def _copy_to_host(weight: Tensor) -> Tensor:
    """Copies a weight, or this rank's part of it, into main memory; a whole one is pinned where CUDA reads it."""
    if is_dtensor(weight):  # `empty_like` would make another part on the device of the mesh
        return weight.detach().to("cpu", copy=True).requires_grad_()
    host_weight = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=weight.device.type == "cuda")
    return host_weight.copy_(weight.detach()).requires_grad_()


def _align_gradient(weight: Tensor, gradient: Tensor) -> Tensor:
    """Returns a gradient, distributed over ranks as its weight is; main memory has no group to sum it with."""
    if is_dtensor(weight) and is_dtensor(gradient) and gradient.placements != weight.placements:
        return gradient.redistribute(placements=weight.placements)
    return gradient


def build_optimizer(
    config: OptimizerConfig,
    named_params: Iterable[tuple[str, Tensor]],
    *,
    lr: float,
    betas: tuple[float, ...],
    weight_decay: float,
    clip: float | None = None,
) -> Optimizer:
    """Builds the optimizer of a configuration; matrices decay, vectors do not. Build it after the model is
    distributed.

    Args:
        betas: AdamW's, where the configuration names none.
        clip: limit of lomo and adalomo where `clip` is "value".
    Raises:
        ConfigError: the name is unknown, or the optimizer does not take these settings or weights.
        MissingExtra: a name that only pytorch_optimizer could know.
    """
    cls, weights = _find_class(config.name), [p for _, p in named_params if p.requires_grad]
    parameters, own_settings = inspect.signature(cls).parameters, ("betas", "eps", "momentum", "rho", "hessian_every")
    settings: dict[str, Any] = {key: value for key in own_settings if (value := getattr(config, key)) is not None}
    for key, value in settings.items():
        default = parameters[key].default if key in parameters else None
        if key not in parameters or (isinstance(value, tuple) and len(value) != len(default or ())):
            message = f"got {value}, but {config.name} does not support it"
            raise ConfigError([Problem(f"optimizer.{key}", message, f"its default is {default}")])
    if cls is torch.optim.AdamW:
        settings = {"betas": betas, "fused": all(p.device.type in ("cpu", "cuda") for p in weights), **settings}
    elif "clip_value" in parameters:
        settings |= {"fused": config.fused, "clip_value": clip if config.clipping == "value" else None}
    elif cls is torch.optim.Adafactor and any(is_dtensor(p) for p in weights):
        hint = "set optimizer.name=adalomo and optimizer.fused=false for the same update rule"
        raise ConfigError([Problem("optimizer.name", "adafactor of torch cannot train sharded weights", hint)])
    groups: dict[tuple[bool, Any], dict[str, Any]] = {}  # one for each mesh: torch's batched operations mix none
    for p in sorted(weights, key=lambda p: p.dim() <= 1):
        mesh = p.device_mesh if is_dtensor(p) else None
        empty = {"params": [], "weight_decay": weight_decay if p.dim() > 1 else 0.0}
        groups.setdefault((p.dim() > 1, mesh), empty)["params"].append(p)
    with boundary(ConfigError, f"optimizer {config.name!r} refused its weights or settings"):
        optimizer: Optimizer = cls(list(groups.values()), lr=lr, **settings)
    return optimizer


def is_builtin(name: str) -> bool:
    """Returns whether an optimizer is ours or torch's, whose whole state is known."""
    return name in _CLASSES


def _find_class(name: str) -> Any:
    """Finds the class of a name: ours, then torch's, then those of pytorch_optimizer."""
    if name in _CLASSES:
        return _CLASSES[name]
    try:
        library = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        raise MissingExtra("optim", f"optimizer {name!r} (built in: {', '.join(sorted(_CLASSES))})") from error
    names = set(library.get_supported_optimizers()) - _UNSUPPORTED
    if name not in names:
        raise ConfigError([unknown_name_problem("optimizer", name, names | set(_CLASSES), location="optimizer.name")])
    return library.load_optimizer(name)

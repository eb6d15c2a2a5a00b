"""Modules whose weights are DTensors over the tp dimension, and which compute with this rank's plain local tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from evolvent.errors import BatchMismatch

__all__ = [
    "COLWISE",
    "COPIED",
    "PARTIAL",
    "REPLICATED",
    "ROWS",
    "ROWWISE",
    "SHARED",
    "Redistribution",
    "WeightPlacement",
    "distribute_weights",
    "redistribute",
    "redistribute_input",
    "redistribute_output",
]

REPLICATED = Replicate()  # all of it on every rank
PARTIAL = Partial()  # one term of a sum over the ranks


class Redistribution(NamedTuple):
    """The placement of a tensor over the ranks (`source`), and the one that it gets (`target`).

    `grad` is the placement of its incoming gradient, where it differs from `target`. The gradient leaves with placement
    `source`; that of a partial sum is replicated.
    """

    source: Placement
    target: Placement
    grad: Placement | None = None


def redistribute(x: Tensor, mesh: DeviceMesh, redistribution: Redistribution) -> Tensor:
    """Redistributes a local tensor.

    Raises:
        BatchMismatch: it is to be split, and does not divide.
    """
    source, target, grad = redistribution
    if isinstance(target, Shard) and source == REPLICATED and x.shape[target.dim] % mesh.size():
        raise BatchMismatch(
            "hidden states cannot be cut along their sequence",
            value=f"{x.shape[target.dim]} tokens in a row",
            expected=f"a multiple of tp {mesh.size()}",
            hint="pad the rows, or set parallel.sequence to false",
        )
    distributed = DTensor.from_local(x, mesh, [source], run_check=False).redistribute(placements=[target])
    return distributed.to_local(grad_placements=None if grad is None else [grad])


def redistribute_input(module: nn.Module, mesh: DeviceMesh, redistribution: Redistribution) -> None:
    """Registers a hook that redistributes a module's first input, the hidden states, by position or by name."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (redistribute(args[0], mesh, redistribution), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": redistribute(kwargs["hidden_states"], mesh, redistribution)}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def redistribute_output(module: nn.Module, mesh: DeviceMesh, redistribution: Redistribution) -> None:
    """Registers a hook that redistributes a module's output."""
    module.register_forward_hook(lambda _, __, result: redistribute(result, mesh, redistribution))


def _local_tensor(weight: DTensor) -> Tensor:
    return weight.to_local()  # written as a call: torch.compile knows no other form


def _sum_gradient(weight: DTensor) -> Tensor:
    return redistribute(weight.to_local(), weight.device_mesh, Redistribution(REPLICATED, REPLICATED, PARTIAL))


def _take_portion(weight: DTensor) -> Tensor:
    # Not "by the first rank alone": ranks must compile the same graph, or their collectives come in different orders.
    return _sum_gradient(weight) / weight.device_mesh.size()


class WeightPlacement(NamedTuple):
    """The placement of a weight over the ranks, and the tensor that its module computes with."""

    placement: Placement
    local: Callable[[DTensor], Tensor]


COPIED = WeightPlacement(REPLICATED, _local_tensor)  # all ranks compute the same with it
SHARED = WeightPlacement(REPLICATED, _sum_gradient)  # each computes something else with it: their gradients are summed
PORTION = WeightPlacement(REPLICATED, _take_portion)  # a bias of terms that are summed: each rank adds its portion
ROWS = WeightPlacement(Shard(0), _local_tensor)
COLUMNS = WeightPlacement(Shard(1), _local_tensor)

# Of a linear, and of the LoRA beside it: how weight and bias lie.
COLWISE = {"base": (ROWS, ROWS), "lora_A": (SHARED, SHARED), "lora_B": (ROWS, ROWS)}
ROWWISE = {"base": (COLUMNS, PORTION), "lora_A": (COLUMNS, PORTION), "lora_B": (SHARED, PORTION)}


class _LocalForward(nn.Module):
    """A mixin before a module's class: its weights are plain tensors only inside its forward."""

    uses: Mapping[str, WeightPlacement]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters: dict[str, Any] = dict(self._parameters)
        local: Any = {name: use.local(parameters[name]) for name, use in self.uses.items()}
        self._parameters.update(local)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._parameters.update(parameters)


class _LocalEmbedding(_LocalForward):
    """An embedding of this rank's tokens; those of other ranks give zeros, and the results of all ranks are added.

    torch's own row-wise embedding creates a gradient as large as the whole table on every rank.
    """

    def forward(self, ids: Tensor) -> Tensor:
        weight: Any = self._parameters["weight"]
        mesh, size = weight.device_mesh, weight.to_local().shape[0]
        local_ids = ids - mesh.get_local_rank() * size
        is_local = (local_ids >= 0) & (local_ids < size)
        embedded = super().forward(local_ids.where(is_local, 0)).masked_fill(~is_local.unsqueeze(-1), 0.0)
        return redistribute(embedded, mesh, Redistribution(PARTIAL, REPLICATED))


def distribute_weights(
    module: nn.Module,
    uses: Mapping[str, WeightPlacement],
    mesh: DeviceMesh,
    *,
    distributed_weights: MutableMapping[Tensor, nn.Parameter],
) -> None:
    """Distributes a module's own weights over a mesh, in place. No rank asks another: each keeps its part.

    Args:
        distributed_weights: weights that were distributed before, by the original: a tied weight is found here and
            stays
            tied.
    """
    weights = dict(module.named_parameters(recurse=False))
    for name, weight in weights.items():
        if weight not in distributed_weights:
            distributed = distribute_tensor(weight.detach(), mesh, [uses[name].placement], src_data_rank=None)
            distributed_weights[weight] = nn.Parameter(distributed, requires_grad=weight.requires_grad)
        module.register_parameter(name, distributed_weights[weight])
    mixin: type[nn.Module] = _LocalForward
    if isinstance(module, nn.Embedding):
        mixin = _LocalEmbedding
        if module.padding_idx is not None:
            size = module.num_embeddings // mesh.size()
            padding = module.padding_idx - mesh.get_local_rank() * size
            module.padding_idx = padding if 0 <= padding < size else None
    module.__class__ = type(type(module).__name__, (mixin, type(module)), {})
    vars(module)["uses"] = {name: uses[name] for name in weights}

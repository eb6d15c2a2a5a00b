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
    "COPY",
    "ROWS",
    "ROWWISE",
    "SHARED",
    "TERM",
    "WHOLE",
    "Move",
    "Use",
    "entering",
    "leaving",
    "localise",
    "moved",
]

WHOLE = Replicate()  # all of it on every rank
TERM = Partial()  # one term of a sum over the ranks


class Move(NamedTuple):
    """How a tensor lies over the ranks (`source`), and how it shall (`target`).

    `grad` is how its gradient comes back, where not as `target`. It goes on as `source`; that of a term is whole.
    """

    source: Placement
    target: Placement
    grad: Placement | None = None


def moved(x: Tensor, mesh: DeviceMesh, move: Move) -> Tensor:
    """A local tensor, laid otherwise.

    Raises:
        BatchMismatch: it is to be cut, and does not divide.
    """
    source, target, grad = move
    if isinstance(target, Shard) and source == WHOLE and x.shape[target.dim] % mesh.size():
        raise BatchMismatch(
            "hidden states cannot be cut along their sequence",
            value=f"{x.shape[target.dim]} tokens in a row",
            expected=f"a multiple of tp {mesh.size()}",
            hint="pad the rows, or set parallel.sequence to false",
        )
    spread = DTensor.from_local(x, mesh, [source], run_check=False).redistribute(placements=[target])
    return spread.to_local(grad_placements=None if grad is None else [grad])


def entering(module: nn.Module, mesh: DeviceMesh, move: Move) -> None:
    """From now on, `moved` what a module gets first: hidden states, by position or by name."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (moved(args[0], mesh, move), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": moved(kwargs["hidden_states"], mesh, move)}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def leaving(module: nn.Module, mesh: DeviceMesh, move: Move) -> None:
    """From now on, `moved` what a module gives."""
    module.register_forward_hook(lambda _, __, result: moved(result, mesh, move))


def _own(weight: DTensor) -> Tensor:
    return weight.to_local()  # written as a call: torch.compile knows no other form


def _summed(weight: DTensor) -> Tensor:
    return moved(weight.to_local(), weight.device_mesh, Move(WHOLE, WHOLE, TERM))


def _portion(weight: DTensor) -> Tensor:
    # Not "by the first rank alone": ranks must compile the same graph, or their collectives come in different orders.
    return _summed(weight) / weight.device_mesh.size()


class Use(NamedTuple):
    """How a weight lies over the ranks, and what its module computes with."""

    placement: Placement
    local: Callable[[DTensor], Tensor]


COPY = Use(WHOLE, _own)  # all ranks compute the same with it
SHARED = Use(WHOLE, _summed)  # each computes something else with it: their gradients are summed
PORTION = Use(WHOLE, _portion)  # a bias of terms that are summed: each rank adds its portion
ROWS = Use(Shard(0), _own)
COLUMNS = Use(Shard(1), _own)

# Of a linear, and of the LoRA beside it: how weight and bias lie.
COLWISE = {"base": (ROWS, ROWS), "lora_A": (SHARED, SHARED), "lora_B": (ROWS, ROWS)}
ROWWISE = {"base": (COLUMNS, PORTION), "lora_A": (COLUMNS, PORTION), "lora_B": (SHARED, PORTION)}


class _Local(nn.Module):
    """Put before a module's class: only inside its forward are its weights plain tensors."""

    uses: Mapping[str, Use]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        held: dict[str, Any] = dict(self._parameters)
        local: Any = {name: use.local(held[name]) for name, use in self.uses.items()}
        self._parameters.update(local)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._parameters.update(held)


class _Words(_Local):
    """An embedding of this rank's words. Those of other ranks give zeros, and the results of all ranks are added.

    torch's own row-wise embedding makes a gradient as large as the whole table on every rank.
    """

    def forward(self, ids: Tensor) -> Tensor:
        weight: Any = self._parameters["weight"]
        mesh, size = weight.device_mesh, weight.to_local().shape[0]
        own = ids - mesh.get_local_rank() * size
        here = (own >= 0) & (own < size)
        found = super().forward(own.where(here, 0)).masked_fill(~here.unsqueeze(-1), 0.0)
        return moved(found, mesh, Move(TERM, WHOLE))


def localise(
    module: nn.Module, uses: Mapping[str, Use], mesh: DeviceMesh, *, made: MutableMapping[Tensor, nn.Parameter]
) -> None:
    """Lay a module's own weights over a mesh, in place. No rank asks another: each keeps its part of what it has.

    Args:
        made: what was laid before, by what it was: a tied weight is found here and stays tied.
    """
    own = dict(module.named_parameters(recurse=False))
    for name, weight in own.items():
        if weight not in made:
            spread = distribute_tensor(weight.detach(), mesh, [uses[name].placement], src_data_rank=None)
            made[weight] = nn.Parameter(spread, requires_grad=weight.requires_grad)
        module.register_parameter(name, made[weight])
    kind: type[nn.Module] = _Local
    if isinstance(module, nn.Embedding):
        kind = _Words
        if module.padding_idx is not None:
            size = module.num_embeddings // mesh.size()
            padding = module.padding_idx - mesh.get_local_rank() * size
            module.padding_idx = padding if 0 <= padding < size else None
    module.__class__ = type(type(module).__name__, (kind, type(module)), {})
    vars(module)["uses"] = {name: uses[name] for name in own}

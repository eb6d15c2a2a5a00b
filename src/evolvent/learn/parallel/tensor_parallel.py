"""Tensor parallelism: the ranks of the tp dimension share every matrix product, as the model's own plan says.

Ranks communicate at the input and output of an attention or MLP block (Megatron, arXiv 1909.08053), and in
backward where their gradients of a whole weight are summed: gradients are right as soon as they exist. With
`sequence`, tensors between blocks are split along the sequence (arXiv 2205.05198). Outside of the layers hidden
states are whole.

Weights are DTensors over the tp dimension; modules compute with this rank's plain local tensors. A process without
other ranks does not import this module, which loads torch's DTensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils.weak import WeakTensorKeyDictionary

from evolvent.errors import BatchMismatch, ConfigError, Problem, unknown_name_problem
from evolvent.learn.parallel.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

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
    "apply_tp",
    "check_tp",
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
            stays tied.
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


_ADAPTER_HINT = "plain linears and plain LoRA on them can be; not DoRA, IA3, prefix or prompt tuning: use tp 1"
_LINEAR_STYLES = dict.fromkeys(("colwise", "colwise_gather_output", "head"), COLWISE) | {"rowwise": ROWWISE}
_COLWISE_STYLES = ("colwise", "colwise_gather_output")
_STYLES = (*_COLWISE_STYLES, "rowwise", "embedding_rowwise", "replicated_with_grad_allreduce")


class _ModuleUnit(NamedTuple):
    """A module with weights, and its style of parallelism."""

    name: str
    module: Any
    style: str | None  # the plan's, "head", "token" (a norm between blocks), "outside" (of the layers), None: missing


def check_tp(config: PreTrainedConfig, tp: int) -> list[Problem]:
    """Returns the reasons why a model cannot be split over `tp` ranks; from its configuration, before it is built."""
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        hint = "use tp 1, or set config.base_model_tp_plan: {'layers.*.self_attn.q_proj': 'colwise', ...}"
        return [Problem("parallel.tp", f"{config.model_type!r} models have no plan for tensor parallelism", hint)]
    sizes = {
        "attention heads": config.num_attention_heads,
        "key/value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "hidden units of an MLP": config.intermediate_size,
        "words of the vocabulary": config.vocab_size,
    }
    hint = f"set tp to a divisor of {math.gcd(*sizes.values())}"
    uneven = [(size, size_name) for size_name, size in sizes.items() if size % tp]
    unknown_styles = [(name, style) for name, style in plan.items() if style not in _STYLES]
    return [
        *(
            Problem("parallel.tp", f"{size} {size_name} cannot be shared by {tp} ranks", hint)
            for size, size_name in uneven
        ),
        *(
            unknown_name_problem("tensor-parallel style", style, _STYLES, location=name)
            for name, style in unknown_styles
        ),
    ]


def apply_tp(model: PreTrainedModel, ranks: Ranks, *, sequence: bool) -> None:
    """Splits a Hugging Face causal LM, a pipeline stage of one, or either under LoRA, over the tp dimension, in
    place.

    Afterwards `model(...).logits` is this rank's slice `[..., V / tp]`; the head's input and its gradient are whole.

    Args:
        model: the same on all ranks of the dimension, each of which keeps its part. It may be on the meta device.
        sequence: split norms and residuals along the sequence; the tokens of a row are then a multiple of tp.
    Raises:
        ConfigError: sizes do not divide, there is no plan, or a style or module is unknown. The model is unchanged.
    """
    if ranks.devices is None or ranks.mesh.tp == 1:
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    problems = check_tp(base.config, ranks.mesh.tp)
    if any(adapter.is_prompt_learning for adapter in getattr(model, "peft_config", {}).values()):
        problems.append(Problem("parallel.tp", "prefix and prompt tuning cannot be split", _ADAPTER_HINT))
    units = [] if problems else list(_iterate_units(base))
    problems += filter(None, map(_unit_problem, units))
    if problems:
        raise ConfigError(problems)
    mesh, distributed_weights = ranks.devices["tp"], WeakTensorKeyDictionary()
    for unit in units:
        for module, uses in _iterate_placements(unit, sequence=sequence):
            distribute_weights(module, uses, mesh, distributed_weights=distributed_weights)
    _register_hooks(base, units, mesh, stream=Shard(1) if sequence else REPLICATED)


def _iterate_units(base: Any) -> Iterator[_ModuleUnit]:
    """Yields every module that has weights, once; a wrapped linear is one unit with its wrapper."""
    embedding, head, body = base.get_input_embeddings(), base.get_output_embeddings(), base.base_model_prefix
    plan = {f"{body}.{name}": style for name, style in base.config.base_model_tp_plan.items()}
    plan |= type(base)._tp_plan or {}

    def walk(module: nn.Module, name: str) -> Iterator[_ModuleUnit]:
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if module is head:
            yield _ModuleUnit(name, module, "head" if style in _LINEAR_STYLES else style)
        elif module is embedding or style is not None:
            yield _ModuleUnit(name, module, style or "embedding_rowwise")
        else:
            if next(module.parameters(recurse=False), None) is not None:
                leaf = re.fullmatch(rf"{body}\.layers\.\d+\.\w+", name) and next(module.children(), None) is None
                inside = name.startswith(f"{body}.layers.")
                yield _ModuleUnit(name, module, "outside" if not inside else "token" if leaf else None)
            for part, child in module.named_children():
                yield from walk(child, f"{name}.{part}".removeprefix("."))

    yield from walk(base, "")


def _list_linears(module: Any) -> list[tuple[str, nn.Module]]:
    """Lists the linears in a module that the plan names as one, by role; empty where it cannot be split."""
    if isinstance(module, nn.Linear):
        return [("base", module)]
    if hasattr(module, "lora_A") and isinstance(module.base_layer, nn.Linear) and not module.lora_variant:
        lora_linears = [(role, part) for role in ("lora_A", "lora_B") for part in getattr(module, role).values()]
        return [("base", module.base_layer), *lora_linears]
    return []


def _unit_problem(unit: _ModuleUnit) -> Problem | None:
    name, module, style = unit
    if style is None:
        return Problem(name, "the model's plan for tensor parallelism has no style for it", "use tp 1")
    if style not in (*_STYLES, "head", "token", "outside"):
        return unknown_name_problem("tensor-parallel style", style, _STYLES, location=name)
    is_supported = {"embedding_rowwise": isinstance(module, nn.Embedding)} | dict.fromkeys(
        _LINEAR_STYLES, bool(_list_linears(module))
    )
    return (
        None
        if is_supported.get(style, True)
        else Problem(name, f"{type(module).__name__} cannot be split", _ADAPTER_HINT)
    )


def _iterate_placements(unit: _ModuleUnit, *, sequence: bool) -> Iterator[tuple[nn.Module, dict[str, WeightPlacement]]]:
    """Yields the modules of a unit, and the placement of each of their weights."""
    if unit.style in _LINEAR_STYLES:
        for role, linear in _list_linears(unit.module):
            yield linear, dict(zip(("weight", "bias"), _LINEAR_STYLES[unit.style][role], strict=True))
    elif unit.style == "embedding_rowwise":
        yield unit.module, {"weight": ROWS}
    else:
        is_copied = unit.style == "outside" or (unit.style == "token" and not sequence)
        names = dict(unit.module.named_parameters(recurse=False))
        yield unit.module, dict.fromkeys(names, COPIED if is_copied else SHARED)


def _register_hooks(base: Any, units: Sequence[_ModuleUnit], mesh: DeviceMesh, *, stream: Placement) -> None:
    """Registers the hooks in which ranks communicate. `stream` is the placement of hidden states between blocks."""
    for _, module, style in units:
        if style == "rowwise":
            redistribute_output(module, mesh, Redistribution(PARTIAL, stream))
        elif style == "colwise_gather_output":
            redistribute_output(module, mesh, Redistribution(Shard(-1), REPLICATED))
        elif style == "head":
            redistribute_input(module, mesh, Redistribution(REPLICATED, REPLICATED, PARTIAL))
    for block in dict.fromkeys(name.rpartition(".")[0] for name, _, style in units if style in _COLWISE_STYLES):
        redistribute_input(base.get_submodule(block), mesh, Redistribution(stream, REPLICATED, PARTIAL))
    layers = [layer for layer in base.get_decoder().layers if hasattr(layer, "self_attn")]
    if layers and stream != REPLICATED:
        redistribute_input(layers[0], mesh, Redistribution(REPLICATED, stream))
        redistribute_output(layers[-1], mesh, Redistribution(stream, REPLICATED))

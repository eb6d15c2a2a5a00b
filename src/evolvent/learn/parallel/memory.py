"""Memory estimates of a training, by rank and kind, before its weights exist.

Weights and states are counted exactly. Activations are measured by running the training's forward over one
layer, on tensors that have shapes and devices but no memory.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from evolvent.learn.forward import allows_blocks, compute_outputs
from evolvent.learn.fused_head import block_size
from evolvent.learn.optim import OptimizerConfig, build_optimizer
from evolvent.learn.optim.make import check_offload
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.parallel.stages import split_layers
from evolvent.learn.settings import Offload
from evolvent.learn.token_sequences import Batch
from evolvent.models.nf4 import iterate_buffers, list_nf4_layers
from evolvent.models.tuned import virtual_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = [
    "USABLE_RATIO",
    "Load",
    "MemoryEstimate",
    "TrainingPlan",
    "build_meta_model",
    "estimate_memory",
    "format_plans",
    "suggest_plans",
]

_BEFORE_LAYERS, _AFTER_LAYERS = -1, 1_000_000  # the places before and behind the numbered layers
_LOGIT_BYTES = 4  # softmax and sums are in float32
_DEQUANTIZED_BYTES = 16  # a weight of 4 bits while its layer computes: indices, levels, products, the weight
USABLE_RATIO = 0.93  # of a card; its context, libraries and what allocation splinters take the rest


@dataclass(frozen=True, slots=True)
class Load:
    """The input of a rank: `micro_batches` forwards of `rows` x `tokens` before an update.

    `dtype` is the forward's; the head runs at `targets_share` of the tokens; `packed` rows have a mask that
    separates their documents. `offload` names what waits in main memory (`TrainConfig.offload`); `device` is the type
    of the device, "cpu" or "cuda".
    """

    rows: int
    tokens: int
    micro_batches: int = 1
    targets_share: float = 1.0
    dtype: str = "float32"
    packed: bool = False
    offload: Offload | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the rank that holds the most, which is one of pipeline stage `stage`.

    Attributes:
        gradients: all; of a fused optimizer the largest alone.
        copies: tensors that FSDP gathers and sums, or that autocast rounds; of a layer of 4 bits, its floats.
        activations: tensors that layers keep for backward.
        logits: memory of head and loss.
        total: at the peak; less than the sum, because activations are freed while gradients appear. The temporary
            memory of an optimizer's step is not included: none, or a few times the largest weight.
    """

    parameters: int
    gradients: int
    optimizer: int
    copies: int
    activations: int
    logits: int
    total: int
    stage: int = 0


class TrainingPlan(NamedTuple):
    """A way to train, its memory, and its difference from the request."""

    parallelism: Parallelism
    optimizer: OptimizerConfig
    load: Load
    estimate: MemoryEstimate
    changes: str = ""


class _Weight(NamedTuple):
    """A parameter on a rank: its layer, its shape before and after FSDP's sharding, bytes of an element."""

    layer: int
    shape: tuple[int, ...]
    local: tuple[int, ...]
    size: int
    trains: bool
    tied: bool

    @property
    def local_bytes(self) -> int:
        return prod(self.local) * self.size


def build_meta_model(config: PreTrainedConfig, *, weights: str = "float32") -> object:
    """Builds the causal LM of a transformers config, its weights of a dtype: names and shapes, on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=getattr(torch, weights)).train()


def estimate_memory(
    model: PreTrainedModel, parallelism: Parallelism, optimizer: OptimizerConfig, *, load: Load
) -> MemoryEstimate:
    """Estimates the memory of a training on the rank that holds the most.

    Args:
        model: a causal LM, best from `build_meta_model`, with or without an adapter; weights without `requires_grad`
            are frozen.
        optimizer: a fused one runs inside backward, which needs a single micro-batch.
        load: offloaded states are not counted; main memory has them, and a copy of the weights that are trained.
    """
    uses_fsdp = parallelism.mesh.uses_fsdp(fuses=optimizer.fuses)
    weights, activation_bytes = (
        list(_iterate_weights(model, parallelism)),
        _measure_activations(model, parallelism, load, uses_fsdp=uses_fsdp),
    )
    state_bytes = _measure_state_bytes(
        optimizer, next((weight.dtype for weight in model.parameters() if weight.requires_grad), torch.float32)
    )
    fused = optimizer.fuses and load.micro_batches == 1
    # One layer at a time: its weights, and the product of levels and scales that they are made from.
    sizes = (layer.out_features * layer.in_features for layer in list_nf4_layers(model).values())
    dequantized_bytes = _DEQUANTIZED_BYTES * max(sizes, default=0)
    ranks = []
    for stage in range(parallelism.pp):
        stage_weights = _select_stage_weights(weights, parallelism, stage)
        trained = [weight for weight in stage_weights if weight.trains]
        is_offloaded = load.offload in ("optimizer", "both")
        state = 0 if is_offloaded else sum(_state_bytes(weight, state_bytes) for weight in trained)
        activations, logits = _pending_bytes(
            activation_bytes, stage_weights, parallelism, stage=stage, count=load.micro_batches
        )
        gradients = (
            max((weight.local_bytes for weight in trained), default=0)
            if fused
            else sum(weight.local_bytes for weight in trained)
        )
        tied = sum(
            2 * prod(weight.shape) * weight.size for weight in trained if weight.tied and parallelism.pp == 1
        )  # two parts, summed
        head = max(
            (weight.local_bytes for weight in trained if weight.layer == _AFTER_LAYERS or weight.tied), default=0
        ) * bool(logits)
        backward_start = activations + (
            gradients + logits if load.micro_batches > 1 else max(logits, activation_bytes.logits + head)
        )
        fixed = [
            sum(weight.local_bytes for weight in stage_weights),
            state,
            dequantized_bytes
            + _copy_bytes(stage_weights, parallelism, is_low_precision=load.dtype != "float32", uses_fsdp=uses_fsdp),
        ]
        total = sum(fixed) + max(backward_start, gradients + tied)
        ranks.append(MemoryEstimate(fixed[0], gradients, state, fixed[2], activations, logits, total, stage))
    return max(ranks, key=lambda rank: rank.total)


def _tp_style(model: PreTrainedModel, module: str) -> str:
    """Returns the style that the model's own plan of tensor parallelism gives a module; an adapter follows its base."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    module_name = re.sub(r"^base_model\.model\.|\.(base_layer|lora_[AB])\b.*", "", module)
    return str((base._tp_plan or {}).get(re.sub(r"\.\d+(?=\.|$)", ".*", module_name), ""))


def _iterate_weights(model: PreTrainedModel, parallelism: Parallelism) -> Iterator[_Weight]:
    """Yields every parameter, as it lies on the rank that has most of it."""
    ends = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings())]
    for name, weight in model.named_parameters():
        style, number = _tp_style(model, name.rpartition(".")[0]), re.search(r"\blayers\.(\d+)\.", name)
        shard_dim = 1 if style == "rowwise" else 0 if style.startswith(("colwise", "embedding")) else None
        if shard_dim is not None and f"lora_{'AB'[shard_dim]}" in name:
            shard_dim = None
        shape = tuple(
            ceil(size / parallelism.tp) if dim == shard_dim else size for dim, size in enumerate(weight.shape)
        )
        layer = (
            int(number[1])
            if number
            else _BEFORE_LAYERS
            if weight is ends[0] or "prompt_encoder" in name
            else _AFTER_LAYERS
        )
        local = (ceil(shape[0] / parallelism.shard), *shape[1:])
        yield _Weight(layer, shape, local, weight.element_size(), weight.requires_grad, ends[0] is ends[1] is weight)
    for name, buffer in iterate_buffers(model):
        number = re.search(r"\blayers\.(\d+)\.", name)
        layer = int(number[1]) if number else _BEFORE_LAYERS
        yield _Weight(layer, tuple(buffer.shape), tuple(buffer.shape), buffer.element_size(), False, False)


def _select_stage_weights(weights: Sequence[_Weight], parallelism: Parallelism, stage: int) -> list[_Weight]:
    """Returns the weights of a stage's rank, to which the schedule may give two parts of the model."""
    single = parallelism.pp == 1 or parallelism.schedule in ("gpipe", "1f1b")
    parts = [stage, 2 * parallelism.pp - 1 - stage if parallelism.schedule == "zbv" else stage + parallelism.pp][
        : 1 if single else 2
    ]
    layers = split_layers(
        max(weight.layer for weight in weights if weight.layer != _AFTER_LAYERS) + 1, parallelism.pp * len(parts)
    )
    stage_layers = {layer for part in parts for layer in layers[part]}
    stage_layers |= ({_BEFORE_LAYERS} if 0 in parts else set()) | (
        {_AFTER_LAYERS} if parallelism.pp * len(parts) - 1 in parts else set()
    )
    copied = [weight._replace(layer=_AFTER_LAYERS) for weight in weights if weight.tied and parallelism.pp > 1]
    return [weight for weight in [*weights, *copied] if weight.layer in stage_layers]


def _measure_state_bytes(config: OptimizerConfig, dtype: torch.dtype) -> dict[int, list[int]]:
    """Measures bytes of state by element, row, column and tensor, for each number of dimensions, from one real step."""
    bytes_by_rank = {}
    for shape in ((11,), (5, 7)):
        weight = nn.Parameter(torch.ones(shape, dtype=dtype))
        optimizer = build_optimizer(config, [("weight", weight)], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        counts = [prod(shape), *(shape if len(shape) == 2 else (0, 0))]
        state_tensors = [value for value in optimizer.state[weight].values() if isinstance(value, Tensor)]
        sizes = [sum(v.element_size() for v in state_tensors if v.numel() == count) for count in counts]
        bytes_by_rank[len(shape)] = [*sizes, sum(v.nbytes for v in state_tensors if v.numel() not in counts)]
    return bytes_by_rank


def _state_bytes(weight: _Weight, state_bytes: dict[int, list[int]]) -> int:
    rows, columns = prod(weight.local[:-1]), weight.local[-1]
    bytes_per_kind = state_bytes[min(2, len(weight.local))]
    return sum(size * count for size, count in zip(bytes_per_kind, (rows * columns, rows, columns, 1), strict=True))


def _copy_bytes(
    stage_weights: Sequence[_Weight], parallelism: Parallelism, *, is_low_precision: bool, uses_fsdp: bool
) -> int:
    """Counts whole weights and gradients of the groups that FSDP works on, or the weights that autocast has rounded."""
    if not uses_fsdp:
        rounded = [
            entry
            for entry in stage_weights
            if len(entry.shape) > 1 and entry.size > 2 and (entry.layer != _BEFORE_LAYERS or entry.tied)
        ]
        return sum(2 * prod(entry.shape) for entry in rounded) * is_low_precision
    groups: dict[int, list[_Weight]] = {}
    for weight in stage_weights:
        groups.setdefault(_BEFORE_LAYERS if weight.layer == _AFTER_LAYERS else weight.layer, []).append(weight)
    gathered = {
        layer: sum(prod(entry.shape) * (2 if is_low_precision else entry.size) for entry in group)
        for layer, group in groups.items()
    }
    summed = {
        layer: sum(prod(entry.shape) * entry.size for entry in group if entry.trains) for layer, group in groups.items()
    }
    if parallelism.pp > 1:  # weights stay gathered and gradients unsummed over all micro-batches
        return sum(gathered.values()) + sum(summed.values()) + max(summed.values())
    root, root_summed = gathered.pop(_BEFORE_LAYERS), summed.pop(_BEFORE_LAYERS)
    return root + max(
        3 * max(gathered.values()), 2 * max(gathered.values()) + 2 * max(summed.values()), 2 * root_summed
    )


class _ActivationBytes(NamedTuple):
    """Bytes that wait for backward: of a layer, of its input alone, of the modules behind the layers, of head and
    loss.
    """

    layer: int
    input: int
    end: int
    logits: int


def _pending_bytes(
    activation_bytes: _ActivationBytes,
    stage_weights: Sequence[_Weight],
    parallelism: Parallelism,
    *,
    stage: int,
    count: int,
) -> tuple[int, int]:
    """Returns activations and logits of a stage's rank that its schedule keeps at once
    (torch.distributed.pipelining).
    """
    round_size = count // max(
        1, count // parallelism.pp
    )  # micro-batches that pass one part before the next part sees any
    halves = {
        "gpipe": 2 * count,
        "looped_bfs": 2 * count,
        "1f1b": 2 * (parallelism.pp - stage),
        "zbv": 2 * parallelism.pp,
        "interleaved": round_size + 2 * (parallelism.pp - 1 - stage) + 1,
        "zero_bubble": round_size + parallelism.pp,
    }[parallelism.schedule]
    in_flight = 1.0 if parallelism.pp == 1 else min(halves, 2 * count) / 2
    layers, scored = (
        len({weight.layer for weight in stage_weights} - {_BEFORE_LAYERS, _AFTER_LAYERS}),
        any(weight.layer == _AFTER_LAYERS for weight in stage_weights),
    )
    layerwise = (
        in_flight * layers * (activation_bytes.input if parallelism.recompute else activation_bytes.layer)
        + activation_bytes.layer * parallelism.recompute
    )
    received = 2 * count * activation_bytes.input if parallelism.pp > 1 else 0  # both ways, for all micro-batches
    losses = (count if parallelism.schedule in ("gpipe", "looped_bfs") and parallelism.pp > 1 else 1) * scored
    return ceil(layerwise) + received + losses * activation_bytes.end, (
        losses + 2 * scored
    ) * activation_bytes.logits  # two more in backward


def _measure_activations(
    model: PreTrainedModel, parallelism: Parallelism, load: Load, *, uses_fsdp: bool
) -> _ActivationBytes:
    """Runs the training's forward over the first layer and counts the tensors that autograd stores, without weights."""
    meta = {
        id(weight): nn.Parameter(weight.detach().to("meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    model, dtype = copy.deepcopy(model, meta), getattr(torch, load.dtype)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    decoder.layers = decoder.layers[:1]
    window = getattr(model.config, "sliding_window", None) or load.tokens
    is_plain = not load.packed and load.tokens <= window and not virtual_tokens(model)[0]
    with FakeTensorMode(allow_non_fake_inputs=True):  # peft holds the ids of virtual tokens
        for module in model.modules():
            _materialize(module, dtype if uses_fsdp else None)
        weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
        module_stack, stored_tensors, inputs = (
            [("logits", 1 / parallelism.tp)],
            dict[int, tuple[Tensor, str, float]](),
            list[Tensor](),
        )

        def enter_layer(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            inputs.append(args[0].detach().requires_grad_())  # as behind a layer that learns
            for shared_tensor in kwargs.get("position_embeddings", ()):
                stored_tensors[shared_tensor.untyped_storage()._cdata] = (shared_tensor, "end", 1.0)
            # transformers takes tensors without values for packed rows and makes a mask that training does not need
            return (inputs[0], *args[1:]), kwargs | ({"attention_mask": None} if is_plain else {})

        def store_tensor(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage()._cdata not in weights:
                stored_tensors.setdefault(tensor.untyped_storage()._cdata, (tensor, *module_stack[-1]))
            return tensor

        for module, kind, share in _iterate_modules(model, base, parallelism):
            module.register_forward_pre_hook(lambda *_, at=(kind, share): module_stack.append(at))
            module.register_forward_hook(lambda *_: module_stack.pop() and None)
        decoder.layers[0].register_forward_pre_hook(enter_layer, with_kwargs=True)
        with saved_tensors_hooks(store_tensor, lambda tensor: tensor):
            compute_outputs(model, _build_batch(load), dtype=dtype)
        bytes_by_kind = dict.fromkeys(("layer", "end", "logits"), 0.0)
        for tensor, kind, share in stored_tensors.values():
            bytes_by_kind[kind] += tensor.untyped_storage().nbytes() * share
        if dtype != torch.float32 and not uses_fsdp:  # what autocast rounds is counted as copies
            rounded = {"layer": decoder.layers[0].parameters(), "logits": [head.weight]}
            for kind, rounded_weights in rounded.items():
                bytes_by_kind[kind] -= sum(
                    2 * weight.numel() for weight in rounded_weights if weight.dim() > 1 and weight.element_size() > 2
                )
        stream = inputs[0].untyped_storage().nbytes() / (parallelism.tp if parallelism.sequence else 1)
        num_targets = round(load.rows * load.tokens * load.targets_share)
        if parallelism.tp == 1 and allows_blocks(model, num_targets=num_targets, learns=True):
            directions = num_targets * head.in_features * head.weight.element_size()
            block = min(block_size(load.device), num_targets * head.out_features)
            bytes_by_kind["logits"] = directions + _LOGIT_BYTES * block
    return _ActivationBytes(
        ceil(bytes_by_kind["layer"]), ceil(stream), ceil(bytes_by_kind["end"]), ceil(bytes_by_kind["logits"])
    )


def _iterate_modules(
    model: PreTrainedModel, base: Any, parallelism: Parallelism
) -> Iterator[tuple[nn.Module, str, float]]:
    """Yields the modules of the first layer and around it, the kind of their activations, and a rank's share of
    them.
    """
    layer = base.get_decoder().layers[0]
    yield base.get_decoder(), "end", 1.0
    inner = dict(layer.named_modules())
    styles = {name: _tp_style(model, f"{base.base_model_prefix}.layers.0.{name}") for name in inner}
    blocks = {name.partition(".")[0] for name, style in styles.items() if style}
    for name, module in inner.items():
        reads_whole_input = styles[name].startswith("colwise")  # reads whole hidden states
        is_split = name.partition(".")[0] in blocks or parallelism.sequence
        yield module, "layer", 1 / parallelism.tp if is_split and not reads_whole_input else 1.0


def _materialize(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Replaces a module's meta tensors by tensors of the active mode."""
    for name, weight in module._parameters.items():
        if weight is not None:
            fake_weight = torch.empty(weight.shape, dtype=dtype or weight.dtype)
            module._parameters[name] = nn.Parameter(fake_weight, requires_grad=weight.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _build_batch(load: Load) -> Batch:
    shape, count = (load.rows, load.tokens), max(1, round(load.rows * load.tokens * load.targets_share))
    ids, index = torch.zeros(shape, dtype=torch.int64), torch.arange(count)
    docs = ids if load.packed else None
    return Batch(ids, index, index, torch.ones(count), (), load.rows * load.tokens, positions=docs, docs=docs)


def suggest_plans(
    model: PreTrainedModel, parallelism: Parallelism, optimizer: OptimizerConfig, *, load: Load, card: int
) -> list[TrainingPlan]:
    """Returns plans that fit a card of `card` bytes, with the least change of each kind.

    The kinds: none or recomputation, which change no result; states in main memory (`--train.offload optimizer`);
    more ranks; another optimizer. Arguments are those of
    `estimate_memory`; empty where nothing fits.
    """
    recomputed, adalomo_config = parallelism.model_copy(update={"recompute": True}), OptimizerConfig(name="adalomo")
    kinds = [[("as asked", parallelism, optimizer, load), ("recompute", recomputed, optimizer, load)]]
    if not optimizer.fuses and load.rows > 1:
        single = replace(load, rows=1, micro_batches=load.micro_batches * load.rows)
        kinds[0].append(("recompute, micro-batches of one row", recomputed, optimizer, single))
    wider = [
        (size, recomputed.model_copy(update={"shard": size})) for size in (parallelism.shard << n for n in range(1, 8))
    ]
    if load.offload is None and not check_offload(optimizer, device_type="cuda", num_ranks=parallelism.mesh.size):
        kept = replace(load, offload="optimizer")
        kinds.append([("offload", parallelism, optimizer, kept), ("offload, recompute", recomputed, optimizer, kept)])
    kinds.append([(f"shard {size}, recompute", layout, optimizer, load) for size, layout in wider])
    if load.micro_batches == 1 and not optimizer.fuses:
        kinds.append(
            [("adalomo", parallelism, adalomo_config, load), ("adalomo, recompute", recomputed, adalomo_config, load)]
        )
    plans = (
        (
            TrainingPlan(
                layout,
                plan_optimizer,
                plan_load,
                estimate_memory(model, layout, plan_optimizer, load=plan_load),
                description,
            )
            for description, layout, plan_optimizer, plan_load in kind
        )
        for kind in kinds
    )
    fitting_plans = (
        next((plan for plan in kind if plan.estimate.total <= USABLE_RATIO * card), None) for kind in plans
    )
    return [plan for plan in fitting_plans if plan is not None]


def format_plans(
    plans: Sequence[TrainingPlan], card: int | None = None, *, unit: Literal["GiB", "MiB"] = "GiB"
) -> list[list[str]]:
    """Formats plans as rows of text, the first of names: memory of each kind, and whether it fits a card of `card`
    bytes.
    """
    kinds = [field.name for field in fields(MemoryEstimate) if field.name != "stage"]
    size, digits = (2**30, 2) if unit == "GiB" else (2**20, 1)
    rows = [[f"{unit} a rank", *(plan.changes for plan in plans)]]
    rows += [[kind, *(f"{getattr(plan.estimate, kind) / size:.{digits}f}" for plan in plans)] for kind in kinds]
    if card is not None:
        fits = ("yes" if plan.estimate.total <= USABLE_RATIO * card else "no" for plan in plans)
        rows.append([f"fits {card / 2**30:.3g} GiB", *fits])
    return rows

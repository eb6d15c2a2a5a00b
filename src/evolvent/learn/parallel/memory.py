"""What a training will hold in memory, by rank and kind, before its weights exist: weights and states by exact count,
activations by running the forward that trains, over one layer, on tensors that have shapes and devices but no memory.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from evolvent.learn.forward import outputs
from evolvent.learn.optim import OptimizerConfig, make
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.stages import spread
from evolvent.models.tuned import virtual_tokens

__all__ = ["Load", "MemoryEstimate", "Plan", "estimate", "meta_model", "nearest_fit", "plan_table"]

_FIRST, _LAST = -1, 1_000_000  # the places before and behind the numbered layers
_USABLE = 0.93  # of a card; its context, libraries and what allocation splinters take the rest


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank is fed: `micro_batches` forwards of `rows` x `tokens` before an update. `dtype` is the forward's; the
    head runs at `targets_share` of the tokens; `packed` rows have a mask that keeps their documents apart."""

    rows: int
    tokens: int
    micro_batches: int = 1
    targets_share: float = 1.0
    dtype: str = "float32"
    packed: bool = False


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the rank that holds the most, which is one of pipeline stage `stage`.

    Attributes:
        gradients: all; of a fused optimizer the largest alone. copies: what FSDP gathers and sums, or autocast rounds.
        activations: what layers keep for backward. logits: what head and loss hold.
        total: at the worst moment; less than the sum, because activations go while gradients come. What the step of an
            optimizer needs for a moment is not in it: none, or a few times the largest weight.
    """

    parameters: int
    gradients: int
    optimizer: int
    copies: int
    activations: int
    logits: int
    total: int
    stage: int = 0


class Plan(NamedTuple):
    """A way to train, what it holds, and how it differs from what was asked for."""

    parallelism: Parallelism
    optimizer: OptimizerConfig
    load: Load
    estimate: MemoryEstimate
    changes: str = ""


class _Weight(NamedTuple):
    """A parameter on a rank: its place, its shape before and after FSDP's sharding, bytes of an element."""

    place: int
    shape: tuple[int, ...]
    local: tuple[int, ...]
    size: int
    trains: bool
    tied: bool

    @property
    def held(self) -> int:
        return prod(self.local) * self.size


def meta_model(config: Any, *, weights: str = "float32") -> Any:
    """The causal LM of a transformers config, its weights of a dtype: names and shapes, on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=getattr(torch, weights)).train()


def estimate(model: Any, parallelism: Parallelism, optimizer: OptimizerConfig, *, load: Load) -> MemoryEstimate:
    """What training would hold on the rank that holds the most.

    Args:
        model: a causal LM, best from `meta_model`, with or without an adapter; what has no `requires_grad` is frozen.
        optimizer: one that is fused runs inside backward, which it can with one micro-batch only.
    """
    weights, kept = list(_weights(model, parallelism)), _kept(model, parallelism, load)
    law = _law(optimizer, next((w.dtype for w in model.parameters() if w.requires_grad), torch.float32))
    fused = optimizer.fuses and load.micro_batches == 1
    ranks = []
    for stage in range(parallelism.pp):
        own = _own(weights, parallelism, stage)
        trained = [w for w in own if w.trains]
        state = sum(_state(w, law) for w in trained)
        activations, logits = _waiting(kept, own, parallelism, stage=stage, count=load.micro_batches)
        gradients = max((w.held for w in trained), default=0) if fused else sum(w.held for w in trained)
        tied = sum(2 * prod(w.shape) * w.size for w in trained if w.tied and parallelism.pp == 1)  # two parts, summed
        head = max((w.held for w in trained if w.place == _LAST or w.tied), default=0) * bool(logits)
        early = activations + (gradients + logits if load.micro_batches > 1 else max(logits, kept.logits + head))
        fixed = [sum(w.held for w in own), state, _copies(own, parallelism, low=load.dtype != "float32")]
        total = sum(fixed) + max(early, gradients + tied)
        ranks.append(MemoryEstimate(fixed[0], gradients, state, fixed[2], activations, logits, total, stage))
    return max(ranks, key=lambda rank: rank.total)


def _style(model: Any, module: str) -> str:
    """What the model's own plan of tensor parallelism says of a module; an adapter follows what it changes."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    plain = re.sub(r"^base_model\.model\.|\.(base_layer|lora_[AB])\b.*", "", module)
    return str((base._tp_plan or {}).get(re.sub(r"\.\d+(?=\.|$)", ".*", plain), ""))


def _weights(model: Any, p: Parallelism) -> Iterator[_Weight]:
    """Every parameter, as it lies on the rank that has most of it."""
    ends = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings())]
    for name, weight in model.named_parameters():
        style, number = _style(model, name.rpartition(".")[0]), re.search(r"\blayers\.(\d+)\.", name)
        cut = 1 if style == "rowwise" else 0 if style.startswith(("colwise", "embedding")) else None
        if cut is not None and f"lora_{'AB'[cut]}" in name:
            cut = None
        shape = tuple(ceil(size / p.tp) if at == cut else size for at, size in enumerate(weight.shape))
        place = int(number[1]) if number else _FIRST if weight is ends[0] or "prompt_encoder" in name else _LAST
        local = (ceil(shape[0] / p.shard), *shape[1:])
        yield _Weight(place, shape, local, weight.element_size(), weight.requires_grad, ends[0] is ends[1] is weight)


def _own(weights: Sequence[_Weight], p: Parallelism, stage: int) -> list[_Weight]:
    """The weights of a stage's rank, to which the schedule may give two parts of the model."""
    single = p.pp == 1 or p.schedule in ("gpipe", "1f1b")
    parts = [stage, 2 * p.pp - 1 - stage if p.schedule == "zbv" else stage + p.pp][: 1 if single else 2]
    layers = spread(max(w.place for w in weights if w.place != _LAST) + 1, p.pp * len(parts))
    places = {place for part in parts for place in layers[part]}
    places |= ({_FIRST} if 0 in parts else set()) | ({_LAST} if p.pp * len(parts) - 1 in parts else set())
    copied = [w._replace(place=_LAST) for w in weights if w.tied and p.pp > 1]
    return [w for w in [*weights, *copied] if w.place in places]


def _law(config: OptimizerConfig, dtype: torch.dtype) -> dict[int, list[int]]:
    """Bytes of state by element, row, column and tensor, for each number of dimensions: read off one real step."""
    found = {}
    for shape in ((11,), (5, 7)):
        weight = nn.Parameter(torch.ones(shape, dtype=dtype))
        optimizer = make(config, [("weight", weight)], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        counts = [prod(shape), *(shape if len(shape) == 2 else (0, 0))]
        held = [value for value in optimizer.state[weight].values() if isinstance(value, Tensor)]
        whole = [sum(v.element_size() for v in held if v.numel() == count) for count in counts]
        found[len(shape)] = [*whole, sum(v.nbytes for v in held if v.numel() not in counts)]
    return found


def _state(weight: _Weight, law: dict[int, list[int]]) -> int:
    rows, columns = prod(weight.local[:-1]), weight.local[-1]
    each = law[min(2, len(weight.local))]
    return sum(size * count for size, count in zip(each, (rows * columns, rows, columns, 1), strict=True))


def _copies(own: Sequence[_Weight], p: Parallelism, *, low: bool) -> int:
    """Whole weights and gradients of the groups that FSDP works on, or the weights that autocast has rounded."""
    if p.mesh.dp == 1:
        rounded = [w for w in own if len(w.shape) > 1 and w.size > 2 and (w.place != _FIRST or w.tied)]
        return sum(2 * prod(w.shape) for w in rounded) * low
    groups: dict[int, list[_Weight]] = {}
    for weight in own:
        groups.setdefault(_FIRST if weight.place == _LAST else weight.place, []).append(weight)
    whole = {at: sum(prod(w.shape) * (2 if low else w.size) for w in group) for at, group in groups.items()}
    summed = {at: sum(prod(w.shape) * w.size for w in group if w.trains) for at, group in groups.items()}
    if p.pp > 1:  # weights stay gathered and gradients unsummed over all micro-batches
        return sum(whole.values()) + sum(summed.values()) + max(summed.values())
    root, root_summed = whole.pop(_FIRST), summed.pop(_FIRST)
    return root + max(3 * max(whole.values()), 2 * max(whole.values()) + 2 * max(summed.values()), 2 * root_summed)


class _Kept(NamedTuple):
    """Bytes that wait for backward: of a layer, of its input alone, of what is behind the layers, of head and loss."""

    layer: int
    input: int
    end: int
    logits: int


def _waiting(kept: _Kept, own: Sequence[_Weight], p: Parallelism, *, stage: int, count: int) -> tuple[int, int]:
    """Activations and logits of a stage's rank: what its schedule lets wait at once (torch.distributed.pipelining)."""
    turn = count // max(1, count // p.pp)  # micro-batches that pass one part before the next part sees any
    halves = {
        "gpipe": 2 * count,
        "looped_bfs": 2 * count,
        "1f1b": 2 * (p.pp - stage),
        "zbv": 2 * p.pp,
        "interleaved": turn + 2 * (p.pp - 1 - stage) + 1,
        "zero_bubble": turn + p.pp,
    }[p.schedule]
    flight = 1.0 if p.pp == 1 else min(halves, 2 * count) / 2
    layers, scored = len({w.place for w in own} - {_FIRST, _LAST}), any(w.place == _LAST for w in own)
    layerwise = flight * layers * (kept.input if p.recompute else kept.layer) + kept.layer * p.recompute
    received = 2 * count * kept.input if p.pp > 1 else 0  # both ways, for all micro-batches
    losses = (count if p.schedule in ("gpipe", "looped_bfs") and p.pp > 1 else 1) * scored
    return ceil(layerwise) + received + losses * kept.end, (losses + 2 * scored) * kept.logits  # two more in backward


def _kept(model: Any, p: Parallelism, load: Load) -> _Kept:
    """Run the forward that trains over the first layer, and see what autograd keeps: each storage once, no weights."""
    meta = {id(w): nn.Parameter(w.detach().to("meta"), requires_grad=w.requires_grad) for w in model.parameters()}
    model, low = copy.deepcopy(model, meta), getattr(torch, load.dtype)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    decoder.layers = decoder.layers[:1]
    window = getattr(model.config, "sliding_window", None) or load.tokens
    plain = not load.packed and load.tokens <= window and not virtual_tokens(model)[0]
    with FakeTensorMode(allow_non_fake_inputs=True):  # peft holds the ids of virtual tokens
        for module in model.modules():
            _materialise(module, low if p.mesh.dp > 1 else None)
        weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
        running, seen, inputs = [("logits", 1 / p.tp)], dict[int, tuple[Tensor, str, float]](), list[Tensor]()

        def enter(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            inputs.append(args[0].detach().requires_grad_())  # as behind a layer that learns
            for shared in kwargs.get("position_embeddings", ()):
                seen[shared.untyped_storage()._cdata] = (shared, "end", 1.0)
            # transformers takes tensors without values for packed rows and makes a mask that training does not need
            return (inputs[0], *args[1:]), kwargs | ({"attention_mask": None} if plain else {})

        def keep(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage()._cdata not in weights:
                seen.setdefault(tensor.untyped_storage()._cdata, (tensor, *running[-1]))
            return tensor

        for module, kind, share in _parts_of(model, base, p):
            module.register_forward_pre_hook(lambda *_, at=(kind, share): running.append(at))
            module.register_forward_hook(lambda *_: running.pop() and None)
        decoder.layers[0].register_forward_pre_hook(enter, with_kwargs=True)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs(model, _batch(load), dtype=low)
        held = dict.fromkeys(("layer", "end", "logits"), 0.0)
        for tensor, kind, share in seen.values():
            held[kind] += tensor.untyped_storage().nbytes() * share
        if low != torch.float32 and p.mesh.dp == 1:  # what autocast rounds is counted as copies
            rounded = {"layer": decoder.layers[0].parameters(), "logits": [head.weight]}
            for kind, found in rounded.items():
                held[kind] -= sum(2 * w.numel() for w in found if w.dim() > 1 and w.element_size() > 2)
        stream = inputs[0].untyped_storage().nbytes() / (p.tp if p.sequence else 1)
    return _Kept(ceil(held["layer"]), ceil(stream), ceil(held["end"]), ceil(held["logits"]))


def _parts_of(model: Any, base: Any, p: Parallelism) -> Iterator[tuple[nn.Module, str, float]]:
    """The modules of the first layer and what is around it: whose activations these are, and a rank's share of them."""
    layer = base.get_decoder().layers[0]
    yield base.get_decoder(), "end", 1.0
    inner = dict(layer.named_modules())
    styles = {name: _style(model, f"{base.base_model_prefix}.layers.0.{name}") for name in inner}
    blocks = {name.partition(".")[0] for name, style in styles.items() if style}
    for name, module in inner.items():
        whole = styles[name].startswith("colwise")  # reads whole hidden states
        split = name.partition(".")[0] in blocks or p.sequence
        yield module, "layer", 1 / p.tp if split and not whole else 1.0


def _materialise(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Give a module tensors of the mode that is on, in the place of those on the meta device."""
    for name, weight in module._parameters.items():
        if weight is not None:
            fake = torch.empty(weight.shape, dtype=dtype or weight.dtype)
            module._parameters[name] = nn.Parameter(fake, requires_grad=weight.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _batch(load: Load) -> Batch:
    shape, count = (load.rows, load.tokens), max(1, round(load.rows * load.tokens * load.targets_share))
    ids, index = torch.zeros(shape, dtype=torch.int64), torch.arange(count)
    docs = ids if load.packed else None
    return Batch(ids, index, index, torch.ones(count), (), load.rows * load.tokens, positions=docs, docs=docs)


def nearest_fit(
    model: Any, parallelism: Parallelism, optimizer: OptimizerConfig, *, load: Load, card: int
) -> list[Plan]:
    """Plans that fit a card of `card` bytes, with the least change of each kind: none or recomputation, which change no
    result; more ranks; another optimizer. Arguments are those of `estimate`; empty where nothing helps."""
    deep, lean = parallelism.model_copy(update={"recompute": True}), OptimizerConfig(name="adalomo")
    kinds = [[("as asked", parallelism, optimizer, load), ("recompute", deep, optimizer, load)]]
    if not optimizer.fuses and load.rows > 1:
        single = replace(load, rows=1, micro_batches=load.micro_batches * load.rows)
        kinds[0].append(("recompute, micro-batches of one row", deep, optimizer, single))
    wider = [(size, deep.model_copy(update={"shard": size})) for size in (parallelism.shard << n for n in range(1, 8))]
    kinds.append([(f"shard {size}, recompute", layout, optimizer, load) for size, layout in wider])
    if load.micro_batches == 1 and not optimizer.fuses:
        kinds.append([("adalomo", parallelism, lean, load), ("adalomo, recompute", deep, lean, load)])
    plans = (
        (Plan(layout, rule, fed, estimate(model, layout, rule, load=fed), words) for words, layout, rule, fed in kind)
        for kind in kinds
    )
    best = (next((plan for plan in kind if plan.estimate.total <= _USABLE * card), None) for kind in plans)
    return [plan for plan in best if plan is not None]


def plan_table(
    plans: Sequence[Plan], card: int | None = None, *, unit: Literal["GiB", "MiB"] = "GiB"
) -> list[list[str]]:
    """Rows of text, the first of names: memory of each kind by plan, and whether it fits a card of `card` bytes."""
    kinds = [field.name for field in fields(MemoryEstimate) if field.name != "stage"]
    size, digits = (2**30, 2) if unit == "GiB" else (2**20, 1)
    rows = [[f"{unit} a rank", *(plan.changes for plan in plans)]]
    rows += [[kind, *(f"{getattr(plan.estimate, kind) / size:.{digits}f}" for plan in plans)] for kind in kinds]
    if card is not None:
        fits = ("yes" if plan.estimate.total <= _USABLE * card else "no" for plan in plans)
        rows.append([f"fits {card / 2**30:.3g} GiB", *fits])
    return rows

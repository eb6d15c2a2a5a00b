"""Tensor parallelism: the ranks of the tp dimension share every matrix product, as the model's own plan says.

Ranks communicate at the input and output of an attention or MLP block (Megatron, arXiv 1909.08053), and in
backward where their gradients of a whole weight are summed: gradients are right as soon as they exist. With
`sequence`, tensors between blocks are split along the sequence (arXiv 2205.05198). Outside of the layers hidden
states are whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard
from torch.utils.weak import WeakTensorKeyDictionary

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.learn.parallel import local
from evolvent.learn.parallel.local import (
    PARTIAL,
    REPLICATED,
    Redistribution,
    WeightPlacement,
    distribute_weights,
    redistribute_input,
    redistribute_output,
)
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.parallel.vocab import vocab_logprobs, vocab_sample

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["apply_tp", "check_tp", "vocab_logprobs", "vocab_sample"]

_ADAPTER_HINT = "plain linears and plain LoRA on them can be; not DoRA, IA3, prefix or prompt tuning: use tp 1"
_LINEAR_STYLES = dict.fromkeys(("colwise", "colwise_gather_output", "head"), local.COLWISE) | {"rowwise": local.ROWWISE}
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
    hint = f"tp must divide {math.gcd(*sizes.values())}, which is the largest possible"
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
        yield unit.module, {"weight": local.ROWS}
    else:
        is_copied = unit.style == "outside" or (unit.style == "token" and not sequence)
        names = dict(unit.module.named_parameters(recurse=False))
        yield unit.module, dict.fromkeys(names, local.COPIED if is_copied else local.SHARED)


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

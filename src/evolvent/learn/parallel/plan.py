"""Tensor parallelism: the ranks of the tp dimension share every matrix product, as the model's own plan says.

Ranks talk where an attention or MLP block is entered and left (Megatron, arXiv 1909.08053), and in backward where their
gradients of a whole weight are to be summed: gradients are right as soon as they exist. With `sequence`, what lies
between blocks is cut along the sequence (arXiv 2205.05198). Outside of the layers hidden states are whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard
from torch.utils.weak import WeakTensorKeyDictionary

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.learn.parallel import local
from evolvent.learn.parallel.local import TERM, WHOLE, Move, Use, entering, leaving, localise
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.parallel.vocab import vocab_logprobs, vocab_sample

__all__ = ["check_tensor_parallel", "tensor_parallel", "vocab_logprobs", "vocab_sample"]

_TUNERS = "plain linears and plain LoRA on them can be; not DoRA, IA3, prefix or prompt tuning: use tp 1"
_LINEAR = dict.fromkeys(("colwise", "colwise_gather_output", "head"), local.COLWISE) | {"rowwise": local.ROWWISE}
_BLOCK = ("colwise", "colwise_gather_output")
_STYLES = (*_BLOCK, "rowwise", "embedding_rowwise", "replicated_with_grad_allreduce")


class _Unit(NamedTuple):
    """A module with weights, and how it is treated."""

    name: str
    module: Any
    style: str | None  # the plan's, "head", "token" (a norm between blocks), "outside" (of the layers), None: missing


def check_tensor_parallel(config: Any, tp: int) -> list[Problem]:
    """What keeps a model from being laid over `tp` ranks; from its configuration, before it is built."""
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
    uneven = [(size, what) for what, size in sizes.items() if size % tp]
    strange = [(name, style) for name, style in plan.items() if style not in _STYLES]
    return [
        *(Problem("parallel.tp", f"{size} {what} cannot be shared by {tp} ranks", hint) for size, what in uneven),
        *(unknown("tensor-parallel style", style, _STYLES, where=name) for name, style in strange),
    ]


def tensor_parallel(model: Any, ranks: Ranks, *, sequence: bool) -> None:
    """Lay a Hugging Face causal LM, a pipeline stage of one, or either under LoRA, over the tp dimension, in place.

    Afterwards `model(...).logits` is this rank's slice `[..., V / tp]`; the head's input and its gradient are whole.

    Args:
        model: the same on all ranks of the dimension, each of which keeps its part. It may be on the meta device.
        sequence: cut norms and residuals along the sequence; the tokens of a row are then a multiple of tp.
    Raises:
        ConfigError: sizes that do not divide, no plan, a style or module that is not known. The model is unchanged.
    """
    if ranks.devices is None or ranks.mesh.tp == 1:
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    problems = check_tensor_parallel(base.config, ranks.mesh.tp)
    if any(adapter.is_prompt_learning for adapter in getattr(model, "peft_config", {}).values()):
        problems.append(Problem("parallel.tp", "prefix and prompt tuning cannot be split", _TUNERS))
    units = [] if problems else list(_units(base))
    problems += filter(None, map(_problem, units))
    if problems:
        raise ConfigError(problems)
    mesh, made = ranks.devices["tp"], WeakTensorKeyDictionary()
    for unit in units:
        for module, uses in _uses(unit, sequence=sequence):
            localise(module, uses, mesh, made=made)
    _connect(base, units, mesh, stream=Shard(1) if sequence else WHOLE)


def _units(base: Any) -> Iterator[_Unit]:
    """Every module that has weights, once; a wrapped linear is one with what wraps it."""
    embedding, head, body = base.get_input_embeddings(), base.get_output_embeddings(), base.base_model_prefix
    plan = {f"{body}.{name}": style for name, style in base.config.base_model_tp_plan.items()}
    plan |= type(base)._tp_plan or {}

    def walk(module: nn.Module, name: str) -> Iterator[_Unit]:
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if module is head:
            yield _Unit(name, module, "head" if style in _LINEAR else style)
        elif module is embedding or style is not None:
            yield _Unit(name, module, style or "embedding_rowwise")
        else:
            if next(module.parameters(recurse=False), None) is not None:
                leaf = re.fullmatch(rf"{body}\.layers\.\d+\.\w+", name) and next(module.children(), None) is None
                inside = name.startswith(f"{body}.layers.")
                yield _Unit(name, module, "outside" if not inside else "token" if leaf else None)
            for part, child in module.named_children():
                yield from walk(child, f"{name}.{part}".removeprefix("."))

    yield from walk(base, "")


def _linears(module: Any) -> list[tuple[str, nn.Module]]:
    """The linears in a module that the plan names as one, by role; none where it cannot be split."""
    if isinstance(module, nn.Linear):
        return [("base", module)]
    if hasattr(module, "lora_A") and isinstance(module.base_layer, nn.Linear) and not module.lora_variant:
        added = [(role, part) for role in ("lora_A", "lora_B") for part in getattr(module, role).values()]
        return [("base", module.base_layer), *added]
    return []


def _problem(unit: _Unit) -> Problem | None:
    name, module, style = unit
    if style is None:
        return Problem(name, "the model's plan for tensor parallelism has no style for it", "use tp 1")
    if style not in (*_STYLES, "head", "token", "outside"):
        return unknown("tensor-parallel style", style, _STYLES, where=name)
    fits = {"embedding_rowwise": isinstance(module, nn.Embedding)} | dict.fromkeys(_LINEAR, bool(_linears(module)))
    return None if fits.get(style, True) else Problem(name, f"{type(module).__name__} cannot be split", _TUNERS)


def _uses(unit: _Unit, *, sequence: bool) -> Iterator[tuple[nn.Module, dict[str, Use]]]:
    """The modules of a unit, and how each of their weights is used."""
    if unit.style in _LINEAR:
        for role, linear in _linears(unit.module):
            yield linear, dict(zip(("weight", "bias"), _LINEAR[unit.style][role], strict=True))
    elif unit.style == "embedding_rowwise":
        yield unit.module, {"weight": local.ROWS}
    else:
        same = unit.style == "outside" or (unit.style == "token" and not sequence)
        names = dict(unit.module.named_parameters(recurse=False))
        yield unit.module, dict.fromkeys(names, local.COPY if same else local.SHARED)


def _connect(base: Any, units: Sequence[_Unit], mesh: DeviceMesh, *, stream: Placement) -> None:
    """Let the ranks talk where modules are entered and left. `stream` is how hidden states lie between blocks."""
    for _, module, style in units:
        if style == "rowwise":
            leaving(module, mesh, Move(TERM, stream))
        elif style == "colwise_gather_output":
            leaving(module, mesh, Move(Shard(-1), WHOLE))
        elif style == "head":
            entering(module, mesh, Move(WHOLE, WHOLE, TERM))
    for block in dict.fromkeys(name.rpartition(".")[0] for name, _, style in units if style in _BLOCK):
        entering(base.get_submodule(block), mesh, Move(stream, WHOLE, TERM))
    layers = [layer for layer in base.get_decoder().layers if hasattr(layer, "self_attn")]
    if layers and stream != WHOLE:
        entering(layers[0], mesh, Move(WHOLE, stream))
        leaving(layers[-1], mesh, Move(stream, WHOLE))

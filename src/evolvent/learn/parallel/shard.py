"""Transformations of a model's layers before its optimizer is built: recomputation, compilation, sharding (FSDP2,
HSDP).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from evolvent.learn.parallel.ranks import Ranks

__all__ = ["apply_compile", "apply_fsdp", "apply_recompute", "list_layers"]


def list_layers(model: Any) -> list[nn.Module]:
    """Lists the decoder layers of a Hugging Face causal LM, also below an adapter; for a stage, only its own."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return [layer for layer in base.get_decoder().layers if hasattr(layer, "self_attn")]


def apply_recompute(model: Any) -> None:
    """Keeps the inputs of layers only; backward computes the rest again (activation checkpointing, non-reentrant)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


def apply_compile(layers: Sequence[nn.Module]) -> None:
    """Compiles every layer in place; names of parameters stay."""
    for layer in layers:
        layer.compile()


def apply_fsdp(root: nn.Module, layers: Sequence[nn.Module], ranks: Ranks, *, dtype: torch.dtype) -> None:
    """Applies FSDP2 to every layer, then to the remainder of `root`, whose forward is the one that is called.

    With `replicate` > 1 the shards are replicated (HSDP). Weights and gradients' sums stay as they are; a forward in
    bfloat16 gathers weights in bfloat16 and sums gradients in float32. In a pipeline weights stay gathered between
    micro-batches.
    """
    if ranks.devices is None:
        return
    # Nobody changes a layer's output in place, which is what it warns of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    mesh = ranks.devices["replicate", "shard"] if ranks.mesh.replicate > 1 else ranks.devices["shard"]
    low_precision = dtype if dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=low_precision, reduce_dtype=torch.float32 if low_precision else None)
    reshard = ranks.mesh.pp == 1
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=policy)

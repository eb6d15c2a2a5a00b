"""The forward of training: the model's own, with the head computed at the targets only, under either layout's mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, Problem
from evolvent.learn.losses import target_logprobs
from evolvent.learn.objectives import Outputs
from evolvent.learn.packing import Batch, block_mask

__all__ = ["can_pack", "chosen_layout", "outputs"]


def can_pack(model: Any) -> bool:
    """Whether a block mask is all that keeps documents of one row apart: full attention in every layer."""
    config = model.config
    return (
        config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and hasattr(config, "num_attention_heads")
    )


def chosen_layout(model: Any, layout: Literal["auto", "bucketed", "packed"]) -> Literal["bucketed", "packed"]:
    """What "auto" means for a model: packed rows on CUDA where it can have them, bucketed rows elsewhere.

    Raises:
        ConfigError: packed rows for a model that would mix its documents.
    """
    if layout == "packed" and not can_pack(model):
        what = f"packed rows need full attention in every layer, {model.config.model_type} has something else"
        raise ConfigError([Problem("layout", what, "use 'bucketed': it has the same loss")])
    if layout == "auto":
        return "packed" if model.device.type == "cuda" and can_pack(model) else "bucketed"
    return layout


def outputs(model: Any, batch: Batch, *, dtype: torch.dtype = torch.float32) -> Outputs:
    """Log-probabilities of a batch's targets, from a Hugging Face causal LM on the batch's device.

    Args:
        dtype: float32, or bfloat16 for an autocast forward.
    """
    low = torch.autocast(batch.ids.device.type, dtype) if dtype != torch.float32 else nullcontext()
    packed = {} if batch.docs is None else {"attention_mask": _mask(model, batch.docs), "position_ids": batch.positions}
    with low, _head_at(model.get_output_embeddings(), batch.index):
        logits = model(input_ids=batch.ids, use_cache=False, **packed).logits
    return Outputs(target_logprobs(logits[0], batch.targets))


@contextmanager
def _head_at(head: nn.Module, index: Tensor) -> Iterator[None]:
    """Inside, the head sees the hidden states at these flat positions: `[B, T, H]` becomes `[1, N, H]`.

    The model's own forward runs, so what it does around its head (scaling, capping) is kept.
    """

    def select(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (arguments[0].flatten(0, -2).index_select(0, index)[None], *arguments[1:])

    hook = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        hook.remove()


def _mask(model: Any, docs: Tensor) -> Tensor:
    """What keeps documents of a row apart `[B, 1, T, T]`: bool for sdpa, added to the scores for eager."""
    mask = block_mask(docs)
    if model.config._attn_implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, torch.finfo(torch.float32).min)

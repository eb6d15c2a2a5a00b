"""The forward of training: the model's own, with the head computed at the targets only, under either layout's mask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, DeviceMemory, Problem
from evolvent.learn.objectives import Need, Outputs
from evolvent.learn.packing import Batch, block_mask
from evolvent.learn.parallel.ranks import ALONE, Ranks
from evolvent.learn.parallel.vocab import vocab_entropy, vocab_sample
from evolvent.learn.parallel.vocab import vocab_logprobs as target_logprobs
from evolvent.trajectory import sample_seed

__all__ = [
    "Layout",
    "calm",
    "can_pack",
    "chosen_layout",
    "fed",
    "fitting",
    "in_precision",
    "on_support",
    "outputs",
    "still",
    "target_logits",
]

Layout = Literal["auto", "bucketed", "packed", "shared"]
_WORDS: tuple[Need, ...] = ("logprobs",)


def can_pack(model: Any) -> bool:
    """Whether a block mask is all that keeps documents of one row apart: full attention in every layer."""
    config = model.config
    return (
        config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and "local" not in (getattr(config, "attention_layers", None) or ())
        and hasattr(config, "num_attention_heads")
        and not getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    )


def chosen_layout(model: Any, layout: Layout) -> Literal["bucketed", "packed"]:
    """Rows of sequences that share nothing. "auto" means bucketed ones, whose attention is plainly causal and has the
    fastest kernels.

    On an H100, 0.5B, texts of 128 to 384 and of 512 to 1536 tokens: 1.10 and 1.26 times the tokens a second of packed
    rows of 4,096 at most, whose mask no flash kernel takes.

    Raises:
        ConfigError: packed rows for a model that would mix its documents.
    """
    if layout == "packed" and not can_pack(model):
        what = f"packed rows need full attention in every layer, {model.config.model_type} has something else"
        raise ConfigError([Problem("layout", what, "use 'bucketed': it has the same loss")])
    return "packed" if layout == "packed" else "bucketed"


@contextmanager
def calm(model: Any) -> Iterator[None]:
    """Without dropout; afterwards as it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


@contextmanager
def still(weights: Iterable[Tensor]) -> Iterator[None]:
    """Inside, these weights, which are trained otherwise, have no gradients."""
    held = list(weights)
    for weight in held:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in held:
            weight.requires_grad_(True)


def in_precision(model: Any, name: str) -> Any:
    """The model, its trained weights in float32, or in bfloat16 for "bfloat16_weights"; those below an adapter stay."""
    dtype = torch.bfloat16 if name == "bfloat16_weights" else torch.float32
    if all(weight.requires_grad for weight in model.parameters()):
        return model.to(dtype)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)
    return model


@contextmanager
def fitting(shape: tuple[int, ...], hint: str) -> Iterator[None]:
    """Inside, running out of memory is told as what it is, on any device.

    Args:
        shape: of what is computed with, rows x tokens. hint: the knobs to turn.
    Raises:
        DeviceMemory: an allocation was refused.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError; on a CPU it has no name
        refused = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
        if not refused:
            raise
        what = "a batch does not fit the device's memory"
        raise DeviceMemory(what, value=f"rows x tokens {shape}", hint=hint) from error


def outputs(
    model: Any,
    batch: Batch,
    *,
    needs: Collection[Need] = _WORDS,
    dtype: torch.dtype = torch.float32,
    ranks: Ranks = ALONE,
    hidden: Tensor | None = None,
    temperature: float = 1.0,
) -> Outputs:
    """What an objective needs to know of a batch, from a Hugging Face causal LM on the batch's device.

    Args:
        needs: see `Outputs`. Values are those of `model.value_head`.
        dtype: float32, or bfloat16 for an autocast forward.
        ranks: under tensor parallelism each rank holds a slice of the vocabulary.
        hidden: `[B, T, H]`, what an earlier pipeline stage gave; None: the batch's ids are fed.
        temperature: of the targets' log-probabilities and of the entropy.
    """
    worded = bool({"logprobs", "teacher", "sampled", "entropy", "logits"} & set(needs))
    head = _Head(batch, model.value_head if "values" in needs else None, worded=worded)
    logits = _logits(model, batch, head, dtype=dtype, ranks=ranks, hidden=hidden)
    drawn = _drawn(logits.detach(), batch, ranks) if "sampled" in needs else None
    logprobs, entropy = _said(logits, batch, needs, ranks=ranks, temperature=temperature)
    return Outputs(
        logprobs,
        head.values,
        target_logprobs(logits, batch.columns["teacher_ids"].long(), ranks) if "teacher" in needs else None,
        target_logprobs(logits, drawn, ranks) if drawn is not None else None,
        entropy,
        logits if "logits" in needs else None,
    )


def _said(
    logits: Tensor, batch: Batch, needs: Collection[Need], *, ranks: Ranks, temperature: float
) -> tuple[Tensor | None, Tensor | None]:
    """The targets' log-probabilities and the entropy `[N]` of the distribution that the targets were sampled from."""
    if not {"logprobs", "entropy"} & set(needs):
        return None, None
    scaled = logits if temperature == 1.0 else logits.float() / temperature
    support = batch.columns.get("support")
    if support is not None:
        return on_support(scaled, batch.targets, support.long())
    return (
        target_logprobs(scaled, batch.targets, ranks) if "logprobs" in needs else None,
        vocab_entropy(scaled, ranks) if "entropy" in needs else None,
    )


def on_support(logits: Tensor, targets: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets [N]` and entropy `[N]`, where only the tokens `support [N, K]` can be drawn.

    Args:
        logits: `[N, V]`, after the temperature. support: ids; -1 stands for none. A target outside has -inf.
    """
    kept = logits.float().gather(-1, support.clamp(min=0)).masked_fill(support < 0, -torch.inf)
    logp = kept.log_softmax(-1)
    inside = (support == targets[:, None]).any(-1)
    chosen = logits.float().gather(-1, targets[:, None]).squeeze(-1) - kept.logsumexp(-1)
    entropy = -torch.where(support >= 0, logp.exp() * torch.where(support >= 0, logp, 0.0), 0.0).sum(-1)
    return torch.where(inside, chosen, -torch.inf), entropy


def target_logits(model: Any, batch: Batch, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The logits where a batch's targets are predicted, `[N, V]`."""
    return _logits(model, batch, _Head(batch, None, worded=True), dtype=dtype, ranks=ALONE, hidden=None)


def _logits(
    model: Any, batch: Batch, head: _Head, *, dtype: torch.dtype, ranks: Ranks, hidden: Tensor | None
) -> Tensor:
    low = torch.autocast(batch.ids.device.type, dtype) if dtype != torch.float32 else nullcontext()
    with low, head.on(model.get_output_embeddings()):
        inputs = fed(model, batch, hidden, explicit=ranks.mesh.tp * ranks.mesh.pp > 1)
        found: Tensor = model(**inputs, use_cache=False).logits[0]
    return found


def fed(model: Any, batch: Batch, hidden: Tensor | None = None, *, explicit: bool = False) -> dict[str, Tensor]:
    """The model's arguments for a batch: its ids or hidden states, and for packed rows a mask and positions.

    Args:
        explicit: give positions always: a stage, or a model that is parallel along its sequence, cannot count them.
    Raises:
        ConfigError: rows with branches, for a model whose attention takes no mask of one's own.
    """
    inputs: dict[str, Tensor] = {"input_ids": batch.ids} if hidden is None else {"inputs_embeds": hidden}
    if batch.mask is not None and batch.positions is not None:
        if not can_pack(model):
            raise ConfigError("rows with branches need full attention in every layer", value=model.config.model_type)
        return inputs | {"attention_mask": _attention(model, batch.mask), "position_ids": batch.positions}
    if batch.docs is not None and batch.positions is not None:
        return inputs | {"attention_mask": _mask(model, batch.docs), "position_ids": batch.positions}
    if explicit:
        length = batch.ids.shape[1]
        inputs["position_ids"] = torch.arange(length, device=batch.ids.device).expand(batch.ids.shape)
    return inputs


def _drawn(logits: Tensor, batch: Batch, ranks: Ranks) -> Tensor:
    """Words from the model's own distribution `[N]`: each sequence has a stream of its own, whoever computes it."""
    streams = [torch.Generator(logits.device) for _ in batch.samples]
    for sample, stream in zip(batch.samples, streams, strict=True):
        stream.manual_seed(sample_seed(torch.initial_seed(), "drawn", sample) % 2**63)
    counts = torch.bincount(batch.sequence, minlength=len(streams)).tolist() if batch.sequence is not None else []
    drawn = [
        vocab_sample(part, ranks, stream) for part, stream in zip(torch.split(logits, counts), streams, strict=True)
    ]
    return torch.cat([batch.targets[:0], *drawn])


class _Head:
    """Lets the head see the hidden states at the targets only: `[B, T, H]` becomes `[1, N, H]`.

    The model's own forward runs, so what it does around its head (scaling, capping) is kept. Values are read from the
    same states. Prompt tuning puts tokens before the first: places are counted from the end of what it added.
    """

    def __init__(self, batch: Batch, value_head: nn.Module | None, *, worded: bool) -> None:
        self._batch, self._value_head, self._worded = batch, value_head, worded
        self.values: Tensor | None = None

    @contextmanager
    def on(self, head: nn.Module) -> Iterator[None]:
        """Inside, it works on this output embedding."""
        hook = head.register_forward_pre_hook(self._select, prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def _select(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        index, states = self._batch.index, arguments[0]
        added = states.shape[1] - self._batch.ids.shape[1]
        if added:
            index = index + added * (index // self._batch.ids.shape[1] + 1)
        chosen = states.flatten(0, -2).index_select(0, index)
        if self._value_head is not None:
            self.values = self._value_head(chosen.float()).float()
        return (chosen[None] if self._worded else chosen[None, :0], *arguments[1:])


def _mask(model: Any, docs: Tensor) -> Tensor:
    """What keeps documents of a row apart `[B, 1, T, T]`."""
    return _attention(model, block_mask(docs))


def _attention(model: Any, mask: Tensor) -> Tensor:
    """A mask as the model's attention takes it: bool for sdpa, added to the scores for eager."""
    if model.config._attn_implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, torch.finfo(torch.float32).min)

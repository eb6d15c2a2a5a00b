"""The forward pass of training: the model's own, with the head computed at targets only, under either layout's mask."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, DeviceMemory, Problem
from evolvent.learn.fused_head import head_logprobs
from evolvent.learn.objectives import Need, Outputs, require_output
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Ranks, vocab_entropy, vocab_sample
from evolvent.learn.parallel.ranks import vocab_logprobs as target_logprobs
from evolvent.learn.token_sequences import Batch, TokenSequence, block_mask, collate_packed, collate_padded
from evolvent.models.cpu_layers import fast_layers
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "Layout",
    "allows_blocks",
    "can_pack",
    "cast_weights",
    "compute_outputs",
    "eval_mode",
    "frozen",
    "model_inputs",
    "report_memory_errors",
    "resolve_layout",
    "separates_sequences",
    "support_logprobs",
    "target_logits",
]

Layout = Literal["auto", "bucketed", "packed", "shared"]
_log = logging.getLogger(__name__)
_LOGPROBS: tuple[Need, ...] = ("logprobs",)
_TRIAL_TOKENS = 24  # tokens of the sequences that a model is tried on
_MAX_DIFFERENCE = 1e-4  # of a log-probability in float32
_MEAN_DIFFERENCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of models that are too large for a copy in float32
_MAX_COPIED = 10_000_000  # weights of a model that is tried in float32
_KEEPS_LOGITS = "_model_keeps_logits"  # attribute of a head: whether its model returns the head's logits unchanged
_LOGIT_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")  # of models that change their logits
_MIN_FUSED_HEAD = 1 << 23  # weights of a head whose log-probabilities are computed in blocks
_MAX_TRAINED_LOGITS = 1 << 26  # of a forward with a trained head: 256 MiB in float32


def can_pack(model: PreTrainedModel) -> bool:
    """Returns whether a block mask keeps documents of one row apart: full attention in every layer."""
    config = model.config
    return (
        config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and "local" not in (getattr(config, "attention_layers", None) or ())
        and hasattr(config, "num_attention_heads")
        and not getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    )


def resolve_layout(model: PreTrainedModel, layout: Layout) -> Literal["bucketed", "packed"]:
    """Returns the layout of rows of separate sequences; "auto" means bucketed, whose plain causal attention is
    fastest.

    On an H100, 0.5B, texts of 128 to 384 and of 512 to 1536 tokens: 1.10 and 1.26 times the tokens a second of packed
    rows of 4,096 at most, whose mask no flash kernel takes.

    Packed rows are for models that pass a trial of two short sequences. A model without weights, whose memory is
    planned, is not tried.

    Raises:
        ConfigError: packed rows for a model that would mix its documents.
    """
    if layout != "packed":
        return "bucketed"
    if not can_pack(model):
        message = f"packed rows need full attention in every layer, but {model.config.model_type} has other layers"
    elif any(weight.is_meta for weight in model.parameters()) or separates_sequences(
        model, lambda sequences: collate_packed(sequences, [[0, 1]])
    ):
        return "packed"
    else:
        message = f"packed rows need explicit masks and positions, which a {model.config.model_type} model does not use"
    raise ConfigError([Problem("layout", message, "set layout to 'bucketed'; the loss is the same")])


def separates_sequences(model: PreTrainedModel, build_batch: Callable[[Sequence[TokenSequence]], Batch]) -> bool:
    """Returns whether a model gives sequences of one row the outputs that they have alone, tried on two short ones.

    Args:
        build_batch: builds the batch of two sequences whose first third is equal, with their targets in order.
    Raises:
        DeviceMemory: not even these sequences fit.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    size = min(_TRIAL_TOKENS, int(getattr(model.config, "max_position_embeddings", None) or _TRIAL_TOKENS))
    trial_ids = np.random.default_rng(0).integers(0, vocabulary, (2, size)).astype(np.int32)
    trial_ids[1, : size // 3] = trial_ids[0, : size // 3]
    trial_ids[1, size // 3] = (trial_ids[0, size // 3] + 1) % vocabulary
    no_flags, weight = np.zeros(size, np.bool_), np.append(0, np.ones(size - 1)).astype(np.float32)
    no_steps, no_logprobs = no_flags.astype(np.int32), no_flags.astype(np.float32)
    sequences = [
        TokenSequence("tried", ids, no_flags, no_flags, no_logprobs, no_steps, no_steps, weight) for ids in trial_ids
    ]
    first_weight = next(model.parameters())
    device, dtype = first_weight.device, first_weight.dtype
    if dtype in _MEAN_DIFFERENCE and sum(weight.numel() for weight in model.parameters()) < _MAX_COPIED:
        model, dtype = copy.deepcopy(model).float(), torch.float32
    with torch.no_grad(), eval_mode(model):
        try:
            with report_memory_errors((2, size), "use a smaller model"):
                separate_logprobs, joint_logprobs = (
                    require_output(compute_outputs(model, batch.to(device)).logprobs, "logprobs")
                    for batch in (collate_padded(sequences, [[0], [1]]), build_batch(sequences))
                )
        except (ValueError, TypeError, IndexError, RuntimeError) as problem:  # it takes no mask of four dimensions, say
            _log.info("a %s model keeps no sequences of a row apart: %s", model.config.model_type, problem)
            return False
    difference = (separate_logprobs - joint_logprobs).abs()
    # The largest of many rounded numbers says little: 0.21 for SmolLM2 in bfloat16, where the mean is 0.02.
    is_equal = bool(
        difference.mean() <= _MEAN_DIFFERENCE[dtype]
        if dtype in _MEAN_DIFFERENCE
        else difference.max() <= _MAX_DIFFERENCE
    )
    if not is_equal:
        _log.info("a %s model mixes sequences of a row", model.config.model_type)
    return is_equal


@contextmanager
def eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Runs the block without dropout and restores the mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def frozen(weights: Iterable[Tensor]) -> Iterator[None]:
    """Stops gradients of these weights, which are otherwise trained, inside the block."""
    weight_list = list(weights)
    for weight in weight_list:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weight_list:
            weight.requires_grad_(True)


def cast_weights(model: PreTrainedModel, dtype_name: str) -> PreTrainedModel:
    """Converts trained weights to float32, or to bfloat16 for "bfloat16_weights"; weights below an adapter stay."""
    dtype = torch.bfloat16 if dtype_name == "bfloat16_weights" else torch.float32
    if all(weight.requires_grad for weight in model.parameters()):
        return model.to(dtype)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)
    return model


@contextmanager
def report_memory_errors(shape: tuple[int, ...], hint: str) -> Iterator[None]:
    """Raises DeviceMemory where the block runs out of memory, on any device.

    Args:
        shape: of the computation, rows x tokens.
        hint: the settings to change.
    Raises:
        DeviceMemory: an allocation was refused.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError; on a CPU it has no name
        is_memory_error = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(
            error
        )
        if not is_memory_error:
            raise
        message = "a batch does not fit the device's memory"
        raise DeviceMemory(message, value=f"rows x tokens {shape}", hint=hint) from error


def compute_outputs(
    model: PreTrainedModel,
    batch: Batch,
    *,
    needs: Collection[Need] = _LOGPROBS,
    dtype: torch.dtype = torch.float32,
    ranks: Ranks = SINGLE_PROCESS,
    hidden: Tensor | None = None,
    temperature: float = 1.0,
) -> Outputs:
    """Computes the outputs that an objective needs for a batch, with a Hugging Face causal LM on the batch's device.

    Args:
        needs: see `Outputs`. Values are those of `model.value_head`.
        dtype: float32, or bfloat16 for an autocast forward pass.
        ranks: under tensor parallelism each rank holds a slice of the vocabulary.
        hidden: `[B, T, H]`, output of an earlier pipeline stage; None: the batch's ids are fed.
        temperature: of the targets' log-probabilities and of the entropy.
    """
    if _computes_in_blocks(model, batch, needs, ranks):
        outputs = _compute_fused(model, batch, needs, dtype=dtype, ranks=ranks, hidden=hidden, temperature=temperature)
        if outputs is not None:
            return outputs
    needs_logits = bool({"logprobs", "teacher", "sampled", "entropy", "logits"} & set(needs))
    value_head = model.value_head if "values" in needs else None
    head = _TargetHead(batch, value_head, max_targets=None if needs_logits else 0)
    logits = _compute_logits(model, batch, head, dtype=dtype, ranks=ranks, hidden=hidden)
    sampled_ids = _sample_tokens(logits.detach(), batch, ranks) if "sampled" in needs else None
    logprobs, entropy = _target_outputs(logits, batch, needs, ranks=ranks, temperature=temperature)
    return Outputs(
        logprobs,
        head.values,
        target_logprobs(logits, batch.columns["teacher_ids"].long(), ranks) if "teacher" in needs else None,
        target_logprobs(logits, sampled_ids, ranks) if sampled_ids is not None else None,
        entropy,
        logits if "logits" in needs else None,
    )


def _computes_in_blocks(model: PreTrainedModel, batch: Batch, needs: Collection[Need], ranks: Ranks) -> bool:
    """Returns whether this forward computes log-probabilities in blocks of targets (`learn/fused_head.py`)."""
    head = model.get_output_embeddings()
    is_whole = type(head) is nn.Linear and type(head.weight) in (Tensor, nn.Parameter) and ranks.mesh.tp == 1
    if not is_whole or model._compiled_call_impl is not None or getattr(head, _KEEPS_LOGITS, True) is False:
        return False
    wants_logprobs = "logprobs" in needs and set(needs) <= {"logprobs", "values", "reference", "entropy"}
    if not wants_logprobs or "support" in batch.columns or not batch.count:
        return False
    learns = torch.is_grad_enabled()
    return not (learns and "entropy" in needs) and allows_blocks(model, num_targets=batch.count, learns=learns)


def allows_blocks(model: PreTrainedModel, *, num_targets: int, learns: bool) -> bool:
    """Returns whether a model's head is of a kind and size whose logits are computed in blocks.

    They are for the large vocabularies of pretrained models: always where the head is frozen, and where it is trained,
    for so many targets that computing their logits twice is the smaller cost.

    Args:
        num_targets: targets of a forward.
        learns: whether a backward pass follows.
    """
    head = model.get_output_embeddings()
    changes_logits = any(getattr(model.config, name, None) not in (None, 1.0) for name in _LOGIT_SETTINGS)
    if type(head) is not nn.Linear or changes_logits or head.weight.numel() < _MIN_FUSED_HEAD:
        return False
    is_trained = learns and head.weight.requires_grad
    return not is_trained or num_targets * head.out_features > _MAX_TRAINED_LOGITS


def _compute_fused(
    model: PreTrainedModel,
    batch: Batch,
    needs: Collection[Need],
    *,
    dtype: torch.dtype,
    ranks: Ranks,
    hidden: Tensor | None,
    temperature: float,
) -> Outputs | None:
    """Computes outputs without the logits of all targets; returns None for a model that changes its head's logits.

    The model's own head sees the first target only. If the model does not return the head's logits as they are (it
    scales or caps them), it is remembered as one whose logits are needed. Logits of 0 show nothing, and are asked for.
    """
    head = model.get_output_embeddings()
    target_head = _TargetHead(batch, model.value_head if "values" in needs else None, max_targets=1)
    first_logits = _compute_logits(model, batch, target_head, dtype=dtype, ranks=ranks, hidden=hidden)
    if not hasattr(head, _KEEPS_LOGITS):
        head_logits = require_output(target_head.logits, "logits")
        if not head_logits.any():
            return None
        setattr(head, _KEEPS_LOGITS, torch.equal(first_logits.float(), head_logits.flatten(0, -2).float()))
    if not getattr(head, _KEEPS_LOGITS):
        return None
    states = require_output(target_head.states, "states")
    with fast_layers(model):
        logprobs, entropy = head_logprobs(
            states,
            head.weight,
            head.bias,
            batch.targets,
            temperature=temperature,
            dtype=states.dtype if dtype == torch.float32 else dtype,
            needs_entropy="entropy" in needs,
        )
    return Outputs(logprobs, target_head.values, None, None, entropy, None)


def _target_outputs(
    logits: Tensor, batch: Batch, needs: Collection[Need], *, ranks: Ranks, temperature: float
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the targets' log-probabilities and the entropy `[N]` of the distribution that the targets were sampled
    from.
    """
    if not {"logprobs", "entropy"} & set(needs):
        return None, None
    scaled = logits if temperature == 1.0 else logits.float() / temperature
    support = batch.columns.get("support")
    if support is not None:
        return support_logprobs(scaled, batch.targets, support.long())
    return (
        target_logprobs(scaled, batch.targets, ranks) if "logprobs" in needs else None,
        vocab_entropy(scaled, ranks) if "entropy" in needs else None,
    )


def support_logprobs(logits: Tensor, targets: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Computes log-probabilities `[N]` and entropy `[N]` where only the tokens `support [N, K]` can be sampled.

    Args:
        logits: `[N, V]`, after the temperature.
        targets: `[N]`; a target outside the support has -inf.
        support: token ids; -1 stands for none.
    """
    support_logits = logits.float().gather(-1, support.clamp(min=0)).masked_fill(support < 0, -torch.inf)
    logp = support_logits.log_softmax(-1)
    is_in_support = (support == targets[:, None]).any(-1)
    chosen_logprobs = logits.float().gather(-1, targets[:, None]).squeeze(-1) - support_logits.logsumexp(-1)
    entropy = -torch.where(support >= 0, logp.exp() * torch.where(support >= 0, logp, 0.0), 0.0).sum(-1)
    return torch.where(is_in_support, chosen_logprobs, -torch.inf), entropy


def target_logits(model: PreTrainedModel, batch: Batch, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Computes the logits at the positions where a batch's targets are predicted, `[N, V]`."""
    return _compute_logits(model, batch, _TargetHead(batch, None), dtype=dtype, ranks=SINGLE_PROCESS, hidden=None)


def _compute_logits(
    model: PreTrainedModel, batch: Batch, head: _TargetHead, *, dtype: torch.dtype, ranks: Ranks, hidden: Tensor | None
) -> Tensor:
    autocast = torch.autocast(batch.ids.device.type, dtype) if dtype != torch.float32 else nullcontext()
    with autocast, fast_layers(model), head.attached_to(model.get_output_embeddings()):
        inputs = model_inputs(model, batch, hidden, explicit_positions=ranks.mesh.tp * ranks.mesh.pp > 1)
        logits: Tensor = model(**inputs, use_cache=False).logits[0]
    return logits


def model_inputs(
    model: PreTrainedModel, batch: Batch, hidden: Tensor | None = None, *, explicit_positions: bool = False
) -> dict[str, Tensor]:
    """Returns the model's arguments for a batch: its ids or hidden states, and for packed rows a mask and positions.

    Args:
        explicit_positions: always pass positions: a pipeline stage, or a model that is parallel along its sequence,
            cannot count them.
    Raises:
        ConfigError: rows with branches, for a model whose attention takes no custom mask.
    """
    inputs: dict[str, Tensor] = {"input_ids": batch.ids} if hidden is None else {"inputs_embeds": hidden}
    if batch.mask is not None and batch.positions is not None:
        if not can_pack(model):
            raise ConfigError("rows with branches need full attention in every layer", value=model.config.model_type)
        return inputs | {"attention_mask": _attention_mask(model, batch.mask), "position_ids": batch.positions}
    if batch.docs is not None and batch.positions is not None:
        return inputs | {"attention_mask": _document_mask(model, batch.docs), "position_ids": batch.positions}
    if explicit_positions:
        length = batch.ids.shape[1]
        inputs["position_ids"] = torch.arange(length, device=batch.ids.device).expand(batch.ids.shape)
    return inputs


def _sample_tokens(logits: Tensor, batch: Batch, ranks: Ranks) -> Tensor:
    """Samples tokens `[N]` from the model's own distribution; each sequence has its own stream, whatever rank
    computes it.
    """
    streams = [torch.Generator(logits.device) for _ in batch.samples]
    for sample, stream in zip(batch.samples, streams, strict=True):
        stream.manual_seed(sample_seed(torch.initial_seed(), "drawn", sample) % 2**63)
    counts = torch.bincount(batch.sequence, minlength=len(streams)).tolist() if batch.sequence is not None else []
    sampled = [
        vocab_sample(part, ranks, stream) for part, stream in zip(torch.split(logits, counts), streams, strict=True)
    ]
    return torch.cat([batch.targets[:0], *sampled])


class _TargetHead:
    """Shows the head the hidden states at the targets only: `[B, T, H]` becomes `[1, N, H]`.

    The model's own forward runs, so that scaling and capping around its head are kept. Values are read from the same
    states. Prompt tuning inserts tokens before the first: positions are shifted by the tokens that it added.

    Args:
        max_targets: how many targets the head sees; None: all.
    Attributes:
        values: `[N]`, of the value head.
        states: `[N, H]`, at all targets.
        logits: of the targets that the head saw, as it returned them, where it saw one only.
    """

    def __init__(self, batch: Batch, value_head: nn.Module | None, *, max_targets: int | None = None) -> None:
        self._batch, self._value_head, self._max_targets = batch, value_head, max_targets
        self.values: Tensor | None = None
        self.states: Tensor | None = None
        self.logits: Tensor | None = None

    @contextmanager
    def attached_to(self, head: nn.Module) -> Iterator[None]:
        """Attaches itself to this output embedding inside the block."""
        hooks = [head.register_forward_pre_hook(self._select, prepend=True)]
        if self._max_targets == 1:
            hooks.append(head.register_forward_hook(self._keep_logits))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _select(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        index, states = self._batch.index, arguments[0]
        num_added = states.shape[1] - self._batch.ids.shape[1]
        if num_added:
            index = index + num_added * (index // self._batch.ids.shape[1] + 1)
        target_states = states.flatten(0, -2).index_select(0, index)
        if self._value_head is not None:
            self.values = self._value_head(target_states.float()).float()
        self.states = target_states
        return (target_states[None, : self._max_targets], *arguments[1:])

    def _keep_logits(self, _: nn.Module, arguments: tuple[Tensor, ...], logits: Tensor) -> None:
        self.logits = logits.detach().clone()


def _document_mask(model: PreTrainedModel, docs: Tensor) -> Tensor:
    """Returns the mask that keeps documents of a row apart, `[B, 1, T, T]`."""
    return _attention_mask(model, block_mask(docs))


def _attention_mask(model: PreTrainedModel, mask: Tensor) -> Tensor:
    """Converts a mask for the model's attention: bool for sdpa, added to the scores for eager."""
    if model.config._attn_implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, torch.finfo(torch.float32).min)

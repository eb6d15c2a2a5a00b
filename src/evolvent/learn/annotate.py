"""Annotates token sequences with the outputs of a frozen policy: once, in one process, before the training.

A reference's log-probabilities (for DPO) and a teacher's likeliest tokens (for distillation) are then data like
any other, and no layout of the training, pipelines included, needs a second model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, DeviceMemory, Problem, VocabularyMismatch
from evolvent.learn.forward import eval_mode, target_logits
from evolvent.learn.losses import target_logprobs
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import Batch, TokenSequence, bucket_by_length, check_sequences, collate_padded
from evolvent.models.policy import Policy

__all__ = ["WINDOW", "annotate"]

WINDOW = 512
"""Parts that are sorted by length together; what is said of one depends on no other window."""
_MAX_LOGITS = 1 << 27  # of one forward: half a gibibyte in float32

Columns = dict[str, NDArray[np.generic]]


def annotate(
    policy: Policy,
    sequences: Iterable[TokenSequence],
    *,
    vocabulary: str,
    teacher_k: int | None = None,
    max_tokens_per_forward: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[TokenSequence]:
    """Yields the same sequences, in order, with the policy's outputs for their weighted targets; in constant memory.

    Args:
        policy: its weights are only read, where they are; without dropout.
        sequences: token sequences.
        vocabulary: `vocabulary_digest` of the tokenizer that the sequences were made with.
        teacher_k: None: column "reference" `[T]`, float32, the targets' log-probabilities. A number k:
            "teacher_ids" `[T, k]`, int32, and "teacher_logprobs" `[T, k]`, float32: the k likeliest tokens at each
            target, among those of the tokenizer. Entries without weight are 0.
        max_tokens_per_forward: token limit of a forward pass, padding included; None: as many as give half a
            gibibyte of logits.
        dtype: float32, or bfloat16 for an autocast forward pass.
    Raises:
        VocabularyMismatch: another tokenizer, or a token id that the model does not have.
        BatchMismatch: a sequence is longer than the context, or has branches (`learn/trees.py`): a branch would be
            read as the continuation of the other.
        ConfigError: a k or a size is out of range.
        DeviceMemory: a forward pass does not fit.
    """
    policy_vocabulary = vocabulary_digest(policy.tokenizer)
    if policy_vocabulary != vocabulary:
        raise VocabularyMismatch(
            "the token sequences were made with another tokenizer than this policy's",
            value=vocabulary[:12],
            expected=policy_vocabulary[:12],
            hint="use a reference or teacher with the same vocabulary",
        )
    embedding_rows = int(policy.model.get_input_embeddings().weight.shape[0])
    num_tokens = min(embedding_rows, 1 + max(policy.tokenizer.get_vocab().values()))
    problems = []
    if teacher_k is not None and not 1 <= teacher_k <= num_tokens:
        problems.append(
            Problem("teacher_k", f"got {teacher_k}, expected 1 to {num_tokens}, the size of the vocabulary")
        )
    if max_tokens_per_forward is not None and max_tokens_per_forward < 1:
        problems.append(Problem("batch_tokens", f"got {max_tokens_per_forward}, expected 1 or more"))
    if problems:
        raise ConfigError(problems)
    annotator = _Annotator(policy, teacher_k, num_tokens, dtype)
    return _annotate_windows(
        annotator, iter(sequences), max_tokens_per_forward or max(1, _MAX_LOGITS // embedding_rows), rows=embedding_rows
    )


def _annotate_windows(
    annotator: _Annotator, sequences: Iterator[TokenSequence], budget: int, *, rows: int
) -> Iterator[TokenSequence]:
    while window := list(islice(sequences, WINDOW)):
        check_sequences(window, vocabulary=rows, context=annotator.policy.context)
        for sequence in window:
            if sequence.parent is not None:
                raise BatchMismatch(
                    f"trajectory {sequence.trajectory!r} has branches, which cannot be annotated",
                    expected="sequences without branches",
                    hint="annotate before branching",
                )
        columns = [annotator.build_columns(len(sequence)) for sequence in window]
        learned = [index for index, sequence in enumerate(window) if sequence.feed]
        for batch in bucket_by_length([window[index].feed for index in learned], budget, rng=np.random.default_rng(0)):
            annotator.fill(columns, window, [learned[position] for position in batch])
        for sequence, new_columns in zip(window, columns, strict=True):
            yield replace(sequence, columns={**sequence.columns, **new_columns})


class _Annotator:
    """Computes the outputs of a policy at targets, as columns."""

    def __init__(self, policy: Policy, k: int | None, num_tokens: int, dtype: torch.dtype) -> None:
        self.policy, self._k, self._words, self._dtype = policy, k, num_tokens, dtype

    def build_columns(self, length: int) -> Columns:
        """Builds the columns of a sequence, filled with zeros."""
        if self._k is None:
            return {"reference": np.zeros(length, np.float32)}
        shape = (length, self._k)
        return {"teacher_ids": np.zeros(shape, np.int32), "teacher_logprobs": np.zeros(shape, np.float32)}

    def fill(self, columns: Sequence[Columns], window: Sequence[TokenSequence], selected: Sequence[int]) -> None:
        """Writes the outputs at the targets of these sequences into their columns."""
        batch = collate_padded(window, [[index] for index in selected])
        try:
            outputs = self._compute_outputs(batch.to(self.policy.model.device))
        except torch.OutOfMemoryError as error:
            raise DeviceMemory(
                "annotating does not fit the device's memory",
                value=tuple(batch.ids.shape),
                hint="set batch_tokens lower",
            ) from error
        offset = 0
        for index in batch.samples:
            positions = 1 + np.flatnonzero(window[index].weight[1:])
            for name, values in outputs.items():
                columns[index][name][positions] = values[offset : offset + len(positions)]
            offset += len(positions)

    def _compute_outputs(self, batch: Batch) -> dict[str, NDArray[Any]]:
        with torch.inference_mode(), eval_mode(self.policy.model):
            logits = target_logits(self.policy.model, batch, dtype=self._dtype).float()
            if self._k is None:
                return {"reference": target_logprobs(logits, batch.targets).cpu().numpy()}
            top, ids = logits[:, : self._words].topk(self._k, dim=-1)
            logprobs = top - logits.logsumexp(-1, keepdim=True)
        return {"teacher_ids": ids.int().cpu().numpy(), "teacher_logprobs": logprobs.cpu().numpy()}

"""What a frozen policy says about parts, written beside them as columns: once, in one process, before the training.

A reference's log-probabilities (for `dpo`) and a teacher's likeliest words (for `distill`) are then data like any
other, and no layout of the training, pipelines included, needs a second model.
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
from evolvent.learn.forward import calm, target_logits
from evolvent.learn.losses import target_logprobs
from evolvent.learn.packing import Batch, bucket, collate_padded
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import Parts, check_parts
from evolvent.models.policy import Policy

__all__ = ["WINDOW", "annotate"]

WINDOW = 512
"""Parts that are sorted by length together; what is said of one depends on no other window."""
_LOGITS = 1 << 27  # of one forward: half a gibibyte in float32

Columns = dict[str, NDArray[Any]]


def annotate(
    policy: Policy,
    parts: Iterable[Parts],
    *,
    vocabulary: str,
    teacher_k: int | None = None,
    batch_tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Parts]:
    """The same parts, in order, with what the policy says of their weighted targets; in constant memory.

    Args:
        policy: its weights are only read, where they are; without dropout.
        vocabulary: `vocabulary_digest` of the tokenizer that the parts were made with.
        teacher_k: None: column "reference" `[T]`, float32, the targets' log-probabilities. A number k: "teacher_ids"
            `[T, k]`, int32, and "teacher_logprobs" `[T, k]`, float32: the k likeliest words at each target, among those
            of the tokenizer. Entries without weight are 0.
        batch_tokens: most tokens of a forward, padding included; None: as many as give half a gibibyte of logits.
        dtype: float32, or bfloat16 for an autocast forward.
    Raises:
        VocabularyMismatch: another tokenizer, or a token id that the model does not have. BatchMismatch: a sequence
            longer than the context, or one with branches (`learn/trees.py`): a branch would be read as what follows
            the other. ConfigError: a k or a size out of range. DeviceMemory: a forward does not fit.
    """
    own = vocabulary_digest(policy.tokenizer)
    if own != vocabulary:
        raise VocabularyMismatch(
            "the parts were made with another tokenizer than this policy's",
            value=vocabulary[:12],
            expected=own[:12],
            hint="use a reference or teacher with the same vocabulary",
        )
    rows = int(policy.model.get_input_embeddings().weight.shape[0])
    words = min(rows, 1 + max(policy.tokenizer.get_vocab().values()))
    problems = []
    if teacher_k is not None and not 1 <= teacher_k <= words:
        problems.append(Problem("teacher_k", f"must be 1 to {words}, the words of the tokenizer, got {teacher_k}"))
    if batch_tokens is not None and batch_tokens < 1:
        problems.append(Problem("batch_tokens", f"must be 1 or more, got {batch_tokens}"))
    if problems:
        raise ConfigError(problems)
    said = _Said(policy, teacher_k, words, dtype)
    return _annotated(said, iter(parts), batch_tokens or max(1, _LOGITS // rows), rows=rows)


def _annotated(said: _Said, parts: Iterator[Parts], budget: int, *, rows: int) -> Iterator[Parts]:
    while window := list(islice(parts, WINDOW)):
        check_parts(window, vocabulary=rows, context=said.policy.context)
        for sequence in window:
            if sequence.parent is not None:
                raise BatchMismatch(
                    f"trajectory {sequence.trajectory!r} has branches, which are not annotated",
                    expected="sequences without parent",
                    hint="annotate, then branch",
                )
        columns = [said.empty(len(sequence)) for sequence in window]
        learned = [index for index, sequence in enumerate(window) if sequence.feed]
        for batch in bucket([window[index].feed for index in learned], budget, rng=np.random.default_rng(0)):
            said.fill(columns, window, [learned[place] for place in batch])
        for sequence, own in zip(window, columns, strict=True):
            yield replace(sequence, columns={**sequence.columns, **own})


class _Said:
    """What a policy says of targets, as columns."""

    def __init__(self, policy: Policy, k: int | None, words: int, dtype: torch.dtype) -> None:
        self.policy, self._k, self._words, self._dtype = policy, k, words, dtype

    def empty(self, length: int) -> Columns:
        """The columns of a sequence of which nothing is said."""
        if self._k is None:
            return {"reference": np.zeros(length, np.float32)}
        shape = (length, self._k)
        return {"teacher_ids": np.zeros(shape, np.int32), "teacher_logprobs": np.zeros(shape, np.float32)}

    def fill(self, columns: Sequence[Columns], window: Sequence[Parts], chosen: Sequence[int]) -> None:
        """Write what is said of the targets of these sequences into their columns."""
        batch = collate_padded(window, [[index] for index in chosen])
        try:
            found = self._asked(batch.to(self.policy.model.device))
        except torch.OutOfMemoryError as error:
            raise DeviceMemory(
                "annotating does not fit the device's memory", value=tuple(batch.ids.shape), hint="lower batch_tokens"
            ) from error
        at = 0
        for index in batch.samples:
            places = 1 + np.flatnonzero(window[index].weight[1:])
            for name, values in found.items():
                columns[index][name][places] = values[at : at + len(places)]
            at += len(places)

    def _asked(self, batch: Batch) -> dict[str, NDArray[Any]]:
        with torch.inference_mode(), calm(self.policy.model):
            logits = target_logits(self.policy.model, batch, dtype=self._dtype).float()
            if self._k is None:
                return {"reference": target_logprobs(logits, batch.targets).cpu().numpy()}
            top, ids = logits[:, : self._words].topk(self._k, dim=-1)
            logprobs = top - logits.logsumexp(-1, keepdim=True)
        return {"teacher_ids": ids.int().cpu().numpy(), "teacher_logprobs": logprobs.cpu().numpy()}

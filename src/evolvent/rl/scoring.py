"""Scoring of episodes with a policy's weights: outputs for every learned token, in one forward pass without
gradient.

Log-probabilities under the sampling distribution (before the first update they are the ratio's denominator, and
against the sampler's own they show a mismatch), state values, and the tokens that top-k left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.sampling import ChoiceTrie
from evolvent.errors import BatchMismatch
from evolvent.learn.forward import compute_outputs, eval_mode, report_memory_errors, target_logits
from evolvent.learn.objectives import Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.prefix_sharing import PrefixSharing, build_batches
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy
from evolvent.trajectory import Trajectory

__all__ = ["ScoreKind", "add_choice_support", "add_top_k_support", "evaluate_targets", "score_sequences"]

ScoreKind = Literal["logprobs", "values", "entropy"]
_LOGPROBS: tuple[ScoreKind, ...] = ("logprobs",)
OutputFunction = Callable[[Any, Batch], Mapping[str, Tensor]]
_MAX_LOGITS = 1 << 27  # of one forward: half a gibibyte in float32
_MEMORY_HINT = "lower train.max_tokens_per_forward"


def score_sequences(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    needs: Collection[ScoreKind] = _LOGPROBS,
    temperature: float = 1.0,
    max_tokens_per_forward: int | None = None,
    dtype: torch.dtype = torch.float32,
    sharing: PrefixSharing | None = None,
) -> list[dict[str, NDArray[np.float32]]]:
    """Scores every sequence: for each need a column `[T]`, 0 at tokens without weight.

    The value at a token is that of the prefix before it. Where a sequence has the column "support", log-probabilities
    and
    entropy are of its tokens alone (see `Objective.temperature`).

    Args:
        sequences: token sequences.
        needs: "logprobs", "entropy", or "values" of the policy's value head.
        temperature: sampling temperature of the tokens.
        max_tokens_per_forward: token limit of a forward pass, padding included; None: as many as give half a gibibyte
            of
            logits.
        dtype: float32, or bfloat16 for an autocast forward pass.
        sharing: how sequences share rows; None: each has its own.
    Raises:
        DeviceMemory: a forward pass does not fit.
    """

    def read_outputs(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        model_outputs: Outputs = compute_outputs(model, batch, needs=tuple(needs), dtype=dtype, temperature=temperature)
        return {name: getattr(model_outputs, name) for name in needs}

    with _attach_value_head(policy) if "values" in needs else nullcontext():
        return evaluate_targets(
            policy.model, sequences, read_outputs, max_tokens_per_forward=max_tokens_per_forward, sharing=sharing
        )


def add_top_k_support(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    top_k: int,
    temperature: float,
    max_tokens_per_forward: int | None = None,
    sharing: PrefixSharing | None = None,
) -> list[TokenSequence]:
    """Adds column "support" `[T, K]` int32 to the sequences: the tokens that top-k left at every learned token.

    It uses the weights that sampled, before any update. Later the same tokens stay the support, so that a ratio
    compares
    two distributions over one set. A sampled token that rounding pushed out of it takes the last entry.
    """

    def compute_support(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        logits = target_logits(model, batch).float() / temperature
        top_tokens = logits.topk(min(top_k, logits.shape[-1]), dim=-1).indices
        is_missing = ~(top_tokens == batch.targets[:, None]).any(-1)
        top_tokens[:, -1] = torch.where(is_missing, batch.targets, top_tokens[:, -1])
        return {"support": top_tokens.int()}

    support_columns = evaluate_targets(
        policy.model, sequences, compute_support, max_tokens_per_forward=max_tokens_per_forward, sharing=sharing
    )
    return [
        replace(sequence, columns={**sequence.columns, **column})
        for sequence, column in zip(sequences, support_columns, strict=True)
    ]


def add_choice_support(trajectories: Sequence[Trajectory], sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
    """Adds column "support" `[T, K]` int32 to the sequences: the tokens that could still become a listed action.

    It serves episodes whose actions were sampled among the world's possible ones (`LanguageAgent(choose=True)`), and
    reads
    the notes of their steps.

    Raises:
        BatchMismatch: a learned step did not note the actions that it chose from.
    """
    trajectories_by_id = {trajectory.id: trajectory for trajectory in trajectories}
    allowed = [_allowed_tokens(trajectories_by_id[sequence.trajectory], sequence) for sequence in sequences]
    width = max((len(ids) for allowed_tokens in allowed for ids in allowed_tokens.values()), default=1)
    extended = []
    for sequence, allowed_tokens in zip(sequences, allowed, strict=True):
        support = np.full((len(sequence), width), -1, np.int32)
        for position, ids in allowed_tokens.items():
            support[position, : len(ids)] = ids
        extended.append(replace(sequence, columns={**sequence.columns, "support": support}))
    return extended


def _allowed_tokens(trajectory: Trajectory, sequence: TokenSequence) -> dict[int, list[int]]:
    """Returns the tokens that were possible at every learned position of a sequence."""
    allowed_by_position: dict[int, list[int]] = {}
    tries: dict[int, ChoiceTrie] = {}
    prefix: tuple[int, ...] = ()
    previous_step = -1
    for position in np.flatnonzero((sequence.weight != 0) & sequence.sampled).tolist():
        number = int(sequence.step[position])
        if number not in tries:
            choices = trajectory.steps[number].info.get("choices")
            if not choices:
                raise BatchMismatch(
                    f"step {number} of {trajectory.id!r} does not say what it chose from",
                    hint="play it with choose=True",
                )
            tries[number] = ChoiceTrie(choices)
        prefix = prefix if number == previous_step else ()
        allowed_by_position[position], previous_step = tries[number].allowed(prefix), number
        prefix = (*prefix, int(sequence.ids[position]))
    return allowed_by_position


def evaluate_targets(
    model: Any,
    sequences: Sequence[TokenSequence],
    compute: OutputFunction,
    *,
    max_tokens_per_forward: int | None = None,
    sharing: PrefixSharing | None = None,
) -> list[dict[str, NDArray[Any]]]:
    """Evaluates a function at the targets of each sequence and spreads its results over the tokens, `[T, ...]`.

    Args:
        compute: takes the model and a batch on its device; returns tensors `[N, ...]`, one entry per target.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    budget, rng = max_tokens_per_forward or max(1, _MAX_LOGITS // vocabulary), np.random.default_rng(0)
    columns: list[dict[str, NDArray[Any]]] = [{} for _ in sequences]
    learned = [index for index, sequence in enumerate(sequences) if sequence.feed]
    with torch.inference_mode(), eval_mode(model):
        for batch in build_batches(sequences, learned, max_tokens=budget, rng=rng, sharing=sharing):
            with report_memory_errors(tuple(batch.ids.shape), _MEMORY_HINT):
                outputs = {
                    name: tensor.cpu().numpy() for name, tensor in compute(model, batch.to(model.device)).items()
                }
            _scatter_columns(columns, sequences, batch.samples, outputs)
    return columns


def _scatter_columns(
    columns: Sequence[dict[str, NDArray[Any]]],
    sequences: Sequence[TokenSequence],
    samples: Sequence[int],
    target_outputs: Mapping[str, NDArray[Any]],
) -> None:
    offset = 0
    for index in samples:
        positions = 1 + np.flatnonzero(sequences[index].weight[1:])
        for name, values in target_outputs.items():
            column = np.zeros((len(sequences[index]), *values.shape[1:]), values.dtype)
            column[positions] = values[offset : offset + len(positions)]
            columns[index][name] = column
        offset += len(positions)


@contextmanager
def _attach_value_head(policy: Policy) -> Iterator[None]:
    """Attaches the policy's value head to its model inside the block, where the forward pass expects it."""
    previous_head = getattr(policy.model, "value_head", None)
    if previous_head is policy.value_head:
        yield
        return
    policy.model.value_head = policy.value_head
    try:
        yield
    finally:
        if previous_head is None:
            del policy.model.value_head
        else:
            policy.model.value_head = previous_head

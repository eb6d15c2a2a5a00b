"""Features of samples for selection: mean-pooled last hidden states of the policy, and their normal form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.difficulty import answer_positions, answer_spans
from evolvent.curate.greedy import check_features
from evolvent.errors import BatchMismatch, NonFinite
from evolvent.trajectory import Array

if TYPE_CHECKING:
    import torch

    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.models.policy import Policy

__all__ = ["answer_features", "span_features", "unit_features"]

_ROWS = 1 << 14
_TOKENS = 1 << 13
_Segments = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]  # of each sequence: places, and a number for each


def unit_features(features: ArrayLike) -> Array:
    """Returns features with mean 0 and deviation 1 in every column and rows of length 1, without constant columns.

    A column whose values differ only by rounding is constant. All columns are constant where none differs by more
    than the rounding of the largest value: the sums that made them had terms of that size. A row equal to the mean
    stays 0, since it has no direction. float32 stays float32.

    Args:
        features: `[n, d]`. Features of the samples.
    Returns:
        `[n, d']`; `[0, d]` for an empty pool.
    Raises:
        NonFinite: NaN or infinity, naming row and column; or all columns are constant, as in a pool of one.
        BatchMismatch: not a matrix of numbers.
    """
    matrix = check_features(features, finite=True)
    if not len(matrix):
        return matrix.copy()
    blocks = [slice(start, start + _ROWS) for start in range(0, len(matrix), _ROWS)]
    mean = matrix.mean(axis=0, dtype=np.float64)
    squares = sum((np.square(matrix[block] - mean).sum(axis=0) for block in blocks), np.zeros(matrix.shape[1]))
    deviation = np.sqrt(squares / len(matrix))
    largest = np.maximum(np.abs(matrix.max(axis=0)), np.abs(matrix.min(axis=0))).astype(np.float64)
    rounding = float(np.finfo(matrix.dtype).eps)
    is_varied = deviation > 4 * rounding * largest
    if not is_varied.any() or deviation.max() <= 16 * rounding * largest.max():
        raise NonFinite(
            "every feature is constant, so its standard deviation is 0",
            value=f"{matrix.shape[1]} columns, {len(matrix)} rows",
            expected="samples that differ",
            hint="check that the features were not taken at the first position",
        )
    normalized = np.empty((len(matrix), int(is_varied.sum())), matrix.dtype)
    for block in blocks:
        scaled = (matrix[block][:, is_varied] - mean[is_varied]) / deviation[is_varied]
        length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
        normalized[block] = scaled / np.where(length > 0, length, 1.0)
    return normalized


def answer_features(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    max_tokens_per_forward: int = _TOKENS,
    dtype: torch.dtype | None = None,
) -> NDArray[np.float32]:
    """Computes the mean of the model's last hidden states at the tokens of each answer, `[n, hidden]`.

    The states are the inputs of the model's head at the answer tokens. The first position is never among them: its
    state is the same for every sample.

    Args:
        policy: The policy.
        sequences: Sequences whose learning weights mark the answer tokens.
        max_tokens_per_forward: Maximum tokens of a forward, padding included.
        dtype: bfloat16 for an autocast forward; None: float32.
    Raises:
        NothingToLearn: a sequence without answer tokens. BatchMismatch: a sequence that is a tree. DeviceMemory: a
            forward does not fit.
    """
    segments = [(positions, np.zeros_like(positions)) for positions in map(answer_positions, sequences)]
    pooled = _pool_states(policy, sequences, segments, max_tokens_per_forward=max_tokens_per_forward, dtype=dtype)
    return np.concatenate(pooled) if pooled else np.zeros((0, int(policy.model.config.hidden_size)), np.float32)


def span_features(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    max_tokens_per_forward: int = _TOKENS,
    dtype: torch.dtype | None = None,
) -> list[NDArray[np.float32]]:
    """Computes the mean last hidden state of every span: for each sequence `[S, hidden]`, spans as in
    `answer_spans`.
    """
    segments = [(answer_positions(sequence), answer_spans(sequence)) for sequence in sequences]
    return _pool_states(policy, sequences, segments, max_tokens_per_forward=max_tokens_per_forward, dtype=dtype)


def _pool_states(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    segments: _Segments,
    *,
    max_tokens_per_forward: int,
    dtype: torch.dtype | None,
) -> list[NDArray[np.float32]]:
    import torch

    from evolvent.learn.forward import eval_mode, report_memory_errors
    from evolvent.learn.token_sequences import bucket_by_length

    model = policy.model
    _refuse_trees(sequences)
    lengths = [int(positions[-1]) + 1 for positions, _ in segments]
    pooled: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(sequences)
    autocast = torch.autocast(model.device.type, dtype or torch.bfloat16, enabled=dtype not in (None, torch.float32))
    with torch.inference_mode(), eval_mode(model), autocast:
        for group in bucket_by_length(lengths, max_tokens_per_forward, rng=np.random.default_rng(0)):
            ids = np.zeros((len(group), max(lengths[sample] for sample in group)), np.int64)
            for row, sample in enumerate(group):
                ids[row, : lengths[sample]] = sequences[sample].ids[: lengths[sample]]
            with (
                report_memory_errors(ids.shape, "lower tokens"),
                _record_head_inputs(model.get_output_embeddings()) as head_inputs,
            ):
                model(input_ids=torch.from_numpy(ids).to(model.device), use_cache=False)
            states = head_inputs[0][:, -ids.shape[1] :].float()  # prompt tuning puts tokens before the first
            for row, sample in enumerate(group):
                positions, numbers = (torch.from_numpy(indices).to(model.device) for indices in segments[sample])
                sums = states.new_zeros(int(numbers.max()) + 1, states.shape[-1])
                sums.index_add_(0, numbers, states[row, positions])
                pooled[sample] = (sums / numbers.bincount()[:, None]).cpu().numpy()
    return pooled


def _refuse_trees(sequences: Sequence[TokenSequence]) -> None:
    for sequence in sequences:
        if sequence.parent is not None:
            raise BatchMismatch(
                f"trajectory {sequence.trajectory!r} is a tree with several ends",
                hint="compute the features of its chains",
            )


@contextmanager
def _record_head_inputs(head: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Records, inside the context, the states `[B, T, H]` that a model's head reads, and skips the work of the head."""
    head_inputs: list[torch.Tensor] = []

    def record(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        head_inputs.append(arguments[0])
        return (arguments[0][:, :0], *arguments[1:])

    hook = head.register_forward_pre_hook(record, prepend=True)
    try:
        yield head_inputs
    finally:
        hook.remove()

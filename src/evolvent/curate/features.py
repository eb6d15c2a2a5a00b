"""Features of samples for selection: mean-pooled last hidden states of the policy, and their normal form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.difficulty import answer_places, answer_spans
from evolvent.curate.greedy import checked_features
from evolvent.errors import BatchMismatch, NonFinite

if TYPE_CHECKING:
    import torch

    from evolvent.learn.token_sequences import Parts
    from evolvent.models.policy import Policy

__all__ = ["answer_features", "span_features", "unit_features"]

_ROWS = 1 << 14
_TOKENS = 1 << 13
_Segments = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]  # of each sequence: places, and a number for each


def unit_features(features: ArrayLike) -> NDArray[Any]:
    """Features with mean 0 and deviation 1 in every column and rows of length 1, constant columns dropped.

    A column whose values differ by no more than rounding is constant. So are all of them where none differs by more
    than the largest value's rounding: the sums that made them had terms of that size. A row equal to the mean stays 0:
    it has no direction. float32 stays float32.

    Args:
        features: `[n, d]`.
    Returns:
        `[n, d']`; of an empty pool, `[0, d]`.
    Raises:
        NonFinite: NaN or infinity, naming row and column; or all columns are constant, as in a pool of one.
        BatchMismatch: no matrix of numbers.
    """
    matrix = checked_features(features, finite=True)
    if not len(matrix):
        return matrix.copy()
    blocks = [slice(at, at + _ROWS) for at in range(0, len(matrix), _ROWS)]
    mean = matrix.mean(axis=0, dtype=np.float64)
    squares = sum((np.square(matrix[place] - mean).sum(axis=0) for place in blocks), np.zeros(matrix.shape[1]))
    deviation = np.sqrt(squares / len(matrix))
    largest = np.maximum(np.abs(matrix.max(axis=0)), np.abs(matrix.min(axis=0))).astype(np.float64)
    rounding = float(np.finfo(matrix.dtype).eps)
    varied = deviation > 4 * rounding * largest
    if not varied.any() or deviation.max() <= 16 * rounding * largest.max():
        raise NonFinite(
            "every feature is constant, so none has a deviation to divide by",
            value=f"{matrix.shape[1]} columns, {len(matrix)} rows",
            expected="samples that differ",
            hint="were they taken at the first position?",
        )
    made = np.empty((len(matrix), int(varied.sum())), matrix.dtype)
    for place in blocks:
        scaled = (matrix[place][:, varied] - mean[varied]) / deviation[varied]
        length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
        made[place] = scaled / np.where(length > 0, length, 1.0)
    return made


def answer_features(
    policy: Policy, parts: Sequence[Parts], *, tokens: int = _TOKENS, dtype: torch.dtype | None = None
) -> NDArray[np.float32]:
    """The mean of the model's last hidden states at the tokens of each answer, `[n, hidden]`.

    The states are those that the model's head reads, at the answer's tokens themselves. The first position is never
    among them: its state is the same for every sample.

    Args:
        parts: sequences whose learning weights say which tokens are the answer's.
        tokens: most tokens of a forward, padding included. dtype: bfloat16 for an autocast forward; None: float32.
    Raises:
        NothingToLearn: a sequence without answer tokens. BatchMismatch: one that is a tree. DeviceMemory: a forward
            does not fit.
    """
    segments = [(places, np.zeros_like(places)) for places in map(answer_places, parts)]
    found = _pooled(policy, parts, segments, tokens=tokens, dtype=dtype)
    return np.concatenate(found) if found else np.zeros((0, int(policy.model.config.hidden_size)), np.float32)


def span_features(
    policy: Policy, parts: Sequence[Parts], *, tokens: int = _TOKENS, dtype: torch.dtype | None = None
) -> list[NDArray[np.float32]]:
    """The same mean over the tokens of every span: for each sequence `[S, hidden]`, spans as in `answer_spans`."""
    segments = [(answer_places(part), answer_spans(part)) for part in parts]
    return _pooled(policy, parts, segments, tokens=tokens, dtype=dtype)


def _pooled(
    policy: Policy, parts: Sequence[Parts], segments: _Segments, *, tokens: int, dtype: torch.dtype | None
) -> list[NDArray[np.float32]]:
    import torch

    from evolvent.learn.forward import calm, fitting
    from evolvent.learn.packing import bucket

    model = policy.model
    _refuse_trees(parts)
    lengths = [int(places[-1]) + 1 for places, _ in segments]
    found: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(parts)
    low = torch.autocast(model.device.type, dtype or torch.bfloat16, enabled=dtype not in (None, torch.float32))
    with torch.inference_mode(), calm(model), low:
        for group in bucket(lengths, tokens, rng=np.random.default_rng(0)):
            ids = np.zeros((len(group), max(lengths[sample] for sample in group)), np.int64)
            for row, sample in enumerate(group):
                ids[row, : lengths[sample]] = parts[sample].ids[: lengths[sample]]
            with fitting(ids.shape, "lower tokens"), _read_by(model.get_output_embeddings()) as read:
                model(input_ids=torch.from_numpy(ids).to(model.device), use_cache=False)
            states = read[0][:, -ids.shape[1] :].float()  # prompt tuning puts tokens before the first
            for row, sample in enumerate(group):
                places, numbers = (torch.from_numpy(each).to(model.device) for each in segments[sample])
                sums = states.new_zeros(int(numbers.max()) + 1, states.shape[-1])
                sums.index_add_(0, numbers, states[row, places])
                found[sample] = (sums / numbers.bincount()[:, None]).cpu().numpy()
    return found


def _refuse_trees(parts: Sequence[Parts]) -> None:
    for part in parts:
        if part.parent is not None:
            raise BatchMismatch(
                f"trajectory {part.trajectory!r} is a tree, its answers have no one end",
                hint="take the features of its chains",
            )


@contextmanager
def _read_by(head: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Inside, keeps the states `[B, T, H]` that a model's head reads, and spares the head its work."""
    kept: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        kept.append(arguments[0])
        return (arguments[0][:, :0], *arguments[1:])

    hook = head.register_forward_pre_hook(keep, prepend=True)
    try:
        yield kept
    finally:
        hook.remove()

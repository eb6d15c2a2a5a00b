"""Difficulty of samples for the policy to be trained: the likelihood of an answer, whole or line by line.

Scores are functions of given log-probabilities. `answer_logprobs` computes these with the forward that training
uses, over the token ids of training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, NonFinite, NothingToLearn

if TYPE_CHECKING:
    import torch

    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.models.policy import Policy

__all__ = ["answer_logprobs", "answer_positions", "answer_spans", "line_spans", "mean_logprob_score", "split_by_lines"]

_ROUNDING = 1e-3  # a log-probability in half precision may come out this much above 0


def mean_logprob_score(
    logprobs: Sequence[ArrayLike], *, spans: Sequence[ArrayLike] | None = None
) -> NDArray[np.float64]:
    """Computes how easy each answer is for a model, `[n]` in 0..1: the geometric mean of its token probabilities.

    `s_i = exp((1 / T) sum_t log p(y_t | x, y_<t))` (P3, arXiv 2408.05541). With spans: the mean of the scores of
    the spans, so that a long line weighs as much as a short one. Sums are of log-probabilities in float64: a
    product of probabilities would underflow to 0 after some hundred tokens.

    Args:
        logprobs: For every answer `[T]`. Log-probabilities of its tokens; -inf is a probability of 0.
        spans: For every answer `[T]`. Number of the span of each token.
    Raises:
        NothingToLearn: an answer without tokens. BatchMismatch: spans of another length, or log-probabilities above
            0. NonFinite: NaN. All name the sample.
    """
    if spans is not None and len(spans) != len(logprobs):
        raise BatchMismatch("spans and log-probabilities differ in length", value=len(spans), expected=len(logprobs))
    scores = np.zeros(len(logprobs))
    for sample, sample_logprobs in enumerate(logprobs):
        values = _check_logprobs(np.asarray(sample_logprobs, np.float64), sample)
        if spans is None:
            scores[sample] = np.exp(values.mean())
            continue
        numbers = np.asarray(spans[sample])
        if numbers.shape != values.shape:
            raise BatchMismatch(
                f"the spans of sample {sample} do not fit its log-probabilities",
                value=numbers.shape,
                expected=values.shape,
            )
        _, span_index = np.unique(numbers, return_inverse=True)
        scores[sample] = np.exp(np.bincount(span_index, values) / np.bincount(span_index)).mean()
    return scores


def _check_logprobs(values: NDArray[np.float64], sample: int) -> NDArray[np.float64]:
    if values.ndim != 1 or not len(values):
        raise NothingToLearn(
            f"sample {sample} has no answer tokens", value=f"shape {values.shape}", expected="one number per token"
        )
    if np.isnan(values).any():
        raise NonFinite(f"a log-probability of sample {sample} is NaN", value=f"token {np.isnan(values).argmax()}")
    if values.max() > _ROUNDING:
        raise BatchMismatch(
            f"a log-probability of sample {sample} is above 0",
            value=float(values.max()),
            hint="give log-probabilities, not probabilities",
        )
    return values


def answer_positions(sequence: TokenSequence) -> NDArray[np.int64]:
    """Returns the positions of the answer tokens in a sequence: those with a learning weight, never position 0.

    Raises:
        NothingToLearn: there is none; names the trajectory.
    """
    positions = 1 + np.flatnonzero(sequence.weight[1:])
    if not len(positions):
        raise NothingToLearn(
            f"trajectory {sequence.trajectory!r} has no answer tokens",
            value=f"{len(sequence)} tokens",
            expected="a nonzero learning weight after the first token",
        )
    return positions


def answer_spans(sequence: TokenSequence) -> NDArray[np.int64]:
    """Returns the span numbers of the answer tokens, `[A]`, counted from 0 in the order in which the spans begin."""
    _, first, span_index = np.unique(sequence.span[answer_positions(sequence)], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[span_index]


def answer_logprobs(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    max_tokens_per_forward: int | None = None,
    dtype: torch.dtype | None = None,
) -> list[NDArray[np.float32]]:
    """Computes for every sequence the log-probabilities `[A]` of its answer tokens, with the forward of training.

    Args:
        policy: The policy.
        sequences: Sequences; their learning weights mark the answer tokens.
        max_tokens_per_forward: Maximum tokens of a forward.
        dtype: See `rl.scored_rollout.score_sequences`.
    Raises:
        NothingToLearn: a sequence without answer tokens. DeviceMemory: a forward does not fit.
    """
    import torch

    from evolvent.rl.scored_rollout import score_sequences

    positions_by_sequence = [answer_positions(sequence) for sequence in sequences]
    scores = score_sequences(
        policy,
        sequences,
        max_tokens_per_forward=max_tokens_per_forward,
        dtype=torch.float32 if dtype is None else dtype,
    )
    return [columns["logprobs"][positions] for columns, positions in zip(scores, positions_by_sequence, strict=True)]


def line_spans(token_texts: Sequence[str]) -> NDArray[np.int64]:
    """Computes the line of each token of a text, `[T]` from 0, from the texts of the tokens.

    Runs of line breaks separate lines. A token that holds a break ends its line, also where text follows the break
    inside the token; tokens that hold only breaks belong to the line before them.
    """
    lines, line, is_line_ended = np.zeros(len(token_texts), np.int64), 0, False
    for position, token_text in enumerate(token_texts):
        if is_line_ended and token_text.strip("\r\n"):
            line, is_line_ended = line + 1, False
        lines[position] = line
        is_line_ended = is_line_ended or "\n" in token_text or "\r" in token_text
    return lines


def split_by_lines(sequence: TokenSequence, decode: Callable[[int], str]) -> TokenSequence:
    """Returns the sequence with the lines of its answer as spans, numbered through the whole sequence.

    Nothing is tokenized again. Answers that are not adjacent (turns) share no line.

    Args:
        sequence: The sequence.
        decode: Returns the text of one token id.
    Raises:
        NothingToLearn: a sequence without answer tokens.
    """
    positions = answer_positions(sequence)
    spans, num_lines = np.full(len(sequence), -1, np.int32), 0
    for run in np.split(positions, 1 + np.flatnonzero(np.diff(positions) > 1)):
        lines = line_spans([decode(int(sequence.ids[position])) for position in run])
        spans[run] = lines + num_lines
        num_lines += int(lines[-1]) + 1
    return replace(sequence, span=spans)

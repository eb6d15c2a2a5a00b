"""Difficulty, judged by the policy that is to learn: how likely it finds an answer, whole or line by line.

Scores are functions of log-probabilities that are handed in. `answer_logprobs` gets them from a policy by the forward
that training itself uses, over the token ids that are trained on.
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

    from evolvent.learn.token_sequences import Parts
    from evolvent.models.policy import Policy

__all__ = ["answer_logprobs", "answer_places", "answer_spans", "by_lines", "line_spans", "mean_logprob_score"]

_ROUNDING = 1e-3  # a log-probability in half precision may come out this much above 0


def mean_logprob_score(
    logprobs: Sequence[ArrayLike], *, spans: Sequence[ArrayLike] | None = None
) -> NDArray[np.float64]:
    """How easy each answer is for a model, `[n]` in 0..1: the geometric mean of its tokens' probabilities.

    `s_i = exp((1 / T) sum_t log p(y_t | x, y_<t))` (P3, arXiv 2408.05541). With spans: that of each span, and their
    mean, so that a long line weighs no more than a short one. Sums are of log-probabilities, in float64: a product of
    probabilities would be 0 after some hundred tokens.

    Args:
        logprobs: for every answer, those of its tokens `[T]`; -inf is a probability of 0.
        spans: for every answer, the number of the span that each token belongs to `[T]`.
    Raises:
        NothingToLearn: an answer without tokens. BatchMismatch: spans of another length, or log-probabilities above 0.
            NonFinite: NaN. All name the sample.
    """
    if spans is not None and len(spans) != len(logprobs):
        raise BatchMismatch("spans and log-probabilities differ in length", value=len(spans), expected=len(logprobs))
    scores = np.zeros(len(logprobs))
    for sample, given in enumerate(logprobs):
        values = _checked(np.asarray(given, np.float64), sample)
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
        _, place = np.unique(numbers, return_inverse=True)
        scores[sample] = np.exp(np.bincount(place, values) / np.bincount(place)).mean()
    return scores


def _checked(values: NDArray[np.float64], sample: int) -> NDArray[np.float64]:
    if values.ndim != 1 or not len(values):
        raise NothingToLearn(
            f"sample {sample} has no answer tokens", value=f"shape {values.shape}", expected="one number a token"
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


def answer_places(part: Parts) -> NDArray[np.int64]:
    """Where the answer's tokens are in a sequence: those with a learning weight, never position 0.

    Raises:
        NothingToLearn: there is none; names the trajectory.
    """
    places = 1 + np.flatnonzero(part.weight[1:])
    if not len(places):
        raise NothingToLearn(
            f"trajectory {part.trajectory!r} has no answer tokens",
            value=f"{len(part)} tokens",
            expected="a learning weight on some token after the first",
        )
    return places


def answer_spans(part: Parts) -> NDArray[np.int64]:
    """The spans of an answer's tokens, `[A]`, numbered from 0 in the order in which they begin."""
    _, first, place = np.unique(part.span[answer_places(part)], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place]


def answer_logprobs(
    policy: Policy, parts: Sequence[Parts], *, tokens: int | None = None, dtype: torch.dtype | None = None
) -> list[NDArray[np.float32]]:
    """For every sequence the log-probabilities `[A]` of its answer's tokens, by training's own forward.

    Args:
        parts: sequences as they are trained on; their learning weights say which tokens are the answer's.
        tokens: most tokens of a forward. dtype: see `learn.look.look`.
    Raises:
        NothingToLearn: a sequence without answer tokens. DeviceMemory: a forward does not fit.
    """
    import torch

    from evolvent.rl.scoring import look

    places = [answer_places(part) for part in parts]
    found = look(policy, parts, tokens=tokens, dtype=torch.float32 if dtype is None else dtype)
    return [columns["logprobs"][place] for columns, place in zip(found, places, strict=True)]


def line_spans(pieces: Sequence[str]) -> NDArray[np.int64]:
    """The line that each token of a text belongs to, `[T]` from 0, from the text of each token.

    Lines are what runs of line breaks part. A token that holds a break ends its line, also where text follows the
    break inside the token; tokens that hold nothing but breaks belong to the line before them.
    """
    lines, line, ended = np.zeros(len(pieces), np.int64), 0, False
    for place, piece in enumerate(pieces):
        if ended and piece.strip("\r\n"):
            line, ended = line + 1, False
        lines[place] = line
        ended = ended or "\n" in piece or "\r" in piece
    return lines


def by_lines(part: Parts, decode: Callable[[int], str]) -> Parts:
    """The sequence with lines for spans: every line of its answer is one, numbered through the whole sequence.

    Nothing is tokenised anew. Answers that are not next to each other (turns) share no line.

    Args:
        decode: the text of one token id.
    Raises:
        NothingToLearn: a sequence without answer tokens.
    """
    places = answer_places(part)
    span, before = np.full(len(part), -1, np.int32), 0
    for run in np.split(places, 1 + np.flatnonzero(np.diff(places) > 1)):
        lines = line_spans([decode(int(part.ids[place])) for place in run])
        span[run] = lines + before
        before += int(lines[-1]) + 1
    return replace(part, span=span)

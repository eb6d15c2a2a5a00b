"""Selection of the samples of a pool to learn, and of the spans within a sample, with one form of call.

    select(features, quality, k, rng=rng) -> Selection

`dpp` here and the selectors of `selectors.py` have this form; further settings are keywords, bound by
`functools.partial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.cells import sharded_map
from evolvent.curate.difficulty import answer_positions, answer_spans
from evolvent.curate.features import unit_features
from evolvent.curate.greedy import Selection, greedy_map, restarted_map
from evolvent.errors import BatchMismatch, ConfigError, Problem

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import TokenSequence

__all__ = [
    "Selection",
    "Selector",
    "dpp",
    "greedy_map",
    "mask_spans",
    "restarted_map",
    "select_spans",
    "sharded_map",
    "unit_features",
]


class Selector(Protocol):
    """Selects at most k items of a pool: a pure function of its arguments.

    Args:
        features: `[n, d]`. Features of the items.
        quality: `[n]`. Value that the selector ranks or weighs by; None: all equal.
        k: Number of items; of a smaller pool all items that add something.
        rng: Generator for random choices; most selectors make none.
    Raises:
        NonFinite: NaN or infinity, naming the row. BatchMismatch: lengths that differ. ConfigError: k below 1, or
            no quality where it is needed.
    """

    def __call__(self, features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection: ...


def dpp(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Selects samples as P3 does (arXiv 2408.05541): greedy MAP, restarted on the remaining samples when the rank
    is used up.

    Quality enters the kernel as `diag(s) F F^T diag(s)`. It is never implied: where a pace has already selected by
    difficulty, easiness as quality would prefer easy samples a second time. See `Selector` and `restarted_map`.
    """
    return restarted_map(features, quality, k)


def select_spans(
    features: Sequence[ArrayLike], quality: Sequence[ArrayLike] | None = None, *, share: float
) -> list[NDArray[np.bool_]]:
    """Selects the spans of each sample to learn: a mask `[S]` for every sample.

    The same greedy MAP selects `ceil(share * S)` spans of a sample. It stops where the rank is used up: a span that
    repeats others adds nothing and is left out. A sample without any selectable span keeps all its spans.

    Args:
        features: For every sample `[S, d]`. Features of its spans, normalized over the whole pool (`unit_features` of
            all together): one sample has too few spans to normalize by.
        quality: For every sample `[S]`; None: 1 each.
        share: Share of spans, above 0, at most 1.
    Raises:
        ConfigError: a bad share. BatchMismatch: lists of different length, a sample without spans. NonFinite: see
            `greedy_map`.
    """
    if not 0 < share <= 1:
        raise ConfigError([Problem("share", f"got {share}, expected above 0 and at most 1")])
    if quality is not None and len(quality) != len(features):
        raise BatchMismatch("qualities and features differ in length", value=len(quality), expected=len(features))
    masks = []
    for sample, sample_features in enumerate(features):
        matrix = np.asarray(sample_features)
        if not len(matrix):
            raise BatchMismatch(f"sample {sample} has no spans", value=matrix.shape, expected="one row per span")
        count = int(np.ceil(share * len(matrix) - 1e-9))  # a share of 2/3 of 3 is 2, whatever rounding says
        selection = greedy_map(matrix, None if quality is None else quality[sample], max(1, count))
        is_selected = np.zeros(len(matrix), np.bool_)
        is_selected[selection.indices] = True
        masks.append(is_selected if is_selected.any() else ~is_selected)
    return masks


def mask_spans(sequence: TokenSequence, is_selected: NDArray[np.bool_]) -> TokenSequence:
    """Sets the weight of unselected spans of a sequence to 0; other weights stay.

    Args:
        sequence: The sequence.
        is_selected: `[S]`. Whether each span is selected, in the order of `answer_spans`.
    Raises:
        BatchMismatch: another number of spans.
    """
    spans = answer_spans(sequence)
    if is_selected.shape != (int(spans.max()) + 1,):
        raise BatchMismatch(
            f"the selection does not match the spans of trajectory {sequence.trajectory!r}",
            value=is_selected.shape,
            expected=(int(spans.max()) + 1,),
        )
    weight = sequence.weight.copy()
    weight[answer_positions(sequence)[~is_selected[spans]]] = 0.0
    return replace(sequence, weight=weight)

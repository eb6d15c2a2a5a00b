"""Selection: which samples of a pool are learned, and which spans within one, behind one form of call.

    select(features, quality, k, rng=rng) -> Selection

`dpp` here and the others in `selectors.py` are of it; settings of their own are keywords, bound by `functools.partial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.cells import sharded_map
from evolvent.curate.difficulty import answer_places, answer_spans
from evolvent.curate.features import unit_features
from evolvent.curate.greedy import Selection, greedy_map, restarted_map
from evolvent.errors import BatchMismatch, ConfigError, Problem

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import Parts

__all__ = [
    "Selection",
    "Selector",
    "dpp",
    "greedy_map",
    "restarted_map",
    "sharded_map",
    "span_choice",
    "unit_features",
    "with_spans",
]


class Selector(Protocol):
    """Chooses at most k items of a pool: a pure function of its arguments.

    Args:
        features: `[n, d]`. quality: `[n]`, what the selector ranks or weighs by; None: all alike.
        k: how many; of a pool of fewer all that add something. rng: for what is drawn; most selectors draw nothing.
    Raises:
        NonFinite: NaN or infinity, naming the row. BatchMismatch: lengths that differ. ConfigError: k below 1, or no
            quality where it is needed.
    """

    def __call__(self, features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection: ...


def dpp(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """P3's choice between samples (arXiv 2408.05541): greedy MAP, begun again on the rest where the rank runs out.

    Quality enters the kernel as `diag(s) F F^T diag(s)`. It is given, never implied: where a pace has already chosen
    by difficulty, easiness as quality would prefer the easy a second time. See `Selector` and `restarted_map`.
    """
    return restarted_map(features, quality, k)


def span_choice(
    features: Sequence[ArrayLike], quality: Sequence[ArrayLike] | None = None, *, share: float
) -> list[NDArray[np.bool_]]:
    """The choice within samples: which spans of each are learned, `[S]` for every sample.

    The same greedy MAP among the spans of one sample, `ceil(share * S)` of them. It stops where the rank is used up: a
    span that repeats others adds nothing and is left. A sample of which nothing could be chosen keeps all its spans.

    Args:
        features: for every sample those of its spans, `[S, d]`, normalised over the whole pool (`unit_features` of all
            together): within one sample there are too few to normalise by.
        quality: for every sample `[S]`; None: 1 each.
        share: above 0, at most 1.
    Raises:
        ConfigError: a bad share. BatchMismatch: lists of different length, a sample without spans. NonFinite: see
            `greedy_map`.
    """
    if not 0 < share <= 1:
        raise ConfigError([Problem("share", f"{share} of the spans cannot be kept", "use a share above 0, at most 1")])
    if quality is not None and len(quality) != len(features):
        raise BatchMismatch("qualities and features differ in length", value=len(quality), expected=len(features))
    kept = []
    for sample, given in enumerate(features):
        matrix = np.asarray(given)
        if not len(matrix):
            raise BatchMismatch(f"sample {sample} has no spans", value=matrix.shape, expected="a row a span")
        count = int(np.ceil(share * len(matrix) - 1e-9))  # a share of 2/3 of 3 is 2, whatever rounding says
        found = greedy_map(matrix, None if quality is None else quality[sample], max(1, count))
        chosen = np.zeros(len(matrix), np.bool_)
        chosen[found.indices] = True
        kept.append(chosen if chosen.any() else ~chosen)
    return kept


def with_spans(part: Parts, chosen: NDArray[np.bool_]) -> Parts:
    """The sequence with weight 0 on the spans that were not chosen; the others' weights stay.

    Args:
        chosen: `[S]`, a value for each span in the order of `answer_spans`.
    Raises:
        BatchMismatch: another number of spans.
    """
    spans = answer_spans(part)
    if chosen.shape != (int(spans.max()) + 1,):
        raise BatchMismatch(
            f"a choice that does not fit the spans of trajectory {part.trajectory!r}",
            value=chosen.shape,
            expected=(int(spans.max()) + 1,),
        )
    weight = part.weight.copy()
    weight[answer_places(part)[~chosen[spans]]] = 0.0
    return replace(part, weight=weight)

"""Other ways to choose k of n samples, each from its paper, all of the form of `select.Selector`.

    random_choice      k at random
    top_quality        the k of highest quality
    ifd                instruction-following difficulty           Li et al. 2023, arXiv 2308.12032
    rho_loss           reducible held-out loss                    Mindermann et al. 2022, arXiv 2206.07137
    d2_pruning         messages on a graph of neighbours          Maharana et al. 2023, arXiv 2310.07931
    facility_location  each sample close to a chosen one          Wei et al. 2015; lazy greedy, Minoux 1978
    k_centre           no sample far from the chosen ones         Sener and Savarese 2018, arXiv 1708.00489

Ties go to the lowest index. `ifd_scores` and `reducible_losses` make the quality that `ifd` and `rho_loss` rank by.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.greedy import Selection, checked_features, checked_k, checked_quality, product
from evolvent.errors import BatchMismatch, ConfigError, NonFinite, NothingToLearn, Problem

__all__ = [
    "d2_pruning",
    "facility_location",
    "ifd",
    "ifd_scores",
    "k_centre",
    "random_choice",
    "reducible_losses",
    "rho_loss",
    "top_quality",
]

_ROWS = 1 << 10


def random_choice(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """k different items, every set of k equally likely; features and quality are not looked at. Gains are 0."""
    checked_k(k)
    count = len(checked_features(features))
    indices = rng.permutation(count)[:k].astype(np.int64)
    return Selection(indices, np.zeros(len(indices)), "k" if k <= count else "empty")


def top_quality(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """The k items of highest quality, which may be negative here. Gains are the quality. See `Selector`."""
    checked_k(k)
    values = _needed(quality, len(checked_features(features)))
    return _top(values, np.arange(len(values)), k)


def ifd(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """The k items of highest instruction-following difficulty below 1; where there are fewer, those ("rank").

    At 1 and above the instruction does not help the model to the answer, which the paper takes for a sign that the two
    do not belong together.

    Args:
        quality: `[n]`, of `ifd_scores`.
    """
    checked_k(k)
    values = _needed(quality, len(checked_features(features)))
    found = _top(values, np.flatnonzero(values < 1), k)
    return found if len(found.indices) in (k, len(values)) else Selection(found.indices, found.gains, "rank")


def ifd_scores(answered: Sequence[ArrayLike], alone: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Instruction-following difficulty `[n]`: the answer's mean loss given the instruction over that without it.

    Li et al. 2023, equation 4: `IFD = s(A | Q) / s(A)`, s the mean of -log p over the answer's tokens.

    Args:
        answered: for every sample, log-probabilities of the answer's tokens after the instruction. alone: without it.
    Raises:
        NothingToLearn: an answer without tokens. BatchMismatch: lists of different length. NonFinite: a loss that is
            not finite, or an answer that is certain on its own, so that there is nothing to divide by.
    """
    if len(answered) != len(alone):
        raise BatchMismatch(
            "answers with and without instruction differ in number", value=len(answered), expected=len(alone)
        )
    given, own = _losses(answered), _losses(alone)
    wrong = np.flatnonzero(~(np.isfinite(given) & np.isfinite(own) & (own > 0)))
    if len(wrong):
        first = int(wrong[0])
        raise NonFinite(
            f"sample {first} has no ratio of losses",
            value=f"{given[first]} / {own[first]}",
            expected="finite losses, the second above 0",
        )
    return given / own


def reducible_losses(losses: ArrayLike, irreducible: ArrayLike) -> NDArray[np.float64]:
    """What there is still to learn of each sample, `[n]`: the model's loss less that of one trained on held-out data.

    Mindermann et al. 2022, equation 3, `L[y | x; D_t] - L[y | x; D_ho]`. Noise is hard for both, what is known is easy
    for both.

    Raises:
        BatchMismatch: losses of different length. NonFinite: NaN or infinity, naming the row.
    """
    first = np.asarray(losses, np.float64)
    now = checked_quality(first, len(np.atleast_1d(first)), negative=True)
    return now - checked_quality(irreducible, len(now), negative=True)


def rho_loss(
    features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator, share: float = 0.1
) -> Selection:
    """Of a large batch drawn at random the k items with the largest reducible loss (Mindermann et al. 2022, alg. 1).

    Args:
        quality: `[n]`, of `reducible_losses`.
        share: k over the size of the large batch; the paper's is 0.1. The batch is never larger than the pool.
    """
    checked_k(k)
    if not 0 < share <= 1:
        raise ConfigError([Problem("share", f"k cannot be {share} of a batch", "use a share above 0, at most 1")])
    values = _needed(quality, len(checked_features(features)))
    batch = rng.permutation(len(values))[: max(k, round(k / share))]
    return _top(values, np.sort(batch), k)


def d2_pruning(
    features: ArrayLike,
    quality: ArrayLike | None,
    k: int,
    *,
    rng: Generator,
    neighbours: int = 10,
    forward: float = 1.0,
    reverse: float = 1.0,
) -> Selection:
    """Difficulty and diversity by messages on the undirected graph of nearest neighbours (Maharana et al. 2023).

    Forward: `x_i = s_i + sum_j exp(-forward |f_i - f_j|^2) s_j` over neighbours j. Then k times the largest x is
    taken, and its neighbours' are lowered: `x_j -= exp(-reverse |f_i - f_j|^2) x_i`. Gains are x when taken.

    Args:
        quality: `[n]`, the paper's difficulty s; None: 1 each. It may be negative.
        neighbours: nearest ones of each item that it has an edge to. forward, reverse: gamma_f and gamma_r, at least 0.
    """
    checked_k(k)
    matrix = checked_features(features, finite=True).astype(np.float64)
    if neighbours < 1 or not (forward >= 0 and reverse >= 0):
        what = f"{neighbours} neighbours, gammas {forward} and {reverse}"
        raise ConfigError([Problem("d2_pruning", what, "use at least 1 neighbour and gammas of at least 0")])
    scores = np.ones(len(matrix)) if quality is None else checked_quality(quality, len(matrix), negative=True)
    edges, squares = _graph(matrix, neighbours)
    messages = np.exp(-forward * squares) * scores[edges[:, 1]]
    values = scores + np.bincount(edges[:, 0], messages, len(scores))
    begins = np.searchsorted(edges[:, 0], np.arange(len(scores) + 1))
    indices, gains = [], []
    open_ = np.ones(len(scores), np.bool_)
    for _ in range(min(k, len(scores))):
        best = int(np.where(open_, values, -np.inf).argmax())
        indices.append(best)
        gains.append(float(values[best]))
        open_[best] = False
        own = slice(begins[best], begins[best + 1])
        values[edges[own, 1]] -= np.exp(-reverse * squares[own]) * values[best]
    return _selection(indices, gains, k, len(scores))


def facility_location(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Greedy for `f(S) = sum_i q_i max_{j in S} max(0, f_i . f_j)`: every item has a chosen one like it.

    Lazy (Minoux 1978): gains only shrink, so an item is looked at again only when its last known gain is the largest.
    The n x n similarities are made in pieces and never kept; time O(n^2 d) at the start. Gains are those of f.

    Args:
        quality: `[n]` of at least 0, how much it matters that an item is represented; None: 1 each.
    """
    checked_k(k)
    matrix = checked_features(features, finite=True).astype(np.float64)
    weights = np.ones(len(matrix)) if quality is None else checked_quality(quality, len(matrix))
    covered = np.zeros(len(matrix))
    first = np.concatenate([np.zeros(0), *(product(weights, np.maximum(block, 0)) for block in _products(matrix))])
    heap = [(-gain, item, 0) for item, gain in enumerate(first.tolist())]  # (-gain, item, how many were chosen then)
    heapq.heapify(heap)
    indices: list[int] = []
    gains: list[float] = []
    while heap and len(indices) < k:
        bound, item, known = heapq.heappop(heap)
        if known < len(indices):
            more = float(product(weights, np.maximum(product(matrix, matrix[item]) - covered, 0)))
            heapq.heappush(heap, (-more, item, len(indices)))
            continue
        indices.append(item)
        gains.append(-bound)
        covered = np.maximum(covered, product(matrix, matrix[item]))
    return _selection(indices, gains, k, len(matrix))


def k_centre(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Each time the item farthest from the chosen ones (Gonzalez 1985): at most twice the least possible radius.

    Gains are the distance to the nearest chosen item, infinity for the first. It stops ("rank") when all that is left
    equals a chosen item.

    Args:
        quality: the item of highest quality is the first; None: one drawn.
    """
    checked_k(k)
    matrix = checked_features(features, finite=True).astype(np.float64)
    values = None if quality is None else checked_quality(quality, len(matrix), negative=True)
    if not len(matrix):
        return _selection([], [], k, 0)
    item = int(rng.integers(len(matrix))) if values is None else int(values.argmax())
    indices, gains = [item], [np.inf]
    near = np.square(matrix - matrix[item]).sum(axis=1)
    while len(indices) < k and near.max() > 0:
        item = int(near.argmax())
        indices.append(item)
        gains.append(float(np.sqrt(near[item])))
        near = np.minimum(near, np.square(matrix - matrix[item]).sum(axis=1))
    found = _selection(indices, gains, k, len(matrix))
    return found if len(indices) in (k, len(matrix)) else Selection(found.indices, found.gains, "rank")


def _needed(quality: ArrayLike | None, count: int) -> NDArray[np.float64]:
    if quality is None:
        raise ConfigError([Problem("quality", f"{count} items and nothing to rank them by", "give one number an item")])
    return checked_quality(quality, count, negative=True)


def _top(values: NDArray[np.float64], among: NDArray[np.int64], k: int) -> Selection:
    """The k highest of the items `among`, ascending; equal ones by index."""
    indices = among[np.argsort(-values[among], kind="stable")[:k]]
    return Selection(indices, values[indices], "k" if len(indices) == k else "empty")


def _selection(indices: Sequence[int], gains: Sequence[float], k: int, count: int) -> Selection:
    return Selection(np.array(indices, np.int64), np.array(gains, np.float64), "k" if k <= count else "empty")


def _losses(logprobs: Sequence[ArrayLike]) -> NDArray[np.float64]:
    rows = [np.asarray(each, np.float64) for each in logprobs]
    empty = next((sample for sample, row in enumerate(rows) if row.ndim != 1 or not len(row)), None)
    if empty is not None:
        raise NothingToLearn(f"sample {empty} has no answer tokens", value=f"shape {rows[empty].shape}")
    return np.array([0.0 - row.mean() for row in rows])


def _products(matrix: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """The similarities `[n, m]` of all items to some, block by block."""
    for at in range(0, len(matrix), _ROWS):
        yield product(matrix, matrix[at : at + _ROWS].T)


def _graph(matrix: NDArray[np.float64], neighbours: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Edges `[e, 2]` in both directions, by first end, of the graph of nearest neighbours; squared lengths `[e]`."""
    count = len(matrix)
    most = min(neighbours, count - 1)
    if most < 1:
        return np.zeros((0, 2), np.int64), np.zeros(0)
    lengths = np.einsum("ij,ij->i", matrix, matrix)
    ends = []
    for at in range(0, count, _ROWS):
        squares = lengths[None] - 2 * product(matrix[at : at + _ROWS], matrix.T) + lengths[at : at + _ROWS, None]
        squares[np.arange(len(squares)), np.arange(at, at + len(squares))] = np.inf
        ends.append(np.argsort(squares, axis=1, kind="stable")[:, :most])
    nearest = np.concatenate(ends)
    pairs = np.stack([np.repeat(np.arange(count), most), nearest.ravel()], axis=1)
    edges = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).astype(np.int64)
    exact = np.concatenate(
        [
            np.zeros(0),
            *(
                np.square(matrix[edges[at : at + _ROWS, 0]] - matrix[edges[at : at + _ROWS, 1]]).sum(axis=1)
                for at in range(0, len(edges), _ROWS)
            ),
        ]
    )
    return edges, exact

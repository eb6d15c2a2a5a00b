"""Other selectors of k of n samples, each from its paper, in the form of `select.Selector`.

    random_choice      k at random
    top_quality        the k of highest quality
    ifd                instruction-following difficulty           Li et al. 2023, arXiv 2308.12032
    rho_loss           reducible held-out loss                    Mindermann et al. 2022, arXiv 2206.07137
    d2_pruning         messages on a graph of neighbors           Maharana et al. 2023, arXiv 2310.07931
    facility_location  each sample close to a selected one        Wei et al. 2015; lazy greedy, Minoux 1978
    k_centre           no sample far from the selected ones       Sener and Savarese 2018, arXiv 1708.00489

Ties go to the lowest index. `ifd_scores` and `reducible_losses` compute the quality that `ifd` and `rho_loss`
use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.greedy import Selection, check_features, check_k, check_quality, multiply
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
    """Selects k different items, every set of k equally likely; features and quality are ignored. Gains are 0."""
    check_k(k)
    count = len(check_features(features))
    indices = rng.permutation(count)[:k].astype(np.int64)
    return Selection(indices, np.zeros(len(indices)), "k" if k <= count else "empty")


def top_quality(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Selects the k items of highest quality, which may be negative. Gains are the quality. See `Selector`."""
    check_k(k)
    values = _require_quality(quality, len(check_features(features)))
    return _select_top(values, np.arange(len(values)), k)


def ifd(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Selects the k items of highest instruction-following difficulty below 1; where there are fewer, those
    ("rank").

    At 1 and above the instruction does not help the model to the answer; the paper takes this as a sign that the
    two do not belong together.

    Args:
        quality: `[n]`. Result of `ifd_scores`.
    """
    check_k(k)
    values = _require_quality(quality, len(check_features(features)))
    selection = _select_top(values, np.flatnonzero(values < 1), k)
    return (
        selection
        if len(selection.indices) in (k, len(values))
        else Selection(selection.indices, selection.gains, "rank")
    )


def ifd_scores(with_instruction: Sequence[ArrayLike], without_instruction: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Computes instruction-following difficulty `[n]`: the answer's mean loss with the instruction over that
    without it.

    Li et al. 2023, equation 4: `IFD = s(A | Q) / s(A)`, s the mean of -log p over the answer's tokens.

    Args:
        with_instruction: For every sample `[T]`. Log-probabilities of the answer's tokens after the instruction.
        without_instruction: For every sample `[T]`. Log-probabilities of the answer's tokens without it.
    Raises:
        NothingToLearn: an answer without tokens. BatchMismatch: lists of different length. NonFinite: a loss that
            is not finite, or an answer with loss 0 without the instruction, so that the ratio is undefined.
    """
    if len(with_instruction) != len(without_instruction):
        raise BatchMismatch(
            "answers with and without instruction differ in number",
            value=len(with_instruction),
            expected=len(without_instruction),
        )
    conditional_losses, answer_losses = _mean_losses(with_instruction), _mean_losses(without_instruction)
    invalid = np.flatnonzero(~(np.isfinite(conditional_losses) & np.isfinite(answer_losses) & (answer_losses > 0)))
    if len(invalid):
        first = int(invalid[0])
        raise NonFinite(
            f"sample {first} has an undefined loss ratio",
            value=f"{conditional_losses[first]} / {answer_losses[first]}",
            expected="finite losses, the second above 0",
        )
    return conditional_losses / answer_losses


def reducible_losses(losses: ArrayLike, irreducible: ArrayLike) -> NDArray[np.float64]:
    """Computes the reducible loss of each sample, `[n]`: the model's loss minus that of a model trained on
    held-out data.

    Mindermann et al. 2022, equation 3, `L[y | x; D_t] - L[y | x; D_ho]`. Noise is hard for both models, learned
    samples are easy for both.

    Args:
        losses: `[n]`. Losses of the model.
        irreducible: `[n]`. Losses of the model trained on held-out data.
    Raises:
        BatchMismatch: losses of different length. NonFinite: NaN or infinity, naming the row.
    """
    model_losses = np.asarray(losses, np.float64)
    checked_losses = check_quality(model_losses, len(np.atleast_1d(model_losses)), negative=True)
    return checked_losses - check_quality(irreducible, len(checked_losses), negative=True)


def rho_loss(
    features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator, share: float = 0.1
) -> Selection:
    """Selects, of a random large batch, the k items with the largest reducible loss (Mindermann et al. 2022, alg.
    1).

    Args:
        quality: `[n]`. Result of `reducible_losses`.
        share: k over the size of the large batch; the paper's is 0.1. The batch is never larger than the pool.
    """
    check_k(k)
    if not 0 < share <= 1:
        raise ConfigError([Problem("share", f"got {share} of a batch, expected above 0 and at most 1")])
    values = _require_quality(quality, len(check_features(features)))
    batch = rng.permutation(len(values))[: max(k, round(k / share))]
    return _select_top(values, np.sort(batch), k)


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
    """Scores difficulty and diversity by messages on the undirected nearest-neighbor graph (Maharana et al. 2023),
    takes k.

    Forward: `x_i = s_i + sum_j exp(-forward |f_i - f_j|^2) s_j` over neighbors j. Then k times the largest x is
    taken, and those of its neighbors are lowered: `x_j -= exp(-reverse |f_i - f_j|^2) x_i`. Gains are x when taken.

    Args:
        quality: `[n]`. The paper's difficulty s; None: 1 each. It may be negative.
        neighbours: Number of nearest items to which each item has an edge.
        forward, reverse: gamma_f and gamma_r, at least 0.
    """
    check_k(k)
    matrix = check_features(features, finite=True).astype(np.float64)
    if neighbours < 1 or not (forward >= 0 and reverse >= 0):
        problem = f"got {neighbours} neighbors, gammas {forward} and {reverse}"
        raise ConfigError([Problem("d2_pruning", problem, "use at least 1 neighbor and gammas of at least 0")])
    scores = np.ones(len(matrix)) if quality is None else check_quality(quality, len(matrix), negative=True)
    edges, squares = _build_graph(matrix, neighbours)
    messages = np.exp(-forward * squares) * scores[edges[:, 1]]
    values = scores + np.bincount(edges[:, 0], messages, len(scores))
    edge_offsets = np.searchsorted(edges[:, 0], np.arange(len(scores) + 1))
    indices, gains = [], []
    is_open = np.ones(len(scores), np.bool_)
    for _ in range(min(k, len(scores))):
        best = int(np.where(is_open, values, -np.inf).argmax())
        indices.append(best)
        gains.append(float(values[best]))
        is_open[best] = False
        edge_slice = slice(edge_offsets[best], edge_offsets[best + 1])
        values[edges[edge_slice, 1]] -= np.exp(-reverse * squares[edge_slice]) * values[best]
    return _selection(indices, gains, k, len(scores))


def facility_location(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Selects greedily for `f(S) = sum_i q_i max_{j in S} max(0, f_i . f_j)`: every item is similar to a selected
    one.

    Lazy (Minoux 1978): gains only shrink, so an item is evaluated again only when its last known gain is the
    largest. The n x n similarities are computed in blocks and never kept; time O(n^2 d) at the start. Gains are
    those of f.

    Args:
        quality: `[n]`, at least 0. Weight of representing each item; None: 1 each.
    """
    check_k(k)
    matrix = check_features(features, finite=True).astype(np.float64)
    weights = np.ones(len(matrix)) if quality is None else check_quality(quality, len(matrix))
    covered = np.zeros(len(matrix))
    first = np.concatenate(
        [np.zeros(0), *(multiply(weights, np.maximum(block, 0)) for block in _iterate_products(matrix))]
    )
    heap = [(-gain, item, 0) for item, gain in enumerate(first.tolist())]  # (-gain, item, how many were chosen then)
    heapq.heapify(heap)
    indices: list[int] = []
    gains: list[float] = []
    while heap and len(indices) < k:
        negative_gain, item, num_selected = heapq.heappop(heap)
        if num_selected < len(indices):
            gain_now = float(multiply(weights, np.maximum(multiply(matrix, matrix[item]) - covered, 0)))
            heapq.heappush(heap, (-gain_now, item, len(indices)))
            continue
        indices.append(item)
        gains.append(-negative_gain)
        covered = np.maximum(covered, multiply(matrix, matrix[item]))
    return _selection(indices, gains, k, len(matrix))


def k_centre(features: ArrayLike, quality: ArrayLike | None, k: int, *, rng: Generator) -> Selection:
    """Selects each time the item farthest from the selected ones (Gonzalez 1985): at most twice the least possible
    radius.

    Gains are the distance to the nearest selected item, infinity for the first. The selection stops ("rank") when
    all remaining items equal a selected item.

    Args:
        quality: `[n]`. The item of highest quality is the first; None: a random one.
    """
    check_k(k)
    matrix = check_features(features, finite=True).astype(np.float64)
    values = None if quality is None else check_quality(quality, len(matrix), negative=True)
    if not len(matrix):
        return _selection([], [], k, 0)
    item = int(rng.integers(len(matrix))) if values is None else int(values.argmax())
    indices, gains = [item], [np.inf]
    squared_distances = np.square(matrix - matrix[item]).sum(axis=1)
    while len(indices) < k and squared_distances.max() > 0:
        item = int(squared_distances.argmax())
        indices.append(item)
        gains.append(float(np.sqrt(squared_distances[item])))
        squared_distances = np.minimum(squared_distances, np.square(matrix - matrix[item]).sum(axis=1))
    selection = _selection(indices, gains, k, len(matrix))
    return selection if len(indices) in (k, len(matrix)) else Selection(selection.indices, selection.gains, "rank")


def _require_quality(quality: ArrayLike | None, count: int) -> NDArray[np.float64]:
    if quality is None:
        raise ConfigError(
            [Problem("quality", f"{count} items have no quality to rank them by", "give one number per item")]
        )
    return check_quality(quality, count, negative=True)


def _select_top(values: NDArray[np.float64], candidates: NDArray[np.int64], k: int) -> Selection:
    """Selects the k highest of ascending candidates; equal ones by index."""
    indices = candidates[np.argsort(-values[candidates], kind="stable")[:k]]
    return Selection(indices, values[indices], "k" if len(indices) == k else "empty")


def _selection(indices: Sequence[int], gains: Sequence[float], k: int, count: int) -> Selection:
    return Selection(np.array(indices, np.int64), np.array(gains, np.float64), "k" if k <= count else "empty")


def _mean_losses(logprobs: Sequence[ArrayLike]) -> NDArray[np.float64]:
    rows = [np.asarray(token_logprobs, np.float64) for token_logprobs in logprobs]
    empty = next((sample for sample, row in enumerate(rows) if row.ndim != 1 or not len(row)), None)
    if empty is not None:
        raise NothingToLearn(f"sample {empty} has no answer tokens", value=f"shape {rows[empty].shape}")
    return np.array([0.0 - row.mean() for row in rows])


def _iterate_products(matrix: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yields the similarities `[n, m]` of all items to a block of items, block by block."""
    for start in range(0, len(matrix), _ROWS):
        yield multiply(matrix, matrix[start : start + _ROWS].T)


def _build_graph(matrix: NDArray[np.float64], neighbours: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Builds the edges `[e, 2]` of the nearest-neighbor graph in both directions, sorted, and squared lengths `[e]`."""
    count = len(matrix)
    num_neighbors = min(neighbours, count - 1)
    if num_neighbors < 1:
        return np.zeros((0, 2), np.int64), np.zeros(0)
    lengths = np.einsum("ij,ij->i", matrix, matrix)
    neighbor_blocks = []
    for start in range(0, count, _ROWS):
        squares = (
            lengths[None] - 2 * multiply(matrix[start : start + _ROWS], matrix.T) + lengths[start : start + _ROWS, None]
        )
        squares[np.arange(len(squares)), np.arange(start, start + len(squares))] = np.inf
        neighbor_blocks.append(np.argsort(squares, axis=1, kind="stable")[:, :num_neighbors])
    nearest = np.concatenate(neighbor_blocks)
    pairs = np.stack([np.repeat(np.arange(count), num_neighbors), nearest.ravel()], axis=1)
    edges = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).astype(np.int64)
    squared_lengths = np.concatenate(
        [
            np.zeros(0),
            *(
                np.square(matrix[edges[start : start + _ROWS, 0]] - matrix[edges[start : start + _ROWS, 1]]).sum(axis=1)
                for start in range(0, len(edges), _ROWS)
            ),
        ]
    )
    return edges, squared_lengths

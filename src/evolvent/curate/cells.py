"""Selection in cells: the pool is divided, and each cell chooses among its own items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.greedy import (
    GreedySelector,
    Selection,
    Stopped,
    check_features,
    check_k,
    check_quality,
    multiply,
    restarted_map,
)
from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.trajectory import sample_seed

__all__ = ["allocate_quotas", "hash_cells", "kmeans_cells", "sharded_map"]

_ROWS = 1 << 14
_SAMPLE = 256  # points a center that the centers are fitted on


def hash_cells(ids: Sequence[str], count: int) -> NDArray[np.int64]:
    """Assigns every id a cell `[n]` in 0..count - 1 by its hash: even sizes, and the same on every machine.

    Raises:
        ConfigError: count below 1.
    """
    _check_count(count)
    return np.array([sample_seed("cell", item_id) % count for item_id in ids], np.int64)


def kmeans_cells(features: ArrayLike, count: int, *, rng: Generator, rounds: int = 10) -> NDArray[np.int64]:
    """Assigns every item a cell `[n]`: its nearest center by k-means (Lloyd 1982), initialized by k-means++
    (Arthur 2007).

    Centers are fitted on a random sample of at most 256 items per center; then every item joins its nearest center,
    the first among equal distances. There may be fewer cells than requested where items coincide.

    Args:
        features: `[n, d]`. Features of the items.
        count: Number of cells.
        rng: Generator for the sample and the initialization.
        rounds: Lloyd iterations.
    Raises:
        ConfigError: count below 1. BatchMismatch, NonFinite: bad features.
    """
    _check_count(count)
    matrix = check_features(features, finite=True)
    if not len(matrix):
        return np.zeros(0, np.int64)
    sample_indices = np.sort(rng.choice(len(matrix), min(len(matrix), _SAMPLE * count), replace=False))
    points = matrix[sample_indices].astype(np.float64)
    centres = _initialize_centers(points, count, rng)
    for _ in range(rounds):
        cell = _nearest(points, centres)
        sizes = np.bincount(cell, minlength=len(centres))
        sums = np.stack([np.bincount(cell, column, len(centres)) for column in points.T], axis=1)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return np.concatenate([_nearest(matrix[start : start + _ROWS], centres) for start in range(0, len(matrix), _ROWS)])


def _initialize_centers(points: NDArray[np.float64], count: int, rng: Generator) -> NDArray[np.float64]:
    """Picks points far from each other: each with probability proportional to its squared distance to the earlier
    ones.
    """
    center_indices = [int(rng.integers(len(points)))]
    squared_distances = np.square(points - points[center_indices[0]]).sum(axis=1)
    while len(center_indices) < count and squared_distances.sum() > 0:
        center_indices.append(int(rng.choice(len(points), p=squared_distances / squared_distances.sum())))
        squared_distances = np.minimum(squared_distances, np.square(points - points[center_indices[-1]]).sum(axis=1))
    return points[center_indices]


def _nearest(points: NDArray[np.floating], centres: NDArray[np.float64]) -> NDArray[np.int64]:
    offset = np.square(centres).sum(axis=1)
    return np.asarray((offset - 2 * multiply(points.astype(np.float64), centres.T)).argmin(axis=1), np.int64)


def allocate_quotas(total: int, weights: ArrayLike, capacities: ArrayLike, *, rng: Generator) -> NDArray[np.int64]:
    """Computes whole numbers `[c]` in proportion to weights, by largest remainder (Hamilton), within capacities.

    The surplus of a full cell goes to the other cells by the same rule. The generator decides equal remainders.
    The quotas sum to `total`, or to all capacities where those are fewer. Weights that are all 0 count as equal.

    Args:
        total: Number of items to distribute.
        weights: `[c]`. Weight of each cell.
        capacities: `[c]`. Number of items that each cell can take.
        rng: Generator that orders equal remainders.
    """
    shares, capacity = np.asarray(weights, np.float64), np.asarray(capacities, np.int64)
    quotas = np.zeros(len(capacity), np.int64)
    remaining = min(total, int(capacity.sum()))
    while remaining > 0:
        open_cells = np.flatnonzero(quotas < capacity)
        weight = shares[open_cells] if shares[open_cells].sum() > 0 else np.ones(len(open_cells))
        exact = remaining * weight / weight.sum()
        increments = np.floor(exact).astype(np.int64)
        order = np.lexsort((rng.permutation(len(open_cells)), increments - exact))
        increments[order[: remaining - int(increments.sum())]] += 1
        increments = np.minimum(increments, capacity[open_cells] - quotas[open_cells])
        quotas[open_cells] += increments
        remaining -= int(increments.sum())
    return quotas


def sharded_map(
    features: ArrayLike,
    quality: ArrayLike | None,
    k: int,
    *,
    cells: ArrayLike,
    rng: Generator,
    second_pass: bool = True,
) -> Selection:
    """Selects items by greedy MAP within cells, so that more items can be chosen than the features have rank.

    Cells get quotas by largest remainder on their summed quality. The part of a quota that a cell's rank cannot
    fill goes to other cells. With a second pass the cells offer twice as many items, and a greedy choice among the
    offers takes k (GreeDi, Mirzasoleiman et al. 2013, arXiv 1411.0541), restarted where its rank runs out. Where
    all cells together still offer too few items, they start again on the remaining ones.

    Args:
        features: `[n, d]`. Features of the items.
        quality: `[n]`, at least 0. None: 1 each.
        k: Number of items, at least 1.
        cells: `[n]` integers, from `kmeans_cells` or `hash_cells`.
        rng: Generator that decides between cells with equal remainders.
        second_pass: Whether to choose greedily among the offers of all cells.
    Returns:
        The selection. Gains are those of the greedy choice in which an item was taken; without a second pass items
        are sorted by gain. "rank": all remaining items have quality or features 0.
    Raises:
        BatchMismatch: cells of another length. Others: see `greedy_map`.
    """
    check_k(k)
    matrix = check_features(features)
    weights = np.ones(len(matrix)) if quality is None else check_quality(quality, len(matrix))
    labels = np.asarray(cells)
    if labels.shape != (len(matrix),) or labels.dtype.kind not in "iu":
        raise BatchMismatch(
            "cells do not match the features",
            value=f"{labels.dtype} of shape {labels.shape}",
            expected=f"{len(matrix)} whole numbers",
        )
    remaining, num_taken = np.arange(len(matrix)), 0
    indices: list[NDArray[np.int64]] = [remaining[:0]]
    gains: list[NDArray[np.float64]] = [np.zeros(0)]
    while num_taken < k and len(remaining):
        num_missing = k - num_taken
        offers = _collect_offers(
            matrix, weights, labels, remaining=remaining, count=2 * num_missing if second_pass else num_missing, rng=rng
        )
        if not len(offers.indices):
            break
        selection = offers
        if second_pass:
            rows = np.sort(offers.indices)
            again = restarted_map(matrix[rows], weights[rows], num_missing)
            selection = Selection(rows[again.indices], again.gains, again.stopped)
        indices.append(selection.indices)
        gains.append(selection.gains)
        num_taken += len(selection.indices)
        remaining = np.setdiff1d(remaining, selection.indices, assume_unique=True)
    stopped: Stopped = "k" if num_taken == k else "rank" if len(remaining) else "empty"
    return Selection(np.concatenate(indices), np.concatenate(gains), stopped)


def _collect_offers(
    matrix: NDArray[np.floating],
    weights: NDArray[np.float64],
    labels: NDArray[np.integer],
    *,
    remaining: NDArray[np.int64],
    count: int,
    rng: Generator,
) -> Selection:
    """Collects the items that the cells choose, best gain first: `count` items, or as many as the ranks allow."""
    members = [remaining[labels[remaining] == label] for label in np.unique(labels[remaining])]
    choices = [GreedySelector(matrix[rows], weights[rows]) for rows in members]
    sizes = np.array([len(rows) for rows in members])
    summed = np.array([weights[rows].sum() for rows in members])
    num_offered, used_up = np.zeros_like(sizes), np.zeros(len(sizes), np.bool_)
    while num_offered.sum() < count and not (used_up | (num_offered == sizes)).all():
        increments = allocate_quotas(
            count - int(num_offered.sum()), summed, np.where(used_up, 0, sizes - num_offered), rng=rng
        )
        for cell in np.flatnonzero(increments):
            reached = len(choices[cell].extend(int(num_offered[cell] + increments[cell])).indices)
            used_up[cell] = reached < num_offered[cell] + increments[cell]
            num_offered[cell] = reached
    offers = [choice.extend(int(number)) for choice, number in zip(choices, num_offered, strict=True)]
    indices = np.concatenate([rows[offer.indices] for rows, offer in zip(members, offers, strict=True)])
    gains = np.concatenate([offer.gains for offer in offers])
    order = np.lexsort((indices, -gains))
    return Selection(indices[order], gains[order], "k" if len(indices) >= count else "rank")


def _check_count(count: int) -> None:
    if count < 1:
        raise ConfigError([Problem("count", f"got {count} cells, expected at least 1")])

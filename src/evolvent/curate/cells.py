"""Selection in cells: more items than the features' rank, or than fits one choice, each cell choosing among its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from evolvent.curate.greedy import (
    Greedy,
    Selection,
    Stopped,
    checked_features,
    checked_k,
    checked_quality,
    product,
    restarted_map,
)
from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.trajectory import sample_seed

__all__ = ["hash_cells", "kmeans_cells", "quotas", "sharded_map"]

_ROWS = 1 << 14
_SAMPLE = 256  # points a centre that the centres are fitted on


def hash_cells(ids: Sequence[str], count: int) -> NDArray[np.int64]:
    """A cell `[n]` in 0..count - 1 for every id, by its hash: even sizes, and the same on every machine.

    Raises:
        ConfigError: count below 1.
    """
    _check_count(count)
    return np.array([sample_seed("cell", each) % count for each in ids], np.int64)


def kmeans_cells(features: ArrayLike, count: int, *, rng: Generator, rounds: int = 10) -> NDArray[np.int64]:
    """A cell `[n]` for every item: its nearest centre by k-means (Lloyd 1982), begun as k-means++ (Arthur 2007).

    Centres are fitted on at most 256 drawn items for each; then every item joins its nearest, the first of equal ones.
    Cells may be fewer than asked for where items coincide.

    Raises:
        ConfigError: count below 1. BatchMismatch, NonFinite: bad features.
    """
    _check_count(count)
    matrix = checked_features(features, finite=True)
    if not len(matrix):
        return np.zeros(0, np.int64)
    drawn = np.sort(rng.choice(len(matrix), min(len(matrix), _SAMPLE * count), replace=False))
    points = matrix[drawn].astype(np.float64)
    centres = _spread(points, count, rng)
    for _ in range(rounds):
        cell = _nearest(points, centres)
        sizes = np.bincount(cell, minlength=len(centres))
        sums = np.stack([np.bincount(cell, column, len(centres)) for column in points.T], axis=1)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return np.concatenate([_nearest(matrix[at : at + _ROWS], centres) for at in range(0, len(matrix), _ROWS)])


def _spread(points: NDArray[np.float64], count: int, rng: Generator) -> NDArray[np.float64]:
    """Points far from each other: each drawn in proportion to the squared distance to those before."""
    chosen = [int(rng.integers(len(points)))]
    near = np.square(points - points[chosen[0]]).sum(axis=1)
    while len(chosen) < count and near.sum() > 0:
        chosen.append(int(rng.choice(len(points), p=near / near.sum())))
        near = np.minimum(near, np.square(points - points[chosen[-1]]).sum(axis=1))
    return points[chosen]


def _nearest(points: NDArray[np.floating], centres: NDArray[np.float64]) -> NDArray[np.int64]:
    offset = np.square(centres).sum(axis=1)
    return np.asarray((offset - 2 * product(points.astype(np.float64), centres.T)).argmin(axis=1), np.int64)


def quotas(total: int, weights: ArrayLike, rooms: ArrayLike, *, rng: Generator) -> NDArray[np.int64]:
    """Whole numbers `[c]` in proportion to weights, by largest remainder (Hamilton), none above its room.

    What a full cell cannot take goes to the others by the same rule. Equal remainders are decided by the generator.
    They sum to `total`, or to all rooms where those are fewer. Weights that are all 0 count as equal.
    """
    shares, room = np.asarray(weights, np.float64), np.asarray(rooms, np.int64)
    given = np.zeros(len(room), np.int64)
    left = min(total, int(room.sum()))
    while left > 0:
        open_ = np.flatnonzero(given < room)
        weight = shares[open_] if shares[open_].sum() > 0 else np.ones(len(open_))
        exact = left * weight / weight.sum()
        more = np.floor(exact).astype(np.int64)
        order = np.lexsort((rng.permutation(len(open_)), more - exact))
        more[order[: left - int(more.sum())]] += 1
        more = np.minimum(more, room[open_] - given[open_])
        given[open_] += more
        left -= int(more.sum())
    return given


def sharded_map(
    features: ArrayLike,
    quality: ArrayLike | None,
    k: int,
    *,
    cells: ArrayLike,
    rng: Generator,
    second_pass: bool = True,
) -> Selection:
    """Greedy MAP within cells, so that more items can be chosen than the features have rank.

    Cells have quotas by largest remainder on their summed quality. What a cell's rank cannot fill goes to the others.
    With a second pass cells offer twice as many, and the greedy choice among the offers takes k (GreeDi, Mirzasoleiman
    et al. 2013, arXiv 1411.0541), begun again where its rank runs out. Where all cells together still offer too few,
    they begin again on the rest.

    Args:
        cells: `[n]` whole numbers, of `kmeans_cells` or `hash_cells`.
        rng: decides among cells with equal remainders.
    Returns:
        Gains are those of the greedy choice an item was taken in; without a second pass items come by gain. "rank": the
        rest has quality or features 0.
    Raises:
        BatchMismatch: cells of another length. Others: see `greedy_map`.
    """
    checked_k(k)
    matrix = checked_features(features)
    weights = np.ones(len(matrix)) if quality is None else checked_quality(quality, len(matrix))
    labels = np.asarray(cells)
    if labels.shape != (len(matrix),) or labels.dtype.kind not in "iu":
        raise BatchMismatch(
            "cells that do not fit the features",
            value=f"{labels.dtype} of shape {labels.shape}",
            expected=f"{len(matrix)} whole numbers",
        )
    left, taken = np.arange(len(matrix)), 0
    indices: list[NDArray[np.int64]] = [left[:0]]
    gains: list[NDArray[np.float64]] = [np.zeros(0)]
    while taken < k and len(left):
        short = k - taken
        offers = _offers(matrix, weights, labels, left=left, count=2 * short if second_pass else short, rng=rng)
        if not len(offers.indices):
            break
        chosen = offers
        if second_pass:
            rows = np.sort(offers.indices)
            again = restarted_map(matrix[rows], weights[rows], short)
            chosen = Selection(rows[again.indices], again.gains, again.stopped)
        indices.append(chosen.indices)
        gains.append(chosen.gains)
        taken += len(chosen.indices)
        left = np.setdiff1d(left, chosen.indices, assume_unique=True)
    stopped: Stopped = "k" if taken == k else "rank" if len(left) else "empty"
    return Selection(np.concatenate(indices), np.concatenate(gains), stopped)


def _offers(
    matrix: NDArray[np.floating],
    weights: NDArray[np.float64],
    labels: NDArray[np.integer],
    *,
    left: NDArray[np.int64],
    count: int,
    rng: Generator,
) -> Selection:
    """What the cells choose among what is left, best gain first: `count` items, or all that their ranks hold."""
    members = [left[labels[left] == label] for label in np.unique(labels[left])]
    choices = [Greedy(matrix[rows], weights[rows]) for rows in members]
    sizes = np.array([len(rows) for rows in members])
    summed = np.array([weights[rows].sum() for rows in members])
    got, used_up = np.zeros_like(sizes), np.zeros(len(sizes), np.bool_)
    while got.sum() < count and not (used_up | (got == sizes)).all():
        more = quotas(count - int(got.sum()), summed, np.where(used_up, 0, sizes - got), rng=rng)
        for cell in np.flatnonzero(more):
            reached = len(choices[cell].extend(int(got[cell] + more[cell])).indices)
            used_up[cell] = reached < got[cell] + more[cell]
            got[cell] = reached
    found = [choice.extend(int(number)) for choice, number in zip(choices, got, strict=True)]
    indices = np.concatenate([rows[each.indices] for rows, each in zip(members, found, strict=True)])
    gains = np.concatenate([each.gains for each in found])
    order = np.lexsort((indices, -gains))
    return Selection(indices[order], gains[order], "k" if len(indices) >= count else "rank")


def _check_count(count: int) -> None:
    if count < 1:
        raise ConfigError([Problem("count", f"{count} cells hold nothing", "use at least 1")])

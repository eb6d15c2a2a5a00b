"""Rows that are trees: what forks off a conversation is fed behind it, and every token sees its own past alone.

A part's `parent` says which token comes before each; where there is none, the one to its left. Shared beginnings are
fed once: the candidates of a decision, or the samples of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch
from evolvent.learn.packing import Batch, collate_padded, common_columns
from evolvent.learn.token_sequences import Parts

__all__ = ["ancestors", "branched", "collate", "collate_trees", "depths"]


def branched(trunk: Parts, branches: Sequence[tuple[int, Sequence[int]]], columns: Mapping[str, NDArray[Any]]) -> Parts:
    """A sequence with branches: tokens that could have followed one of its tokens. All of theirs are learned.

    Args:
        branches: (place in the trunk of the token before, the branch's tokens).
        columns: what the branches' tokens have beside them, one after the other; 0 in the trunk's other columns.
    Raises:
        BatchMismatch: a branch that begins outside, an empty one, or columns of another length.
    """
    count = sum(len(ids) for _, ids in branches)
    wrong = [place for place, ids in branches if not 0 <= place < len(trunk) or not ids]
    if wrong or any(len(values) != count for values in columns.values()):
        raise BatchMismatch(
            f"branches that do not fit trajectory {trunk.trajectory!r}",
            value=wrong[:5],
            expected="a place in it, at least one token, columns of as many",
        )
    parent = list(range(-1, len(trunk) - 1)) if trunk.parent is None else trunk.parent.tolist()
    step, ids = [], []
    for place, tokens in branches:
        first = len(parent)
        parent += [place, *range(first, first + len(tokens) - 1)]
        step += [int(trunk.step[place])] * len(tokens)
        ids += list(tokens)

    def longer(values: NDArray[Any], more: object) -> NDArray[Any]:
        tail = np.full((count, *values.shape[1:]), 0, values.dtype)
        tail[:] = more
        return np.concatenate([values, tail])

    return replace(
        trunk,
        ids=longer(trunk.ids, np.asarray(ids, np.int32)),
        written=longer(trunk.written, True),
        sampled=longer(trunk.sampled, False),
        logprobs=longer(trunk.logprobs, 0),
        step=longer(trunk.step, np.asarray(step, np.int32)),
        span=longer(trunk.span, -1),
        weight=longer(trunk.weight, 1),
        columns={name: longer(column, columns.get(name, 0)) for name, column in trunk.columns.items()},
        parent=np.asarray(parent, np.int32),
    )


def depths(parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many tokens come before each, `[T]`: its position."""
    found = np.zeros(len(parent), np.int64)
    for place, before in enumerate(parent.tolist()):
        found[place] = found[before] + 1 if before >= 0 else 0
    return found


def ancestors(parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """`[T, T]`: whether the column's token is the row's, or comes before it."""
    found = np.zeros((len(parent), len(parent)), np.bool_)
    for place, before in enumerate(parent.tolist()):
        if before >= 0:
            found[place] = found[before]
        found[place, place] = True
    return found


def collate(parts: Sequence[Parts] | Mapping[int, Parts], chosen: Sequence[int]) -> Batch:
    """The batch of these parts: padded rows, with a mask where one of them has branches."""
    if any(parts[index].parent is not None for index in chosen):
        return collate_trees(parts, chosen)
    return collate_padded(parts, [[index] for index in chosen])


def collate_trees(parts: Sequence[Parts] | Mapping[int, Parts], chosen: Sequence[int]) -> Batch:
    """One tree a row, padded on the right; padding sees itself, so that no row of the softmax is empty."""
    rows, width = len(chosen), max(len(parts[index]) for index in chosen)
    ids, positions = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int64)
    mask = np.zeros((rows, 1, width, width), np.bool_)
    mask[:] = np.eye(width, dtype=np.bool_)
    index, targets, weights, sequence = [], [], [], []
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in common_columns(parts, chosen)}
    for row, number in enumerate(chosen):
        own, size = parts[number], len(parts[number])
        parent = np.arange(-1, size - 1, dtype=np.int32) if own.parent is None else own.parent
        ids[row, :size], positions[row, :size] = own.ids, depths(parent)
        mask[row, 0, :size, :size] = ancestors(parent)
        places = np.flatnonzero((own.weight != 0) & (parent >= 0))
        index.append(row * width + parent[places].astype(np.int64))
        targets.append(own.ids[places].astype(np.int64))
        weights.append(own.weight[places])
        sequence.append(np.full(len(places), row, np.int64))
        for name, column in own.columns.items():
            columns[name].append(column[places])
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.concatenate(index)),
        torch.from_numpy(np.concatenate(targets)),
        torch.from_numpy(np.concatenate(weights)),
        tuple(chosen),
        sum(len(parts[number]) for number in chosen),
        torch.from_numpy(positions),
        None,
        torch.from_numpy(np.concatenate(sequence)),
        {name: torch.from_numpy(np.concatenate(values)) for name, values in columns.items()},
        torch.from_numpy(mask),
    )

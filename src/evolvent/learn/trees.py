"""Rows that are trees: branches of a conversation are fed behind it, and every token sees its own past alone.

A sequence's `parent` gives the token before each; where there is none, the one to its left. Shared prefixes are
fed once: for the candidates of a decision, or the samples of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_padded, common_columns

__all__ = ["add_branches", "ancestor_mask", "collate", "collate_trees", "token_depths"]


def add_branches(
    trunk: TokenSequence, branches: Sequence[tuple[int, Sequence[int]]], columns: Mapping[str, NDArray[np.generic]]
) -> TokenSequence:
    """Adds branches to a sequence: tokens that could have followed one of its tokens. All tokens of branches are
    learned.

    Args:
        branches: (position in the trunk of the token before, the branch's token ids).
        columns: entries of the branches' tokens, one after the other; 0 in the trunk's other columns.
    Raises:
        BatchMismatch: a branch begins outside, a branch is empty, or columns have another length.
    """
    count = sum(len(ids) for _, ids in branches)
    invalid = [position for position, ids in branches if not 0 <= position < len(trunk) or not ids]
    if invalid or any(len(values) != count for values in columns.values()):
        raise BatchMismatch(
            f"invalid branches of trajectory {trunk.trajectory!r}",
            value=invalid[:5],
            expected="a position in it, at least one token, and columns of the same length",
        )
    parent = list(range(-1, len(trunk) - 1)) if trunk.parent is None else trunk.parent.tolist()
    step, ids = [], []
    for position, branch_ids in branches:
        first = len(parent)
        parent += [position, *range(first, first + len(branch_ids) - 1)]
        step += [int(trunk.step[position])] * len(branch_ids)
        ids += list(branch_ids)

    def lengthen(values: NDArray[Any], tail_values: object) -> NDArray[Any]:
        tail = np.full((count, *values.shape[1:]), 0, values.dtype)
        tail[:] = tail_values
        return np.concatenate([values, tail])

    return replace(
        trunk,
        ids=lengthen(trunk.ids, np.asarray(ids, np.int32)),
        written=lengthen(trunk.written, True),
        sampled=lengthen(trunk.sampled, False),
        logprobs=lengthen(trunk.logprobs, 0),
        step=lengthen(trunk.step, np.asarray(step, np.int32)),
        span=lengthen(trunk.span, -1),
        weight=lengthen(trunk.weight, 1),
        columns={name: lengthen(column, columns.get(name, 0)) for name, column in trunk.columns.items()},
        parent=np.asarray(parent, np.int32),
    )


def token_depths(parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """Computes the number of tokens before each, `[T]`: its position."""
    depth = np.zeros(len(parent), np.int64)
    for position, previous in enumerate(parent.tolist()):
        depth[position] = depth[previous] + 1 if previous >= 0 else 0
    return depth


def ancestor_mask(parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Computes `[T, T]`: whether the column's token is the row's, or comes before it."""
    is_ancestor = np.zeros((len(parent), len(parent)), np.bool_)
    for position, previous in enumerate(parent.tolist()):
        if previous >= 0:
            is_ancestor[position] = is_ancestor[previous]
        is_ancestor[position, position] = True
    return is_ancestor


def collate(sequences: Sequence[TokenSequence] | Mapping[int, TokenSequence], selected: Sequence[int]) -> Batch:
    """Builds the batch of these sequences: padded rows, with a mask where one of them has branches."""
    if any(sequences[index].parent is not None for index in selected):
        return collate_trees(sequences, selected)
    return collate_padded(sequences, [[index] for index in selected])


def collate_trees(sequences: Sequence[TokenSequence] | Mapping[int, TokenSequence], selected: Sequence[int]) -> Batch:
    """Builds a batch of one tree per row, padded on the right; padding sees itself, so that no softmax row is empty."""
    import torch

    rows, width = len(selected), max(len(sequences[index]) for index in selected)
    ids, positions = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int64)
    mask = np.zeros((rows, 1, width, width), np.bool_)
    mask[:] = np.eye(width, dtype=np.bool_)
    index, targets, weights, sequence = [], [], [], []
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in common_columns(sequences, selected)}
    for row, number in enumerate(selected):
        token_sequence, size = sequences[number], len(sequences[number])
        parent = np.arange(-1, size - 1, dtype=np.int32) if token_sequence.parent is None else token_sequence.parent
        ids[row, :size], positions[row, :size] = token_sequence.ids, token_depths(parent)
        mask[row, 0, :size, :size] = ancestor_mask(parent)
        target_positions = np.flatnonzero((token_sequence.weight != 0) & (parent >= 0))
        index.append(row * width + parent[target_positions].astype(np.int64))
        targets.append(token_sequence.ids[target_positions].astype(np.int64))
        weights.append(token_sequence.weight[target_positions])
        sequence.append(np.full(len(target_positions), row, np.int64))
        for name, column in token_sequence.columns.items():
            columns[name].append(column[target_positions])
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.concatenate(index)),
        torch.from_numpy(np.concatenate(targets)),
        torch.from_numpy(np.concatenate(weights)),
        tuple(selected),
        sum(len(sequences[number]) for number in selected),
        torch.from_numpy(positions),
        None,
        torch.from_numpy(np.concatenate(sequence)),
        {name: torch.from_numpy(np.concatenate(values)) for name, values in columns.items()},
        torch.from_numpy(mask),
    )

"""Rows whose sequences share their prefixes: the samples of a prompt are one tree, whose prompt is fed once.

The outputs of a sequence do not change: every token sees its own past, at its own position. Feeding less saves
work as long as rows stay short, since a token's attention runs over its whole row; the sequences that share a
row are therefore chosen for the least work. (The same idea for groups of samples: Prefix Grouper, arXiv
2506.05433.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, Problem
from evolvent.learn.cost import Cost
from evolvent.learn.forward import Layout, can_pack, separates_sequences
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.token_sequences import (
    Batch,
    SequenceSource,
    bucket_by_length,
    collate_padded,
    common_columns,
)
from evolvent.learn.trees import collate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "PrefixSharing",
    "PrefixTree",
    "build_batches",
    "check_branches",
    "collate_shared",
    "count_shared_prefix",
    "resolve_rl_layout",
    "share_rows",
]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Sequences that share a row.

    Args:
        sequences: neighbors in the order of their tokens.
        shared_prefix: number of tokens that each shares with the sequence before it; 0 for the first.
        width: tokens of the row.
        targets: number of targets of all of them.
    """

    sequences: tuple[int, ...]
    shared_prefix: tuple[int, ...]
    width: int
    targets: int

    @property
    def size(self) -> int:
        """Returns the size of a forward pass over it: its tokens, or its targets if there are more."""
        return max(self.width, self.targets)


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """Decides which sequences share rows.

    Args:
        break_even_width: tokens of a row at which attention costs a token as much as everything else.
    """

    break_even_width: float

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> PrefixSharing:
        """Builds it for a Hugging Face causal LM, from counted operations of its layers."""
        cost = Cost.from_model(model)
        return cls(max(cost.body, 1.0) / max(2.0 * cost.attention, 1.0))  # the masked half is computed here

    def plan_rows(self, sequences: SequenceSource, selected: Sequence[int], *, max_tokens: int) -> list[PrefixTree]:
        """Plans which of these sequences share a row, for the least work; every sequence comes once.

        Args:
            max_tokens: limit of tokens, and of targets, of a row that several share.
        """
        fed_ids = {index: sequences[index].ids[: sequences[index].feed] for index in selected}
        order = sorted(selected, key=lambda index: (fed_ids[index].astype(">i4").tobytes(), index))
        shared_with_previous = [
            0,
            *(count_shared_prefix(fed_ids[left], fed_ids[right]) for left, right in pairwise(order)),
        ]
        sizes = [len(fed_ids[index]) for index in order]
        learned = np.cumsum([0, *(np.count_nonzero(sequences[index].weight[1:]) for index in order)]).tolist()
        least_work, row_starts = (
            [0.0],
            [(0, 0)],
        )  # least work of the first n, and the last row of that: its first, its tokens
        for end in range(1, len(order) + 1):
            first, width = end - 1, sizes[end - 1]
            minimum, row = least_work[first] + self.row_work(width, 1), (first, width)
            while shared_with_previous[first]:
                left, merged_width = sizes[first - 1], width + sizes[first - 1] - shared_with_previous[first]
                fits = max(merged_width, learned[end] - learned[first - 1]) <= max_tokens
                if not fits or self.row_work(width) + self.row_work(left) <= self.row_work(merged_width):
                    break  # whatever stands further to the left, a cut here is no more work
                first, width = first - 1, merged_width
                work = least_work[first] + self.row_work(width)
                minimum, row = (work, (first, width)) if work < minimum else (minimum, row)
            least_work.append(minimum)
            row_starts.append(row)
        trees, end = list[PrefixTree](), len(order)
        while end:
            first, width = row_starts[end]
            shared_prefix = (0, *shared_with_previous[first + 1 : end])
            trees.append(PrefixTree(tuple(order[first:end]), shared_prefix, width, learned[end] - learned[first]))
            end = first
        return trees[::-1]

    def row_work(self, width: int, sequences: int = 2) -> float:
        """Computes the work of a row, in tokens without attention; in a plain row the masked half of attention is
        free.
        """
        return width * (1.0 + width / (self.break_even_width if sequences > 1 else 2.0 * self.break_even_width))

    def collate(self, sequences: SequenceSource, selected: Sequence[int], *, max_tokens: int) -> Batch:
        """Builds one batch of these sequences, with targets in their order; uses plain rows where those are not
        larger.
        """
        trees = self.plan_rows(sequences, selected, max_tokens=max_tokens)
        plain_tokens = len(selected) * max((sequences[index].feed for index in selected), default=1)
        if len(trees) * max((tree.width for tree in trees), default=1) >= plain_tokens:
            return collate_padded(sequences, [[index] for index in selected])
        return collate_shared(sequences, trees, order=selected)


def share_rows(model: PreTrainedModel, parallelism: Parallelism) -> PrefixSharing:
    """Returns how sequences share rows in the layout "shared".

    Raises:
        ConfigError: for a model that would mix its sequences, or that is distributed over ranks that need rows of one
            shape.
    """
    if parallelism.tp * parallelism.pp > 1:
        message = "need pure data parallelism"
    elif not (can_pack(model) and _shares_rows(model)):
        message = f"need full attention and explicit positions, but {model.config.model_type} has other layers"
    else:
        return PrefixSharing.from_model(model)
    raise ConfigError([Problem("layout", f"shared rows {message}", "set layout to 'bucketed'; the loss is the same")])


def resolve_rl_layout(layout: Layout, model: PreTrainedModel) -> Layout:
    """Resolves "auto" for RL training: rows are shared on a CPU, if a trial shows that the model supports it.

    On other devices the mask that separates sequences rules out the fastest attention, and a forward pass of as many
    tokens has more targets: there sharing must be requested.
    """
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    if layout != "auto" or not (is_on_cpu and can_pack(model) and _shares_rows(model)):
        return layout
    return "shared"


def _shares_rows(model: PreTrainedModel) -> bool:
    """Returns whether a model gives sequences that share a row the outputs that they have alone."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "position_ids" not in signature(base.forward).parameters:
        return False  # where a token stands is then counted in the row
    return separates_sequences(
        model, lambda sequences: PrefixSharing(inf).collate(sequences, [0, 1], max_tokens=sum(map(len, sequences)))
    )


def check_branches(model: PreTrainedModel) -> None:
    """Checks, on two short sequences, that a model keeps the branches of a row apart.

    Raises:
        ConfigError: a model that would mix them.
    """
    if not (can_pack(model) and _shares_rows(model)):
        raise ConfigError(
            "the model would mix the branches of a row",
            value=f"a {model.config.model_type} model",
            expected="full attention in every layer, and explicit positions",
            hint="use another model, or a method that writes actions as text",
        )


def build_batches(
    sequences: SequenceSource,
    selected: Sequence[int],
    *,
    max_tokens: int,
    rng: Generator,
    sharing: PrefixSharing | None = None,
) -> list[Batch]:
    """Builds batches of at most `max_tokens`, padding included, from rows of like width; see
    `packing.bucket_by_length`.

    Sequences that have branches of their own stay apart, and so do all where sharing would take more batches, or no
    fewer tokens.
    """
    plain_groups = bucket_by_length([sequences[index].feed for index in selected], max_tokens, rng=rng)
    if sharing is not None and all(sequences[index].parent is None for index in selected):
        trees = sharing.plan_rows(sequences, selected, max_tokens=max_tokens)
        tree_groups = bucket_by_length([tree.size for tree in trees], max_tokens, rng=rng)
        tree_tokens = sum(len(group) * max(trees[position].width for position in group) for group in tree_groups)
        if len(tree_groups) <= len(plain_groups) and tree_tokens < sum(
            len(group) * max(sequences[selected[position]].feed for position in group) for group in plain_groups
        ):
            return [collate_shared(sequences, [trees[position] for position in group]) for group in tree_groups]
    return [collate(sequences, [selected[position] for position in group]) for group in plain_groups]


def collate_shared(
    sequences: SequenceSource, trees: Sequence[PrefixTree], *, order: Sequence[int] | None = None
) -> Batch:
    """Builds a batch with one tree per row, padded on the right; plain rows where nothing is shared.

    A sequence ends before its last weighted target, and shares its common prefix with the sequence before it in its
    row.

    Args:
        order: of the sequences, in which their targets come; None: that of the rows.
    """
    selected = [index for tree in trees for index in tree.sequences] if order is None else list(order)
    if all(len(tree.sequences) == 1 for tree in trees):
        return collate_padded(sequences, [[index] for index in selected])
    size = (len(trees), max(tree.width for tree in trees))
    ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
    mask = np.zeros((size[0], 1, size[1], size[1]), np.bool_)
    mask[:] = np.eye(size[1], dtype=np.bool_)  # padding sees itself: no row of the softmax is empty
    target_positions = {index: 1 + np.flatnonzero(sequences[index].weight[1:]) for index in selected}  # of the targets
    index = dict[int, NDArray[np.int64]]()
    for row, tree in enumerate(trees):
        row_positions, end = np.zeros(0, np.int64), 0
        for number, shared_length in zip(tree.sequences, tree.shared_prefix, strict=True):
            count = sequences[number].feed
            new = slice(end, end + count - shared_length)
            ids[row, new], positions[row, new] = (
                sequences[number].ids[shared_length:count],
                np.arange(shared_length, count),
            )
            mask[row, 0, new, row_positions[:shared_length]] = True
            mask[row, 0, new, new] = np.tri(count - shared_length, dtype=np.bool_)
            row_positions, end = np.concatenate([row_positions[:shared_length], np.arange(end, new.stop)]), new.stop
            index[number] = row * size[1] + row_positions[target_positions[number] - 1]

    def join(values: Iterable[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(values)))

    return Batch(
        torch.from_numpy(ids),
        join(index[number] for number in selected),
        join(sequences[number].ids[target_positions[number]] for number in selected).long(),
        join(sequences[number].weight[target_positions[number]] for number in selected),
        tuple(selected),
        sum(tree.width for tree in trees),
        torch.from_numpy(positions),
        None,
        torch.from_numpy(np.repeat(np.arange(len(selected)), [len(target_positions[number]) for number in selected])),
        {
            name: join(sequences[number].columns[name][target_positions[number]] for number in selected)
            for name in common_columns(sequences, selected)
        },
        torch.from_numpy(mask),
    )


def count_shared_prefix(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """Counts the tokens that both sequences, `[length]` each, begin with."""
    min_length = min(len(left), len(right))
    differs = left[:min_length] != right[:min_length]
    first = int(differs.argmax()) if min_length else 0
    return first if min_length and differs[first] else min_length

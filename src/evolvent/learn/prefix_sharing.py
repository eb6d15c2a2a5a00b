"""Rows whose sequences share their beginnings: the samples of a prompt are one tree, whose prompt is fed once.

What a sequence says is what it says alone: every token sees its own past, at its own position. Feeding less is worth
something as long as rows stay short, since a token's attention runs over its whole row; which sequences share a row is
therefore chosen for the least work. (The same idea for groups of samples: Prefix Grouper, arXiv 2506.05433.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, Problem
from evolvent.learn.config import TrainConfig
from evolvent.learn.cost import Cost
from evolvent.learn.forward import Layout, calm, can_pack, fitting, outputs
from evolvent.learn.objectives import given
from evolvent.learn.packing import Batch, Held, bucket, collate_padded, common_columns
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.token_sequences import Parts
from evolvent.learn.trees import collate

log = logging.getLogger(__name__)
_TRIED = 24  # tokens of the sequences that a model is tried on
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}

__all__ = ["Sharing", "Tree", "batches", "collate_shared", "in_practice", "shared", "sharing_of"]


@dataclass(frozen=True, slots=True)
class Tree:
    """Sequences that share a row.

    Args:
        sequences: neighbours in the order of their tokens. again: how many tokens each begins with that the one before
            has too; 0 for the first. width: tokens of the row. targets: of all of them.
    """

    sequences: tuple[int, ...]
    again: tuple[int, ...]
    width: int
    targets: int

    @property
    def size(self) -> int:
        """What a forward has to hold of it: tokens, or more logits than these."""
        return max(self.width, self.targets)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How sequences come to share rows.

    Args:
        even: tokens of a row for which attention costs a token as much as everything else does.
    """

    even: float

    @classmethod
    def of(cls, model: Any) -> Sharing:
        """For a Hugging Face causal LM, by counted operations of its layers."""
        cost = Cost.of(model)
        return cls(max(cost.body, 1.0) / max(2.0 * cost.attention, 1.0))  # the masked half is computed here

    def rows(self, parts: Held, chosen: Sequence[int], *, most: int) -> list[Tree]:
        """Which of these sequences share a row, for the least work; every one comes once.

        Args:
            most: tokens, and targets, of a row that several share.
        """
        fed = {index: parts[index].ids[: parts[index].feed] for index in chosen}
        order = sorted(chosen, key=lambda index: (fed[index].astype(">i4").tobytes(), index))
        again = [0, *(shared(fed[left], fed[right]) for left, right in pairwise(order))]
        sizes = [len(fed[index]) for index in order]
        learned = np.cumsum([0, *(np.count_nonzero(parts[index].weight[1:]) for index in order)]).tolist()
        best, begins = [0.0], [(0, 0)]  # least work of the first n, and the last row of that: its first, its tokens
        for end in range(1, len(order) + 1):
            first, width = end - 1, sizes[end - 1]
            least, row = best[first] + self.work(width, 1), (first, width)
            while again[first]:
                left, longer = sizes[first - 1], width + sizes[first - 1] - again[first]
                fits = max(longer, learned[end] - learned[first - 1]) <= most
                if not fits or self.work(width) + self.work(left) <= self.work(longer):
                    break  # whatever stands further to the left, a cut here is no more work
                first, width = first - 1, longer
                work = best[first] + self.work(width)
                least, row = (work, (first, width)) if work < least else (least, row)
            best.append(least)
            begins.append(row)
        trees, end = list[Tree](), len(order)
        while end:
            first, width = begins[end]
            shares = (0, *again[first + 1 : end])
            trees.append(Tree(tuple(order[first:end]), shares, width, learned[end] - learned[first]))
            end = first
        return trees[::-1]

    def work(self, width: int, sequences: int = 2) -> float:
        """Of a row, in tokens without attention. Of a plain row the masked half of attention costs nothing."""
        return width * (1.0 + width / (self.even if sequences > 1 else 2.0 * self.even))

    def collated(self, parts: Held, chosen: Sequence[int], *, most: int) -> Batch:
        """One batch of these sequences, whose targets stand in their order; plain rows where those are no more."""
        trees = self.rows(parts, chosen, most=most)
        plain = len(chosen) * max((parts[index].feed for index in chosen), default=1)
        if len(trees) * max((tree.width for tree in trees), default=1) >= plain:
            return collate_padded(parts, [[index] for index in chosen])
        return collate_shared(parts, trees, order=chosen)


def sharing_of(model: Any, layout: Layout, parallelism: Parallelism) -> Sharing | None:
    """How sequences share rows in a layout; None where each has its own.

    Raises:
        ConfigError: "shared" for a model that would mix its sequences, or laid over ranks that need rows of one shape.
    """
    if layout != "shared":
        return None
    if parallelism.tp * parallelism.pp > 1:
        what = "are learned with data parallelism alone"
    elif not (can_pack(model) and _keeps_apart(model)):
        what = f"need full attention and positions as they are given, {model.config.model_type} has something else"
    else:
        return Sharing.of(model)
    raise ConfigError([Problem("layout", f"shared rows {what}", "use 'bucketed': it has the same loss")])


def in_practice(train: TrainConfig, model: Any) -> TrainConfig:
    """What "auto" means where a policy practises: rows are shared on a CPU, if the model can (it is tried).

    On a device the mask that keeps sequences apart takes the fastest attention away, and a forward of as many tokens
    has more targets: there it is asked for.
    """
    here = next(model.parameters()).device.type == "cpu"
    if train.layout != "auto" or not (here and can_pack(model) and _keeps_apart(model)):
        return train
    return train.model_copy(update={"layout": "shared"})


def _keeps_apart(model: Any) -> bool:
    """Whether a model says of sequences in one row what it says of each alone: tried on two short ones."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "position_ids" not in signature(base.forward).parameters:
        return False  # where a token stands is then counted in the row
    words = int(model.get_input_embeddings().weight.shape[0])
    size = min(_TRIED, int(getattr(model.config, "max_position_embeddings", None) or _TRIED))
    drawn = np.random.default_rng(0).integers(0, words, (2, size)).astype(np.int32)
    drawn[1, : size // 3] = drawn[0, : size // 3]
    drawn[1, size // 3] = (drawn[0, size // 3] + 1) % words
    no, weight = np.zeros(size, np.bool_), np.append(0, np.ones(size - 1)).astype(np.float32)
    parts = [
        Parts("tried", ids, no, no, no.astype(np.float32), no.astype(np.int32), no.astype(np.int32), weight)
        for ids in drawn
    ]
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    with torch.no_grad(), calm(model):
        try:
            with fitting((2, size), "practise with a smaller model"):
                apart, tree = (
                    given(outputs(model, batch.to(device)).logprobs, "logprobs")
                    for batch in (
                        collate_padded(parts, [[0], [1]]),
                        Sharing(inf).collated(parts, [0, 1], most=2 * size),
                    )
                )
        except (ValueError, TypeError, IndexError, RuntimeError) as problem:  # it takes no mask of four dimensions, say
            log.info("rows of a %s model are not shared: %s", model.config.model_type, problem)
            return False
    found = bool((apart - tree).abs().max() <= _TOLERANCE.get(dtype, 1e-4))
    if not found:
        log.info("rows of a %s model are not shared: it mixes sequences of a row", model.config.model_type)
    return found


def batches(
    parts: Held, chosen: Sequence[int], *, most: int, rng: Generator, sharing: Sharing | None = None
) -> list[Batch]:
    """Batches of at most `most` tokens, padding included, of rows of like width; see `packing.bucket`.

    Sequences that have branches of their own stay apart, and so do all where sharing would take more batches, or no
    fewer tokens.
    """
    plain = bucket([parts[index].feed for index in chosen], most, rng=rng)
    if sharing is not None and all(parts[index].parent is None for index in chosen):
        trees = sharing.rows(parts, chosen, most=most)
        cuts = bucket([tree.size for tree in trees], most, rng=rng)
        held = sum(len(group) * max(trees[place].width for place in group) for group in cuts)
        if len(cuts) <= len(plain) and held < sum(
            len(group) * max(parts[chosen[place]].feed for place in group) for group in plain
        ):
            return [collate_shared(parts, [trees[place] for place in group]) for group in cuts]
    return [collate(parts, [chosen[place] for place in group]) for group in plain]


def collate_shared(parts: Held, trees: Sequence[Tree], *, order: Sequence[int] | None = None) -> Batch:
    """One tree a row, padded on the right; plain rows where nothing is shared.

    A sequence ends before its last weighted target, and shares with the one before it in its row what both begin with.

    Args:
        order: of the sequences, in which their targets stand; None: that of the rows.
    """
    chosen = [index for tree in trees for index in tree.sequences] if order is None else list(order)
    if all(len(tree.sequences) == 1 for tree in trees):
        return collate_padded(parts, [[index] for index in chosen])
    size = (len(trees), max(tree.width for tree in trees))
    ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
    mask = np.zeros((size[0], 1, size[1], size[1]), np.bool_)
    mask[:] = np.eye(size[1], dtype=np.bool_)  # padding sees itself: no row of the softmax is empty
    places = {index: 1 + np.flatnonzero(parts[index].weight[1:]) for index in chosen}  # of the targets
    index = dict[int, NDArray[np.int64]]()
    for row, tree in enumerate(trees):
        path, end = np.zeros(0, np.int64), 0
        for number, same in zip(tree.sequences, tree.again, strict=True):
            count = parts[number].feed
            new = slice(end, end + count - same)
            ids[row, new], positions[row, new] = parts[number].ids[same:count], np.arange(same, count)
            mask[row, 0, new, path[:same]] = True
            mask[row, 0, new, new] = np.tri(count - same, dtype=np.bool_)
            path, end = np.concatenate([path[:same], np.arange(end, new.stop)]), new.stop
            index[number] = row * size[1] + path[places[number] - 1]

    def joined(values: Iterable[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(values)))

    return Batch(
        torch.from_numpy(ids),
        joined(index[number] for number in chosen),
        joined(parts[number].ids[places[number]] for number in chosen).long(),
        joined(parts[number].weight[places[number]] for number in chosen),
        tuple(chosen),
        sum(tree.width for tree in trees),
        torch.from_numpy(positions),
        None,
        torch.from_numpy(np.repeat(np.arange(len(chosen)), [len(places[number]) for number in chosen])),
        {
            name: joined(parts[number].columns[name][places[number]] for number in chosen)
            for name in common_columns(parts, chosen)
        },
        torch.from_numpy(mask),
    )


def shared(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many tokens both begin with."""
    least = min(len(left), len(right))
    unlike = left[:least] != right[:least]
    first = int(unlike.argmax()) if least else 0
    return first if least and unlike[first] else least

"""Passes through what was played: minibatches, micro-batches, and what the updates said on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from evolvent.learn.learner import Learner
from evolvent.learn.packing import Batch, collate_packed, pack
from evolvent.learn.parts import Parts
from evolvent.learn.sharing import batches

__all__ = ["Tally", "minibatch", "passes"]


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the passes.

    Attributes:
        updates: taken. in_row: how many of the last were not finite, with those of earlier passes. stopped: a limit
            ended the passes. skipped: updates that were not finite, and so were not taken.
        tokens: targets learned. fed: real tokens fed.
        means: over the updates: loss, gradient norm, and what the objective measured.
    """

    updates: int
    in_row: int
    stopped: bool
    tokens: int = 0
    fed: int = 0
    skipped: int = 0
    means: Mapping[str, float] = field(default_factory=dict)


def passes(
    learner: Learner, chains: Sequence[Parts], *, epochs: int, minibatches: int, rng: Generator, in_row: int = 0
) -> Tally:
    """Improve a learner on these sequences: every pass in another order, cut into minibatches as equal as can be.

    An update beyond the objective's limit is not taken, and ends all passes. One that is not finite is not taken
    either; so many in a row as the learner has patience end them. Afterwards the policy's weights are those to play
    (`Trained.learning`).

    Args:
        in_row: how many updates before these were not finite.
    Raises:
        NothingToLearn: a minibatch without learned targets.
    """
    sums: dict[str, list[float]] = {}
    orders, cuts = rng.spawn(2)  # apart, so that how batches are cut does not change what is in them
    updates, skipped, stopped, tokens, fed = 0, 0, False, 0, 0
    with learner.trained.learning():
        for _ in range(epochs):
            order = orders.permutation(len(chains))
            for rows in np.array_split(order, min(minibatches, len(chains))):
                metrics = learner.update(minibatch(learner, chains, rows.tolist(), rng=cuts))
                stopped = metrics.stopped
                in_row = in_row + 1 if metrics.skipped else 0
                said = dict(metrics.stats)
                fed += 0 if stopped else metrics.fed
                skipped += metrics.skipped
                if stopped or metrics.skipped:
                    learner.updates -= 1
                else:
                    updates, tokens = updates + 1, tokens + metrics.tokens
                    said |= {"loss": metrics.loss, "grad_norm": metrics.grad_norm, "lr": metrics.lr}
                for name, value in said.items():
                    sums.setdefault(name, []).append(value)
                if stopped or in_row >= learner.config.patience:
                    break
            if stopped or in_row >= learner.config.patience:
                break
    means = {name: float(np.mean(values)) for name, values in sums.items()}
    return Tally(updates, in_row, stopped, tokens, fed, skipped, {**means, "stopped": float(stopped)})


def minibatch(learner: Learner, chains: Sequence[Parts], chosen: Sequence[int], *, rng: Generator) -> list[Batch]:
    """The micro-batches of one update, in the learner's layout."""
    most = learner.config.most
    if learner.layout == "packed" and all(chains[index].parent is None for index in chosen):
        lengths = [chains[index].feed for index in chosen]
        rows = pack(lengths, max(most, *lengths))
        return [collate_packed(chains, [[chosen[place] for place in row]]) for row in rows]
    return batches(chains, chosen, most=most, rng=rng, sharing=learner.sharing)

"""What the ranks of `test_learner_ranks.py` run: the cells' small model, with other objectives and broken losses."""

import hashlib
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.parallel_cells import Cell, episodes, small_policy
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import Objective, value_objective, weighted_nll
from evolvent.learn.optim.make import OffloadedOptimizer, OptimizerConfig
from evolvent.learn.parallel import lay
from evolvent.learn.parallel.ranks import Mesh, join_ranks


def broken_at(sample):
    """Imitation; the batch of one sample has a loss that is not a number."""

    def loss(outputs, batch):
        amount, count = weighted_nll.loss(outputs, batch)
        return amount * (float("nan") if sample in batch.samples else 1.0), count

    return Objective("broken", loss, weighted_nll.count)


def and_values():
    """Imitation, and values of 1."""

    def loss(outputs, batch):
        amount, count = weighted_nll.loss(outputs, batch)
        return amount + 0.5 * (outputs.values - 1.0).square().sum(), count

    return Objective("both", loss, weighted_nll.count, ("logprobs", "values"))


OBJECTIVES = {"imitation": weighted_nll, "broken": broken_at(7), "values": value_objective(), "both": and_values()}


def train(cell, objective="imitation", folder=None, stop=None, **settings):
    """(losses, gradient norms of this call, what was skipped, whether weights are finite) of six updates."""
    torch.set_num_threads(1)
    policy = small_policy(cell)
    values = {"lr": cell.lr, "updates": 6, "warmup_updates": 2, "batch_tokens": 260, "layout": "bucketed", **settings}
    with join_ranks(cell.parallelism.mesh) as ranks:
        learner = Learner(
            policy,
            OBJECTIVES[objective],
            TrainConfig(**values),
            seed=5,
            parallelism=cell.parallelism,
            ranks=ranks,
            optimizer=OptimizerConfig(name=cell.optimizer, **cell.options),
        )
        assert isinstance(learner.optimizer, OffloadedOptimizer) == ("offload" in settings)
        keeper = None if folder is None else Checkpointer(Path(folder), every=100, ranks=ranks)
        norms = []
        report = learner.fit(
            episodes(policy, 30),
            checkpoint=keeper,
            on_update=lambda metrics: norms.append(metrics.grad_norm),
            should_stop=None if stop is None else lambda: learner.updates >= stop,
        )
        finite = [bool(np.isfinite(weight.detach().sum().item())) for weight in learner.trained.weights.values()]
    return report.losses, norms, report.skipped, all(finite)


def run(cell, objective, settings):
    return train(cell, objective, **settings)


def run_offloaded(cell, settings):
    """Trains with states in main memory, as if the ranks of this CPU had devices of their own."""
    find_problems, Learner._find_offload_problems = Learner._find_offload_problems, lambda learner: []
    try:
        return train(cell, offload="optimizer", **settings)
    finally:
        Learner._find_offload_problems = find_problems


__all__ = ["Cell", "run", "run_offloaded", "train"]


def average():
    """Returns gradients of two ranks after their average, by name; buckets hold four numbers."""
    names = ("both", "first alone", "nobody", "frozen", "low", "large")
    sizes = {"both": 2, "large": 6}
    with join_ranks(Mesh(replicate=2)) as ranks, patch.object(lay, "_BUCKET_NUMBERS", 4):
        weights = {name: torch.nn.Parameter(torch.zeros(sizes.get(name, 1))) for name in names}
        weights["low"] = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        weights["frozen"].requires_grad = False
        weights["both"].grad = (
            torch.tensor([1.0, 2.0]) * (1 + 2 * ranks.rank) - torch.tensor([0.0, 1.0]) * ranks.rank * 2
        )
        weights["large"].grad = torch.full((6,), 1.0 + ranks.rank)
        weights["low"].grad = torch.full((1,), 1.0 + ranks.rank, dtype=torch.bfloat16)
        if ranks.is_leader:
            weights["first alone"].grad = torch.ones(1)
        lay.average_gradients(weights.values(), ranks)
        return {name: None if weight.grad is None else weight.grad.tolist() for name, weight in weights.items()}


def hold(layout):
    """Returns (whether trained weights are plain, whether they are the policy's, a digest of the policy)."""
    torch.set_num_threads(1)
    cell = Cell(layout)
    policy = small_policy(cell)
    config = TrainConfig(lr=cell.lr, updates=2, batch_tokens=260, layout="bucketed")
    with join_ranks(cell.parallelism.mesh) as ranks:
        learner = Learner(
            policy, weighted_nll, config, seed=5, parallelism=cell.parallelism, ranks=ranks, keeps_whole=True
        )
        learner.fit(episodes(policy, 12))
        learner.sync_whole()
        trained = list(learner.trained.weights.values())
        is_plain = all(type(weight) is torch.nn.Parameter for weight in trained)
        own = {id(weight) for weight in policy.model.parameters()}
        return is_plain, all(id(weight) in own for weight in trained), digest_weights(policy)


def digest_weights(policy):
    """Returns a digest of all weights of a policy."""
    digest = hashlib.sha256()
    for weight in policy.model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    return digest.hexdigest()

"""Metrics that an objective measures beside its loss, summed over micro-batches and ranks, and its limit."""

from __future__ import annotations

import torch

from evolvent.errors import ConfigError, Problem
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.ranks import Ranks

__all__ = ["KLLimitReached", "MetricSums", "check_objective"]


class KLLimitReached(Exception):
    """A metric exceeds the objective's limit, so the update is dropped. It never leaves the Learner."""


class MetricSums:
    """The sums of an objective's metrics over one update.

    Args:
        ranks: every data rank measures its own micro-batches; a limit applies to all of them together.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        self._objective, self._ranks = objective, ranks
        self._left, self._whole = 0, 0
        self._sums = torch.zeros(len(objective.metric_names), 2, dtype=torch.float64, device=ranks.device)

    def reset(self, num_batches: int, num_targets: int) -> None:
        """Starts a new update of so many micro-batches, with so many targets over all data ranks."""
        self._sums.zero_()
        self._left, self._whole = num_batches, num_targets

    @torch.no_grad()
    def add(self, outputs: Outputs, batch: Batch) -> None:
        """Adds a micro-batch, before its backward pass.

        Raises:
            KLLimitReached: the metric of this update exceeds the limit, or will whatever is still to come: no metric
                with a
                limit is negative, so that the result does not depend on the split into micro-batches.
        """
        self._left -= 1
        objective = self._objective
        if objective.stats is None:
            return
        stats, device = objective.stats(outputs, batch), self._ranks.device
        pairs = [
            [torch.as_tensor(value, dtype=torch.float64, device=device) for value in stats[name]]
            for name in objective.metric_names
        ]
        self._sums += torch.stack([torch.stack(pair) for pair in pairs])
        if objective.limit is not None:
            name, limit = objective.limit
            total, count = self._ranks.sum(self._sums[objective.metric_names.index(name)].clone(), "dp").tolist()
            if total > limit * (max(count, self._whole) if self._left else count) and count:
                raise KLLimitReached

    def means(self) -> dict[str, float]:
        """Returns the means by name, over all ranks; metrics without a count are left out."""
        if not self._objective.metric_names:
            return {}
        sums = self._ranks.sum(self._sums.clone(), "dp", "pp").tolist()
        pairs = zip(self._objective.metric_names, sums, strict=True)
        return {name: total / count for name, (total, count) in pairs if count}


def check_objective(objective: Objective, parallelism: Parallelism) -> None:
    """Checks that a layout supports an objective.

    Raises:
        ConfigError: it does not; lists all problems.
    """
    problems = []
    if "logits" in objective.needs and parallelism.tp > 1:
        message = f"objective {objective.name!r} reads whole distributions, and each rank has a slice of the words"
        problems.append(Problem("parallel.tp", message, "use shard or replicate"))
    if objective.limit is not None and parallelism.pp > 1:
        message = f"objective {objective.name!r} may end an update in the middle, which a pipeline cannot"
        problems.append(Problem("parallel.pp", message, "leave the limit out, or use shard"))
    if objective.limit is not None and objective.limit[0] not in objective.metric_names:
        problems.append(Problem("stop", f"{objective.limit[0]!r} is not among {objective.metric_names}", "measure it"))
    if problems:
        raise ConfigError(problems)

"""What an objective measures of an update beside its loss, summed over micro-batches and ranks, and its limit."""

from __future__ import annotations

import torch

from evolvent.errors import ConfigError, Problem
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.ranks import Ranks

__all__ = ["Beyond", "Measured", "check_objective"]


class Beyond(Exception):
    """A measured number is beyond the objective's limit: this update is not taken. It never leaves the Learner."""


class Measured:
    """The sums of one update.

    Args:
        ranks: every data rank measures its own micro-batches; a limit is asked of all of them together.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        self._objective, self._ranks = objective, ranks
        self._left, self._whole = 0, 0
        self._sums = torch.zeros(len(objective.measured), 2, dtype=torch.float64, device=ranks.device)

    def reset(self, batches: int, whole: int) -> None:
        """A new update of so many micro-batches begins, with so many targets over all data ranks."""
        self._sums.zero_()
        self._left, self._whole = batches, whole

    @torch.no_grad()
    def note(self, outputs: Outputs, batch: Batch) -> None:
        """Add a micro-batch, before its backward.

        Raises:
            Beyond: what was measured in this update is more than the limit, or will be whatever is still to come: no
                number with a limit is negative, so that it depends on the update and not on how it was cut.
        """
        self._left -= 1
        objective = self._objective
        if objective.stats is None:
            return
        found, device = objective.stats(outputs, batch), self._ranks.device
        pairs = [
            [torch.as_tensor(value, dtype=torch.float64, device=device) for value in found[name]]
            for name in objective.measured
        ]
        self._sums += torch.stack([torch.stack(pair) for pair in pairs])
        if objective.stop is not None:
            name, limit = objective.stop
            total, count = self._ranks.sum(self._sums[objective.measured.index(name)].clone(), "dp").tolist()
            if total > limit * (max(count, self._whole) if self._left else count) and count:
                raise Beyond

    def means(self) -> dict[str, float]:
        """By name, over all ranks; what nothing was counted of is left out."""
        if not self._objective.measured:
            return {}
        sums = self._ranks.sum(self._sums.clone(), "dp", "pp").tolist()
        pairs = zip(self._objective.measured, sums, strict=True)
        return {name: total / count for name, (total, count) in pairs if count}


def check_objective(objective: Objective, parallelism: Parallelism) -> None:
    """Refuse an objective that a layout cannot have.

    Raises:
        ConfigError: everything wrong at once.
    """
    problems = []
    if "logits" in objective.needs and parallelism.tp > 1:
        what = f"objective {objective.name!r} reads whole distributions, and each rank has a slice of the words"
        problems.append(Problem("parallel.tp", what, "use shard or replicate"))
    if objective.stop is not None and parallelism.pp > 1:
        what = f"objective {objective.name!r} may end an update in the middle, which a pipeline cannot"
        problems.append(Problem("parallel.pp", what, "leave the limit out, or use shard"))
    if objective.stop is not None and objective.stop[0] not in objective.measured:
        problems.append(Problem("stop", f"{objective.stop[0]!r} is not among {objective.measured}", "measure it"))
    if problems:
        raise ConfigError(problems)

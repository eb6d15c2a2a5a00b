"""What the ranks of `test_policy_ranks.py` run: policy gradients on the cells' small model, their columns made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.parallel_cells import Cell, episodes, small_policy
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.parallel.ranks import join_ranks
from evolvent.learn.token_sequences import TokenSequence
from evolvent.rl.objective import ImportanceWeights, PolicyGradient, policy_gradient
from evolvent.rl.presets import GRPO, GSPO, OPENR_APPO

LOSSES: dict[str, PolicyGradient] = {
    "grpo": GRPO.loss,
    "gspo": replace(GSPO.loss, importance_weights=ImportanceWeights(2.0, "masked", "sequence")),
    "spans": replace(OPENR_APPO.loss, entropy_coef=0.0, target_kl=None),
}


def judged(parts: Sequence[TokenSequence]) -> list[TokenSequence]:
    """The parts with columns that depend on each alone."""
    made = []
    for number, part in enumerate(parts):
        rng, length = np.random.default_rng(number), len(part)
        columns: dict[str, Any] = {
            name: rng.normal(-2.5, 0.3, length).astype(np.float32) for name in ("old", "behaviour", "reference")
        }
        columns |= {
            name: rng.normal(0, 1, length).astype(np.float32) for name in ("advantages", "returns", "old_values")
        }
        numbers = np.cumsum(rng.random(length) < 0.3)
        made.append(replace(part, columns={**columns, "span": numbers, "action": numbers // 2}))
    return made


def run(cell: Cell, name: str, micro_tokens: int | None) -> tuple[tuple[float, ...], list[float]]:
    """Losses and gradient norms of four updates."""
    torch.set_num_threads(1)
    policy, norms = small_policy(cell), []
    config = TrainConfig(
        lr=cell.lr, max_steps=4, batch_tokens=260, max_tokens_per_forward=micro_tokens, layout="bucketed"
    )
    with join_ranks(cell.parallelism.mesh) as ranks:
        learner = Learner(
            policy, policy_gradient(LOSSES[name], name=name), config, seed=5, parallelism=cell.parallelism, ranks=ranks
        )
        report = learner.fit(judged(episodes(policy, 30)), on_update=lambda metrics: norms.append(metrics.grad_norm))
    return tuple(report.losses), norms

"""What a training survives: weights without gradient, curvature that is not finite, dropout in two passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import small_config, small_parts, small_policy

from evolvent.errors import ConfigError
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import Objective, value_objective, weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.ranks import Mesh, Parallelism, Ranks
from evolvent.learn.token_sequences import TokenSequence, collate_padded


def with_returns(parts: list[TokenSequence]) -> list[TokenSequence]:
    return [replace(p, columns={"returns": np.sin(np.arange(len(p))).astype(np.float32)}) for p in parts]


def test_a_weight_that_never_had_a_gradient_has_no_state_to_resume(tmp_path: Path) -> None:
    def fit(folder: Path | None, stop: int = 99) -> tuple[tuple[float, ...], Learner]:
        policy = small_policy()
        policy.model.config.tie_word_embeddings = False
        head = policy.model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        learner = Learner(policy, value_objective(), small_config(epochs=1), seed=1)
        keeper = None if folder is None else Checkpointer(folder, every=50)
        parts = with_returns(small_parts(policy, 20))
        return learner.fit(parts, checkpoint=keeper, should_stop=lambda: learner.updates >= stop).losses, learner

    whole, learner = fit(None)
    assert learner.policy.model.get_output_embeddings().weight not in learner.optimizer.state
    fit(tmp_path, stop=2)
    resumed, again = fit(tmp_path)
    assert resumed == whole and len(whole) > 3
    assert again.policy.model.get_output_embeddings().weight not in again.optimizer.state
    for one, other in zip(learner.policy.model.parameters(), again.policy.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_fused_optimizer_takes_one_batch_an_update() -> None:
    policy = small_policy()
    learner = Learner(policy, weighted_nll, small_config(), seed=1, optimizer=OptimizerConfig(name="lomo"))
    parts, before = small_parts(policy, 4), [weight.clone() for weight in policy.model.parameters()]
    with pytest.raises(ConfigError, match="between the 2 micro-batches"):
        learner.update([collate_padded(parts, [[0], [1]]), collate_padded(parts, [[2], [3]])])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_both_passes_of_a_clipped_fused_update_drop_out_the_same() -> None:
    def fit(**options: Any) -> tuple[float, ...]:
        policy = small_policy(dropout=0.3)
        config = small_config(epochs=1, lr=0.3, max_grad_norm=0.2, warmup_steps=0)
        learner = Learner(policy, weighted_nll, config, seed=1, optimizer=OptimizerConfig(name="lomo", **options))
        return learner.fit(small_parts(policy)).losses

    assert fit() == pytest.approx(fit(fused=False), abs=2e-6)


def test_curvature_that_is_not_finite_is_left_out() -> None:
    policy = small_policy()
    optimizer = OptimizerConfig(name="sophiag", hessian_every=1)
    learner = Learner(policy, weighted_nll, small_config(lr=1e-3), seed=1, optimizer=optimizer)
    batch = collate_padded(small_parts(policy, 4), [[0], [1], [2], [3]])
    learner.update([batch])
    broken = policy.model.get_output_embeddings().register_forward_hook(lambda _, __, logits: logits * float("nan"))
    assert learner.update([batch]).skipped
    broken.remove()
    assert not learner.update([batch]).skipped
    for weight in policy.model.parameters():
        assert weight.isfinite().all() and learner.optimizer.state[weight]["hessian"].isfinite().all()


@pytest.mark.parametrize("clipping", ["two_pass", "none"])
def test_after_an_update_beyond_the_limit_a_backward_changes_nothing(clipping: Any) -> None:
    policy = small_policy()
    far = Objective(
        "far",
        weighted_nll.loss,
        weighted_nll.count,
        metric_names=("kl",),
        limit=("kl", 0.1),
        stats=lambda outputs, batch: {"kl": (torch.tensor(1.0), 1)},
    )
    learner = Learner(policy, far, small_config(lr=0.3), seed=1, optimizer=OptimizerConfig(name="lomo", clip=clipping))
    before = [weight.clone() for weight in policy.model.parameters()]
    batch = collate_padded(small_parts(policy, 2), [[0], [1]])
    assert learner.update([batch]).stopped
    policy.model(batch.ids).logits.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_ranks_of_another_layout_are_refused() -> None:
    ranks = Ranks(Mesh(replicate=2), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"another layout.*replicate=2.*shard=2"):
        Learner(small_policy(), weighted_nll, small_config(), seed=1, parallelism=Parallelism(shard=2), ranks=ranks)

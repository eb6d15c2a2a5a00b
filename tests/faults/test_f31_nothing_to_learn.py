"""Fault 31: nothing was kept, or nothing of it is learned: an error before the first step, never a loss of 0 / 0."""

from __future__ import annotations

import pytest
import torch
from small_training import episode, small_config, small_parts, small_policy

from evolvent.errors import NothingToLearn
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import Batch, flatten


def test_all_rewards_zero() -> None:
    policy = small_policy()
    flat = flatten(
        [episode(i) for i in range(5)],
        policy.dialect,
        instructions=lambda task: "",
        context=64,
        weight=lambda trajectory: 0.0,
    )
    learner = Learner(policy, weighted_nll, small_config(), seed=0)
    with pytest.raises(NothingToLearn, match="5 sequences"):
        learner.fit(flat.sequences)
    assert learner.updates == 0


def test_an_update_without_targets() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    batch = Batch(torch.ones(1, 3, dtype=torch.int64), empty, empty, torch.empty(0), (0,), 3)
    policy = small_policy()
    before = [weight.clone() for weight in policy.model.parameters()]
    with pytest.raises(NothingToLearn, match="1 batches"):
        Learner(policy, weighted_nll, small_config(), seed=0).update([batch])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_failure_among_others_adds_nothing() -> None:
    """Trajectories of weight 0 change neither the losses nor the weights of a training."""
    results = []
    for extra in (0, 7):
        policy = small_policy()
        parts = small_parts(policy, 10)
        failed = flatten(
            [episode(i) for i in range(50, 50 + extra)],
            policy.dialect,
            instructions=lambda task: "",
            context=64,
            weight=lambda trajectory: 0.0,
        ).sequences
        report = Learner(policy, weighted_nll, small_config(), seed=0).fit([*failed, *parts, *failed])
        results.append((report, list(policy.model.parameters())))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))

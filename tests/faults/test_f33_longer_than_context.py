"""Fault 33: a trajectory longer than the context: refused and listed; if all are, an error before training."""

from __future__ import annotations

import numpy as np
import pytest
from small_training import episode, small_config, small_policy

from evolvent.errors import BatchMismatch, NothingToLearn
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence, flatten


def test_refused_and_listed_and_the_rest_is_learned() -> None:
    policy = small_policy()
    trajectories = [episode(0, steps=2), episode(1, steps=12), episode(2, steps=3)]
    flat = flatten(trajectories, policy.dialect, instructions=lambda task: "", context=policy.context)
    assert [parts.trajectory for parts in flat.sequences] == ["t0", "t2"]
    (problem,) = flat.refused
    assert problem.where == "t1" and "context of 64" in problem.what
    learner = Learner(policy, weighted_nll, small_config(max_steps=1), seed=0)
    assert learner.fit(flat.sequences).updates == 1


def test_all_too_long() -> None:
    policy = small_policy()
    flat = flatten([episode(1, steps=12)], policy.dialect, instructions=lambda task: "", context=64)
    with pytest.raises(NothingToLearn, match=r"rows that flatten\(\) refused"):
        Learner(policy, weighted_nll, small_config(), seed=0).fit(flat.sequences)


def test_the_learner_does_not_cut() -> None:
    policy = small_policy()
    size = policy.context + 2  # one more than can be fed: the last is a target only
    none, ones = np.zeros(size, np.bool_), np.ones(size, np.float32)
    long = TokenSequence(
        "long", np.ones(size, np.int32), none, none, ones * 0, np.zeros(size, np.int32), np.zeros(size, np.int32), ones
    )
    learner = Learner(policy, weighted_nll, small_config(), seed=0)
    with pytest.raises(BatchMismatch, match="'long' is longer than the model's context: got 65"):
        learner.fit([long])
    assert learner.updates == 0

"""Fault 34: samples older than allowed are left out and counted; ratios are clamped; a sampler that differs is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolvent.errors import NothingToLearn
from evolvent.learn.forward import compute_outputs
from evolvent.rl.diagnostics import measure_tokens
from evolvent.rl.objective import Clip, ImportanceWeights, PolicyGradient, policy_gradient
from evolvent.rl.presets import GRPO
from evolvent.rl.rollout_batch import add_columns
from evolvent.rl.trainer import RLSpec, build_minibatch
from evolvent.view.reinforcement import SIGNS
from tests.rl.acting import Echo, quick, run_of, small


def tasks():
    return Echo().tasks("train", "seen")


def test_episodes_of_too_old_a_policy_are_left_out_and_counted(tmp_path):
    world = Echo()
    setup = RLSpec("grpo", quick(max_policy_lag=1, iterations=1), GRPO.objective)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        for _ in practice.iterations():
            played = practice.rollout(practice.next_starts(tasks()))
            practice.advance_version()
            assert practice.score(played).report.stale == 0, "one version behind is allowed"
            practice.advance_version()
            with pytest.raises(NothingToLearn):
                practice.score(played)
            fresh = practice.rollout(practice.next_starts(tasks(), turn=1, count=2))
            report = practice.score([*played, *fresh]).report
    assert (report.stale, report.episodes) == (len(played), len(fresh))
    assert practice.metrics["stale"] == pytest.approx(len(played) / (len(played) + len(fresh)))


@pytest.fixture
def seen(tmp_path):
    world = Echo()
    setup = RLSpec("grpo", quick(iterations=1), GRPO.objective)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        yield practice, practice.score(practice.rollout(practice.next_starts(tasks())))


def test_a_sampler_that_differs_is_told_and_corrected(seen):
    """Log-probabilities that are not the policy's own: the sign is beyond its limit, the weight is capped or 0."""
    practice, found = seen
    off = replace(found.batch, logp=(found.batch.logp - 1.5).astype(np.float32))
    health = measure_tokens(off, found.token_outputs, {}, version=0)
    (sign,) = [sign for sign in SIGNS if sign.name == "mismatch"]
    assert (
        health["mismatch"]
        > sign.limit
        > abs(measure_tokens(found.batch, found.token_outputs, {}, version=0)["mismatch"])
    )
    losses = {}
    for kind in ("truncated", "masked", None):
        settings = PolicyGradient(importance_weights=None if kind is None else ImportanceWeights(2.0, kind))
        objective = policy_gradient(settings)
        columns = {"old": found.old, "behaviour": off.logp, "advantages": np.ones(off.num_tokens)}
        chains = add_columns(found.sequences, off, columns)
        (batch,) = build_minibatch(practice.learner, chains, range(len(chains)), rng=np.random.default_rng(0))
        with torch.no_grad():
            total, count = objective.loss(compute_outputs(practice.policy.model, batch), batch)
        losses[kind] = float(total) / count
    assert losses["truncated"] == pytest.approx(2.0 * losses[None], rel=1e-4), "exp(1.5) is cut to 2"
    assert losses["masked"] == 0.0


def test_a_ratio_is_clamped(seen):
    practice, found = seen
    objective = policy_gradient(PolicyGradient(surrogate=Clip(0.2, 0.2)))
    columns = {"old": found.old - 3.0, "advantages": np.ones(found.batch.num_tokens)}
    chains = add_columns(found.sequences, found.batch, columns)
    (batch,) = build_minibatch(practice.learner, chains, range(len(chains)), rng=np.random.default_rng(0))
    loss, count = objective.loss(compute_outputs(practice.policy.model, batch), batch)
    assert float(loss.detach()) / count == pytest.approx(-1.2, rel=1e-5), "exp(3) counts as 1.2"
    loss.backward()
    assert all(float(w.grad.abs().max()) == 0 for w in practice.policy.model.parameters() if w.grad is not None)

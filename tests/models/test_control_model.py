"""A policy over numbers: standardized observations, actions and their log-probabilities, and its files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evolvent.models.team_actions import TeamInputs, TeamShape
from evolvent.models.team_actors import ControlModel
from evolvent.models.team_files import load_team, make_team, save_team

SHAPES = {
    "discrete": TeamShape(kind="mlp", agents=1, observation=3, sizes=(4,)),
    "several": TeamShape(kind="mlp", agents=1, observation=3, sizes=(2, 3)),
    "continuous": TeamShape(kind="mlp", agents=1, observation=3, dim=2),
}


def test_observations_are_standardized_by_all_that_were_learned_from():
    model, rng = ControlModel(SHAPES["discrete"]), np.random.default_rng(0)
    batches = [rng.normal(5.0, [1.0, 10.0, 0.1], (n, 1, 3)).astype(np.float32) for n in (7, 1, 50)]
    for batch in batches:
        model.update_scales(torch.from_numpy(batch))
    rows = np.concatenate(batches).reshape(-1, 3).astype(np.float64)
    assert model.mean.numpy() == pytest.approx(rows.mean(0)) and int(model.count) == 58
    assert (model.square / model.count).numpy() == pytest.approx(rows.var(0))
    standardized = model._standardize(torch.from_numpy(np.concatenate(batches))).numpy().reshape(-1, 3)
    assert standardized == pytest.approx((rows - rows.mean(0)) / rows.std(0), abs=1e-4)


def test_a_number_that_never_changes_stays_finite():
    model = ControlModel(SHAPES["discrete"])
    model.update_scales(torch.ones(5, 1, 3))
    assert model._standardize(torch.tensor([[[1.0, 1.1, -1e9]]])).tolist() == [[[0.0, 10.0, -10.0]]]


@pytest.mark.parametrize("name", SHAPES)
def test_sampled_actions_have_the_probability_that_is_evaluated(name):
    model = make_team(SHAPES[name], seed=1)
    model.update_scales(torch.randn(20, 1, 3))
    inputs = TeamInputs(torch.randn(6, 1, 3))
    sampled = model.act(inputs, torch.rand(6, 1, model.shape.parts))
    evaluated = model.evaluate(inputs, sampled.actions)
    assert torch.allclose(sampled.logp, evaluated.logp, atol=1e-6)
    assert torch.allclose(sampled.values, model.values(inputs)) and torch.allclose(sampled.values, evaluated.values)


@pytest.mark.parametrize("name", SHAPES)
def test_a_policy_is_saved_with_its_scales(name, tmp_path):
    model = make_team(SHAPES[name], seed=2)
    model.update_scales(torch.randn(20, 1, 3))
    save_team(model, tmp_path)
    loaded, inputs = load_team(tmp_path), TeamInputs(torch.randn(4, 1, 3))
    assert isinstance(loaded, ControlModel) and torch.equal(loaded.values(inputs), model.values(inputs))
    assert torch.equal(loaded.mean, model.mean) and torch.equal(loaded.count, model.count)

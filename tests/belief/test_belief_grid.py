"""The grid belief: a posterior that can be worked out, axes of all families, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_particles import FLAT, SENSOR, WIDE

from evolvent.belief import grid
from evolvent.belief.particles import BeliefCollapsed
from evolvent.errors import ConfigError, WorldError
from evolvent.worlds.plume.model import Sensor, concentration


def test_bayes_rule_by_hand():
    """Four cells, one silent reading: the posterior is prior times likelihood, worked out with the error function."""
    cloud = grid.make_grid([FLAT], {"x": 2, "y": 2})
    centres = cloud.theta[:2, 0].T.tolist()
    assert centres == [[6.25, 6.25], [6.25, 18.75], [18.75, 6.25], [18.75, 18.75]]
    after = grid.update(cloud, np.array([[6.0, 6.0, 0.0]]), np.zeros(1), sensor=SENSOR)
    likelihoods = []
    for x, y in centres:
        clean = concentration(np.array([6.0, 6.0, 0.0]), np.array([x, y, 0, 5, 2, math.pi / 4, 2, 10]))
        likelihoods.append(0.35 * (1 + math.erf((5e-4 - clean) / (5e-4 * math.sqrt(2)))) + 0.3)
    expected = np.array(likelihoods) / sum(likelihoods)
    np.testing.assert_allclose(after.log_w.exp()[0].numpy(), expected, rtol=1e-12)
    assert float(after.evidence[0]) == pytest.approx(math.log(sum(likelihoods) / 4))
    assert grid.summarize_cloud(after).mean[0, :2] == pytest.approx(expected @ np.array(centres))


def test_axes_of_all_families():
    """Means and standard deviations of the prior itself, unknown by unknown."""
    known = {
        "x": 3.0,
        "y": 3.0,
        "z": 0.0,
        "rate": 5.0,
        "wind_speed": 2.0,
        "wind_from": 0.1,
        "diffusivity": 2.0,
        "lifetime": 9.0,
    }
    for index, name, mean, std in (
        (1, "y", 12.5, 25 / math.sqrt(12)),
        (3, "rate", 10, math.sqrt(50)),
        (5, "wind_from", math.pi / 4, 0.17),
    ):
        others = {key: value for key, value in known.items() if key != name}
        told = grid.summarize_cloud(grid.make_grid([WIDE.fix(**others)], {name: 400}))
        assert told.mean[0, index] == pytest.approx(mean, rel=0.02)
        assert told.std[0, index] == pytest.approx(std, rel=0.03)


def test_grids_are_exact_in_double_precision():
    cloud = grid.make_grid([FLAT], {"x": 5, "y": 5})
    assert cloud.log_w.dtype == torch.float64
    assert float(cloud.log_w.exp().sum()) == pytest.approx(1, abs=1e-12)


def test_bad_input():
    for cells, what in (
        ({"x": 5}, "y"),
        ({"x": 5, "y": 0}, "y"),
        ({"x": 5, "yy": 5, "y": 2}, "yy"),
        ({"x": 5000, "y": 5000}, "cells"),
    ):
        with pytest.raises(ConfigError, match=what):
            grid.make_grid([FLAT], cells)
    for both in ([FLAT.fix(x=3.0), FLAT], [FLAT, FLAT.fix(x=3.0)]):
        for cells in ({"x": 5, "y": 5}, {"y": 5}):
            with pytest.raises(ConfigError, match="x: only some priors know it"):
                grid.make_grid(both, cells)
    cloud = grid.make_grid([FLAT], {"x": 5, "y": 5})
    with pytest.raises(WorldError):
        grid.update(cloud, np.zeros((1, 3)), np.array([math.nan]), sensor=SENSOR)
    with pytest.raises(BeliefCollapsed):
        sure = Sensor(detect=1.0, sigma=1e-9, sigma_fraction=1e-6)
        grid.update(cloud, np.zeros((1, 3)), np.array([123.0]), sensor=sure)

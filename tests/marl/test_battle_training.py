"""Teams learn to fight: every method plays battles within their masks, and gets better at them."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import MATConfig, mat
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.battle import BattleWorld

UPDATE = TeamUpdateConfig(lr=5e-4, ppo_epochs=10, minibatches=1, clip_range=0.2, entropy_coef=0.01, grad_norm=10.0)


def train(kind: str, layout: str, *, rows: int, steps: int, rollouts: int, update: TeamUpdateConfig = UPDATE):
    world = BattleWorld(layout, sizes=Sizes(train=4, dev=0, test=0))
    batch = world.batch(world.tasks("train", "seen"), rows)
    config = MATConfig(kind=kind, rows=rows, steps=steps, decisions=rows * steps * rollouts, update=update)
    return mat(config, batch)


@pytest.mark.parametrize("kind", ["mat", "mat_dec", "mappo", "happo"])
def test_methods_fight_within_the_masks(kind):
    trained = train(kind, "MMM2", rows=4, steps=12, rollouts=2, update=UPDATE.model_copy(update={"ppo_epochs": 1}))
    assert [row["decisions"] for row in trained.history] == [48, 96], "an action outside a mask would have raised"
    assert all(np.isfinite(value) for row in trained.history for value in row.values())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mat", "mappo"])
def test_a_short_training_on_3m_improves(kind):
    trained = train(kind, "3m", rows=32, steps=60, rollouts=8)
    returns = [row["episode_return"] for row in trained.history if "episode_return" in row]
    assert returns[0] < 2.5, "chance pays about 1.6"
    assert returns[-1] > 1.5 * returns[0]
